//! SQLite ends a transaction by itself when the disk is full, or when a statement says so. A caller that
//! overlooks that gets nothing of it, as on PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::conformance::World;
use tidegate_queue::conformance::dispatchers::{Running, quick};
use tidegate_queue::port::QueueStatus;
use tidegate_queue::{Dispatcher, Handled, NewEvent, Tx, sql};
use tidegate_store::{Store, sqlx};

use crate::stores::{runtime, sqlite};

async fn run(tx: &mut Tx, sql: &'static str) -> Result<(), sqlx::Error> {
    let connection = tx.sqlite().unwrap();
    sqlx::raw_sql(sql).execute(connection).await.map(drop)
}

async fn count(store: &Store, sql: &'static str) -> i64 {
    let Store::Sqlite(file) = store else {
        panic!("it is SQLite");
    };
    let counted = file.read("count", move |connection| {
        Box::pin(sqlx::query_scalar(sql).fetch_one(connection))
    });
    counted.await.unwrap()
}

/// A table with one row, in which the same row again ends the whole transaction.
async fn world(dir: &tempfile::TempDir) -> (Store, World) {
    let store = sqlite(dir).await;
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    let world = World::new(queue.unwrap());
    let mut tx = world.store.begin().await.unwrap();
    run(
        &mut tx,
        "CREATE TABLE orders (n integer PRIMARY KEY); INSERT INTO orders VALUES (1)",
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
    (store, world)
}

#[test]
fn q08_nothing_is_published_in_a_transaction_that_has_ended() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = world(&dir).await;
        for is_committed in [true, false] {
            let mut tx = world.store.begin().await.unwrap();
            let (before, after) = ([world.event("a")], [world.event("a")]);
            world.store.publish_in(&mut tx, &before).await.unwrap();
            run(&mut tx, "INSERT INTO orders VALUES (2)").await.unwrap();
            let ended = run(&mut tx, "INSERT OR ROLLBACK INTO orders VALUES (1)").await;
            assert!(ended.is_err());
            let published = world.store.publish_in(&mut tx, &after).await;
            let error = published.unwrap_err();
            assert!(!error.may_have_happened(), "{error:?}");
            // Nor does a row of one's own stay that was written behind it.
            assert!(run(&mut tx, "INSERT INTO orders VALUES (3)").await.is_err());
            if is_committed {
                let error = tx.commit().await.unwrap_err();
                assert!(!error.may_have_happened(), "{error:?}");
            } else {
                tx.rollback().await.ok();
            }
            assert_eq!(count(&store, "SELECT count(*) FROM orders").await, 1);
            assert_eq!(world.store.account().await.unwrap().accepted, 0);
            world.audit().await;
        }
        // The next caller has a transaction of its own.
        let mut tx = world.store.begin().await.unwrap();
        let event = [world.event("a")];
        world.store.publish_in(&mut tx, &event).await.unwrap();
        tx.commit().await.unwrap();
        world.publish("a", 1).await;
        assert_eq!(world.store.account().await.unwrap().accepted, 2);
        world.audit().await;
    });
}

#[test]
fn q16_a_handler_whose_transaction_has_ended_did_nothing() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = world(&dir).await;
        let id = world.publish("a", 1).await[0];
        let calls = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&calls);
        let follow = world.event("follow");
        let builder = Dispatcher::builder(world.queue()).options(quick());
        let builder = builder.register_raw("one", "a", move |_, context| {
            let is_early = seen.fetch_add(1, Ordering::Relaxed) < 2;
            let follow: NewEvent = follow.clone();
            Box::pin(async move {
                if let Err(error) = context.once("label").await {
                    return error.into();
                }
                let tx = context.transaction().await.unwrap();
                run(tx, "INSERT INTO orders SELECT 10 + count(*) FROM orders")
                    .await
                    .unwrap();
                if is_early {
                    let ended = run(tx, "INSERT OR ROLLBACK INTO orders VALUES (1)").await;
                    assert!(ended.is_err());
                    // Overlooked, and so is what comes of this.
                    run(tx, "INSERT INTO orders SELECT 100 + count(*) FROM orders")
                        .await
                        .ok();
                }
                context.publish_raw(follow).unwrap();
                Handled::Success
            })
        });
        let running = Running::start(&world, builder.unwrap());
        world.finalized(1).await;
        running.stop().await;
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        let shown = world.store.show(id).await.unwrap().unwrap();
        assert_eq!(shown.status, QueueStatus::Completed);
        let count = async |sql| count(&store, sql).await;
        assert_eq!(count("SELECT count(*) FROM orders").await, 2);
        assert_eq!(count("SELECT count(*) FROM event_inbox").await, 1);
        let follows = "SELECT count(*) FROM event_queue WHERE type = 'follow'";
        assert_eq!(count(follows).await, 1);
        world.audit().await;
    });
}

#[test]
fn q20_a_projection_whose_transaction_has_ended_stays_where_it_is() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = world(&dir).await;
        let leadership = world
            .store
            .acquire_leadership("t", "me", Duration::from_secs(60));
        let leadership = leadership.await.unwrap().unwrap();
        let mut tx = world.store.begin().await.unwrap();
        let ended = run(&mut tx, "INSERT OR ROLLBACK INTO orders VALUES (1)").await;
        assert!(ended.is_err());
        let advanced = world.store.advance(tx, &leadership, "p", 0, 5).await;
        assert!(advanced.is_err());
        assert_eq!(world.store.projection("p").await.unwrap(), 0);
        assert_eq!(count(&store, "SELECT count(*) FROM orders").await, 1);
        let tx = world.store.begin().await.unwrap();
        assert!(
            world
                .store
                .advance(tx, &leadership, "p", 0, 5)
                .await
                .unwrap()
        );
        assert_eq!(world.store.projection("p").await.unwrap(), 5);
    });
}
