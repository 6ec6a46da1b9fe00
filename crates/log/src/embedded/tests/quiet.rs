//! The group after quiet, and chunks that name their partition: damage that was noticed by nobody before.

use std::collections::BTreeMap;

use tidegate_core::env::Disk;
use tidegate_sim::{SimDisk, Survivors};

use super::harness::{Harness, append, at, damage, dir, empty_journal, journal, small};
use crate::EmbeddedConfig;
use crate::embedded::{TopicAudit, audit_directory, check};
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

#[test]
fn two_segments_that_were_exchanged_are_noticed() {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, config()).unwrap();
    harness.create("a", TopicConfig::new(2)).unwrap();
    for partition in 0..2 {
        for n in 0..3 {
            let n = n + 3 * u64::from(i32::unsigned_abs(partition));
            harness.append(vec![append("a", partition, n)]).unwrap();
        }
    }
    harness.opened.maintenance.fill(true).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.crash(&Survivors::Everything);
    empty_journal(&disk);
    let as_disk: &dyn Disk = &disk;
    let path = |partition: u32| dir().join(format!("topic-a/{partition}-{:020}-0.seg", 0));
    let read = |partition| as_disk.read(&path(partition), 1 << 20).unwrap();
    let (zero, one) = (read(0), read(1));
    assert_eq!(check(&disk, dir()).unwrap().problems.len(), 0);
    for (partition, bytes) in [(0, one), (1, zero)] {
        let mut file = as_disk
            .open(&path(partition), tidegate_core::env::OpenMode::Write)
            .unwrap();
        file.write_at(0, &bytes).unwrap();
    }
    let audited = audit_directory(&disk, dir(), &BTreeMap::new())
        .unwrap()
        .unwrap();
    assert_eq!(audited.topics[0].unaccounted(), 6);
    let mut harness = Harness::open(&disk, config()).unwrap();
    assert!(
        harness.all(&at("a", 0)).is_err(),
        "not the records of another partition"
    );
}
