//! A transaction that nobody has in hand any more keeps nobody else from writing.

use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_store::{Store, StoreError, StoreOptions, StoreTx, sqlx};

use super::{runtime, sqlite};

/// How long another process waits for the file before it gives up. Who left it open would keep it for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// A table whose rows are checked at the commit, so that a commit can be refused.
const TABLES: &str = "CREATE TABLE t (n integer PRIMARY KEY);
    CREATE TABLE u (n integer REFERENCES t (n) DEFERRABLE INITIALLY DEFERRED)";

/// Connections of their own to the file of [`sqlite`], as another process has them.
async fn another_process(dir: &tempfile::TempDir) -> Store {
    let url = format!("sqlite://{}", dir.path().join("store.db").display());
    let mut options = StoreOptions::new(url);
    options.timeout = PATIENCE;
    Store::open(&options, &Env::system()).await.unwrap()
}

async fn write(store: &Store, sql: &'static str) -> Result<(), StoreError> {
    let Store::Sqlite(file) = store else {
        panic!("it is SQLite");
    };
    let written = file.write("write", move |connection| {
        Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
    });
    written.await.map(drop)
}

async fn run(tx: &mut StoreTx, sql: &'static str) {
    let connection = tx.sqlite().unwrap();
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

async fn count(store: &Store) -> i64 {
    let Store::Sqlite(file) = store else {
        panic!("it is SQLite");
    };
    let counted = file.read("count", |connection| {
        let sql = "SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM u)";
        Box::pin(sqlx::query_scalar(sql).fetch_one(connection))
    });
    counted.await.unwrap()
}

#[test]
fn whatever_leaves_a_transaction_open_others_write_at_once() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        let other = another_process(&dir).await;
        let others_write = async |left: &str| {
            let written = write(&other, "INSERT INTO t VALUES (1); DELETE FROM t").await;
            written.unwrap_or_else(|error| panic!("{left}: {error:?}"));
            assert_eq!(count(&store).await, 0, "{left}");
        };
        let mut tx = store.begin().await.unwrap();
        run(&mut tx, "INSERT INTO t VALUES (1)").await;
        drop(tx);
        others_write("one that was dropped").await;

        let mut tx = store.begin().await.unwrap();
        let insert =
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 50000)
            INSERT INTO t SELECT n FROM c";
        let statement = sqlx::raw_sql(insert).execute(tx.sqlite().unwrap());
        tokio::time::timeout(Duration::ZERO, statement).await.ok();
        drop(tx);
        others_write("one that was dropped in the middle of a statement").await;

        let held = other.begin().await.unwrap();
        let begin = tokio::time::timeout(Duration::from_millis(50), store.begin());
        assert!(begin.await.is_err(), "the other one has the file");
        held.rollback().await.unwrap();
        // The begin that was canceled still comes through between these, and nobody is there for it.
        for _ in 0..100 {
            others_write("one whose begin was canceled").await;
        }

        let mut tx = store.begin().await.unwrap();
        run(&mut tx, "INSERT INTO u VALUES (7)").await;
        assert!(tx.commit().await.is_err(), "it refers to nothing");
        others_write("one whose commit was refused").await;

        let refused = write(&store, "INSERT INTO u VALUES (7)").await;
        assert!(refused.is_err(), "it refers to nothing");
        others_write("operations whose commit was refused").await;
    });
}

#[test]
fn leftovers_in_the_session_of_a_transaction_harm_nobody() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        for is_committed in [true, false] {
            let mut tx = store.begin().await.unwrap();
            run(&mut tx, "CREATE TEMP TABLE t (n integer)").await;
            run(&mut tx, "CREATE TEMP VIEW \"a \"\"view\" AS SELECT 1").await;
            run(&mut tx, "PRAGMA query_only = 1").await;
            match is_committed {
                true => tx.commit().await.unwrap(),
                false => drop(tx),
            }
            write(&store, "INSERT INTO t VALUES (1)").await.unwrap();
            assert_eq!(count(&store).await, 1, "it is in the file");
            write(&store, "DELETE FROM t").await.unwrap();
        }
    });
}

#[test]
fn temporary_tables_that_refer_to_each_other_harm_nobody() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        run(
            &mut tx,
            "CREATE TEMP TABLE parent (n integer PRIMARY KEY);
             CREATE TEMP TABLE child (n integer REFERENCES parent (n));
             INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1)",
        )
        .await;
        tx.commit().await.unwrap();
        write(&store, "INSERT INTO t VALUES (1)").await.unwrap();
        assert_eq!(count(&store).await, 1);
        let refused = write(&store, "INSERT INTO u VALUES (7)").await;
        assert!(refused.is_err(), "it refers to nothing");
    });
}

#[test]
fn settings_of_a_session_end_with_its_transaction() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        run(
            &mut tx,
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA recursive_triggers = 1;
             PRAGMA legacy_alter_table = 1; PRAGMA wal_autocheckpoint = 0; PRAGMA max_page_count = 1",
        )
        .await;
        tx.commit().await.unwrap();
        for n in 0..3 {
            let other = another_process(&dir).await;
            let statement = ["INSERT INTO t VALUES (1)", "DELETE FROM t", "CREATE TABLE more (n)"][n];
            write(&store, statement).await.unwrap();
            write(&other, "INSERT INTO t VALUES (7); DELETE FROM t WHERE n = 7")
                .await
                .unwrap();
        }
        let mut tx = store.begin().await.unwrap();
        let connection = tx.sqlite().unwrap();
        for (setting, wanted) in [
            ("PRAGMA recursive_triggers", 0),
            ("PRAGMA legacy_alter_table", 0),
            ("PRAGMA wal_autocheckpoint", 32_768),
            ("PRAGMA foreign_keys", 1),
        ] {
            let is: i64 = sqlx::query_scalar(setting)
                .fetch_one(&mut *connection)
                .await
                .unwrap();
            assert_eq!(is, wanted, "{setting}");
        }
    });
}

#[test]
fn a_file_is_opened_however_long_one_is_willing_to_wait() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("store.db").display());
        let mut options = StoreOptions::new(url);
        for days in [25, 100 * 365] {
            options.timeout = Duration::from_secs(days * 24 * 60 * 60);
            let store = Store::open(&options, &Env::system()).await.unwrap();
            write(&store, "CREATE TABLE IF NOT EXISTS t (n integer)")
                .await
                .unwrap();
        }
    });
}

#[test]
fn a_store_closes_after_a_transaction_that_was_dropped() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        run(&mut tx, "INSERT INTO t VALUES (1)").await;
        drop(tx);
        store.close().await.unwrap();
        assert_eq!(count(&store).await, 0);
    });
}

#[test]
fn a_transaction_that_outlives_its_store_leaves_nothing_behind() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        write(&store, TABLES).await.unwrap();
        let other = another_process(&dir).await;
        let mut tx = store.begin().await.unwrap();
        drop(store);
        run(&mut tx, "INSERT INTO t VALUES (1)").await;
        drop(tx);
        write(&other, "INSERT INTO t VALUES (1)").await.unwrap();
        assert_eq!(count(&other).await, 1);
    });
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn locks_of_a_dropped_transaction_are_free_at_once() {
        runtime().block_on(async {
            let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
            let options = StoreOptions::new(url);
            let (one, two) = (
                Store::open(&options, &Env::system()).await.unwrap(),
                Store::open(&options, &Env::system()).await.unwrap(),
            );
            // A lock that only this test takes.
            let lock = "SELECT pg_advisory_xact_lock(7251990431)";
            let mut held = one.begin().await.unwrap();
            let connection = held.postgres().unwrap();
            sqlx::raw_sql(lock).execute(connection).await.unwrap();
            drop(held);
            let mut next = two.begin().await.unwrap();
            let taken = sqlx::raw_sql(lock).execute(next.postgres().unwrap());
            tokio::time::timeout(PATIENCE, taken)
                .await
                .expect("it was free")
                .unwrap();
            next.rollback().await.unwrap();
        });
    }
}
