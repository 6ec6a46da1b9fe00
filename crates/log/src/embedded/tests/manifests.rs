//! Of the manifest and its copy either can be used alone, whenever the process ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidegate_core::env::{Clock, Disk};
use tidegate_sim::{SimDisk, Survivors};

use super::harness::{Harness, append, at, dir, small};
use crate::EmbeddedConfig;
use crate::embedded::{LogProblem, check, repair};
use crate::topic::TopicConfig;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

/// A log with so many records, half of them behind a checkpoint.
fn written(count: u64) -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..count {
        if n == count / 2 {
            harness.opened.maintenance.checkpoint().unwrap();
        }
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    (disk, harness)
}

fn manifests(disk: &SimDisk) -> [Option<Vec<u8>>; 2] {
    let as_disk: &dyn Disk = disk;
    ["manifest", "manifest.copy"].map(|name| as_disk.read(&dir().join(name), 1 << 20).ok())
}

fn losses(disk: &SimDisk) -> Vec<LogProblem> {
    let problems = check(disk, dir()).unwrap().problems;
    problems.into_iter().filter(LogProblem::is_loss).collect()
}

/// Ends `work` before each of its operations in turn. Gives the disk to `look` where that left a copy
/// that is newer than the manifest.
fn end_between(
    begin: impl Fn() -> (SimDisk, Option<Harness>),
    work: impl Fn(&SimDisk, Option<Harness>),
    look: impl Fn(&SimDisk),
) {
    let mut looked = 0;
    for operation in 1.. {
        let (disk, harness) = begin();
        disk.kill_at(disk.operations() + operation);
        let ended = catch_unwind(AssertUnwindSafe(|| work(&disk, harness)));
        if ended.is_ok() {
            break;
        }
        disk.crash(&Survivors::Everything);
        let [manifest, copy] = manifests(&disk);
        if manifest != copy {
            looked += 1;
            look(&disk);
        }
    }
    assert!(looked > 0, "no end lay between the two files");
}

/// Starts a process that is killed, then damages the manifest: the copy must do.
fn use_the_copy_alone(disk: &SimDisk, count: usize, losses_before: usize) {
    let mut harness = open(disk);
    assert_eq!(harness.end(&at("a", 0)), i64::try_from(count).unwrap());
    // It writes to segments what it has found.
    harness.opened.maintenance.fill(true).unwrap();
    drop(harness);
    disk.end_process();
    disk.flip_bit(&dir().join("manifest"), 20, 1);
    assert_eq!(losses(disk).len(), losses_before);
    let mut harness = open(disk);
    if losses_before == 0 {
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), count);
        harness.assert_balanced();
    }
}

#[test]
fn a_checkpoint_that_ended_between_its_two_files_leaves_no_copy_that_misleads() {
    end_between(
        || {
            let (disk, harness) = written(80);
            (disk, Some(harness))
        },
        |_, harness| harness.unwrap().opened.maintenance.checkpoint().unwrap(),
        |disk| use_the_copy_alone(disk, 80, 0),
    );
}

#[test]
fn a_repair_that_ended_between_its_two_files_leaves_no_copy_that_misleads() {
    end_between(
        || {
            let (disk, mut harness) = written(40);
            harness.opened.maintenance.checkpoint().unwrap();
            drop(harness);
            disk.end_process();
            let segment = dir().join("topic-a/0-00000000000000000000-0.seg");
            let as_disk: &dyn Disk = &disk;
            let bytes = as_disk.read(&segment, 1 << 20).unwrap();
            let place = bytes.windows(8).position(|w| w == b"value 3 ").unwrap();
            disk.flip_bit(&segment, place as u64, 1);
            (disk, None)
        },
        |disk, _| {
            let clock: Arc<dyn Clock> = Harness::open(&SimDisk::new(2), config()).unwrap().clock;
            let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
            repair(&as_disk, &clock, config(), 9).unwrap();
        },
        |disk| use_the_copy_alone(disk, 40, 1),
    );
}

#[test]
fn without_room_a_copy_that_is_newer_is_given_up() {
    end_between(
        || {
            let (disk, harness) = written(80);
            (disk, Some(harness))
        },
        |_, harness| harness.unwrap().opened.maintenance.checkpoint().unwrap(),
        |disk| {
            disk.set_capacity(1);
            let mut harness = open(disk);
            assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 80);
            drop(harness);
            disk.end_process();
            assert_eq!(manifests(disk)[1], None);
            disk.set_capacity(1 << 24);
            let mut harness = open(disk);
            assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 80);
            let [manifest, copy] = manifests(disk);
            assert_eq!(manifest, copy);
        },
    );
}
