//! Segments on a disk without room, or that somebody else has changed: what is in use stays, what is
//! missing is named, and everything else goes on.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::Offset;
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_sim::{Fault, FaultKind, Operation, SimDisk, Survivors};

use super::desk::{Desk, append, at, dir, empty_journal, small};
use crate::EmbeddedConfig;
use crate::embedded::hub::Refusing;
use crate::embedded::state::Garbage;
use crate::embedded::{Audited, Problem, Repaired, check, recount, repair};
use crate::error::LogError;
use crate::topic::TopicConfig;

/// One journal file, and more of it than any test here writes.
fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Desk {
    Desk::open(disk, config()).unwrap()
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
    counted.iter().map(Audited::unaccounted).sum()
}

/// What a check finds. An index is never synced, so that a crash may take it; it is made again.
fn problems(disk: &SimDisk) -> Vec<Problem> {
    let mut problems = check(disk, dir()).unwrap().problems;
    problems.retain(|problem| !matches!(problem, Problem::Index { .. }));
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
fn assert_used(desk: &Desk) {
    let state = desk.opened.hub.state();
    let held = state.all().map(|(.., partition)| {
        let segments: u64 = partition.segments.iter().map(|segment| segment.len).sum();
        segments + partition.fresh_bytes
    });
    assert_eq!(state.used, held.sum::<u64>());
}

/// A log whose retention removes everything but what is in no segment yet, and where the segment for
/// that was begun without room for its first chunk. Gives the first offset of that.
fn begun_without_room(disk: &SimDisk) -> (Desk, i64) {
    let mut desk = open(disk);
    desk.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..14 {
        desk.append(vec![append("a", 0, n)]).unwrap();
    }
    desk.opened.keeper.checkpoint().unwrap();
    let next = desk.end(&at("a", 0));
    for n in 14..34 {
        desk.append(vec![append("a", 0, n)]).unwrap();
    }
    let kept = desk.opened.hub.state().fresh_bytes;
    let topic = TopicConfig {
        retention_bytes: Some(kept),
        ..TopicConfig::new(1)
    };
    desk.create("a", topic).unwrap();
    desk.opened.hub.state().seal(|_, _| true);
    // The magic finds room, the records do not.
    disk.fail(no_room(&name(next), 2));
    desk.opened.keeper.fill(true).unwrap_err();
    assert_used(&desk);
    (desk, next)
}

#[test]
fn a_segment_that_was_begun_without_room_is_not_removed_when_an_audit_ends() {
    for is_full_again in [false, true] {
        let disk = SimDisk::new(1);
        let (mut desk, next) = begun_without_room(&disk);
        desk.opened.hub.status().pins += 1;
        if is_full_again {
            disk.fail(no_room(&name(next), 1));
        }
        let made = desk.make_room();
        assert_eq!(made.is_err(), is_full_again, "{made:?}");
        assert!(is_there(&disk, &segment("a", 0)), "an audit looks at it");
        desk.opened.hub.status().pins -= 1;
        desk.opened.keeper.checkpoint().unwrap();
        assert_used(&desk);
        let start = desk.start(&at("a", 0));
        assert_eq!(start, next, "retention asked for no more");
        assert!(!is_there(&disk, &segment("a", 0)));
        drop(desk);
        disk.crash(&Survivors::Nothing);
        assert_eq!(unaccounted(&disk), 0);
        let mut desk = open(&disk);
        let found = desk.all(&at("a", 0)).unwrap().len() as i64;
        assert_eq!(found, 34 - start, "acknowledged, and not removed");
        assert_used(&desk);
    }
}

#[test]
fn a_chunk_that_is_removed_in_part_goes_to_the_segment_that_was_begun_for_it() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(1)).unwrap();
    desk.append((0..10).map(|n| append("a", 0, n)).collect())
        .unwrap();
    disk.fail(no_room(&name(0), 2));
    desk.opened.keeper.fill(true).unwrap_err();
    desk.opened.hub.status().pins += 1;
    desk.delete_before(&at("a", 0), 5).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    desk.opened.hub.status().pins -= 1;
    desk.append(vec![append("a", 0, 10)]).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    assert_used(&desk);
    drop(desk);
    disk.crash(&Survivors::Nothing);
    assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    assert_eq!(open(&disk).all(&at("a", 0)).unwrap().len(), 6);
}

#[test]
fn a_file_that_the_log_uses_is_not_removed_whatever_waits_under_its_name() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    desk.create("a", TopicConfig::new(1)).unwrap();
    desk.append(vec![append("a", 0, 0)]).unwrap();
    desk.opened.keeper.fill(true).unwrap();
    desk.opened.hub.state().garbage.push(Garbage {
        topic: 0,
        name: name(0),
        sequence: 1,
    });
    desk.opened.keeper.checkpoint().unwrap();
    desk.opened.keeper.remove_now();
    assert!(is_there(&disk, &segment("a", 0)));
    assert_eq!(desk.opened.hub.state().garbage, []);
}

#[test]
fn a_segment_that_is_removed_is_not_written_or_synced_any_more() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    let topic = TopicConfig {
        retention_bytes: Some(0),
        ..TopicConfig::new(1)
    };
    desk.create("a", topic).unwrap();
    desk.append(vec![append("a", 0, 0)]).unwrap();
    desk.opened.keeper.fill(true).unwrap();
    // The disk is full: it goes while it is open and not synced.
    disk.fail(Fault {
        operation: Operation::Sync,
        path: name(0),
        nth: 1,
        kind: FaultKind::SyncDropsDirty,
    });
    desk.make_room().unwrap();
    assert!(!is_there(&disk, &segment("a", 0)));
    assert!(!desk.opened.hub.status().is(Refusing::Stopped));
    desk.append(vec![append("a", 0, 1)]).unwrap();
    desk.opened.keeper.checkpoint().unwrap();
    assert_eq!(desk.all(&at("a", 0)).unwrap().len(), 1);
    assert_used(&desk);
}

#[test]
fn a_segment_that_was_begun_for_nothing_is_missed_by_nobody() {
    let disk = SimDisk::new(1);
    let mut desk = open(&disk);
    let topic = TopicConfig {
        retention_bytes: Some(0),
        ..TopicConfig::new(1)
    };
    desk.create("a", topic).unwrap();
    desk.append(vec![append("a", 0, 0)]).unwrap();
    disk.fail(no_room(&name(0), 2));
    desk.opened.keeper.fill(true).unwrap_err();
    // What it was begun for is removed; the manifest speaks of a segment that holds nothing.
    desk.make_room().unwrap();
    assert_eq!(desk.start(&at("a", 0)), 1);
    drop(desk);
    let as_disk: &dyn Disk = &disk;
    as_disk.remove(&segment("a", 0)).unwrap();
    assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    assert_eq!(mend(&disk), []);
    for n in 1..3 {
        let mut desk = open(&disk);
        desk.append(vec![append("a", 0, n)]).unwrap();
        desk.opened.keeper.checkpoint().unwrap();
        assert_eq!(desk.all(&at("a", 0)).unwrap().len() as u64, n);
        assert_used(&desk);
        drop(desk);
        disk.crash(&Survivors::Nothing);
        assert_eq!((unaccounted(&disk), problems(&disk)), (0, vec![]));
    }
}

/// What somebody did to the file of a segment.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Removed,
    CutTo(u64),
}

const HARMS: [Harm; 6] = [
    Harm::Removed,
    Harm::CutTo(0),
    Harm::CutTo(5),
    Harm::CutTo(7),
    Harm::CutTo(8),
    Harm::CutTo(200),
];

fn harm(disk: &SimDisk, harm: Harm) {
    let disk: &dyn Disk = disk;
    let path = segment("a", 0);
    match harm {
        Harm::Removed => disk.remove(&path).unwrap(),
        Harm::CutTo(len) => {
            let mut file = disk.open(&path, OpenMode::Write).unwrap();
            assert!(file.len().unwrap() > len, "nothing is cut off");
            file.truncate(len).unwrap();
            file.sync().unwrap();
        }
    }
}

/// Two topics with five records each, in segments that more could be added to.
fn filled(disk: &SimDisk) -> Desk {
    let mut desk = open(disk);
    for name in ["a", "b"] {
        desk.create(name, TopicConfig::new(1)).unwrap();
        (0..5).for_each(|n| {
            desk.append(vec![append(name, 0, n)]).unwrap();
        });
    }
    desk.opened.keeper.checkpoint().unwrap();
    desk
}

/// Reads a partition around what is damaged: how many records there are, and how many are lost.
fn read_all(desk: &mut Desk, name: &str) -> (i64, i64) {
    let at = at(name, 0);
    let (mut from, mut read, mut lost) = (desk.start(&at), 0, 0);
    while from < desk.end(&at) {
        match desk.read(&at, from) {
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
        if let Problem::Records {
            at: found,
            from,
            to,
            place: Some(_),
        } = &problem
        {
            assert_eq!(*found, at("a", 0));
            return to.0 - from.0;
        }
        assert!(matches!(problem, Problem::Beginning { .. }), "{problem}");
        0
    });
    named.sum()
}

#[test]
fn where_the_last_segment_is_missing_or_short_its_partition_goes_on_in_another_file() {
    for done in HARMS {
        for is_running in [false, true] {
            let disk = SimDisk::new(1);
            let mut desk = filled(&disk);
            if is_running {
                harm(&disk, done);
            } else {
                drop(desk);
                harm(&disk, done);
                desk = open(&disk);
            }
            for n in 5..9 {
                for name in ["a", "b"] {
                    let written = desk.append(vec![append(name, 0, n)]).unwrap();
                    assert_eq!(written[0].offset.0, n as i64);
                }
                desk.opened.keeper.fill(true).unwrap();
            }
            // A process that dies before its next checkpoint finds the same again.
            drop(desk);
            disk.crash(&Survivors::Random(7));
            let mut desk = open(&disk);
            desk.opened.keeper.fill(true).unwrap();
            desk.opened.keeper.checkpoint().unwrap();
            assert_used(&desk);
            let (read, lost) = read_all(&mut desk, "a");
            assert_eq!(read + lost, 9, "{done:?}");
            assert!((1..=5).contains(&lost), "{done:?}: {lost}");
            assert_eq!(read_all(&mut desk, "b"), (9, 0));
            drop(desk);
            disk.crash(&Survivors::Nothing);
            assert_eq!(unaccounted(&disk), lost as u64, "{done:?}");
            assert_eq!(named(&disk), lost, "{done:?}");
            empty_journal(&disk);
            let repaired = mend(&disk);
            let is_loss = |done: &&Repaired| matches!(done, Repaired::Records { .. });
            assert_eq!(repaired.iter().filter(is_loss).count(), 1, "{repaired:?}");
            assert_eq!(unaccounted(&disk), 0, "{done:?}");
            let mut desk = open(&disk);
            assert_eq!(read_all(&mut desk, "a"), (read, lost));
        }
    }
}

#[test]
fn a_repair_needs_no_start_before_it_where_the_last_segment_is_missing_or_short() {
    for done in HARMS {
        for (is_more_journaled, is_kept) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let disk = SimDisk::new(1);
            let mut desk = filled(&disk);
            if is_more_journaled {
                desk.append(vec![append("a", 0, 5)]).unwrap();
            }
            drop(desk);
            harm(&disk, done);
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
            let mut desk = open(&disk);
            let all = 5 + i64::from(is_more_journaled);
            assert_eq!(read_all(&mut desk, "a"), (all - lost, lost), "{done:?}");
            let written = desk.append(vec![append("a", 0, 9)]).unwrap();
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
        assert_eq!(found, [Problem::Beginning { file }], "bit {bit}");
        assert_eq!(unaccounted(&disk), 0);
        assert_eq!(mend(&disk), []);
        let mut desk = open(&disk);
        assert_eq!(read_all(&mut desk, "a"), (5, 0));
        desk.append(vec![append("a", 0, 5)]).unwrap();
        desk.opened.keeper.checkpoint().unwrap();
        assert_eq!(read_all(&mut desk, "a"), (6, 0));
        desk.assert_balanced();
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
    let mut desk = open(&disk);
    assert!(is_refused(desk.read(&at("a", 0), 0).unwrap_err()));
    let clock: Arc<dyn Clock> = desk.clock.clone();
    drop(desk);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    assert!(is_refused(repair(&shared, &clock, dir(), 77).unwrap_err()));
    assert_eq!(as_disk.read(&path, 1 << 20).unwrap(), before);
}
