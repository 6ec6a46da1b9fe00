//! A group that is moved or forgotten, a topic that is removed: books, restarts and power cuts.

use std::collections::BTreeMap;

use tidegate_core::books::{Account, Place};
use tidegate_core::{GroupName, Offset};
use tidegate_sim::{SimDisk, Survivors, crash_points};

use super::harness::{Harness, append, at, dir, id, offset, small, topic};
use crate::admin::{AdminMode, FORGOTTEN, GroupSeek, SKIPPED, TOPIC_REMOVED, TopicRemoval};
use crate::embedded::audit_directory;
use crate::error::LogError;
use crate::local::Write;
use crate::topic::TopicConfig;

fn group() -> GroupName {
    GroupName::new("g").unwrap()
}

fn seek(partition: i32, to: i64) -> GroupSeek {
    GroupSeek {
        group: group(),
        to: vec![(at("a", partition), Offset(to))],
        mode: AdminMode::Apply,
    }
}

fn removal(is_forced: bool) -> TopicRemoval {
    TopicRemoval {
        topic: topic("a"),
        is_forced,
        mode: AdminMode::Apply,
    }
}

/// A topic of two partitions with ten records each, of which the group has delivered six of the first.
fn begun(disk: &SimDisk) -> Harness {
    let mut harness = Harness::open(disk, small()).unwrap();
    harness.create("a", TopicConfig::new(2)).unwrap();
    harness.register("g", vec![0]).unwrap();
    for n in 0..10 {
        let appends = vec![append("a", 0, n), append("a", 1, 100 + n)];
        harness.append(appends).unwrap();
    }
    commit(&mut harness, 0, 6);
    harness.keep().unwrap();
    harness
}

/// The group delivers the records of the first partition between.
fn commit(harness: &mut Harness, from: i64, next: i64) {
    let ids = (from..next).map(|n| id(n.unsigned_abs()));
    let offsets = vec![offset("g", at("a", 0), next, ids)];
    let write = Write {
        appends: Vec::new(),
        offsets,
    };
    harness.write(write).unwrap();
}

/// The account of the group, by an audit that finds nothing.
fn account(harness: &Harness) -> Account {
    harness.assert_balanced();
    let audited = harness.audit().into_iter();
    let mut groups = audited.filter(|one| one.group == Some(group()));
    let one = groups.next().unwrap();
    assert_eq!(one.recount.account().queued, one.books.account().queued);
    one.books.account()
}

fn lost(account: &Account, reason: &str) -> i64 {
    let mut reasons = account.lost.reasons();
    reasons
        .find(|(name, _)| *name == reason)
        .map_or(0, |(_, count)| count)
}

fn places(account: &Account) -> (i64, i64, i64, i64) {
    let skipped = lost(account, "skipped");
    (account.accepted, account.queued, account.delivered, skipped)
}

#[test]
fn t37_a_group_that_is_moved_back_reads_again_and_its_books_say_so() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    assert_eq!(places(&account(&harness)), (20, 14, 6, 0));
    let trial = GroupSeek {
        mode: AdminMode::Trial,
        ..seek(0, 2)
    };
    let planned = harness.opened.writer.seek(&trial).unwrap();
    assert_eq!(
        places(&account(&harness)),
        (20, 14, 6, 0),
        "a trial changes nothing"
    );
    let sought = harness.opened.writer.seek(&seek(0, 2)).unwrap();
    assert_eq!(sought, planned);
    let moved = (sought[0].from, sought[0].to, sought[0].records);
    assert_eq!(
        (moved, sought[0].is_back()),
        ((Offset(6), Offset(2), 4), true)
    );
    assert_eq!(places(&account(&harness)), (20, 18, 2, 0));
    // Again, and nothing happens.
    assert_eq!(harness.opened.writer.seek(&seek(0, 2)).unwrap(), []);
    commit(&mut harness, 2, 9);
    assert_eq!(places(&account(&harness)), (20, 11, 9, 0));
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(places(&account(&harness)), (20, 11, 9, 0));
}

#[test]
fn t37_records_that_a_group_is_moved_past_are_lost_to_it_until_it_goes_back() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    harness.opened.writer.seek(&seek(0, 9)).unwrap();
    assert_eq!(places(&account(&harness)), (20, 11, 6, 3));
    harness.opened.writer.seek(&seek(1, 99)).unwrap();
    assert_eq!(
        places(&account(&harness)),
        (20, 1, 6, 13),
        "no further than the end"
    );
    // Some of them were skipped, and others delivered.
    harness.opened.writer.seek(&seek(0, 4)).unwrap();
    assert_eq!(places(&account(&harness)), (20, 6, 4, 10));
    harness.opened.writer.seek(&seek(1, 0)).unwrap();
    assert_eq!(places(&account(&harness)), (20, 16, 4, 0));
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(places(&account(&harness)), (20, 16, 4, 0));
}

#[test]
fn a_group_goes_back_before_its_beginning_and_has_the_records_from_then_on() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    harness.register("late", vec![0]).unwrap();
    harness.skip("late", &[(0, 0), (0, 1)]).unwrap();
    let late = GroupName::new("late").unwrap();
    let seek = GroupSeek {
        group: late.clone(),
        to: vec![(at("a", 0), Offset(3))],
        mode: AdminMode::Apply,
    };
    let sought = harness.opened.writer.seek(&seek).unwrap();
    assert_eq!((sought[0].from, sought[0].records), (Offset(10), 7));
    harness.assert_balanced();
    let mut audited = harness.audit().into_iter();
    let late = audited.find(|one| one.group == Some(late.clone())).unwrap();
    assert_eq!(places(&late.books.account()), (7, 7, 0, 0));
}

#[test]
fn a_group_does_not_go_back_over_records_that_it_did_not_deliver() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    let mut dead = offset("g", at("a", 0), 10, (6..10).map(id));
    for posting in &mut dead.postings {
        posting.to = Some(Place::DeadLettered);
    }
    let write = Write {
        appends: Vec::new(),
        offsets: vec![dead],
    };
    harness.write(write).unwrap();
    let before = account(&harness);
    let refused = harness.opened.writer.seek(&seek(0, 0)).unwrap_err();
    assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
    assert_eq!(account(&harness), before);
}

#[test]
fn t38_a_group_that_is_forgotten_leaves_its_books_and_its_unread_records_are_lost() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    let trial = harness
        .opened
        .writer
        .forget(&group(), AdminMode::Trial)
        .unwrap();
    assert_eq!(trial.unread, [(topic("a"), 14)]);
    assert_eq!(places(&account(&harness)), (20, 14, 6, 0));
    assert_eq!(
        harness
            .opened
            .writer
            .forget(&group(), AdminMode::Apply)
            .unwrap(),
        trial
    );
    let check = |disk: &SimDisk| {
        let found = audit_directory(disk, dir(), &BTreeMap::new())
            .unwrap()
            .unwrap();
        let (name, books) = &found.forgotten[0];
        let account = books.account();
        assert!(books.is_balanced() && *name == topic("a"), "{books:?}");
        assert_eq!(
            (account.accepted, account.queued, account.delivered),
            (20, 0, 6)
        );
        assert_eq!(lost(&account, FORGOTTEN.as_str()), 14);
        assert!(found.topics.iter().all(|one| one.group.is_none()));
    };
    check(&disk);
    let unknown = harness
        .opened
        .writer
        .forget(&group(), AdminMode::Apply)
        .unwrap_err();
    assert!(
        matches!(unknown, LogError::UnknownGroup { .. }),
        "{unknown}"
    );
    // Retention does not wait for it any more.
    assert_eq!(harness.opened.context.state().needed_from((0, 0)), i64::MAX);
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.crash(&Survivors::Nothing);
    check(&disk);
    // One of that name begins anew.
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.register("g", vec![0]).unwrap();
    assert_eq!(places(&account(&harness)), (20, 20, 0, 0));
    harness
        .opened
        .writer
        .forget(&group(), AdminMode::Apply)
        .unwrap();
    let found = audit_directory(&disk, dir(), &BTreeMap::new())
        .unwrap()
        .unwrap();
    assert_eq!(
        lost(&found.forgotten[0].1.account(), FORGOTTEN.as_str()),
        34
    );
}

#[test]
fn t39_a_topic_is_not_removed_while_a_group_has_to_read_some_of_it() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    let refused = harness
        .opened
        .writer
        .remove_topic(&removal(false))
        .unwrap_err();
    let LogError::Unread { groups, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(groups, [(group(), 14)]);
    assert_eq!(places(&account(&harness)), (20, 14, 6, 0));
}

#[test]
fn t39_a_topic_that_is_removed_takes_its_records_along_and_its_books_stay() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    let removed = harness.opened.writer.remove_topic(&removal(true)).unwrap();
    assert_eq!(
        (removed.records, &removed.unread),
        (20, &vec![(group(), 14)])
    );
    let appended = harness.append(vec![append("a", 0, 50)]);
    assert!(matches!(appended, Err(LogError::UnknownTopic { .. })));
    assert!(harness.read(&at("a", 0), 0).is_err());
    harness.keep().unwrap();
    let files = |disk: &SimDisk| {
        let disk: &dyn tidegate_core::env::Disk = disk;
        let listed = disk.list(&dir().join("topic-a")).unwrap();
        listed
            .iter()
            .filter(|entry| entry.name.ends_with(".seg"))
            .count()
    };
    assert_eq!(files(&disk), 0);
    let check = |harness: &Harness| {
        harness.assert_balanced();
        let audited = harness.audit();
        let (books, of_group) = (&audited[0].books, audited[1].books.account());
        assert_eq!(
            (books.account().accepted, books.removed().accepted),
            (20, 20)
        );
        assert_eq!((of_group.queued, of_group.delivered), (0, 6));
        assert_eq!(lost(&of_group, TOPIC_REMOVED.as_str()), 14);
    };
    check(&harness);
    for is_checkpointed in [false, true] {
        if is_checkpointed {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        drop(harness);
        disk.crash(&Survivors::Nothing);
        harness = Harness::open(&disk, small()).unwrap();
        check(&harness);
        assert!(harness.opened.context.state().topic(&topic("a")).is_none());
    }
    // It goes on where it was, with as many partitions.
    let refused = harness.create("a", TopicConfig::new(3)).unwrap_err();
    assert!(refused.to_string().contains("was removed"), "{refused}");
    harness.create("a", TopicConfig::new(2)).unwrap();
    let written = harness.append(vec![append("a", 0, 60)]).unwrap();
    assert_eq!(written[0].offset, Offset(10));
    assert_eq!(account(&harness).queued, 1);
    assert_eq!(account(&harness).accepted, 21);
}

#[test]
fn a_removed_topic_whose_files_are_still_there_is_no_evidence_of_a_loss() {
    let disk = SimDisk::new(1);
    let mut harness = begun(&disk);
    harness.opened.maintenance.fill(true).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    harness.opened.writer.remove_topic(&removal(true)).unwrap();
    // The process ends before anything of it is removed.
    drop(harness);
    disk.crash(&Survivors::Nothing);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.opened.context.state().unknown_loss(), None);
    harness.keep().unwrap();
    harness.assert_balanced();
    assert_eq!(harness.audit()[0].books.removed().accepted, 20);
}

/// The promise: so many of the changes were answered.
#[derive(Default)]
struct Done(usize);

#[test]
fn a_power_cut_leaves_each_change_whole_or_undone() {
    let scenario = |disk: &SimDisk, done: &mut Done| {
        let mut harness = begun(disk);
        done.0 = 1;
        harness.opened.writer.seek(&seek(0, 2)).unwrap();
        done.0 = 2;
        harness.opened.writer.seek(&seek(1, 5)).unwrap();
        done.0 = 3;
        harness
            .opened
            .writer
            .forget(&group(), AdminMode::Apply)
            .unwrap();
        done.0 = 4;
        harness.opened.writer.remove_topic(&removal(false)).unwrap();
        done.0 = 5;
        harness.keep().unwrap();
    };
    let check = |disk: &SimDisk, done: &Done| {
        if done.0 == 0 {
            return Ok(());
        }
        let mut harness = Harness::open(disk, small()).map_err(|error| error.to_string())?;
        harness.keep().map_err(|error| error.to_string())?;
        harness.assert_balanced();
        let found = audit_directory(disk, dir(), &BTreeMap::new());
        let found = found
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let of_group = found.topics.iter().find(|one| one.group.is_some());
        let state = match (of_group, found.forgotten.first()) {
            (Some(one), _) => places(&one.books.account()),
            (None, Some((_, books))) => places(&books.account()),
            (None, None) => (0, 0, 0, 0),
        };
        let is_removed = harness.opened.context.state().topic(&topic("a")).is_none();
        // The state after each change, by the number of the change.
        let states = [
            ((20, 14, 6, 0), false),
            ((20, 18, 2, 0), false),
            ((20, 13, 2, 5), false),
            ((20, 0, 2, 5), false),
            ((20, 0, 2, 5), true),
        ];
        let at = states.iter().position(|one| *one == (state, is_removed));
        // One more than was answered may be there.
        match at {
            Some(at) if at + 1 == done.0 || at == done.0 => Ok(()),
            _ => Err(format!(
                "{} were done, and {state:?} {is_removed} is there",
                done.0
            )),
        }
    };
    let explored = crash_points(1, scenario, check);
    assert!(explored.states > 100, "{explored:?}");
    assert_eq!(SKIPPED.as_str(), "skipped");
}
