//! `tidegate run` as the Event Log API, with loggers that send to it.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemClock;
use tidegate_logger::{
    Defaults, Event, HttpApi, Logger, LoggerConfig, LoggerConfigBuilder, OnFull, RunningLogger,
};
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use crate::command::{Ran, run_in};
use crate::running::Running;

const LOGGERS: usize = 4;
const KILLS: usize = 3;

/// Events of each logger.
fn events_each() -> usize {
    match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 250_000,
        None => 1_000,
    }
}

fn config() -> LoggerConfigBuilder {
    LoggerConfig::builder()
        .queue_capacity(500)
        .on_full(OnFull::Block)
        .max_retries(1)
        .base_retry_delay_ms(20)
        .circuit_breaker_threshold(2)
        .circuit_breaker_reset_ms(200)
        .replay_interval_ms(1_000)
        .max_spillover_events(i64::MAX)
        .max_spillover_size_bytes(i64::MAX)
        .defaults(Defaults::new("tests", "TESTS", "TESTS"))
}

fn logger(config: LoggerConfigBuilder, dir: &Path, address: &str) -> RunningLogger {
    let config = config.spillover_path(dir).build().unwrap();
    let api = HttpApi::builder(format!("http://{address}"));
    let api = api.build(Arc::new(SystemClock::new())).unwrap();
    RunningLogger::start(config, Arc::new(api), None).unwrap()
}

/// An event whose correlation nobody else has.
fn event(logger: usize, number: usize) -> Event {
    Event::step("Restart", "Logged", format!("event {number} of {logger}"))
        .correlation_id(format!("l{logger}-{number}"))
}

/// An address of loopback that is free now.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Waits for a fact, with a limit.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Duration::from_secs(match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 3_600,
        None => 60,
    });
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn delivered(loggers: &[RunningLogger]) -> i64 {
    let each = loggers.iter().map(|logger| logger.account().delivered);
    each.sum()
}

fn spilled(loggers: &[RunningLogger]) -> i64 {
    loggers.iter().map(|logger| logger.account().spilled).sum()
}

/// The tables, seen past the API.
struct Tables {
    runtime: Runtime,
    store: Store,
}

impl Tables {
    fn open(url: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let options = StoreOptions::new(url);
        let store = runtime.block_on(Store::open(&options, &Env::system()));
        let store = store.unwrap();
        Self { runtime, store }
    }

    /// Rows, different ids and different correlations.
    fn counts(&self) -> (i64, i64, i64) {
        let sql = "SELECT count(*), count(DISTINCT event_id), count(DISTINCT correlation_id)
            FROM tidegate_eventlog";
        self.runtime.block_on(async {
            let mut tx = self.store.begin().await.unwrap();
            let counts = match tx.postgres() {
                Some(connection) => sqlx::query_as(sql).fetch_one(connection).await,
                None => sqlx::query_as(sql).fetch_one(tx.sqlite().unwrap()).await,
            };
            tx.rollback().await.unwrap();
            counts.unwrap()
        })
    }

    /// Deletes the row of a correlation by hand, and gives the id of its event.
    fn delete(&self, correlation: &str) -> String {
        let sql = format!(
            "DELETE FROM tidegate_eventlog WHERE correlation_id = '{correlation}' RETURNING key"
        );
        self.runtime.block_on(async {
            let mut tx = self.store.begin().await.unwrap();
            let sql = AssertSqlSafe(sql);
            let key = match tx.postgres() {
                Some(connection) => sqlx::query_scalar(sql).fetch_one(connection).await,
                None => {
                    sqlx::query_scalar(sql)
                        .fetch_one(tx.sqlite().unwrap())
                        .await
                }
            };
            tx.commit().await.unwrap();
            key.unwrap()
        })
    }
}

fn audit(dir: &Path, url: &str) -> Ran {
    let mut arguments = vec!["audit", "-o", "json", "--store", url];
    let spills: Vec<String> = (0..LOGGERS)
        .map(|number| format!("spill-{number}"))
        .collect();
    for spill in &spills {
        arguments.extend(["--spill", spill]);
    }
    run_in(dir, &arguments)
}

/// Four loggers send while their API is killed three times. With a second API, half of them send to that
/// one, which lives.
fn each_event_is_stored_once_through_three_kills(url: &str, dir: &Path, has_second: bool) {
    let each = events_each();
    let total = i64::try_from(LOGGERS * each).unwrap();
    let store = format!("store.url={url}");
    let address = free_address();
    let api = Running::start_at(dir, &address, &["--set", &store]);
    let beside = tempfile::tempdir().unwrap();
    let second = has_second.then(|| Running::start(beside.path(), &["--set", &store]));
    let loggers: Vec<RunningLogger> = (0..LOGGERS)
        .map(|number| {
            let at = match &second {
                Some(second) if number % 2 == 1 => &second.address,
                Some(_) | None => &address,
            };
            logger(config(), &dir.join(format!("spill-{number}")), at)
        })
        .collect();
    let api = std::thread::scope(|scope| {
        let mut api = api;
        for (number, logger) in loggers.iter().enumerate() {
            let logger = Logger::clone(logger);
            scope.spawn(move || {
                for n in 0..each {
                    assert!(logger.log(event(number, n)).is_ok(), "there is room");
                }
            });
        }
        for kill in 1..=KILLS {
            let share = total * i64::try_from(kill).unwrap() / 4;
            until("a share is delivered", || delivered(&loggers) >= share);
            api.signal("-KILL");
            assert_eq!(api.end().0, None, "it was killed");
            until("the loggers notice", || {
                spilled(&loggers) > 0 || delivered(&loggers) == total
            });
            api = Running::start_at(dir, &address, &["--set", &store]);
        }
        api
    });
    until("all is delivered", || delivered(&loggers) == total);
    for logger in loggers {
        let account = logger.shutdown().account;
        assert_eq!(account.lost.total(), 0, "{account:?}");
        assert_eq!(account.accepted, account.delivered, "{account:?}");
    }
    for process in [Some(api), second].into_iter().flatten() {
        process.signal("-TERM");
        let (code, _, stderr) = process.end();
        assert_eq!(code, Some(0), "{stderr}");
    }
    let tables = Tables::open(url);
    assert_eq!(tables.counts(), (total, total, total));
    let ran = audit(dir, url);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let id = tables.delete("l2-7");
    let ran = audit(dir, url);
    assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
    let audited = ran.json();
    let components = audited["components"].as_array().unwrap();
    let missing: Vec<&Value> = components
        .iter()
        .flat_map(|component| component["missing"].as_array().unwrap())
        .map(|one| &one["id"])
        .collect();
    assert!(!missing.is_empty(), "{audited}");
    assert!(missing.iter().all(|one| **one == id), "{id}: {audited}");
}

#[test]
fn a08_each_event_is_stored_once_through_three_kills_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    each_event_is_stored_once_through_three_kills(&url, dir.path(), false);
}

/// Too many events for a request, and too many bytes: both are split.
#[test]
fn p06_a_batch_above_the_limit_is_split_and_all_its_events_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &["--set", "eventlog.api.max-batch=7"]);
    let spill = dir.path().join("spill");
    let sender = logger(config().batch_size(100), &spill, &running.address);
    let long = "long ".repeat(10_000);
    let events = (0..60)
        .map(|n| Event::step("Large", "Logged", long.clone()).correlation_id(format!("c{n}")));
    assert_eq!(sender.log_all(events), 60);
    until("all is delivered", || sender.account().delivered == 60);
    let account = sender.shutdown().account;
    assert_eq!((account.dead_lettered, account.lost.total()), (0, 0));
    let stats = running.get("/v1/dashboard/stats");
    assert!(stats.contains(r#""totalEvents":60"#), "{stats}");
}

mod needs_postgres {
    use super::*;
    use crate::queue_live::needs_postgres::with;
    use crate::run_store::Line;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a08_each_event_is_stored_once_through_three_kills_and_beside_a_second_api() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            each_event_is_stored_once_through_three_kills(url, dir.path(), true);
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn p13_while_the_database_is_away_posts_get_503_and_nothing_is_half_stored() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            let (line, through) = Line::to_database(url);
            let store = format!("store.url={through}");
            let arguments = ["--set", &store, "--set", "store.timeout=2s"];
            let running = Running::start(dir.path(), &arguments);
            let events: Vec<Value> = (0..20).map(posted).collect();
            let batch = json!({ "events": events }).to_string();
            let sender = logger(config(), &dir.path().join("spill"), &running.address);
            line.set_cut(true);
            let began = Instant::now();
            until("it is not ready", || {
                let asked = Instant::now();
                let answer = running.get("/v1/healthcheck/ready");
                assert!(asked.elapsed() < Duration::from_secs(4), "{answer}");
                answer.starts_with("HTTP/1.1 503")
            });
            assert!(running.get("/v1/healthcheck").starts_with("HTTP/1.1 200"));
            let answer = running.post("/v1/events/batch", &batch);
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.contains("store.unavailable"), "{answer}");
            assert_eq!(sender.log_all((0..100).map(|n| event(0, n))), 100);
            until("the logger keeps all of it on disk", || {
                sender.account().spilled == 100
            });
            let away = std::env::var_os("TIDEGATE_LONG").map_or(0, |_| 120);
            until("it was away", || {
                began.elapsed() >= Duration::from_secs(away)
            });
            line.set_cut(false);
            until("the logger delivers all of it", || {
                sender.account().delivered == 100
            });
            assert_eq!(sender.shutdown().account.lost.total(), 0);
            let tables = Tables::open(url);
            let (rows, ..) = tables.counts();
            assert!(
                matches!(rows, 100 | 120),
                "none of the batch or all: {rows}"
            );
            let answer = running.post("/v1/events/batch", &batch);
            assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
            assert_eq!(tables.counts(), (120, 120, 120));
        });
    }

    fn posted(n: usize) -> Value {
        json!({
            "_id": format!("019a8f3e-5c00-7abc-8def-{n:012}"),
            "applicationId": "tests", "correlationId": format!("posted-{n}"),
            "processName": "Outage", "processStatus": "STEP", "details": "posted",
            "targetSystem": "TESTS", "originatingSystem": "TESTS",
            "timestamp": "2026-06-01T10:15:30.123Z",
        })
    }
}
