//! The breaker: L07–L09, without sockets.

use std::time::Duration;

use tidegate_testkit::Script;

use crate::fixture::{SECOND, World, event, memory_only, spilling};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Covers W18, and the reference's counting per event.
#[test]
fn l07_the_breaker_opens_after_so_many_failed_requests_in_a_row_and_a_batch_is_one() {
    let mut world = World::down(1);
    let opened = world.open(spilling().circuit_breaker_threshold(3).batch_size(10));
    world.log(0..20);
    world.run(opened);
    world.run_for(ms(500));
    assert_eq!(world.calls().len(), 2, "two batches of ten");
    assert!(
        !world.metrics().is_circuit_open,
        "twenty events are two failures"
    );
    world.log([20]);
    world.run_for(ms(100));
    assert_eq!(world.calls().len(), 3);
    assert!(world.metrics().is_circuit_open);
    world.check();
}

#[test]
fn l07_a_success_in_between_starts_the_count_anew() {
    let mut world = World::scripted(1, |_, call| {
        if call % 3 == 0 {
            Script::Serve
        } else {
            Script::Refuse
        }
    });
    world.start(
        memory_only()
            .circuit_breaker_threshold(3)
            .batch_size(1)
            .max_retries(100),
    );
    for number in 0..30 {
        world.log([number]);
        world.run_for(ms(50));
        assert!(!world.metrics().is_circuit_open);
    }
    world.wait_for_stored(30);
    world.check();
}

#[test]
fn l07_a_batch_with_a_transient_failure_in_it_is_one_failed_request() {
    let mut world = World::scripted(1, |_, _| Script::Partial(vec![0]));
    let opened = world.open(spilling().circuit_breaker_threshold(2).batch_size(5));
    world.log(0..10);
    world.run(opened);
    world.run_for(ms(100));
    assert_eq!(world.calls().len(), 2);
    assert!(
        world.metrics().is_circuit_open,
        "a steady partial failure opens it"
    );
    assert_eq!(world.metrics().events_sent, 8);
    world.check();
}

#[test]
fn l08_after_the_reset_time_exactly_one_probe_goes_out_and_decides() {
    for (seed, config) in [(1, spilling()), (2, memory_only())] {
        // The probe takes a while, so that a second one would have the time to go out.
        let mut world = World::scripted(seed, |_, call| match call {
            1 => Script::Refuse,
            2 => Script::After(Duration::from_secs(1), Box::new(Script::Refuse)),
            _ => Script::After(Duration::from_secs(1), Box::new(Script::Serve)),
        });
        world.start(
            config
                .circuit_breaker_threshold(1)
                .sender_threads(4)
                .batch_size(1),
        );
        world.log(0..10);
        world.run_for(29 * SECOND);
        assert_eq!(
            world.calls().len(),
            1,
            "before the reset time nothing goes out"
        );
        assert!(world.metrics().is_circuit_open);
        world.log(10..20);
        world.run_for(2 * SECOND);
        assert_eq!(world.calls().len(), 2, "one probe");
        world.run_for(SECOND);
        assert!(
            world.metrics().is_circuit_open,
            "a failed probe opens it again"
        );
        world.run_for(27 * SECOND);
        assert_eq!(world.calls().len(), 2, "and the time starts anew");
        world.run_for(2 * SECOND);
        assert_eq!(world.calls().len(), 3, "one probe");
        world.wait_until_drained();
        assert!(!world.metrics().is_circuit_open, "a good one closes it");
        world.assert_arrived(0..20);
        world.check();
    }
}

/// Covers W13: failed replay counts, too.
#[test]
fn l08_replay_is_a_probe_as_well_and_its_failures_count() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(2).max_retries(0));
    world.log([0]);
    // The first request fails and is spilled; its replay fails, and that opens the breaker.
    world.run_for(20 * SECOND);
    assert_eq!(world.calls().len(), 2, "{:?}", world.calls());
    assert!(world.metrics().is_circuit_open);
    world.check();
}

/// Covers W8: in the reference these events vanish.
#[test]
fn l09_with_the_breaker_open_no_spill_and_a_full_queue_every_event_is_reported() {
    let mut world = World::down(1);
    world.start(memory_only().queue_capacity(5).circuit_breaker_threshold(1));
    world.log([0]);
    world.run_for(ms(100));
    assert!(world.metrics().is_circuit_open);
    let taken = world.logger().log_all((1..30).map(event));
    assert_eq!(taken, 5, "as many as fit");
    assert_eq!(world.losses.by_reason()["queue_full"], 24);
    world.run_for(2 * SECOND);
    // The retry of event 0 found the queue full.
    assert_eq!(world.losses.by_reason()["circuit_open"], 1);
    world.api.up();
    world.wait_until_drained();
    assert_eq!(
        (world.account().delivered, world.account().lost.total()),
        (5, 25)
    );
    world.check();
}
