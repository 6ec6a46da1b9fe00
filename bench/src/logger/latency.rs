//! The cost of `log` for its caller.
//!
//! Events are built beforehand, and each call is timed alone. Calls come in bursts that fit the
//! queue, and the queue is empty before each; a full queue would measure something else. Reading
//! the clock twice costs about as much as `log` does, so the same loop around nothing stands
//! beside every figure as its reference.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use tidegate_logger::{Api, Event, Logger, RunningLogger};

use super::{Scratch, apis, config, events, start, wait_for};
use crate::measure::{Measurement, percentile};

const QUEUE: i64 = 200_000;
const BURSTS: usize = 60;
const BURST: u64 = 8_000;
const THREADS: u64 = 8;

pub(super) fn run() {
    let scratch = Scratch::new("latency");
    let spilling: Arc<dyn Api> = Arc::new(apis::Down);
    for (state, api) in [("normal", None), ("spilling", Some(spilling))] {
        let mut config = config().queue_capacity(QUEUE);
        if api.is_some() {
            config = config.spillover_path(scratch.path());
        }
        let logger = start(config, api.unwrap_or_else(|| Arc::new(apis::Instantly)));
        // The breaker opens, files are made, memory is touched.
        measure(&logger, 1, 2, burst);
        let mut ours = measure(&logger, 1, BURSTS, burst);
        let mut floor = measure(&logger, 1, BURSTS, nothing);
        print(state, "log-p50", 0.5, &mut ours, &mut floor);
        print(state, "log-p99", 0.99, &mut ours, &mut floor);
        let mut ours = measure(&logger, 1, 2, paced);
        print(state, "log-paced-p50", 0.5, &mut ours, &mut floor);
        print(state, "log-paced-p99", 0.99, &mut ours, &mut floor);
        let mut ours = measure(&logger, THREADS, BURSTS, burst);
        let mut floor = measure(&logger, THREADS, BURSTS, nothing);
        print(state, "log-8-threads-p50", 0.5, &mut ours, &mut floor);
        print(state, "log-8-threads-p99.9", 0.999, &mut ours, &mut floor);
        assert_eq!(logger.shutdown().account.lost.total(), 0);
    }
}

fn print(state: &str, name: &str, share: f64, ours: &mut [u32], floor: &mut [u32]) {
    Measurement {
        bench: &format!("logger/{state}/{name}"),
        ours: percentile(ours, share),
        reference: percentile(floor, share),
        reference_is: "the same loop around nothing: reading the clock twice",
        unit: "ns/event",
    }
    .print();
}

type Burst = fn(&Logger, Vec<Event>, &mut Vec<u32>);

/// Nanoseconds of each call, over all threads.
fn measure(logger: &RunningLogger, threads: u64, bursts: usize, burst: Burst) -> Vec<u32> {
    let barrier = Barrier::new(usize::try_from(threads).unwrap_or(1));
    let mut samples = Vec::new();
    for _ in 0..bursts {
        wait_for(|| {
            let account = logger.account();
            account.in_flight == 0 && account.retrying == 0
        });
        let parts: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|_| {
                    let (barrier, logger) = (&barrier, Logger::clone(logger));
                    scope.spawn(move || {
                        let events = events(BURST / threads);
                        // Written once, so that no page is touched for the first time later.
                        let mut samples = vec![1; events.len()];
                        samples.clear();
                        barrier.wait();
                        burst(&logger, events, &mut samples);
                        samples
                    })
                })
                .collect();
            let ended = running.into_iter().map(|thread| thread.join());
            ended
                .map(|samples| samples.expect("a bench thread ends well"))
                .collect()
        });
        samples.extend(parts.into_iter().flatten());
    }
    samples
}

/// As fast as it goes.
fn burst(logger: &Logger, events: Vec<Event>, samples: &mut Vec<u32>) {
    for event in events {
        let began = Instant::now();
        let logged = logger.log(event);
        samples.push(nanos(began.elapsed()));
        assert!(logged.is_ok(), "the queue has room for a burst");
    }
}

/// With time in between, so that the sender sleeps and each call has to wake it.
fn paced(logger: &Logger, events: Vec<Event>, samples: &mut Vec<u32>) {
    const PAUSE: Duration = Duration::from_micros(50);
    for event in events {
        let pause = Instant::now();
        while pause.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        let logged = logger.log(event);
        samples.push(nanos(began.elapsed()));
        assert!(logged.is_ok(), "the queue has room for a burst");
    }
}

fn nothing(_: &Logger, events: Vec<Event>, samples: &mut Vec<u32>) {
    for event in &events {
        let began = Instant::now();
        black_box(event);
        samples.push(nanos(began.elapsed()));
    }
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
