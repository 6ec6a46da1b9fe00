//! Disks and callbacks that hang, an API that panics, and loggers that are dropped: on real threads.

#![expect(
    clippy::disallowed_methods,
    reason = "these run in real time, on real files and threads"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_core::Code;
use tidegate_core::env::Env;
use tidegate_logger::spill::{ACTIVE, REJECTED};
use tidegate_logger::{
    Api, ApiAnswer, EventOutcome, Logger, LoggerConfig, LoggerId, LossCallback, Payload,
    RunningLogger, Sending,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::fixture::{Losses, event};
use crate::gate::Gate;
use crate::probed_disk::probed_disk;
use crate::real::{OnThread, Switch, lines, spilling_to, unaccounted, wait_until};

#[test]
fn a10_a_disk_that_hangs_at_shutdown_ends_as_system_with_every_event_reported() {
    // With room for all of them in front of the disk, and with hardly any.
    for capacity in [10_000, 100] {
        hang_at_shutdown(capacity);
    }
}

fn hang_at_shutdown(capacity: i64) {
    let dir = TempDir::new().unwrap();
    let gate = Arc::new(Gate::default());
    let env = hanging_at(&gate, ACTIVE);
    let losses = Losses::default();
    let config = spilling_to(&dir)
        .queue_capacity(capacity)
        .shutdown_timeout(Duration::from_secs(3));
    let running = OnThread::start(config, Arc::new(Switch::default()), env, losses.callback());
    gate.shut();
    for round in 0..4 {
        running
            .logger
            .log_all((0..750).map(|n| event(round * 750 + n)));
        // The writer hangs with a batch, and later events pile up behind it.
        gate.wait_until_somebody_is_held();
    }
    // It ends although nobody opens the gate.
    let report = running.shut_down();
    wait_until("all are reported", || losses.all().len() >= 3_000);
    gate.open();
    assert!(report.spill_failure.is_some(), "{report:?}");
    let account = report.account;
    assert_eq!(account.accepted, 3_000);
    let lost = account.lost.total();
    assert_eq!((account.in_flight, lost), (0, 3_000), "{account:?}");
    assert_eq!(losses.all().len(), 3_000);
}

/// Ports whose disk hangs at the gate when this file is synced.
fn hanging_at(gate: &Arc<Gate>, file: &'static str) -> Env {
    let hangs = Arc::clone(gate);
    let mut env = Env::system();
    env.disk = probed_disk(move |operation, path| {
        if operation == "sync" && path.ends_with(file) {
            hangs.pass();
        }
    });
    env
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a10_a_caller_that_waits_for_a_hanging_disk_gets_an_error_at_shutdown() {
    let dir = TempDir::new().unwrap();
    let gate = Arc::new(Gate::default());
    let config = spilling_to(&dir).shutdown_timeout(Duration::from_secs(3));
    let losses = Losses::default();
    let env = hanging_at(&gate, ACTIVE);
    let running = OnThread::start(config, Arc::new(Switch::default()), env, losses.callback());
    gate.shut();
    let logger = running.logger.clone();
    let durable = std::thread::spawn(move || runtime().block_on(logger.log_durable(event(1))));
    wait_until("it is taken on", || running.logger.account().accepted == 1);
    let report = running.shut_down();
    let reported = durable.join().unwrap();
    wait_until("the loss is reported", || !losses.all().is_empty());
    gate.open();
    assert_eq!(reported.unwrap_err().as_str(), "spillover_write_error");
    assert_eq!(
        (report.account.in_flight, report.account.lost.total()),
        (0, 1)
    );
    assert_eq!(losses.reasons(), ["spillover_write_error"]);
}

/// Refuses every event for good.
#[derive(Debug)]
struct Rejects;

impl Api for Rejects {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            let code = Code::from_static("event.invalid");
            let (message, status) = (String::new(), Some(400));
            let outcome = EventOutcome::Rejected {
                code,
                message,
                status,
            };
            ApiAnswer::PerEvent(vec![outcome; batch.len()])
        })
    }
}

#[test]
fn a10_rejected_events_that_a_hanging_disk_does_not_keep_are_reported() {
    let dir = TempDir::new().unwrap();
    let gate = Arc::new(Gate::default());
    let config = spilling_to(&dir).shutdown_timeout(Duration::from_secs(3));
    let losses = Losses::default();
    let env = hanging_at(&gate, REJECTED);
    let running = OnThread::start(config, Arc::new(Rejects), env, losses.callback());
    gate.shut();
    running.logger.log_all((0..5).map(event));
    wait_until("they are refused", || {
        running.logger.metrics().events_rejected == 5
    });
    let logger = running.logger.clone();
    let report = running.shut_down();
    wait_until("all are reported", || losses.all().len() >= 5);
    let (reported, account) = (losses.by_reason(), report.account.clone());
    gate.open();
    assert_eq!(
        (account.in_flight, account.lost.total()),
        (0, 5),
        "{report:?}"
    );
    assert_eq!(reported["rejected"], 5);
    // The disk answers after all, too late: they were reported once, and stay where they are.
    wait_until("they are in the file", || lines(&dir, REJECTED) == 5);
    assert!(logger.account().is_balanced());
    assert_eq!((losses.all().len(), logger.account().dead_lettered), (5, 0));
}

/// Panics at every call up to this one, half of the time before there is anything to wait for.
#[derive(Debug)]
struct Panics {
    until: u64,
    calls: AtomicU64,
}

impl Api for Panics {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(
            call > self.until || call.is_multiple_of(2),
            "an API of the application"
        );
        Box::pin(async move {
            assert!(call > self.until, "an API of the application");
            ApiAnswer::PerEvent(vec![EventOutcome::Stored; batch.len()])
        })
    }
}

#[test]
fn an_api_that_panics_is_an_api_that_fails() {
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let config = spilling_to(&dir)
        .max_retries(1)
        .base_retry_delay_ms(1)
        .circuit_breaker_threshold(3)
        .circuit_breaker_reset_ms(10)
        .replay_interval_ms(1_000);
    // The first send, its retry, and the first replays.
    let (until, calls) = (5, AtomicU64::new(0));
    let api = Arc::new(Panics { until, calls });
    let config = config.build().unwrap();
    let logger = RunningLogger::start(config, api, Some(losses.callback())).unwrap();
    assert_eq!(logger.log_all((0..10).map(event)), 10);
    wait_until("they are delivered", || logger.account().delivered == 10);
    let report = logger.shutdown();
    assert_eq!(
        (report.account.in_flight, report.account.lost.total()),
        (0, 0)
    );
    assert_eq!(losses.all(), []);
    assert_eq!(unaccounted(&dir), 0);
}

#[test]
fn a03_a_hanging_callback_stops_nothing_and_unreported_losses_are_counted() {
    let dir = TempDir::new().unwrap();
    let api = Arc::new(Switch::default());
    let heard = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&heard);
    let gate = Arc::new(Gate::default());
    let hangs = Arc::clone(&gate);
    let on_loss: LossCallback = Arc::new(move |_| {
        hangs.pass();
        counted.fetch_add(1, Ordering::SeqCst);
    });
    // 1,024 losses may wait for the callback.
    let config = spilling_to(&dir)
        .queue_capacity(400)
        .max_spillover_events(10)
        .circuit_breaker_threshold(1)
        .circuit_breaker_reset_ms(50)
        .replay_interval_ms(1_000)
        .shutdown_timeout(Duration::from_secs(1));
    let running = OnThread::start(config, api.clone(), Env::system(), on_loss);
    gate.shut();
    for round in 0..10 {
        let taken = (0..300).map(|n| event(round * 300 + n));
        assert_eq!(running.logger.log_all(taken), 300);
        wait_until("the round is over", || {
            let account = running.logger.account();
            account.in_flight + account.retrying == 0
        });
    }
    let lost = running.logger.account().lost.total().unsigned_abs();
    assert!(lost > 2_000, "more than may wait: {lost}");
    // The callback hangs, and events flow all the same.
    api.up();
    // While the breaker is open they would go to the spill, which is full.
    wait_until("the breaker lets a request through", || {
        !running.logger.metrics().is_circuit_open
    });
    running.logger.log_all((3_000..3_010).map(event));
    wait_until("what was kept is delivered", || {
        let account = running.logger.account();
        account.delivered + account.lost.total() == 3_010
    });
    // It ends although the callback still hangs.
    let report = running.shut_down();
    assert_eq!(report.account.lost.total().unsigned_abs(), lost);
    assert_eq!(report.unreported, lost, "the callback never returned");
    let unreported = report.metrics.events_unreported;
    assert!(
        unreported >= lost - 1_025,
        "{unreported} of {lost} found no room"
    );
    gate.open();
    wait_until("all that waited are reported", || {
        heard.load(Ordering::SeqCst) + unreported == lost
    });
}

#[test]
fn a03_a_slow_callback_hears_of_every_loss_and_shutdown_does_not_wait_for_all_of_them() {
    const QUICK: u64 = 100;
    let heard = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&heard);
    let gate = Arc::new(Gate::default());
    let waits = Arc::clone(&gate);
    let on_loss: LossCallback = Arc::new(move |_| {
        if counted.load(Ordering::SeqCst) == QUICK {
            waits.pass();
        }
        counted.fetch_add(1, Ordering::SeqCst);
    });
    gate.shut();
    let dir = TempDir::new().unwrap();
    let config = spilling_to(&dir)
        .max_spillover_events(10)
        .circuit_breaker_threshold(1)
        .shutdown_timeout(Duration::from_millis(700));
    let running = OnThread::start(config, Arc::new(Switch::default()), Env::system(), on_loss);
    assert_eq!(running.logger.log_all((0..1_500).map(event)), 1_500);
    // It takes its time with one of them, and shutdown comes meanwhile.
    gate.wait_until_somebody_is_held();
    let report = running.shut_down();
    let lost = report.account.lost.total().unsigned_abs();
    assert_eq!(lost, 1_490);
    assert_eq!(report.unreported, lost - QUICK, "{report:?}");
    gate.open();
    wait_until("every loss is reported", || {
        heard.load(Ordering::SeqCst) == lost
    });
}

#[test]
fn a_canceled_run_spills_its_events_and_releases_the_directory() {
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let config = || spilling_to(&dir).batch_size(5).sender_threads(2);
    /// Never answers.
    #[derive(Debug)]
    struct Hangs;
    impl Api for Hangs {
        fn send_from<'a>(&'a self, _: Option<LoggerId>, _: &'a [Payload]) -> Sending<'a> {
            Box::pin(std::future::pending())
        }
    }
    let runtime = runtime();
    let logger = runtime.block_on(async {
        let (logger, task) = Logger::open(
            config().build().unwrap(),
            Arc::new(Hangs),
            Env::system(),
            Some(losses.callback()),
        )
        .unwrap();
        let running = tokio::spawn(task.run(std::future::pending()));
        logger.log_all((0..100).map(event));
        while logger.metrics().queue_depth > 90 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        logger
    });
    let refused = logger.log(event(100)).unwrap_err();
    assert_eq!(refused.reason, "shutdown_in_progress");
    wait_until("all are on disk", || logger.account().spilled == 100);
    assert_eq!(losses.reasons(), ["shutdown_in_progress"]);
    let api = Arc::new(Switch::default());
    api.up();
    let start = || RunningLogger::start(config().build().unwrap(), api.clone(), None);
    wait_until("the directory is free, and all are sent", || {
        let Ok(next) = start() else {
            return false;
        };
        wait_until("all arrive", || api.count() == 100);
        assert_eq!(next.shutdown().unverifiable, 0);
        true
    });
    assert_eq!(unaccounted(&dir), 0);
}

#[test]
fn a_canceled_run_without_a_spill_reports_its_events() {
    let losses = Losses::default();
    let api = Arc::new(Switch::default());
    let config = LoggerConfig::builder().base_retry_delay_ms(20_000);
    let logger = runtime().block_on(async {
        let config = config.build().unwrap();
        let (logger, task) =
            Logger::open(config, api, Env::system(), Some(losses.callback())).unwrap();
        let (cancel, canceled) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            tokio::select! {
                _ = task.run(std::future::pending()) => {}
                _ = canceled => {}
            }
        });
        logger.log_all((0..10).map(event));
        while logger.account().retrying < 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cancel.send(()).unwrap();
        running.await.unwrap();
        logger
    });
    wait_until("all are reported", || losses.all().len() == 10);
    assert_eq!(losses.by_reason()["shutdown_pending_retry"], 10);
    let account = logger.account();
    assert_eq!((account.lost.total(), account.in_flight), (10, 0));
}

#[test]
fn a_task_dropped_before_run_ends_the_logger_and_reports_its_events() {
    let dir = TempDir::new().unwrap();
    let losses = Losses::default();
    let open = || {
        let api = Arc::new(Switch::default());
        let config = spilling_to(&dir).build().unwrap();
        Logger::open(config, api, Env::system(), Some(losses.callback())).unwrap()
    };
    let (logger, task) = open();
    assert_eq!(logger.log_all((0..3).map(event)), 3);
    drop(task);
    assert_eq!(losses.by_reason()["spillover_write_error"], 3);
    assert_eq!(
        logger.log(event(3)).unwrap_err().reason,
        "shutdown_in_progress"
    );
    let reported = runtime().block_on(logger.log_durable(event(4)));
    assert_eq!(reported.unwrap_err().as_str(), "shutdown_in_progress");
    let account = logger.account();
    assert_eq!((account.lost.total(), account.in_flight), (5, 0));
    // The directory is free again, although a handle is left.
    drop(open());
}
