//! The store from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]

mod closing;
mod left_open;

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
            began.elapsed() < Duration::from_secs(5),
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
    let first = lease::acquire(store, "a", "one", short)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(lease::acquire(store, "a", "two", long).await.unwrap(), None);
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

mod needs_postgres {
    use super::*;

    async fn postgres() -> (Store, String) {
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
        let store = Store::open(&StoreOptions::new(&url), &Env::system())
            .await
            .unwrap();
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let schema = format!("store_test_{}_{}", nanos.as_nanos(), std::process::id());
        execute(&store, format!("CREATE SCHEMA {schema}"))
            .await
            .unwrap();
        let mut options = StoreOptions::new(url);
        options.schema = Some(schema.clone());
        options.timeout = Duration::from_secs(2);
        options.idle_transaction = Duration::from_millis(500);
        let store = Store::open(&options, &Env::system()).await.unwrap();
        migrate::migrate(&store, "test", &[]).await.unwrap();
        (store, schema)
    }

    async fn execute(store: &Store, sql: String) -> Result<(), StoreError> {
        let Store::Postgres(server) = store else {
            panic!("it is PostgreSQL");
        };
        server
            .run("test", move |connection| {
                Box::pin(async move {
                    let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
                    sql.execute(connection).await.map(drop)
                })
            })
            .await
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_lease_has_one_owner_and_its_token_fences() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            leases(&store).await;
            folding(&store).await;
            folding_what_piled_up(&store).await;
            folding_again_writes_nothing(&store).await;
            assert_eq!(migrate::migrate(&store, "test", &[]).await.unwrap(), 0);
            execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn what_somebody_set_in_a_transaction_ends_with_it() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let Store::Postgres(server) = &store else {
                panic!("it is PostgreSQL");
            };
            let session = async || -> String {
                let session = server.run("look", |connection| {
                    let sql = "SELECT concat_ws(' ', current_schema(), current_user,
                         current_setting('synchronous_commit'), current_setting('work_mem'),
                         to_regclass('pg_temp.mine'), (SELECT count(*) FROM pg_locks
                             WHERE locktype = 'advisory' AND pid = pg_backend_pid()))";
                    Box::pin(sqlx::query_scalar(sql).fetch_one(connection))
                });
                session.await.unwrap()
            };
            // What a commit waits for is told by what runs at its end.
            let told = "CREATE TABLE told (what text);
                CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    UPDATE told SET what = current_setting('synchronous_commit'); RETURN NULL;
                END $$;
                CREATE CONSTRAINT TRIGGER tell AFTER INSERT ON told DEFERRABLE INITIALLY DEFERRED
                    FOR EACH ROW EXECUTE FUNCTION tell()";
            execute(&store, told.to_owned()).await.unwrap();
            let before = session().await;
            for is_committed in [true, false] {
                let mut tx = store.begin().await.unwrap();
                let connection = tx.postgres().unwrap();
                let set = "INSERT INTO told VALUES ('nothing'); SET synchronous_commit TO off;
                    CREATE TEMP TABLE mine (n integer); SELECT pg_advisory_lock(7);
                    SET work_mem TO '1MB'; DEALLOCATE ALL";
                sqlx::raw_sql(set).execute(connection).await.unwrap();
                match is_committed {
                    true => tx.commit().await.unwrap(),
                    false => tx.rollback().await.unwrap(),
                }
                assert_eq!(session().await, before);
            }
            let told = server.run("look", |connection| {
                Box::pin(sqlx::query_scalar("SELECT what FROM told").fetch_one(connection))
            });
            let told: String = told.await.unwrap();
            assert_eq!(told, "on");
            let mut tx = store.begin().await.unwrap();
            let away = "SET search_path TO pg_catalog; SET SESSION AUTHORIZATION pg_read_all_data";
            let away = sqlx::raw_sql(away).execute(tx.postgres().unwrap());
            away.await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(session().await, before);
            execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn books_of_any_size_are_read_in_short_statements() {
        const ROWS: i64 = 1_000_000;
        runtime().block_on(async {
            let (_, schema) = postgres().await;
            let rows = format!(
                "SET statement_timeout = 0;
                 INSERT INTO tidegate_posting (component, bucket, to_place, count, id_sum)
                 SELECT 'large', 'm' || n % 1000, 'queued', 1, lpad(n::text, 32, '0')::uuid
                 FROM generate_series(1, {ROWS}) n"
            );
            let url = std::env::var("DATABASE_URL").unwrap();
            let mut options = StoreOptions::new(url);
            options.schema = Some(schema.clone());
            options.timeout = Duration::from_secs(120);
            let patient = Store::open(&options, &Env::system()).await.unwrap();
            execute(&patient, rows).await.unwrap();
            options.timeout = Duration::from_millis(600);
            let hasty = Store::open(&options, &Env::system()).await.unwrap();
            let Store::Postgres(server) = &hasty else {
                panic!("it is PostgreSQL");
            };
            let books = server.long_snapshot("read", |c| {
                Box::pin(async move {
                    let counts = posting::counts_postgres(c, "large").await?;
                    Ok((posting::books_postgres(c, "large").await?, counts))
                })
            });
            let (books, counts) = books.await.unwrap();
            let queued = books.tallies(&Place::Queued);
            assert_eq!(queued.len(), 1_000);
            assert_eq!(queued.values().map(|one| one.count).sum::<i64>(), ROWS);
            assert_eq!(counts.account(), books.account());
            execute(&patient, format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn what_a_database_prefers_by_default_does_not_weaken_us() {
        runtime().block_on(async {
            let (_, database) = postgres().await;
            // A database is made and dropped with a checkpoint, which may take its time.
            let url = std::env::var("DATABASE_URL").unwrap();
            let mut options = StoreOptions::new(&url);
            options.timeout = Duration::from_secs(60);
            let store = Store::open(&options, &Env::system()).await.unwrap();
            let defaults = format!(
                "ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'; \
                 ALTER DATABASE {database} SET synchronous_commit = off"
            );
            execute(&store, format!("CREATE DATABASE {database}"))
                .await
                .unwrap();
            execute(&store, defaults).await.unwrap();
            let (server, _) = url.rsplit_once('/').unwrap();
            let options = StoreOptions::new(format!("{server}/{database}"));
            let relaxed = Store::open(&options, &Env::system()).await.unwrap();
            for (setting, expected) in [
                ("transaction_isolation", "read committed"),
                ("synchronous_commit", "on"),
            ] {
                let check =
                    format!("SELECT 1 / (current_setting('{setting}') = '{expected}')::int");
                execute(&relaxed, check).await.expect(setting);
            }
            drop(relaxed);
            for what in [
                format!("DROP DATABASE {database} WITH (FORCE)"),
                format!("DROP SCHEMA {database} CASCADE"),
            ] {
                execute(&store, what).await.unwrap();
            }
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a_commit_after_a_statement_that_failed_says_that_nothing_happened() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let Store::Postgres(server) = &store else {
                panic!("it is PostgreSQL");
            };
            execute(&store, "CREATE TABLE mine (id integer)".to_owned())
                .await
                .unwrap();
            let add = "INSERT INTO mine VALUES (1)";
            let mut tx = store.begin().await.unwrap();
            let connection = tx.postgres().unwrap();
            sqlx::raw_sql(add).execute(&mut *connection).await.unwrap();
            let failed = sqlx::raw_sql("SELECT 1 / 0").execute(connection).await;
            assert!(failed.is_err());
            let error = tx.commit().await.unwrap_err();
            assert!(!error.may_have_happened(), "{error:?}");
            assert_eq!(error.class(), FailureClass::Permanent, "{error:?}");
            // The same where the transaction is ours and the caller kept the error to itself.
            for _ in 0..20 {
                let done = server.transact("add", move |connection| {
                    Box::pin(async move {
                        sqlx::raw_sql(add).execute(&mut *connection).await?;
                        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(connection).await;
                        assert!(failed.is_err());
                        Ok(())
                    })
                });
                let error = done.await.unwrap_err();
                assert!(!error.may_have_happened(), "{error:?}");
            }
            // Its connection is as good as new.
            execute(&store, add.to_owned()).await.unwrap();
            let count = server.run("count", |connection| {
                Box::pin(async move {
                    sqlx::query_scalar("SELECT count(*) FROM mine")
                        .fetch_one(connection)
                        .await
                })
            });
            let count: i64 = count.await.unwrap();
            assert_eq!(count, 1);
            execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .unwrap();
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn connections_that_died_are_replaced_and_slow_statements_are_cut() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let killed = "SELECT pg_terminate_backend(pg_backend_pid())".to_owned();
            let error = execute(&store, killed).await.unwrap_err();
            assert!(matches!(error, StoreError::Away { .. }), "{error:?}");
            store.ping().await.unwrap();
            let error = execute(&store, "SELECT pg_sleep(60)".to_owned())
                .await
                .unwrap_err();
            assert_eq!(error.class(), FailureClass::Transient, "{error:?}");
            store.ping().await.unwrap();
            // An idle transaction is ended by the server, and its end says so.
            let mut tx = store.begin().await.unwrap();
            sqlx::raw_sql("SELECT 1")
                .execute(tx.postgres().unwrap())
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(900)).await;
            let error = tx.commit().await.unwrap_err();
            assert!(matches!(error, StoreError::Away { .. }), "{error:?}");
            execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
                .await
                .unwrap();
        });
    }
}
