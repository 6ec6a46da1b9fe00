//! What a damaged journal took with it is known, whoever looks, until a repair takes note of it; and a
//! repair explains nothing but damage.

use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_core::{GroupName, Offset};
use tidegate_sim::SimDisk;

use super::desk::{Desk, append, at, dir, id, journal, offset, small};
use crate::EmbeddedConfig;
use crate::embedded::change::Change;
use crate::embedded::{
    Audited, COMMIT_DAMAGED, DAMAGED, Problem, Repaired, check, doubts, recount, repair,
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

fn open(disk: &SimDisk) -> Desk {
    Desk::open(disk, config()).unwrap()
}

/// Flips a bit of the first place where a file holds these bytes.
fn damage(disk: &SimDisk, file: &Path, bytes: &[u8]) {
    let as_disk: &dyn Disk = disk;
    let content = as_disk.read(file, 1 << 20).unwrap();
    let place = content.windows(bytes.len()).position(|w| w == bytes);
    disk.flip_bit(file, place.unwrap() as u64, 1);
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(Audited::unaccounted).sum()
}

fn doubtful(disk: &SimDisk) -> Vec<u64> {
    let found = doubts(disk, dir()).unwrap();
    found.into_iter().map(|doubt| doubt.events).collect()
}

fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = open(disk).clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    repaired
}

#[test]
fn records_of_a_partition_that_no_later_group_writes_to_are_missed() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(2)).unwrap();
    for (partition, n) in [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 5)] {
        desk.append(vec![append("a", partition, n)]).unwrap();
    }
    drop(desk);
    assert_eq!(unaccounted(&disk), 0);
    for n in 1..5 {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    for _ in 0..2 {
        assert_eq!(unaccounted(&disk), 4);
        let mut desk = open(&disk);
        assert_eq!(desk.end(&at("a", 1)), 4, "offsets are not given twice");
        assert!(matches!(
            desk.read(&at("a", 1), 0),
            Err(LogError::Damaged { to: Offset(4), .. })
        ));
        desk.opened.keeper.checkpoint().unwrap();
    }
    let repaired = mend(&disk);
    assert!(
        matches!(repaired[..], [Repaired::Doubt(_), Repaired::Records { .. }]),
        "{repaired:?}"
    );
    assert_eq!((unaccounted(&disk), doubtful(&disk)), (0, vec![]));
    let lost = &recount(&disk, dir()).unwrap()[0].books;
    assert_eq!(lost.in_place(&Place::Lost(DAMAGED)), 4);
}

#[test]
fn records_that_no_group_tells_the_partition_of_are_counted_and_their_offsets_left_out() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    // More partitions than a group tells the ends of.
    desk.create("a", TopicConfig::new(80)).unwrap();
    for n in 0..70 {
        let partition = i32::try_from(n).unwrap();
        desk.append(vec![append("a", partition, n)]).unwrap();
    }
    drop(desk);
    for n in 1..69 {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    let (missing, doubted) = (unaccounted(&disk), doubtful(&disk));
    assert_eq!(doubted.len(), 1, "{doubted:?}");
    assert_eq!(missing + doubted[0], 68);
    assert!(missing >= 30, "{missing}");
    for _ in 0..2 {
        let mut desk = open(&disk);
        let first = desk.append(vec![append("a", 1, 100)]).unwrap()[0].offset.0;
        assert!(
            first > 0,
            "its first offset was given to a record that is lost"
        );
        drop(desk);
        assert_eq!(
            (unaccounted(&disk), doubtful(&disk)),
            (missing, doubted.clone())
        );
        let problems = check(&disk, dir()).unwrap().problems;
        assert!(problems.iter().any(|p| matches!(p, Problem::Doubt(_))));
    }
    let repaired = mend(&disk);
    assert!(
        repaired
            .iter()
            .any(|done| matches!(done, Repaired::Doubt(_)))
    );
    assert_eq!((unaccounted(&disk), doubtful(&disk)), (0, vec![]));
}

/// Records that only a segment has may have come later than the last group. They are none of those that it
/// says were given.
#[test]
fn records_that_are_found_in_segments_do_not_stand_for_others_that_are_lost() {
    // In one chunk, and in fewer than are lost elsewhere.
    for (writes, of) in [(0, 0), (1, 50), (5, 1)] {
        let disk = SimDisk::new(1);
        let mut desk = open(&disk);
        desk.create("a", TopicConfig::new(80)).unwrap();
        desk.create("b", TopicConfig::new(1)).unwrap();
        for n in 0..70 {
            let partition = i32::try_from(n).unwrap();
            desk.append(vec![append("a", partition, n)]).unwrap();
        }
        let from = desk.opened.hub.state().journal.at;
        for write in 0..writes {
            let numbers = (0..of).map(|n| append("b", 0, 1_000 + write * of + n));
            desk.append(numbers.collect()).unwrap();
        }
        let to = desk.opened.hub.state().journal.at;
        desk.opened.keeper.fill(true).unwrap();
        drop(desk);
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
        let (missing, doubted) = (unaccounted(&disk), doubtful(&disk));
        assert_eq!(missing + doubted.iter().max().unwrap(), 68, "{doubted:?}");
        let mut desk = open(&disk);
        let first = desk.append(vec![append("a", 1, 2_000)]).unwrap()[0]
            .offset
            .0;
        assert!(
            first > 0,
            "its first offset was given to a record that is lost"
        );
        if writes > 0 {
            let found = desk
                .all(&at("b", 0))
                .unwrap_or_else(|_| desk.read(&at("b", 0), 0).unwrap().records);
            assert!(!found.is_empty());
        }
    }
}

#[test]
fn a_journal_that_is_gone_is_doubted_from_the_first_acknowledged_write_on() {
    for (is_removed, with_checkpoint) in
        [(true, false), (false, false), (true, true), (false, true)]
    {
        let disk = SimDisk::new(1);
        let mut desk = open(&disk);
        desk.create("a", TopicConfig::new(1)).unwrap();
        if with_checkpoint {
            desk.opened.keeper.checkpoint().unwrap();
        }
        desk.append(vec![append("a", 0, 0)]).unwrap();
        drop(desk);
        assert_eq!(doubtful(&disk), [0; 0]);
        let as_disk: &dyn Disk = &disk;
        let path = journal(&disk, 1);
        if is_removed {
            as_disk.remove(&path).unwrap();
        } else {
            let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
            file.truncate(0).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(doubtful(&disk), [1], "{is_removed} {with_checkpoint}");
            assert_eq!(check(&disk, dir()).unwrap().problems.len(), 1);
            drop(open(&disk));
        }
        // The same once more, in the file that was begun instead.
        as_disk.remove(&journal(&disk, 2)).unwrap();
        assert_eq!(doubtful(&disk), [1, 1]);
        assert_eq!(mend(&disk).len(), 2);
        assert_eq!(doubtful(&disk), [0; 0]);
    }
}

#[test]
fn a_repair_posts_nothing_but_what_was_damaged() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(2)).unwrap();
    for n in 0..5 {
        desk.append(vec![append("a", 0, 7 * n), append("a", 1, 7 * n + 700)])
            .unwrap();
    }
    // The group passes what it does not post.
    desk.write(Write {
        appends: Vec::new(),
        offsets: vec![offset("g", at("a", 0), 5, [])],
    })
    .unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    drop(desk);
    assert_eq!(unaccounted(&disk), 5);
    let segment = dir().join("topic-a").join("1-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 714 ");
    mend(&disk);
    assert_eq!(unaccounted(&disk), 5, "nobody explains what the group did");
    for audited in recount(&disk, dir()).unwrap() {
        assert_eq!(audited.books.in_place(&Place::Lost(DAMAGED)), 1);
    }
}

#[test]
fn what_a_group_passed_with_a_commit_that_was_lost_can_be_repaired() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(1)).unwrap();
    desk.append((0..20).map(|n| append("a", 0, n)).collect())
        .unwrap();
    for next in [5, 10, 15] {
        let ids = (next - 5..next).map(|n| id(n as u64));
        desk.write(Write {
            appends: Vec::new(),
            offsets: vec![offset("g", at("a", 0), next, ids)],
        })
        .unwrap();
    }
    drop(desk);
    damage(&disk, &journal(&disk, 1), b"up to 10");
    for _ in 0..2 {
        assert_eq!(unaccounted(&disk), 5);
        open(&disk).opened.keeper.checkpoint().unwrap();
    }
    let done = Repaired::Commits {
        group: GroupName::new("g").unwrap(),
        topic: at("a", 0).topic,
        events: 5,
    };
    let repaired = mend(&disk);
    assert!(
        matches!(&repaired[..], [Repaired::Doubt(_), last] if *last == done),
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
fn a_commit_or_a_registration_that_was_lost_is_doubted_until_a_repair_takes_note_of_it() {
    for lost in [&b"up to 5"[..], b"second"] {
        let disk = SimDisk::new(1);
        let mut desk = open(&disk);
        desk.create("a", TopicConfig::new(2)).unwrap();
        desk.register("g", vec![0]).unwrap();
        desk.append((0..5).map(|n| append("a", 0, n)).collect())
            .unwrap();
        desk.write(Write {
            appends: Vec::new(),
            offsets: vec![offset("g", at("a", 0), 5, (0..5).map(id))],
        })
        .unwrap();
        desk.register("second", vec![0]).unwrap();
        desk.append(vec![append("a", 1, 5)]).unwrap();
        drop(desk);
        damage(&disk, &journal(&disk, 1), lost);
        for _ in 0..3 {
            assert_eq!((unaccounted(&disk), doubtful(&disk)), (0, vec![1]));
            let problems = check(&disk, dir()).unwrap().problems;
            assert!(problems.iter().any(Problem::is_loss), "{problems:?}");
            let mut desk = open(&disk);
            desk.append(vec![append("a", 1, 6)]).unwrap();
            desk.opened.keeper.checkpoint().unwrap();
        }
        let repaired = mend(&disk);
        assert!(matches!(repaired[..], [Repaired::Doubt(_)]), "{repaired:?}");
        assert_eq!((unaccounted(&disk), doubtful(&disk)), (0, vec![]));
    }
}

#[test]
fn what_a_group_put_elsewhere_is_found_only_where_it_is() {
    let settled = |n: u64, place: Place| postings([id(n)], Some(Place::Queued), Some(place));
    for is_kept in [true, false] {
        let disk = SimDisk::new(1);
        let mut desk = open(&disk);
        desk.create("a", TopicConfig::new(1)).unwrap();
        desk.create("a.DLT", TopicConfig::new(1)).unwrap();
        desk.append((0..4).map(|n| append("a", 0, n)).collect())
            .unwrap();
        let mut commit = offset("g", at("a", 0), 3, [id(0)]);
        commit.postings.extend(settled(1, Place::DeadLettered));
        commit.postings.extend(settled(2, Place::Parked));
        let dead = is_kept.then(|| append("a.DLT", 0, 1));
        desk.write(Write {
            appends: dead.into_iter().collect(),
            offsets: vec![commit],
        })
        .unwrap();
        desk.assert_balanced();
        let group = desk
            .audit()
            .into_iter()
            .find(|audited| audited.group.is_some());
        let group = group.unwrap();
        let (books, found) = (group.books.account(), group.recount.account());
        assert_eq!(
            (books.dead_lettered, books.parked, books.delivered),
            (1, 1, 1)
        );
        assert_eq!(found.dead_lettered, i64::from(is_kept));
        assert_eq!((found.parked, found.delivered, found.queued), (0, 0, 1));
        assert_eq!(group.unverifiable, if is_kept { 1 } else { 2 });
    }
}

#[test]
fn a_topic_that_lost_its_name_is_a_problem_until_a_repair_takes_note_of_it() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(1)).unwrap();
    desk.create("bills", TopicConfig::new(1)).unwrap();
    desk.append(vec![append("bills", 0, 0)]).unwrap();
    desk.append(vec![append("a", 0, 1)]).unwrap();
    drop(desk);
    damage(&disk, &journal(&disk, 1), b"bills");
    let made_up = |disk: &SimDisk| {
        let problems = check(disk, dir()).unwrap().problems;
        let is_it = |problem: &&Problem| matches!(problem, Problem::MadeUp { .. });
        problems.iter().filter(is_it).count()
    };
    for _ in 0..2 {
        assert_eq!(made_up(&disk), 1);
        let mut desk = open(&disk);
        assert_eq!(desk.all(&at("lost-topic-1", 0)).unwrap().len(), 1);
        desk.opened.keeper.checkpoint().unwrap();
    }
    let repaired = mend(&disk);
    assert!(
        matches!(repaired[..], [Repaired::Doubt(_), Repaired::MadeUp { .. }]),
        "{repaired:?}"
    );
    assert_eq!((made_up(&disk), unaccounted(&disk)), (0, 0));
    let mut desk = open(&disk);
    assert_eq!(desk.all(&at("lost-topic-1", 0)).unwrap().len(), 1);
}

#[test]
fn a_record_that_can_never_fit_is_not_told_to_wait_for_room() {
    let disk = SimDisk::new(1);
    let config = EmbeddedConfig {
        max_size: 1_000,
        ..config()
    };
    let mut desk = Desk::open(&disk, config).unwrap();
    desk.create("a", TopicConfig::new(1)).unwrap();
    let mut large = append("a", 0, 0);
    large.record.value = Some(vec![7; 2_000].into());
    let refused = desk.append(vec![large]).unwrap_err();
    assert!(
        matches!(refused, LogError::RecordTooLarge { limit: 1_000, .. }),
        "{refused}"
    );
}

#[test]
fn a_damaged_partition_does_not_keep_others_from_being_compacted() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    let compact = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    for name in ["first", "second"] {
        desk.create(name, compact.clone()).unwrap();
        for n in 0..40 {
            let mut append = append(name, 0, n);
            append.record.key = Some("key".into());
            desk.append(vec![append]).unwrap();
        }
    }
    desk.opened.keeper.checkpoint().unwrap();
    let segment = dir()
        .join("topic-first")
        .join("0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 3 ");
    let switch = desk.opened.keeper.compaction().unwrap();
    assert!(
        matches!(switch, Some(Change::Switch { topic: 1, .. })),
        "{switch:?}"
    );
    assert!(desk.opened.writer.remove(switch.unwrap()).unwrap());
    let before = disk.operations();
    assert_eq!(desk.opened.keeper.compaction().unwrap(), None);
    assert_eq!(
        disk.operations(),
        before,
        "what is damaged is not read again and again"
    );
}

#[test]
fn each_partition_keeps_what_the_topic_says() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    let kept = 8_000;
    let config = TopicConfig {
        retention_bytes: Some(kept),
        ..TopicConfig::new(4)
    };
    desk.create("a", config).unwrap();
    for n in 0..1_200 {
        let partition = i32::try_from(n % 4).unwrap();
        desk.append(vec![append("a", partition, n)]).unwrap();
        if n % 20 == 0 {
            desk.keep().unwrap();
        }
    }
    desk.opened.keeper.checkpoint().unwrap();
    desk.keep().unwrap();
    let state = desk.opened.hub.state();
    for (_, number, partition) in state.all() {
        let bytes: u64 = partition.segments.iter().map(|segment| segment.len).sum();
        assert!(partition.start > 0);
        // One segment more, which is not over yet, and one that is just begun.
        assert!((kept..kept + 3_000).contains(&bytes), "{number}: {bytes}");
    }
}
