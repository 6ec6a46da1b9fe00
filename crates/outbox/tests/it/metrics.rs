//! The metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tidegate_core::{Offset, Shutdown, Topic};
use tidegate_log::{Append, Log, LogError, LogFuture, Read, TopicConfig, TopicPartition};
use tidegate_outbox::model::{OutboxModel, OutboxRates};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxOptions, OutboxStore, Relay};
use tidegate_sim::{Sim, SimLog};

use crate::front_log::{FrontLog, Outcomes, SwitchedLog, Weather};

/// Three rows that are sent, and one that is given up on after two attempts.
fn work() {
    let mut sim = Sim::new(1);
    let (database, worker) = (sim.node("database"), sim.node("worker"));
    let options = OutboxOptions {
        topic: Some(Topic::new("events").unwrap()),
        max_attempts: 2,
        metrics_prefix: "loan_outbox".to_owned(),
        ..OutboxOptions::new("loans")
    };
    let model = OutboxModel::new(&options, &database.env());
    let log = SimLog::new(&database.env());
    let env = worker.env();
    let outbox = Outbox::of_store(Arc::new(model.on(&env)), options);
    let relay = Relay::new(outbox, Arc::new(log.clone()), &env).named("one");
    let (trigger, stop) = Shutdown::new();
    sim.block_on(&database, async move {
        let topic = Topic::new("events").unwrap();
        log.create_topic(&topic, TopicConfig::new(1)).await.unwrap();
        let event = |key: &str| NewOutboxEvent::new(key, "T", "{}");
        let events = [
            event("a"),
            event("a"),
            event("b"),
            event("c").topic("missing"),
        ];
        model.insert(&events).await.unwrap();
    });
    drop(worker.start("relay", async move {
        relay.run(stop).await;
    }));
    sim.run_for(Duration::from_secs(20));
    trigger.stop();
    sim.run_for(Duration::from_secs(5));
}

#[test]
fn o11_the_backlog_rises_while_the_log_is_away_and_falls_to_zero() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let backlog = || {
        let text = handle.render();
        let mut lines = text.lines();
        let value = lines
            .find_map(|line| line.strip_prefix("outbox_backlog{component=\"outbox.default\"} "));
        value.unwrap().parse::<u32>().unwrap()
    };
    metrics::with_local_recorder(&recorder, || {
        let mut sim = Sim::new(1);
        let (database, worker) = (sim.node("database"), sim.node("worker"));
        let options = OutboxOptions {
            topic: Some(Topic::new("events").unwrap()),
            ..OutboxOptions::default()
        };
        let model = OutboxModel::new(&options, &database.env());
        let beneath: Arc<dyn Log> = Arc::new(SimLog::new(&database.env()));
        let log = SwitchedLog::new(&beneath);
        let env = worker.env();
        let outbox = Outbox::of_store(Arc::new(model.on(&env)), options);
        let relay = Relay::new(outbox, Arc::clone(&log) as Arc<dyn Log>, &env);
        let (trigger, stop) = Shutdown::new();
        sim.block_on(&database, async move {
            let topic = Topic::new("events").unwrap();
            let made = beneath.create_topic(&topic, TopicConfig::new(1));
            made.await.unwrap();
        });
        log.set_away(true);
        drop(worker.start("relay", async move {
            relay.run(stop).await;
        }));
        let mut seen = Vec::new();
        for _ in 0..5 {
            let events: Vec<_> = (0..10)
                .map(|n| NewOutboxEvent::new(format!("k{n}"), "T", "{}"))
                .collect();
            drop(model.begin_insert(&events).commit());
            sim.run_for(Duration::from_secs(10));
            seen.push(backlog());
        }
        assert_eq!(seen, [10, 20, 30, 40, 50]);
        log.set_away(false);
        sim.run_for(Duration::from_secs(30));
        assert_eq!(backlog(), 0);
        trigger.stop();
        sim.run_for(Duration::from_secs(5));
    });
}

/// A broker that once refuses the first of several records, and takes the others.
#[derive(Debug, Default)]
struct RefusesOnce(AtomicBool);

impl Weather for RefusesOnce {
    fn deliver<'a>(
        &'a self,
        beneath: &'a dyn Log,
        mut records: Vec<Append>,
    ) -> LogFuture<'a, Outcomes> {
        Box::pin(async move {
            if records.len() < 2 || self.0.swap(true, Ordering::SeqCst) {
                return beneath.deliver(records).await;
            }
            let refused = LogError::RecordRefused {
                topic: records.remove(0).topic,
                why: "test".to_owned(),
            };
            let mut outcomes = beneath.deliver(records).await?;
            outcomes.insert(0, Err(refused));
            Ok(outcomes)
        })
    }
}

#[test]
fn a_row_that_a_later_one_of_its_key_went_before_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let sent = metrics::with_local_recorder(&recorder, || {
        let mut sim = Sim::new(1);
        let node = sim.node("relay");
        let env = node.env();
        let topic = Topic::new("events").unwrap();
        let options = OutboxOptions {
            topic: Some(topic.clone()),
            ..OutboxOptions::default()
        };
        let model = OutboxModel::new(&options, &env);
        let log = SimLog::new(&env);
        let (made, name) = (log.clone(), topic.clone());
        sim.block_on(&node, async move {
            made.create_topic(&name, TopicConfig::new(1)).await.unwrap();
        });
        let events: Vec<_> = ["a", "b", "a"]
            .into_iter()
            .map(|key| NewOutboxEvent::new(key, "T", "{}"))
            .collect();
        let ids = model.begin_insert(&events).commit();
        let outbox = Outbox::of_store(Arc::new(model), options);
        let front = FrontLog {
            beneath: Arc::new(log.clone()),
            weather: RefusesOnce::default(),
        };
        let relay = Relay::new(outbox, Arc::new(front), &env);
        let (_trigger, stop) = Shutdown::new();
        drop(node.start("relay", async move {
            relay.run(stop).await;
        }));
        sim.run_for(Duration::from_secs(20));
        let at = TopicPartition::new(topic, 0);
        let read = sim.block_on(&node, async move {
            let batch = log.read(Read::new(at.clone(), Offset(0))).await.unwrap();
            let ids = batch.records.iter();
            ids.map(|one| one.event_id(log.cluster(), &at))
                .collect::<Vec<_>>()
        });
        let place = |n: usize| read.iter().position(|id| *id == ids[n]);
        [place(0), place(1), place(2)]
    });
    assert_eq!(sent, [Some(2), Some(0), Some(1)]);
    let text = handle.render();
    let line = "outbox_overtaken_total{component=\"outbox.default\"} 1\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_clean_up_that_fails_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let mut sim = Sim::new(1);
        let node = sim.node("relay");
        let env = node.env();
        let options = OutboxOptions {
            retention: Some(Duration::from_secs(60)),
            ..OutboxOptions::default()
        };
        let model = OutboxModel::new(&options, &env);
        // The database refuses everything.
        model.set_rates(OutboxRates {
            refuse: 1_000,
            ..OutboxRates::default()
        });
        let outbox = Outbox::of_store(Arc::new(model), options);
        let relay = Relay::new(outbox, Arc::new(SimLog::new(&env)), &env);
        let (_trigger, stop) = Shutdown::new();
        drop(node.start("relay", async move {
            relay.run(stop).await;
        }));
        sim.run_for(Duration::from_secs(150));
    });
    let text = handle.render();
    let line = "outbox_cleanup_failures_total{component=\"outbox.default\"} ";
    let mut lines = text.lines();
    let count = lines.find_map(|found| found.strip_prefix(line)?.parse::<u64>().ok());
    assert!(matches!(count, Some(2..=3)), "once a minute: {text}");
}

#[test]
fn every_metric_is_there_under_its_prefix() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, work);
    let text = handle.render();
    for (name, value) in [
        ("publish_success_total", "3"),
        ("publish_failures_total", "2"),
        ("dlq_total", "1"),
        ("cleanup_failures_total", "0"),
        ("overtaken_total", "0"),
        ("backlog", "0"),
        ("in_flight", "0"),
        ("oldest_age_seconds", "0"),
    ] {
        let line = format!("loan_outbox_{name}{{component=\"outbox.loans\"}} {value}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.contains("loan_outbox_batch_size_count"), "{text}");
}
