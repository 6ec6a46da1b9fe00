//! Batches, as the event client sends them.

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_core::EventId;
use tidegate_logger::{Defaults, Event, LoggerConfig, OnFull, RunningLogger};

use super::HITS;
use super::serve::ApiProcess;

/// Events of one request, and requests at the same time: half of them wait while the others are committed.
const BATCH: i64 = 1_000;
const SENDERS: i64 = 8;
/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(3_600);

pub(super) fn defaults() -> Defaults {
    Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT")
}

/// An event of a group. The groups are spread over all events, so that the rows of one lie far apart.
pub(super) fn event(number: u64, events: u64) -> Event {
    let group = number % groups(events);
    let details = format!(
        "Booking BK-{number:07} of {} created for PET-001",
        word(group)
    );
    Event::step("CreateBooking", "BookingCreated", details)
        .correlation_id(correlation(group))
        .trace_id(trace(group))
        .account_id(format!("ACC-{}", number % 10_000))
}

/// How many groups there are among so many events.
pub(super) fn groups(events: u64) -> u64 {
    (events / HITS).max(1)
}

pub(super) fn correlation(group: u64) -> String {
    format!("c{group}")
}

pub(super) fn trace(group: u64) -> String {
    format!("{:032x}", group + 1)
}

/// A word that only the events of the group have.
pub(super) fn word(group: u64) -> String {
    format!("lot{group:05}")
}

/// Sends these events, and gives the time until the last of them was answered as stored.
pub(super) fn send(api: &ApiProcess, numbers: Range<u64>, events: u64) -> Duration {
    let config = LoggerConfig::builder()
        .queue_capacity(20 * BATCH)
        .on_full(OnFull::Block)
        .batch_size(BATCH)
        .sender_threads(SENDERS)
        .metrics(false)
        .defaults(defaults())
        .build()
        .expect("the configuration is right");
    let logger = RunningLogger::start(config, api.client(), None).expect("the logger starts");
    let count = i64::try_from(numbers.end - numbers.start).unwrap_or(i64::MAX);
    let began = Instant::now();
    for number in numbers {
        assert!(logger.log(event(number, events)).is_ok(), "there is room");
    }
    while logger.account().delivered < count {
        assert!(began.elapsed() < LIMIT, "{:?}", logger.account());
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed();
    let account = logger.shutdown().account;
    assert_eq!((account.delivered, account.lost.total()), (count, 0));
    took
}

/// Events per second of a plain loop that writes the same events to a file, in batches as large.
pub(super) fn file_rate(path: &Path, count: u64) -> f64 {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    for number in 0..count {
        let id = EventId::from_u128(u128::from(number));
        event(number, count).encode(id, 0, &defaults(), &mut batch);
        if (number + 1) % BATCH.unsigned_abs() == 0 || number + 1 == count {
            batches.push(std::mem::take(&mut batch));
        }
    }
    let mut file = File::create(path).expect("a file can be made");
    let began = Instant::now();
    for batch in &batches {
        file.write_all(batch).expect("the disk takes it");
        file.sync_data().expect("the disk keeps it");
    }
    count as f64 / began.elapsed().as_secs_f64()
}
