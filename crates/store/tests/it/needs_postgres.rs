//! Behavior that only a real server shows.

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
    let store = Store::open(&in_schema(&schema), &Env::system())
        .await
        .unwrap();
    migrate::migrate(&store, "test", &[]).await.unwrap();
    (store, schema)
}

/// How to reach a schema of the server, with patience: many tests share it.
fn in_schema(schema: &str) -> StoreOptions {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
    let mut options = StoreOptions::new(url);
    options.schema = Some(schema.to_owned());
    options.timeout = Duration::from_secs(60);
    options
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
        idempotency_keys::a_key_is_answered_once(&store).await;
        idempotency_keys::an_answer_commits_with_its_work(&store).await;
        assert_eq!(migrate::migrate(&store, "test", &[]).await.unwrap(), 0);
        execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
            .await
            .unwrap();
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn settings_of_a_transaction_end_with_it() {
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
        // A trigger that runs at its end shows for what a commit waits.
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
    // A few stretches of the table; in a long run so many that one statement for all of them is cut.
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let rows_there: i64 = if is_long { 1_000_000 } else { 150_000 };
    runtime().block_on(async {
        let (patient, schema) = postgres().await;
        let rows = format!(
            "SET statement_timeout = 0;
             INSERT INTO tidegate_posting (component, bucket, to_place, count, id_sum)
             SELECT 'large', 'm' || n % 1000, 'queued', 1, lpad(n::text, 32, '0')::uuid
             FROM generate_series(1, {rows_there}) n"
        );
        execute(&patient, rows).await.unwrap();
        let mut options = in_schema(&schema);
        if is_long {
            // Half of what one statement takes on this machine, which is many times what a stretch takes.
            let began = std::time::Instant::now();
            let whole =
                "SELECT bucket, sum(count), sum(('x' || left(id_sum::text, 8))::bit(32)::int8)
                 FROM tidegate_posting GROUP BY bucket";
            execute(&patient, whole.to_owned()).await.unwrap();
            options.timeout = began.elapsed() / 2;
        }
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
        let counted = queued.values().map(|one| one.count).sum::<i64>();
        assert_eq!(counted, rows_there);
        assert_eq!(counts.account(), books.account());
        execute(&patient, format!("DROP SCHEMA {schema} CASCADE"))
            .await
            .unwrap();
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn defaults_of_a_database_do_not_weaken_us() {
    runtime().block_on(async {
        let (store, schema) = postgres().await;
        // Its defaults for one user: a database of its own would be dropped with a checkpoint, which takes
        // as long as all that others write.
        let database = sqlx::query_scalar("SELECT current_database()");
        let mut asking = store.begin().await.unwrap();
        let database = database.fetch_one(asking.postgres().unwrap()).await;
        let database: String = database.unwrap();
        asking.rollback().await.unwrap();
        let preferred = format!(
            "CREATE ROLE {schema} LOGIN; ALTER ROLE {schema} IN DATABASE {database} \
                 SET default_transaction_isolation = 'serializable'; \
             ALTER ROLE {schema} IN DATABASE {database} SET synchronous_commit = off"
        );
        execute(&store, preferred).await.unwrap();
        let url = std::env::var("DATABASE_URL").unwrap();
        let (_, server) = url.rsplit_once('@').unwrap();
        let options = StoreOptions::new(format!("postgres://{schema}@{server}"));
        let relaxed = Store::open(&options, &Env::system()).await.unwrap();
        for (setting, expected) in [
            ("transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
        ] {
            let check = format!("SELECT 1 / (current_setting('{setting}') = '{expected}')::int");
            execute(&relaxed, check).await.expect(setting);
        }
        drop(relaxed);
        let end = format!("DROP ROLE {schema}; DROP SCHEMA {schema} CASCADE");
        execute(&store, end).await.unwrap();
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
        let mut options = in_schema(&schema);
        options.timeout = Duration::from_secs(2);
        let hasty = Store::open(&options, &Env::system()).await.unwrap();
        let error = execute(&hasty, "SELECT pg_sleep(600)".to_owned())
            .await
            .unwrap_err();
        assert_eq!(error.class(), FailureClass::Transient, "{error:?}");
        hasty.ping().await.unwrap();
        // An idle transaction is ended by the server, and its end says so.
        let mut options = in_schema(&schema);
        options.idle_transaction = Duration::from_millis(100);
        let idle = Store::open(&options, &Env::system()).await.unwrap();
        let mut tx = idle.begin().await.unwrap();
        let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(tx.postgres().unwrap())
            .await
            .unwrap();
        // Divides by zero for as long as it is there.
        let is_gone = format!(
            "SELECT 1 / (count(*) - 1) FROM pg_stat_activity WHERE pid = {process} HAVING count(*) = 1"
        );
        while execute(&store, is_gone.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, StoreError::Away { .. }), "{error:?}");
        execute(&store, format!("DROP SCHEMA {schema} CASCADE"))
            .await
            .unwrap();
    });
}
