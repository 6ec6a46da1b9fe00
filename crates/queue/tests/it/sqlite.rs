//! The special cases of SQLite.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::env::Env;
use tidegate_queue::conformance::{LONG, World, completed, numbers};
use tidegate_queue::sql;
use tidegate_store::{Store, sqlx};

use crate::stores::{runtime, sqlite};

#[test]
fn rows_added_by_sql_are_in_the_books_and_a_deleted_one_is_named() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let Store::Sqlite(file) = &store else {
            panic!("it is SQLite");
        };
        let world = World::new(
            sql::queue_store(store.clone(), &Env::system())
                .await
                .unwrap(),
        );
        let add = |sql: &'static str| {
            file.write("add rows", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
            })
        };
        add("INSERT INTO event_queue (type, payload) VALUES ('a', '{}'), ('a', '[1]')")
            .await
            .unwrap();
        add("INSERT INTO event_queue (type, payload, event_id) VALUES
             ('b', '{}', '019A8F3E-5C00-7ABC-8DEF-0123456789AB')")
        .await
        .unwrap();
        world.audit().await;
        let claimed = world.claim(10, LONG).await;
        assert_eq!(claimed.len(), 3);
        let ids: BTreeSet<_> = claimed.iter().map(|event| event.claim.event_id).collect();
        assert_eq!(ids.len(), 3);
        world.settle(&claimed, &completed()).await;
        world.audit().await;
        add("DELETE FROM tidegate_log WHERE id = 2").await.unwrap();
        let recount = world.store.recount().await.unwrap();
        assert_eq!(recount.unaccounted(), 1);
        assert_eq!(recount.missing[0].id, Some(claimed[1].claim.event_id));
    });
}

#[test]
fn fifty_claimers_at_once_are_never_told_that_it_is_busy() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let world = World::new(sql::queue_store(store, &Env::system()).await.unwrap());
        let world = Arc::new(world);
        let ids = world.publish("a", 1_000).await;
        let claimers: Vec<_> = (0..50)
            .map(|_| {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    let mut seen = Vec::new();
                    loop {
                        let claimed = world.claim(7, LONG).await;
                        if claimed.is_empty() {
                            return seen;
                        }
                        assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
                        seen.extend(numbers(&claimed));
                    }
                })
            })
            .collect();
        let mut seen = Vec::new();
        for claimer in claimers {
            seen.extend(claimer.await.unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, ids);
        world.audit().await;
    });
}
