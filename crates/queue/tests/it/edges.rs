//! Rows that the databases refuse, and rows that people write by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{Code, Failure};
use tidegate_queue::conformance::dispatchers::{Running, quick};
use tidegate_queue::conformance::{LONG, World};
use tidegate_queue::port::{EventFilter, QueueStatus};
use tidegate_queue::{Dispatcher, Handled, Queue, sql};
use tidegate_store::{Store, sqlx};

use crate::stores::{runtime, sqlite};

/// One of five events whose result the store refuses, as it refuses it on and on. Each is tried so often
/// before; whatever was tried has a row of its own.
async fn one_refused_result(world: &World, tried: usize) {
    let ids = world.publish("a", 5).await;
    let bad = ids[2];
    let called = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::clone(&called);
    let builder = Dispatcher::builder(world.queue()).options(quick());
    let builder = builder.register_raw("one", "a", move |event, _| {
        let number = event.number();
        let mut calls = calls.lock().unwrap();
        let is_tried = calls.iter().filter(|call| **call == number).count() == tried;
        calls.push(number);
        Box::pin(async move {
            let text = match is_tried {
                true if number != bad => return Handled::Success,
                true => "poison",
                false => "not yet",
            };
            let failure = Failure::transient(Code::from_static("test.bad"), text);
            Handled::TransientError(failure)
        })
    });
    let running = Running::start(world, builder.unwrap());
    world.finalized(5).await;
    running.stop().await;
    let mut called = called.lock().unwrap().clone();
    called.sort_unstable();
    let wanted = ids
        .iter()
        .flat_map(|id| std::iter::repeat_n(*id, tried + 1));
    assert_eq!(called, wanted.collect::<Vec<_>>(), "each of them so often");
    let shown = world.store.show(bad).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
    let text = shown.errors[0].error.clone().unwrap();
    assert!(text.contains("refused"), "{text}");
    world.audit().await;
}

async fn on_sqlite(dir: &tempfile::TempDir) -> (Store, World) {
    let store = sqlite(dir).await;
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    (store, World::new(queue.unwrap()))
}

async fn write(store: &Store, sql: &'static str) -> Result<(), tidegate_store::StoreError> {
    let Store::Sqlite(file) = store else {
        panic!("it is SQLite");
    };
    let written = file.write("write by hand", move |connection| {
        Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
    });
    written.await.map(drop)
}

#[test]
fn a_result_that_is_refused_harms_no_other_event() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = on_sqlite(&dir).await;
        let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON tidegate_handler_state
            WHEN NEW.error LIKE '%poison%' BEGIN SELECT RAISE(ABORT, 'not this'); END";
        write(&store, refuse).await.unwrap();
        one_refused_result(&world, 0).await;
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = on_sqlite(&dir).await;
        write(&store, refuse).await.unwrap();
        one_refused_result(&world, 1).await;
    });
}

#[test]
fn rows_that_could_not_be_claimed_are_refused_by_the_table() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = on_sqlite(&dir).await;
        let bad = [
            "INSERT INTO event_queue (type, payload, event_id) VALUES ('a', '{}', 'seven')",
            "INSERT INTO event_queue (type, payload, event_id)
             VALUES ('a', '{}', '019a8f3e-5c00-7abc-8def-0123456789ag')",
            "INSERT INTO event_queue (type, payload, event_id)
             VALUES ('a', '{}', '019a8f3e5c007abc8def0123456789abcdef')",
            "INSERT INTO event_queue (type, payload, created_at) VALUES ('a', '{}', 'today')",
            "INSERT INTO event_queue (type, payload, created_at) VALUES ('a', '{}', -1)",
            "INSERT INTO event_queue (type, payload, created_at)
             VALUES ('a', '{}', -9223372036854775808)",
            "INSERT INTO event_queue (type, payload, created_at)
             VALUES ('a', '{}', 253402300800000)",
            "INSERT INTO event_queue (type, payload) VALUES ('a' || char(0) || 'b', '{}')",
            "INSERT INTO event_queue (type, payload, key) VALUES ('a', '{}', char(0))",
            "INSERT INTO event_queue (type, payload) VALUES ('a', '{}' || char(0) || 'garbage')",
            "INSERT INTO event_queue (type, payload, headers)
             VALUES ('a', '{}', '{}' || char(0) || '{}')",
            "INSERT INTO event_queue (type, payload, key) VALUES ('a', '{}', x'ff00')",
            "INSERT INTO event_queue (type, payload) VALUES (x'ff00', '{}')",
            "INSERT INTO event_queue (type, payload) VALUES ('', '{}')",
            "INSERT INTO event_queue (type, payload, headers) VALUES ('a', '{}', 'x: 1')",
            "INSERT INTO event_queue (type, payload, key)
             VALUES ('a', '{}', hex(zeroblob(600)))",
        ];
        for sql in bad {
            assert!(write(&store, sql).await.is_err(), "{sql}");
        }
        let good = "INSERT INTO event_queue (type, payload, headers) VALUES ('a', '{}', '{}')";
        write(&store, good).await.unwrap();
        assert_eq!(world.claim(10, LONG).await.len(), 1);
        world.audit().await;
    });
}

/// A program that switches the checks of SQLite off harms nothing but the event.
#[test]
fn a_row_that_the_table_should_have_refused_stops_nobody_and_hides_nobody() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, world) = on_sqlite(&dir).await;
        let unchecked = "PRAGMA ignore_check_constraints = on;
            INSERT INTO event_queue (type, payload, created_at)
            VALUES ('a', '{}', -9223372036854775808);
            INSERT INTO event_queue (type, payload, created_at)
            VALUES ('a', '{}', 9223372036854775807);
            INSERT INTO event_queue (type, payload) VALUES ('a', '{}' || char(0) || 'garbage');
            PRAGMA ignore_check_constraints = off";
        write(&store, unchecked).await.unwrap();
        world.publish("a", 1).await;
        assert!(world.store.stats().await.unwrap().oldest_age_seconds > 0.0);
        let filter = EventFilter {
            limit: 10,
            ..EventFilter::default()
        };
        let listed = world.store.list(&filter).await.unwrap();
        assert_eq!(listed.len(), 4);
        assert_eq!(listed[2].payload.get(), r#""{}\u0000garbage""#);
        let builder = Dispatcher::builder(world.queue()).options(quick());
        let act = builder.register_raw("one", "a", |_, _| Box::pin(async { Handled::Success }));
        let running = Running::start(&world, act.unwrap());
        world.finalized(4).await;
        assert_eq!(running.stop().await.finalized, 4);
        world.audit().await;
    });
}

mod needs_postgres {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tidegate_queue::port::{HandlerCommit, HandlerResult, HandlerState};
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::stores::{drop_schema, is_soon, postgres, process_of, run};

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_result_that_is_refused_harms_no_other_event() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let queue = sql::queue_store(store.clone(), &Env::system()).await;
            let refuse = "ALTER TABLE tidegate_handler_state ADD CHECK (error NOT LIKE '%poison%')";
            run(&store, refuse.to_owned()).await;
            one_refused_result(&World::new(queue.unwrap()), 1).await;
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn rows_that_could_not_be_read_are_refused_by_the_table() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let Store::Postgres(server) = &store else {
                panic!("it is PostgreSQL");
            };
            let queue = sql::queue_store(store.clone(), &Env::system()).await;
            let world = World::new(queue.unwrap());
            let bad = [
                "INSERT INTO event_queue (type, payload, created_at) VALUES ('a', '{}', 'infinity')",
                "INSERT INTO event_queue (type, payload, created_at) VALUES ('a', '{}', '4713-01-01 BC')",
                "INSERT INTO event_queue (type, payload, created_at) VALUES ('a', '{}', '10000-01-01+00')",
                "INSERT INTO event_queue (type, payload, key) VALUES ('a', '{}', repeat('k', 1025))",
                "INSERT INTO event_queue (type, payload) VALUES (repeat('t', 256), '{}')",
                "INSERT INTO event_queue (type, payload) VALUES ('', '{}')",
            ];
            for sql in bad {
                let written = server.run("write by hand", move |connection| {
                    Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
                });
                assert!(written.await.is_err(), "{sql}");
            }
            assert!(world.claim(10, LONG).await.is_empty());
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn who_may_only_add_events_adds_them_from_anywhere() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let queue = sql::queue_store(store.clone(), &Env::system()).await;
            let world = World::new(queue.unwrap());
            let insert = format!(
                "CREATE ROLE {schema}; GRANT USAGE ON SCHEMA {schema} TO {schema}; \
                 GRANT INSERT ON event_queue TO {schema}; \
                 GRANT USAGE ON SEQUENCE tidegate_event_id TO {schema}; \
                 SET LOCAL ROLE {schema}; SET LOCAL search_path = pg_catalog; \
                 CREATE TEMP TABLE tidegate_posting (component text, bucket text, from_place text, \
                 to_place text, count bigint, id_sum uuid) ON COMMIT DROP; \
                 INSERT INTO {schema}.event_queue (type, payload) VALUES ('a', '{{}}'), ('a', '{{}}')"
            );
            run(&store, insert).await;
            assert_eq!(world.claim(10, LONG).await.len(), 2);
            // To be told the number takes the right to read.
            let returning = format!(
                "GRANT SELECT ON event_queue TO {schema}; SET LOCAL ROLE {schema}; \
                 INSERT INTO {schema}.event_queue (type, payload) VALUES ('a', '{{}}') RETURNING id"
            );
            run(&store, returning).await;
            assert_eq!(world.claim(10, LONG).await.len(), 1);
            let recount = world.store.recount().await.unwrap();
            assert_eq!(recount.unaccounted(), 0, "{recount:?}");
            drop_schema(&store, &schema).await;
            let end = format!("DROP ROLE {schema}");
            run(&store, end).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_claim_that_could_not_see_its_rivals_is_refused() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            drop(sql::queue_store(store.clone(), &Env::system()).await.unwrap());
            let Store::Postgres(server) = &store else {
                panic!("it is PostgreSQL");
            };
            let blind = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tidegate_claim(1, 'a', 1000); COMMIT";
            let claimed = server.run("claim", move |connection| {
                Box::pin(async move { sqlx::raw_sql(blind).execute(connection).await })
            });
            let refused = format!("{:?}", claimed.await.unwrap_err());
            assert!(refused.contains("needs read committed"), "{refused}");
            run(&store, format!("ROLLBACK; DROP SCHEMA {schema} CASCADE")).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_handler_that_overlooks_an_error_of_its_transaction_is_told() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let queue = sql::queue_store(store.clone(), &Env::system()).await;
            let world = World::new(queue.unwrap());
            let id = world.publish("a", 1).await[0];
            let mut options = quick();
            options.lease = LONG;
            let builder = Dispatcher::builder(world.queue()).options(options);
            let builder = builder.register_raw("one", "a", |event, context| {
                let attempt = event.attempt;
                Box::pin(async move {
                    let tx = context.transaction().await.unwrap();
                    if attempt == 1 {
                        let sql = "SELECT 1 / 0";
                        let connection = tx.postgres().unwrap();
                        assert!(sqlx::raw_sql(sql).execute(connection).await.is_err());
                    }
                    Handled::Success
                })
            });
            let running = Running::start(&world, builder.unwrap());
            world.finalized(1).await;
            running.stop().await;
            let shown = world.store.show(id).await.unwrap().unwrap();
            assert_eq!((shown.status, shown.attempts), (QueueStatus::Completed, 2));
            drop_schema(&store, &schema).await;
        });
    }

    /// A server that stands still: what is sent to it stays on the way once `is_still` is set.
    async fn poison_state(to: String, is_still: Arc<AtomicBool>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&to).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass_on(from_client, to_server, Arc::clone(&is_still)));
                tokio::spawn(pass_on(from_server, to_client, Arc::clone(&is_still)));
            }
        });
        port
    }

    async fn pass_on(
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        is_still: Arc<AtomicBool>,
    ) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            while is_still.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a10_every_call_of_a_transaction_ends_though_the_server_stands_still() {
        // Long beside what a busy server takes for what is prepared.
        const LIMIT: Duration = Duration::from_secs(2);
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let url = std::env::var("DATABASE_URL").unwrap();
            let (before, rest) = url.rsplit_once("127.0.0.1:").unwrap();
            let (port, after) = rest.split_once('/').unwrap();
            let is_still = Arc::new(AtomicBool::new(false));
            let through = poison_state(format!("127.0.0.1:{port}"), Arc::clone(&is_still)).await;
            let url = format!("{before}127.0.0.1:{through}/{after}");
            let mut options = tidegate_store::StoreOptions::new(url);
            options.schema = Some(schema.clone());
            options.timeout = LIMIT;
            let hasty = Store::open(&options, &Env::system()).await.unwrap();
            let queue = sql::queue_store(hasty.clone(), &Env::system()).await;
            let world = World::new(queue.unwrap());
            world.publish("a", 1).await;
            let claimed = world.claim(1, LONG).await;
            let leadership = world.store.acquire_leadership("t", "me", LONG).await;
            let leadership = leadership.unwrap().unwrap();
            let mut publishing = world.store.begin().await.unwrap();
            let recording = world.store.begin().await.unwrap();
            let advancing = world.store.begin().await.unwrap();
            let mut checking = hasty.begin().await.unwrap();
            let commit = HandlerCommit {
                claim: claimed[0].claim.clone(),
                state: HandlerState {
                    handler: "one".to_owned(),
                    result: HandlerResult::Success,
                    attempts: 1,
                    error: None,
                },
                follow_ups: Vec::new(),
                done: Vec::new(),
                event_id: claimed[0].claim.event_id,
            };
            let lease = tidegate_store::lease::Lease {
                name: leadership.name.clone(),
                token: leadership.token,
            };
            let event = [world.event("a")];
            is_still.store(true, Ordering::SeqCst);
            let calls = async {
                tokio::join!(
                    world.store.publish_in(&mut publishing, &event),
                    world.store.record(Some(recording), &commit),
                    world.store.advance(advancing, &leadership, "p", 0, 0),
                    tidegate_store::lease::holds(&mut checking, &lease),
                    world.store.swap(&leadership, "p", "p#rebuild", &[], &[]),
                    world.store.cancel(1),
                )
            };
            let ended = tokio::time::timeout(LONG, calls).await;
            let (published, recorded, advanced, held, swapped, canceled) =
                ended.expect("a call did not end");
            assert!(published.is_err() && advanced.is_err() && held.is_err());
            assert!(!recorded.unwrap_err().may_have_happened());
            assert!(swapped.is_err() && canceled.is_err());
            // The call that is on its way arrives now, and must not keep its transaction open.
            drop((publishing, checking));
            is_still.store(false, Ordering::SeqCst);
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_handler_that_idles_in_its_transaction_is_told() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let url = std::env::var("DATABASE_URL").unwrap();
            let mut options = tidegate_store::StoreOptions::new(url);
            options.schema = Some(schema.clone());
            options.idle_transaction = Duration::from_millis(100);
            let hasty = Store::open(&options, &Env::system()).await.unwrap();
            let hasty = sql::queue_store(hasty, &Env::system()).await.unwrap();
            // The dispatcher alone is in a hurry: a busy machine may idle in what the test itself asks, too.
            let patient = sql::queue_store(store.clone(), &Env::system()).await;
            let world = World::new(patient.unwrap());
            let id = world.publish("a", 1).await[0];
            let queue = Queue::on(hasty, &Env::system());
            let builder = Dispatcher::builder(queue).options(quick());
            let looking = store.clone();
            let builder = builder.register_raw("one", "a", move |event, context| {
                let (attempt, looking) = (event.attempt, looking.clone());
                Box::pin(async move {
                    let tx = context.transaction().await.unwrap();
                    if attempt == 1 {
                        let process = process_of(tx).await;
                        let is_ended = format!(
                            "NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = {process})"
                        );
                        assert!(is_soon(&looking, &is_ended).await);
                    }
                    Handled::Success
                })
            });
            let running = Running::start(&world, builder.unwrap());
            world.finalized(1).await;
            running.stop().await;
            let shown = world.store.show(id).await.unwrap().unwrap();
            assert_eq!(shown.status, QueueStatus::Completed);
            // A busy machine may idle a second time.
            assert!(shown.attempts >= 2, "{}", shown.attempts);
            drop_schema(&store, &schema).await;
        });
    }
}
