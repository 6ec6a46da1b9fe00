//! The log with its threads as tasks of the simulation: any of them may go next, the disk fails and
//! the power goes at any operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::Entropy;
use tidegate_core::{EventId, Offset};
use tidegate_log::embedded::recount;
use tidegate_log::local::{RecordStorage, Write};
use tidegate_log::{
    Append, EmbeddedConfig, EmbeddedStorage, Read, Record, TopicConfig, TopicPartition,
};
use tidegate_sim::{FaultKind, Operation, Sim, is_one_seed, scaled, seeds};

use crate::child::topic;

const LIMIT: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 3;

type Promised = Arc<Mutex<BTreeMap<(i32, i64), EventId>>>;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        segment_size: 2_000,
        journal_size: 4_096,
        cache_size: 1_000,
        ..EmbeddedConfig::new("/log")
    }
}

fn id(n: u64) -> EventId {
    EventId::from_u128((0x019a_8f3e_5c00 << 80) | (7 << 76) | (0b10 << 62) | u128::from(n))
}

/// Writes until the node ends or refuses, and notes what was promised.
async fn write(storage: Arc<EmbeddedStorage>, first: u64, promised: Promised) {
    for n in first..first + 30 {
        let partition = i32::try_from(n % 3).unwrap();
        let record = Record::new("x".repeat(60)).event_id(id(n));
        let append = Append::new(topic("a"), record).partition(partition);
        let appends = vec![append.clone(), append];
        let written = storage
            .write(Write {
                appends,
                offsets: Vec::new(),
            })
            .await;
        let Ok(written) = written else {
            continue;
        };
        let mut promised = promised.lock().unwrap();
        for position in written {
            let place = (partition, position.offset.0);
            assert_eq!(
                promised.insert(place, id(n)),
                None,
                "an offset was given twice"
            );
        }
    }
}

/// Everything promised can be read, and the books agree.
async fn check(storage: Arc<EmbeddedStorage>, promised: Promised) {
    for partition in 0..PARTITIONS {
        let at = TopicPartition::new(topic("a"), partition);
        let mut from = Offset(0);
        let mut found = BTreeMap::new();
        loop {
            let batch = storage.read(&Read::new(at.clone(), from)).await.unwrap();
            if batch.records.is_empty() {
                break;
            }
            from = batch.next;
            for stored in batch.records {
                found.insert(stored.offset.0, stored.event_id("x", &at));
            }
        }
        for ((_, offset), id) in promised
            .lock()
            .unwrap()
            .iter()
            .filter(|((p, _), _)| *p == partition)
        {
            assert_eq!(found.get(offset), Some(id), "{at} at {offset}");
        }
    }
    for audited in storage.audit().await.unwrap() {
        assert_eq!(audited.missing, []);
        assert!(audited.books.is_balanced());
    }
}

#[test]
fn t31_whatever_goes_next_and_whenever_the_power_goes_nothing_promised_is_lost() {
    let made = AtomicU64::new(0);
    seeds!(scaled(600), |seed| {
        let mut sim = Sim::new(seed);
        let node = sim.node("log");
        let mut draw = sim.entropy("test");
        let draw: &mut dyn Entropy = &mut draw;
        let promised = Promised::default();
        for life in 0..4 {
            sim.restart(&node);
            let disk = node.disk();
            if draw.below(3) == 0 {
                disk.fail_at_random(Operation::Write, FaultKind::ShortWrite, 0.01);
                disk.fail_at_random(Operation::Sync, FaultKind::SyncDropsDirty, 0.003);
            }
            disk.kill_at(disk.operations() + 20 + draw.below(300));
            let env = node.env();
            let told = Arc::clone(&promised);
            let lives = async move {
                let Ok(storage) = EmbeddedStorage::open(&env, config()) else {
                    return;
                };
                let storage = Arc::new(storage);
                if storage
                    .create_topic(&topic("a"), TopicConfig::new(3))
                    .await
                    .is_err()
                {
                    return;
                }
                for task in 0..4 {
                    let first = life * 1_000 + task * 100;
                    let writer = write(Arc::clone(&storage), first, Arc::clone(&told));
                    drop(env.spawn.spawn("writer", Box::pin(writer)));
                }
                env.clock.sleep(LIMIT).await;
            };
            drop(node.start("life", lives));
            sim.run_for(Duration::from_secs(3));
            disk.fail_at_random(Operation::Write, FaultKind::ShortWrite, 0.0);
            disk.fail_at_random(Operation::Sync, FaultKind::SyncDropsDirty, 0.0);
            if node.is_up() {
                sim.crash(&node);
            }
        }
        sim.restart(&node);
        let env = node.env();
        let told = Arc::clone(&promised);
        sim.block_on(&node, async move {
            let storage = Arc::new(EmbeddedStorage::open(&env, config()).unwrap());
            if storage.describe(&topic("a")).is_some() {
                check(Arc::clone(&storage), told).await;
            }
            storage.close().await;
        });
        for audited in recount(&node.disk(), "/log".as_ref()).unwrap() {
            assert_eq!(audited.missing, []);
        }
        let promised = promised.lock().unwrap().len();
        made.fetch_add(promised as u64, Ordering::Relaxed);
    });
    let made = made.into_inner();
    println!("{made} records were promised");
    assert!(
        is_one_seed() || made > 1_000,
        "{made} promises are no proof"
    );
}
