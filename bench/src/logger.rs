//! The event client: the cost of `log` for its caller, the cost of the disk, and how fast and in how
//! much memory a backlog is sent.

mod apis;
mod latency;
mod memory;
mod replay;
mod spill;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_logger::{Api, Defaults, Event, LoggerConfig, LoggerConfigBuilder, RunningLogger};

pub(crate) use memory::{CHILD, run_child};

pub(crate) fn run() {
    latency::run();
    spill::run();
    replay::run();
    memory::run();
}

/// An event of the documented shape, with texts of its own as an application has them.
fn event(number: u64) -> Event {
    Event::step(
        "CreateBooking",
        "BookingCreated",
        format!("Booking BK-20260601-{number:03} created for PET-001"),
    )
    .correlation_id(format!("a1b2c3d4-{number}"))
}

fn events(count: u64) -> Vec<Event> {
    (0..count).map(event).collect()
}

fn config() -> LoggerConfigBuilder {
    LoggerConfig::builder()
        .max_spillover_events(i64::MAX)
        .max_spillover_size_bytes(i64::MAX)
        .metrics(false)
        .defaults(Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT"))
}

fn start(config: LoggerConfigBuilder, api: Arc<dyn Api>) -> RunningLogger {
    let config = config.build().expect("the configuration is right");
    RunningLogger::start(config, api, None).expect("the logger starts")
}

/// A directory on the disk that holds the build, which is a real one. It is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let dir = program.with_file_name("bench-logger").join(name);
        // Files of an earlier run that was stopped half-way.
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("the directory can be made");
        Self(dir)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Waits for a fact, which is looked at often enough not to matter.
fn wait_for(fact: impl Fn() -> bool) {
    const LIMIT: Duration = Duration::from_secs(600);
    let began = Instant::now();
    while !fact() {
        assert!(began.elapsed() < LIMIT, "it never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Spills `count` events to `dir`, as fast as the disk takes them, and stops.
fn fill(dir: &Path, count: u64) {
    const PART: u64 = 100_000;
    let capacity = i64::try_from(2 * PART).unwrap_or(i64::MAX);
    let logger = start(
        config().spillover_path(dir).queue_capacity(capacity),
        Arc::new(apis::Down),
    );
    let mut done = 0;
    while done < count {
        let part = events(PART.min(count - done));
        done += part.len() as u64;
        let accepted = logger.log_all(part);
        assert!(accepted > 0, "the queue has room for a part");
        wait_for(|| u64::try_from(logger.account().spilled).is_ok_and(|spilled| spilled >= done));
    }
    let report = logger.shutdown();
    assert_eq!(u64::try_from(report.account.spilled), Ok(count));
}
