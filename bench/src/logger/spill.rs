//! The cost of the disk for the client: durable events per second while the API is down.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_logger::{Logger, RunningLogger, spill};

use super::{Scratch, apis, config, event, events, start, wait_for};
use crate::measure::{Measurement, median, percentile};

const EVENTS: u64 = 300_000;
/// Rounds of ours and the references in turn: the disk has its moods.
const ROUNDS: usize = 5;

pub(super) fn run() {
    throughput();
    acknowledgment();
}

fn throughput() {
    let (mut ours, mut raw, mut unsynced) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let scratch = Scratch::new("spill");
        let dir = scratch.path();
        ours.push(spill_rate(&dir.join("ours")));
        let written = std::fs::read(dir.join("ours").join(spill::ACTIVE));
        let written = written.expect("the spill can be read");
        raw.push(raw_rate(&dir.join("raw"), &batches(&written)));
        unsynced.push(documented_rate(&dir.join("documented"), &written));
    }
    let (ours, raw, unsynced) = (median(ours), median(raw), median(unsynced));
    for (bench, reference, reference_is) in [
        (
            "logger/spill",
            raw,
            "the same bytes in the same batches: write + fdatasync",
        ),
        (
            "logger/spill-over-documented",
            unsynced,
            "open, append, close per event, unsynced",
        ),
    ] {
        Measurement {
            bench,
            ours,
            reference,
            reference_is,
            unit: "events/s",
        }
        .print();
    }
}

/// From the first `log` to the sync that covers the last event, with the breaker open.
fn spill_rate(dir: &Path) -> f64 {
    const WARM_UP: u64 = 1_000;
    let capacity = i64::try_from(EVENTS + WARM_UP).unwrap_or(i64::MAX);
    let logger = start(
        config().spillover_path(dir).queue_capacity(capacity),
        Arc::new(apis::Down),
    );
    logger.log_all(events(WARM_UP));
    wait_for(|| is_spilled(&logger, WARM_UP));
    let prepared = events(EVENTS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let began = Instant::now();
    logger.log_all(prepared);
    let is_flushed = runtime.block_on(logger.flush(Duration::from_secs(60)));
    let rate = rate(EVENTS, began);
    assert!(is_flushed && is_spilled(&logger, WARM_UP + EVENTS));
    rate
}

fn is_spilled(logger: &RunningLogger, count: u64) -> bool {
    u64::try_from(logger.account().spilled).is_ok_and(|spilled| spilled >= count)
}

/// The batches as they were written: the last line of each carries the running sum.
fn batches(written: &[u8]) -> Vec<&[u8]> {
    let mut batches = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in written.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let tail = &line[line.len().saturating_sub(80)..];
        if tail.windows(7).any(|part| part == b"\"_sum\":") {
            batches.extend(written.get(start..at));
            start = at;
        }
    }
    batches
}

fn raw_rate(path: &Path, batches: &[&[u8]]) -> f64 {
    let lines = |batch: &&[u8]| batch.iter().filter(|byte| **byte == b'\n').count() as u64;
    let count = batches.iter().map(lines).sum();
    let mut file = File::create(path).expect("a file can be made");
    let began = Instant::now();
    for batch in batches {
        file.write_all(batch).expect("the disk takes it");
        file.sync_data().expect("the disk keeps it");
    }
    rate(count, began)
}

fn documented_rate(path: &Path, written: &[u8]) -> f64 {
    const LINES: usize = 100_000;
    let lines = written.split_inclusive(|byte| *byte == b'\n').take(LINES);
    let began = Instant::now();
    for line in lines {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.expect("a file can be opened");
        file.write_all(line).expect("the disk takes it");
    }
    rate(LINES as u64, began)
}

fn rate(count: u64, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// How long `log_durable` takes, one after the other, and 64 at a time.
fn acknowledgment() {
    let scratch = Scratch::new("acknowledgment");
    let mut raw = raw_syncs(&scratch.path().join("raw"));
    for tasks in [1, 64] {
        let dir = scratch.path().join(tasks.to_string());
        let logger = start(config().spillover_path(dir), Arc::new(apis::Down));
        let mut samples = acknowledged(&logger, tasks);
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            Measurement {
                bench: &format!("logger/durable-{tasks}-at-a-time-{name}"),
                ours: percentile(&mut samples, share),
                reference: percentile(&mut raw, share),
                reference_is: "one line: write + fdatasync",
                unit: "us/event",
            }
            .print();
        }
    }
}

fn acknowledged(logger: &RunningLogger, tasks: u64) -> Vec<u32> {
    const CALLS: u64 = 2_000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    let work = |logger: Logger| async move {
        let mut samples = Vec::new();
        for number in 0..CALLS.div_ceil(tasks) {
            let event = event(number);
            let began = Instant::now();
            let outcome = logger.log_durable(event).await;
            samples.push(micros(began.elapsed()));
            assert!(outcome.is_ok(), "the disk keeps it");
        }
        samples
    };
    runtime.block_on(async {
        let running: Vec<_> = (0..tasks)
            .map(|_| tokio::spawn(work(Logger::clone(logger))))
            .collect();
        let mut samples = Vec::new();
        for task in running {
            samples.extend(task.await.expect("a bench task ends well"));
        }
        samples
    })
}

fn raw_syncs(path: &Path) -> Vec<u32> {
    let line = [b'x'; 400];
    let mut file = File::create(path).expect("a file can be made");
    (0..2_000)
        .map(|_| {
            let began = Instant::now();
            file.write_all(&line).expect("the disk takes it");
            file.sync_data().expect("the disk keeps it");
            micros(began.elapsed())
        })
        .collect()
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
