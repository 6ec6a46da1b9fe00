//! What is lost to damage is known, and what is not lost is used.

use std::sync::Arc;

use tidegate_core::books::Place;
use tidegate_core::env::{Clock, Disk, DiskFile, OpenMode};
use tidegate_core::{GroupName, Offset};
use tidegate_sim::SimDisk;

use super::desk::{Desk, append, at, damage, dir, empty_journal, id, journal, offset, small};
use crate::embedded::audit::Audited;
use crate::embedded::group;
use crate::embedded::{Problem, Repaired, check, ls, recount, repair, unknown_loss};
use crate::error::LogError;
use crate::local::Write;
use crate::topic::TopicConfig;

fn opened() -> (SimDisk, Desk) {
    let disk = SimDisk::new(1);
    // One journal file, so that a later group is never far.
    let config = crate::EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    };
    let mut desk = Desk::open(&disk, config).unwrap();
    desk.create("a", TopicConfig::new(1)).unwrap();
    (disk, desk)
}

fn written(count: u64) -> (SimDisk, Desk) {
    let (disk, mut desk) = opened();
    for n in 0..count {
        desk.append(vec![append("a", 0, n)]).unwrap();
    }
    (disk, desk)
}

/// Repairs the log, and says what was done about records.
fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = Desk::open(disk, small()).unwrap().clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    let is_records = |done: &Repaired| matches!(done, Repaired::Records { .. });
    repaired.into_iter().filter(is_records).collect()
}

fn counted(disk: &SimDisk) -> Vec<Audited> {
    let counted = recount(disk, dir()).unwrap();
    for audited in &counted {
        assert!(audited.books.account().is_balanced(), "{audited:?}");
    }
    counted
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(Audited::unaccounted).sum()
}

/// What is queued, delivered and lost, of the topic and then of its groups by name.
fn places(disk: &SimDisk) -> Vec<(i64, i64, i64)> {
    assert_eq!(unaccounted(disk), 0);
    let accounts = counted(disk).into_iter();
    accounts
        .map(|audited| audited.books.account())
        .map(|account| (account.queued, account.delivered, account.lost.total()))
        .collect()
}

#[test]
fn records_lost_with_the_journal_are_missing_until_a_repair_posts_them() {
    let (disk, mut desk) = opened();
    desk.register("g", vec![0]).unwrap();
    for n in 0..8 {
        desk.append(vec![append("a", 0, n)]).unwrap();
    }
    drop(desk);
    assert_eq!(unaccounted(&disk), 0);
    damage(&disk, &journal(&disk, 1), b"value 3 ");
    // The topic and its group each miss one.
    assert_eq!(unaccounted(&disk), 2);
    for _ in 0..2 {
        let mut desk = Desk::open(&disk, small()).unwrap();
        desk.opened.keeper.checkpoint().unwrap();
        drop(desk);
        assert_eq!(unaccounted(&disk), 2, "a start does not hide it");
    }
    let expected = Repaired::Records {
        at: at("a", 0),
        offsets: (3, 4),
        aside: None,
    };
    assert_eq!(mend(&disk), [expected]);
    assert_eq!(places(&disk), [(7, 0, 1), (7, 0, 1)]);
    let mut desk = Desk::open(&disk, small()).unwrap();
    assert!(matches!(
        desk.read(&at("a", 0), 3),
        Err(LogError::Damaged { .. })
    ));
    // A group that comes later never had it.
    desk.register("later", vec![0]).unwrap();
    drop(desk);
    assert_eq!(places(&disk), [(7, 0, 1), (7, 0, 1), (7, 0, 0)]);
}

#[test]
fn an_offset_that_was_committed_is_not_given_to_another_record() {
    let (disk, mut desk) = written(5);
    let ids = (0..5).map(id);
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("g", at("a", 0), 5, ids)],
    };
    desk.write(write).unwrap();
    drop(desk);
    damage(&disk, &journal(&disk, 1), b"value 4 ");
    let mut desk = Desk::open(&disk, small()).unwrap();
    let written = desk.append(vec![append("a", 0, 9)]).unwrap();
    assert_eq!(written[0].offset, Offset(5), "the group would skip it");
    drop(desk);
    assert!(unaccounted(&disk) > 0);
    assert_eq!(mend(&disk).len(), 1);
    // The group had settled what the topic lost.
    assert_eq!(places(&disk), [(5, 0, 1), (1, 5, 0)]);
}

#[test]
fn a_repair_posts_for_a_group_what_it_had_still_to_read() {
    let (disk, mut desk) = opened();
    desk.register("unread", vec![0]).unwrap();
    for n in 0..20 {
        desk.append(vec![append("a", 0, n)]).unwrap();
    }
    let ids = (0..10).map(id);
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("read", at("a", 0), 10, ids)],
    };
    desk.write(write).unwrap();
    desk.skip("began", &[(0, 0)]).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    drop(desk);
    // By name: `began` behind everything, `read` half of it, `unread` nothing.
    assert_eq!(
        places(&disk),
        [(20, 0, 0), (0, 0, 0), (10, 10, 0), (20, 0, 0)]
    );
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 3 ");
    empty_journal(&disk);
    assert!(unaccounted(&disk) > 0);
    assert_eq!(mend(&disk).len(), 1);
    assert_eq!(
        places(&disk),
        [(19, 0, 1), (0, 0, 0), (10, 10, 0), (19, 0, 1)]
    );
}

#[test]
fn a_repair_posts_the_damage_of_a_segment_that_was_removed_in_part() {
    let (disk, mut desk) = written(12);
    desk.opened.keeper.checkpoint().unwrap();
    desk.delete_before(&at("a", 0), 2).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    drop(desk);
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 3 ");
    empty_journal(&disk);
    assert_eq!(unaccounted(&disk), 1);
    assert_eq!(mend(&disk).len(), 1);
    assert_eq!(places(&disk), [(11, 0, 1)]);
}

#[test]
fn damage_over_several_chunks_is_named_whole() {
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    let lost = |harm: &dyn Fn(&mut dyn DiskFile, &[u8])| {
        let (disk, mut desk) = written(40);
        desk.opened.keeper.checkpoint().unwrap();
        drop(desk);
        let as_disk: &dyn Disk = &disk;
        let content = as_disk.read(&segment, 1 << 20).unwrap();
        let mut file = as_disk.open(&segment, OpenMode::Write).unwrap();
        harm(&mut *file, &content);
        file.sync().unwrap();
        drop(file);
        empty_journal(&disk);
        let mut desk = Desk::open(&disk, small()).unwrap();
        let (mut from, mut read, mut lost) = (0, 0, 0);
        while from < 40 {
            match desk.read(&at("a", 0), from) {
                Ok(batch) => {
                    assert_eq!(batch.records[0].offset.0, from, "nothing is jumped over");
                    read += batch.records.len() as i64;
                    from = batch.next.0;
                }
                Err(LogError::Damaged {
                    from: first, to, ..
                }) => {
                    assert_eq!(first.0, from);
                    lost += to.0 - from;
                    from = to.0;
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(desk);
        assert_eq!(read + lost, 40);
        assert_eq!(unaccounted(&disk), lost as u64);
        mend(&disk);
        assert_eq!(places(&disk), [(read, 0, lost)]);
        lost
    };
    let of = |content: &[u8], text: &[u8]| {
        let place = content.windows(text.len()).position(|w| w == text);
        place.unwrap() as u64
    };
    let zeros = lost(&|file, content| {
        let (from, to) = (of(content, b"value 3 "), of(content, b"value 5 "));
        file.write_at(from, &vec![0; (to - from) as usize]).unwrap();
    });
    assert_eq!(zeros, 3);
    let cut = lost(&|file, content| file.truncate(of(content, b"value 2 ")).unwrap());
    assert!(cut > 3, "{cut}");
}

#[test]
fn a_segment_that_is_missing_is_counted_and_the_rest_is_read() {
    let (disk, mut desk) = written(40);
    desk.opened.keeper.checkpoint().unwrap();
    drop(desk);
    let as_disk: &dyn Disk = &disk;
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    as_disk.remove(&segment).unwrap();
    empty_journal(&disk);
    let missing = unaccounted(&disk);
    assert!((1..40).contains(&missing), "{missing}");
    let mut desk = Desk::open(&disk, small()).unwrap();
    assert_eq!(desk.audit()[0].unaccounted(), missing);
    let damaged = desk.read(&at("a", 0), 0).unwrap_err();
    let LogError::Damaged { from, to, .. } = damaged else {
        panic!("{damaged}");
    };
    assert_eq!((from.0, to.0), (0, missing as i64));
    assert_eq!(desk.read(&at("a", 0), to.0).unwrap().records[0].offset, to);
    drop(desk);
    mend(&disk);
    assert_eq!(places(&disk), [(40 - missing as i64, 0, missing as i64)]);
}

#[test]
fn a_segment_that_is_missing_does_not_stop_the_keeper() {
    let disk = SimDisk::new(1);
    let mut desk = Desk::open(&disk, small()).unwrap();
    let compact = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    desk.create("keyed", compact).unwrap();
    for n in 0..40 {
        let mut append = append("keyed", 0, n);
        append.record.key = Some("key".into());
        desk.append(vec![append]).unwrap();
    }
    desk.opened.keeper.checkpoint().unwrap();
    let as_disk: &dyn Disk = &disk;
    let name = "0-00000000000000000000-0.seg";
    as_disk
        .remove(&dir().join("topic-keyed").join(name))
        .unwrap();
    assert_eq!(desk.opened.keeper.compaction().unwrap(), None);
    desk.delete_before(&at("keyed", 0), 3).unwrap();
    assert_eq!(desk.start(&at("keyed", 0)), 3);
    desk.append(vec![append("keyed", 0, 41)]).unwrap();
}

/// An earlier version made the topics, in the journal alone.
#[test]
fn a_group_that_names_a_topic_whose_creation_is_lost_is_counted_and_kept_aside() {
    let (disk, mut desk) = written(1);
    desk.create_in_journal("dead", TopicConfig::new(2)).unwrap();
    // One commit: the record is settled because it lies elsewhere now.
    desk.write(Write {
        appends: vec![append("dead", 1, 0)],
        offsets: vec![offset("g", at("a", 0), 1, [id(0)])],
    })
    .unwrap();
    desk.append(vec![append("a", 0, 7)]).unwrap();
    drop(desk);
    damage(&disk, &journal(&disk, 1), b"dead");
    for _ in 0..2 {
        let loss = unknown_loss(&disk, dir()).unwrap().unwrap();
        assert_eq!(loss.groups, 2, "its creation, and the commit: {loss}");
        let mut desk = Desk::open(&disk, small()).unwrap();
        assert_eq!(desk.all(&at("a", 0)).unwrap().len(), 2);
        // Not by half: the group would have passed a record that is nowhere.
        assert!(desk.opened.hub.state().groups.is_empty());
        desk.assert_balanced();
    }
    let as_disk: &dyn Disk = &disk;
    let aside = ls(as_disk, dir()).unwrap().unwrap().aside;
    let kept = as_disk.read(aside[0].as_ref(), 1 << 20).unwrap();
    assert!(kept.windows(8).any(|w| w == b"value 0 "), "{aside:?}");
    mend(&disk);
    assert_eq!(unknown_loss(&disk, dir()).unwrap(), None);
    let mut desk = Desk::open(&disk, small()).unwrap();
    desk.create("dead", TopicConfig::new(2)).unwrap();
    desk.append(vec![append("dead", 0, 1)]).unwrap();
    assert_eq!(desk.all(&at("dead", 0)).unwrap().len(), 1);
}

#[test]
fn damage_of_the_journal_does_not_take_the_creation_of_a_topic() {
    let (disk, mut desk) = written(1);
    desk.create("b", TopicConfig::new(2)).unwrap();
    drop(desk);
    let as_disk: &dyn Disk = &disk;
    as_disk.remove(&journal(&disk, 1)).unwrap();
    for file in ["manifest", "manifest.copy"] {
        let path = dir().join(file);
        let bytes = as_disk.read(&path, 1 << 20).unwrap();
        assert!(ls(as_disk, dir()).unwrap().unwrap().partitions.len() == 3);
        as_disk.remove(&path).unwrap();
        assert!(ls(as_disk, dir()).unwrap().unwrap().partitions.len() == 3);
        let mut put_back = as_disk.open(&path, OpenMode::CreateNew).unwrap();
        put_back.append(&bytes).unwrap();
    }
}

#[test]
fn a_group_that_does_not_fit_is_not_applied_in_part() {
    use crate::embedded::change::Change;
    let (_disk, mut desk) = written(2);
    let mut state = desk.opened.hub.state().clone();
    let fresh = state.partition(0, 0).unwrap().fresh[0].clone();
    let group = GroupName::new("g").unwrap();
    let changes = vec![
        Change::Register {
            group: group.clone(),
            topics: vec![0],
        },
        Change::Chunk {
            topic: 0,
            partition: 0,
            head: fresh.head,
            bytes: fresh.bytes,
        },
    ];
    let refused = state.apply(9, changes).unwrap_err();
    assert_eq!(refused.0, "records for offsets that are taken");
    assert!(!state.groups.contains_key(&group));
    desk.register("g", vec![0]).unwrap();
}

/// All files of the directory but the lock, with their bytes.
fn files(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let as_disk: &dyn Disk = disk;
    let entries = as_disk.list(dir()).unwrap().into_iter();
    let files = entries.filter(|entry| entry.name != "lock" && !entry.name.starts_with("topic-"));
    files
        .map(|entry| {
            let bytes = as_disk.read(&dir().join(&entry.name), 1 << 20);
            (entry.name, bytes.unwrap())
        })
        .collect()
}

#[test]
fn a_change_of_a_later_version_is_refused_by_name_and_nothing_is_touched() {
    let (disk, desk) = written(3);
    let (place, sequence, crc, seal) = {
        let state = desk.opened.hub.state();
        (state.journal, state.sequence, state.crc, state.seal)
    };
    drop(desk);
    let mut bytes = vec![0; group::HEADER];
    bytes.extend_from_slice(&[10, 2, 0, 0, 0, 1, 2]);
    group::frame(&mut bytes, seal, sequence + 1, crc, 1_234, sequence);
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
    file.write_at(place.at, &bytes).unwrap();
    file.sync().unwrap();
    drop(file);
    let before = files(&disk);
    for refused in [
        Desk::open(&disk, small()).map(|_| ()).unwrap_err(),
        check(&disk, dir()).unwrap_err(),
        ls(&disk, dir()).unwrap_err(),
    ] {
        let text = refused.to_string();
        assert!(matches!(refused, LogError::Format { .. }), "{text}");
        assert!(text.contains("a change of kind 10"), "{text}");
    }
    assert_eq!(files(&disk), before);
}

#[test]
fn a_journal_file_that_was_cut_off_is_damage() {
    let (disk, mut desk) = written(3);
    desk.opened.keeper.checkpoint().unwrap();
    desk.append(vec![append("a", 0, 3)]).unwrap();
    drop(desk);
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
    file.truncate(0).unwrap();
    file.sync().unwrap();
    drop(file);
    let checked = check(&disk, dir()).unwrap();
    let [Problem::UnknownLoss(loss)] = &checked.problems[..] else {
        panic!("{checked:?}");
    };
    let found = &loss.damage[0];
    assert!(found.why.contains("shorter than it was"), "{}", found.why);
    for next in 3..6 {
        let mut desk = Desk::open(&disk, small()).unwrap();
        desk.append(vec![append("a", 0, next)]).unwrap();
        assert_eq!(desk.all(&at("a", 0)).unwrap().len() as u64, next + 1);
        desk.assert_balanced();
    }
}

#[test]
fn a_group_begins_behind_each_partition_by_itself() {
    let disk = SimDisk::new(1);
    let mut desk = Desk::open(&disk, small()).unwrap();
    desk.create("a", TopicConfig::new(2)).unwrap();
    for n in 0..30 {
        let partition = i32::try_from(n % 2).unwrap();
        desk.append(vec![append("a", partition, n)]).unwrap();
        desk.keep().unwrap();
    }
    // Partition 1 begins within a segment.
    desk.delete_before(&at("a", 1), 3).unwrap();
    desk.append(vec![append("a", 1, 31)]).unwrap();
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("g", at("a", 0), 1, [id(0)])],
    };
    desk.write(write).unwrap();
    for _ in 0..2 {
        desk.skip("g", &[(0, 0), (0, 1)]).unwrap();
        desk.assert_balanced();
        let audited = desk.audit();
        let books = &audited[1].books;
        // Of partition 0 it has 14 to read, of partition 1 it has nothing.
        assert_eq!(books.in_place(&Place::Queued), 14);
        assert_eq!(books.in_place(&Place::Delivered), 1);
    }
    desk.append(vec![append("a", 1, 33)]).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    drop(desk);
    let desk = Desk::open(&disk, small()).unwrap();
    desk.assert_balanced();
    assert_eq!(desk.audit()[1].books.in_place(&Place::Queued), 15);
}
