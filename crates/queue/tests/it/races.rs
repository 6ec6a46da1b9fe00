//! Races that need a second process and a real server.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::conformance::{LONG, SHORT, World, completed, lane, numbers};
use tidegate_queue::port::{
    ClaimedEvent, Disposition, HandlerCommit, HandlerResult, HandlerState, LeaseId, QueueStatus,
    Settlement, Transition,
};
use tidegate_queue::{QueueError, Tx, sql};
use tidegate_store::Store;
use tidegate_store::sqlx::{self, AssertSqlSafe};

use crate::stores::{
    drop_schema, postgres, run, runtime, until_those_who_run_have_ended, until_waited_for,
    with_postgres,
};

async fn world(store: &Store) -> World {
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    World::new(queue.unwrap())
}

async fn execute(tx: &mut Tx, statement: String) {
    let connection = tx.postgres().unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await
        .unwrap();
}

/// Two transactions that have their ids, the first the lower one.
async fn two_in_order(world: &World) -> (Tx, Tx) {
    let mut first = world.store.begin().await.unwrap();
    execute(&mut first, "SELECT pg_current_xact_id()".to_owned()).await;
    let mut second = world.store.begin().await.unwrap();
    execute(&mut second, "SELECT pg_current_xact_id()".to_owned()).await;
    (first, second)
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

/// The rows that a settle of one event writes into the log, in a transaction that stays open.
async fn log_by_hand(tx: &mut Tx, id: i64) {
    let statement = format!(
        "WITH together AS (
             INSERT INTO tidegate_log_batch (ids) VALUES (ARRAY[{id}::int8]) RETURNING id)
         INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed)
         SELECT {id}, id, 0, 1, false FROM together"
    );
    execute(tx, statement).await;
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_late_commit_of_the_newest_transaction_is_not_passed_over() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = world(&store).await;
            for round in 0..10 {
                let (mut first, mut second) = two_in_order(&world).await;
                // The one with the higher transaction id takes the lower number, and stays open.
                let late = [world.event("a")];
                let late = world.store.publish_in(&mut second, &late).await.unwrap();
                let early = [world.event("a")];
                let early = world.store.publish_in(&mut first, &early).await.unwrap();
                assert!(late < early);
                first.commit().await.unwrap();
                assert_eq!(numbers(&world.claim(10, LONG).await), early);
                for _ in 0..4 {
                    assert!(world.claim(10, LONG).await.is_empty());
                }
                second.commit().await.unwrap();
                let claimed = numbers(&world.claim(10, LONG).await);
                assert_eq!(claimed, late, "round {round}");
            }
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn numbers_that_were_rolled_back_are_forgotten() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = world(&store).await;
            for _ in 0..3 {
                let mut tx = world.store.begin().await.unwrap();
                let never = [world.event("a"), world.event("a")];
                world.store.publish_in(&mut tx, &never).await.unwrap();
                world.publish("a", 1).await;
                tx.rollback().await.unwrap();
            }
            assert_eq!(world.claim(10, LONG).await.len(), 3);
            assert_eq!(number(&store, "SELECT count(*) FROM tidegate_gap").await, 3);
            // Other tests on this server may have transactions open that ran then.
            for _ in 0..600 {
                assert!(world.claim(10, LONG).await.is_empty());
                if number(&store, "SELECT count(*) FROM tidegate_gap").await == 0 {
                    break;
                }
                world.wait(Duration::from_millis(100)).await;
            }
            assert_eq!(number(&store, "SELECT count(*) FROM tidegate_gap").await, 0);
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q19_a_late_settle_of_the_newest_transaction_has_its_positions() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = world(&store).await;
            let ids = world.publish("a", 2).await;
            world.claim(2, LONG).await;
            let (mut first, mut second) = two_in_order(&world).await;
            // The one with the higher transaction id takes the lower group, and stays open.
            log_by_hand(&mut second, ids[0]).await;
            log_by_hand(&mut first, ids[1]).await;
            first.commit().await.unwrap();
            for _ in 0..5 {
                world.store.sequence(100).await.unwrap();
            }
            second.commit().await.unwrap();
            world.store.sequence(100).await.unwrap();
            let page = world.store.read_log(0, 10).await.unwrap();
            let read: Vec<(i64, i64)> = page.events.iter().map(|e| (e.position, e.id)).collect();
            assert_eq!(read, [(1, ids[1]), (2, ids[0])]);
            // And the mark does move on, once nobody can come below it.
            for _ in 0..3 {
                assert_eq!(world.store.sequence(100).await.unwrap(), 0);
            }
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q19_groups_that_a_full_round_left_out_have_their_positions() {
        with_postgres(async |server| {
            let world = &server.world;
            let ids = world.publish("a", 10).await;
            for event in world.claim(10, LONG).await {
                world.settle_part(&event, &completed()).await;
            }
            assert_eq!(world.store.sequence(2).await.unwrap(), 2);
            // A look now could know that nobody comes below the last of the ten.
            until_those_who_run_have_ended(&server.store).await;
            while world.store.sequence(2).await.unwrap() > 0 {}
            let page = world.store.read_log(0, 20).await.unwrap();
            let read: Vec<(i64, i64)> = page.events.iter().map(|e| (e.position, e.id)).collect();
            let expected: Vec<(i64, i64)> = (1..=10).zip(ids).collect();
            assert_eq!(read, expected);
        });
    }

    /// The commit of handler `one` for an event, with a side effect.
    fn mailed(event: &ClaimedEvent) -> HandlerCommit {
        HandlerCommit {
            claim: event.claim.clone(),
            state: HandlerState {
                handler: "one".to_owned(),
                result: HandlerResult::Success,
                attempts: 1,
                error: None,
            },
            follow_ups: Vec::new(),
            done: vec!["mail".to_owned()],
            event_id: event.claim.event_id,
        }
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a04_q16_an_event_whose_result_is_being_recorded_is_not_taken_over() {
        with_postgres(async |server| {
            let world = Arc::new(world(&server.store).await);
            for is_row in [false, true] {
                let ids = world.publish("a", 1).await;
                if is_row {
                    let again = Disposition::Retry {
                        after: Duration::ZERO,
                        lane: lane(),
                    };
                    let fresh = world.claim(1, LONG).await;
                    assert_eq!(world.settle(&fresh, &again).await, [0_i64; 0]);
                    world.wait(Duration::from_millis(5)).await;
                }
                let claimed = world.claim(1, SHORT).await;
                assert_eq!(numbers(&claimed), ids);
                // The record stands still: it is past its fence, and has not committed.
                let mut busy = world.store.begin().await.unwrap();
                execute(&mut busy, "LOCK TABLE event_inbox IN SHARE MODE".to_owned()).await;
                let (other, commit) = (Arc::clone(&world), mailed(&claimed[0]));
                let recording =
                    tokio::spawn(async move { other.store.record(None, &commit).await });
                until_waited_for(&server.store, &mut busy, 1).await;
                world.wait(SHORT * 2).await;
                let early = numbers(&world.claim(1, LONG).await);
                assert_eq!(early, [0_i64; 0], "it would be handled twice");
                busy.rollback().await.unwrap();
                assert!(recording.await.unwrap().unwrap());
                let next = world.claim(1, LONG).await;
                assert_eq!(numbers(&next), ids);
                assert_eq!(next[0].states.len(), 1, "it comes with its result");
                assert_eq!(world.settle(&next, &completed()).await, [0_i64; 0]);
                world.audit().await;
            }
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_event_given_back_beside_retention_is_not_removed() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = Arc::new(world(&store).await);
            let id = world.publish("a", 1).await[0];
            let claimed = world.claim(1, LONG).await;
            let error = HandlerState {
                handler: "one".to_owned(),
                result: HandlerResult::UnrecoverableError,
                attempts: 1,
                error: Some("broken".to_owned()),
            };
            let failed = Settlement {
                registry: None,
                transitions: vec![Transition {
                    claim: claimed[0].claim.clone(),
                    key: None,
                    to: Disposition::Finalize {
                        errors: vec![error.clone()],
                        handlers: None,
                    },
                    states: vec![error],
                }],
                finished: vec![claimed[0].claim.lease],
            };
            world.store.settle(&failed).await.unwrap();
            world.store.sequence(100).await.unwrap();
            // Giving back stands still after it has taken the log row, and before it commits.
            let mut busy = world.store.begin().await.unwrap();
            let lock = "SELECT 1 FROM tidegate_handler_state FOR UPDATE";
            execute(&mut busy, lock.to_owned()).await;
            let giving = Arc::clone(&world);
            let giving = tokio::spawn(async move { giving.store.redrive(id).await });
            until_waited_for(&store, &mut busy, 1).await;
            let cleaning = Arc::clone(&world);
            let cleaning =
                tokio::spawn(async move { cleaning.store.clean(Some(Duration::ZERO)).await });
            until_waited_for(&store, &mut busy, 2).await;
            assert!(!giving.is_finished());
            busy.rollback().await.unwrap();
            giving.await.unwrap().unwrap();
            assert_eq!(cleaning.await.unwrap().unwrap().events, 0);
            let shown = world.store.show(id).await.unwrap().unwrap();
            assert_eq!(shown.status, QueueStatus::Pending);
            world.audit().await;
            let again = world.claim(1, LONG).await;
            assert_eq!(numbers(&again), [id]);
            assert_eq!(world.settle(&again, &completed()).await, [0_i64; 0]);
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn two_settles_of_one_event_at_once_finalize_it_once() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = Arc::new(world(&store).await);
            let ids = world.publish("a", 3).await;
            let claimed = world.claim(3, LONG).await;
            // The batch is settled in part before, and somebody locks its row for a while. So both
            // settles wait with the snapshot they have.
            assert_eq!(world.settle(&claimed[2..], &completed()).await, [0_i64; 0]);
            let mut busy = world.store.begin().await.unwrap();
            let lock = "SELECT 1 FROM tidegate_batch FOR UPDATE";
            execute(&mut busy, lock.to_owned()).await;
            let settle = |world: &Arc<World>| {
                let (world, event) = (Arc::clone(world), claimed[0].clone());
                tokio::spawn(async move { world.settle(&[event], &completed()).await })
            };
            let (one, two) = (settle(&world), settle(&world));
            until_waited_for(&store, &mut busy, 2).await;
            busy.rollback().await.unwrap();
            let mut stale = one.await.unwrap();
            stale.extend(two.await.unwrap());
            assert_eq!(stale, [ids[0]]);
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn rows_are_locked_in_the_order_of_their_numbers() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = Arc::new(world(&store).await);
            let ids = world.publish("a", 3).await;
            let fresh = world.claim(3, LONG).await;
            let again = Disposition::Retry {
                after: Duration::ZERO,
                lane: lane(),
            };
            assert_eq!(world.settle(&fresh, &again).await, [0_i64; 0]);
            world.wait(Duration::from_millis(5)).await;
            let mut rows = world.claim(3, LONG).await;
            rows.sort_by_key(|row| std::cmp::Reverse(row.claim.id));
            for is_settle in [false, true] {
                let mut first = world.store.begin().await.unwrap();
                let lock = |id: i64, how: &str| {
                    format!("SELECT 1 FROM tidegate_event_row WHERE id = {id} FOR UPDATE {how}")
                };
                execute(&mut first, lock(ids[0], "")).await;
                let (other, rows) = (Arc::clone(&world), rows.clone());
                let waiting = tokio::spawn(async move {
                    if is_settle {
                        assert_eq!(other.settle(&rows, &completed()).await, [0_i64; 0]);
                    } else {
                        let held: Vec<LeaseId> = rows.iter().map(|row| row.claim.lease).collect();
                        assert_eq!(other.store.renew(&held, LONG).await.unwrap(), []);
                    }
                });
                until_waited_for(&store, &mut first, 1).await;
                // It has none of the others, so that nobody waits for it who has the first.
                execute(&mut first, lock(ids[1], "NOWAIT")).await;
                execute(&mut first, lock(ids[2], "NOWAIT")).await;
                first.rollback().await.unwrap();
                waiting.await.unwrap();
            }
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_cancel_beside_a_settle_doubles_nothing() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = Arc::new(world(&store).await);
            let id = world.publish("a", 1).await[0];
            let claimed = world.claim(1, LONG).await;
            // The cancel has looked for a row of the event, found none, and now waits to look for it
            // elsewhere.
            let mut busy = world.store.begin().await.unwrap();
            let lock = "LOCK TABLE tidegate_canceled IN SHARE ROW EXCLUSIVE MODE";
            execute(&mut busy, lock.to_owned()).await;
            let canceling = Arc::clone(&world);
            let canceling = tokio::spawn(async move { canceling.store.cancel(id).await });
            until_waited_for(&store, &mut busy, 1).await;
            // Meanwhile the event gets its row.
            let retry = Disposition::Retry {
                after: LONG,
                lane: lane(),
            };
            assert_eq!(world.settle(&claimed, &retry).await, [0_i64; 0]);
            busy.rollback().await.unwrap();
            assert!(canceling.await.unwrap().is_err());
            let shown = world.store.show(id).await.unwrap().unwrap();
            assert_eq!(shown.status, QueueStatus::Pending);
            world.audit().await;
            // The next try finds the row.
            world.store.cancel(id).await.unwrap();
            let shown = world.store.show(id).await.unwrap().unwrap();
            assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }

    /// A transaction that locks these rows as a record does, and stays open.
    async fn recording(world: &World, table: &str) -> Tx {
        let mut tx = world.store.begin().await.unwrap();
        execute(&mut tx, format!("SELECT 1 FROM {table} FOR SHARE")).await;
        tx
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_cancel_does_not_wait_for_whoever_records_late() {
        with_postgres(async |server| {
            let world = &server.world;
            let ids = world.publish("a", 1).await;
            for table in ["tidegate_batch", "tidegate_event_row"] {
                let late = world.claim(1, SHORT).await;
                assert_eq!(numbers(&late), ids);
                world.wait(SHORT * 2).await;
                let tx = recording(world, table).await;
                let cancel = world.store.cancel(ids[0]);
                // Sooner than the store gives up by itself.
                let cancel = tokio::time::timeout(Duration::from_secs(20), cancel).await;
                let refused = cancel.expect("it does not wait").unwrap_err();
                assert!(matches!(refused, QueueError::Busy { .. }), "{refused:?}");
                tx.rollback().await.unwrap();
                world.store.cancel(ids[0]).await.unwrap();
                world.store.redrive(ids[0]).await.unwrap();
            }
            world.audit().await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_side_effect_is_found_whatever_the_transaction_has_set() {
        with_postgres(async |server| {
            let world = &server.world;
            world.publish("a", 1).await;
            let claimed = world.claim(1, LONG).await;
            let event = claimed[0].claim.event_id;
            let commit = mailed(&claimed[0]);
            assert!(world.store.record(None, &commit).await.unwrap());
            let mut tx = world.store.begin().await.unwrap();
            let elsewhere = "SET LOCAL search_path = pg_temp;
                CREATE TEMP TABLE event_inbox (handler_id text, event_id uuid, sub_task text)";
            execute(&mut tx, elsewhere.to_owned()).await;
            let is_done = world.store.is_done(Some(&mut tx), "one", event, "mail");
            assert!(is_done.await.unwrap());
            // The settings for the statements of the handler still hold.
            execute(
                &mut tx,
                "SELECT 1 / (current_setting('search_path') = 'pg_temp')::int".to_owned(),
            )
            .await;
            tx.rollback().await.unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn groups_that_come_after_the_tables_went_back_have_their_positions() {
        with_postgres(async |server| {
            let (world, store) = (&server.world, &server.store);
            let handler = [("a".to_owned(), "one".to_owned())];
            world.store.register(&handler).await.unwrap();
            world.store.registry().await.unwrap();
            world.publish("a", 3).await;
            for event in world.claim(3, LONG).await {
                world.settle_part(&event, &completed()).await;
            }
            // The last look knows that nothing comes below any more.
            world.store.sequence(100).await.unwrap();
            until_those_who_run_have_ended(store).await;
            world.store.sequence(100).await.unwrap();
            let back =
                "TRUNCATE tidegate_sequence, tidegate_log, tidegate_log_batch RESTART IDENTITY;
                UPDATE tidegate_queue SET sequenced_below = 0, registry = 0";
            run(store, back.to_owned()).await;
            let ids = world.publish("a", 5).await;
            for id in ids {
                let mut tx = world.store.begin().await.unwrap();
                log_by_hand(&mut tx, id).await;
                tx.commit().await.unwrap();
            }
            world.store.registry().await.unwrap();
            world.store.sequence(100).await.unwrap();
            let positions = number(store, "SELECT count(*) FROM tidegate_sequence").await;
            assert_eq!(positions, 5);
        });
    }
}
