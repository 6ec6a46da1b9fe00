//! The group after quiet, and chunks that name their partition and topic: damage that was noticed by nobody before.

use std::collections::BTreeMap;

use tidegate_core::Topic;
use tidegate_core::env::{Disk, OpenMode};
use tidegate_sim::{SimDisk, Survivors};

use super::harness::{Harness, append, at, damage, dir, empty_journal, journal, small};
use crate::EmbeddedConfig;
use crate::embedded::{TopicAudit, audit_directory, check};
use crate::port::Append;
use crate::record::Record;
use crate::topic::TopicConfig;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

/// A log with three records, killed; after the group that proves the last one, or before it.
fn killed(is_proven: bool) -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, config()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..3 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let writer = &mut harness.opened.writer;
    assert!(writer.is_unproven());
    if is_proven {
        writer.prove_last_commit();
        let before = disk.operations();
        assert!(!writer.is_unproven());
        writer.prove_last_commit();
        assert_eq!(disk.operations(), before, "an idle log does nothing");
    }
    drop(harness);
    disk.crash(&Survivors::Everything);
    disk
}

#[test]
fn t36_damage_to_the_last_commit_is_noticed_once_the_log_was_quiet() {
    let disk = killed(true);
    assert_eq!(
        audit_directory(&disk, dir(), &BTreeMap::new())
            .unwrap()
            .unwrap()
            .torn,
        None
    );
    damage(&disk, &journal(&disk, 1), b"value 2 ");
    let audited = audit_directory(&disk, dir(), &BTreeMap::new())
        .unwrap()
        .unwrap();
    let missing: u64 = audited.topics.iter().map(TopicAudit::unaccounted).sum();
    assert!(audited.loss.is_some(), "{audited:?}");
    assert_eq!(missing.max(audited.loss.unwrap().events), 1);
    // Before that it cannot be told from a write that was cut, and is not said to be one.
    let disk = killed(false);
    damage(&disk, &journal(&disk, 1), b"value 2 ");
    let audited = audit_directory(&disk, dir(), &BTreeMap::new())
        .unwrap()
        .unwrap();
    assert_eq!((audited.loss, audited.findings), (None, Vec::new()));
    let torn = audited.torn.unwrap();
    assert!(
        torn.message.contains("may have been acknowledged"),
        "{torn:?}"
    );
    let problems = check(&disk, dir()).unwrap().problems;
    assert!(
        problems[0]
            .to_string()
            .contains("may have been acknowledged")
    );
}

#[test]
fn t36_a_commit_that_could_not_be_proven_for_lack_of_room_is_proven_later() {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, config()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    disk.fail(tidegate_sim::Fault {
        operation: tidegate_sim::Operation::Write,
        path: String::new(),
        nth: 1,
        kind: tidegate_sim::FaultKind::Full,
    });
    let writer = &mut harness.opened.writer;
    writer.prove_last_commit();
    assert!(writer.is_unproven(), "nothing was written");
    writer.prove_last_commit();
    assert!(!writer.is_unproven());
    drop(harness);
    disk.crash(&Survivors::Everything);
    assert_eq!(
        audit_directory(&disk, dir(), &Default::default())
            .unwrap()
            .unwrap()
            .torn,
        None
    );
}

#[test]
fn a_start_goes_on_to_prove_what_a_killed_process_left() {
    for is_proven in [true, false] {
        let disk = killed(is_proven);
        let harness = Harness::open(&disk, config()).unwrap();
        assert_eq!(harness.opened.writer.is_unproven(), !is_proven);
    }
}

/// A log whose topics `a` and `b` have two partitions of three records each, all of them in segments. The
/// records carry no ids, so theirs are computed.
fn in_segments() -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, config()).unwrap();
    for topic in ["a", "b"] {
        harness.create(topic, TopicConfig::new(2)).unwrap();
        for partition in 0..2 {
            for n in 0..3 {
                let value = format!("{topic}-{partition}-{n}");
                let record = Record::new(value).timestamp_ms(1_000);
                let append = Append::new(Topic::new(topic).unwrap(), record).partition(partition);
                harness.append(vec![append]).unwrap();
            }
        }
    }
    harness.opened.maintenance.fill(true).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.crash(&Survivors::Everything);
    empty_journal(&disk);
    assert_eq!(check(&disk, dir()).unwrap().problems.len(), 0);
    disk
}

/// The bytes of the one segment of a partition.
fn segment(disk: &SimDisk, (topic, partition): (&str, u32)) -> Vec<u8> {
    let disk: &dyn Disk = disk;
    let path = dir().join(format!("topic-{topic}/{partition}-{:020}-0.seg", 0));
    disk.read(&path, 1 << 20).unwrap()
}

fn overwrite(disk: &SimDisk, (topic, partition): (&str, u32), bytes: &[u8]) {
    let disk: &dyn Disk = disk;
    let path = dir().join(format!("topic-{topic}/{partition}-{:020}-0.seg", 0));
    let mut file = disk.open(&path, OpenMode::Write).unwrap();
    file.write_at(0, bytes).unwrap();
}

/// How many events an audit misses, by topic.
fn missing(disk: &SimDisk) -> BTreeMap<String, u64> {
    let audited = audit_directory(disk, dir(), &BTreeMap::new());
    let topics = audited.unwrap().unwrap().topics.into_iter();
    let counts = topics.map(|found| (found.topic.to_string(), found.unaccounted()));
    counts.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn two_segments_that_were_exchanged_are_noticed() {
    // Of one topic, and of two; the files are as long as each other.
    for (one, two) in [(("a", 0), ("a", 1)), (("a", 1), ("b", 1))] {
        let disk = in_segments();
        let (first, second) = (segment(&disk, one), segment(&disk, two));
        assert_eq!(first.len(), second.len());
        overwrite(&disk, one, &second);
        overwrite(&disk, two, &first);
        let mut expect = BTreeMap::new();
        *expect.entry(one.0.to_owned()).or_default() += 3;
        *expect.entry(two.0.to_owned()).or_default() += 3;
        assert_eq!(missing(&disk), expect);
        let mut harness = Harness::open(&disk, config()).unwrap();
        for (topic, partition) in [one, two] {
            let at = at(topic, i32::try_from(partition).unwrap());
            assert!(harness.all(&at).is_err(), "not the records of another one");
        }
    }
}

#[test]
fn a_segment_in_the_place_of_one_of_another_topic_is_noticed() {
    let disk = in_segments();
    overwrite(&disk, ("a", 1), &segment(&disk, ("b", 1)));
    assert_eq!(missing(&disk), BTreeMap::from([("a".to_owned(), 3)]));
    assert!(!check(&disk, dir()).unwrap().problems.is_empty());
}
