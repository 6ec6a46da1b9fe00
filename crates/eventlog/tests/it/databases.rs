//! The databases that the rules run on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_eventlog::{EventLog, EventLogOptions};
use tidegate_store::sql::{SqlAccess, SqlConnection, SqlDatabase};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// How long a call may take; a machine that does much else is slow.
const PATIENT: Duration = Duration::from_secs(30);

/// Runs a rule on a file of its own.
pub(crate) fn on_sqlite<F: Future<Output = ()>>(rule: impl FnOnce(EventLog) -> F) {
    on_sqlite_within(PATIENT, rule);
}

/// The same with this limit for each call.
pub(crate) fn on_sqlite_within<F: Future<Output = ()>>(
    timeout: Duration,
    rule: impl FnOnce(EventLog) -> F,
) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    runtime().block_on(async {
        let mut options = StoreOptions::new(url);
        options.timeout = timeout;
        let store = Store::open(&options, &Env::system()).await;
        rule(open(store.unwrap()).await).await;
    });
}

/// Runs a rule in a schema of its own on the server of the tests.
pub(crate) fn on_postgres<F: Future<Output = ()>>(rule: impl FnOnce(EventLog) -> F) {
    on_postgres_within(PATIENT, rule);
}

/// The same with this limit for each call.
pub(crate) fn on_postgres_within<F: Future<Output = ()>>(
    timeout: Duration,
    rule: impl FnOnce(EventLog) -> F,
) {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
    runtime().block_on(async {
        let env = Env::system();
        let admin = Store::open(&StoreOptions::new(&url), &env).await.unwrap();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let schema = format!("eventlog_test_{}_{}", since.as_nanos(), std::process::id());
        run(&admin, format!("CREATE SCHEMA {schema}")).await;
        let mut options = StoreOptions::new(url);
        options.schema = Some(schema.clone());
        options.timeout = timeout;
        let store = Store::open(&options, &env).await.unwrap();
        rule(open(store).await).await;
        run(&admin, format!("DROP SCHEMA {schema} CASCADE")).await;
    });
}

async fn open(store: Store) -> EventLog {
    let options = EventLogOptions::default();
    EventLog::open(store, options, &Env::system())
        .await
        .unwrap()
}

/// Runs a statement behind the back of the event log.
pub(crate) async fn run(store: &Store, sql: String) {
    let doing = "prepare a test";
    let sql = AssertSqlSafe(sql);
    let done = match store {
        Store::Sqlite(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| db.execute_raw(sql));
            call.await
        }
        Store::Postgres(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| db.execute_raw(sql));
            call.await
        }
    };
    done.unwrap();
}

/// An id of one minute, by its number.
pub(crate) fn id(n: u128) -> EventId {
    EventId::from_u128((0x019a_8f3e_5c00 << 80) | (7 << 76) | (0b10 << 62) | n)
}

/// An event with these members over the usual ones.
pub(crate) fn event(members: Value) -> String {
    let mut event = json!({
        "applicationId": "pet-resort-api",
        "correlationId": "a1b2c3d4",
        "processName": "CreateBooking",
        "processStatus": "STEP",
        "details": "Booking BK-1 created",
        "targetSystem": "PET_RESORT",
        "originatingSystem": "KENNEL",
        "timestamp": "2026-06-01T10:15:30.123Z",
    });
    let all = event.as_object_mut().unwrap();
    for (name, value) in members.as_object().unwrap() {
        all.insert(name.clone(), value.clone());
    }
    event.to_string()
}

/// A batch of these events.
pub(crate) fn batch(events: &[String], batch_id: Option<&str>) -> String {
    let batch_id = batch_id.map(|id| format!(r#","batchId":"{id}""#));
    format!(
        r#"{{"events":[{}]{}}}"#,
        events.join(","),
        batch_id.unwrap_or_default()
    )
}
