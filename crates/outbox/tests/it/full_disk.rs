//! A disk that is full: that of the log, or that of the table.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{Component, HealthStatus, Shutdown, Topic};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, TopicConfig};
use tidegate_outbox::{
    NewOutboxEvent, Outbox, OutboxComponent, OutboxFilter, OutboxOptions, OutboxStatus, migrate,
};
use tidegate_sim::SimDisk;

use crate::backend::{Backend, audit, event, on_embedded, until, until_drained};
use crate::stores::{run, runtime, sqlite, try_to_run};

const MIB: u64 = 1024 * 1024;

#[test]
fn o11_a_full_disk_costs_no_attempt_and_rows_go_on_when_there_is_room() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let disk = SimDisk::new(1);
        let mut env = Env::system();
        env.disk = Arc::new(disk.clone());
        let config = EmbeddedConfig {
            journal_size: MIB,
            segment_size: MIB,
            reserve: 0,
            ..EmbeddedConfig::new("/log")
        };
        let embedded = EmbeddedLog::open(&env, config).unwrap();
        let log: Arc<dyn Log> = Arc::new(embedded.clone());
        let topic = Topic::new("events").unwrap();
        log.create_topic(&topic, TopicConfig::new(2)).await.unwrap();
        let options = OutboxOptions {
            topic: Some(topic),
            batch_size: 5,
            poll_delay: Duration::from_millis(5),
            buckets: 8,
            ..OutboxOptions::default()
        };
        migrate(&store, &options).await.unwrap();
        let outbox = Outbox::open(&store, options, &env).await.unwrap();
        let component = Arc::new(OutboxComponent::new(outbox.clone(), Arc::clone(&log), &env));
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn(Arc::clone(&component).run(stop));
        disk.set_capacity(4 * MIB);
        let event = |number: u64| {
            let key = format!("k-{}", number % 4);
            NewOutboxEvent::new(key, "Large", format!("{number:0>50000}"))
        };
        let events: Vec<_> = (0..200).map(event).collect();
        outbox.insert(&events).await.unwrap();
        until("health tells that the disk is full", async || {
            let health = component.health().await;
            let message = health.message.unwrap_or_default();
            health.status == HealthStatus::Degraded && message.contains("no storage space")
        })
        .await;
        assert_eq!(component.stalled(), None);
        let filter = OutboxFilter {
            status: Some(OutboxStatus::Pending),
            ..OutboxFilter::default()
        };
        let waiting = outbox.list(&filter).await.unwrap();
        assert!(!waiting.is_empty());
        assert!(waiting.iter().all(|row| row.attempts == 0));
        disk.set_capacity(1024 * MIB);
        until_drained(&outbox).await;
        until("it recovers by itself", async || {
            component.health().await.status == HealthStatus::Up
        })
        .await;
        audit(&outbox, &log).await;
        trigger.stop();
        running.await.unwrap();
        embedded.close().await;
    });
}

#[test]
fn o16_a_full_disk_below_the_table_is_told_and_rows_go_on_when_there_is_room() {
    on_embedded(async |backend: &Backend| {
        let outbox = backend.outbox(backend.options()).await;
        let events: Vec<_> = (0..2_000)
            .map(|n| event(&format!("k-{}", n % 4), n / 4))
            .collect();
        outbox.insert(&events).await.unwrap();
        // As many pages as there are: the file does not grow any more.
        run(&backend.store, "PRAGMA max_page_count = 1").await;
        let large = NewOutboxEvent::new("k", "Large", "x".repeat(1_000_000));
        assert!(outbox.insert(&[large]).await.is_err());
        let env = Env::system();
        let log = Arc::clone(&backend.log);
        let component = Arc::new(OutboxComponent::new(outbox.clone(), log, &env));
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn(Arc::clone(&component).run(stop));
        until("health tells that the disk is full", async || {
            let health = component.health().await;
            let message = health.message.unwrap_or_default();
            health.status == HealthStatus::Degraded && message.contains("full")
        })
        .await;
        assert_eq!(component.stalled(), None);
        let waiting = outbox.list(&OutboxFilter::default()).await.unwrap();
        assert!(!waiting.is_empty());
        assert!(waiting.iter().all(|row| row.attempts == 0));
        // A write that shares its commit with one that finds no room is rolled back with it.
        until("there is room", async || {
            let more = try_to_run(&backend.store, "PRAGMA max_page_count = 1000000").await;
            more.is_ok()
        })
        .await;
        until_drained(&outbox).await;
        until("it recovers by itself", async || {
            component.health().await.status == HealthStatus::Up
        })
        .await;
        trigger.stop();
        running.await.unwrap();
        let (seen, _) = backend.first_occurrences().await;
        let expect: Vec<u64> = (0..500).collect();
        assert_eq!(seen.len(), 4);
        assert!(seen.values().all(|numbers| *numbers == expect));
        audit(&outbox, &backend.log).await;
    });
}
