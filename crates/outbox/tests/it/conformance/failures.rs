//! Rows that do not reach their topic, or not at once.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{Component, HealthStatus, Topic};
use tidegate_log::{Log, TopicConfig};
use tidegate_outbox::{
    NewOutboxEvent, OnExhausted, OutboxComponent, OutboxFilter, OutboxStatus, RowSelection,
};

use crate::backend::{Backend, RunningRelay, audit, event, row, text, until, until_drained};
use crate::front_log::SwitchedLog;

pub(super) async fn o06_a_failing_event_holds_up_only_its_key(backend: &Backend) {
    let mut options = backend.options();
    options.max_attempts = 4;
    let outbox = backend.outbox(options).await;
    let missing = event("bad", 1).topic("no-such-topic");
    let events = [
        missing,
        event("bad", 2),
        event("good", 1),
        event("bad", 3),
        event("good", 2),
    ];
    outbox.insert(&events).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("the good key is published", async || {
        backend
            .first_occurrences()
            .await
            .0
            .get("good")
            .is_some_and(|seen| seen.len() == 2)
    })
    .await;
    // After its attempts the dead letter is written, and the rest of its key goes on.
    until_drained(&outbox).await;
    relay.stop().await;
    let (seen, _) = backend.first_occurrences().await;
    assert_eq!((&seen["good"], &seen["bad"]), (&vec![1, 2], &vec![2, 3]));
    let filter = OutboxFilter {
        status: Some(OutboxStatus::Dead),
        ..OutboxFilter::default()
    };
    assert_eq!(outbox.list(&filter).await.unwrap()[0].attempts, 4);
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o06_a_blocked_key_waits_and_goes_on_when_it_can(backend: &Backend) {
    let mut options = backend.options();
    options.on_exhausted = OnExhausted::BlockKey;
    let outbox = backend.outbox(options).await;
    let later = format!("{}-later", backend.topic);
    let ids = outbox
        .insert(&[
            event("k", 1).topic(later.clone()),
            event("k", 2),
            event("other", 1),
        ])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("it was tried more often than it may", async || {
        row(&outbox, ids[0]).await.attempts > 5
    })
    .await;
    assert_eq!(row(&outbox, ids[1]).await.status, OutboxStatus::Pending);
    assert_eq!(row(&outbox, ids[2]).await.status, OutboxStatus::Sent);
    let topic = Topic::new(later.clone()).unwrap();
    backend
        .log
        .create_topic(&topic, TopicConfig::new(1))
        .await
        .unwrap();
    until_drained(&outbox).await;
    relay.stop().await;
    assert_eq!(backend.records(&later).await.len(), 1);
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o07_attempts_error_and_next_attempt_are_in_the_row(backend: &Backend) {
    let mut options = backend.options();
    options.backoff_initial = Duration::from_secs(30);
    options.backoff_max = Duration::from_secs(60);
    let outbox = backend.outbox(options).await;
    let ids = outbox
        .insert(&[event("k", 1).topic("no-such-topic")])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("an attempt was made", async || {
        row(&outbox, ids[0]).await.attempts == 1
    })
    .await;
    relay.stop().await;
    let row = row(&outbox, ids[0]).await;
    let error = row.last_error.unwrap();
    assert!(error.starts_with("log.unknown-topic: "), "{error}");
    let wait = row.next_attempt_at.unwrap() - row.last_error_at.unwrap();
    assert!((26_000..=34_000).contains(&wait), "{wait}");
    assert_eq!((row.status, row.sent), (OutboxStatus::Pending, false));
    assert!(
        row.locked_by
            .unwrap()
            .contains(&std::process::id().to_string())
    );
}

pub(super) async fn o08_a_row_that_is_given_up_on_is_in_the_dlq_with_its_history(
    backend: &Backend,
) {
    let mut options = backend.options();
    let dlq = format!("{}-dlq", backend.topic);
    options.dlq_topic = dlq.clone();
    let outbox = backend.outbox(options).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    let described = Topic::new(dlq.clone()).unwrap();
    until("the topic of dead letters is made at start", async || {
        backend.log.describe(&described).await.is_ok()
    })
    .await;
    let config = backend.log.describe(&described).await.unwrap().config;
    assert_eq!((config.partitions, config.retention), (3, None));
    let ids = outbox
        .insert(&[event("k", 7).topic("no-such-topic")])
        .await
        .unwrap();
    until("it is dead", async || {
        row(&outbox, ids[0]).await.status == OutboxStatus::Dead
    })
    .await;
    relay.stop().await;
    let row = row(&outbox, ids[0]).await;
    assert_eq!((row.sent, row.attempts), (false, 3));
    let letters = backend.records(&dlq).await;
    assert_eq!(letters.len(), 1);
    let record = &letters[0].record;
    assert_eq!(text(record.value.as_deref()), "7");
    assert_eq!(record.headers.event_id(), Some(ids[0]));
    let header = |name| text(record.headers.get(name));
    assert_eq!(header("x-eventbus-original-topic"), "no-such-topic");
    assert_eq!(header("x-eventbus-total-attempts"), "3");
    assert_eq!(header("x-tidegate-outbox-row"), row.id.to_string());
    let message = header("x-eventbus-last-exception-message");
    assert!(message.contains("no-such-topic"), "{message}");
    assert!(
        backend
            .log
            .describe(&Topic::new("no-such-topic").unwrap())
            .await
            .is_err()
    );
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o08_a_payload_that_the_dlq_refuses_stays_in_its_row(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let huge = "x".repeat(5 * 1024 * 1024);
    let ids = outbox
        .insert(&[
            NewOutboxEvent::new("k", "Huge", huge.clone()),
            event("k", 2),
        ])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let dead = row(&outbox, ids[0]).await;
    assert_eq!((dead.status, dead.attempts), (OutboxStatus::Dead, 1));
    assert_eq!(dead.payload.map(|payload| payload.len()), Some(huge.len()));
    let letters = backend.records(&format!("{}-dlq", backend.topic)).await;
    assert_eq!(letters.len(), 1);
    let omitted = text(letters[0].record.headers.get("payload-omitted"));
    assert_eq!(omitted, huge.len().to_string());
    assert_eq!(letters[0].record.value, None);
    let (seen, _) = backend.first_occurrences().await;
    assert_eq!(seen["k"], [2]);
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o09_a_dead_row_is_retried_and_sent(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let later = format!("{}-later", backend.topic);
    let ids = outbox
        .insert(&[event("k", 1).topic(later.clone())])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("it is dead", async || {
        row(&outbox, ids[0]).await.status == OutboxStatus::Dead
    })
    .await;
    let topic = Topic::new(later.clone()).unwrap();
    backend
        .log
        .create_topic(&topic, TopicConfig::new(1))
        .await
        .unwrap();
    assert_eq!(outbox.retry(&RowSelection::Event(ids[0])).await.unwrap(), 1);
    until("it is sent", async || row(&outbox, ids[0]).await.sent).await;
    relay.stop().await;
    assert_eq!(backend.records(&later).await.len(), 1);
    audit(&outbox, &backend.log).await;
    assert!(outbox.purge(OutboxStatus::Pending, i64::MAX).await.is_err());
    assert_eq!(
        outbox
            .purge(OutboxStatus::Sent, i64::MAX / 2)
            .await
            .unwrap(),
        1
    );
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o16_health_names_a_missing_topic_and_a_log_that_is_away(backend: &Backend) {
    let mut options = backend.options();
    options.max_attempts = 1_000;
    let outbox = backend.outbox(options).await;
    let log = SwitchedLog::new(&backend.log);
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    let component = Arc::new(OutboxComponent::new(outbox.clone(), as_log, &Env::system()));
    let (trigger, stop) = tidegate_core::Shutdown::new();
    let running = tokio::spawn(Arc::clone(&component).run(stop));
    assert_eq!(component.health().await.status, HealthStatus::Up);
    let later = format!("{}-later", backend.topic);
    outbox
        .insert(&[event("k", 1).topic(later.clone())])
        .await
        .unwrap();
    until("the missing topic is named", async || {
        let health = component.health().await;
        let message = health.message.unwrap_or_default();
        health.status == HealthStatus::Degraded && message.contains(&later)
    })
    .await;
    log.set_away(true);
    let health = component.health().await;
    assert_eq!(health.status, HealthStatus::Down);
    assert!(health.message.unwrap().contains("wrong password"));
    assert_eq!(component.stalled(), None);
    log.set_away(false);
    let topic = Topic::new(later).unwrap();
    backend
        .log
        .create_topic(&topic, TopicConfig::new(1))
        .await
        .unwrap();
    until_drained(&outbox).await;
    until("it recovers by itself", async || {
        component.health().await.status == HealthStatus::Up
    })
    .await;
    trigger.stop();
    running.await.unwrap();
}

pub(super) async fn o06_a_topic_that_the_broker_forbids_holds_up_only_its_rows(backend: &Backend) {
    let mut options = backend.options();
    options.max_attempts = 1_000;
    let outbox = backend.outbox(options).await;
    let secret = format!("{}-secret", backend.topic);
    let topic = Topic::new(secret.clone()).unwrap();
    let config = TopicConfig::new(1);
    backend.log.create_topic(&topic, config).await.unwrap();
    let log = SwitchedLog::new(&backend.log);
    log.forbid(Some(&secret));
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    // Its row is the first of its lane, and every lane has one.
    let mut events: Vec<NewOutboxEvent> = (0..16)
        .map(|key| event(&format!("bad-{key}"), 1).topic(secret.clone()))
        .collect();
    let others = (0..100).map(|number| event(&format!("key-{}", number % 10), number / 10));
    events.extend(others);
    events.push(event("bad-0", 2));
    let ids = outbox.insert(&events).await.unwrap();
    let component = Arc::new(OutboxComponent::new(outbox.clone(), as_log, &Env::system()));
    let (trigger, stop) = tidegate_core::Shutdown::new();
    let running = tokio::spawn(Arc::clone(&component).run(stop));
    until("the others are sent, and only those", async || {
        outbox.stats().await.unwrap().pending <= 17 && row(&outbox, ids[0]).await.attempts > 1
    })
    .await;
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!((seen.len(), repeated), (10, 0), "{seen:?}");
    // It may be claimed together with the row before it, and is given back with it.
    let behind = row(&outbox, ids[116]).await.status;
    assert!(matches!(
        behind,
        OutboxStatus::Pending | OutboxStatus::Claimed
    ));
    let health = component.health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains(&secret));
    log.forbid(None);
    until_drained(&outbox).await;
    until("it recovers by itself", async || {
        component.health().await.status == HealthStatus::Up
    })
    .await;
    trigger.stop();
    running.await.unwrap();
    assert_eq!(backend.records(&secret).await.len(), 16);
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o08_headers_that_no_log_takes_make_a_dead_letter(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let bad = event("k", 1).header("n".repeat(65_536), "v");
    let ids = outbox.insert(&[bad, event("k", 2)]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let dead = row(&outbox, ids[0]).await;
    assert_eq!((dead.status, dead.attempts), (OutboxStatus::Dead, 1));
    assert!(dead.last_error.unwrap().starts_with("log.header-too-long"));
    let letters = backend.records(&format!("{}-dlq", backend.topic)).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(text(letters[0].record.value.as_deref()), "1");
    let (seen, _) = backend.first_occurrences().await;
    assert_eq!(seen["k"], [2]);
    audit(&outbox, &backend.log).await;
}

/// A payload of any text is in the dead letter byte for byte, also once its row is purged.
pub(super) async fn a09_a_payload_that_is_given_up_on_is_found_byte_for_byte(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let payload = "{\"half\": \u{1}\r\n\t \u{feff}\u{10ffff} \\ '";
    let poison = NewOutboxEvent::new("k", "T", payload).header("odd", "\u{2028}");
    let ids = outbox.insert(&[poison.topic("no topic")]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let later = i64::MAX / 2;
    assert_eq!(outbox.purge(OutboxStatus::Dead, later).await.unwrap(), 1);
    let letters = backend.records("default-dlq").await;
    // The topic of rows whose own cannot be one is that of the relay, which tests share on a broker.
    let mut own = letters
        .iter()
        .filter(|one| one.record.headers.event_id() == Some(ids[0]));
    let record = &own.next().unwrap().record;
    assert_eq!(record.value.as_deref(), Some(payload.as_bytes()));
    assert_eq!(text(record.headers.get("odd")), "\u{2028}");
    assert!(own.next().is_none());
}

pub(super) async fn a06_a_refusal_for_good_is_not_tried_again_and_an_outage_counts_nothing(
    backend: &Backend,
) {
    let mut options = backend.options();
    options.max_attempts = 1;
    let outbox = backend.outbox(options).await;
    let log = SwitchedLog::new(&backend.log);
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    log.set_away(true);
    let ids = outbox
        .insert(&[event("bad", 1).topic("no topic"), event("k", 2)])
        .await
        .unwrap();
    let component = Arc::new(OutboxComponent::new(outbox.clone(), as_log, &Env::system()));
    let (trigger, stop) = tidegate_core::Shutdown::new();
    let running = tokio::spawn(Arc::clone(&component).run(stop));
    until("the log was tried", async || {
        let health = component.health().await;
        health.status == HealthStatus::Down && outbox.stats().await.unwrap().claimed > 0
    })
    .await;
    for id in &ids {
        assert_eq!(row(&outbox, *id).await.attempts, 0);
    }
    log.set_away(false);
    until_drained(&outbox).await;
    trigger.stop();
    running.await.unwrap();
    let dead = row(&outbox, ids[0]).await;
    assert_eq!((dead.status, dead.attempts), (OutboxStatus::Dead, 1));
    let sent = row(&outbox, ids[1]).await;
    assert_eq!((sent.status, sent.attempts), (OutboxStatus::Sent, 0));
}
