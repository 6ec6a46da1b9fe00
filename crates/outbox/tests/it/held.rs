//! The four cases of PostgreSQL: what is open elsewhere neither stops a relay nor changes an order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_outbox::{EventOrder, Outbox, OutboxOptions};
use tidegate_sim::is_long;
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreOptions, StoreTx, sqlx};

use crate::backend::{Backend, RunningRelay, audit, event, on_servers, until, until_drained};
use crate::stores::ask;

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
            sent.elapsed() < Duration::from_secs(5),
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
