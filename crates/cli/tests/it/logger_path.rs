//! `tidegate audit` and `tidegate where` from a logger to the Event Log API.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemClock;
use tidegate_logger::{Defaults, Event, HttpApi, LoggerConfig, RunningLogger};
use tidegate_store::sql::{SqlAccess, SqlConnection, SqlDatabase};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use crate::command::{Ran, run_in};
use crate::running::Running;

/// An API on a database of its own, and a logger's directory beside it.
struct Installation {
    dir: TempDir,
    api: Running,
}

impl Installation {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let yaml = "eventlog: {async: {spillover-path: ./spillover}}\n";
        std::fs::write(dir.path().join("tidegate.yaml"), yaml).unwrap();
        let api = Running::start(dir.path(), &[]);
        Self { dir, api }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn logger(&self) -> RunningLogger {
        let config = LoggerConfig::builder()
            .spillover_path(self.path().join("spillover"))
            .replay_interval_ms(1_000)
            .defaults(Defaults::new("tests", "TESTS", "TESTS"))
            .build()
            .unwrap();
        let api = HttpApi::builder(format!("http://{}", self.api.address))
            .build(Arc::new(SystemClock::new()))
            .unwrap();
        RunningLogger::start(config, Arc::new(api), None).unwrap()
    }

    /// Logs so many events, each by itself, and stops.
    fn log(&self, count: usize) -> Vec<EventId> {
        let logger = self.logger();
        let runtime = Runtime::new().unwrap();
        let log = |number| runtime.block_on(logger.log_now(event(number))).unwrap();
        let ids = (0..count).map(log).collect();
        let report = logger.shutdown();
        assert_eq!(report.account.delivered, report.account.accepted);
        ids
    }

    fn audit(&self, more: &[&str]) -> Ran {
        let mut arguments = vec!["audit", "-o", "json"];
        arguments.extend(more);
        run_in(self.path(), &arguments)
    }

    /// Runs a statement behind the back of the API.
    fn execute(&self, sql: String) {
        let url = format!(
            "sqlite://{}",
            self.path().join("data/tidegate.db").display()
        );
        Runtime::new().unwrap().block_on(async {
            let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
            let Store::Sqlite(db) = store.unwrap() else {
                panic!("it is a file");
            };
            let sql = AssertSqlSafe(sql);
            let call = db.call(SqlAccess::Write, "prepare a test", move |db| {
                db.execute_raw(sql)
            });
            call.await.unwrap();
        });
    }
}

fn event(number: usize) -> Event {
    Event::step("Audit", "Sent", format!("event {number}")).correlation_id("c1")
}

fn component<'a>(audit: &'a Value, kind: &str) -> &'a Value {
    let all = audit["components"].as_array().unwrap();
    let found = all.iter().find(|one| one["kind"] == kind);
    found.unwrap_or_else(|| panic!("{kind} in {audit}"))
}

#[test]
fn an_audit_follows_the_events_of_a_logger_into_the_api() {
    let place = Installation::new();
    let ids = place.log(5);
    let ran = place.audit(&[]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let audit = ran.json();
    let path = &component(&audit, "logger")["paths"][0];
    assert_eq!(path["compared"], 5, "{path}");
    assert_eq!(path["not_compared"], 0, "{path}");
    assert_eq!(path["kind"], "event-log", "{path}");
    assert_eq!(path["to"], "eventlog", "{path}");
    assert_eq!(path["missing"], serde_json::json!([]));
    let text = run_in(place.path(), &["audit"]);
    let line = "logger:./spillover → eventlog: 5 delivered events compared\n";
    assert!(text.stdout.contains(line), "{}", text.stdout);

    // One of the two alone cannot tell, and says so.
    let alone = run_in(place.path(), &["audit", "--spill", "spillover"]);
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    let line =
        "5 delivered events NOT compared: their receiver was not audited here (kind event-log)";
    assert!(alone.stdout.contains(line), "{}", alone.stdout);
    let alone = place.audit(&["--spill", "spillover"]).json();
    let path = &component(&alone, "logger")["paths"][0];
    assert_eq!(path["not_compared"], 5, "{path}");
    assert_eq!(path["reason"], "no-receiver", "{path}");

    // Both of them named, though the database has no queue.
    let store = "sqlite://./data/tidegate.db";
    let named = place.audit(&["--spill", "spillover", "--store", store]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    let named = named.json();
    assert_eq!(component(&named, "logger")["paths"][0]["compared"], 5);

    // `where` shows the event in the API, with the id of its answer.
    let id = ids[2].to_string();
    let found = run_in(place.path(), &["where", &id, "-o", "json"]).json();
    let seen = found["history"].as_array().unwrap().last().unwrap();
    assert_eq!(seen["component"], "eventlog", "{found}");
    assert_eq!(seen["place"], "delivered", "{found}");
    let execution: EventId = seen["executionId"].as_str().unwrap().parse().unwrap();
    let origin = &component(&audit, "logger")["paths"][0]["origin"];
    assert_eq!(&seen["logger"], origin, "{found}");
    let shown = run_in(place.path(), &["where", &id]).stdout;
    assert!(
        shown.contains(&format!("executionId {execution}")),
        "{shown}"
    );

    // One stored row is deleted by hand: the books of the API name it.
    place.execute(format!("DELETE FROM tidegate_eventlog WHERE key = '{id}'"));
    let ran = place.audit(&[]);
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    let audit = ran.json();
    assert_eq!(audit["unaccounted"], 1);
    assert_eq!(
        component(&audit, "event-log")["missing"][0]["id"],
        id.as_str()
    );

    // Its posting too: only the logger still knows of it.
    place.execute(format!(
        "DELETE FROM tidegate_posting WHERE id_sum = '{id}'"
    ));
    let ran = place.audit(&[]);
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    let audit = ran.json();
    assert_eq!(component(&audit, "event-log")["unaccounted"], 0, "{audit}");
    let path = &component(&audit, "logger")["paths"][0];
    assert_eq!(path["missing"][0]["id"], id.as_str(), "{audit}");
    let text = run_in(place.path(), &["audit"]).stdout;
    let line = format!("logger:./spillover → eventlog: event {id} is missing");
    assert!(text.contains(&line), "{text}");
}

#[test]
fn a_logger_that_runs_meanwhile_is_no_finding() {
    let place = Installation::new();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let logger = place.logger();
    let flag = Arc::clone(&is_stopped);
    let logging = std::thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        let mut number = 0;
        while !flag.load(Ordering::Relaxed) {
            // Through the disk, so that the books are written all the time.
            let logged = logger.log_durable(event(number));
            runtime.block_on(logged).unwrap();
            number += 1;
        }
        logger.shutdown()
    });
    let mut compared = Vec::new();
    while compared.len() < 6 || (compared.first() == compared.last() && compared.len() < 300) {
        let ran = place.audit(&[]);
        assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
        let audit = ran.json();
        let path = &component(&audit, "logger")["paths"][0];
        // Of the newest minute, the API may have more than the logger knows as delivered.
        let known = ["compared", "not_compared"].map(|name| path[name].as_u64().unwrap_or(0));
        compared.push(known.iter().sum::<u64>());
    }
    is_stopped.store(true, Ordering::Relaxed);
    assert_eq!(logging.join().unwrap().account.lost.total(), 0);
    assert!(compared.is_sorted(), "{compared:?}");
    assert!(compared.first() < compared.last(), "{compared:?}");
    assert_eq!(place.audit(&[]).code, Some(0));
}
