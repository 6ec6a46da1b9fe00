//! Names and formats that users' dashboards, alerts and readers depend on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use tidegate_logger::spill::{ACTIVE, EVENT_BYTES, REJECTED};
use tidegate_logger::{Defaults, Event, StepStatus, reason};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, event_saying, spilling};

/// Remembers gauges.
#[derive(Default)]
struct Gauges(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Gauges {
    fn show(&self) -> String {
        let gauges = self.0.lock().unwrap();
        let lines = gauges.iter().map(|(name, value)| {
            format!("{name} {}\n", f64::from_bits(value.load(Ordering::SeqCst)))
        });
        lines.collect()
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.0.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(key.name().to_owned()).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn the_gauges_have_their_documented_names_and_values() {
    let gauges = Gauges::default();
    with_local_recorder(&gauges, || {
        let mut world = World::scripted(1, |_, call| match call {
            1..=2 => Script::Serve,
            _ => Script::Refuse,
        });
        let config = spilling()
            .batch_size(1)
            .max_spillover_events(4)
            .queue_capacity(100);
        world.start(config.circuit_breaker_threshold(1));
        world.log(0..8);
        world.run_for(2 * SECOND);
        let bytes = format!("spill.bytes {}\n", world.content(ACTIVE).len());
        let shown = gauges.show();
        assert!(shown.contains(&bytes), "{bytes} {shown}");
        insta::assert_snapshot!(shown.replace(&bytes, "spill.bytes BYTES\n"), @r"
        eventlog.circuit-breaker.open 1
        eventlog.events.corrupt 0
        eventlog.events.failed 2
        eventlog.events.queued 8
        eventlog.events.rejected 0
        eventlog.events.replayed 0
        eventlog.events.sent 2
        eventlog.events.spilled 4
        eventlog.events.unreported 0
        eventlog.queue.depth 0
        eventlog.spill.bytes BYTES
        eventlog.spill.oldest-age-seconds 2
        eventlog.spill.pending 4
        ");
        world.check();
    });
}

#[test]
fn the_gauges_follow_the_queue_and_the_replay() {
    let gauges = Gauges::default();
    with_local_recorder(&gauges, || {
        let mut world = World::scripted(1, |_, call| match call {
            1 => Script::Refuse,
            2 => Script::Hang,
            _ => Script::Serve,
        });
        world.start(crate::fixture::memory_only().batch_size(1).max_retries(0));
        world.log([0]);
        world.run_for(SECOND);
        world.log(1..5);
        world.run_for(2 * SECOND);
        insta::assert_snapshot!(gauges.show(), @r"
        eventlog.circuit-breaker.open 0
        eventlog.events.corrupt 0
        eventlog.events.failed 1
        eventlog.events.queued 5
        eventlog.events.rejected 0
        eventlog.events.replayed 0
        eventlog.events.sent 0
        eventlog.events.spilled 0
        eventlog.events.unreported 0
        eventlog.queue.depth 3
        eventlog.spill.bytes 0
        eventlog.spill.oldest-age-seconds 0
        eventlog.spill.pending 0
        ");
    });
    let gauges = Gauges::default();
    with_local_recorder(&gauges, || {
        let mut world = World::down(1);
        world.start(spilling());
        world.log_all_durably(0..3);
        world.api.up();
        world.wait_until_drained();
        world.run_for(MINUTE);
        let shown = gauges.show();
        assert!(shown.contains("eventlog.events.replayed 3\n"), "{shown}");
        assert!(shown.contains("eventlog.events.spilled 3\n"), "{shown}");
        for zero in ["circuit-breaker.open", "spill.pending", "spill.bytes"] {
            assert!(shown.contains(&format!("eventlog.{zero} 0\n")), "{shown}");
        }
    });
}

#[test]
fn with_metrics_switched_off_there_are_no_gauges() {
    let gauges = Gauges::default();
    with_local_recorder(&gauges, || {
        let mut world = World::new(1);
        world.start(spilling().metrics(false));
        world.log([0]);
        world.run_for(MINUTE);
        assert_eq!(gauges.show(), "");
    });
}

#[test]
fn the_fourteen_reasons_are_the_documented_words() {
    let words: Vec<&str> = reason::ALL
        .iter()
        .map(|reason| reason.as_static().unwrap())
        .collect();
    insta::assert_snapshot!(words.join("\n"), @r"
    queue_full
    retries_exhausted
    retry_requeue_failed
    retry_executor_rejected
    shutdown_in_progress
    shutdown_pending_retry
    spillover_queue_full
    spillover_max_events
    spillover_max_size
    circuit_open
    shutdown_queued
    spillover_write_error
    spillover_corrupt
    rejected
    ");
}

#[test]
fn a_spilled_line_is_the_documented_object_with_ours_at_its_end() {
    let mut world = World::down(1);
    let defaults = Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT");
    world.start(spilling().defaults(defaults).circuit_breaker_threshold(1));
    let event = Event::step(
        "CreateBooking",
        "BookingCreated",
        "Booking BK-20260601-001 created for PET-001",
    )
    .correlation_id("a1b2c3d4");
    world.logger().log(event).unwrap();
    let event = Event::end("CreateBooking", "done: \"鯨\"\n")
        .correlation_id("a1b2c3d4")
        .event_status(StepStatus::Success)
        .identifier("bookingId", "BK-1")
        .property("nights", 3);
    world.logger().log(event).unwrap();
    world.wait_for_spilled(2);
    let text = world.lines(ACTIVE).join("\n");
    // Ids and what follows from them are random; their form is what counts.
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some(at) = ["\"_id\":\"", "\"_sum\":\"", "\"_crc\":\""]
        .iter()
        .filter_map(|mark| rest.find(mark).map(|at| at + mark.len()))
        .min()
    {
        let end = at + rest[at..].find('"').unwrap();
        shown.push_str(&rest[..at]);
        shown.extend(
            rest[at..end]
                .chars()
                .map(|c| if c == '-' { '-' } else { 'x' }),
        );
        rest = &rest[end..];
    }
    shown.push_str(rest);
    insta::assert_snapshot!(shown, @r#"
    {"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"STEP","step":"BookingCreated","details":"Booking BK-20260601-001 created for PET-001","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-01-01T00:00:00.000Z","userId":"system","_id":"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx","_seq":1,"_crc":"xxxxxxxx"}
    {"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_END","details":"done: \"鯨\"\n","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-01-01T00:00:00.000Z","userId":"system","identifiers":{"bookingId":"BK-1"},"eventStatus":"SUCCESS","nights":3,"_id":"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx","_seq":2,"_sum":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","_crc":"xxxxxxxx"}
    "#);
}

#[test]
fn an_ordinary_event_takes_as_many_bytes_as_is_said() {
    let mut world = World::down(1);
    let defaults = Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT");
    let opened = world.open(spilling().defaults(defaults).circuit_breaker_threshold(1));
    for _ in 0..500 {
        for (step, details) in [
            (
                "BookingCreated",
                "Booking BK-20260601-001 created for PET-001",
            ),
            (
                "BookingCompleted",
                "Booking BK-20260601-001 completed successfully",
            ),
        ] {
            let event = Event::step("CreateBooking", step, details);
            world
                .logger()
                .log(event.correlation_id("a1b2c3d4"))
                .unwrap();
        }
    }
    world.run(opened);
    world.wait_for_spilled(1_000);
    let bytes = world.content(ACTIVE).len() as u64 / 1_000;
    assert!(
        bytes.abs_diff(EVENT_BYTES) <= EVENT_BYTES / 20,
        "{bytes} bytes per event"
    );
}

#[test]
fn a_rejected_line_says_why_and_when_and_holds_the_event() {
    let mut world = World::new(1);
    world.start(spilling());
    world
        .logger()
        .log(event_saying("REJECT").user_id("u"))
        .unwrap();
    world.wait(MINUTE, "it is set aside", |logger| {
        logger.account().dead_lettered == 1
    });
    let line = world.lines(REJECTED).remove(0);
    let mut value: serde_json::Value = serde_json::from_str(&line).unwrap();
    for id in [value.pointer("/_id"), value.pointer("/event/_id")] {
        assert!(
            id.unwrap()
                .as_str()
                .unwrap()
                .parse::<tidegate_core::EventId>()
                .is_ok()
        );
    }
    assert_eq!(value["_id"], value["event"]["_id"]);
    *value.pointer_mut("/_id").unwrap() = "…".into();
    *value.pointer_mut("/event/_id").unwrap() = "…".into();
    insta::assert_snapshot!(value, @r#"{"_id":"…","attempts":1,"code":"event.invalid","event":{"_id":"…","correlationId":"a1b2c3d4","details":"REJECT","processName":"CreateBooking","processStatus":"STEP","step":"BookingCreated","timestamp":"2026-01-01T00:00:00.000Z","userId":"u"},"message":"the Event Log API answered 400: 1 field; processStatus: missing","rejectedAt":"2026-01-01T00:00:00.000Z","status":400}"#);
}
