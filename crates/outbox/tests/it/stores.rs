//! The rules of the outbox on all three stores.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_outbox::conformance::{BUCKETS, OutboxWorld, USUAL_TOPIC};
use tidegate_outbox::model::OutboxModel;
use tidegate_outbox::{Outbox, OutboxOptions, migrate};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreError, StoreOptions, sqlx};
use tokio::runtime::Runtime;

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn options() -> OutboxOptions {
    OutboxOptions {
        buckets: BUCKETS,
        topic: Some(Topic::new(USUAL_TOPIC).unwrap()),
        ..OutboxOptions::default()
    }
}

pub(crate) async fn sqlite(dir: &tempfile::TempDir) -> Store {
    let path = dir.path().join("outbox.db");
    let options = StoreOptions::new(format!("sqlite://{}", path.display()));
    Store::open(&options, &Env::system()).await.unwrap()
}

pub(crate) fn postgres_options(schema: Option<&str>) -> StoreOptions {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
    let mut options = StoreOptions::new(url);
    options.schema = schema.map(str::to_owned);
    options.timeout = Duration::from_secs(30);
    options
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{name}_{}_{}", since.as_nanos(), std::process::id())
}

/// A schema of its own on the server of the tests.
pub(crate) async fn postgres() -> (Store, String) {
    let env = Env::system();
    let admin = Store::open(&postgres_options(None), &env).await.unwrap();
    let schema = unique("outbox_test");
    run(&admin, &format!("CREATE SCHEMA {schema}")).await;
    let store = Store::open(&postgres_options(Some(&schema)), &env).await;
    (store.unwrap(), schema)
}

/// Runs statements on either database.
pub(crate) async fn run(store: &Store, sql: &str) {
    try_to_run(store, sql).await.unwrap();
}

pub(crate) async fn try_to_run(store: &Store, sql: &str) -> Result<(), StoreError> {
    let sql = AssertSqlSafe(sql.to_owned());
    match store {
        Store::Postgres(postgres) => {
            let call = postgres.run("prepare a test", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await.map(drop) })
            });
            call.await
        }
        Store::Sqlite(sqlite) => {
            let call = sqlite.write("prepare a test", move |connection| {
                Box::pin(async move { sqlx::raw_sql(sql).execute(connection).await.map(drop) })
            });
            call.await
        }
    }
}

/// The one number that the database answers with.
pub(crate) async fn ask(store: &Store, sql: &str) -> i64 {
    let sql = AssertSqlSafe(sql.to_owned());
    match store {
        Store::Postgres(postgres) => {
            let call = postgres.run("ask", move |connection| {
                Box::pin(async move { sqlx::query_scalar(sql).fetch_one(connection).await })
            });
            call.await.unwrap()
        }
        Store::Sqlite(sqlite) => {
            let call = sqlite.read("ask", move |connection| {
                Box::pin(async move { sqlx::query_scalar(sql).fetch_one(connection).await })
            });
            call.await.unwrap()
        }
    }
}

pub(crate) async fn drop_schema(store: &Store, schema: &str) {
    loop {
        let dropped = try_to_run(store, &format!("DROP SCHEMA {schema} CASCADE")).await;
        if !matches!(dropped, Err(StoreError::Conflict { .. })) {
            return dropped.unwrap();
        }
    }
}

async fn world(store: &Store) -> OutboxWorld {
    migrate(store, &options()).await.unwrap();
    assert_eq!(migrate(store, &options()).await.unwrap(), 0);
    let outbox = Outbox::open(store, options(), &Env::system())
        .await
        .unwrap();
    OutboxWorld::new(Arc::clone(outbox.store()))
}

macro_rules! on_model {
    ($rule:expr) => {{
        runtime().block_on(async {
            let model = OutboxModel::new(&options(), &Env::system());
            $rule(&OutboxWorld::new(Arc::new(model))).await;
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
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            $rule(&world(&store).await).await;
            drop_schema(&store, &schema).await;
        });
    }};
}

mod model {
    use super::*;
    tidegate_outbox::outbox_conformance!(on_model);
}

mod on_sqlite_file {
    use super::*;
    tidegate_outbox::outbox_conformance!(on_sqlite);
}

mod needs_postgres {
    use super::*;
    tidegate_outbox::outbox_conformance!(
        #[ignore = "needs PostgreSQL"]
        on_postgres
    );
}

#[test]
fn every_rule_is_a_test_on_every_store() {
    let this = std::env::current_exe().unwrap();
    let listed = Command::new(this)
        .args(["--list", "--include-ignored"])
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mut rules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let line = line
            .strip_prefix("stores::")
            .and_then(|l| l.split_once("::"));
        if let Some((store, rule)) = line {
            rules.entry(store).or_default().insert(rule);
        }
    }
    let stores: Vec<&&str> = rules.keys().collect();
    assert_eq!(stores, [&"model", &"needs_postgres", &"on_sqlite_file"]);
    assert!(rules["model"].len() >= 18, "{}", rules["model"].len());
    assert!(rules.values().all(|on_store| *on_store == rules["model"]));
}
