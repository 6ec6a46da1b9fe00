//! Rows that reach their topic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_log::{Log, TopicConfig};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxOptions, RowSelection};
use tidegate_store::Store;

use crate::backend::{Backend, RunningRelay, audit, event, text, until, until_drained};
use crate::front_log::SwitchedLog;
use crate::stores::{ask, run, try_to_run};

/// Batches that a relay has on their way at once.
const LANES: usize = 4;

pub(super) async fn o01_event_and_business_row_commit_together_or_not_at_all(backend: &Backend) {
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

/// One row that a claim cannot read would stop every key of its lane.
pub(super) async fn o01_values_that_no_claim_can_read_are_refused(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let bad: &[(&str, &str)] = match &backend.store {
        Store::Sqlite(_) => &[
            ("event_id", "'no id'"),
            ("event_id", "'0123456789-0123456789-0123456789-012'"),
            ("event_id", "x'00'"),
            ("payload", "x'ff'"),
            ("aggregate_type", "x'ff'"),
            ("topic", "x'ff'"),
            ("headers", "'[]'"),
            ("created_at", "'soon'"),
            ("attempts", "-1"),
            ("attempts", "'many'"),
            ("attempts", "0.5"),
        ],
        Store::Postgres(_) => &[
            ("event_id", "'no id'"),
            ("headers", "'[]'"),
            ("created_at", "'soon'"),
            ("attempts", "-1"),
            ("attempts", "'many'"),
        ],
    };
    for (column, value) in bad {
        let sql = format!(
            "INSERT INTO outbox_event (aggregate_id, type, {column}) VALUES ('k', 'T', {value})"
        );
        let inserted = try_to_run(&backend.store, &sql).await;
        assert!(inserted.is_err(), "{column} = {value}");
    }
    let keyless = match &backend.store {
        Store::Sqlite(_) => "x'ff'",
        Store::Postgres(_) => "NULL",
    };
    let sql = format!("INSERT INTO outbox_event (aggregate_id, type) VALUES ({keyless}, 'T')");
    assert!(try_to_run(&backend.store, &sql).await.is_err());
    outbox.insert(&[event("k", 1)]).await.unwrap();
    let update = "UPDATE outbox_event SET attempts = -1";
    assert!(try_to_run(&backend.store, update).await.is_err());
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    relay.stop().await;
    audit(&outbox, &backend.log).await;
}

/// Adds events of some keys, in the order of their numbers.
async fn fill(outbox: &Outbox, keys: u64, each: u64) {
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

pub(super) async fn o02_several_relays_publish_each_event_once(backend: &Backend) {
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

pub(super) async fn o02_rows_of_a_relay_that_died_go_to_another_after_its_lease(backend: &Backend) {
    let options = OutboxOptions {
        lease: Duration::from_secs(2),
        ..backend.options()
    };
    let outbox = backend.outbox(options.clone()).await;
    fill(&outbox, 20, 40).await;
    // Its tasks end where they are, as those of a process that is killed.
    let process = tokio::runtime::Runtime::new().unwrap();
    let own = backend.another(options.clone()).await;
    let log = Arc::clone(&backend.log);
    let started = process.spawn(async move { RunningRelay::start(&own, &log) });
    let killed = started.await.unwrap();
    until("it works", async || killed.relay.report().sent > 0).await;
    process.shutdown_background();
    let before = outbox.stats().await.unwrap();
    let heir = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    let sent = heir.stop().await.sent;
    assert!(
        before.pending + before.claimed > 0 && sent > 0,
        "{before:?}"
    );
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!(seen, expected(20, 40));
    let most = LANES * options.batch_size as usize;
    assert!(repeated <= most, "{repeated} of at most {most}");
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o04_events_of_a_key_stay_in_order_with_eight_relays_and_failures(
    backend: &Backend,
) {
    // Longer than the test, whatever else the machine does.
    let options = OutboxOptions {
        lease: Duration::from_secs(300),
        ..backend.options()
    };
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

pub(super) async fn o10_records_carry_type_id_and_trace(backend: &Backend) {
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

/// The id is born with the row, and is that of the record, of the dead letter and of the record after a retry.
pub(super) async fn a05_an_event_keeps_its_id_in_topic_dead_letter_and_retry(backend: &Backend) {
    let outbox = backend.outbox(backend.options()).await;
    let later = format!("{}-later", backend.topic);
    let ids = outbox
        .insert(&[event("a", 1), event("b", 2).topic(later.clone())])
        .await
        .unwrap();
    let plain = "INSERT INTO outbox_event (event_id, aggregate_id, type, payload)
        VALUES ('01a1e7b9-0000-7000-8000-000000000001', 'c', 'Plain', '3')";
    run(&backend.store, plain).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    until_drained(&outbox).await;
    let ids_in = async |topic: &str| {
        let records = backend.records(topic).await;
        let mut ids: Vec<String> = records
            .iter()
            .map(|stored| stored.record.headers.event_id().unwrap().to_string())
            .collect();
        ids.sort();
        ids
    };
    let mut expect = vec![
        ids[0].to_string(),
        "01a1e7b9-0000-7000-8000-000000000001".to_owned(),
    ];
    expect.sort();
    assert_eq!(ids_in(backend.topic.as_str()).await, expect);
    let dlq = format!("{later}-dlq");
    assert_eq!(ids_in(&dlq).await, [ids[1].to_string()]);
    let topic = Topic::new(later.clone()).unwrap();
    let made = backend.log.create_topic(&topic, TopicConfig::new(1));
    made.await.unwrap();
    let dead = RowSelection::Event(ids[1]);
    assert_eq!(outbox.retry(&dead).await.unwrap(), 1);
    until_drained(&outbox).await;
    relay.stop().await;
    assert_eq!(ids_in(&later).await, [ids[1].to_string()]);
    audit(&outbox, &backend.log).await;
}

/// Somebody holds a lock that every claim and every settle needs.
pub(super) async fn a10_a_database_that_does_not_answer_is_cut_and_asked_again(backend: &Backend) {
    let options = backend.options();
    let outbox = backend.outbox(options.clone()).await;
    fill(&outbox, 5, 5).await;
    let mut reach = backend.reach.clone();
    reach.timeout = Duration::from_millis(300);
    let env = Env::system();
    let store = Store::open(&reach, &env).await.unwrap();
    let impatient = Outbox::open(&store, options, &env).await.unwrap();
    let mut lock = backend.store.begin().await.unwrap();
    let sql = match &backend.store {
        Store::Sqlite(_) => "UPDATE outbox_event SET locked_by = 'somebody'",
        Store::Postgres(_) => "LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE",
    };
    let sql = tidegate_store::sqlx::raw_sql(sql);
    match lock.postgres() {
        Some(connection) => sql.execute(connection).await.map(drop),
        None => sql.execute(lock.sqlite().unwrap()).await.map(drop),
    }
    .unwrap();
    let relay = RunningRelay::start(&impatient, &backend.log);
    until("it tells that the database does not answer", async || {
        relay.relay.status().store_trouble.is_some()
    })
    .await;
    assert_eq!(relay.relay.stuck(), None, "waiting is not standing still");
    lock.rollback().await.unwrap();
    until_drained(&outbox).await;
    until("the trouble is over", async || {
        relay.relay.status().store_trouble.is_none()
    })
    .await;
    relay.stop().await;
    let (seen, repeated) = backend.first_occurrences().await;
    assert_eq!((seen, repeated), (expected(5, 5), 0));
    audit(&outbox, &backend.log).await;
}

pub(super) async fn o11_a_log_that_is_away_costs_no_attempt_and_loses_nothing(backend: &Backend) {
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

pub(super) async fn o13_a_batch_is_one_claim_and_one_settle(backend: &Backend) {
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
    let appends = log
        .weather
        .deliveries
        .load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(appends, report.batches, "one append per batch");
}

pub(super) async fn o17_a_stop_under_load_releases_everything(backend: &Backend) {
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

pub(super) async fn o19_sent_rows_are_cleaned_up_after_their_time(backend: &Backend) {
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
