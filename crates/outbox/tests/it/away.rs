//! A log that does not answer for a long time, in simulated time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_core::{Component, EventId, HealthStatus, Shutdown, ShutdownTrigger, Topic};
use tidegate_log::{Append, Log, LogFuture, Read, TopicConfig, TopicPartition};
use tidegate_outbox::model::OutboxModel;
use tidegate_outbox::{
    NewOutboxEvent, Outbox, OutboxComponent, OutboxFilter, OutboxOptions, OutboxStats, OutboxStore,
};
use tidegate_sim::{Node, Sim, SimLog};

use crate::front_log::{FrontLog, Outcomes, Weather};

const SECOND: Duration = Duration::from_secs(1);
const EVENTS: usize = 200;
const BATCH: u32 = 10;
const LANES: usize = 4;

/// A log that takes records, and delivers them when it is mended.
#[derive(Debug)]
struct Silence {
    is_mended: Arc<AtomicBool>,
    is_letter_held: Arc<AtomicBool>,
    /// How often each event was handed over.
    handed: Arc<Mutex<BTreeMap<EventId, u32>>>,
    clock: Arc<dyn Clock>,
}

impl Weather for Silence {
    fn deliver<'a>(
        &'a self,
        beneath: &'a dyn Log,
        records: Vec<Append>,
    ) -> LogFuture<'a, Outcomes> {
        Box::pin(async move {
            for one in &records {
                let id = one.record.headers.event_id().unwrap();
                *self.handed.lock().unwrap().entry(id).or_default() += 1;
            }
            let is_letter = records
                .iter()
                .any(|one| one.topic.as_str().ends_with("-dlq"));
            while !self.is_mended.load(Ordering::SeqCst)
                || is_letter && self.is_letter_held.load(Ordering::SeqCst)
            {
                self.clock.sleep(SECOND).await;
            }
            beneath.deliver(records).await
        })
    }
}

/// A relay whose log is silent from the start.
struct Scene {
    sim: Sim,
    node: Node,
    model: OutboxModel,
    log: SimLog,
    component: Arc<OutboxComponent>,
    trigger: ShutdownTrigger,
    is_mended: Arc<AtomicBool>,
    is_letter_held: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    handed: Arc<Mutex<BTreeMap<EventId, u32>>>,
}

impl Scene {
    fn new() -> Self {
        let mut sim = Sim::new(1);
        let node = sim.node("relay");
        let env = node.env();
        let options = OutboxOptions {
            topic: Some(Topic::new("events").unwrap()),
            batch_size: BATCH,
            max_attempts: 2,
            ..OutboxOptions::default()
        };
        let model = OutboxModel::new(&options, &env);
        let log = SimLog::new(&env);
        let made = log.clone();
        sim.block_on(&node, async move {
            let topic = Topic::new("events").unwrap();
            made.create_topic(&topic, TopicConfig::new(3))
                .await
                .unwrap();
        });
        for number in 0..EVENTS {
            let key = format!("k{}", number % 50);
            let event = NewOutboxEvent::new(key, "T", "{}");
            model.begin_insert(&[event]).commit();
        }
        let (is_mended, is_letter_held) = (Arc::default(), Arc::default());
        let handed = Arc::default();
        let front = FrontLog {
            beneath: Arc::new(log.clone()),
            weather: Silence {
                is_mended: Arc::clone(&is_mended),
                is_letter_held: Arc::clone(&is_letter_held),
                handed: Arc::clone(&handed),
                clock: Arc::clone(&env.clock),
            },
        };
        let outbox = Outbox::of_store(Arc::new(model.clone()), options);
        let component = Arc::new(OutboxComponent::new(outbox, Arc::new(front), &env));
        let (trigger, stop) = Shutdown::new();
        let has_ended = Arc::new(AtomicBool::new(false));
        let (running, ended) = (Arc::clone(&component).run(stop), Arc::clone(&has_ended));
        drop(node.start("relay", async move {
            running.await;
            ended.store(true, Ordering::SeqCst);
        }));
        Self {
            sim,
            node,
            model,
            log,
            component,
            trigger,
            is_mended,
            is_letter_held,
            has_ended,
            handed,
        }
    }

    fn stats(&mut self) -> OutboxStats {
        let model = self.model.clone();
        self.sim
            .block_on(&self.node, async move { model.stats().await.unwrap() })
    }

    fn health(&mut self) -> (HealthStatus, String) {
        let component = Arc::clone(&self.component);
        let asked = async move { component.health().await };
        let health = self.sim.block_on(&self.node, asked);
        (health.status, health.message.unwrap_or_default())
    }

    /// How many records the topic has.
    fn records(&mut self) -> usize {
        let log = self.log.clone();
        self.sim.block_on(&self.node, async move {
            let topic = Topic::new("events").unwrap();
            let mut count = 0;
            for partition in log.describe(&topic).await.unwrap().partitions {
                let at = TopicPartition::new(topic.clone(), partition.partition.0);
                let mut next = partition.start;
                while next < partition.end {
                    let batch = log.read(Read::new(at.clone(), next)).await.unwrap();
                    next = batch.next;
                    count += batch.records.len();
                }
            }
            count
        })
    }
}

#[test]
fn o11_a_log_that_is_silent_for_minutes_gets_each_row_once_and_costs_no_attempt() {
    let mut scene = Scene::new();
    scene.sim.run_for(SECOND * 600);
    let (status, message) = scene.health();
    assert_eq!(status, HealthStatus::Degraded);
    assert!(message.contains("does not answer"), "{message}");
    assert_eq!(
        scene.component.stalled(),
        None,
        "waiting is not standing still"
    );
    let stats = scene.stats();
    assert_eq!((stats.retrying, stats.dead), (0, 0), "{stats:?}");
    let handed = scene.handed.lock().unwrap().clone();
    assert!(!handed.is_empty() && handed.len() <= LANES * BATCH as usize);
    assert!(handed.values().all(|times| *times == 1), "{handed:?}");

    scene.is_mended.store(true, Ordering::SeqCst);
    scene.sim.run_for(SECOND * 60);
    let stats = scene.stats();
    assert_eq!(
        (stats.pending, stats.claimed, stats.dead),
        (0, 0, 0),
        "{stats:?}"
    );
    assert_eq!(scene.records(), EVENTS, "each is there once");
    assert_eq!(scene.health(), (HealthStatus::Up, String::new()));
    let filter = OutboxFilter {
        status: Some(tidegate_outbox::OutboxStatus::Sent),
        limit: 1_000,
        ..OutboxFilter::default()
    };
    let model = scene.model.clone();
    let listed = async move { model.list(&filter).await.unwrap() };
    let rows = scene.sim.block_on(&scene.node, listed);
    assert!(rows.iter().all(|row| row.attempts == 0));
}

#[test]
fn o17_a_stop_has_its_whole_time_and_gives_its_buckets_back_though_the_log_is_silent() {
    let mut scene = Scene::new();
    scene.sim.run_for(SECOND * 30);
    assert_eq!(scene.stats().relays, 1);
    let timeout = OutboxOptions::default().stop_timeout;
    scene.trigger.stop();
    scene.sim.run_for(timeout - SECOND);
    assert!(!scene.has_ended.load(Ordering::SeqCst), "it may still end");
    scene.sim.run_for(SECOND * 5);
    assert!(scene.has_ended.load(Ordering::SeqCst), "it waited too long");
    let stats = scene.stats();
    assert_eq!((stats.claimed, stats.relays), (0, 0), "{stats:?}");
    assert_eq!(stats.pending, EVENTS as i64);
}

#[test]
fn o17_a_stop_gives_up_on_a_dead_letter_that_is_not_taken() {
    let mut scene = Scene::new();
    // Its topic has no name that a log takes, so a dead letter is the first thing to be handed over.
    let unfit = NewOutboxEvent::new("unfit", "T", "{}").topic("no topic");
    scene.model.begin_insert(&[unfit]).commit();
    scene.is_mended.store(true, Ordering::SeqCst);
    scene.is_letter_held.store(true, Ordering::SeqCst);
    scene.sim.run_for(SECOND * 60);
    let (status, message) = scene.health();
    assert_eq!(status, HealthStatus::Degraded, "{message}");
    scene.trigger.stop();
    scene
        .sim
        .run_for(OutboxOptions::default().stop_timeout + SECOND * 4);
    assert!(scene.has_ended.load(Ordering::SeqCst), "it waited too long");
    let stats = scene.stats();
    assert_eq!((stats.relays, stats.dead), (0, 0), "{stats:?}");
}

#[test]
fn o17_a_stop_waits_for_a_log_that_answers_in_time() {
    let mut scene = Scene::new();
    scene.sim.run_for(SECOND * 30);
    let timeout = OutboxOptions::default().stop_timeout;
    scene.trigger.stop();
    scene.sim.run_for(timeout - SECOND * 3);
    scene.is_mended.store(true, Ordering::SeqCst);
    scene.sim.run_for(SECOND * 5);
    assert!(scene.has_ended.load(Ordering::SeqCst));
    let handed = scene.handed.lock().unwrap().len();
    let sent = scene.stats();
    assert_eq!(sent.pending, (EVENTS - handed) as i64, "{sent:?}");
    assert_eq!(scene.records(), handed);
}
