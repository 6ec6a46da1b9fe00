//! The servers, the relays and the events of a campaign.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::env::Env;
use tidegate_log::Log;
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_outbox::{NewOutboxEvent, Outbox};
use tidegate_store::{Store, StoreError, StoreOptions, sqlx};

use crate::KEYS;

/// The servers of a campaign.
#[derive(Clone)]
pub(crate) struct Addresses {
    pub(crate) database: String,
    pub(crate) bootstrap: String,
}

impl Addresses {
    /// Those that the environment names.
    pub(crate) fn of_environment() -> Self {
        Self {
            database: std::env::var("DATABASE_URL").unwrap(),
            bootstrap: std::env::var("KAFKA_BOOTSTRAP").unwrap(),
        }
    }

    pub(crate) async fn store(&self, schema: Option<&str>) -> Store {
        let mut options = StoreOptions::new(self.database.clone());
        options.schema = schema.map(str::to_owned);
        options.timeout = Duration::from_secs(30);
        let env = Env::system();
        until_there(|| Store::open(&options, &env)).await
    }

    pub(crate) async fn log(&self) -> Arc<dyn Log> {
        let config = KafkaConfig::new("default", self.bootstrap.clone());
        Arc::new(until_there(|| KafkaLog::connect(config.clone(), Env::system())).await)
    }
}

/// Asks until there is an answer: servers are away now and then.
pub(crate) async fn until_there<T, E: std::fmt::Display>(
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(90), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) async fn run_sql(store: &Store, sql: String) {
    try_to_run(store, &sql).await.unwrap();
}

pub(crate) async fn try_to_run(store: &Store, sql: &str) -> Result<(), StoreError> {
    let Store::Postgres(postgres) = store else {
        panic!("it is PostgreSQL");
    };
    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    let call = postgres.run("prepare a test", move |connection| {
        let sql = sqlx::raw_sql(sql);
        Box::pin(async move { sql.execute(connection).await.map(drop) })
    });
    call.await
}

pub(crate) struct RelayProcess(pub(crate) Child);

impl RelayProcess {
    pub(crate) fn start(addresses: &Addresses, schema: &str, topic: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_relay", "--ignored"])
            .env("DATABASE_URL", &addresses.database)
            .env("KAFKA_BOOTSTRAP", &addresses.bootstrap)
            .env("OUTBOX_CAMPAIGN_SCHEMA", schema)
            .env("OUTBOX_CAMPAIGN_TOPIC", topic)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The topic as kcat reads it: key and number of each record, by partition.
pub(crate) fn read_by_kcat(bootstrap: &str, topic: &str) -> Vec<(String, u64)> {
    let read = Command::new("kcat")
        .args([
            "-b",
            bootstrap,
            "-C",
            "-t",
            topic,
            "-e",
            "-q",
            "-o",
            "beginning",
            "-f",
            "%k %s\n",
        ])
        .output()
        .expect("kcat is installed");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let text = String::from_utf8(read.stdout).unwrap();
    let pair = |line: &str| {
        let (key, number) = line.split_once(' ').unwrap();
        (key.to_owned(), number.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

/// Adds the next event of each key, and finds out what became of an answer that was lost: all are there, or none.
pub(crate) async fn insert(outbox: &Outbox, store: &Store, number: u64) {
    let event = move |key| NewOutboxEvent::new(format!("key-{key}"), "T", number.to_string());
    let events: Vec<_> = (0..KEYS).map(event).collect();
    let mut is_unknown = false;
    until_there(async || {
        if is_unknown && count_of(store, number).await? > 0 {
            return Ok(());
        }
        is_unknown = true;
        outbox
            .insert(&events)
            .await
            .map(drop)
            .map_err(|e| e.to_string())
    })
    .await;
}

pub(crate) async fn count_of(store: &Store, number: u64) -> Result<i64, String> {
    let Store::Postgres(postgres) = store else {
        panic!("it is PostgreSQL");
    };
    let sql = format!("SELECT count(*) FROM outbox_event WHERE payload = '{number}'");
    let call = postgres.run("count events", move |connection| {
        let sql = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
        Box::pin(async move { sql.fetch_one(connection).await })
    });
    call.await.map_err(|error| error.to_string())
}
