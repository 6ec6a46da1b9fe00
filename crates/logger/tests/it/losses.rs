//! Losses: each carries its reason, reaches the callback once and raises the counter by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_logger::reason;
use tidegate_logger::spill::{ACTIVE, CORRUPT, MAX_LINE, REJECTED};
use tidegate_sim::{Fault, FaultKind, Operation, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, event, event_saying, memory_only, spilling, texts};

type Scenario = fn() -> World;

/// One scenario per reason; each ends with exactly `count` events reported for it and nothing else.
const SCENARIOS: [(&str, usize, Scenario); 14] = [
    ("queue_full", 3, || {
        let mut world = World::new(1);
        let opened = world.open(memory_only().queue_capacity(2));
        world.logger().log_all((0..5).map(event));
        world.run(opened);
        world
    }),
    ("retries_exhausted", 3, || {
        let mut world = World::down(1);
        world.start(memory_only().max_retries(1).circuit_breaker_threshold(100));
        world.log(0..3);
        world.run_for(MINUTE);
        world
    }),
    ("retry_requeue_failed", 1, || {
        let mut world = World::scripted(1, |_, call| match call {
            1 => Script::Refuse,
            _ => Script::slow(Duration::from_secs(10)),
        });
        world.start(memory_only().queue_capacity(1).batch_size(1));
        for number in 0..3 {
            world.log([number]);
            world.run_for(Duration::from_millis(200));
        }
        world.run_for(2 * SECOND);
        world
    }),
    ("retry_executor_rejected", 2, || {
        let mut world = World::down(1);
        let config = memory_only()
            .queue_capacity(1)
            .batch_size(1)
            .base_retry_delay_ms(30_000);
        world.start(config.circuit_breaker_threshold(100));
        for number in 0..3 {
            world.log([number]);
            world.run_for(Duration::from_millis(200));
        }
        world
    }),
    ("shutdown_in_progress", 2, || {
        let mut world = World::new(1);
        world.start(spilling());
        world.shut_down();
        world.logger().log_all((0..2).map(event));
        world
    }),
    ("shutdown_pending_retry", 4, || {
        let mut world = World::down(1);
        world.start(memory_only().base_retry_delay_ms(30_000));
        world.log(0..4);
        world.run_for(SECOND);
        world.shut_down();
        world
    }),
    ("spillover_queue_full", 3, || {
        let mut world = World::down(1);
        let opened = world.open(spilling().queue_capacity(2));
        world.logger().log_all((0..7).map(event));
        world.run(opened);
        world
    }),
    ("spillover_max_events", 5, || {
        let mut world = World::down(1);
        world.start(
            spilling()
                .circuit_breaker_threshold(1)
                .max_spillover_events(2),
        );
        world.log(0..7);
        world.run_for(SECOND);
        world
    }),
    ("spillover_max_size", 7, || {
        let mut world = World::down(1);
        world.start(
            spilling()
                .circuit_breaker_threshold(1)
                .max_spillover_size_bytes(100),
        );
        world.log(0..7);
        world.run_for(SECOND);
        world
    }),
    ("circuit_open", 1, || {
        let mut world = World::down(1);
        world.start(memory_only().queue_capacity(1).circuit_breaker_threshold(1));
        world.log([0]);
        world.run_for(Duration::from_millis(200));
        world.log([1]);
        world.run_for(2 * SECOND);
        world
    }),
    ("shutdown_queued", 4, || {
        let mut world = World::scripted(1, |_, _| Script::Hang);
        world.start(memory_only().batch_size(1));
        world.log(0..4);
        world.shut_down();
        world
    }),
    ("spillover_write_error", 3, || {
        let mut world = World::down(1);
        world.start(spilling().circuit_breaker_threshold(1));
        let kind = FaultKind::Full;
        world.disk().fail(Fault {
            operation: Operation::Write,
            path: ACTIVE.into(),
            nth: 1,
            kind,
        });
        world.log(0..3);
        world.run_for(SECOND);
        world
    }),
    ("spillover_corrupt", 2, || {
        let mut world = World::new(1);
        world.put(ACTIVE, b"{\"details\":\"event 0\"}\nno event\n\xff\xfe\n");
        world.start(spilling());
        world.run_for(MINUTE);
        world
    }),
    ("rejected", 3, || {
        let mut world = World::new(1);
        world.start(memory_only());
        for _ in 0..3 {
            world.logger().log(event_saying("REJECT")).unwrap();
        }
        world.run_for(SECOND);
        world
    }),
];

#[test]
fn a02_every_reason_is_told_once_per_event_and_counted_once() {
    let mut reached = BTreeSet::new();
    for (name, count, scenario) in SCENARIOS {
        let mut world = scenario();
        world.run_for(Duration::ZERO);
        assert_eq!(world.losses.reasons(), vec![name; count]);
        let account = world.account();
        if name == "spillover_corrupt" {
            // Set aside and not lost: the place of such an event is `dead_lettered`.
            assert_eq!(
                (account.dead_lettered, account.lost.total()),
                (2, 0),
                "{account:?}"
            );
        } else {
            let lost: Vec<(&str, i64)> = account.lost.reasons().collect();
            assert_eq!(lost, [(name, i64::try_from(count).unwrap())]);
            assert_eq!(world.metrics().events_failed, count as u64, "{name}");
        }
        assert!(account.is_balanced(), "{name}: {account:?}");
        world.check();
        reached.insert(name);
    }
    let all: BTreeSet<&str> = reason::ALL.iter().map(|r| r.as_static().unwrap()).collect();
    assert_eq!(reached, all);
}

#[test]
fn a02_the_callback_is_given_the_event_and_its_id() {
    let mut world = World::down(1);
    world.start(memory_only().max_retries(0));
    world.log([7]);
    world.run_for(SECOND);
    let reported = world.losses.all();
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0].details.as_deref(), Some("event 7"));
    assert!(reported[0].id.is_some());
    world.check();
}

#[test]
fn a03_a_panicking_callback_stops_nothing_and_is_called_for_the_next_loss() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let mut world = World::down(1).with_callback(Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("a callback of the application");
    }));
    world.start(
        spilling()
            .circuit_breaker_threshold(1)
            .max_spillover_events(3),
    );
    world.log(0..10);
    world.run_for(SECOND);
    assert_eq!(calls.load(Ordering::SeqCst), 7);
    world.log([10]);
    world.run_for(SECOND);
    assert_eq!(calls.load(Ordering::SeqCst), 8);
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived(0..3);
    let report = world.shut_down();
    assert_eq!(report.account.lost.total(), 8);
    assert!(
        world.logger().log(event(11)).is_err(),
        "also on the thread of the caller"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 9);
}

#[test]
fn a09_events_set_aside_are_in_their_file_byte_for_byte() {
    let mut world = World::new(1);
    let bad: [&[u8]; 4] = [
        b"no event",
        b"{\"details\":\"cut",
        b"\xff\xfe\x00\x01",
        b"[1,2,3]",
    ];
    let mut file = Vec::new();
    for line in bad {
        file.extend_from_slice(line);
        file.push(b'\n');
    }
    let good = b"{\"details\":\"event 0\"}\n{\"details\":\"REJECT \\u00e4 1.10\",\"n\": 1.10}\n";
    world.put(ACTIVE, &[&file[..], good].concat());
    world.start(spilling());
    world.wait_until_drained();
    world.run_for(MINUTE);
    assert_eq!(world.content(CORRUPT), file);
    let rejected = world.lines(REJECTED);
    assert_eq!(rejected.len(), 1);
    assert!(
        rejected[0].contains("\"details\":\"REJECT \\u00e4 1.10\",\"n\": 1.10"),
        "{rejected:?}"
    );
    assert_eq!(world.arrived(), texts([0]));
    let reported = world.losses.by_reason();
    assert_eq!(
        (reported["spillover_corrupt"], reported["rejected"]),
        (4, 1)
    );
    world.check();
}

#[test]
fn a09_an_event_that_is_longer_than_a_line_may_be_is_told_once_and_harms_no_other() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    let long = "x".repeat(MAX_LINE + 700_000);
    world.log([0]);
    world.logger().log(event_saying(long.clone())).ok();
    world.log([1]);
    world.run_for(SECOND);
    world.api.up();
    world.wait_until_drained();
    world.run_for(MINUTE);
    let kept = [world.content(CORRUPT), world.content(REJECTED)].concat();
    let is_kept = kept.windows(long.len()).any(|part| part == long.as_bytes());
    let reported = world.losses.by_reason();
    assert!(
        is_kept || world.api.count() == 3 || reported.get("spillover_max_size") == Some(&1),
        "neither delivered, nor kept whole, nor reported: {reported:?}"
    );
    assert!(
        world.losses.all().len() <= 1,
        "{} reports",
        world.losses.all().len()
    );
    assert!(world.arrived().contains(&"event 0".to_owned()));
    assert!(world.arrived().contains(&"event 1".to_owned()));
    world.check();
}

/// An event that is set aside is reported, also when the logger stops at that very moment.
#[test]
fn a02_a_rejection_during_replay_is_told_however_soon_the_logger_stops() {
    seeds!(50, |seed| {
        let mut world = World::down(seed);
        world.start(spilling().circuit_breaker_threshold(1));
        world.logger().log(event_saying("REJECT")).unwrap();
        world.wait_for_spilled(1);
        world.shut_down();
        world.new_process();
        world.api.up();
        world.start(spilling());
        let logger = world.logger();
        let is_aside = || logger.account().dead_lettered == 1;
        assert!(world.sim.run_until(MINUTE, is_aside));
        let report = world.shut_down();
        assert_eq!(report.account.dead_lettered, 1);
        assert_eq!(world.losses.reasons(), ["rejected"]);
        world.check_report(&report);
    });
}
