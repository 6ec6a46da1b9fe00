//! The loss with a damaged journal is known, whoever looks, until a repair takes note of it; and a
//! repair explains nothing but damage.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_sim::SimDisk;

use super::harness::{Harness, append, at, damage, dir, empty_journal, id, journal, offset, small};
use crate::EmbeddedConfig;
use crate::embedded::change::LogChange;
use crate::embedded::group::JournalFrame;
use crate::embedded::injected_bugs::{self, InjectedBug};
use crate::embedded::{
    COMMIT_DAMAGED, DAMAGED, LogProblem, RepairPlan, Repaired, TopicAudit, check, plan_repair,
    recount, repair, unknown_loss,
};
use crate::error::LogError;
use crate::local::Write;
use crate::topic::TopicConfig;

/// One journal file, so that a later group is never far.
fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(TopicAudit::unaccounted).sum()
}

/// How many events are lost at least that are in no books.
fn unknown(disk: &SimDisk) -> u64 {
    let loss = unknown_loss(disk, dir()).unwrap();
    loss.map_or(0, |loss| loss.events)
}

fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = open(disk).clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    repaired
}

/// The losses that a repair would post.
fn plan(disk: &SimDisk) -> RepairPlan {
    let clock = open(disk).clock;
    plan_repair(disk, &*clock, dir()).unwrap()
}

#[test]
fn records_of_a_partition_that_no_later_group_writes_to_are_missed() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(2)).unwrap();
    for (partition, n) in [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 5)] {
        harness.append(vec![append("a", partition, n)]).unwrap();
    }
    drop(harness);
    assert_eq!(unaccounted(&disk), 0);
    for n in 1..5 {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    for _ in 0..2 {
        assert_eq!(unaccounted(&disk), 4);
        let mut harness = open(&disk);
        assert_eq!(harness.end(&at("a", 1)), 4, "offsets are not given twice");
        assert!(matches!(
            harness.read(&at("a", 1), 0),
            Err(LogError::Damaged { to: Offset(4), .. })
        ));
        harness.opened.maintenance.checkpoint().unwrap();
    }
    let repaired = mend(&disk);
    assert!(
        matches!(
            repaired[..],
            [Repaired::UnknownLoss(_), Repaired::Records { .. }]
        ),
        "{repaired:?}"
    );
    assert_eq!((unaccounted(&disk), unknown(&disk)), (0, 0));
    let lost = &recount(&disk, dir()).unwrap()[0].books;
    assert_eq!(lost.in_place(&Place::Lost(DAMAGED)), 4);
}

#[test]
fn records_of_unknown_partitions_are_counted_and_their_offsets_left_out() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    // More partitions than a group tells the ends of.
    harness.create("a", TopicConfig::new(80)).unwrap();
    for n in 0..70 {
        let partition = i32::try_from(n).unwrap();
        harness.append(vec![append("a", partition, n)]).unwrap();
    }
    drop(harness);
    for n in 1..69 {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    let (missing, more) = (unaccounted(&disk), unknown(&disk));
    assert_eq!(missing + more, 68);
    assert!(missing >= 30, "{missing}");
    let loss = unknown_loss(&disk, dir()).unwrap().unwrap();
    assert_eq!(loss.damage.len(), 1, "one place is damaged: {loss}");
    for _ in 0..2 {
        let mut harness = open(&disk);
        let first = harness.append(vec![append("a", 1, 100)]).unwrap()[0]
            .offset
            .0;
        assert!(
            first > 0,
            "its first offset was given to a record that is lost"
        );
        drop(harness);
        assert_eq!((unaccounted(&disk), unknown(&disk)), (missing, more));
        let problems = check(&disk, dir()).unwrap().problems;
        assert!(
            problems
                .iter()
                .any(|p| matches!(p, LogProblem::UnknownLoss(_)))
        );
    }
    let repaired = mend(&disk);
    assert!(
        repaired
            .iter()
            .any(|done| matches!(done, Repaired::UnknownLoss(_)))
    );
    assert_eq!((unaccounted(&disk), unknown(&disk)), (0, 0));
}

/// Records that only a segment has may have come later than the last group. They are none of those that it
/// says were given.
#[test]
fn records_found_in_segments_are_not_subtracted_from_the_lost_count() {
    // In one chunk, and in fewer than are lost elsewhere.
    for (writes, of) in [(0, 0), (1, 50), (5, 1)] {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(80)).unwrap();
        harness.create("b", TopicConfig::new(1)).unwrap();
        for n in 0..70 {
            let partition = i32::try_from(n).unwrap();
            harness.append(vec![append("a", partition, n)]).unwrap();
        }
        let from = harness.opened.context.state().journal.at;
        for write in 0..writes {
            let numbers = (0..of).map(|n| append("b", 0, 1_000 + write * of + n));
            harness.append(numbers.collect()).unwrap();
        }
        let to = harness.opened.context.state().journal.at;
        harness.opened.maintenance.fill(true).unwrap();
        drop(harness);
        disk.end_process();
        let as_disk: &dyn Disk = &disk;
        let place = dir().join("topic-a");
        for entry in as_disk.list(&place).unwrap() {
            as_disk.remove(&place.join(entry.name)).unwrap();
        }
        for n in 1..69 {
            damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
        }
        let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
        file.write_at(from, &vec![0; (to - from) as usize]).unwrap();
        drop(file);
        let loss = unknown_loss(&disk, dir()).unwrap().unwrap();
        let most = loss.damage.iter().map(|damage| damage.events).max();
        assert_eq!(unaccounted(&disk) + most.unwrap(), 68, "{loss}");
        let mut harness = open(&disk);
        let first = harness.append(vec![append("a", 1, 2_000)]).unwrap()[0]
            .offset
            .0;
        assert!(
            first > 0,
            "its first offset was given to a record that is lost"
        );
        if writes > 0 {
            let found = harness
                .all(&at("b", 0))
                .unwrap_or_else(|_| harness.read(&at("b", 0), 0).unwrap().records);
            assert!(!found.is_empty());
        }
    }
}

#[test]
fn a_journal_that_is_gone_is_missed_from_the_first_acknowledged_write_on() {
    for (is_removed, with_checkpoint) in
        [(true, false), (false, false), (true, true), (false, true)]
    {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(1)).unwrap();
        if with_checkpoint {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        harness.append(vec![append("a", 0, 0)]).unwrap();
        drop(harness);
        assert_eq!(unknown(&disk), 0);
        let as_disk: &dyn Disk = &disk;
        let path = journal(&disk, 1);
        if is_removed {
            as_disk.remove(&path).unwrap();
        } else {
            let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
            file.truncate(0).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(unknown(&disk), 1, "{is_removed} {with_checkpoint}");
            assert_eq!(check(&disk, dir()).unwrap().problems.len(), 1);
            drop(open(&disk));
        }
        // The same once more, in the file that was begun instead.
        as_disk.remove(&journal(&disk, 2)).unwrap();
        assert_eq!(unknown(&disk), 2);
        assert_eq!(mend(&disk).len(), 1);
        assert_eq!(unknown(&disk), 0);
    }
}

#[test]
fn a_repair_posts_nothing_but_what_was_damaged() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(2)).unwrap();
    for n in 0..5 {
        let both = vec![append("a", 0, 7 * n), append("a", 1, 7 * n + 700)];
        harness.append(both).unwrap();
    }
    // The group passes what it does not post.
    harness
        .write(Write {
            appends: Vec::new(),
            offsets: vec![offset("g", at("a", 0), 5, [])],
        })
        .unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    assert_eq!(unaccounted(&disk), 5);
    let segment = dir().join("topic-a").join("1-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 714 ");
    empty_journal(&disk);
    mend(&disk);
    assert_eq!(unaccounted(&disk), 5, "nobody explains what the group did");
    for audited in recount(&disk, dir()).unwrap() {
        assert_eq!(audited.books.in_place(&Place::Lost(DAMAGED)), 1);
    }
}

/// A group passes five events of one partition without a posting, and a commit of three events of the
/// other one is lost.
fn with_an_unexplained_difference() -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(2)).unwrap();
    harness
        .append((0..5).map(|n| append("a", 0, n)).collect())
        .unwrap();
    harness
        .append((10..20).map(|n| append("a", 1, n)).collect())
        .unwrap();
    let commit = |harness: &mut Harness, partition, next, ids: std::ops::Range<u64>| {
        let offsets = vec![offset("g", at("a", partition), next, ids.map(id))];
        let appends = Vec::new();
        harness.write(Write { appends, offsets }).unwrap();
    };
    commit(&mut harness, 0, 5, 0..0);
    commit(&mut harness, 1, 3, 10..13);
    commit(&mut harness, 1, 6, 13..16);
    commit(&mut harness, 1, 9, 16..19);
    drop(harness);
    disk.end_process();
    assert_eq!(unaccounted(&disk), 5);
    damage(&disk, &journal(&disk, 1), b"up to 6");
    assert_eq!(unaccounted(&disk), 8);
    disk
}

#[test]
fn a_difference_that_no_damage_explains_stays_missing() {
    let disk = with_an_unexplained_difference();
    assert_eq!(plan(&disk), RepairPlan::default());
    mend(&disk);
    assert_eq!(
        unaccounted(&disk),
        8,
        "nothing says which three are explained"
    );
    // A repair that posted all of it would hide five events.
    let disk = with_an_unexplained_difference();
    injected_bugs::inject(Some(InjectedBug::UnboundedRepair));
    mend(&disk);
    injected_bugs::inject(None);
    assert_eq!(
        unaccounted(&disk),
        0,
        "the bound is what keeps them missing"
    );
}

#[test]
fn records_of_a_damaged_segment_are_taken_from_the_journal_where_it_has_them() {
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    for is_missing in [false, true] {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(2)).unwrap();
        for n in 0..12 {
            let other = append("a", 1, 100 + n);
            harness.append(vec![append("a", 0, n), other]).unwrap();
        }
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        disk.end_process();
        match is_missing {
            true => (&disk as &dyn Disk).remove(&segment).unwrap(),
            false => ["value 1 ", "value 2 ", "value 4 "]
                .iter()
                .for_each(|value| damage(&disk, &segment, value.as_bytes())),
        }
        let missing = unaccounted(&disk);
        assert!(missing >= 3);
        let expected = RepairPlan {
            recovered: missing,
            ..RepairPlan::default()
        };
        assert_eq!(plan(&disk), expected);
        let repaired = mend(&disk);
        let is_it = |done: &&Repaired| matches!(done, Repaired::Recovered { .. });
        assert!(repaired.iter().any(|done| is_it(&done)), "{repaired:?}");
        assert_eq!(unaccounted(&disk), 0);
        let mut harness = open(&disk);
        harness.assert_balanced();
        let found = harness.all(&at("a", 0)).unwrap();
        let found: Vec<_> = found.into_iter().map(|stored| stored.record).collect();
        let written = (0..12).map(|n| append("a", 0, n).record);
        assert_eq!(found, written.collect::<Vec<_>>());
        assert_eq!(check(&disk, dir()).unwrap().problems, []);
    }
}

/// The journal has whole groups with the offsets of the damaged record, and other records.
#[test]
fn records_of_a_torn_write_are_not_taken_for_those_that_a_segment_lost() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    let (at_byte, secret) = {
        let state = harness.opened.context.state();
        (state.journal.at, state.secret)
    };
    // Written and never answered: the write behind it is torn, and both are cut at the next start.
    harness.append(vec![append("a", 0, 7)]).unwrap();
    drop(harness);
    disk.end_process();
    let as_disk: &dyn Disk = &disk;
    let path = journal(&disk, 1);
    let mut torn = as_disk
        .read(&path, 1 << 20)
        .unwrap()
        .split_off(at_byte as usize);
    torn.truncate(JournalFrame::read(&torn, secret).unwrap().size());
    let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
    file.write_at(at_byte, &vec![0; torn.len()]).unwrap();
    drop(file);
    let mut harness = open(&disk);
    harness.append(vec![append("a", 0, 1)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    let end = harness.opened.context.state().journal.at;
    drop(harness);
    disk.end_process();
    // All that is left of offset 1 in the journal is the torn write.
    let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
    file.write_at(at_byte, &vec![0; (end - at_byte) as usize])
        .unwrap();
    file.write_at(end + 64, &torn).unwrap();
    drop(file);
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 1 ");
    let expected = RepairPlan {
        damaged: 1,
        ..RepairPlan::default()
    };
    assert_eq!(plan(&disk), expected);
    mend(&disk);
    let mut harness = open(&disk);
    assert!(matches!(
        harness.read(&at("a", 0), 1),
        Err(LogError::Damaged { .. })
    ));
}

#[test]
fn events_passed_by_a_commit_that_was_lost_can_be_repaired() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness
        .append((0..20).map(|n| append("a", 0, n)).collect())
        .unwrap();
    for next in [5, 10, 15] {
        let ids = (next - 5..next).map(|n| id(n as u64));
        harness
            .write(Write {
                appends: Vec::new(),
                offsets: vec![offset("g", at("a", 0), next, ids)],
            })
            .unwrap();
    }
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"up to 10");
    for _ in 0..2 {
        assert_eq!(unaccounted(&disk), 5);
        open(&disk).opened.maintenance.checkpoint().unwrap();
    }
    let done = Repaired::Commits {
        group: GroupName::new("g").unwrap(),
        topic: at("a", 0).topic,
        events: 5,
    };
    let repaired = mend(&disk);
    assert!(
        matches!(&repaired[..], [Repaired::UnknownLoss(_), last] if *last == done),
        "{repaired:?}"
    );
    assert_eq!(unaccounted(&disk), 0);
    let books = &recount(&disk, dir()).unwrap()[1].books;
    let account = books.account();
    assert!(account.is_balanced());
    assert_eq!((account.queued, account.delivered), (5, 10));
    assert_eq!(books.in_place(&Place::Lost(COMMIT_DAMAGED)), 5);
}

/// Nobody commits there again, and all records are there.
#[test]
fn a_lost_commit_or_registration_is_an_unknown_loss_until_a_repair() {
    for lost in [&b"up to 5"[..], b"second"] {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(2)).unwrap();
        harness.register("g", vec![0]).unwrap();
        harness
            .append((0..5).map(|n| append("a", 0, n)).collect())
            .unwrap();
        harness
            .write(Write {
                appends: Vec::new(),
                offsets: vec![offset("g", at("a", 0), 5, (0..5).map(id))],
            })
            .unwrap();
        harness.register("second", vec![0]).unwrap();
        harness.append(vec![append("a", 1, 5)]).unwrap();
        drop(harness);
        damage(&disk, &journal(&disk, 1), lost);
        for _ in 0..3 {
            assert_eq!((unaccounted(&disk), unknown(&disk)), (0, 1));
            let problems = check(&disk, dir()).unwrap().problems;
            assert!(problems.iter().any(LogProblem::is_loss), "{problems:?}");
            let mut harness = open(&disk);
            harness.append(vec![append("a", 1, 6)]).unwrap();
            harness.opened.maintenance.checkpoint().unwrap();
        }
        let repaired = mend(&disk);
        assert!(
            matches!(repaired[..], [Repaired::UnknownLoss(_)]),
            "{repaired:?}"
        );
        assert_eq!((unaccounted(&disk), unknown(&disk)), (0, 0));
    }
}

#[test]
fn an_event_that_a_group_put_elsewhere_is_found_only_there() {
    let settled = |n: u64, place: Place| postings([id(n)], Some(Place::Queued), Some(place));
    for (is_kept, is_configured) in [(true, true), (false, true), (true, false)] {
        let disk = SimDisk::new(1);
        let topic = |name: &str| Topic::new(name).unwrap();
        let letters = (topic("a"), BTreeSet::from([topic("given-up")]));
        let config = EmbeddedConfig {
            dead_letters: is_configured.then_some(letters).into_iter().collect(),
            ..config()
        };
        let mut harness = Harness::open(&disk, config).unwrap();
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.create("given-up", TopicConfig::new(1)).unwrap();
        harness
            .append((0..4).map(|n| append("a", 0, n)).collect())
            .unwrap();
        let mut commit = offset("g", at("a", 0), 3, [id(0)]);
        commit.postings.extend(settled(1, Place::DeadLettered));
        commit.postings.extend(settled(2, Place::Parked));
        let dead = is_kept.then(|| append("given-up", 0, 1));
        harness
            .write(Write {
                appends: dead.into_iter().collect(),
                offsets: vec![commit],
            })
            .unwrap();
        harness.assert_balanced();
        let group = harness
            .audit()
            .into_iter()
            .find(|audited| audited.group.is_some());
        let group = group.unwrap();
        let (books, found) = (group.books.account(), group.recount.account());
        assert_eq!(
            (books.dead_lettered, books.parked, books.delivered),
            (1, 1, 1)
        );
        let is_found = is_kept && is_configured;
        assert_eq!(found.dead_lettered, i64::from(is_found));
        assert_eq!((found.parked, found.delivered, found.queued), (0, 0, 1));
        assert_eq!(group.unverifiable, if is_found { 1 } else { 2 });
    }
}

#[test]
fn a_record_that_can_never_fit_is_not_told_to_wait_for_room() {
    let disk = SimDisk::new(1);
    let config = EmbeddedConfig {
        max_size: 1_000,
        ..config()
    };
    let mut harness = Harness::open(&disk, config).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    let mut large = append("a", 0, 0);
    large.record.value = Some(vec![7; 2_000].into());
    let refused = harness.append(vec![large]).unwrap_err();
    assert!(
        matches!(refused, LogError::RecordTooLarge { limit: 1_000, .. }),
        "{refused}"
    );
}

#[test]
fn a_damaged_partition_does_not_keep_others_from_being_compacted() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    let compact = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    for name in ["first", "second"] {
        harness.create(name, compact.clone()).unwrap();
        for n in 0..40 {
            let mut append = append(name, 0, n);
            append.record.key = Some("key".into());
            harness.append(vec![append]).unwrap();
        }
    }
    harness.opened.maintenance.checkpoint().unwrap();
    let segment = dir()
        .join("topic-first")
        .join("0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 3 ");
    let switch = harness.opened.maintenance.compaction().unwrap();
    assert!(
        matches!(switch, Some(LogChange::Switch { at: (1, _), .. })),
        "{switch:?}"
    );
    assert!(harness.opened.writer.remove(switch.unwrap()).unwrap());
    let before = disk.operations();
    assert_eq!(harness.opened.maintenance.compaction().unwrap(), None);
    assert_eq!(
        disk.operations(),
        before,
        "what is damaged is not read again and again"
    );
}

#[test]
fn each_partition_keeps_what_the_topic_says() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    let kept = 8_000;
    let config = TopicConfig {
        retention_bytes: Some(kept),
        ..TopicConfig::new(4)
    };
    harness.create("a", config).unwrap();
    for n in 0..1_200 {
        let partition = i32::try_from(n % 4).unwrap();
        harness.append(vec![append("a", partition, n)]).unwrap();
        if n % 20 == 0 {
            harness.keep().unwrap();
        }
    }
    harness.opened.maintenance.checkpoint().unwrap();
    harness.keep().unwrap();
    let state = harness.opened.context.state();
    for ((_, number), partition) in state.all() {
        let bytes: u64 = partition.segments.iter().map(|segment| segment.len).sum();
        assert!(partition.start > 0);
        // One segment more, which is not over yet, and one that is just begun.
        assert!((kept..kept + 3_000).contains(&bytes), "{number}: {bytes}");
    }
}
