//! Damage that could pass for a log in order leaves a trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_sim::{SimDisk, Survivors};

use super::harness::{Harness, append, at, damage, dir, empty_journal, id, journal, offset, small};
use crate::embedded::files::journal_number;
use crate::embedded::{LogProblem, check, repair};
use crate::error::LogError;
use crate::local::Write;
use crate::topic::TopicConfig;

fn written(count: u64) -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    let config = crate::EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    };
    let mut harness = Harness::open(&disk, config).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..count {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    (disk, harness)
}

fn cut(disk: &SimDisk, file: &std::path::Path, len: u64) {
    let as_disk: &dyn Disk = disk;
    let mut file = as_disk.open(file, OpenMode::Write).unwrap();
    file.truncate(len).unwrap();
    file.sync().unwrap();
}

/// Begins a start again and again, and takes the power from it at each of its operations. Checks each
/// time what any of the survivors make of the disk.
fn after_a_start_that_crashes(disk: &SimDisk, check: impl Fn(&SimDisk)) {
    for operation in 1.. {
        let begun = disk.after_crash(&Survivors::Everything);
        begun.kill_at(begun.operations() + operation);
        let open = || drop(Harness::open(&begun, small()));
        let ended = catch_unwind(AssertUnwindSafe(open));
        let first = (0..begun.unsynced()).map(Survivors::First);
        let random = (0..3).map(|seed| Survivors::Random(seed + operation));
        for survivors in first.chain(random).chain([Survivors::Everything]) {
            check(&begun.after_crash(&survivors));
        }
        if ended.is_ok() {
            assert!(operation > 10, "a start does more than that");
            return;
        }
    }
}

fn losses(disk: &SimDisk) -> Vec<LogProblem> {
    let checked = check(disk, dir()).unwrap();
    let losses = checked.problems.into_iter();
    losses.filter(LogProblem::is_loss).collect()
}

fn mend(disk: &SimDisk) -> usize {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = Harness::open(disk, small()).unwrap().clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    repaired.len()
}

#[test]
fn a_journal_cut_at_the_end_of_a_group_is_said_until_a_repair() {
    for with_checkpoint in [false, true] {
        let (disk, mut harness) = written(3);
        if with_checkpoint {
            harness.opened.maintenance.checkpoint().unwrap();
            harness.append(vec![append("a", 0, 3)]).unwrap();
        }
        let end = harness.opened.context.state().journal.at;
        harness.append(vec![append("a", 0, 4)]).unwrap();
        drop(harness);
        cut(&disk, &journal(&disk, 1), end);
        assert_eq!(losses(&disk).len(), 1);
        let kept = if with_checkpoint { 4 } else { 3 };
        for more in 0..3 {
            let mut harness = Harness::open(&disk, small()).unwrap();
            assert_eq!(harness.all(&at("a", 0)).unwrap().len(), kept + more);
            harness.append(vec![append("a", 0, 9)]).unwrap();
            harness.assert_balanced();
            drop(harness);
            disk.end_process();
            assert_eq!(losses(&disk).len(), 1, "a start does not hide it");
        }
        assert_eq!(mend(&disk), 1);
        assert_eq!(losses(&disk), []);
    }
}

#[test]
fn a_journal_cut_to_nothing_before_any_checkpoint_is_said() {
    let (disk, harness) = written(3);
    drop(harness);
    cut(&disk, &journal(&disk, 1), 0);
    assert_eq!(losses(&disk).len(), 1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("b", TopicConfig::new(1)).unwrap();
    drop(harness);
    disk.end_process();
    assert_eq!(losses(&disk).len(), 1);
    let harness = Harness::open(&disk, small()).unwrap();
    assert!(harness.opened.context.state().find(&at("b", 0)).is_some());
}

/// The last file was cut before its first group, and the one before it ends as it should.
#[test]
fn a_journal_file_that_was_cut_behind_the_last_group_is_said_until_a_repair() {
    for left in [0, 100] {
        let disk = SimDisk::new(1);
        let mut harness = Harness::open(&disk, small()).unwrap();
        harness.create("a", TopicConfig::new(1)).unwrap();
        let mut written = 0;
        while harness.opened.context.state().journal.file < 3 {
            harness.append(vec![append("a", 0, written)]).unwrap();
            written += 1;
        }
        drop(harness);
        disk.end_process();
        cut(&disk, &journal(&disk, 3), left);
        assert_eq!(losses(&disk).len(), 1);
        // Also where the next process dies at any point of its start.
        after_a_start_that_crashes(&disk, |disk| assert_eq!(losses(disk).len(), 1));
        for more in 0..3 {
            let mut harness = Harness::open(&disk, small()).unwrap();
            let found = harness.all(&at("a", 0)).unwrap().len() as u64;
            assert_eq!(found, written - 1 + more);
            harness.append(vec![append("a", 0, 90 + more)]).unwrap();
            drop(harness);
            disk.end_process();
            assert_eq!(losses(&disk).len(), 1, "a start does not hide it");
        }
        let as_disk: &dyn Disk = &disk;
        let entries = as_disk.list(dir()).unwrap();
        let is_kept = |name: &str| name.starts_with("aside-journal-0000000000000003-");
        assert!(entries.iter().any(|entry| is_kept(&entry.name)));
        assert_eq!(mend(&disk), 1);
        assert_eq!(losses(&disk), []);
    }
}

/// One bit of the journal costs nothing that a segment has.
#[test]
fn a_record_that_was_lost_with_the_journal_is_taken_from_its_segment() {
    // In the file that the checkpoint knows, or in one that was begun since.
    for is_known in [true, false] {
        let (disk, mut harness) = written(2);
        if is_known {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        for n in 2..8 {
            harness.append(vec![append("a", 0, n)]).unwrap();
        }
        harness.opened.maintenance.fill(true).unwrap();
        harness.append(vec![append("a", 0, 8)]).unwrap();
        drop(harness);
        disk.end_process();
        let file = journal(&disk, 1);
        let as_disk: &dyn Disk = &disk;
        let bytes = as_disk.read(&file, 1 << 20).unwrap();
        for value in [&b"value 3 "[..], b"value 6 "] {
            let place = bytes.windows(value.len()).position(|w| w == value);
            disk.flip_bit(&file, place.unwrap() as u64, 1);
        }
        after_a_start_that_crashes(&disk, |disk| {
            let mut harness = Harness::open(disk, small()).unwrap();
            assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 9);
            drop(harness);
            assert_eq!(losses(disk).len(), 1);
        });
        for more in 0..3 {
            let mut harness = Harness::open(&disk, small()).unwrap();
            let found = harness.all(&at("a", 0)).unwrap();
            for (stored, n) in found.iter().zip(0..9) {
                assert_eq!(stored.record, append("a", 0, n).record);
            }
            assert_eq!(found.len(), 9 + more);
            harness.append(vec![append("a", 0, 9)]).unwrap();
            harness.assert_balanced();
            drop(harness);
            disk.end_process();
            assert_eq!(losses(&disk).len(), 1, "the rest is unknown");
        }
        assert_eq!(mend(&disk), 1);
        assert_eq!(losses(&disk), []);
    }
}

/// Of the records that only a segment has, the first or the last is damaged. Its offset is not given to
/// another one, and the others stay, also where the next process dies at any point of its start.
#[test]
fn chunks_behind_damage_in_a_segment_were_acknowledged_too() {
    for is_first in [true, false] {
        let (disk, mut harness) = written(1);
        harness.opened.maintenance.checkpoint().unwrap();
        let before = harness.opened.context.state().journal.at;
        for n in 1..7 {
            harness.append(vec![append("a", 0, n)]).unwrap();
        }
        harness.opened.maintenance.fill(true).unwrap();
        drop(harness);
        disk.end_process();
        cut(&disk, &journal(&disk, 1), before);
        let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
        let as_disk: &dyn Disk = &disk;
        let bytes = as_disk.read(&segment, 1 << 20).unwrap();
        let find = |value: &[u8]| bytes.windows(value.len()).position(|w| w == value).unwrap();
        let place = match is_first {
            // In the header, so that nothing but what lies behind tells of it.
            true => find(b"value 1 ") - 40,
            false => find(b"value 6 "),
        };
        disk.flip_bit(&segment, place as u64, 1);
        let damaged = if is_first { 1 } else { 6 };
        let check = |disk: &SimDisk| {
            assert!(!losses(disk).is_empty());
            let mut harness = Harness::open(disk, small()).unwrap();
            assert_eq!(harness.end(&at("a", 0)), 7);
            for n in (0..7).filter(|n| *n != damaged) {
                let found = harness.read(&at("a", 0), n).unwrap();
                assert_eq!(found.records[0].record, append("a", 0, n as u64).record);
            }
        };
        after_a_start_that_crashes(&disk, check);
        check(&disk);
        for next in 7..10 {
            disk.end_process();
            let mut harness = Harness::open(&disk, small()).unwrap();
            let written = harness.append(vec![append("a", 0, 9)]).unwrap();
            assert_eq!(written[0].offset.0, next);
        }
        disk.end_process();
        assert!(!losses(&disk).is_empty(), "a start does not hide it");
        mend(&disk);
        assert_eq!(losses(&disk), []);
    }
}

/// A journal file that was all used is not missed for what it never held.
#[test]
fn a_journal_file_whose_successor_follows_may_be_short() {
    let (disk, mut harness) = written(3);
    let end = harness.opened.context.state().journal.at;
    drop(harness);
    disk.end_process();
    let config = crate::EmbeddedConfig {
        journal_size: 64,
        ..small()
    };
    harness = Harness::open(&disk, config).unwrap();
    harness.append(vec![append("a", 0, 3)]).unwrap();
    drop(harness);
    assert!(disk_has(&disk, 2));
    cut(&disk, &journal(&disk, 1), end);
    assert_eq!(losses(&disk), []);
}

fn disk_has(disk: &SimDisk, number: u64) -> bool {
    let as_disk: &dyn Disk = disk;
    let entries = as_disk.list(dir()).unwrap();
    entries
        .iter()
        .any(|entry| journal_number(&entry.name) == Some(number))
}

/// The last group cannot be read, and only the segment knows that it was acknowledged.
#[test]
fn records_that_only_a_segment_has_are_said_and_kept() {
    for is_cut in [false, true] {
        let (disk, mut harness) = written(30);
        let before = harness.opened.context.state().journal.at;
        let offset = offset("g", at("a", 0), 2, [0, 1].map(id));
        harness
            .write(Write {
                appends: vec![append("a", 0, 30)],
                offsets: vec![offset],
            })
            .unwrap();
        harness.opened.maintenance.fill(true).unwrap();
        drop(harness);
        disk.end_process();
        let file = journal(&disk, 1);
        match is_cut {
            true => cut(&disk, &file, before),
            false => disk.flip_bit(&file, before + 30, 1),
        }
        assert!(!losses(&disk).is_empty());
        for _ in 0..2 {
            let mut harness = Harness::open(&disk, small()).unwrap();
            let found = harness.all(&at("a", 0)).unwrap();
            assert_eq!(found.len(), 31);
            assert_eq!(found[30].record, append("a", 0, 30).record);
            harness.assert_balanced();
            drop(harness);
            disk.end_process();
            assert!(!losses(&disk).is_empty(), "the offset of the group is gone");
        }
        mend(&disk);
        assert_eq!(losses(&disk), []);
        let mut harness = Harness::open(&disk, small()).unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 31);
    }
}

#[test]
fn one_damaged_manifest_is_replaced_by_the_other() {
    for (name, is_gone) in [
        ("manifest", false),
        ("manifest", true),
        ("manifest.copy", false),
        ("manifest.copy", true),
    ] {
        let (disk, mut harness) = written(3);
        harness.opened.maintenance.checkpoint().unwrap();
        harness.append(vec![append("a", 0, 3)]).unwrap();
        drop(harness);
        disk.end_process();
        let manifest = dir().join(name);
        let as_disk: &dyn Disk = &disk;
        match is_gone {
            true => as_disk.remove(&manifest).unwrap(),
            false => disk.flip_bit(&manifest, 20, 1),
        }
        let checked = check(as_disk, dir()).unwrap();
        assert_eq!(checked.problems.len(), 1, "{name} {checked:?}");
        assert_eq!(losses(&disk), [], "nothing is lost");
        let mut harness = Harness::open(&disk, small()).unwrap();
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 4);
        harness.assert_balanced();
        drop(harness);
        disk.end_process();
        assert_eq!(check(as_disk, dir()).unwrap().problems, [], "it was mended");
    }
}

#[test]
fn two_damaged_manifests_are_said_and_nothing_is_touched() {
    let (disk, harness) = written(3);
    drop(harness);
    for name in ["manifest", "manifest.copy"] {
        disk.flip_bit(&dir().join(name), 20, 1);
    }
    let refused = Harness::open(&disk, small()).map(|_| ()).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, LogError::Format { .. }), "{text}");
    assert!(text.contains("manifest.copy"), "{text}");
    for name in ["manifest", "manifest.copy"] {
        let as_disk: &dyn Disk = &disk;
        as_disk.remove(&dir().join(name)).unwrap();
    }
    let refused = Harness::open(&disk, small()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, LogError::Format { .. }), "{refused}");
}

#[test]
fn after_a_repair_a_check_has_nothing_but_notes() {
    // Once with a segment, once with the journal.
    for in_segment in [true, false] {
        let (disk, mut harness) = written(12);
        if in_segment {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        drop(harness);
        let file = match in_segment {
            true => dir().join("topic-a").join("0-00000000000000000000-0.seg"),
            false => journal(&disk, 1),
        };
        damage(&disk, &file, b"value 3 ");
        empty_journal(&disk);
        assert!(!losses(&disk).is_empty());
        if !in_segment {
            let mut harness = Harness::open(&disk, small()).unwrap();
            harness.opened.maintenance.checkpoint().unwrap();
            drop(harness);
            disk.end_process();
            assert!(!losses(&disk).is_empty(), "nobody has posted it yet");
        }
        mend(&disk);
        assert_eq!(losses(&disk), []);
        assert_eq!(check(&disk, dir()).unwrap().problems.len(), 1);
    }
}
