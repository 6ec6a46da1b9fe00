//! A loss to damage is known, and everything else is used.

use std::sync::Arc;

use tidegate_core::books::Place;
use tidegate_core::env::{Clock, Disk, DiskFile, OpenMode};
use tidegate_core::{GroupName, Offset};
use tidegate_sim::SimDisk;

use super::harness::{Harness, append, at, damage, dir, empty_journal, id, journal, offset, small};
use crate::embedded::audit::TopicAudit;
use crate::embedded::group;
use crate::embedded::{LogProblem, Repaired, check, ls, recount, repair, unknown_loss};
use crate::error::LogError;
use crate::local::Write;
use crate::topic::TopicConfig;

fn opened() -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    // One journal file, so that a later group is never far.
    let config = crate::EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    };
    let mut harness = Harness::open(&disk, config).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    (disk, harness)
}

fn written(count: u64) -> (SimDisk, Harness) {
    let (disk, mut harness) = opened();
    for n in 0..count {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    (disk, harness)
}

/// Repairs the log, and says what was done about records.
fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = Harness::open(disk, small()).unwrap().clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    let is_records = |done: &Repaired| matches!(done, Repaired::Records { .. });
    repaired.into_iter().filter(is_records).collect()
}

fn counted(disk: &SimDisk) -> Vec<TopicAudit> {
    let counted = recount(disk, dir()).unwrap();
    for audited in &counted {
        assert!(audited.books.account().is_balanced(), "{audited:?}");
    }
    counted
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(TopicAudit::unaccounted).sum()
}

/// The queued, delivered and lost events of the topic and then of its groups by name.
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
    let (disk, mut harness) = opened();
    harness.register("g", vec![0]).unwrap();
    for n in 0..8 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    drop(harness);
    assert_eq!(unaccounted(&disk), 0);
    damage(&disk, &journal(&disk, 1), b"value 3 ");
    // The topic and its group each miss one.
    assert_eq!(unaccounted(&disk), 2);
    for _ in 0..2 {
        let mut harness = Harness::open(&disk, small()).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        assert_eq!(unaccounted(&disk), 2, "a start does not hide it");
    }
    let expected = Repaired::Records {
        at: at("a", 0),
        offsets: (3, 4),
        aside: None,
    };
    assert_eq!(mend(&disk), [expected]);
    assert_eq!(places(&disk), [(7, 0, 1), (7, 0, 1)]);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert!(matches!(
        harness.read(&at("a", 0), 3),
        Err(LogError::Damaged { .. })
    ));
    // A group that comes later never had it.
    harness.register("later", vec![0]).unwrap();
    drop(harness);
    assert_eq!(places(&disk), [(7, 0, 1), (7, 0, 1), (7, 0, 0)]);
}

#[test]
fn an_offset_that_was_committed_is_not_given_to_another_record() {
    let (disk, mut harness) = written(5);
    let ids = (0..5).map(id);
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("g", at("a", 0), 5, ids)],
    };
    harness.write(write).unwrap();
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"value 4 ");
    let mut harness = Harness::open(&disk, small()).unwrap();
    let written = harness.append(vec![append("a", 0, 9)]).unwrap();
    assert_eq!(written[0].offset, Offset(5), "the group would skip it");
    drop(harness);
    assert!(unaccounted(&disk) > 0);
    assert_eq!(mend(&disk).len(), 1);
    // The group had settled what the topic lost.
    assert_eq!(places(&disk), [(5, 0, 1), (1, 5, 0)]);
}

#[test]
fn a_repair_posts_for_a_group_what_it_had_still_to_read() {
    let (disk, mut harness) = opened();
    harness.register("unread", vec![0]).unwrap();
    for n in 0..20 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let ids = (0..10).map(id);
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("read", at("a", 0), 10, ids)],
    };
    harness.write(write).unwrap();
    harness.skip("began", &[(0, 0)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
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
    let (disk, mut harness) = written(12);
    harness.opened.maintenance.checkpoint().unwrap();
    harness.delete_before(&at("a", 0), 2).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
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
    let lost = |damage: &dyn Fn(&mut dyn DiskFile, &[u8])| {
        let (disk, mut harness) = written(40);
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        let as_disk: &dyn Disk = &disk;
        let content = as_disk.read(&segment, 1 << 20).unwrap();
        let mut file = as_disk.open(&segment, OpenMode::Write).unwrap();
        damage(&mut *file, &content);
        file.sync().unwrap();
        drop(file);
        empty_journal(&disk);
        let mut harness = Harness::open(&disk, small()).unwrap();
        let (mut from, mut read, mut lost) = (0, 0, 0);
        while from < 40 {
            match harness.read(&at("a", 0), from) {
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
        drop(harness);
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
    let (disk, mut harness) = written(40);
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    let as_disk: &dyn Disk = &disk;
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    as_disk.remove(&segment).unwrap();
    empty_journal(&disk);
    let missing = unaccounted(&disk);
    assert!((1..40).contains(&missing), "{missing}");
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.audit()[0].unaccounted(), missing);
    let damaged = harness.read(&at("a", 0), 0).unwrap_err();
    let LogError::Damaged { from, to, .. } = damaged else {
        panic!("{damaged}");
    };
    assert_eq!((from.0, to.0), (0, missing as i64));
    assert_eq!(
        harness.read(&at("a", 0), to.0).unwrap().records[0].offset,
        to
    );
    drop(harness);
    mend(&disk);
    assert_eq!(places(&disk), [(40 - missing as i64, 0, missing as i64)]);
}

#[test]
fn a_segment_that_is_missing_does_not_stop_the_keeper() {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    let compact = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    harness.create("keyed", compact).unwrap();
    for n in 0..40 {
        let mut append = append("keyed", 0, n);
        append.record.key = Some("key".into());
        harness.append(vec![append]).unwrap();
    }
    harness.opened.maintenance.checkpoint().unwrap();
    let as_disk: &dyn Disk = &disk;
    let name = "0-00000000000000000000-0.seg";
    as_disk
        .remove(&dir().join("topic-keyed").join(name))
        .unwrap();
    assert_eq!(harness.opened.maintenance.compaction().unwrap(), None);
    harness.delete_before(&at("keyed", 0), 3).unwrap();
    assert_eq!(harness.start(&at("keyed", 0)), 3);
    harness.append(vec![append("keyed", 0, 41)]).unwrap();
}

/// An earlier version made the topics, in the journal alone.
#[test]
fn a_group_that_names_a_topic_whose_creation_is_lost_is_counted_and_kept_aside() {
    let (disk, mut harness) = written(1);
    harness
        .create_in_journal("dead", TopicConfig::new(2))
        .unwrap();
    // One commit: the record is settled because it lies elsewhere now.
    harness
        .write(Write {
            appends: vec![append("dead", 1, 0)],
            offsets: vec![offset("g", at("a", 0), 1, [id(0)])],
        })
        .unwrap();
    harness.append(vec![append("a", 0, 7)]).unwrap();
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"dead");
    for _ in 0..2 {
        let loss = unknown_loss(&disk, dir()).unwrap().unwrap();
        assert_eq!(loss.groups, 2, "its creation, and the commit: {loss}");
        let mut harness = Harness::open(&disk, small()).unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 2);
        // Not by half: the group would have passed a record that is nowhere.
        assert!(harness.opened.context.state().groups.is_empty());
        harness.assert_balanced();
    }
    let as_disk: &dyn Disk = &disk;
    let aside = ls(as_disk, dir()).unwrap().unwrap().aside;
    let kept = as_disk.read(aside[0].as_ref(), 1 << 20).unwrap();
    assert!(kept.windows(8).any(|w| w == b"value 0 "), "{aside:?}");
    mend(&disk);
    assert_eq!(unknown_loss(&disk, dir()).unwrap(), None);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("dead", TopicConfig::new(2)).unwrap();
    harness.append(vec![append("dead", 0, 1)]).unwrap();
    assert_eq!(harness.all(&at("dead", 0)).unwrap().len(), 1);
}

#[test]
fn damage_of_the_journal_does_not_take_the_creation_of_a_topic() {
    let (disk, mut harness) = written(1);
    harness.create("b", TopicConfig::new(2)).unwrap();
    drop(harness);
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
    use crate::embedded::change::LogChange;
    let (_disk, mut harness) = written(2);
    let mut state = harness.opened.context.state().clone();
    let unflushed = state.partition((0, 0)).unwrap().unflushed[0].clone();
    let group = GroupName::new("g").unwrap();
    let changes = vec![
        LogChange::Register {
            group: group.clone(),
            topics: vec![0],
        },
        LogChange::Chunk {
            at: (0, 0),
            chunk: unflushed,
        },
    ];
    let refused = state.apply(9, changes).unwrap_err();
    assert_eq!(refused.0, "records for offsets that are in use");
    assert!(!state.groups.contains_key(&group));
    harness.register("g", vec![0]).unwrap();
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
    let (disk, harness) = written(3);
    let (place, sequence, crc, secret) = {
        let state = harness.opened.context.state();
        (state.journal, state.sequence, state.crc, state.secret)
    };
    drop(harness);
    let mut bytes = vec![0; group::HEADER];
    bytes.extend_from_slice(&[13, 2, 0, 0, 0, 1, 2]);
    group::frame(&mut bytes, secret, sequence + 1, crc, 1_234, sequence);
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
    file.write_at(place.at, &bytes).unwrap();
    file.sync().unwrap();
    drop(file);
    let before = files(&disk);
    for refused in [
        Harness::open(&disk, small()).map(|_| ()).unwrap_err(),
        check(&disk, dir()).unwrap_err(),
        ls(&disk, dir()).unwrap_err(),
    ] {
        let text = refused.to_string();
        assert!(matches!(refused, LogError::Format { .. }), "{text}");
        assert!(text.contains("a change of kind 13"), "{text}");
    }
    assert_eq!(files(&disk), before);
}

#[test]
fn a_journal_file_that_was_cut_off_is_damage() {
    let (disk, mut harness) = written(3);
    harness.opened.maintenance.checkpoint().unwrap();
    harness.append(vec![append("a", 0, 3)]).unwrap();
    drop(harness);
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
    file.truncate(0).unwrap();
    file.sync().unwrap();
    drop(file);
    let checked = check(&disk, dir()).unwrap();
    let [LogProblem::UnknownLoss(loss)] = &checked.problems[..] else {
        panic!("{checked:?}");
    };
    let found = &loss.damage[0];
    assert!(found.why.contains("shorter than it was"), "{}", found.why);
    for next in 3..6 {
        let mut harness = Harness::open(&disk, small()).unwrap();
        harness.append(vec![append("a", 0, next)]).unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len() as u64, next + 1);
        harness.assert_balanced();
    }
}

#[test]
fn a_group_begins_behind_each_partition_by_itself() {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("a", TopicConfig::new(2)).unwrap();
    for n in 0..30 {
        let partition = i32::try_from(n % 2).unwrap();
        harness.append(vec![append("a", partition, n)]).unwrap();
        harness.keep().unwrap();
    }
    // Partition 1 begins within a segment.
    harness.delete_before(&at("a", 1), 3).unwrap();
    harness.append(vec![append("a", 1, 31)]).unwrap();
    let write = Write {
        appends: Vec::new(),
        offsets: vec![offset("g", at("a", 0), 1, [id(0)])],
    };
    harness.write(write).unwrap();
    for _ in 0..2 {
        harness.skip("g", &[(0, 0), (0, 1)]).unwrap();
        harness.assert_balanced();
        let audited = harness.audit();
        let books = &audited[1].books;
        // Of partition 0 it has 14 to read, of partition 1 it has nothing.
        assert_eq!(books.in_place(&Place::Queued), 14);
        assert_eq!(books.in_place(&Place::Delivered), 1);
    }
    harness.append(vec![append("a", 1, 33)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    let harness = Harness::open(&disk, small()).unwrap();
    harness.assert_balanced();
    assert_eq!(harness.audit()[1].books.in_place(&Place::Queued), 15);
}
