//! Starts on a disk without room: what they found is not lost with them, and nothing is written behind it
//! before it is written down.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Offset;
use tidegate_core::env::{Disk, Env, OpenMode};
use tidegate_sim::{Sim, SimDisk, Survivors};

use super::harness::{Harness, append, at, damage, dir, journal, small, topic};
use crate::embedded::context::RefusalReason;
use crate::embedded::manifest;
use crate::embedded::{LogProblem, TopicAudit, UnknownLoss, check, recount, repair, unknown_loss};
use crate::error::LogError;
use crate::local::{RecordStorage, Write};
use crate::topic::TopicConfig;
use crate::{EmbeddedConfig, EmbeddedStorage};

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

/// Leaves so many bytes of room.
fn leave_room(disk: &SimDisk, room: u64) {
    const ALL: u64 = 1 << 40;
    disk.set_capacity(ALL);
    let left = (disk as &dyn Disk).space_left(dir()).unwrap();
    disk.set_capacity(ALL - left + room);
}

fn unaccounted(disk: &SimDisk) -> u64 {
    let counted = recount(disk, dir()).unwrap();
    counted.iter().map(TopicAudit::unaccounted).sum()
}

/// How many events are missing, and what else is lost.
fn told(disk: &SimDisk) -> (u64, Option<UnknownLoss>) {
    (unaccounted(disk), unknown_loss(disk, dir()).unwrap())
}

/// How many records of all partitions of `a` can be read.
fn readable(harness: &mut Harness) -> usize {
    let partitions = {
        let state = harness.opened.context.state();
        let found = state.topic(&topic("a"));
        found.map_or(0, |(_, topic)| topic.partitions.len())
    };
    let mut count = 0;
    for partition in 0..i32::try_from(partitions).unwrap() {
        let place = at("a", partition);
        let mut from = harness.start(&place);
        loop {
            match harness.read(&place, from) {
                Ok(batch) if batch.records.is_empty() => break,
                Ok(batch) => {
                    count += batch.records.len();
                    from = batch.next.0;
                }
                Err(LogError::Damaged { to, .. }) if to.0 > from => from = to.0,
                Err(error) => panic!("{error}"),
            }
        }
    }
    count
}

/// The last write is gone from the journal, and its record is in a segment.
fn without_its_end() -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..30 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    let from = harness.opened.context.state().journal.at;
    harness.append(vec![append("a", 0, 30)]).unwrap();
    let to = harness.opened.context.state().journal.at;
    harness.opened.maintenance.fill(true).unwrap();
    drop(harness);
    disk.end_process();
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 1), OpenMode::Write).unwrap();
    file.write_at(from, &vec![0; (to - from) as usize]).unwrap();
    file.sync().unwrap();
    disk
}

/// Records are lost of which the partition is unknown.
fn without_its_middle() -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(80)).unwrap();
    for n in 0..70 {
        let partition = i32::try_from(n).unwrap();
        harness.append(vec![append("a", partition, n)]).unwrap();
    }
    drop(harness);
    disk.end_process();
    for n in 1..69 {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    disk
}

/// A file was cut behind the one in which the journal ends.
fn with_a_cut_file(len: u64) -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    let mut n = 0;
    while harness.opened.context.state().journal.file < 3 {
        harness.append(vec![append("a", 0, n)]).unwrap();
        n += 1;
    }
    drop(harness);
    disk.end_process();
    let as_disk: &dyn Disk = &disk;
    let mut file = as_disk.open(&journal(&disk, 3), OpenMode::Write).unwrap();
    file.truncate(len).unwrap();
    file.sync().unwrap();
    disk
}

/// The creation of a topic is lost, and records of it are in a segment: an earlier version made it.
fn without_its_topic() -> SimDisk {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create_in_journal("a", TopicConfig::new(1)).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    harness.opened.maintenance.fill(true).unwrap();
    drop(harness);
    disk.end_process();
    (&disk as &dyn Disk).remove(&journal(&disk, 1)).unwrap();
    disk
}

/// The states that a start can find, by name.
fn scenes() -> Vec<(&'static str, SimDisk)> {
    vec![
        ("without its end", without_its_end()),
        ("without its middle", without_its_middle()),
        ("with an empty file", with_a_cut_file(0)),
        ("with a short file", with_a_cut_file(100)),
        ("without its topic", without_its_topic()),
    ]
}

fn is_full(error: &LogError) -> bool {
    crate::embedded::files::is_full(error)
}

/// How much room the starts below have: none, and then more until everything fits.
fn rooms() -> impl Iterator<Item = u64> {
    let little = (0..2_000).step_by(61);
    little.chain((2_000..150_000).step_by(2_477))
}

#[test]
fn t35_whatever_room_a_damaged_start_has_the_next_one_is_told_the_same_and_misses_nothing() {
    for (scene, disk) in scenes() {
        let before = told(&disk);
        assert!(before.1.is_some(), "{scene}");
        let (mut refused, mut done) = (0, 0);
        for room in rooms() {
            let disk = disk.after_crash(&Survivors::Everything);
            leave_room(&disk, room);
            let mut harness = open(&disk);
            let found = readable(&mut harness);
            // With the topic its creation may be lost.
            let made = match scene {
                "without its topic" => harness.create("a", TopicConfig::new(1)),
                _ => Ok(()),
            };
            let written = made.and_then(|()| harness.append(vec![append("a", 0, 100)]));
            match &written {
                Ok(_) => done += 1,
                Err(error) => {
                    assert!(is_full(error), "{error}");
                    refused += 1;
                }
            }
            drop(harness);
            disk.end_process();
            leave_room(&disk, 1 << 20);
            assert_eq!(told(&disk), before, "{scene}, {room} bytes of room");
            let mut harness = open(&disk);
            let now = readable(&mut harness);
            let expected = found + usize::from(written.is_ok());
            assert_eq!(now, expected, "{scene}, {room} bytes of room");
            drop(harness);
            disk.end_process();
            assert_eq!(told(&disk), before, "{scene}, {room} bytes of room");
        }
        assert!(refused > 0 && done > 0, "{scene}: {refused} {done}");
    }
}

#[test]
fn t35_a_start_writes_its_findings_down_when_there_is_room_and_only_then_takes_more() {
    for (scene, disk) in scenes() {
        let before = told(&disk);
        leave_room(&disk, 0);
        let mut harness = open(&disk);
        let found = readable(&mut harness);
        let refused = [
            harness.append(vec![append("a", 0, 100)]).map(drop),
            harness.create("b", TopicConfig::new(1)),
            harness.register("g", vec![]),
            harness.opened.maintenance.checkpoint(),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            match refused {
                Err(error) if is_full(&error) => {}
                // The topic is not there to be written to.
                Err(LogError::UnknownTopic { .. }) if number == 0 => {}
                other => panic!("{scene}, {number}: {other:?}"),
            }
        }
        assert!(harness.opened.maintenance.is_checkpoint_due(), "{scene}");
        assert_eq!(told(&disk), before, "{scene}");
        leave_room(&disk, 1 << 20);
        harness.opened.maintenance.checkpoint().unwrap();
        assert_eq!(told(&disk), before, "{scene}");
        harness.create("b", TopicConfig::new(1)).unwrap();
        harness.append(vec![append("b", 0, 100)]).unwrap();
        harness.keep().unwrap();
        drop(harness);
        disk.crash(&Survivors::Nothing);
        assert_eq!(told(&disk), before, "{scene}");
        let mut harness = open(&disk);
        assert_eq!(readable(&mut harness), found, "{scene}");
        assert_eq!(harness.all(&at("b", 0)).unwrap().len(), 1, "{scene}");
    }
}

#[test]
fn t35_a_start_that_has_to_wait_for_room_can_lose_its_power_at_any_time() {
    for (scene, disk) in scenes() {
        let before = told(&disk);
        let mut ended_with = BTreeSet::new();
        for (operation, room) in
            (1..200).flat_map(|operation| [0, 700, 3_000, 20_000].map(|room| (operation, room)))
        {
            if ended_with.contains(&room) {
                continue;
            }
            let begun = disk.after_crash(&Survivors::Everything);
            leave_room(&begun, room);
            begun.kill_at(begun.operations() + operation);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let mut harness = open(&begun);
                leave_room(&begun, 1 << 20);
                harness.opened.maintenance.checkpoint().unwrap();
                harness.create("b", TopicConfig::new(1)).unwrap();
                harness.append(vec![append("b", 0, 100)]).unwrap();
            }));
            let random = Survivors::Random(operation);
            for survivors in [Survivors::Nothing, random, Survivors::Everything] {
                let after = begun.after_crash(&survivors);
                leave_room(&after, 1 << 20);
                let now = told(&after);
                assert_eq!(now, before, "{scene} {room} {operation} {survivors:?}");
                drop(open(&after));
                after.end_process();
                let now = told(&after);
                assert_eq!(now, before, "{scene} {room} {operation} {survivors:?}");
            }
            if ended.is_ok() {
                assert!(operation > 20, "a start does more than that");
                ended_with.insert(room);
            }
        }
    }
}

/// A group that was written behind records of which no checkpoint knew yet: earlier versions did so.
#[test]
fn records_that_only_a_segment_has_are_found_also_behind_a_later_group() {
    let disk = without_its_end();
    leave_room(&disk, 0);
    let mut harness = open(&disk);
    harness
        .opened
        .context
        .status()
        .set(RefusalReason::RecoveryPending, None);
    let written = harness.append(vec![append("a", 0, 31)]).unwrap();
    assert_eq!(written[0].offset, Offset(31));
    drop(harness);
    disk.end_process();
    leave_room(&disk, 1 << 20);
    let before = told(&disk);
    assert_eq!(
        (before.0, before.1.as_ref().map(|l| l.events)),
        (0, Some(1))
    );
    for _ in 0..2 {
        let mut harness = open(&disk);
        assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 32);
        harness.assert_balanced();
        drop(harness);
        disk.end_process();
        assert_eq!(told(&disk), before);
    }
}

#[test]
fn t35_a_damaged_journal_on_a_full_disk_does_not_keep_the_log_closed() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..10 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    drop(harness);
    disk.end_process();
    let file = journal(&disk, 1);
    damage(&disk, &file, b"value 3 ");
    let damaged = (&disk as &dyn Disk).read(&file, 1 << 20).unwrap();
    let losses = |disk: &SimDisk| {
        let problems = check(disk, dir()).unwrap().problems;
        problems.into_iter().filter(LogProblem::is_loss).count()
    };
    let before = losses(&disk);
    leave_room(&disk, 0);
    for _ in 0..3 {
        let mut harness = open(&disk);
        assert_eq!(readable(&mut harness), 9);
        let refused = harness.append(vec![append("a", 0, 10)]).unwrap_err();
        assert!(is_full(&refused), "{refused}");
        drop(harness);
        disk.end_process();
        assert_eq!(losses(&disk), before);
        let now = (&disk as &dyn Disk).read(&file, 1 << 20).unwrap();
        assert!(now == damaged, "the file is as it was");
    }
    // A repair needs room too, and says so.
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn tidegate_core::env::Clock> = open(&disk).clock;
    disk.end_process();
    let refused = repair(&as_disk, &clock, config(), 1).unwrap_err();
    assert!(is_full(&refused), "{refused}");
    disk.end_process();
    leave_room(&disk, 1 << 20);
    repair(&as_disk, &clock, config(), 2).unwrap();
    disk.end_process();
    assert_eq!(losses(&disk), 0);
    let mut harness = open(&disk);
    assert_eq!(readable(&mut harness), 9);
}

/// Opened without room for a group of its own, the manifest speaks of the beginning of a file: were the file
/// missing later, nobody would miss it.
#[test]
fn a_file_that_was_begun_without_room_is_spoken_of_once_something_is_in_it() {
    let disk = with_a_cut_file(0);
    leave_room(&disk, 0);
    let mut harness = open(&disk);
    leave_room(&disk, 1 << 20);
    harness.opened.maintenance.checkpoint().unwrap();
    assert!(!harness.opened.maintenance.is_checkpoint_due());
    harness.append(vec![append("a", 0, 100)]).unwrap();
    assert!(harness.opened.maintenance.is_checkpoint_due());
    harness.keep().unwrap();
    assert!(!harness.opened.maintenance.is_checkpoint_due());
    drop(harness);
    disk.end_process();
    let places = |disk: &SimDisk| told(disk).1.map_or(0, |loss| loss.damage.len());
    let before = places(&disk);
    let number = crate::embedded::files::journals(&disk, dir()).unwrap();
    let (last, _) = number.last_key_value().unwrap();
    (&disk as &dyn Disk).remove(&journal(&disk, *last)).unwrap();
    assert_eq!(places(&disk), before + 1);
}

/// Topics of one start share a checkpoint, and no damage of the journal takes their creation.
#[test]
fn new_topics_are_in_the_manifest_before_their_creation_is_answered() {
    let make = |is_together: bool| {
        let disk = SimDisk::new(1);
        let mut sim = Sim::new(1);
        let node = sim.node("log");
        let env = Env {
            disk: Arc::new(disk.clone()),
            ..node.env()
        };
        let below = disk.clone();
        let operations = sim.block_on(&node, async move {
            let storage = EmbeddedStorage::open(&env, config()).unwrap();
            let before = below.operations();
            let topics = ["a", "b", "c"].map(|name| (topic(name), TopicConfig::new(2)));
            match is_together {
                true => storage.create_topics(&topics).await.unwrap(),
                false => {
                    for (topic, config) in topics {
                        storage.create_topic(&topic, config).await.unwrap();
                    }
                }
            }
            let known = manifest::read(&below, dir()).unwrap().unwrap();
            assert_eq!((known.state.topics.len(), known.is_copy_newer), (3, false));
            let made = below.operations();
            // Those that are there already cost nothing.
            storage
                .create_topic(&topic("a"), TopicConfig::new(2))
                .await
                .unwrap();
            assert_eq!(below.operations(), made);
            storage.close().await;
            made - before
        });
        (&disk as &dyn Disk).remove(&journal(&disk, 1)).unwrap();
        assert_eq!(open(&disk).opened.context.state().topics.len(), 3);
        operations
    };
    assert!(make(true) < make(false));
}

#[test]
fn the_keeper_tries_again_and_nobody_has_to_ask_it() {
    let disk = without_its_end();
    leave_room(&disk, 0);
    let mut sim = Sim::new(1);
    let node = sim.node("log");
    let env = Env {
        disk: Arc::new(disk.clone()),
        ..node.env()
    };
    let below = disk.clone();
    sim.block_on(&node, async move {
        let storage = EmbeddedStorage::open(&env, config()).unwrap();
        let write = |n| Write {
            appends: vec![append("a", 0, n)],
            offsets: Vec::new(),
        };
        for n in 31..40 {
            let refused = storage.write(write(n)).await.unwrap_err();
            assert!(is_full(&refused), "{refused}");
            assert!(storage.no_room().is_some());
            // The time of the simulation: in it the maintenance thread looks around.
            let tried = below.operations();
            env.clock.sleep(Duration::from_secs(2)).await;
            assert!(below.operations() > tried, "nobody tried again");
        }
        assert_eq!(storage.stopped(), None);
        leave_room(&below, 1 << 20);
        env.clock.sleep(Duration::from_secs(2)).await;
        assert_eq!(storage.no_room(), None);
        let written = storage.write(write(31)).await.unwrap();
        assert_eq!(written[0].offset, Offset(31));
        assert_eq!(storage.no_room(), None);
        storage.close().await;
    });
    disk.end_process();
    let mut harness = open(&disk);
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 32);
}
