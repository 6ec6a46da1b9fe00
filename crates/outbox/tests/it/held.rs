//! The four cases of PostgreSQL: what is open elsewhere neither stops a relay nor changes an order. And a claim that
//! takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_log::{Append, Log, LogFuture};
use tidegate_outbox::conformance::{LONG_LEASE, OutboxWorld, events};
use tidegate_outbox::{EventOrder, Outbox, OutboxOptions, migrate};
use tidegate_sim::is_long;
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreOptions, StoreTx, sqlx};

use crate::backend::{Backend, RunningRelay, audit, event, on_servers, until, until_drained};
use crate::front_log::{FrontLog, Outcomes, Weather};
use crate::stores::{ask, unique};

async fn on(tx: &mut StoreTx, sql: &str) {
    let connection = tx.postgres().unwrap();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    sql.execute(connection).await.unwrap();
}

async fn add(outbox: &Outbox, tx: &mut StoreTx, key: &str, number: u64) {
    outbox.insert_in(tx, &[event(key, number)]).await.unwrap();
}

/// Publishes beside a transaction that is open, and says how long the slowest event took.
async fn publishes_beside(backend: &Backend, held: &Store) {
    let outbox = backend.outbox(backend.options()).await;
    let relay = RunningRelay::start(&outbox, &backend.log);
    let mut open = held.begin().await.unwrap();
    // Ours would be ended after a while, those of others are not.
    on(
        &mut open,
        "SET LOCAL idle_in_transaction_session_timeout = 0;
         CREATE TEMPORARY TABLE held_open (n integer); INSERT INTO held_open VALUES (1)",
    )
    .await;
    let span = Duration::from_secs(if is_long() { 600 } else { 3 });
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < span {
        let sent = Instant::now();
        outbox
            .insert(&[event("a", number), event("b", number)])
            .await
            .unwrap();
        number += 1;
        until_drained(&outbox).await;
        assert!(
            sent.elapsed() < Duration::from_secs(30),
            "{:?}",
            sent.elapsed()
        );
    }
    open.rollback().await.unwrap();
    relay.stop().await;
    let (seen, repeated) = backend.first_occurrences().await;
    let expect: Vec<u64> = (0..number).collect();
    assert_eq!((&seen["a"], &seen["b"], repeated), (&expect, &expect, 0));
    audit(&outbox, &backend.log).await;
}

mod needs_postgres {
    use super::*;
    use crate::stores::{drop_schema, postgres, run, runtime};

    /// Between two rows of a key are so many others that the claim reads them for longer than the first still waits.
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn o04_a_row_whose_wait_ends_during_a_claim_is_not_overtaken() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let options = OutboxOptions {
                buckets: 1,
                ..OutboxOptions::default()
            };
            migrate(&store, &options).await.unwrap();
            let outbox = Outbox::open(&store, options, &Env::system()).await.unwrap();
            let first = outbox.insert(&[event("k", 1)]).await.unwrap()[0];
            run(
                &store,
                "INSERT INTO outbox_event (aggregate_id, type, attempts, next_attempt_at)
                 SELECT 'other-' || n, 'T', 1, now() + interval '1 hour' FROM generate_series(1, 20000) n",
            )
            .await;
            let second = outbox.insert(&[event("k", 2)]).await.unwrap()[0];
            run(&store, "ANALYZE outbox_event").await;
            let world = OutboxWorld::new(Arc::clone(outbox.store()));
            let relay = world.relay("one", LONG_LEASE).await;
            for _ in 0..3 {
                let wait = format!(
                    "UPDATE outbox_event SET next_attempt_at = clock_timestamp() + interval '100 milliseconds'
                     WHERE event_id = '{first}'"
                );
                run(&store, &wait).await;
                let claimed = loop {
                    let claimed = world.claim(&relay, 10).await;
                    if !claimed.rows.is_empty() {
                        break claimed;
                    }
                };
                assert_eq!(events(&claimed), [first, second]);
            }
            drop_schema(&store, &schema).await;
        });
    }
}

mod needs_kafka {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o05_a_transaction_that_began_early_and_wrote_late_comes_later() {
        on_servers(async |backend: &Backend| {
            let outbox = backend.outbox(backend.options()).await;
            let mut early = backend.store.begin().await.unwrap();
            // It has its number as a transaction before the other one begins.
            on(&mut early, "SELECT pg_current_xact_id()").await;
            let mut other = backend.store.begin().await.unwrap();
            add(&outbox, &mut other, "k", 1).await;
            other.commit().await.unwrap();
            add(&outbox, &mut early, "k", 2).await;
            early.commit().await.unwrap();
            let relay = RunningRelay::start(&outbox, &backend.log);
            until_drained(&outbox).await;
            relay.stop().await;
            assert_eq!(backend.first_occurrences().await.0["k"], [1, 2]);
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o05_strict_order_is_the_order_of_commits_for_writers_that_overlap() {
        on_servers(async |backend: &Backend| {
            let options = OutboxOptions {
                order: EventOrder::Strict,
                ..backend.options()
            };
            let outbox = Arc::new(backend.outbox(options).await);
            let mut first = backend.store.begin().await.unwrap();
            add(&outbox, &mut first, "k", 1).await;
            let mut second = backend.store.begin().await.unwrap();
            let waiting = Arc::clone(&outbox);
            let waits = tokio::spawn(async move {
                add(&waiting, &mut second, "k", 2).await;
                second.commit().await.unwrap();
            });
            // Another key does not wait.
            let mut other = backend.store.begin().await.unwrap();
            add(&outbox, &mut other, "o", 1).await;
            other.commit().await.unwrap();
            until("the second writer waits for the first", async || {
                let waiting =
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
                ask(&backend.store, waiting).await > 0
            })
            .await;
            first.commit().await.unwrap();
            waits.await.unwrap();
            let relay = RunningRelay::start(&outbox, &backend.log);
            until_drained(&outbox).await;
            relay.stop().await;
            assert_eq!(backend.first_occurrences().await.0["k"], [1, 2]);
            audit(&outbox, &backend.log).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o05_a_write_transaction_that_stays_open_stops_no_relay() {
        on_servers(async |backend: &Backend| publishes_beside(backend, &backend.store).await);
    }

    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o05_a_write_transaction_in_another_database_stops_no_relay() {
        on_servers(async |backend: &Backend| {
            let url = std::env::var("DATABASE_URL").unwrap();
            let (server, _) = url.rsplit_once('/').unwrap();
            let options = StoreOptions::new(format!("{server}/postgres"));
            let other = Store::open(&options, &Env::system()).await.unwrap();
            publishes_beside(backend, &other).await;
        });
    }

    /// A log that keeps its writers waiting until it is told.
    #[derive(Debug, Default)]
    struct Held {
        is_open: AtomicBool,
        waiting: AtomicUsize,
    }

    impl Weather for Arc<Held> {
        fn deliver<'a>(
            &'a self,
            beneath: &'a dyn Log,
            records: Vec<Append>,
        ) -> LogFuture<'a, Outcomes> {
            Box::pin(async move {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                while !self.is_open.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                beneath.deliver(records).await
            })
        }
    }

    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o13_no_transaction_is_open_over_a_publish_and_a_batch_is_two_statements() {
        on_servers(async |backend: &Backend| {
            // The server counts statements by their text, so the table has a name of its own.
            let table = unique("o13");
            let options = OutboxOptions {
                table: table.clone(),
                ..backend.options()
            };
            let outbox = backend.outbox(options.clone()).await;
            let events: Vec<_> = (0..400)
                .map(|n| event(&format!("k{}", n % 40), n / 40))
                .collect();
            outbox.insert(&events).await.unwrap();
            let held = Arc::new(Held::default());
            let log: Arc<dyn Log> = Arc::new(FrontLog {
                beneath: Arc::clone(&backend.log),
                weather: Arc::clone(&held),
            });
            let env = Env::system();
            let own = Store::open(&backend.reach, &env).await.unwrap();
            let its_outbox = Outbox::open(&own, options, &env).await.unwrap();
            let relay = RunningRelay::start(&its_outbox, &log);
            // Each of its lanes has a batch on its way.
            until("all lanes publish", async || {
                held.waiting.load(Ordering::SeqCst) == 4
            })
            .await;
            // A transaction that was open by now, and has touched a table of this schema, would not end before the publish.
            let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";
            let now = ask(&backend.store, now).await;
            let open = format!(
                "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                 JOIN pg_stat_activity a ON a.pid = l.pid
                 WHERE c.relnamespace = current_schema()::regnamespace
                   AND (extract(epoch FROM a.xact_start) * 1000000)::int8 < {now}"
            );
            until("no transaction is open", async || {
                ask(&backend.store, &open).await == 0
            })
            .await;
            assert_eq!(held.waiting.load(Ordering::SeqCst), 4);
            held.is_open.store(true, Ordering::SeqCst);
            until_drained(&outbox).await;
            let report = relay.stop().await;
            assert_eq!((report.sent, report.fenced), (400, 0));
            // The server counts what a session did when it ends, or seconds later.
            own.close().await.unwrap();
            let batches = i64::try_from(report.batches).unwrap();
            let calls = async |text: &str| {
                let sql = format!(
                    "SELECT coalesce(sum(calls), 0)::int8 FROM public.pg_stat_statements WHERE query LIKE '{text}'"
                );
                ask(&backend.store, &sql).await
            };
            let at_once = calls(&format!("WITH held AS%UPDATE {table} e SET status%")).await;
            let one_by_one = calls(&format!("UPDATE {table} SET status%")).await;
            assert_eq!((at_once, one_by_one), (batches, 0));
            // A claim that finds rows notes them, and its settle ends that note. The others have found nothing.
            let noted = format!(
                "SELECT (n_tup_ins + n_tup_upd)::int8 FROM pg_stat_user_tables WHERE relname = '{table}_claim'"
            );
            until("a claim and a settle per batch", async || {
                ask(&backend.store, &noted).await == 2 * batches
            })
            .await;
        });
    }

    /// A late row is found although the relay has gone past its number.
    #[test]
    #[ignore = "needs PostgreSQL and Kafka"]
    fn o04_a_row_that_is_committed_late_goes_before_the_next_of_its_key() {
        on_servers(async |backend: &Backend| {
            let outbox = backend.outbox(backend.options()).await;
            let relay = RunningRelay::start(&outbox, &backend.log);
            for round in 0..10 {
                let mut late = backend.store.begin().await.unwrap();
                add(&outbox, &mut late, "k", round * 2).await;
                // The relay goes far past the number of the row that is not there yet.
                let others: Vec<_> = (0..100).map(|n| event(&format!("o{n}"), round)).collect();
                outbox.insert(&others).await.unwrap();
                until_drained(&outbox).await;
                late.commit().await.unwrap();
                outbox.insert(&[event("k", round * 2 + 1)]).await.unwrap();
            }
            until_drained(&outbox).await;
            relay.stop().await;
            let expect: Vec<u64> = (0..20).collect();
            assert_eq!(backend.first_occurrences().await.0["k"], expect);
        });
    }
}
