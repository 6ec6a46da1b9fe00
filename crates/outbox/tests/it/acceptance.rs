//! The promises of the outbox, once on SQLite with the embedded log and once on PostgreSQL with Kafka.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::Component;
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Offset};
use tidegate_core::{HealthStatus, Topic};
use tidegate_log::{
    Append, Batch, Committed, Join, Log, LogError, LogFuture, Read, RecordPosition, Session,
    TopicConfig, TopicDescription, TopicPartition,
};
use tidegate_outbox::{
    NewOutboxEvent, OnExhausted, OutboxComponent, OutboxFilter, OutboxOptions, OutboxStatus,
    RowSelection,
};

use crate::backend::{
    Backend, RunningRelay, audit, event, on_embedded, on_servers, row, text, until, until_drained,
};
use crate::stores::{ask, run};

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(#[test] fn $name() { super::on_embedded(super::$name); })*
        }
        mod needs_kafka {
            $(#[test] #[ignore = "needs PostgreSQL and Kafka"] fn $name() { super::on_servers(super::$name); })*
        }
    };
}

on_both!(
    o01_event_and_business_row_commit_together_or_not_at_all,
    o02_several_relays_publish_each_event_once,
    o04_events_of_a_key_stay_in_order_with_eight_relays_and_failures,
    o06_a_failing_event_holds_up_only_its_key,
    o06_a_blocked_key_waits_and_goes_on_when_it_can,
    o07_attempts_error_and_next_attempt_are_in_the_row,
    o08_a_row_that_is_given_up_on_is_in_the_dlq_with_its_history,
    o08_a_payload_that_the_dlq_refuses_stays_in_its_row,
    o09_a_dead_row_is_retried_and_sent,
    o10_records_carry_type_id_and_trace,
    o11_a_log_that_is_away_costs_no_attempt_and_loses_nothing,
    o13_a_batch_is_one_claim_and_one_settle,
    o16_health_names_a_missing_topic_and_a_log_that_is_away,
    o17_a_stop_under_load_releases_everything,
    o19_sent_rows_are_cleaned_up_after_their_time,
);

/// A log in front of another, which can be switched off.
#[derive(Debug)]
struct SwitchedLog {
    beneath: Arc<dyn Log>,
    is_away: std::sync::atomic::AtomicBool,
    appends: std::sync::atomic::AtomicU64,
}

impl SwitchedLog {
    fn new(beneath: &Arc<dyn Log>) -> Arc<Self> {
        Arc::new(Self {
            beneath: Arc::clone(beneath),
            is_away: false.into(),
            appends: 0.into(),
        })
    }

    fn set_away(&self, is_away: bool) {
        self.is_away
            .store(is_away, std::sync::atomic::Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), LogError> {
        match self.is_away.load(std::sync::atomic::Ordering::SeqCst) {
            false => Ok(()),
            true => Err(LogError::Login {
                servers: "test".to_owned(),
                why: "wrong password".to_owned(),
                settings: "sasl.password",
            }),
        }
    }
}

impl Log for SwitchedLog {
    fn cluster(&self) -> &str {
        self.beneath.cluster()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.beneath.create_topic(topic, config)
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async {
            self.check()?;
            self.beneath.topics().await
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.beneath.describe(topic)
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async {
            self.check()?;
            self.appends
                .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            self.beneath.append(records).await
        })
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        self.beneath.read(read)
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        self.beneath.offset_at(at, timestamp_ms)
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        self.beneath.delete_before(at, offset)
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        self.beneath.committed(group, partitions)
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.beneath.groups()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.beneath.forget_group(group)
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        self.beneath.join(join)
    }
}

async fn o01_event_and_business_row_commit_together_or_not_at_all(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    run(&backend.store, "CREATE TABLE loan (id integer PRIMARY KEY)").await;
    for (number, is_committed) in [(1, true), (2, false), (3, true)] {
        let mut tx = backend.store.begin().await.unwrap();
        outbox
            .insert_in(&mut tx, &[event("loan", number)])
            .await
            .unwrap();
        let insert =
            tidegate_store::sqlx::AssertSqlSafe(format!("INSERT INTO loan VALUES ({number})"));
        if let Some(connection) = tx.postgres() {
            tidegate_store::sqlx::raw_sql(insert)
                .execute(connection)
                .await
                .unwrap();
        } else {
            let connection = tx.sqlite().unwrap();
            tidegate_store::sqlx::raw_sql(insert)
                .execute(connection)
                .await
                .unwrap();
        }
        match is_committed {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
    }
    // Any other language writes one statement.
    let plain = "INSERT INTO outbox_event (aggregate_id, type, payload) VALUES ('loan', 'Plain', '4'), ('loan', 'Plain', '5')";
    run(&backend.store, plain).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!((seen["loan"].clone(), repeated), (vec![1, 3, 4, 5], 0));
    assert_eq!(ask(&backend.store, "SELECT count(*) FROM loan").await, 2);
    audit(&outbox, &backend.log).await;
}

/// Adds events of some keys, in the order of their numbers.
async fn fill(outbox: &tidegate_outbox::Outbox, keys: u64, each: u64) {
    for number in 0..each {
        let events: Vec<NewOutboxEvent> = (0..keys)
            .map(|key| event(&format!("key-{key}"), number))
            .collect();
        outbox.insert(&events).await.unwrap();
    }
}

fn expected(keys: u64, each: u64) -> BTreeMap<String, Vec<u64>> {
    let numbers: Vec<u64> = (0..each).collect();
    (0..keys)
        .map(|key| (format!("key-{key}"), numbers.clone()))
        .collect()
}

async fn o02_several_relays_publish_each_event_once(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        let own = backend.another(backend.options()).await;
        relays.push(RunningRelay::start(&own, &backend.log));
    }
    fill(&outbox, 20, 20).await;
    until_drained(&outbox).await;
    // Each of them gets its share.
    until("the buckets are shared out", async || {
        relays
            .iter()
            .all(|one| (1..=6).contains(&one.relay.status().buckets))
    })
    .await;
    fill(&outbox, 20, 1).await;
    until_drained(&outbox).await;
    let mut sent = 0;
    for relay in relays {
        sent += relay.stop().await.sent;
    }
    assert_eq!(sent, 420);
    let records = backend.records(backend.topic.as_str()).await;
    assert_eq!(records.len(), 420, "each was published once");
    audit(&outbox, &backend.log).await;
}

async fn o04_events_of_a_key_stay_in_order_with_eight_relays_and_failures(backend: &Backend) {
    let options = backend.options();
    let outbox = backend.outbox(options.clone()).await;
    let log = SwitchedLog::new(&backend.log);
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    let mut relays = Vec::new();
    for _ in 0..8 {
        let own = backend.another(options.clone()).await;
        relays.push(RunningRelay::start(&own, &as_log));
    }
    for number in 0..30 {
        let events: Vec<NewOutboxEvent> = (0..10)
            .map(|key| event(&format!("key-{key}"), number))
            .collect();
        outbox.insert(&events).await.unwrap();
        log.set_away(number % 7 == 3);
        if number % 10 == 5 {
            // Relays come and go.
            relays.remove(0).stop().await;
        }
    }
    log.set_away(false);
    until_drained(&outbox).await;
    for relay in relays {
        relay.stop().await;
    }
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!(seen, expected(10, 30));
    assert_eq!(repeated, 0, "leases were held all the time");
    audit(&outbox, &backend.log).await;
}

async fn o06_a_failing_event_holds_up_only_its_key(backend: &Backend) {
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

async fn o06_a_blocked_key_waits_and_goes_on_when_it_can(backend: &Backend) {
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

async fn o07_attempts_error_and_next_attempt_are_in_the_row(backend: &Backend) {
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

async fn o08_a_row_that_is_given_up_on_is_in_the_dlq_with_its_history(backend: &Backend) {
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

async fn o08_a_payload_that_the_dlq_refuses_stays_in_its_row(backend: &Backend) {
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

async fn o09_a_dead_row_is_retried_and_sent(backend: &Backend) {
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

async fn o10_records_carry_type_id_and_trace(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = event("loan-7", 1)
        .header("traceparent", trace)
        .header("tracestate", "a=b");
    let ids = outbox.insert(&[traced]).await.unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    let records = backend.records(backend.topic.as_str()).await;
    let record = &records[0].record;
    assert_eq!(text(record.key.as_deref()), "loan-7");
    let header = |name| text(record.headers.get(name));
    assert_eq!(header("event-type"), "Numbered");
    assert_eq!(header("traceparent"), trace);
    assert_eq!(header("tracestate"), "a=b");
    assert_eq!(header("x-tidegate-event-id"), ids[0].to_string());
}

async fn o11_a_log_that_is_away_costs_no_attempt_and_loses_nothing(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let log = SwitchedLog::new(&backend.log);
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    let relay = RunningRelay::start(&outbox, &as_log);
    fill(&outbox, 5, 5).await;
    until_drained(&outbox).await;
    log.set_away(true);
    fill(&outbox, 5, 5).await;
    until("the relay has noticed", async || {
        relay.relay.status().log_trouble.is_some()
    })
    .await;
    assert_eq!(outbox.stats().await.unwrap().retrying, 0);
    assert_eq!(relay.relay.stuck(), None, "waiting is not standing still");
    log.set_away(false);
    until_drained(&outbox).await;
    until("the trouble is over", async || {
        relay.relay.status().log_trouble.is_none()
    })
    .await;
    let report = relay.stop().await;
    assert_eq!((report.sent, report.failed, report.dead), (50, 0, 0));
    assert_eq!(backend.records(backend.topic.as_str()).await.len(), 50);
    audit(&outbox, &backend.log).await;
}

async fn o13_a_batch_is_one_claim_and_one_settle(backend: &Backend) {
    let mut options = backend.options();
    options.batch_size = 1_000;
    let outbox = backend.outbox(options).await;
    let events: Vec<NewOutboxEvent> = (0..1_000)
        .map(|n| event(&format!("key-{}", n % 50), n))
        .collect();
    outbox.insert(&events).await.unwrap();
    let log = SwitchedLog::new(&backend.log);
    let as_log: Arc<dyn Log> = Arc::clone(&log) as Arc<dyn Log>;
    let relay = RunningRelay::start(&outbox, &as_log);
    until_drained(&outbox).await;
    let report = relay.stop().await;
    assert_eq!(report.sent, 1_000);
    // Four lanes, each with a share of the rows; the first claims come before all buckets are there.
    assert!(report.batches <= 16, "{report:?}");
    let appends = log.appends.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(appends, report.batches, "one append per batch");
}

async fn o16_health_names_a_missing_topic_and_a_log_that_is_away(backend: &Backend) {
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

async fn o17_a_stop_under_load_releases_everything(backend: &Backend) {
    let options = OutboxOptions {
        lease: Duration::from_secs(600),
        ..backend.options()
    };
    let outbox = backend.outbox(options.clone()).await;
    fill(&outbox, 20, 50).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("it works", async || {
        outbox.stats().await.unwrap().pending < 900
    })
    .await;
    let began = Instant::now();
    let first = relay.stop().await;
    assert!(began.elapsed() < Duration::from_secs(30));
    let stats = outbox.stats().await.unwrap();
    assert_eq!((stats.claimed, stats.relays), (0, 0));
    // The next one need not wait for a lease of ten minutes.
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    let second = relay.stop().await;
    assert_eq!(first.sent + second.sent, 1_000);
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!((seen, repeated), (expected(20, 50), 0));
    audit(&outbox, &backend.log).await;
}

async fn o19_sent_rows_are_cleaned_up_after_their_time(backend: &Backend) {
    let options = OutboxOptions {
        retention: Some(Duration::from_millis(1)),
        ..backend.options()
    };
    let outbox = backend.outbox(options).await;
    fill(&outbox, 5, 4).await;
    outbox
        .insert(&[event("bad", 1).topic("no-such-topic")])
        .await
        .unwrap();
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    // The clean-up of a relay comes once a minute; that of its next start comes at once.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    until("the sent rows are gone", async || {
        ask(&backend.store, "SELECT count(*) FROM outbox_event").await == 1
    })
    .await;
    relay.stop().await;
    let account = outbox.store().account().await.unwrap();
    assert_eq!((account.delivered, account.dead_lettered), (20, 1));
    audit(&outbox, &backend.log).await;
}
