//! The process that is killed: this very test program, started again with a role.

use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::env::system::SystemClock;
use tidegate_logger::{
    Defaults, Event, HttpApi, Logger, LoggerConfig, LoggerConfigBuilder, RunningLogger,
};
use tidegate_testkit::child::{self, ChildLines, say};

const ROLE: &str = "TIDEGATE_OUTSIDE_ROLE";
const DIR: &str = "TIDEGATE_OUTSIDE_DIR";
const API: &str = "TIDEGATE_OUTSIDE_API";
const NAME: &str = "TIDEGATE_OUTSIDE_NAME";

/// Starts a child in `role` on the spill directory `dir`, against the API at `api`. `name` is part
/// of what it logs.
pub(crate) fn start(role: &str, dir: &Path, api: &str, name: &str) -> (Child, ChildLines) {
    let variables = [
        (ROLE, role.as_ref()),
        (DIR, dir.as_ref()),
        (API, api.as_ref()),
        (NAME, name.as_ref()),
    ];
    child::start(&variables).unwrap()
}

/// The configuration of all loggers here: caps that nothing reaches, a breaker that soon tries
/// again.
pub(crate) fn config(dir: &Path) -> LoggerConfigBuilder {
    LoggerConfig::builder()
        .spillover_path(dir)
        .max_spillover_events(10_000_000)
        .max_spillover_size_bytes(10 << 30)
        .circuit_breaker_reset_ms(20)
        .base_retry_delay_ms(20)
        .replay_interval_ms(1_000)
        .defaults(Defaults::new("outside", "TEST", "TEST"))
}

pub(crate) fn http(url: &str) -> Arc<HttpApi> {
    let builder = HttpApi::builder(url).request_timeout(Duration::from_secs(60));
    Arc::new(builder.build(Arc::new(SystemClock::new())).unwrap())
}

/// Not a test of its own: without a role it does nothing.
#[test]
fn child_process_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let variable = |name: &str| std::env::var(name).unwrap();
    let (dir, api, name) = (variable(DIR), variable(API), variable(NAME));
    match role.as_str() {
        "log-durably" => log_durably(dir.as_ref(), &api, &name),
        "log-and-stop" => log_and_stop(dir.as_ref(), &api, &name),
        other => panic!("no role `{other}`"),
    }
}

/// Logs durably from many tasks until it is killed, and reports each id once it is promised. Some
/// events are logged without a promise in between, as an application would.
fn log_durably(dir: &Path, api: &str, name: &str) {
    const TASKS: usize = 8;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let config = config(dir).build().unwrap();
        let (logger, task) = Logger::open(config, http(api), Env::system(), None).unwrap();
        tokio::spawn(task.run(std::future::pending()));
        say("open");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (logger, name) = (logger.clone(), name.to_owned());
                tokio::spawn(async move {
                    for n in 0_u64.. {
                        let details = format!("{name}-{task}-{n}");
                        let event = Event::step("Outside", "Durable", details.clone())
                            .correlation_id(format!("{name}-{task}"));
                        let id = logger.log_durable(event).await.unwrap();
                        say(&format!("{id} {details}"));
                        if n % 8 == 0 {
                            let event = Event::step("Outside", "Plain", format!("{details}-plain"));
                            logger.log(event.correlation_id("plain")).unwrap();
                        }
                        // An application does something else too, else one life fills the disk.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Logs 2,000 events, stops, and reports where they are.
fn log_and_stop(dir: &Path, api: &str, name: &str) {
    let config = config(dir).build().unwrap();
    let logger = RunningLogger::start(config, http(api), None).unwrap();
    for n in 0..2_000 {
        let event = Event::step("Outside", "Stop", format!("{name}-{n}"));
        logger.log(event.correlation_id("stop")).unwrap();
    }
    let account = logger.shutdown().account;
    assert!(account.is_balanced());
    say(&format!(
        "{} {} {} {}",
        account.accepted,
        account.spilled,
        account.delivered,
        account.lost.total()
    ));
}
