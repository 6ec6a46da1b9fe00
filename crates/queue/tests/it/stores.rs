//! The rules of the queue on all three stores.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::env::Env;
use tidegate_queue::conformance::World;
use tidegate_queue::model::QueueModel;
use tidegate_queue::{Tx, sql};
use tidegate_store::{Store, StoreError, StoreOptions};
use tokio::runtime::Runtime;

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A database of its own, which stays behind when the test fails.
pub(crate) async fn sqlite(dir: &tempfile::TempDir) -> Store {
    let path = dir.path().join("queue.db");
    let options = StoreOptions::new(format!("sqlite://{}", path.display()));
    let store = Store::open(&options, &Env::system()).await.unwrap();
    sql::migrate(&store).await.unwrap();
    store
}

/// The world on the queue of a store.
pub(crate) async fn world(store: &Store) -> World {
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    World::new(queue.unwrap())
}

/// A schema of its own on the server of the tests.
pub(crate) async fn postgres() -> (Store, String) {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
    let env = Env::system();
    let admin = Store::open(&StoreOptions::new(&url), &env).await.unwrap();
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    let schema = format!("queue_test_{nanos}_{}", std::process::id());
    run(&admin, format!("CREATE SCHEMA {schema}")).await;
    let mut options = StoreOptions::new(url);
    options.schema = Some(schema.clone());
    // Many tests share the server, and dropping a schema waits for the disk.
    options.timeout = Duration::from_secs(30);
    let store = Store::open(&options, &env).await.unwrap();
    sql::migrate(&store).await.unwrap();
    (store, schema)
}

pub(crate) async fn run(store: &Store, sql: String) {
    try_to_run(store, sql).await.unwrap();
}

async fn try_to_run(store: &Store, sql: String) -> Result<(), StoreError> {
    let Store::Postgres(postgres) = store else {
        panic!("only PostgreSQL has schemas");
    };
    let call = postgres.run("prepare a test", move |connection| {
        Box::pin(async move {
            let sql = tidegate_store::sqlx::AssertSqlSafe(sql);
            tidegate_store::sqlx::raw_sql(sql).execute(connection).await
        })
    });
    call.await.map(|_| ())
}

/// Drops the schema of a test. A call that the test canceled may still run on the server, and the two
/// may wait for each other; then the server ends one of them, and if it was this one it tries again.
pub(crate) async fn drop_schema(store: &Store, schema: &str) {
    loop {
        let dropped = try_to_run(store, format!("DROP SCHEMA {schema} CASCADE")).await;
        if !matches!(dropped, Err(StoreError::Conflict { .. })) {
            return dropped.unwrap();
        }
    }
}

/// The one number that the server answers with.
pub(crate) async fn ask(store: &Store, sql: String) -> i64 {
    let Store::Postgres(postgres) = store else {
        panic!("only PostgreSQL has schemas");
    };
    let call = postgres.run("ask", move |connection| {
        Box::pin(async move {
            let sql = tidegate_store::sqlx::AssertSqlSafe(sql);
            let sql = tidegate_store::sqlx::query_scalar(sql);
            sql.fetch_one(connection).await
        })
    });
    call.await.unwrap()
}

/// Asks until the answer is yes, and says whether it came within a minute.
pub(crate) async fn is_soon(store: &Store, sql: &str) -> bool {
    for _ in 0..6_000 {
        let sql = format!("SELECT ({sql})::int::int8");
        if ask(store, sql).await == 1 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

/// The process of the server that a transaction runs in.
pub(crate) async fn process_of(tx: &mut Tx) -> i32 {
    let process = tidegate_store::sqlx::query_scalar("SELECT pg_backend_pid()");
    process.fetch_one(tx.postgres().unwrap()).await.unwrap()
}

/// Waits until so many sessions wait for what this transaction has locked, also those who wait behind
/// another of them.
pub(crate) async fn until_waited_for(store: &Store, busy: &mut Tx, count: usize) {
    let process = process_of(busy).await;
    let waiting = format!(
        "WITH RECURSIVE waits(pid) AS (
             SELECT {process}
             UNION SELECT a.pid FROM pg_stat_activity a JOIN waits w
                 ON a.wait_event_type = 'Lock' AND w.pid = ANY (pg_blocking_pids(a.pid)))
         SELECT count(*) > {count} FROM waits"
    );
    assert!(is_soon(store, &waiting).await, "fewer than {count} wait");
}

/// Waits until every transaction of the server that runs now has ended: by then nobody comes below what
/// the sequencer saw. Those of other tests may take long; after a minute it goes on without them, and
/// the test sees less.
pub(crate) async fn until_those_who_run_have_ended(store: &Store) {
    let now = ask(store, "SELECT pg_current_xact_id()::text::int8".to_owned()).await;
    let have_ended = format!("pg_snapshot_xmin(pg_current_snapshot())::text::int8 > {now}");
    is_soon(store, &have_ended).await;
}

/// A queue in a schema of its own.
pub(crate) struct OnServer {
    pub(crate) store: Store,
    pub(crate) world: World,
    pub(crate) schema: String,
}

impl OnServer {
    /// How others reach the same tables.
    pub(crate) fn options(&self) -> StoreOptions {
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
        let mut options = StoreOptions::new(url);
        options.schema = Some(self.schema.clone());
        options.timeout = Duration::from_secs(30);
        options
    }
}

/// Runs a test on a schema of its own, which stays behind when the test fails.
pub(crate) fn with_postgres(test: impl AsyncFnOnce(&OnServer)) {
    runtime().block_on(async {
        let (store, schema) = postgres().await;
        let world = world(&store).await;
        let server = OnServer {
            store,
            world,
            schema,
        };
        test(&server).await;
        drop_schema(&server.store, &server.schema).await;
    });
}

macro_rules! on_model {
    ($rule:expr) => {{
        runtime().block_on(async {
            let model = QueueModel::new(Env::system().clock);
            $rule(&World::new(Arc::new(model))).await;
        });
    }};
}

macro_rules! on_sqlite {
    ($rule:expr) => {{
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = sqlite(&dir).await;
            $rule(&world(&store).await).await;
        });
    }};
}

macro_rules! on_postgres {
    ($rule:expr) => {{
        with_postgres(async |server: &OnServer| $rule(&server.world).await);
    }};
}

mod model {
    use super::*;
    tidegate_queue::queue_conformance!(on_model);
}

mod on_sqlite_file {
    use super::*;
    tidegate_queue::queue_conformance!(on_sqlite);
}

mod needs_postgres {
    use super::*;
    tidegate_queue::queue_conformance!(
        #[ignore = "needs PostgreSQL"]
        on_postgres
    );
}
