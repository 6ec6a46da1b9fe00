//! Rows that other programs insert, and programs that hold a file.

use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{Classify, FailureClass};
use tidegate_queue::conformance::{LONG, World, completed};
use tidegate_queue::port::{EventFilter, QueueStatus};
use tidegate_queue::{Projector, ProjectorOptions, sql};
use tidegate_store::sqlx::{self, Connection};
use tidegate_store::{Store, StoreOptions, StoreTx};

use crate::stores::{drop_schema, postgres, runtime, sqlite};

async fn world(store: &Store) -> World {
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    World::new(queue.unwrap())
}

async fn insert(store: &Store, statement: &'static str) -> Result<(), sqlx::Error> {
    let mut tx = store.begin().await.unwrap();
    let query = sqlx::raw_sql(statement);
    let done = match &mut tx {
        StoreTx::Postgres(tx) => query.execute(tx.connection()).await.map(drop),
        StoreTx::Sqlite(tx) => query.execute(tx.connection()).await.map(drop),
    };
    match &done {
        Ok(()) => tx.commit().await.unwrap(),
        Err(_) => tx.rollback().await.unwrap(),
    }
    done
}

/// An insert cannot set the columns that the queue keeps itself, except to their defaults.
async fn columns_that_the_queue_keeps_itself_are_refused(store: Store) {
    let world = world(&store).await;
    let cases = [
        (
            "id",
            "INSERT INTO event_queue (type, payload, id) VALUES ('a', '{}', 7)",
        ),
        (
            "status",
            "INSERT INTO event_queue (type, payload, status) VALUES ('a', '{}', 'PROCESSING')",
        ),
        (
            "attempts",
            "INSERT INTO event_queue (type, payload, attempts) VALUES ('a', '{}', 3)",
        ),
        (
            "updated_at",
            "INSERT INTO event_queue (type, payload, updated_at)
             VALUES ('a', '{}', CURRENT_TIMESTAMP)",
        ),
        (
            "next_attempt_at",
            "INSERT INTO event_queue (type, payload, next_attempt_at)
             SELECT 'a', '{}', CURRENT_TIMESTAMP",
        ),
        (
            "locked_by",
            "INSERT INTO event_queue (type, payload, locked_by) VALUES ('a', '{}', 'me')",
        ),
        (
            "locked_until",
            "INSERT INTO event_queue (type, payload, locked_until)
             VALUES ('a', '{}', CURRENT_TIMESTAMP)",
        ),
        // One of many refuses them all.
        (
            "status",
            "INSERT INTO event_queue (type, payload, status)
             VALUES ('a', '{}', 'PENDING'), ('a', '{}', 'DONE')",
        ),
    ];
    for (column, statement) in cases {
        let error = insert(&store, statement).await.unwrap_err().to_string();
        let expected = format!("event_queue: {column} cannot be set by an insert");
        assert!(error.contains(&expected), "{statement}: {error}");
    }
    assert!(world.claim(10, LONG).await.is_empty());
    let plain = "INSERT INTO event_queue
                     (type, payload, status, attempts, next_attempt_at, locked_by)
                 VALUES ('a', '{}', 'PENDING', 0, NULL, NULL), ('a', '[]', NULL, NULL, NULL, NULL)";
    insert(&store, plain).await.unwrap();
    assert_eq!(world.claim(10, LONG).await.len(), 2);
    world.audit().await;
}

/// A tally counts what completed, and is built anew when that is asked for.
async fn a_tally_counts_by_type_and_key(store: Store) {
    let world = world(&store).await;
    world.publish("a", 3).await;
    for key in ["k", "k", "l"] {
        world.publish_keyed("b", key).await;
    }
    loop {
        let claimed = world.claim(10, LONG).await;
        if claimed.is_empty() {
            break;
        }
        let blocked = claimed.iter().filter(|event| !event.is_blocked).cloned();
        world
            .settle(&blocked.collect::<Vec<_>>(), &completed())
            .await;
    }
    let queue = world.queue();
    let options = ProjectorOptions {
        poll_delay: Duration::from_millis(5),
        ..ProjectorOptions::default()
    };
    let tally = sql::tally("orders_by_key").unwrap();
    let projector = Projector::new(&queue, vec![tally], options, &world.env);
    let running = tokio::spawn(projector.run(std::future::pending()));
    let expected = [("a", "", 3), ("b", "k", 2), ("b", "l", 1)];
    let mut rows = Vec::new();
    for _ in 0..1_000 {
        // Until it is built there is no table.
        rows = sql::read_tally(&queue, "orders_by_key")
            .await
            .unwrap_or_default();
        if rows.iter().map(|row| row.events).sum::<i64>() == 6 {
            break;
        }
        world.wait(Duration::from_millis(10)).await;
    }
    running.abort();
    let rows = rows
        .iter()
        .map(|row| (row.type_name.as_str(), row.key.as_str(), row.events));
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let injected = sql::read_tally(&queue, "orders; DROP TABLE x").await;
    assert!(injected.is_err());
}

/// Headers have names; a list would be dropped in silence when the event is delivered.
async fn headers_that_are_no_object_are_refused(store: Store) {
    for (statement, is_taken) in [
        (
            "INSERT INTO event_queue (type, payload, headers) VALUES ('a', '{}', '[1,2]')",
            false,
        ),
        (
            "INSERT INTO event_queue (type, payload, headers) VALUES ('a', '{}', '7')",
            false,
        ),
        (
            r#"INSERT INTO event_queue (type, payload, headers) VALUES ('a', '{}', '{"b":"c"}')"#,
            true,
        ),
    ] {
        let inserted = insert(&store, statement).await;
        assert_eq!(inserted.is_ok(), is_taken, "{statement}: {inserted:?}");
    }
}

#[test]
fn an_event_that_is_no_text_ends_among_the_dead_letters_and_stops_nobody() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let world = world(&store).await;
        for statement in [
            "INSERT INTO event_queue (type, payload) VALUES ('a', '{}')",
            "INSERT INTO event_queue (type, payload) VALUES (CAST(X'61ff' AS text), '{}')",
            "INSERT INTO event_queue (type, payload, key) VALUES ('a', '{}', CAST(X'ff' AS text))",
            "INSERT INTO event_queue (type, payload) VALUES ('a', CAST(X'22ff22' AS text))",
            "INSERT INTO event_queue (type, payload, headers)
             VALUES ('a', '{}', CAST(X'7b226b223a22ff227d' AS text))",
            "INSERT INTO event_queue (type, payload) VALUES ('a', '{\"ok\":\"ü\"}')",
        ] {
            insert(&store, statement).await.unwrap();
        }
        for statement in [
            "INSERT INTO event_queue (type, payload, event_id)
             VALUES ('a', '{}', '019a8f3e-5c00-7abc-8def-0123456789ab' || char(0) || 'x')",
            "INSERT INTO event_queue (type, payload, event_id)
             VALUES ('a', '{}', CAST('019a8f3e-5c00-7abc-8def-0123456789ab' AS blob))",
        ] {
            // A blob becomes a text on its way through the trigger, and is an id then.
            if insert(&store, statement).await.is_ok() {
                world.audit().await;
            }
        }
        let claimed = world.claim(10, LONG).await;
        assert!(claimed.len() >= 2, "{claimed:?}");
        assert!(claimed.iter().all(|event| event.type_name == "a"));
        assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
        world.audit().await;
        let filter = EventFilter {
            status: Some(QueueStatus::CompletedWithErrors),
            limit: 100,
            ..EventFilter::default()
        };
        let dead = world.store.list(&filter).await.unwrap();
        assert_eq!(dead.len(), 4);
        for one in &dead {
            let error = one.errors[0].error.as_deref().unwrap();
            assert!(error.starts_with("queue.unreadable"), "{error}");
        }
        // Giving it back ends it again, and harms nobody.
        world.store.redrive(dead[0].id).await.unwrap();
        assert!(world.claim(10, LONG).await.is_empty());
        assert_eq!(world.store.list(&filter).await.unwrap().len(), 4);
        world.audit().await;
    });
}

#[test]
fn a10_every_call_ends_though_somebody_else_holds_the_file() {
    const LIMIT: Duration = Duration::from_millis(300);
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let patient = world(&sqlite(&dir).await).await;
        let id = patient.publish("a", 2).await[0];
        let claimed = patient.claim(1, LONG).await;
        let url = format!("sqlite://{}", dir.path().join("queue.db").display());
        let mut options = StoreOptions::new(&url);
        options.timeout = LIMIT;
        let hasty = Store::open(&options, &Env::system()).await.unwrap();
        let world = world(&hasty).await;
        let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(&mut other)
            .await
            .unwrap();
        let event = [world.event("a")];
        let calls = async {
            let mut failures = Vec::new();
            let began = Instant::now();
            failures.push(world.store.publish(&event).await.unwrap_err());
            failures.push(world.store.begin().await.unwrap_err());
            failures.push(world.store.cancel(id + 1).await.unwrap_err());
            failures.push(world.store.clean(None).await.unwrap_err());
            let held = [claimed[0].claim.lease];
            failures.push(world.store.renew(&held, LONG).await.unwrap_err());
            (failures, began.elapsed())
        };
        let ended = tokio::time::timeout(LONG, calls).await;
        let (failures, took) = ended.expect("a call did not end");
        assert!(took > LIMIT, "{took:?}");
        for error in &failures {
            assert_eq!(error.class(), FailureClass::Transient, "{error}");
        }
        // Reading goes on meanwhile.
        assert_eq!(world.store.stats().await.unwrap().pending, 1);
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        // A call that failed may have happened only where the error says so.
        patient.audit().await;
        assert_eq!(patient.settle(&claimed, &completed()).await, [0_i64; 0]);
        // A transaction of our own that stays open holds up the others no longer than the limit.
        let open = world.store.begin().await.unwrap();
        let publish = tokio::time::timeout(LONG, world.store.publish(&event)).await;
        assert!(publish.expect("the call did not end").is_err());
        open.rollback().await.unwrap();
        patient.publish("a", 1).await;
        patient.audit().await;
    });
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
        fn columns_that_the_queue_keeps_itself_are_refused() {
            $run!(super::columns_that_the_queue_keeps_itself_are_refused);
        }

        #[test]
        $(#[$attribute])*
        fn headers_that_are_no_object_are_refused() {
            $run!(super::headers_that_are_no_object_are_refused);
        }

        #[test]
        $(#[$attribute])*
        fn a_tally_counts_by_type_and_key() {
            $run!(super::a_tally_counts_by_type_and_key);
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
