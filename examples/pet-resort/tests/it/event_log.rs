//! The Event Log API itself, on every database.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::env::Env;
use tidegate_eventlog::{EventLog, EventLogOptions};
use tidegate_server::eventlog::{EventLogApi, event_log_routes};
use tidegate_server::{Server, ServerConfig};
use tidegate_store::{Store, StoreOptions, sqlx};

use crate::the_twelve_scenarios_give_the_listed_status_codes;

/// Serves the API until the test ends, and gives its address.
async fn serve(options: StoreOptions) -> String {
    let env = Env::system();
    let store = Store::open(&options, &env).await.unwrap();
    let log = EventLog::open(store, EventLogOptions::default(), &env).await;
    let routes = event_log_routes(EventLogApi {
        log: log.unwrap(),
        clock: env.clock.clone(),
        version: "0.0.0",
        build: "test".to_owned(),
    });
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..ServerConfig::default()
    };
    let server = Server::builder(config).routes(routes).bind(&env).await;
    let server = server.unwrap();
    let url = format!("http://{}", server.local_addr());
    tokio::spawn(server.run(std::future::pending()));
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn p16_the_twelve_scenarios_give_the_listed_status_codes() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    let api = serve(StoreOptions::new(url)).await;
    the_twelve_scenarios_give_the_listed_status_codes(api).await;
}

mod needs_postgres {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs PostgreSQL"]
    async fn p16_the_twelve_scenarios_give_the_listed_status_codes() {
        let url = std::env::var("DATABASE_URL").unwrap();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let schema = format!("resort_{}_{}", std::process::id(), since.as_nanos());
        let admin = Store::open(&StoreOptions::new(&url), &Env::system()).await;
        let admin = admin.unwrap();
        run(&admin, format!("CREATE SCHEMA {schema}")).await;
        let mut options = StoreOptions::new(url);
        options.schema = Some(schema.clone());
        the_twelve_scenarios_give_the_listed_status_codes(serve(options).await).await;
        run(&admin, format!("DROP SCHEMA {schema} CASCADE")).await;
    }

    async fn run(store: &Store, sql: String) {
        let mut tx = store.begin().await.unwrap();
        let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        let connection = tx.postgres().unwrap();
        statement.execute(connection).await.unwrap();
        tx.commit().await.unwrap();
    }
}
