//! Records hold what their senders like, also what looks like a part of a log. Nobody ever takes it for
//! one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::Offset;
use tidegate_core::env::Disk;
use tidegate_sim::{SimDisk, Survivors};

use super::harness::{Harness, append, at, dir, id, secret, small, topic};
use crate::EmbeddedConfig;
use crate::embedded::change::LogChange;
use crate::embedded::chunk::{Head, rebuild};
use crate::embedded::group::{self, ALIGN};
use crate::embedded::secret::LogSecret;
use crate::embedded::{TopicAudit, recount, unknown_loss};
use crate::error::LogError;
use crate::port::Append;
use crate::record::{Record, StoredRecord};
use crate::topic::TopicConfig;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 14,
        segment_size: 1 << 14,
        cache_size: 1 << 13,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

fn carrier(n: u64, value: Vec<u8>) -> Append {
    Append::new(topic("a"), Record::new(value).event_id(id(n))).partition(0)
}

/// A chunk that says to be far ahead, as another log would write it.
fn chunk(secret: LogSecret, base: i64) -> Vec<u8> {
    let record = Record::new("forged").event_id(id(77));
    let offset = Offset(base);
    let stored = StoredRecord { offset, record };
    let chunk = rebuild(secret, "other", &at("a", 0), &Head::default(), &[stored]).unwrap();
    chunk.bytes.to_vec()
}

/// A group that says to be far ahead and takes out all records before `start`; at each place where one
/// could begin.
fn groups(start: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for secret in strangers() {
        let mut group = vec![0; group::HEADER];
        let (at, removed) = ((0, 0), Vec::new());
        let change = LogChange::Start { at, start, removed };
        change.write(&mut group);
        group::frame(&mut group, secret, 1 << 60, 7, 9, 1 << 60);
        for shift in 0..ALIGN {
            let len = bytes.len() + (ALIGN + shift - bytes.len() % ALIGN) % ALIGN;
            bytes.resize(len, b'x');
            bytes.extend_from_slice(&group);
        }
    }
    bytes
}

/// The secrets that somebody may try who does not know that of the log.
fn strangers() -> [LogSecret; 2] {
    [LogSecret::default(), LogSecret::draw(0x5eed)]
}

/// How many events an audit misses, and how many more are lost at least.
fn told(disk: &SimDisk) -> (u64, u64) {
    let counted = recount(disk, dir()).unwrap();
    let missing = counted.iter().map(TopicAudit::unaccounted).sum();
    let loss = unknown_loss(disk, dir()).unwrap();
    (missing, loss.map_or(0, |loss| loss.events))
}

/// The offsets of the records that can be read, around what cannot.
fn offsets(harness: &mut Harness) -> Vec<i64> {
    let (mut from, mut found) = (0, Vec::new());
    loop {
        match harness.read(&at("a", 0), from) {
            Ok(batch) if batch.records.is_empty() => return found,
            Ok(batch) => {
                found.extend(batch.records.iter().map(|stored| stored.offset.0));
                from = batch.next.0;
            }
            Err(LogError::Damaged { to, .. }) => from = to.0,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn t34_a_chunk_within_a_value_is_not_believed_where_the_power_went_before_a_sync() {
    for seed in 0..200 {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.append(vec![append("a", 0, 0)]).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        let mut value = vec![b'x'; 3_000];
        let forged = strangers().map(|secret| chunk(secret, 1_000_000));
        value.extend(forged.concat());
        value.extend([b'x'; 600]);
        harness.append(vec![carrier(1, value)]).unwrap();
        harness.opened.maintenance.fill(true).unwrap();
        drop(harness);
        disk.crash(&Survivors::Random(seed));
        assert_eq!(told(&disk), (0, 0), "seed {seed}");
        assert_eq!(open(&disk).end(&at("a", 0)), 2, "seed {seed}");
    }
}

#[test]
fn t34_a_chunk_within_a_value_is_not_believed_where_the_one_around_it_is_damaged() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    let own = harness.opened.context.state().secret;
    assert_ne!(own, LogSecret::default());
    for n in 0..3 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let mut value = vec![b'#'; 50];
    for secret in strangers() {
        value.extend([4, 1_000_000].map(|base| chunk(secret, base)).concat());
    }
    // Also what somebody copied from the log itself: that it has already, or it is not there yet.
    value.extend([2, 1_000_000].map(|base| chunk(own, base)).concat());
    harness.append(vec![carrier(3, value)]).unwrap();
    harness.append(vec![append("a", 0, 4)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.end_process();
    assert_eq!(secret(&disk), own);
    let segment = dir().join("topic-a/0-00000000000000000000-0.seg");
    let as_disk: &dyn Disk = &disk;
    let bytes = as_disk.read(&segment, 1 << 20).unwrap();
    let place = bytes.windows(50).position(|w| w == [b'#'; 50]).unwrap();
    let mut headers = (0..place).filter(|from| Head::read(&bytes[*from..], own).is_some());
    disk.flip_bit(&segment, headers.next_back().unwrap() as u64 + 10, 1);
    assert_eq!(offsets(&mut open(&disk)), [0, 1, 2, 4]);
    assert_eq!(told(&disk), (1, 0));
}

#[test]
fn t34_groups_within_values_are_not_believed_where_a_journal_file_is_used_again() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    let mut written = 0;
    while harness.opened.context.state().journal.file < 4 {
        harness
            .append(vec![carrier(written, groups(30).repeat(3))])
            .unwrap();
        written += 1;
        harness.keep().unwrap();
    }
    for _ in 0..20 {
        for _ in 0..5 {
            harness.append(vec![append("a", 0, written)]).unwrap();
            written += 1;
            harness.keep().unwrap();
        }
        // An end as it should be.
        harness.opened.maintenance.checkpoint().unwrap();
        let sequence = harness.opened.context.state().sequence;
        drop(harness);
        disk.end_process();
        assert_eq!(told(&disk), (0, 0), "after {written}");
        harness = open(&disk);
        assert_eq!(harness.opened.context.state().sequence, sequence);
        assert_eq!(harness.start(&at("a", 0)), 0);
    }
    let count = i64::try_from(written).unwrap();
    assert_eq!(offsets(&mut harness), (0..count).collect::<Vec<_>>());
}

#[test]
fn t34_groups_within_a_value_are_not_believed_where_their_write_was_torn() {
    for operation in 1..3 {
        for seed in 0..100 {
            let disk = SimDisk::new(1);
            let mut harness = open(&disk);
            harness.create("a", TopicConfig::new(1)).unwrap();
            for n in 0..20 {
                harness.append(vec![append("a", 0, n)]).unwrap();
            }
            disk.kill_at(disk.operations() + operation);
            let value = groups(20).repeat(3);
            let torn = catch_unwind(AssertUnwindSafe(|| {
                harness.append(vec![carrier(20, value)])
            }));
            assert!(torn.is_err(), "the process was killed");
            drop(harness);
            disk.crash(&Survivors::Random(seed));
            assert_eq!(told(&disk), (0, 0), "{operation}, seed {seed}");
            let found = offsets(&mut open(&disk));
            assert_eq!(found[..20], (0..20).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
