//! Rules that only a real server can show.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{Clock, Env, Sleep};
use tidegate_queue::conformance::dispatchers::{Running, quick};
use tidegate_queue::conformance::{LONG, World, completed};
use tidegate_queue::port::{Settlement, Transition};
use tidegate_queue::{Dispatcher, DispatcherOptions, Handled, sql};
use tidegate_sim::is_long;
use tidegate_store::sqlx::{self, AssertSqlSafe, Row};
use tidegate_store::{Store, StoreOptions};

use crate::stores::{OnServer, drop_schema, is_soon, postgres, run, runtime, with_postgres, world};

/// A clock of a host that is five minutes ahead.
#[derive(Debug)]
struct Ahead(SystemClock);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        self.0.now() + Duration::from_secs(300)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}

async fn number(store: &Store, sql: &'static str) -> i64 {
    let Store::Postgres(postgres) = store else {
        panic!("only for PostgreSQL");
    };
    let call = postgres.run("ask", move |connection| {
        Box::pin(async move { sqlx::query_scalar(sql).fetch_one(connection).await })
    });
    call.await.unwrap()
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q04_a_host_whose_clock_is_ahead_takes_no_live_claim() {
        with_postgres(async |server: &OnServer| {
            let world = &server.world;
            let options = server.options();
            let mut env = Env::system();
            env.clock = Arc::new(Ahead(SystemClock::new()));
            let ahead = Store::open(&options, &env).await.unwrap();
            let ahead = sql::queue_store(ahead, &env).await.unwrap();
            world.publish("a", 3).await;
            let claimed = world.claim(3, LONG).await;
            let other = World {
                store: ahead,
                env,
                ids: world.ids.clone(),
            };
            assert!(other.claim(10, LONG).await.is_empty());
            assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn rows_added_by_sql_are_in_the_books_and_a_deleted_one_is_named() {
        with_postgres(async |OnServer { store, world, .. }: &OnServer| {
            let add = "INSERT INTO event_queue (type, payload) \
                       SELECT 'a', '{}' FROM generate_series(1, 300)";
            run(store, add.to_owned()).await;
            let one = "INSERT INTO event_queue (type, payload, key, event_id) VALUES \
                       ('b', '{}', 'k', '019a8f3e-5c00-7abc-8def-0123456789ab')";
            run(store, one.to_owned()).await;
            assert_eq!(
                number(store, "SELECT count(*) FROM tidegate_posting").await,
                2
            );
            world.audit().await;
            let claimed = world.claim(500, LONG).await;
            assert_eq!(claimed.len(), 301);
            world.settle(&claimed, &completed()).await;
            world.audit().await;
            let lost = claimed[7].claim.event_id;
            run(
                store,
                format!("DELETE FROM tidegate_event WHERE event_id = '{lost}'"),
            )
            .await;
            let recount = world.store.recount().await.unwrap();
            assert_eq!(recount.unaccounted(), 1);
            assert_eq!(recount.missing[0].id, Some(lost));
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q23_old_transactions_hold_up_nothing_and_leave_few_dead_rows() {
        let events: u64 = if is_long() { 20_000 } else { 5_000 };
        with_postgres(async |server: &OnServer| {
            let working = Store::open(&server.options(), &Env::system()).await;
            let working = working.unwrap();
            let world = &world(&working).await;
            // One that reads and one that writes, both open for the whole run.
            let mut reading = server.world.store.begin().await.unwrap();
            let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1";
            let connection = reading.postgres().unwrap();
            sqlx::raw_sql(AssertSqlSafe(snapshot))
                .execute(connection)
                .await
                .unwrap();
            let mut writing = world.store.begin().await.unwrap();
            let held = world.event("a");
            world
                .store
                .publish_in(&mut writing, std::slice::from_ref(&held))
                .await
                .unwrap();
            for _ in 0..events / 1_000 {
                world.publish("a", 1_000).await;
            }
            let options = DispatcherOptions {
                batch_size: 500,
                ..quick()
            };
            let builder = Dispatcher::builder(world.queue()).options(options);
            let builder = builder
                .register_raw("one", "a", |_, _| Box::pin(async { Handled::Success }))
                .unwrap();
            let running = Running::start(world, builder);
            world.finalized(events).await;
            writing.commit().await.unwrap();
            world.finalized(events + 1).await;
            running.stop().await;
            world.audit().await;
            // A session tells what it did when it ends.
            working.close().await.unwrap();
            let told = format!(
                "EXISTS (SELECT 1 FROM pg_stat_user_tables WHERE schemaname = current_schema()
                 AND relname = 'tidegate_log' AND n_tup_ins > {events})"
            );
            assert!(is_soon(&server.store, &told).await);
            let dead = number(
                &server.store,
                "SELECT coalesce(sum(n_dead_tup), 0)::int8 FROM pg_stat_user_tables
                 WHERE schemaname = current_schema()",
            )
            .await;
            assert!(dead <= (events / 100) as i64, "{dead} dead rows");
            reading.rollback().await.unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_settle_stands_also_when_its_keys_cannot_be_released() {
        with_postgres(async |server: &OnServer| {
            let mut options = server.options();
            // Long beside what a busy server takes for the settle itself.
            options.timeout = Duration::from_secs(2);
            let hasty = Store::open(&options, &Env::system()).await.unwrap();
            for _ in 0..2 {
                server.world.publish_keyed("a", "k").await;
            }
            let claimed = server.world.claim(2, LONG).await;
            let world = world(&hasty).await;
            // Somebody holds the lock that a release waits for.
            let mut busy = server.store.begin().await.unwrap();
            let lock = "SELECT 1 FROM tidegate_queue FOR UPDATE";
            let connection = busy.postgres().unwrap();
            sqlx::raw_sql(lock).execute(connection).await.unwrap();
            let one = Settlement {
                registry: None,
                transitions: vec![Transition {
                    claim: claimed[0].claim.clone(),
                    key: claimed[0].key.clone(),
                    to: completed(),
                    states: Vec::new(),
                }],
                finished: Vec::new(),
            };
            let stale = world.store.settle(&one).await;
            assert_eq!(stale.unwrap(), [0_i64; 0]);
            busy.rollback().await.unwrap();
            assert_eq!(world.store.account().await.unwrap().delivered, 1);
        });
    }

    /// How many rows of events and of the log somebody reads, as the server counts them. It does so in a
    /// session of its own, which tells what it did when it ends.
    async fn rows_read(server: &OnServer, read: impl AsyncFnOnce(&World)) -> i64 {
        let rows = "SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)
                ::int8 FROM pg_stat_user_tables
             WHERE schemaname = current_schema() AND relname IN ('tidegate_event', 'tidegate_log')";
        let told = "SELECT coalesce(sum(n_tup_ins), 0)::int8 FROM pg_stat_user_tables
             WHERE schemaname = current_schema() AND relname = 'told'";
        let (before, before_it) = (
            number(&server.store, rows).await,
            number(&server.store, told).await,
        );
        let mut options = server.options();
        options.max_connections = 1;
        let session = Store::open(&options, &Env::system()).await.unwrap();
        read(&world(&session).await).await;
        let tell = "CREATE TABLE IF NOT EXISTS told (n integer); INSERT INTO told VALUES (1)";
        run(&session, tell.to_owned()).await;
        session.close().await.unwrap();
        let is_told = format!("({told}) > {before_it}");
        assert!(is_soon(&server.store, &is_told).await);
        number(&server.store, rows).await - before
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn counting_costs_the_same_however_much_waits() {
        with_postgres(async |server: &OnServer| {
            let prepared = rows_read(server, async |world: &World| {
                for _ in 0..5 {
                    world.publish("a", 1_000).await;
                }
                let claimed = world.claim(500, LONG).await;
                world.settle(&claimed, &completed()).await;
                world.claim(10, LONG).await;
            });
            assert!(prepared.await >= 500, "what is read is counted");
            let counted = rows_read(server, async |world: &World| {
                let stats = world.store.stats().await.unwrap();
                assert_eq!(
                    (stats.pending, stats.processing, stats.finalized),
                    (4_490, 10, 500)
                );
                world.store.account().await.unwrap();
            });
            let counted = counted.await;
            assert!(counted < 200, "{counted} rows were read");
        });
    }

    /// Lets a future go on by one step, and no further.
    async fn one_step<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        let mut future = Some(future);
        std::future::poll_fn(move |context| match future.take() {
            Some(future) => match std::pin::Pin::new(future).poll(context) {
                std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
                std::task::Poll::Pending => std::task::Poll::Ready(None),
            },
            None => std::task::Poll::Ready(None),
        })
        .await
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_operator_who_stands_still_while_canceling_holds_nobody_up() {
        with_postgres(async |OnServer { store, world, .. }: &OnServer| {
            let id = world.publish("a", 1).await[0];
            let mut canceling = world.store.cancel(id);
            let mut steps = 0;
            let canceled = loop {
                if let Some(canceled) = one_step(&mut canceling).await {
                    break canceled;
                }
                steps += 1;
                world.wait(Duration::from_millis(5)).await;
                // The server may be at work on what it was told; then it is free soon.
                let claim = "BEGIN; SET LOCAL lock_timeout = '20s';
                             SELECT 1 FROM tidegate_queue FOR UPDATE; COMMIT";
                run(store, claim.to_owned()).await;
            };
            canceled.unwrap();
            assert!(steps > 0, "it was not done in one go");
            assert_eq!(world.store.account().await.unwrap().dead_lettered, 1);
            world.audit().await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_program_that_ends_after_publishing_has_woken_the_others() {
        let waiting = runtime();
        let (store, schema) = waiting.block_on(postgres());
        let mut listener = waiting.block_on(async {
            let mut options = StoreOptions::new(std::env::var("DATABASE_URL").unwrap());
            options.schema = Some(schema.clone());
            let Store::Postgres(server) = Store::open(&options, &Env::system()).await.unwrap()
            else {
                panic!("it is PostgreSQL");
            };
            let channel = format!("tidegate_queue_{schema}");
            server.listen(&channel).await.unwrap()
        });
        // A runtime of one thread, which runs nothing any more once the program is through.
        let program = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        program.block_on(async {
            let mut options = StoreOptions::new(std::env::var("DATABASE_URL").unwrap());
            options.schema = Some(schema.clone());
            let env = Env::system();
            let opened = Store::open(&options, &env).await.unwrap();
            let queue = tidegate_queue::Queue::open(opened, &env).await.unwrap();
            let event = tidegate_queue::NewEvent::raw(queue.ids().mint(), "a", "{}").unwrap();
            queue.publish_all(&[event]).await.unwrap();
            queue.wakes_sent().await;
        });
        drop(program);
        waiting.block_on(async move {
            let heard = tokio::time::timeout(LONG, listener.recv()).await;
            assert!(matches!(heard, Ok(Ok(_))), "nobody was told");
            drop(listener);
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_look_that_finds_nothing_writes_nothing() {
        with_postgres(async |OnServer { store, world, .. }: &OnServer| {
            world.publish("a", 3).await;
            let claimed = world.claim(10, LONG).await;
            world.settle(&claimed, &completed()).await;
            // A transaction that locks a row leaves its number in it.
            let locked = "SELECT xmax::text::int8 FROM tidegate_queue";
            let before = number(store, locked).await;
            assert!(world.claim(10, LONG).await.is_empty());
            assert_eq!(number(store, locked).await, before);
            world.publish("a", 1).await;
            assert_eq!(world.claim(10, LONG).await.len(), 1);
            assert_ne!(number(store, locked).await, before);
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn the_tables_have_the_documented_columns() {
        with_postgres(async |OnServer { store, .. }: &OnServer| {
            let Store::Postgres(postgres) = store else {
                panic!("it is PostgreSQL");
            };
            let columns = postgres
                .run("list columns", |connection| {
                    Box::pin(async move {
                        let rows = sqlx::query(
                            "SELECT table_name || ': ' || string_agg(column_name || ' ' ||
                                 data_type, ', ' ORDER BY ordinal_position)
                             FROM information_schema.columns
                             WHERE table_schema = current_schema()
                               AND (table_name LIKE 'event%' OR table_name IN
                                   ('tidegate_posting', 'tidegate_lease'))
                             GROUP BY table_name ORDER BY table_name",
                        )
                        .fetch_all(connection)
                        .await?;
                        Ok(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>())
                    })
                })
                .await
                .unwrap();
            insta::assert_snapshot!(columns.join("\n"), @r"
            event_handler: type text, handler_id text, registered_at timestamp with time zone
            event_handler_state: id bigint, handler_id text, result text, attempts integer, error text, updated_at timestamp with time zone
            event_inbox: handler_id text, event_id uuid, sub_task text, created_at timestamp with time zone
            event_log: id bigint, event_id uuid, type text, key text, payload json, headers jsonb, status text, errors jsonb, attempts integer, created_at timestamp with time zone, finalized_at timestamp with time zone, position bigint
            event_projection: name text, position bigint, updated_at timestamp with time zone, rebuilds bigint
            event_queue: id bigint, event_id uuid, type text, key text, payload json, headers jsonb, status text, attempts integer, created_at timestamp with time zone, updated_at timestamp with time zone, next_attempt_at timestamp with time zone, locked_by text, locked_until timestamp with time zone
            tidegate_lease: name text, owner text, token bigint, until timestamp with time zone
            tidegate_posting: component text, bucket text, from_place text, to_place text, count bigint, id_sum uuid
            ");
        });
    }
}
