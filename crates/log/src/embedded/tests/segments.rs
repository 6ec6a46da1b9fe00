//! Segments on a disk without room, or that somebody else has changed: what is in use stays, what is
//! missing is named, and everything else goes on.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::Offset;
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_sim::{Fault, FaultKind, Operation, SimDisk, Survivors};

use super::harness::{Harness, append, at, dir, empty_journal, small};
use crate::EmbeddedConfig;
use crate::embedded::context::RefusalReason;
use crate::embedded::state::Garbage;
use crate::embedded::{LogProblem, Repaired, TopicAudit, check, recount, repair};
use crate::error::LogError;
use crate::topic::TopicConfig;

/// One journal file, and more of it than any test here writes.
fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

fn name(base: i64) -> String {
    format!("0-{base:020}-0.seg")
}

/// The segment of partition 0 that begins with this offset.
fn segment(topic: &str, base: i64) -> PathBuf {
    dir().join(format!("topic-{topic}")).join(name(base))
}

fn is_there(disk: &SimDisk, path: &std::path::Path) -> bool {
    let disk: &dyn Disk = disk;
    disk.open(path, OpenMode::Read).is_ok()
}

fn no_room(path: &str, nth: u64) -> Fault {
    Fault {
        operation: Operation::Write,
        path: path.to_owned(),
        nth,
        kind: FaultKind::Full,
    }
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(TopicAudit::unaccounted).sum()
}

/// The problems that a check finds. An index is never synced, so that a crash may take it; it is made again.
fn problems(disk: &SimDisk) -> Vec<LogProblem> {
    let mut problems = check(disk, dir()).unwrap().problems;
    problems.retain(|problem| !matches!(problem, LogProblem::Index { .. }));
    problems
}

/// Repairs the log as it lies there.
fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let other = SimDisk::new(2);
    let clock: Arc<dyn Clock> = open(&other).clock;
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    repaired
}

/// The log has as many bytes in use as its segments and its memory hold.
fn assert_used(harness: &Harness) {
    let state = harness.opened.context.state();
    let held = state.all().map(|(_, partition)| {
        let segments: u64 = partition.segments.iter().map(|segment| segment.len).sum();
        segments + partition.unflushed_bytes
    });
    assert_eq!(state.used, held.sum::<u64>());
}

/// A log whose retention removes everything but the records that are in no segment yet. The segment for
/// them was begun without room for its first chunk. Gives the first offset of these records.
fn begun_without_room(disk: &SimDisk) -> (Harness, i64) {
    let mut harness = open(disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..14 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness.opened.maintenance.checkpoint().unwrap();
    let next = harness.end(&at("a", 0));
    for n in 14..34 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let kept = harness.opened.context.state().unflushed_bytes;
    let topic = TopicConfig {
        retention_bytes: Some(kept),
        ..TopicConfig::new(1)
    };
    harness.create("a", topic).unwrap();
    harness.opened.context.state().seal_segments(|_, _| true);
    // The magic finds room, the records do not.
    disk.fail(no_room(&name(next), 2));
    harness.opened.maintenance.fill(true).unwrap_err();
    assert_used(&harness);
    (harness, next)
}

#[test]
fn a_segment_that_was_begun_without_room_is_not_removed_when_an_audit_ends() {
    for is_full_again in [false, true] {
        let disk = SimDisk::new(1);
        let (mut harness, next) = begun_without_room(&disk);
        harness.opened.context.status().pins += 1;
        if is_full_again {
            disk.fail(no_room(&name(next), 1));
        }
        let made = harness.make_room();
        assert_eq!(made.is_err(), is_full_again, "{made:?}");
        assert!(is_there(&disk, &segment("a", 0)), "an audit looks at it");
        harness.opened.context.status().pins -= 1;
        harness.opened.maintenance.checkpoint().unwrap();
        assert_used(&harness);
        let start = harness.start(&at("a", 0));
        assert_eq!(start, next, "retention asked for no more");
        assert!(!is_there(&disk, &segment("a", 0)));
        drop(harness);
        disk.crash(&Survivors::Nothing);
        assert_eq!(unaccounted(&disk), 0);
        let mut harness = open(&disk);
        let found = harness.all(&at("a", 0)).unwrap().len() as i64;
        assert_eq!(found, 34 - start, "acknowledged, and not removed");
        assert_used(&harness);
    }
}

#[test]
fn a_chunk_that_is_removed_in_part_goes_to_the_segment_that_was_begun_for_it() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness
        .append((0..10).map(|n| append("a", 0, n)).collect())
        .unwrap();
    disk.fail(no_room(&name(0), 2));
    harness.opened.maintenance.fill(true).unwrap_err();
    harness.opened.context.status().pins += 1;
    harness.delete_before(&at("a", 0), 5).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    harness.opened.context.status().pins -= 1;
    harness.append(vec![append("a", 0, 10)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    assert_used(&harness);
    drop(harness);
    disk.crash(&Survivors::Nothing);
    assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    assert_eq!(open(&disk).all(&at("a", 0)).unwrap().len(), 6);
}

#[test]
fn a_file_that_the_log_uses_is_not_removed_whatever_waits_under_its_name() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    harness.opened.maintenance.fill(true).unwrap();
    harness.opened.context.state().garbage.push(Garbage {
        topic: 0,
        name: name(0),
        sequence: 1,
    });
    harness.opened.maintenance.checkpoint().unwrap();
    harness.opened.maintenance.remove_now();
    assert!(is_there(&disk, &segment("a", 0)));
    assert_eq!(harness.opened.context.state().garbage, []);
}

#[test]
fn a_segment_that_is_removed_is_not_written_or_synced_any_more() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    let topic = TopicConfig {
        retention_bytes: Some(0),
        ..TopicConfig::new(1)
    };
    harness.create("a", topic).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    harness.opened.maintenance.fill(true).unwrap();
    // The disk is full: it goes while it is open and not synced.
    disk.fail(Fault {
        operation: Operation::Sync,
        path: name(0),
        nth: 1,
        kind: FaultKind::SyncDropsDirty,
    });
    harness.make_room().unwrap();
    assert!(!is_there(&disk, &segment("a", 0)));
    assert!(!harness.opened.context.status().is(RefusalReason::Stopped));
    harness.append(vec![append("a", 0, 1)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 1);
    assert_used(&harness);
}

#[test]
fn a_segment_that_was_begun_for_nothing_is_missed_by_nobody() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    let topic = TopicConfig {
        retention_bytes: Some(0),
        ..TopicConfig::new(1)
    };
    harness.create("a", topic).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    disk.fail(no_room(&name(0), 2));
    harness.opened.maintenance.fill(true).unwrap_err();
    // The records that it was begun for are removed; the manifest speaks of a segment that holds nothing.
    harness.make_room().unwrap();
    assert_eq!(harness.start(&at("a", 0)), 1);
    drop(harness);
    let as_disk: &dyn Disk = &disk;
    as_disk.remove(&segment("a", 0)).unwrap();
    assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    assert_eq!(mend(&disk), []);
    for n in 1..3 {
        let mut harness = open(&disk);
        harness.append(vec![append("a", 0, n)]).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len() as u64, n);
        assert_used(&harness);
        drop(harness);
        disk.crash(&Survivors::Nothing);
        assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    }
}

/// Damage to the file of a segment.
#[derive(Debug, Clone, Copy)]
enum FileDamage {
    Removed,
    CutTo(u64),
}

const FILE_DAMAGES: [FileDamage; 6] = [
    FileDamage::Removed,
    FileDamage::CutTo(0),
    FileDamage::CutTo(5),
    FileDamage::CutTo(7),
    FileDamage::CutTo(8),
    FileDamage::CutTo(200),
];

fn damage_file(disk: &SimDisk, damage: FileDamage) {
    let disk: &dyn Disk = disk;
    let path = segment("a", 0);
    match damage {
        FileDamage::Removed => disk.remove(&path).unwrap(),
        FileDamage::CutTo(len) => {
            let mut file = disk.open(&path, OpenMode::Write).unwrap();
            assert!(file.len().unwrap() > len, "nothing is cut off");
            file.truncate(len).unwrap();
            file.sync().unwrap();
        }
    }
}

/// Two topics with five records each, in segments that more could be added to.
fn filled(disk: &SimDisk) -> Harness {
    let mut harness = open(disk);
    for name in ["a", "b"] {
        harness.create(name, TopicConfig::new(1)).unwrap();
        (0..5).for_each(|n| {
            harness.append(vec![append(name, 0, n)]).unwrap();
        });
    }
    harness.opened.maintenance.checkpoint().unwrap();
    harness
}

/// Reads a partition around what is damaged: how many records there are, and how many are lost.
fn read_all(harness: &mut Harness, name: &str) -> (i64, i64) {
    let at = at(name, 0);
    let (mut from, mut read, mut lost) = (harness.start(&at), 0, 0);
    while from < harness.end(&at) {
        match harness.read(&at, from) {
            Ok(batch) => {
                assert_eq!(batch.records[0].offset.0, from, "nothing is jumped over");
                read += batch.records.len() as i64;
                from = batch.next.0;
            }
            Err(LogError::Damaged { to, .. }) => {
                lost += to.0 - from;
                from = to.0;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (read, lost)
}

/// The offsets of `a` that a check finds damaged in files.
fn named(disk: &SimDisk) -> i64 {
    let problems = problems(disk).into_iter();
    let named = problems.map(|problem| {
        if let LogProblem::Records {
            at: found,
            from,
            to,
            place: Some(_),
        } = &problem
        {
            assert_eq!(*found, at("a", 0));
            return to.0 - from.0;
        }
        assert!(matches!(problem, LogProblem::Beginning { .. }), "{problem}");
        0
    });
    named.sum()
}

#[test]
fn where_the_last_segment_is_missing_or_short_its_partition_goes_on_in_another_file() {
    for done in FILE_DAMAGES {
        for is_running in [false, true] {
            let disk = SimDisk::new(1);
            let mut harness = filled(&disk);
            if is_running {
                damage_file(&disk, done);
            } else {
                drop(harness);
                damage_file(&disk, done);
                harness = open(&disk);
            }
            for n in 5..9 {
                for name in ["a", "b"] {
                    let written = harness.append(vec![append(name, 0, n)]).unwrap();
                    assert_eq!(written[0].offset.0, n as i64);
                }
                harness.opened.maintenance.fill(true).unwrap();
            }
            // A process that dies before its next checkpoint finds the same again.
            drop(harness);
            disk.crash(&Survivors::Random(7));
            let mut harness = open(&disk);
            harness.opened.maintenance.fill(true).unwrap();
            harness.opened.maintenance.checkpoint().unwrap();
            assert_used(&harness);
            let (read, lost) = read_all(&mut harness, "a");
            assert_eq!(read + lost, 9, "{done:?}");
            assert!((1..=5).contains(&lost), "{done:?}: {lost}");
            assert_eq!(read_all(&mut harness, "b"), (9, 0));
            drop(harness);
            disk.crash(&Survivors::Nothing);
            assert_eq!(unaccounted(&disk), lost as u64, "{done:?}");
            assert_eq!(named(&disk), lost, "{done:?}");
            empty_journal(&disk);
            let repaired = mend(&disk);
            let is_loss = |done: &&Repaired| matches!(done, Repaired::Records { .. });
            assert_eq!(repaired.iter().filter(is_loss).count(), 1, "{repaired:?}");
            assert_eq!(unaccounted(&disk), 0, "{done:?}");
            let mut harness = open(&disk);
            assert_eq!(read_all(&mut harness, "a"), (read, lost));
        }
    }
}

#[test]
fn a_repair_needs_no_start_before_it_where_the_last_segment_is_missing_or_short() {
    for done in FILE_DAMAGES {
        for (is_more_journaled, is_kept) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let disk = SimDisk::new(1);
            let mut harness = filled(&disk);
            if is_more_journaled {
                harness.append(vec![append("a", 0, 5)]).unwrap();
            }
            drop(harness);
            damage_file(&disk, done);
            let mut lost = named(&disk);
            assert!((1..=5).contains(&lost), "{done:?}: {lost}");
            assert_eq!(unaccounted(&disk), lost as u64);
            match is_kept {
                // The journal has them.
                true => lost = 0,
                false => empty_journal(&disk),
            }
            mend(&disk);
            assert_eq!(unaccounted(&disk), 0, "{done:?}");
            let mut harness = open(&disk);
            let all = 5 + i64::from(is_more_journaled);
            assert_eq!(read_all(&mut harness, "a"), (all - lost, lost), "{done:?}");
            let written = harness.append(vec![append("a", 0, 9)]).unwrap();
            assert_eq!(written[0].offset, Offset(all), "no offset is given twice");
        }
    }
}

#[test]
fn a_segment_of_which_a_bit_of_the_beginning_is_flipped_is_read_as_it_was() {
    for bit in 0..64 {
        let disk = SimDisk::new(1);
        drop(filled(&disk));
        disk.flip_bit(&segment("a", 0), bit / 8, (bit % 8) as u8);
        let found = problems(&disk);
        let file = name(0);
        assert_eq!(found, [LogProblem::Beginning { file }], "bit {bit}");
        assert_eq!(unaccounted(&disk), 0);
        assert_eq!(mend(&disk), []);
        let mut harness = open(&disk);
        assert_eq!(read_all(&mut harness, "a"), (5, 0));
        harness.append(vec![append("a", 0, 5)]).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        assert_eq!(read_all(&mut harness, "a"), (6, 0));
        harness.assert_balanced();
    }
}

#[test]
fn a_segment_that_a_later_version_wrote_is_refused_and_not_touched() {
    let disk = SimDisk::new(1);
    drop(filled(&disk));
    let as_disk: &dyn Disk = &disk;
    let path = segment("a", 0);
    let len = as_disk.read(&path, 1 << 20).unwrap().len();
    let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
    file.write_at(0, b"TGSEG\x02\0\0").unwrap();
    file.write_at(8, &vec![0x5a; len - 8]).unwrap();
    file.sync().unwrap();
    drop(file);
    let before = as_disk.read(&path, 1 << 20).unwrap();
    let is_refused = |error: LogError| matches!(error, LogError::Format { .. });
    assert!(is_refused(check(&disk, dir()).unwrap_err()));
    assert!(is_refused(recount(&disk, dir()).unwrap_err()));
    let mut harness = open(&disk);
    assert!(is_refused(harness.read(&at("a", 0), 0).unwrap_err()));
    let clock: Arc<dyn Clock> = harness.clock.clone();
    drop(harness);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    assert!(is_refused(repair(&shared, &clock, dir(), 77).unwrap_err()));
    assert_eq!(as_disk.read(&path, 1 << 20).unwrap(), before);
}
