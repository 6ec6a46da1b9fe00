//! The files beside a database, and its lent connections.

use tidegate_core::env::Env;
use tidegate_store::{Store, StoreError, StoreOptions, sqlx};

use super::{runtime, sqlite};

#[test]
fn after_its_close_the_file_alone_is_the_whole_database() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let Store::Sqlite(open) = &store else {
            panic!("it is one of SQLite's");
        };
        let filled = open.write("prepare a test", |connection| {
            let sql = "CREATE TABLE t (n integer); INSERT INTO t VALUES (1), (2), (3)";
            Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
        });
        filled.await.unwrap();
        // A reader that is idle does not keep the journal.
        store.ping().await.unwrap();
        store.close().await.unwrap();
        store.close().await.unwrap();
        let copy = dir.path().join("copy.db");
        std::fs::copy(dir.path().join("store.db"), &copy).unwrap();
        let options = StoreOptions::new(format!("sqlite://{}", copy.display()));
        let copied = Store::open(&options, &Env::system()).await.unwrap();
        let Store::Sqlite(copied) = copied else {
            panic!("it is one of SQLite's");
        };
        let count = copied.read("count", |connection| {
            Box::pin(sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(connection))
        });
        let count: i64 = count.await.unwrap();
        assert_eq!(count, 3);
        // A caller can go on after the close.
        store.ping().await.unwrap();
        store.begin().await.unwrap().commit().await.unwrap();
    });
}

#[test]
fn a_check_beside_a_writer_finds_no_fault_with_an_index_of_words_that_was_merged() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let Store::Sqlite(file) = &store else {
            panic!("it is one of SQLite's");
        };
        let run = |sql: &'static str| {
            file.write("test", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
            })
        };
        run("CREATE VIRTUAL TABLE words USING fts5(text, content='', contentless_delete=1)")
            .await
            .unwrap();
        for _ in 0..40 {
            run(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                INSERT INTO words (text) SELECT hex(randomblob(40)) || ' word' FROM n",
            )
            .await
            .unwrap();
            assert_eq!(store.check_file().await.unwrap(), Vec::<String>::new());
        }
    });
}

mod needs_postgres {
    use std::time::Duration;

    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn transactions_in_the_hands_of_others_never_take_the_last_connection() {
        runtime().block_on(async {
            let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
            let mut options = super::super::options(url);
            options.max_connections = 3;
            // Long beside what a busy server takes to begin a transaction.
            options.timeout = Duration::from_secs(3);
            let store = Store::open(&options, &Env::system()).await.unwrap();
            let (one, two) = (store.begin().await.unwrap(), store.begin().await.unwrap());
            let third = store.begin().await.unwrap_err();
            assert!(matches!(third, StoreError::Away { .. }), "{third:?}");
            assert!(!third.may_have_happened());
            store.ping().await.unwrap();
            one.rollback().await.unwrap();
            store.begin().await.unwrap().rollback().await.unwrap();
            drop(two);
        });
    }
}
