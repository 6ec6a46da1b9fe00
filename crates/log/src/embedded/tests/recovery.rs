//! A start: what it finds, and what it does about it.

use std::sync::Arc;

use tidegate_core::Offset;
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_sim::SimDisk;

use super::harness::{Harness, append, at, dir, empty_journal, journal, secret, small};
use crate::embedded::chunk::Head;
use crate::embedded::files;
use crate::embedded::{LogProblem, Repaired, check, ls, recount, repair, unknown_loss};
use crate::error::LogError;
use crate::topic::TopicConfig;

fn written(count: u64) -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..count {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    (disk, harness)
}

#[test]
fn a_second_process_is_refused_and_told_who_has_it() {
    let (disk, harness) = written(1);
    let refused = Harness::open(&disk, small()).map(|_| ()).unwrap_err();
    let text = refused.to_string();
    let holder = format!("(process {})", std::process::id());
    assert!(text.contains(&holder), "{text}");
    drop(harness);
    Harness::open(&disk, small()).map(|_| ()).unwrap();
}

#[test]
fn a_torn_tail_is_kept_aside() {
    let (disk, harness) = written(5);
    let place = harness.opened.context.state().journal;
    drop(harness);
    // The last group was never acknowledged as far as anybody can tell.
    disk.flip_bit(&journal(&disk, 1), place.at - 20, 1);
    let as_disk: &dyn Disk = &disk;
    let checked = check(as_disk, dir()).unwrap();
    assert!(
        matches!(checked.problems[..], [LogProblem::Torn { .. }]),
        "{checked:?}"
    );
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 4);
    let written = harness.append(vec![append("a", 0, 9)]).unwrap();
    assert_eq!(written[0].offset, Offset(4));
    harness.assert_balanced();
    let listing = ls(as_disk, dir()).unwrap().unwrap();
    assert_eq!(listing.aside.len(), 1, "{listing:?}");
    let kept = as_disk.read(listing.aside[0].as_ref(), 1_000).unwrap();
    assert!(kept.len() > 100);
}

#[test]
fn damage_in_the_journal_is_named_and_the_rest_is_readable() {
    let (disk, harness) = written(8);
    drop(harness);
    let as_disk: &dyn Disk = &disk;
    let bytes = as_disk.read(&journal(&disk, 1), 10_000).unwrap();
    let third = b"value 3 ";
    let place = bytes.windows(third.len()).position(|w| w == third).unwrap();
    disk.flip_bit(&journal(&disk, 1), place as u64, 1);
    let checked = check(as_disk, dir()).unwrap();
    assert!(
        checked
            .problems
            .iter()
            .any(|p| matches!(p, LogProblem::UnknownLoss(_))),
        "{checked:?}"
    );
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.read(&at("a", 0), 0).unwrap().records.len(), 3);
    let damaged = harness.read(&at("a", 0), 3).unwrap_err();
    assert!(
        matches!(
            damaged,
            LogError::Damaged {
                from: Offset(3),
                to: Offset(4),
                ..
            }
        ),
        "{damaged}"
    );
    assert_eq!(harness.read(&at("a", 0), 4).unwrap().records.len(), 4);
    harness.append(vec![append("a", 0, 20)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert!(matches!(
        harness.read(&at("a", 0), 3),
        Err(LogError::Damaged { .. })
    ));
    assert_eq!(
        harness.read(&at("a", 0), 4).unwrap().records[0].offset,
        Offset(4)
    );
    assert_eq!(
        harness.read(&at("a", 0), 8).unwrap().records[0].record,
        append("a", 0, 20).record
    );
    let aside = ls(as_disk, dir()).unwrap().unwrap().aside;
    assert_eq!(aside.len(), 1, "{aside:?}");
}

#[test]
fn a_damaged_segment_is_named_by_offsets_read_around_and_repaired() {
    for in_header in [false, true] {
        let (disk, mut harness) = written(40);
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        let as_disk: &dyn Disk = &disk;
        let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
        let bytes = as_disk.read(&segment, 10_000).unwrap();
        let value = b"value 3 ";
        let place = bytes.windows(value.len()).position(|w| w == value).unwrap();
        let secret = secret(as_disk);
        let mut headers = (0..place).filter(|from| Head::read(&bytes[*from..], secret).is_some());
        let header = headers.next_back().unwrap();
        let at_byte = if in_header { header + 30 } else { place };
        disk.flip_bit(&segment, at_byte as u64, 1);
        empty_journal(&disk);
        let checked = check(as_disk, dir()).unwrap();
        let [
            LogProblem::Records {
                from, to, place, ..
            },
        ] = &checked.problems[..]
        else {
            panic!("{checked:?}");
        };
        assert_eq!((*from, *to), (Offset(3), Offset(4)));
        assert!(place.is_some());
        let mut harness = Harness::open(&disk, small()).unwrap();
        assert_eq!(harness.read(&at("a", 0), 0).unwrap().records.len(), 3);
        let damaged = harness.read(&at("a", 0), 3).unwrap_err();
        assert!(matches!(
            damaged,
            LogError::Damaged {
                from: Offset(3),
                to: Offset(4),
                ..
            }
        ));
        assert_eq!(
            harness.read(&at("a", 0), 4).unwrap().records[0].offset,
            Offset(4)
        );
        drop(harness);
        let missing = recount(as_disk, dir()).unwrap();
        assert_eq!(missing[0].missing[0].id, Some(super::harness::id(3)));
        mend(&disk);
    }
}

fn mend(disk: &SimDisk) {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = Harness::open(disk, small()).unwrap().clock;
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    let is_records = |r: &&Repaired| {
        matches!(
            r,
            Repaired::Records {
                offsets: (3, 4),
                ..
            }
        )
    };
    assert_eq!(
        repaired.iter().filter(is_records).count(),
        1,
        "{repaired:?}"
    );
    let again = repair(&as_disk, &clock, dir(), 78).unwrap();
    assert_eq!(again, [], "a second repair finds nothing to do");
    let mut harness = Harness::open(disk, small()).unwrap();
    harness.assert_balanced();
    assert_eq!(harness.audit()[0].books.account().lost.total(), 1);
    assert!(matches!(
        harness.read(&at("a", 0), 3),
        Err(LogError::Damaged { .. })
    ));
    assert_eq!(
        harness.read(&at("a", 0), 4).unwrap().records[0].offset,
        Offset(4)
    );
    let aside = ls(&*as_disk, dir()).unwrap().unwrap().aside;
    assert_eq!(aside.len(), 1, "{aside:?}");
}

/// In how many places the journal was damaged.
fn journal_damage(disk: &SimDisk) -> usize {
    let loss = unknown_loss(disk, dir()).unwrap();
    loss.map_or(0, |loss| loss.damage.len())
}

fn remove_journal(disk: &SimDisk, number: u64) {
    let as_disk: &dyn Disk = disk;
    let path = journal(disk, number);
    as_disk.remove(&path).unwrap();
}

#[test]
fn a_journal_file_that_is_missing_is_damage_and_what_follows_is_kept() {
    for with_checkpoint in [false, true] {
        let (disk, mut harness) = written(3);
        if with_checkpoint {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        for n in 3..60 {
            harness.append(vec![append("a", 0, n)]).unwrap();
        }
        assert!(harness.opened.context.state().journal.file > 5);
        drop(harness);
        let missing: &[u64] = if with_checkpoint { &[1, 2] } else { &[2, 3] };
        missing.iter().for_each(|n| remove_journal(&disk, *n));
        assert_eq!(journal_damage(&disk), 1);
        for next in 60..63 {
            let mut harness = Harness::open(&disk, small()).unwrap();
            let first = harness.read(&at("a", 0), 0).unwrap().next;
            let damaged = harness.read(&at("a", 0), first.0).unwrap_err();
            let LogError::Damaged { from, to, .. } = damaged else {
                panic!("{damaged}");
            };
            assert!(from >= Offset(3) && to < Offset(40), "{from} {to}");
            let written = harness.append(vec![append("a", 0, next)]).unwrap();
            assert_eq!(written[0].offset, Offset(next as i64));
            for n in to.0..=next as i64 {
                let found = harness.read(&at("a", 0), n).unwrap();
                assert_eq!(found.records[0].record, append("a", 0, n as u64).record);
            }
            harness.opened.maintenance.checkpoint().unwrap();
        }
    }
}

/// An earlier version made the topic: its creation was in the journal and nowhere else.
#[test]
fn records_of_a_topic_that_is_lost_are_kept_aside_from_one_of_the_same_name() {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create_in_journal("a", TopicConfig::new(1)).unwrap();
    for n in 0..5 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness.opened.maintenance.fill(true).unwrap();
    drop(harness);
    disk.end_process();
    remove_journal(&disk, 1);
    let found = journal_damage(&disk);
    assert_eq!(found, 2, "the journal is gone, and so is a topic");
    for n in 0..3 {
        let mut harness = Harness::open(&disk, small()).unwrap();
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.append(vec![append("a", 0, 10 + n)]).unwrap();
        harness.opened.maintenance.fill(true).unwrap();
        let found = harness.all(&at("a", 0)).unwrap();
        assert_eq!(found.len() as u64, n + 1);
        drop(harness);
        disk.end_process();
        assert_eq!(journal_damage(&disk), 2);
    }
    let as_disk: &dyn Disk = &disk;
    let aside = ls(as_disk, dir()).unwrap().unwrap().aside;
    let kept = aside
        .iter()
        .map(|name| as_disk.read(name.as_ref(), 10_000).unwrap());
    let value = b"value 4 ";
    let is_it = |bytes: &Vec<u8>| bytes.windows(value.len()).any(|w| w == value);
    assert_eq!(kept.filter(is_it).count(), 1, "{aside:?}");
}

#[test]
fn where_the_last_journal_file_is_missing_another_one_is_begun() {
    let (disk, mut harness) = written(5);
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    remove_journal(&disk, 1);
    let as_disk: &dyn Disk = &disk;
    let strange = dir().join(crate::embedded::files::journal(3, 20));
    let mut file = as_disk
        .open(&strange, tidegate_core::env::OpenMode::CreateNew)
        .unwrap();
    file.append(b"what nobody can read").unwrap();
    drop(file);
    assert_eq!(journal_damage(&disk), 1);
    for next in 5..40 {
        let mut harness = Harness::open(&disk, small()).unwrap();
        let written = harness.append(vec![append("a", 0, next)]).unwrap();
        assert_eq!(written[0].offset, Offset(next as i64));
        assert_eq!(harness.all(&at("a", 0)).unwrap().len() as u64, next + 1);
        harness.keep().unwrap();
        harness.assert_balanced();
        drop(harness);
        assert_eq!(journal_damage(&disk), 1, "it is the same damage");
    }
    let aside = ls(as_disk, dir()).unwrap().unwrap().aside;
    let kept = aside.iter().map(|name| as_disk.read(name.as_ref(), 100));
    let kept: Vec<_> = kept.map(Result::unwrap).collect();
    assert_eq!(kept, [b"what nobody can read"]);
}

/// The last journal file, and how long its name says that it was made.
fn last_journal(disk: &SimDisk) -> (std::path::PathBuf, u64) {
    let (_, name) = files::journals(disk, dir()).unwrap().pop_last().unwrap();
    let len = files::journal_len(&name).unwrap();
    (dir().join(name), len)
}

#[test]
fn a_journal_file_holds_nothing_behind_the_length_in_its_name_so_that_every_cut_is_noticed() {
    for is_large in [false, true] {
        let (disk, harness) = written(1);
        drop(harness);
        disk.end_process();
        // The journal is made larger, or a commit is larger than a file of it.
        let journal_size = if is_large { 2_048 } else { 1 << 16 };
        let config = crate::EmbeddedConfig {
            journal_size,
            ..small()
        };
        let mut harness = Harness::open(&disk, config.clone()).unwrap();
        let more: Vec<_> = (1..60).map(|n| append("a", 0, n)).collect();
        match is_large {
            true => drop(harness.append(more).unwrap()),
            false => more
                .into_iter()
                .for_each(|append| drop(harness.append(vec![append]).unwrap())),
        }
        drop(harness);
        disk.end_process();
        let as_disk: &dyn Disk = &disk;
        for (_, name) in files::journals(as_disk, dir()).unwrap() {
            let len = as_disk.read(&dir().join(&name), 1 << 20).unwrap().len();
            assert_eq!(files::journal_len(&name), Some(len as u64));
        }
        let (last, len) = last_journal(&disk);
        let mut file = as_disk.open(&last, OpenMode::Write).unwrap();
        file.truncate(len / 2).unwrap();
        file.sync().unwrap();
        drop(file);
        let checked = check(as_disk, dir()).unwrap();
        assert!(
            checked.problems.iter().any(LogProblem::is_loss),
            "{checked:?}"
        );
    }
}
