//! Rows that retention and clean-up remove, and events that nobody waits for any more.

use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::conformance::{LONG, SHORT, World, completed, numbers};
use tidegate_queue::port::{HandlerCommit, HandlerResult, HandlerState};
use tidegate_queue::sql;
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Store, StoreTx};

use crate::stores::{drop_schema, postgres, runtime, sqlite};

async fn world(store: &Store) -> World {
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    World::new(queue.unwrap())
}

async fn execute(store: &Store, statement: String) {
    let mut tx = store.begin().await.unwrap();
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    match &mut tx {
        StoreTx::Postgres(tx) => query.execute(tx.connection()).await.map(drop).unwrap(),
        StoreTx::Sqlite(tx) => query.execute(tx.connection()).await.map(drop).unwrap(),
    }
    tx.commit().await.unwrap();
}

async fn count(store: &Store, table: &str) -> i64 {
    let mut tx = store.begin().await.unwrap();
    let sql = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let count = match &mut tx {
        StoreTx::Postgres(tx) => sqlx::query_scalar(sql).fetch_one(tx.connection()).await,
        StoreTx::Sqlite(tx) => sqlx::query_scalar(sql).fetch_one(tx.connection()).await,
    };
    tx.rollback().await.unwrap();
    count.unwrap()
}

/// A batch that lists an event which is gone altogether ends with the others, and the event is missed.
async fn a_batch_does_not_outlive_its_events(store: Store) {
    let world = world(&store).await;
    let ids = world.publish("a", 3).await;
    let claimed = world.claim(3, SHORT).await;
    let gone = format!("DELETE FROM tidegate_event WHERE id = {}", ids[1]);
    execute(&store, gone).await;
    world.wait(SHORT * 2).await;
    let again = world.claim(3, SHORT).await;
    assert_eq!(numbers(&again), [ids[0], ids[2]]);
    world.settle(&again, &completed()).await;
    assert_eq!(count(&store, "tidegate_batch").await, 0);
    // Nor does one of which nothing is left.
    let alone = world.publish("a", 1).await;
    world.claim(1, SHORT).await;
    let gone = format!("DELETE FROM tidegate_event WHERE id = {}", alone[0]);
    execute(&store, gone).await;
    world.wait(SHORT * 2).await;
    assert!(world.claim(1, SHORT).await.is_empty());
    assert_eq!(count(&store, "tidegate_batch").await, 0);
    let recount = world.store.recount().await.unwrap();
    assert_eq!(recount.unaccounted(), 2);
    // One that is missing alone is named.
    let named = recount.missing.iter().any(|one| one.id.is_some());
    let together = recount.missing.iter().any(|one| one.count == 2);
    assert!(named || together, "{:?}", recount.missing);
    assert_eq!(claimed.len(), 3);
}

/// Guards go with the event that they guard, and not before; cancels go once no claim meets them.
async fn guards_and_cancels_are_removed_with_what_they_are_about(store: Store) {
    let world = world(&store).await;
    world.publish("a", 2).await;
    let claimed = world.claim(2, LONG).await;
    for event in &claimed {
        let commit = HandlerCommit {
            claim: event.claim.clone(),
            state: HandlerState {
                handler: "one".to_owned(),
                result: HandlerResult::Success,
                attempts: 1,
                error: None,
            },
            follow_ups: Vec::new(),
            done: vec!["mail".to_owned(), "invoice".to_owned()],
            event_id: event.claim.event_id,
        };
        assert!(world.store.record(None, &commit).await.unwrap());
    }
    world.settle(&claimed[..1], &completed()).await;
    world.store.sequence(100).await.unwrap();
    world.store.clean(None).await.unwrap();
    assert_eq!(count(&store, "event_inbox").await, 4);
    world.wait(Duration::from_millis(5)).await;
    let cleaned = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cleaned.events, 1);
    assert_eq!(count(&store, "event_inbox").await, 2);
    let open = claimed[1].claim.event_id;
    assert!(
        world
            .store
            .is_done(None, "one", open, "mail")
            .await
            .unwrap()
    );
    let waiting = world.publish("a", 2).await;
    world.store.cancel(waiting[0]).await.unwrap();
    world.store.clean(None).await.unwrap();
    // The claim has not come by it yet.
    assert_eq!(count(&store, "tidegate_canceled").await, 1);
    assert_eq!(numbers(&world.claim(5, LONG).await), waiting[1..]);
    world.store.clean(None).await.unwrap();
    assert_eq!(count(&store, "tidegate_canceled").await, 0);
    assert!(world.claim(5, LONG).await.is_empty());
    world.audit().await;
}

/// One clean-up removes many small groups.
async fn retention_goes_on_while_there_is_work(store: Store) {
    let world = world(&store).await;
    let many = tidegate_sim::scaled(20_000) as usize;
    world.publish("a", many).await;
    // One group for each event, as single settles write them.
    let by_hand = match &store {
        Store::Postgres(_) => {
            "WITH done AS (SELECT id FROM tidegate_event),
             grouped AS (INSERT INTO tidegate_log_batch (id, finalized_at, ids)
                 SELECT id, now() - interval '1 hour', ARRAY[id] FROM done),
             placed AS (INSERT INTO tidegate_sequence (batch, position, count)
                 SELECT id, id, 1 FROM done)
             INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed)
             SELECT id, id, 0, 1, false FROM done;
             INSERT INTO tidegate_cursor (position) SELECT max(id) FROM tidegate_event"
        }
        Store::Sqlite(_) => {
            "INSERT INTO tidegate_log_batch (id, finalized_at, ids)
                 SELECT id, 0, '[' || id || ']' FROM tidegate_event;
             INSERT INTO tidegate_sequence (batch, position, count)
                 SELECT id, id, 1 FROM tidegate_event;
             INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed)
                 SELECT id, id, 0, 1, false FROM tidegate_event;
             UPDATE tidegate_queue SET cursor = (SELECT max(id) FROM tidegate_event)"
        }
    };
    execute(&store, by_hand.to_owned()).await;
    let old = Some(Duration::from_secs(60));
    let cleaned = world.store.clean(old).await.unwrap();
    assert_eq!(cleaned.events, many as u64);
    assert_eq!(count(&store, "tidegate_event").await, 0);
    // The newest position stays, so that the next one follows it.
    assert_eq!(count(&store, "tidegate_log_batch").await, 1);
    assert_eq!(count(&store, "tidegate_sequence").await, 1);
}

macro_rules! on_sqlite {
    ($rule:path) => {
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            $rule(sqlite(&dir).await).await;
        })
    };
}

macro_rules! on_postgres {
    ($rule:path) => {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            $rule(store.clone()).await;
            drop_schema(&store, &schema).await;
        })
    };
}

macro_rules! rules {
    ($run:ident, $(#[$attribute:meta])*) => {
        #[test]
        $(#[$attribute])*
        fn a_batch_does_not_outlive_its_events() {
            $run!(super::a_batch_does_not_outlive_its_events);
        }

        #[test]
        $(#[$attribute])*
        fn guards_and_cancels_are_removed_with_what_they_are_about() {
            $run!(super::guards_and_cancels_are_removed_with_what_they_are_about);
        }

        #[test]
        $(#[$attribute])*
        fn retention_goes_on_while_there_is_work() {
            $run!(super::retention_goes_on_while_there_is_work);
        }
    };
}

mod on_sqlite_file {
    use super::{runtime, sqlite};
    rules!(on_sqlite,);
}

mod needs_postgres {
    use super::{drop_schema, postgres, runtime};
    rules!(on_postgres, #[ignore = "needs PostgreSQL"]);
}
