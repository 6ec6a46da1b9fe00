//! Rows deleted by hand: each is missed, and named.

use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_queue::conformance::{LONG, completed, lane};
use tidegate_queue::port::{Disposition, EventFilter, QueueStatus};
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Store, StoreTx};

use crate::stores::{OnServer, runtime, sqlite, with_postgres, world};

async fn execute(store: &Store, statement: String) -> u64 {
    let mut tx = store.begin().await.unwrap();
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    let changed = match &mut tx {
        StoreTx::Postgres(tx) => {
            let done = query.execute(tx.connection()).await.unwrap();
            done.rows_affected()
        }
        StoreTx::Sqlite(tx) => {
            let done = query.execute(tx.connection()).await.unwrap();
            done.rows_affected()
        }
    };
    tx.commit().await.unwrap();
    changed
}

/// One event in each place, and then one row deleted from the table that says where it is.
async fn a_deleted_row_is_missed_and_named(store: Store) {
    let world = world(&store).await;
    world.publish("a", 8).await;
    let done = world.claim(3, LONG).await;
    world.settle(&done, &completed()).await;
    let retried = world.claim(2, LONG).await;
    let retry = Disposition::Retry {
        after: LONG,
        lane: lane(),
    };
    world.settle(&retried, &retry).await;
    let claimed = world.claim(1, LONG).await;
    world.audit().await;
    let by_id = |table: &str, id: i64| format!("DELETE FROM {table} WHERE id = {id}");
    let of_batch = "DELETE FROM tidegate_batch".to_owned();
    let event = |number: i64| format!("SELECT event_id FROM tidegate_event WHERE id = {number}");
    let waits = claimed[0].claim.id + 1;
    let waiting = id_of(&store, event(waits)).await;
    let cases = [
        // An event that waits, by its only row; the log row; the row of its own; the batch.
        (by_id("tidegate_event", waits), Place::Queued, waiting),
        (
            by_id("tidegate_log", done[1].claim.id),
            Place::Delivered,
            done[1].claim.event_id,
        ),
        (
            by_id("tidegate_event_row", retried[0].claim.id),
            Place::Retrying,
            retried[0].claim.event_id,
        ),
        (of_batch, Place::Queued, claimed[0].claim.event_id),
    ];
    for (round, (statement, place, id)) in cases.into_iter().enumerate() {
        assert_eq!(execute(&store, statement.clone()).await, 1, "{statement}");
        let recount = world.store.recount().await.unwrap();
        assert_eq!(recount.unaccounted(), round as u64 + 1, "{statement}");
        // By the last round two are missing from one place: one of them is nowhere, and so the
        // sums name the other.
        let mut named = recount.missing.iter();
        let found = named.find(|one| one.id == Some(id));
        assert_eq!(found.map(|one| &one.place), Some(&place), "{statement}");
    }
    // With two places of one minute short of two, nobody can tell which is which: they are told by
    // place and number.
    execute(&store, by_id("tidegate_event", done[2].claim.id)).await;
    let recount = world.store.recount().await.unwrap();
    assert_eq!(recount.unaccounted(), 5);
    let told: Vec<_> = recount
        .missing
        .iter()
        .map(|m| (&m.place, m.count))
        .collect();
    let expected = [
        (&Place::Queued, 2),
        (&Place::Retrying, 1),
        (&Place::Delivered, 2),
    ];
    assert_eq!(told, expected);
}

/// An event of the log is found through its group and read by its position: without either it is
/// gone for whoever reads the log.
async fn a_deleted_group_is_missed_and_its_events_are_named(store: Store) {
    let world = world(&store).await;
    world.publish("a", 6).await;
    for _ in 0..3 {
        let group = world.claim(2, LONG).await;
        world.settle(&group, &completed()).await;
    }
    world.store.sequence(100).await.unwrap();
    world.audit().await;
    let listed = world.store.list(&finished()).await.unwrap();
    let ids: Vec<EventId> = listed.iter().map(|one| one.event_id).collect();
    assert_eq!(ids.len(), 6);
    let deleted = "DELETE FROM tidegate_log_batch WHERE id = 1".to_owned();
    assert_eq!(execute(&store, deleted).await, 1);
    let missing = world.store.recount().await.unwrap().missing;
    let named: Vec<_> = missing.iter().map(|one| one.id.unwrap()).collect();
    assert_eq!(named, ids[..2]);
    assert!(missing.iter().all(|one| one.place == Place::Delivered));
    // A group that lists another event does not have this one.
    let list = match &store {
        Store::Postgres(_) => "ids[1:1]".to_owned(),
        Store::Sqlite(_) => "json_remove(ids, '$[1]')".to_owned(),
    };
    let changed = format!("UPDATE tidegate_log_batch SET ids = {list} WHERE id = 2");
    assert_eq!(execute(&store, changed).await, 1);
    let missing = world.store.recount().await.unwrap().missing;
    let named: Vec<_> = missing.iter().map(|one| one.id.unwrap()).collect();
    assert_eq!(named, [ids[0], ids[1], ids[3]]);
}

/// A group that lost its positions and will never have others is gone for projections.
async fn a_deleted_position_is_missed_and_its_events_are_named(store: Store) {
    let world = world(&store).await;
    world.publish("a", 6).await;
    for _ in 0..3 {
        let group = world.claim(2, LONG).await;
        world.settle(&group, &completed()).await;
        world.store.sequence(100).await.unwrap();
    }
    let fresh = world.publish("a", 1).await;
    let group = world.claim(1, LONG).await;
    assert_eq!(group[0].claim.id, fresh[0]);
    world.settle(&group, &completed()).await;
    // The last group has no position yet, and gets one.
    world.audit().await;
    if matches!(store, Store::Postgres(_)) {
        // As the sequencer notes it after a thousand groups.
        let noted = "UPDATE tidegate_queue SET sequenced_below = 3".to_owned();
        assert_eq!(execute(&store, noted).await, 1);
        world.audit().await;
    }
    let listed = world.store.list(&finished()).await.unwrap();
    let ids: Vec<EventId> = listed.iter().map(|one| one.event_id).collect();
    let deleted = "DELETE FROM tidegate_sequence WHERE batch = 2".to_owned();
    assert_eq!(execute(&store, deleted).await, 1);
    let missing = world.store.recount().await.unwrap().missing;
    let named: Vec<_> = missing.iter().map(|one| one.id.unwrap()).collect();
    assert_eq!(named, ids[2..4]);
}

fn finished() -> EventFilter {
    EventFilter {
        status: Some(QueueStatus::Completed),
        limit: 100,
        ..EventFilter::default()
    }
}

/// An event that would be handled again although it is finished is too many.
async fn an_event_in_two_places_is_found(store: Store) {
    let world = world(&store).await;
    world.publish("a", 3).await;
    let done = world.claim(3, LONG).await;
    world.settle(&done, &completed()).await;
    let (id, now) = (done[1].claim.id, "CURRENT_TIMESTAMP");
    let add = format!(
        "INSERT INTO tidegate_event_row (id, lane, place, attempts, due_at, updated_at)
         VALUES ({id}, 'a:one', 'retrying', 1, {now}, {now})"
    );
    execute(&store, add).await;
    let recount = world.store.recount().await.unwrap();
    let found = &recount.missing[0];
    assert_eq!(
        (&found.place, found.count, found.id),
        (&Place::Retrying, -1, Some(done[1].claim.event_id))
    );
    assert_eq!(recount.unaccounted(), 1);
}

/// The view cannot be deleted from: nothing disappears by a slip.
async fn views_take_no_deletes(store: Store) {
    let world = world(&store).await;
    world.publish("a", 1).await;
    for view in ["event_queue", "event_log"] {
        let mut tx = store.begin().await.unwrap();
        let query = sqlx::raw_sql(AssertSqlSafe(format!("DELETE FROM {view}")));
        let refused = match &mut tx {
            StoreTx::Postgres(tx) => query.execute(tx.connection()).await.is_err(),
            StoreTx::Sqlite(tx) => query.execute(tx.connection()).await.is_err(),
        };
        assert!(refused, "{view}");
        tx.rollback().await.unwrap();
    }
    world.audit().await;
}

/// Audits beside claims, settles, late commits and clean-up find nothing missing.
async fn a_recount_beside_the_work_misses_nothing(store: Store) {
    let world = Arc::new(world(&store).await);
    let worker = Arc::clone(&world);
    let rounds: i64 = if tidegate_sim::is_long() { 40 } else { 12 };
    let working = async move {
        for round in 0..rounds {
            // One transaction stays open over a claim, so that its events come late.
            let mut late = worker.store.begin().await.unwrap();
            let event = worker.event("a");
            let publish = worker
                .store
                .publish_in(&mut late, std::slice::from_ref(&event));
            publish.await.unwrap();
            let is_sqlite = late.sqlite().is_some();
            if is_sqlite {
                late.commit().await.unwrap();
                worker.publish("a", 20).await;
            } else {
                worker.publish("a", 20).await;
                let early = worker.claim(15, LONG).await;
                late.commit().await.unwrap();
                worker.settle(&early, &completed()).await;
            }
            let claimed = worker.claim(50, LONG).await;
            let retry = Disposition::Retry {
                after: std::time::Duration::from_millis(1),
                lane: lane(),
            };
            let to = if round % 3 == 0 { retry } else { completed() };
            worker.settle(&claimed, &to).await;
            worker.store.sequence(100).await.unwrap();
            let brief = std::time::Duration::from_millis(5);
            worker.store.clean(Some(brief)).await.unwrap();
        }
    };
    let working = tokio::spawn(working);
    let mut looks = 0;
    while !working.is_finished() || looks < 3 {
        let recount = world.store.recount().await.unwrap();
        assert_eq!(recount.missing, [], "look {looks}");
        assert!(recount.books.is_balanced());
        looks += 1;
    }
    working.await.unwrap();
    let account = world.store.account().await.unwrap();
    assert_eq!(account.accepted, rounds * 21);
    world.audit().await;
}

async fn id_of(store: &Store, sql: String) -> EventId {
    let mut tx = store.begin().await.unwrap();
    let query = AssertSqlSafe(sql);
    let id: String = match &mut tx {
        StoreTx::Postgres(tx) => {
            let id: sqlx::types::Uuid = sqlx::query_scalar(query)
                .fetch_one(tx.connection())
                .await
                .unwrap();
            id.to_string()
        }
        StoreTx::Sqlite(tx) => sqlx::query_scalar(query)
            .fetch_one(tx.connection())
            .await
            .unwrap(),
    };
    tx.rollback().await.unwrap();
    id.parse().unwrap()
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
        with_postgres(async |server: &OnServer| $rule(server.store.clone()).await)
    };
}

macro_rules! rules {
    ($run:ident, $(#[$attribute:meta])*) => {
        #[test]
        $(#[$attribute])*
        fn a_deleted_row_is_missed_and_named() {
            $run!(super::a_deleted_row_is_missed_and_named);
        }

        #[test]
        $(#[$attribute])*
        fn a_deleted_group_is_missed_and_its_events_are_named() {
            $run!(super::a_deleted_group_is_missed_and_its_events_are_named);
        }

        #[test]
        $(#[$attribute])*
        fn a_deleted_position_is_missed_and_its_events_are_named() {
            $run!(super::a_deleted_position_is_missed_and_its_events_are_named);
        }

        #[test]
        $(#[$attribute])*
        fn an_event_in_two_places_is_found() {
            $run!(super::an_event_in_two_places_is_found);
        }

        #[test]
        $(#[$attribute])*
        fn views_take_no_deletes() {
            $run!(super::views_take_no_deletes);
        }

        #[test]
        $(#[$attribute])*
        fn a_recount_beside_the_work_misses_nothing() {
            $run!(super::a_recount_beside_the_work_misses_nothing);
        }
    };
}

mod on_sqlite_file {
    use super::{runtime, sqlite};
    rules!(on_sqlite,);
}

mod needs_postgres {
    use super::{OnServer, with_postgres};
    rules!(on_postgres, #[ignore = "needs PostgreSQL"]);
}
