//! The client with its HTTP API against a stub: L02, L10, L31, L37, and the client's part of P06.

use std::collections::BTreeSet;
use std::sync::Arc;

use tempfile::TempDir;
use tidegate_core::Component;
use tidegate_core::books::{Place, undelivered};
use tidegate_core::env::system::{SystemClock, SystemDisk};
use tidegate_core::env::{Disk, Env};
use tidegate_logger::spill::{BOOKS, LOCK, REJECTED, SpillDirectory};
use tidegate_logger::{
    Authentication, HttpApi, Logger, LoggerConfigBuilder, LoggerHealth, RunningLogger,
};
use tidegate_testkit::{Fault, Request, StubApi};

use crate::fixture::{Losses, details, event, event_saying, memory_only, texts};
use crate::real::{LIMIT, lines, spilling_to, unaccounted, wait_until};

/// A logger that talks HTTP to a stub.
fn over_http(stub: &StubApi, config: LoggerConfigBuilder, losses: &Losses) -> RunningLogger {
    let api = HttpApi::builder(stub.url())
        .authentication(Authentication::token("right"))
        .build(Arc::new(SystemClock::new()))
        .unwrap();
    let config = config.build().unwrap();
    RunningLogger::start(config, Arc::new(api), Some(losses.callback())).unwrap()
}

/// Fast enough for a test in real time.
fn hasty(dir: &TempDir) -> LoggerConfigBuilder {
    spilling_to(dir)
        .base_retry_delay_ms(10)
        .max_retry_delay_ms(50)
        .circuit_breaker_reset_ms(50)
        .replay_interval_ms(1_000)
}

fn arrived(stub: &StubApi) -> BTreeSet<String> {
    let ids = stub.ids();
    let found: BTreeSet<String> = ids
        .iter()
        .map(|id| details(&stub.stored(*id).unwrap()))
        .collect();
    assert_eq!(found.len(), ids.len(), "an event is there twice");
    found
}

fn set(numbers: std::ops::Range<u64>) -> BTreeSet<String> {
    texts(numbers).into_iter().collect()
}

#[test]
fn l02_over_http_single_events_use_the_single_endpoint_and_several_the_batch_endpoint() {
    for (batch_size, path) in [(1, "/v1/events"), (50, "/v1/events/batch")] {
        let stub = StubApi::start().unwrap();
        let dir = TempDir::new().unwrap();
        let api = HttpApi::builder(stub.url())
            .build(Arc::new(SystemClock::new()))
            .unwrap();
        let config = spilling_to(&dir).batch_size(batch_size).build().unwrap();
        let (logger, task) = Logger::open(config, Arc::new(api), Env::system(), None).unwrap();
        // They are queued before anybody sends.
        logger.log_all((0..10).map(event));
        drop(logger);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let report = runtime.block_on(task.run(std::future::pending()));
        assert_eq!(report.account.delivered, 10);
        let seen: BTreeSet<String> = stub.seen().into_iter().map(|r| r.path).collect();
        assert_eq!(seen, BTreeSet::from([path.to_owned()]));
        assert_eq!(arrived(&stub), set(0..10));
    }
}

#[test]
fn every_request_names_the_directory_that_its_events_went_through() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    stub.fail_next(Fault::status(503));
    let losses = Losses::default();
    let config = || hasty(&dir).max_retries(0).circuit_breaker_threshold(1);
    // One event is spilled and replayed, others are sent, by two processes.
    let mut ids = BTreeSet::new();
    for (numbers, count) in [(0..10, 10), (10..20, 20)] {
        let logger = over_http(&stub, config(), &losses);
        logger.log_all(numbers.map(event));
        stub.wait_until_blocking(|stub| stub.count() == count, LIMIT);
        ids.insert(logger.id().unwrap());
        assert_eq!(logger.shutdown().account.lost.total(), 0);
    }
    let id = ids.pop_first().unwrap();
    assert!(ids.is_empty(), "the id stays: {id} {ids:?}");
    for request in stub.seen() {
        let named = request.header("x-tidegate-logger");
        assert_eq!(named, Some(id.to_string().as_str()), "{request:?}");
    }
    let directory = SpillDirectory::new(&dir.path().join("spill"), &Env::system());
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let read = runtime.unwrap().block_on(directory.delivered()).unwrap();
    assert_eq!(read[0].origin.as_deref(), Some(id.to_string().as_str()));
    assert_eq!(read[0].books.in_place(&Place::Delivered), 20);
    assert_eq!(undelivered(&read[0].books, &stub.books_of(id)), []);
}

#[test]
fn a_logger_without_a_directory_names_none() {
    let stub = StubApi::start().unwrap();
    let logger = over_http(&stub, memory_only(), &Losses::default());
    logger.log_all((0..3).map(event));
    stub.wait_until_blocking(|stub| stub.count() == 3, LIMIT);
    assert_eq!(logger.id(), None);
    let named = |request: &Request| request.header("x-tidegate-logger").is_some();
    assert!(!stub.seen().iter().any(named));
}

#[test]
fn an_id_that_was_spoilt_on_the_way_rejects_no_event() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    let refused = r#"{"error":"Validation Error","code":"logger.invalid","message":"1 field"}"#;
    stub.fail_always(Fault::Status {
        status: 400,
        retry_after: None,
        body: Some(refused.to_owned()),
    });
    let losses = Losses::default();
    let logger = over_http(&stub, hasty(&dir), &losses);
    logger.log_all((0..10).map(event));
    stub.wait_until_blocking(|stub| stub.requests() > 0, LIMIT);
    wait_until(
        "health says why",
        || matches!(logger.health(), LoggerHealth::Degraded(why) if why.contains("logger.invalid")),
    );
    stub.heal();
    stub.wait_until_blocking(|stub| stub.count() == 10, LIMIT);
    let report = logger.shutdown();
    assert_eq!((report.account.dead_lettered, losses.all().len()), (0, 0));
}

#[test]
fn l10_over_http_a_batch_answered_in_part_is_handled_event_by_event() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    stub.fail_next(Fault::Partial(vec![0, 2]));
    let logger = over_http(&stub, hasty(&dir), &losses);
    logger.log_all((0..20).map(event));
    logger.log(event_saying("REJECT")).unwrap();
    stub.wait_until_blocking(|stub| stub.count() == 20, LIMIT);
    let report = logger.shutdown();
    assert_eq!(arrived(&stub), set(0..20));
    let account = report.account;
    assert_eq!((account.delivered, account.dead_lettered), (20, 1));
    assert_eq!(losses.reasons(), ["rejected"]);
    assert_eq!(lines(&dir, REJECTED), 1);
    assert_eq!(unaccounted(&dir), 0);
}

#[test]
fn p06_a_batch_that_is_too_large_is_split_until_it_fits_and_all_of_it_arrives() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let logger = over_http(&stub, hasty(&dir).batch_size(100), &losses);
    let large = "x".repeat(100_000);
    logger.log_all((0..40).map(|number| event_saying(format!("{number} {large}"))));
    stub.wait_until_blocking(|stub| stub.count() == 40, LIMIT);
    // One that is too large by itself is set aside and holds nobody up.
    logger.log(event_saying("x".repeat(1_100_000))).unwrap();
    logger.log(event(99)).unwrap();
    stub.wait_until_blocking(|stub| stub.count() == 41, LIMIT);
    let report = logger.shutdown();
    let account = &report.account;
    assert_eq!(
        (account.delivered, account.dead_lettered),
        (41, 1),
        "{report:?}"
    );
    assert_eq!(losses.reasons(), ["rejected"]);
    assert_eq!(stub.duplicates(), 0);
    assert_eq!(unaccounted(&dir), 0);
}

#[test]
fn p06_replay_splits_batches_that_are_too_large() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    stub.down();
    let logger = over_http(&stub, hasty(&dir).batch_size(100), &losses);
    let large = "x".repeat(100_000);
    logger.log_all((0..40).map(|number| event_saying(format!("{number} {large}"))));
    logger.log(event_saying("x".repeat(1_100_000))).unwrap();
    assert_eq!(logger.shutdown().account.spilled, 41);
    stub.up().unwrap();
    let logger = over_http(&stub, hasty(&dir).batch_size(100), &losses);
    stub.wait_until_blocking(|stub| stub.count() == 40, LIMIT);
    wait_until("the large one is set aside", || {
        logger.account().spilled == 0
    });
    let account = logger.shutdown().account;
    assert_eq!(
        (account.delivered, account.dead_lettered),
        (40, 1),
        "{account:?}"
    );
    assert_eq!(losses.reasons(), ["rejected"]);
    assert_eq!(unaccounted(&dir), 0);
}

#[test]
fn l37_over_http_a_wrong_token_or_address_keeps_all_events_and_the_right_one_delivers_them() {
    let wrong: fn(&StubApi) = |stub| stub.require_token("another");
    let right: fn(&StubApi) = |stub| stub.require_token("right");
    let missing: fn(&StubApi) = |stub| stub.fail_always(Fault::status(404));
    for (wrong, right) in [(wrong, right), (missing, StubApi::heal)] {
        let stub = StubApi::start().unwrap();
        wrong(&stub);
        let dir = TempDir::new().unwrap();
        let losses = Losses::default();
        let logger = over_http(&stub, hasty(&dir), &losses);
        logger.log_all((0..100).map(event));
        wait_until("they are spilled", || logger.account().spilled == 100);
        assert_eq!((stub.count(), losses.all()), (0, Vec::new()));
        right(&stub);
        stub.wait_until_blocking(|stub| stub.count() == 100, LIMIT);
        wait_until("all is delivered", || logger.account().delivered == 100);
        drop(logger);
        assert_eq!(arrived(&stub), set(0..100));
        assert_eq!(unaccounted(&dir), 0);
    }
}

/// The whole life of an outage, over HTTP and on a real disk.
#[test]
fn l31_over_http_an_outage_ends_with_everything_delivered_and_the_directory_empty() {
    let stub = StubApi::start().unwrap();
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let logger = over_http(&stub, hasty(&dir), &losses);
    logger.log_all((0..100).map(event));
    stub.wait_until_blocking(|stub| stub.count() == 100, LIMIT);
    stub.down();
    logger.log_all((100..600).map(event));
    wait_until("they are spilled", || logger.account().spilled == 500);
    stub.up().unwrap();
    stub.wait_until_blocking(|stub| stub.count() == 600, LIMIT);
    wait_until("the files are gone", || {
        let entries = SystemDisk.list(&dir.path().join("spill")).unwrap();
        entries.iter().map(|e| &e.name).eq([BOOKS, LOCK])
    });
    let metrics = logger.shutdown().metrics;
    assert_eq!(arrived(&stub), set(0..600));
    assert_eq!(
        (metrics.events_spilled, metrics.events_replayed),
        (500, 500)
    );
    assert_eq!(losses.all(), []);
}
