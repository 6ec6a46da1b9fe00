//! Queue, send, retry: L02–L06 and L10–L13, without sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_logger::spill::REJECTED;
use tidegate_logger::{LoggerConfig, LoggerConfigBuilder, LoggerHealth};
use tidegate_sim::{is_one_seed, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, event, event_saying, memory_only, spilling, texts};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn l02_a_batch_size_of_one_sends_events_one_by_one_and_a_larger_one_together() {
    for (batch_size, sizes) in [(1, vec![1, 1, 1, 1, 1]), (3, vec![3, 2]), (50, vec![5])] {
        let mut world = World::new(1);
        let opened = world.open(memory_only().batch_size(batch_size));
        world.log(0..5);
        world.run(opened);
        world.wait_for_stored(5);
        let found: Vec<usize> = world
            .calls()
            .iter()
            .map(|call| call.details.len())
            .collect();
        assert_eq!(found, sizes, "with a batch size of {batch_size}");
        assert_eq!(world.arrived(), texts(0..5));
        world.check();
    }
}

#[test]
fn l03_one_send_and_max_retries_retries_wait_as_documented_give_or_take_an_eighth() {
    let draws = AtomicU64::new(0);
    seeds!(20, |seed| {
        let mut world = World::down(seed);
        let config = memory_only()
            .max_retries(5)
            .base_retry_delay_ms(1_000)
            .max_retry_delay_ms(4_000)
            .circuit_breaker_threshold(1_000);
        world.start(config);
        world.log([1]);
        world.wait(MINUTE, "it is given up", |logger| {
            logger.account().lost.total() == 1
        });
        let times: Vec<Duration> = world.calls().iter().map(|call| call.at).collect();
        assert_eq!(times.len(), 6, "one send and five retries");
        for (wait, pair) in [1_000, 2_000, 4_000, 4_000, 4_000]
            .into_iter()
            .zip(times.windows(2))
        {
            let (found, exact) = (pair[1] - pair[0], ms(wait));
            assert!(found >= exact.mul_f64(0.875), "{found:?} for {exact:?}");
            assert!(
                found <= exact.mul_f64(1.125) + ms(1),
                "{found:?} for {exact:?}"
            );
            if found.abs_diff(exact) > exact.mul_f64(0.05) {
                draws.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert_eq!(world.losses.reasons(), ["retries_exhausted"]);
        world.check();
    });
    let far = draws.load(Ordering::Relaxed);
    assert!(
        is_one_seed() || far > 20,
        "of 100 waits only {far} are off by more than a twentieth: no jitter"
    );
}

#[test]
fn l03_the_api_is_asked_again_no_earlier_than_it_wants_to_be() {
    let mut world = World::scripted(1, |_, call| match call {
        1 => Script::Status {
            status: 503,
            retry_after: Some(Duration::from_secs(20)),
        },
        _ => Script::Serve,
    });
    world.start(memory_only());
    world.log([1]);
    world.wait_for_stored(1);
    assert!(world.calls()[1].at >= 20 * SECOND, "{:?}", world.calls());
    world.check();
}

#[test]
fn l04_retry_then_success_counts_as_sent_once_and_spilled_never() {
    let mut world = World::scripted(1, |_, call| match call {
        1..=2 => Script::Refuse,
        _ => Script::Serve,
    });
    world.start(spilling());
    world.log([1]);
    world.wait_for_stored(1);
    world.run_for(MINUTE);
    let metrics = world.metrics();
    assert_eq!(
        (
            metrics.events_sent,
            metrics.events_spilled,
            metrics.events_failed
        ),
        (1, 0, 0)
    );
    assert_eq!((world.api.count(), world.calls().len()), (1, 3));
    world.check();
}

#[test]
fn l04_a_failed_batch_retries_all_its_events() {
    for fault in [
        Script::Refuse,
        Script::AnswerLost,
        Script::HalfAnswer,
        Script::status(500),
    ] {
        let failing = fault.clone();
        let mut world = World::scripted(1, move |_, call| {
            if call == 1 {
                failing.clone()
            } else {
                Script::Serve
            }
        });
        let opened = world.open(spilling());
        world.log(0..7);
        world.run(opened);
        world.wait(MINUTE, "all are sent", |logger| {
            logger.metrics().events_sent == 7
        });
        world.assert_arrived(0..7);
        let metrics = world.metrics();
        assert_eq!(
            (metrics.events_spilled, metrics.events_queued),
            (0, 7),
            "{fault:?}"
        );
        world.check();
    }
}

#[test]
fn l04_a_failed_batch_is_retried_as_a_batch_so_that_it_stays_one_request() {
    let mut world = World::scripted(1, |_, call| {
        if call <= 2 {
            Script::Refuse
        } else {
            Script::Serve
        }
    });
    let opened = world.open(spilling());
    world.log(0..7);
    world.run(opened);
    world.wait(MINUTE, "all are sent", |logger| {
        logger.metrics().events_sent == 7
    });
    let sizes: Vec<usize> = world
        .calls()
        .iter()
        .map(|call| call.details.len())
        .collect();
    assert_eq!(sizes, [7, 7, 7]);
    assert_eq!(
        world.arrived(),
        texts(0..7),
        "in the order in which they were logged"
    );
    world.check();
}

#[test]
fn l05_a_full_queue_spills() {
    let mut world = World::new(1);
    let opened = world.open(spilling().queue_capacity(5));
    world.log(0..8);
    world.run(opened);
    world.wait_until_drained();
    let metrics = world.metrics();
    assert_eq!(metrics.events_spilled, 3);
    assert_eq!((metrics.events_sent, metrics.events_replayed), (5, 3));
    world.assert_arrived(0..8);
    world.check();
}

#[test]
fn l05_exhausted_retries_spill() {
    let mut world = World::down(1);
    world.start(spilling().max_retries(2).circuit_breaker_threshold(1_000));
    world.log(0..3);
    world.wait_for_spilled(3);
    assert!(
        world
            .calls()
            .iter()
            .filter(|c| c.details.contains(&"event 0".into()))
            .count()
            >= 3
    );
    assert_eq!(world.losses.all(), []);
    world.check();
}

#[test]
fn l05_an_open_breaker_spills_without_another_attempt() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world.wait_for_spilled(1);
    world.log(1..4);
    world.wait_for_spilled(4);
    assert!(world.sim.now() < SECOND, "nobody waited for a retry");
    assert_eq!(world.calls().len(), 1);
    assert!(world.metrics().is_circuit_open);
    world.check();
}

/// Event 0 fails and waits for its retry; event 1 is on its way for long, event 2 fills the queue.
fn requeue_fails(world: &mut World, config: LoggerConfigBuilder) {
    world.start(config.queue_capacity(1).batch_size(1).max_batch_wait_ms(10));
    world.log([0]);
    world.run_for(ms(100));
    world.log([1]);
    world.run_for(ms(100));
    world.log([2]);
    world.run_for(2 * SECOND);
}

fn slow_after_the_first() -> World {
    World::scripted(1, |_, call| match call {
        1 => Script::Refuse,
        2 => Script::slow(Duration::from_secs(10)),
        _ => Script::Serve,
    })
}

#[test]
fn l05_a_retry_that_finds_the_queue_full_spills() {
    let mut world = slow_after_the_first();
    requeue_fails(&mut world, spilling());
    assert_eq!(world.metrics().events_spilled, 1);
    world.wait_until_drained();
    world.assert_arrived(0..3);
    world.check();
}

#[test]
fn l05_stragglers_of_a_shutdown_spill() {
    let mut world = World::scripted(1, |_, _| Script::Hang);
    world.start(spilling().batch_size(1));
    world.log(0..5);
    world.run_for(SECOND);
    let report = world.shut_down();
    assert_eq!((report.account.spilled, report.account.accepted), (5, 5));
    world.check_report(&report);
}

#[test]
fn l06_without_a_spill_each_trigger_gives_its_reason_and_raises_the_counter() {
    // A full queue.
    let mut world = World::new(1);
    let _opened = world.open(memory_only().queue_capacity(2));
    world.log(0..2);
    let refused = world.logger().log(event(2)).unwrap_err();
    assert_eq!(refused.reason, "queue_full");
    assert_eq!(refused.event.details, event(2).details, "it is handed back");
    assert_eq!(world.losses.reasons(), ["queue_full"]);
    world.check();

    // Exhausted retries.
    let mut world = World::down(1);
    world.start(memory_only().max_retries(0));
    world.log([0]);
    world.run_for(SECOND);
    assert_eq!(world.losses.reasons(), ["retries_exhausted"]);
    world.check();

    // A retry that finds the queue full.
    let mut world = slow_after_the_first();
    requeue_fails(&mut world, memory_only());
    assert_eq!(world.losses.reasons(), ["retry_requeue_failed"]);
    world.check();

    // The same, and the breaker is open.
    let mut world = World::down(1);
    requeue_fails_while_open(&mut world);
    assert_eq!(world.losses.reasons(), ["circuit_open"]);
    world.check();

    // Shutdown.
    let mut world = World::down(1);
    world.start(memory_only().batch_size(1).circuit_breaker_threshold(1));
    world.log([0]);
    world.run_for(ms(100));
    world.log([1]);
    let report = world.shut_down();
    assert_eq!(
        world.losses.reasons(),
        ["shutdown_pending_retry", "shutdown_queued"]
    );
    assert_eq!(report.metrics.events_failed, 2);
    world.check_report(&report);
}

fn requeue_fails_while_open(world: &mut World) {
    world.start(
        memory_only()
            .queue_capacity(1)
            .batch_size(1)
            .circuit_breaker_threshold(1),
    );
    world.log([0]);
    world.run_for(ms(100));
    world.log([1]);
    world.run_for(2 * SECOND);
}

#[test]
fn l10_a_batch_answered_in_part_counts_each_event_for_what_became_of_it() {
    let mut world = World::scripted(1, |_, call| match call {
        1 => Script::Partial(vec![1]),
        _ => Script::Serve,
    });
    let opened = world.open(spilling().circuit_breaker_threshold(2));
    world.log(0..2);
    world.logger().log(event_saying("REJECT me")).unwrap();
    world.log([3]);
    world.run(opened);
    world.run_for(ms(500));
    let metrics = world.metrics();
    assert_eq!((metrics.events_sent, world.account().retrying), (2, 1));
    assert_eq!(world.account().dead_lettered, 1);
    let aside = world.lines(REJECTED);
    assert_eq!(aside.len(), 1);
    assert!(aside[0].contains("REJECT me"), "{aside:?}");
    world.wait_until_drained();
    assert_eq!(world.metrics().events_sent, 3);
    world.assert_arrived([0, 1, 3]);
    assert_eq!(world.losses.reasons(), ["rejected"]);
    world.check();
}

#[test]
fn a06_rejected_events_are_neither_retried_nor_counted_by_the_breaker() {
    for config in [spilling(), memory_only()] {
        let mut world = World::new(1);
        world.start(config.circuit_breaker_threshold(1).batch_size(3));
        for number in 0..10 {
            world
                .logger()
                .log(event_saying(format!("REJECT {number}")))
                .unwrap();
            world.run_for(ms(200));
            assert!(!world.metrics().is_circuit_open);
            assert_eq!(world.logger().health(), LoggerHealth::Up);
        }
        world.run_for(10 * MINUTE);
        assert_eq!(world.calls().len(), 10, "one attempt each");
        assert_eq!(world.losses.by_reason()["rejected"], 10);
        world.check();
    }
}

#[test]
fn l11_flush_is_true_only_when_nothing_is_queued_sent_or_waiting_for_a_retry() {
    // One event: its first request takes three seconds and is refused, its retry waits ten.
    let mut world = World::scripted(1, |_, call| match call {
        1 => Script::After(Duration::from_secs(3), Box::new(Script::Refuse)),
        _ => Script::slow(Duration::from_secs(1)),
    });
    world.start(
        memory_only()
            .base_retry_delay_ms(10_000)
            .max_retry_delay_ms(10_000),
    );
    let flush = |world: &mut World, limit: Duration| {
        let logger = world.logger();
        world.block_on(async move { logger.flush(limit).await })
    };
    let places = |world: &World| (world.account().in_flight, world.account().retrying);
    assert!(flush(&mut world, Duration::ZERO), "nothing was logged yet");
    world.log([0]);
    assert!(!flush(&mut world, Duration::ZERO), "it is queued");
    assert_eq!((world.calls().len(), world.metrics().queue_depth), (0, 1));
    assert!(!flush(&mut world, SECOND), "it is on its way");
    assert_eq!(world.sim.now(), SECOND, "and it gave up in time");
    assert_eq!(places(&world), (1, 0));
    world.run_for(3 * SECOND);
    assert_eq!(places(&world), (0, 1), "nothing but a retry is left");
    assert!(!flush(&mut world, SECOND), "it waits for its retry");
    assert_eq!(places(&world), (0, 1));
    assert!(flush(&mut world, MINUTE));
    assert_eq!(
        (world.account().delivered, world.account().in_flight),
        (1, 0)
    );
    world.check();
}

#[test]
fn l11_flush_waits_until_unsent_events_are_on_disk() {
    seeds!(20, |seed| {
        let mut world = World::down(seed);
        world.start(spilling().circuit_breaker_threshold(1));
        for round in 0..5 {
            world.log(round * 10..round * 10 + 10);
            let logger = world.logger();
            assert!(world.block_on(async move { logger.flush(MINUTE).await }));
            let account = world.account();
            assert_eq!((account.in_flight, account.retrying), (0, 0), "{account:?}");
        }
        world.check();
    });
}

#[test]
fn l12_logging_after_shutdown_is_refused_with_its_reason() {
    let mut world = World::new(1);
    world.start(spilling());
    world.log([0]);
    world.run_for(SECOND);
    world.shut_down();
    let refused = world.logger().log(event(1)).unwrap_err();
    assert_eq!(refused.reason, "shutdown_in_progress");
    let logger = world.logger();
    let refused = world.block_on(async move { logger.log_durable(event(2)).await });
    assert_eq!(refused.unwrap_err().as_str(), "shutdown_in_progress");
    let logger = world.logger();
    let refused = world.block_on(async move { logger.log_when_room(event(3)).await });
    assert_eq!(refused.unwrap_err().reason, "shutdown_in_progress");
    assert_eq!(world.losses.reasons(), ["shutdown_in_progress"; 3]);
    world.check();
}

#[test]
fn l13_each_invalid_value_is_refused_with_a_message_that_names_its_field() {
    type Set = fn(LoggerConfigBuilder, i64) -> LoggerConfigBuilder;
    let rows: [(&str, Set, i64); 12] = [
        ("queue-capacity", LoggerConfigBuilder::queue_capacity, 0),
        ("max-retries", LoggerConfigBuilder::max_retries, -1),
        (
            "base-retry-delay-ms",
            LoggerConfigBuilder::base_retry_delay_ms,
            -1,
        ),
        (
            "max-retry-delay-ms",
            LoggerConfigBuilder::max_retry_delay_ms,
            -1,
        ),
        (
            "circuit-breaker-threshold",
            LoggerConfigBuilder::circuit_breaker_threshold,
            0,
        ),
        (
            "circuit-breaker-reset-ms",
            LoggerConfigBuilder::circuit_breaker_reset_ms,
            0,
        ),
        (
            "replay-interval-ms",
            LoggerConfigBuilder::replay_interval_ms,
            999,
        ),
        (
            "max-spillover-events",
            LoggerConfigBuilder::max_spillover_events,
            0,
        ),
        (
            "max-spillover-size",
            LoggerConfigBuilder::max_spillover_size_bytes,
            0,
        ),
        ("batch-size", LoggerConfigBuilder::batch_size, 0),
        ("sender-threads", LoggerConfigBuilder::sender_threads, 0),
        (
            "max-batch-wait-ms",
            LoggerConfigBuilder::max_batch_wait_ms,
            -1,
        ),
    ];
    for (field, set, value) in rows {
        let error = set(LoggerConfig::builder(), value).build().unwrap_err();
        let named = error
            .problems()
            .iter()
            .any(|p| p.starts_with(&format!("{field} is {value}")));
        assert!(named, "{field}: {error}");
        assert!(
            set(LoggerConfig::builder(), 5_000).build().is_ok() || field == "base-retry-delay-ms"
        );
    }
    let crossed = LoggerConfig::builder()
        .base_retry_delay_ms(2)
        .max_retry_delay_ms(1)
        .build();
    let error = crossed.unwrap_err().to_string();
    assert!(
        error.contains("base-retry-delay-ms") && error.contains("max-retry-delay-ms"),
        "{error}"
    );
}

#[test]
fn a_disabled_logger_counts_ignored_events_and_loses_none() {
    let mut world = World::new(1);
    world.start(spilling().enabled(false));
    world.log(0..3);
    let logger = world.logger();
    let durable = world.block_on(async move { logger.log_durable(event(3)).await });
    drop(durable);
    world.run_for(MINUTE);
    assert_eq!(world.metrics().events_ignored, 4);
    assert_eq!(
        (world.metrics().events_failed, world.losses.all()),
        (0, Vec::new())
    );
    assert_eq!((world.account().accepted, world.calls().len()), (0, 0));
}

/// A01: the identity holds in every snapshot, whatever the API does and whoever runs first.
#[test]
fn a01_the_books_balance_at_every_step() {
    seeds!(10, |seed| {
        let mut world = World::scripted(seed, |batch, call| match call % 7 {
            0 | 1 => Script::Refuse,
            2 => Script::Partial((0..batch.len() / 2).collect()),
            3 => Script::AnswerLost,
            4 => Script::slow(Duration::from_millis(300)),
            _ => Script::Serve,
        });
        let config = spilling()
            .queue_capacity(8)
            .batch_size(4)
            .circuit_breaker_reset_ms(500);
        world.start(config.max_spillover_events(30).replay_interval_ms(1_000));
        let logger = world.logger();
        for number in 0..200 {
            let text = if number % 17 == 0 {
                "REJECT ".to_owned()
            } else {
                String::new()
            };
            logger
                .log(event_saying(format!("{text}event {number}")))
                .ok();
            for _ in 0..5 {
                world.sim.step();
                let account = logger.account();
                assert!(account.is_balanced(), "{account:?}");
            }
            if number % 20 == 0 {
                world.check();
            }
        }
        world.wait_until_drained();
        assert_eq!(world.account().accepted, 200);
        world.check();
    });
}

#[test]
fn a_handle_can_be_shared_and_every_clone_logs_to_the_same_logger() {
    let mut world = World::new(1);
    world.start(memory_only());
    let other = world.logger().clone();
    other.log(event(0)).unwrap();
    let sink: Arc<dyn tidegate_logger::EventSink> = Arc::new(other);
    sink.log(event(1)).unwrap();
    world.wait_for_stored(2);
    assert_eq!(world.account().accepted, 2);
}
