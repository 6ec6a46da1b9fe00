//! `tidegate run` as the Event Log API, with loggers that send to it.

use std::collections::BTreeSet;
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

use crate::child::start_logging;
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

/// The configuration of all loggers here.
pub(crate) fn plain_config() -> LoggerConfigBuilder {
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

pub(crate) fn logger(config: LoggerConfigBuilder, dir: &Path, address: &str) -> RunningLogger {
    let config = config.spillover_path(dir).build().unwrap();
    let api = HttpApi::builder(format!("http://{address}"));
    let api = api.build(Arc::new(SystemClock::new())).unwrap();
    RunningLogger::start(config, Arc::new(api), None).unwrap()
}

/// An event whose correlation nobody else has.
fn event(logger: usize, number: usize) -> Event {
    event_of(&format!("l{logger}-{number}"))
}

pub(crate) fn event_of(correlation: &str) -> Event {
    Event::step("Restart", "Logged", format!("event {correlation}"))
        .correlation_id(correlation.to_owned())
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

    /// All correlations.
    fn correlations(&self) -> BTreeSet<String> {
        let sql = "SELECT correlation_id FROM tidegate_eventlog";
        self.runtime.block_on(async {
            let mut tx = self.store.begin().await.unwrap();
            let found: Result<Vec<String>, _> = match tx.postgres() {
                Some(connection) => sqlx::query_scalar(sql).fetch_all(connection).await,
                None => {
                    sqlx::query_scalar(sql)
                        .fetch_all(tx.sqlite().unwrap())
                        .await
                }
            };
            tx.rollback().await.unwrap();
            found.unwrap().into_iter().collect()
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
            logger(plain_config(), &dir.join(format!("spill-{number}")), at)
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

/// The process of a logger is killed in the middle of its work, again and again. Whatever it promised is stored,
/// and nothing twice.
fn what_a_killed_logger_promised_is_stored_once(url: &str, dir: &Path) {
    let lives = std::env::var_os("TIDEGATE_LONG").map_or(4, |_| 100);
    let store = format!("store.url={url}");
    let api = Running::start(dir, &["--set", &store]);
    let spill = dir.join("spill-0");
    let mut promised = BTreeSet::new();
    for life in 0..lives {
        let (mut process, mut lines) = start_logging(&spill, &api.address, life);
        // The first one is killed in its beginning, the later ones after more and more promises.
        promised.extend(lines.by_ref().take(life * 17 % 120));
        process.kill().unwrap();
        process.wait().unwrap();
        promised.extend(lines);
    }
    assert!(promised.len() >= lives, "too few: {}", promised.len());
    let heir = logger(plain_config(), &spill, &api.address);
    until("what was on disk is delivered", || {
        let account = heir.account();
        account.spilled == 0 && account.in_flight == 0 && account.retrying == 0
    });
    let account = heir.shutdown().account;
    assert_eq!((account.lost.total(), account.dead_lettered), (0, 0));
    api.signal("-TERM");
    assert_eq!(api.end().0, Some(0));
    let tables = Tables::open(url);
    let stored = tables.correlations();
    let missing: Vec<_> = promised.difference(&stored).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let (rows, ids, correlations) = tables.counts();
    assert_eq!((rows, rows), (ids, correlations), "nothing is stored twice");
    let arguments = ["audit", "-o", "json", "--store", url, "--spill", "spill-0"];
    let ran = run_in(dir, &arguments);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
}

#[test]
fn a08_what_a_killed_logger_promised_is_stored_once_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    what_a_killed_logger_promised_is_stored_once(&url, dir.path());
}

#[test]
fn p06_a_batch_above_the_limit_is_split_and_all_its_events_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    a_batch_above_the_limit_is_split(&url, dir.path());
}

/// Too many events for a request, and too many bytes: both are split.
fn a_batch_above_the_limit_is_split(url: &str, dir: &Path) {
    let store = format!("store.url={url}");
    let arguments = ["--set", &store, "--set", "eventlog.api.max-batch=7"];
    let running = Running::start(dir, &arguments);
    let spill = dir.join("spill");
    let sender = logger(plain_config().batch_size(100), &spill, &running.address);
    let long = "long ".repeat(10_000);
    let events = (0..60)
        .map(|n| Event::step("Large", "Logged", long.clone()).correlation_id(format!("c{n}")));
    assert_eq!(sender.log_all(events), 60);
    until("all is delivered", || sender.account().delivered == 60);
    let account = sender.shutdown().account;
    assert_eq!((account.dead_lettered, account.lost.total()), (0, 0));
    let stats = running.get("/v1/dashboard/stats");
    assert!(stats.contains(r#""totalEvents":60"#), "{stats}");
    let body = format!("{{\"details\":\"{}\"}}", "x".repeat(1024 * 1024));
    let refused = running.post("/v1/events", &body);
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    assert!(refused.contains("body.too_large"), "{refused}");
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
    fn a08_what_a_killed_logger_promised_is_stored_once() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            what_a_killed_logger_promised_is_stored_once(url, dir.path());
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn p06_a_batch_above_the_limit_is_split_and_all_its_events_arrive() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            a_batch_above_the_limit_is_split(url, dir.path());
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn p02_p12_a_repeated_request_gets_the_first_answer_and_another_one_409() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            let store = format!("store.url={url}");
            let running = Running::start(dir.path(), &["--set", &store]);
            let process = |team: &str| {
                let process = json!({"processName": "CheckIn", "displayName": "d",
                    "description": "e", "owningTeam": team});
                process.to_string()
            };
            let event = |details: &str| {
                let mut event = posted(1);
                event["details"] = details.into();
                event.to_string()
            };
            let batch = |details: &str| format!(r#"{{"events":[{}]}}"#, event(details));
            for (path, first, other) in [
                ("/v1/processes", process("desk"), process("kennel")),
                ("/v1/events", event("one"), event("two")),
                ("/v1/events/batch", batch("one"), batch("two")),
            ] {
                let keyed = format!("{path} HTTP/1.1\r\nIdempotency-Key: k1\r\nX-Unused:");
                let answer = |json: &str| {
                    let answer = running.post(&keyed, json);
                    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
                    (head[9..12].to_owned(), body.to_owned())
                };
                let stored = answer(&first);
                assert_eq!(stored.0, "201", "{path}: {stored:?}");
                assert_eq!(answer(&first), stored, "{path}");
                let refused = answer(&other);
                assert_eq!(refused.0, "409", "{path}: {refused:?}");
                assert!(refused.1.contains("idempotency.conflict"), "{refused:?}");
            }
            // The event of the batch has the id of the single one, and another key: it is stored again.
            let taken = running.post("/v1/processes", &process("desk"));
            assert!(taken.contains("name.taken"), "{taken}");
            let stats = running.get("/v1/dashboard/stats");
            assert!(stats.contains(r#""totalEvents":2"#), "{stats}");
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn p14_the_debug_endpoint_is_there_only_when_it_is_switched_on() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            let store = format!("store.url={url}");
            let clear = |running: &Running| {
                let body = r#"{"confirm":true}"#;
                running.post("/v1/debug/events/clear", body)
            };
            let running = Running::start(dir.path(), &["--set", &store]);
            let body = posted(1).to_string();
            let answer = running.post("/v1/events", &body);
            assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
            let absent = clear(&running);
            assert!(absent.starts_with("HTTP/1.1 404"), "{absent}");
            running.signal("-TERM");
            assert_eq!(running.end().0, Some(0));
            let arguments = ["--set", &store, "--set", "eventlog.api.debug=true"];
            let running = Running::start(dir.path(), &arguments);
            let cleared = clear(&running);
            assert!(cleared.starts_with("HTTP/1.1 204"), "{cleared}");
            let stats = running.get("/v1/dashboard/stats");
            assert!(stats.contains(r#""totalEvents":0"#), "{stats}");
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
            let sender = logger(plain_config(), &dir.path().join("spill"), &running.address);
            line.set_cut(true);
            let began = Instant::now();
            until("it is not ready", || {
                let asked = Instant::now();
                let answer = running.get("/v1/healthcheck/ready");
                // Sooner than without the key: the usual timeout is ten seconds.
                assert!(asked.elapsed() < Duration::from_secs(9), "{answer}");
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
