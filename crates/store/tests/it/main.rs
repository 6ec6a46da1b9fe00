//! The store from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]

mod closing;
mod idempotency_keys;
mod left_open;
mod needs_postgres;

use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Env, system::SystemClock};
use tidegate_core::{Classify, EventIds, FailureClass};
use tidegate_store::{Store, StoreError, StoreOptions, lease, migrate, posting, sqlx};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn sqlite(dir: &tempfile::TempDir) -> Store {
    let url = format!("sqlite://{}", dir.path().join("store.db").display());
    let store = Store::open(&StoreOptions::new(url), &Env::system())
        .await
        .unwrap();
    migrate::migrate(&store, "test", &[]).await.unwrap();
    store
}

fn options(url: impl Into<String>) -> StoreOptions {
    let mut options = StoreOptions::new(url);
    options.timeout = Duration::from_millis(400);
    options
}

#[test]
fn a_database_that_is_away_is_an_answer() {
    runtime().block_on(async {
        // A port that nobody listens on.
        let free = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = Store::open(&options(format!("postgres://me@{free}/x")), &Env::system()).await;
        let error = error.unwrap_err();
        assert!(matches!(error, StoreError::Away { .. }), "{error:?}");
        assert_eq!(error.class(), FailureClass::Transient);
        assert!(!error.may_have_happened());
    });
}

#[test]
fn a10_a_server_that_never_answers_is_cut_by_the_timeout() {
    runtime().block_on(async {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let began = std::time::Instant::now();
        let error = Store::open(
            &options(format!("postgres://me@{address}/x")),
            &Env::system(),
        )
        .await;
        assert!(matches!(
            error,
            Err(StoreError::Away { .. } | StoreError::Timeout { .. })
        ));
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            began.elapsed()
        );
    });
}

#[test]
fn an_address_that_is_none_is_refused_by_name() {
    runtime().block_on(async {
        for url in ["mysql://x", "orders", "sqlite::memory:", "sqlite://"] {
            let error = Store::open(&StoreOptions::new(url), &Env::system())
                .await
                .unwrap_err();
            assert!(
                matches!(error, StoreError::Address { .. }),
                "{url}: {error:?}"
            );
            assert_eq!(error.class(), FailureClass::System);
        }
    });
}

#[test]
fn an_operation_that_fails_takes_back_itself_and_nobody_else() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let Store::Sqlite(file) = &store else {
            panic!("it is SQLite");
        };
        let run = |sql: &'static str| {
            file.write("test", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
            })
        };
        run("CREATE TABLE t (n integer PRIMARY KEY)").await.unwrap();
        // All three wait for the writer together.
        let (one, two, three) = tokio::join!(
            run("INSERT INTO t VALUES (1)"),
            run("INSERT INTO t VALUES (2); INSERT INTO t VALUES (2)"),
            run("INSERT INTO t VALUES (3)"),
        );
        assert!(one.is_ok() && three.is_ok());
        assert_eq!(two.unwrap_err().class(), FailureClass::Permanent);
        // One that is alone too.
        let alone = run("INSERT INTO t VALUES (5); INSERT INTO t VALUES (5)").await;
        assert_eq!(alone.unwrap_err().class(), FailureClass::Permanent);
        let count = file.read("count", |connection| {
            Box::pin(async move {
                sqlx::query_scalar::<_, i64>("SELECT sum(n) FROM t")
                    .fetch_one(connection)
                    .await
            })
        });
        assert_eq!(count.await.unwrap(), 4);
        let missing = run("INSERT INTO nowhere VALUES (1)").await.unwrap_err();
        assert!(matches!(missing, StoreError::Schema { .. }), "{missing:?}");
    });
}

#[test]
fn an_operation_that_panics_takes_back_itself_and_nobody_else() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let Store::Sqlite(file) = &store else {
            panic!("it is SQLite");
        };
        let run = |sql: &'static str| {
            file.write("test", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await })
            })
        };
        run("CREATE TABLE t (n integer PRIMARY KEY)").await.unwrap();
        let panics = file.write::<(), _>("test", |connection| {
            Box::pin(async move {
                let insert = sqlx::raw_sql("INSERT INTO t VALUES (2)");
                insert.execute(connection).await?;
                panic!("a number that is too large");
            })
        });
        let panics_at_once = file.write::<(), _>("test", |_| panic!("before it began"));
        let (one, two, three, four) = tokio::join!(
            run("INSERT INTO t VALUES (1)"),
            panics,
            panics_at_once,
            run("INSERT INTO t VALUES (3)"),
        );
        assert!(one.is_ok() && four.is_ok());
        for panicked in [two, three] {
            let error = panicked.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
            assert!(!error.may_have_happened());
        }
        run("INSERT INTO t VALUES (4)").await.unwrap();
        let sum = file.read("sum", |connection| {
            Box::pin(sqlx::query_scalar("SELECT sum(n) FROM t").fetch_one(connection))
        });
        let sum: i64 = sum.await.unwrap();
        assert_eq!(sum, 8);
    });
}

#[test]
fn a_transaction_that_is_dropped_or_idle_changes_nothing_and_holds_nothing_for_ever() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let mut tx = store.begin().await.unwrap();
        let sql = "CREATE TABLE t (n integer)";
        sqlx::raw_sql(sql)
            .execute(tx.sqlite().unwrap())
            .await
            .unwrap();
        drop(tx);
        let mut tx = store.begin().await.unwrap();
        let sql = "CREATE TABLE t (n integer)";
        sqlx::raw_sql(sql)
            .execute(tx.sqlite().unwrap())
            .await
            .unwrap();
        tx.commit().await.unwrap();
    });
}

async fn leases(store: &Store) {
    let (short, long) = (Duration::from_millis(60), Duration::from_secs(60));
    let first = lease::acquire(store, "a", "one", long)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(lease::acquire(store, "a", "two", long).await.unwrap(), None);
    // It ends soon from here on.
    assert!(lease::renew(store, &first, short).await.unwrap());
    tokio::time::sleep(short * 2).await;
    let second = lease::acquire(store, "a", "two", long)
        .await
        .unwrap()
        .unwrap();
    assert!(second.token > first.token);
    assert!(!lease::renew(store, &first, long).await.unwrap());
    let mut tx = store.begin().await.unwrap();
    assert!(!lease::holds(&mut tx, &first).await.unwrap());
    assert!(lease::holds(&mut tx, &second).await.unwrap());
    tx.rollback().await.unwrap();
    lease::release(store, second).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(
        lease::acquire(store, "a", "three", long)
            .await
            .unwrap()
            .is_some()
    );
}

/// Writes many postings, folds them, and finds the same books.
async fn folding(store: &Store) {
    let env = Env::system();
    let ids = EventIds::new(
        std::sync::Arc::new(SystemClock::new()),
        env.entropy.fork("ids"),
    );
    let mut expected = tidegate_core::books::Books::default();
    for _ in 0..300 {
        let id = ids.mint();
        let written = postings([id], None, Some(Place::Queued));
        expected.post(&written[0]);
        match store {
            Store::Sqlite(file) => file
                .write("post", move |connection| {
                    Box::pin(
                        async move { posting::write_sqlite(connection, "test", &written).await },
                    )
                })
                .await
                .unwrap(),
            Store::Postgres(server) => server
                .run("post", move |connection| {
                    Box::pin(
                        async move { posting::write_postgres(connection, "test", &written).await },
                    )
                })
                .await
                .unwrap(),
        }
    }
    let fewer = posting::fold(store, "test", env.clock.now_ms())
        .await
        .unwrap();
    assert!(fewer >= 298, "{fewer}");
    let books = match store {
        Store::Sqlite(file) => file
            .read("read", |c| Box::pin(posting::books_sqlite(c, "test")))
            .await
            .unwrap(),
        Store::Postgres(server) => server
            .run("read", |c| Box::pin(posting::books_postgres(c, "test")))
            .await
            .unwrap(),
    };
    assert_eq!(books, expected);
}

/// More postings than one round takes are summed up all the same.
async fn folding_what_piled_up(store: &Store) {
    const PILED: u32 = 45_000;
    let now_ms = Env::system().clock.now_ms();
    let minute = now_ms / 60_000;
    let many = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {PILED})
         INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
         SELECT 'piled', 'm{minute}', NULL, 'queued', 1,
             CAST('00000000-0000-0000-0000-000000000001' AS uuid) FROM n"
    );
    let (books, counts, left) = match store {
        Store::Sqlite(file) => {
            // SQLite knows no such type, and keeps the text.
            let many = many.replace("AS uuid", "AS text");
            let add = file.write("pile up", move |c| {
                let many = sqlx::raw_sql(sqlx::AssertSqlSafe(many));
                Box::pin(many.execute(c))
            });
            add.await.unwrap();
            posting::fold(store, "piled", now_ms).await.unwrap();
            let read = file.read("read", |c| {
                Box::pin(async move {
                    let left = "SELECT count(*) FROM tidegate_posting WHERE component = 'piled'";
                    let left: i64 = sqlx::query_scalar(left).fetch_one(&mut *c).await?;
                    let counts = posting::counts_sqlite(c, "piled").await?;
                    Ok((posting::books_sqlite(c, "piled").await?, counts, left))
                })
            });
            read.await.unwrap()
        }
        Store::Postgres(server) => {
            let add = server.run("pile up", move |c| {
                let many = sqlx::raw_sql(sqlx::AssertSqlSafe(many));
                Box::pin(many.execute(c))
            });
            add.await.unwrap();
            posting::fold(store, "piled", now_ms).await.unwrap();
            let read = server.run("read", |c| {
                Box::pin(async move {
                    let left = "SELECT count(*) FROM tidegate_posting WHERE component = 'piled'";
                    let left: i64 = sqlx::query_scalar(left).fetch_one(&mut *c).await?;
                    let counts = posting::counts_postgres(c, "piled").await?;
                    Ok((posting::books_postgres(c, "piled").await?, counts, left))
                })
            });
            read.await.unwrap()
        }
    };
    assert!(left <= 3, "{left} rows are left");
    let queued = books.tallies(&Place::Queued);
    let sum = queued.values().map(|tally| (tally.count, tally.id_sum));
    assert_eq!(
        sum.collect::<Vec<_>>(),
        [(i64::from(PILED), u128::from(PILED))]
    );
    assert_eq!(counts.account(), books.account());
}

/// Rows that are alone in their sum stay where they are, however often it is summed up.
async fn folding_again_writes_nothing(store: &Store) {
    const MINUTES: u32 = 500;
    let now_ms = Env::system().clock.now_ms();
    let minute = now_ms / 60_000;
    let many = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MINUTES})
         INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
         SELECT 'folded', 'm' || ({minute} - i), NULL, 'queued', 1,
             '00000000-0000-0000-0000-000000000001' FROM n"
    );
    // One more for the newest minute: two rows of hundreds become one.
    let one = format!(
        "INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
         VALUES ('folded', 'm{}', NULL, 'queued', 1, '00000000-0000-0000-0000-000000000001')",
        minute - 1
    );
    let many = match store {
        Store::Sqlite(_) => many,
        Store::Postgres(_) => many.replace("000001'", "000001'::uuid"),
    };
    let add = |sql: String| async move {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        match store {
            Store::Sqlite(file) => {
                let add = file.write("add", move |c| Box::pin(sql.execute(c)));
                add.await.map(drop).unwrap();
            }
            Store::Postgres(server) => {
                let add = server.run("add", move |c| Box::pin(sql.execute(c)));
                add.await.map(drop).unwrap();
            }
        }
    };
    let rows = || async move {
        let rows: Vec<(String, String)> = match store {
            Store::Sqlite(file) => {
                let read = file.read("read", |c| {
                    let sql = "SELECT CAST(rowid AS text), bucket FROM tidegate_posting
                               WHERE component = 'folded' ORDER BY 1";
                    Box::pin(sqlx::query_as(sql).fetch_all(c))
                });
                read.await.unwrap()
            }
            Store::Postgres(server) => {
                let read = server.run("read", |c| {
                    let sql = "SELECT ctid::text, bucket FROM tidegate_posting
                               WHERE component = 'folded' ORDER BY 1";
                    Box::pin(sqlx::query_as(sql).fetch_all(c))
                });
                read.await.unwrap()
            }
        };
        rows
    };
    add(many).await;
    let before = rows().await;
    assert_eq!(posting::fold(store, "folded", now_ms).await.unwrap(), 0);
    assert_eq!(rows().await, before);
    add(one).await;
    assert_eq!(posting::fold(store, "folded", now_ms).await.unwrap(), 1);
    let after = rows().await;
    let kept = before.iter().filter(|row| after.contains(row)).count();
    assert_eq!((kept, after.len()), (before.len() - 1, before.len()));
}

#[test]
fn a_lease_has_one_owner_and_its_token_fences_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        leases(&store).await;
        folding(&store).await;
        folding_what_piled_up(&store).await;
        folding_again_writes_nothing(&store).await;
        assert_eq!(
            migrate::migrate(&store, "test", &[]).await.unwrap(),
            0,
            "they ran already"
        );
    });
}
