//! Shutdown: L50, L51, L53, in simulation.

use std::time::Duration;

use tidegate_logger::OnFull;
use tidegate_logger::spill::ACTIVE;
use tidegate_sim::{scaled, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, event, memory_only, spilling, texts};

/// Covers W1.
#[test]
fn l50_ten_thousand_queued_events_with_the_api_down_are_all_on_disk_afterwards() {
    for script in [
        Script::Refuse,
        Script::Hang,
        Script::TimeOut(Duration::from_secs(30)),
    ] {
        let played = script.clone();
        let mut world = World::scripted(1, move |_, _| played.clone());
        let opened = world.open(spilling());
        world.log(0..10_000);
        world.run(opened);
        let began = world.sim.now();
        let report = world.shut_down();
        assert!(world.sim.now() - began <= 12 * SECOND, "{script:?}");
        assert_eq!(report.account.spilled, 10_000, "{script:?}: {report:?}");
        assert_eq!(world.lines(ACTIVE).len(), 10_000);
        assert_eq!(world.losses.all(), []);
        world.check_report(&report);
    }
}

/// Covers W1: the reference loses 29,899 of 40,000 in these twenty runs.
#[test]
fn l50_twenty_runs_of_two_thousand_lose_nothing() {
    for seed in 0..20 {
        let mut world = World::down(seed);
        let opened = world.open(spilling().circuit_breaker_threshold(5));
        world.log(0..2_000);
        world.run(opened);
        world.run_for(Duration::from_millis(seed * 37));
        let report = world.shut_down();
        assert_eq!(report.account.spilled, 2_000, "{report:?}");
        world.check_report(&report);
        world.new_process();
        world.api.up();
        world.start(spilling());
        world.wait_until_drained();
        world.assert_arrived(0..2_000);
        world.check();
    }
}

#[test]
fn l50_shutdown_sends_queued_events_while_the_api_works() {
    let mut world = World::scripted(1, |_, _| Script::slow(Duration::from_millis(10)));
    let opened = world.open(spilling());
    world.log(0..1_000);
    world.run(opened);
    let report = world.shut_down();
    assert_eq!(
        (report.account.delivered, report.account.spilled),
        (1_000, 0)
    );
    world.check_report(&report);
}

/// A10: a call that never returns holds nobody up beyond the shutdown timeout. Its events may have
/// arrived, and are sent again under their ids.
#[test]
fn a10_requests_that_hang_at_shutdown_are_given_up_and_their_events_spilled() {
    let mut world = World::scripted(1, |_, call| {
        if call <= 3 {
            Script::Hang
        } else {
            Script::Serve
        }
    });
    world.start(spilling().batch_size(5).sender_threads(3));
    world.log(0..15);
    world.run_for(SECOND);
    let began = world.sim.now();
    let report = world.shut_down();
    assert!(world.sim.now() - began <= 11 * SECOND);
    assert_eq!(report.account.spilled, 15);
    world.check_report(&report);
    world.new_process();
    world.start(spilling());
    world.wait_until_drained();
    world.assert_arrived(0..15);
    world.check();
}

#[test]
fn a10_a_replay_that_hangs_at_shutdown_keeps_its_events_on_disk() {
    let mut world = World::scripted(1, |_, _| Script::Hang);
    world.start(spilling());
    world.log_all_durably(0..10);
    world.run_for(SECOND);
    assert_eq!(world.calls().len(), 1, "the replay is on its way");
    let report = world.shut_down();
    assert_eq!(report.account.spilled, 10);
    world.check_report(&report);
}

/// The second half of W1: the reference loses 80 of 80.
#[test]
fn l51_events_that_wait_for_a_retry_at_shutdown_are_on_disk() {
    seeds!(scaled(200), |seed| {
        let mut world = World::down(seed);
        world.start(
            spilling()
                .circuit_breaker_threshold(1_000)
                .base_retry_delay_ms(20_000),
        );
        world.log(0..80);
        world.run_for(SECOND);
        assert_eq!(world.account().retrying, 80);
        let report = world.shut_down();
        assert_eq!(report.account.spilled, 80, "{report:?}");
        assert_eq!(world.lines(ACTIVE).len(), 80);
        world.check_report(&report);
    });
}

#[test]
fn l52_every_event_accepted_before_or_during_shutdown_is_delivered_or_on_disk() {
    seeds!(scaled(1_000), |seed| {
        let mut world = World::scripted(seed, |_, call| {
            if call % 2 == 0 {
                Script::Refuse
            } else {
                Script::slow(Duration::from_millis(3))
            }
        });
        world.start(spilling().queue_capacity(50).batch_size(5));
        let logger = world.logger();
        let application = world.logger();
        let clock = world.node.env().clock;
        let task = world.node.start("application", async move {
            for number in 0..400 {
                application.log(event(number)).ok();
                if number % 10 == seed % 10 {
                    clock.sleep(Duration::from_millis(1)).await;
                }
            }
        });
        drop(task);
        world.run_for(Duration::from_millis(seed % 40));
        let report = world.shut_down();
        // An event that is logged after the end is refused and counted, too.
        world.run_for(SECOND);
        let account = logger.account();
        assert!(account.is_balanced());
        assert_eq!(account.accepted, 400);
        assert_eq!(
            account.delivered + account.spilled + account.lost.total(),
            400,
            "{account:?}"
        );
        let refused = world.losses.by_reason();
        let is_refused = |r: &String| r == "shutdown_in_progress" || r == "spillover_queue_full";
        assert!(refused.keys().all(is_refused), "{refused:?}");
        assert!(report.account.accepted <= 400);
        world.check();
    });
}

#[test]
fn l53_without_a_spill_every_remaining_event_is_reported_with_its_reason() {
    let mut world = World::scripted(1, |_, call| {
        if call == 1 {
            Script::Refuse
        } else {
            Script::Hang
        }
    });
    world.start(memory_only().batch_size(10).base_retry_delay_ms(25_000));
    world.log(0..10);
    world.run_for(SECOND);
    world.log(10..40);
    world.run_for(SECOND);
    let report = world.shut_down();
    let reported = world.losses.by_reason();
    assert_eq!(reported["shutdown_pending_retry"], 10);
    assert_eq!(
        reported["shutdown_queued"], 30,
        "ten on their way, twenty queued"
    );
    assert_eq!(report.metrics.events_failed, 40);
    let mut lost: Vec<String> = world
        .losses
        .all()
        .into_iter()
        .filter_map(|t| t.details)
        .collect();
    let mut expect = texts(0..40);
    lost.sort();
    expect.sort();
    assert_eq!(lost, expect);
    world.check_report(&report);
}

#[test]
fn l53_a_caller_that_waits_for_room_at_shutdown_gets_the_event_back() {
    let mut world = World::scripted(1, |_, _| Script::Hang);
    world.start(
        memory_only()
            .on_full(OnFull::Block)
            .queue_capacity(1)
            .batch_size(1),
    );
    world.log([0]);
    world.run_for(SECOND);
    world.log([1]);
    let logger = world.logger();
    let refused = std::sync::Arc::new(std::sync::Mutex::new(None));
    let slot = std::sync::Arc::clone(&refused);
    let task = world.node.start("application", async move {
        *slot.lock().unwrap() = Some(logger.log_when_room(event(2)).await);
    });
    drop(task);
    world.run_for(SECOND);
    assert!(refused.lock().unwrap().is_none(), "it waits");
    let report = world.shut_down();
    let refused = refused.lock().unwrap().take().unwrap().unwrap_err();
    assert_eq!(refused.reason, "shutdown_in_progress");
    assert_eq!(report.account.accepted, 3);
    world.check_report(&report);
}

#[test]
fn l53_log_durable_fails_when_the_event_cannot_be_spilled_any_more() {
    let mut world = World::scripted(1, |_, _| Script::Hang);
    world.start(memory_only().batch_size(1));
    let logger = world.logger();
    let outcome = std::sync::Arc::new(std::sync::Mutex::new(None));
    let slot = std::sync::Arc::clone(&outcome);
    let task = world.node.start("application", async move {
        *slot.lock().unwrap() = Some(logger.log_durable(event(0)).await);
    });
    drop(task);
    world.run_for(SECOND);
    let report = world.shut_down();
    let reason = outcome.lock().unwrap().take().unwrap().unwrap_err();
    assert_eq!(reason.as_str(), "shutdown_queued");
    world.check_report(&report);
}

#[test]
fn dropping_the_last_handle_drains_as_shutdown_does() {
    for (script, delivered, spilled) in [(Script::Serve, 50, 0), (Script::Refuse, 0, 50)] {
        let mut world = World::scripted(1, move |_, _| script.clone());
        let opened = world.open(spilling());
        world.log(0..50);
        world.run(opened);
        world.let_go();
        let report = world.ended(MINUTE);
        assert_eq!(
            (report.account.delivered, report.account.spilled),
            (delivered, spilled)
        );
        world.check_report(&report);
    }
}
