//! The rules of the queue on all three stores.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::env::Env;
use tidegate_queue::conformance::World;
use tidegate_queue::model::Model;
use tidegate_queue::sql;
use tidegate_store::{Store, StoreOptions};
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
    let store = Store::open(&options, &env).await.unwrap();
    sql::migrate(&store).await.unwrap();
    (store, schema)
}

pub(crate) async fn run(store: &Store, sql: String) {
    let Store::Postgres(postgres) = store else {
        panic!("only PostgreSQL has schemas");
    };
    postgres
        .run("prepare a test", move |connection| {
            Box::pin(async move {
                let sql = tidegate_store::sqlx::AssertSqlSafe(sql);
                tidegate_store::sqlx::raw_sql(sql).execute(connection).await
            })
        })
        .await
        .unwrap();
}

macro_rules! on_model {
    ($rule:expr) => {{
        runtime().block_on(async {
            let model = Model::new(Env::system().clock);
            $rule(&World::new(Arc::new(model))).await;
        });
    }};
}

macro_rules! on_sqlite {
    ($rule:expr) => {{
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = sqlite(&dir).await;
            let store = sql::queue_store(store, &Env::system()).await.unwrap();
            $rule(&World::new(store)).await;
        });
    }};
}

macro_rules! on_postgres {
    ($rule:expr) => {{
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let queue = sql::queue_store(store.clone(), &Env::system())
                .await
                .unwrap();
            $rule(&World::new(queue)).await;
            run(&store, format!("DROP SCHEMA {schema} CASCADE")).await;
        });
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
