//! Replay: L30–L38 and L41, through the logger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_logger::LoggerHealth;
use tidegate_logger::spill::{ACTIVE, BOOKS, CORRUPT, LOCK, REJECTED, REPLAY, inspect};
use tidegate_sim::{scaled, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, details, dir, event, event_saying, spilling, texts};

/// A world with these events on disk, an API that works, and no process.
fn left_behind(seed: u64, count: u64) -> World {
    let mut world = World::new(seed);
    world.leave_behind(0..count);
    world
}

/// A line as a Java client writes it.
fn foreign_line(number: u64) -> String {
    format!(
        "{{\"applicationId\":\"pet-resort-api\",\"correlationId\":\"a1b2c3d4\",\
         \"processName\":\"CreateBooking\",\"processStatus\":\"STEP\",\"step\":\"BookingCreated\",\
         \"details\":\"event {number}\",\"targetSystem\":\"PET_RESORT\",\
         \"originatingSystem\":\"PET_RESORT\",\"timestamp\":\"2026-06-01T10:15:30.123Z\",\
         \"userId\":\"system\"}}\n"
    )
}

#[test]
fn l30_replay_starts_without_new_traffic_once_the_breaker_allows_it_and_not_before() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log(0..10);
    world.wait_for_spilled(10);
    let opened = world.calls()[0].at;
    world.api.up();
    world.run_for(29 * SECOND);
    assert_eq!(world.calls().len(), 1, "the breaker is open");
    world.run_for(2 * SECOND);
    assert_eq!(world.calls()[1].at - opened, 30 * SECOND);
    world.assert_arrived(0..10);
    world.check();
}

#[test]
fn l30_a_new_process_sends_the_events_of_an_earlier_one_at_once() {
    let mut world = left_behind(1, 10);
    world.start(spilling());
    world.run_for(SECOND);
    assert_eq!(world.arrived(), texts(0..10));
    world.check();
}

#[test]
fn l31_a_full_drain_removes_the_files_and_the_counters_converge() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log(0..500);
    world.wait_for_spilled(500);
    world.api.up();
    world.wait_until_drained();
    world.run_for(MINUTE);
    assert_eq!(world.files(), [BOOKS, LOCK]);
    let metrics = world.metrics();
    assert_eq!(
        (metrics.events_spilled, metrics.events_replayed),
        (500, 500)
    );
    assert_eq!((metrics.events_sent, metrics.events_queued), (0, 500));
    world.assert_arrived(0..500);
    world.check();
}

/// Covers W12: replay uses the batch endpoint.
#[test]
fn l31_a_backlog_goes_out_in_batches_and_not_one_by_one() {
    let mut world = left_behind(1, 1_000);
    world.start(spilling());
    world.wait_until_drained();
    let calls = world
        .calls()
        .iter()
        .filter(|call| call.details.len() > 1)
        .count();
    assert!(calls <= 20, "{calls} requests for 1,000 events");
    world.assert_arrived(0..1_000);
}

/// Covers W15: nothing is rewritten, the cursor moves.
#[test]
fn l32_after_a_failure_at_line_two_of_three_exactly_lines_two_and_three_remain() {
    let is_healed = Arc::new(AtomicBool::new(false));
    let healed = Arc::clone(&is_healed);
    let mut world = World::scripted(1, move |batch, _| {
        let is_second = batch.len() == 1 && details(&batch[0].json) == "event 1";
        if is_second && !healed.load(Ordering::SeqCst) {
            Script::Refuse
        } else {
            Script::Serve
        }
    });
    world.leave_behind(0..3);
    world.start(spilling().batch_size(1));
    world.run_for(5 * SECOND);
    assert_eq!(world.arrived(), texts([0]));
    let before = world.content(REPLAY);
    let files = inspect(&world.disk(), dir()).unwrap().files;
    let snapshot = files.iter().find(|file| file.name == REPLAY).unwrap();
    assert_eq!((snapshot.replayed, snapshot.lines), (1, 2));
    assert_eq!(world.account().spilled, 2);
    world.check();
    // A new process sends exactly what is left, and the snapshot was never rewritten.
    world.kill();
    assert_eq!(world.content(REPLAY), before);
    let sent = world.calls().len();
    is_healed.store(true, Ordering::SeqCst);
    world.start(spilling().batch_size(1));
    world.wait_until_drained();
    let later: Vec<String> = world
        .calls()
        .into_iter()
        .skip(sent)
        .flat_map(|call| call.details)
        .collect();
    assert_eq!(later, texts([1, 2]));
    assert_eq!(world.arrived(), texts(0..3));
    world.check();
}

#[test]
fn l32_a_batch_of_the_replay_that_is_stored_in_part_goes_on_at_the_first_failure() {
    let mut world = World::scripted(1, |batch, _| {
        if batch.len() == 3 {
            Script::Partial(vec![1, 2])
        } else {
            Script::Serve
        }
    });
    world.leave_behind(0..3);
    world.start(spilling());
    world.wait_until_drained();
    let sent: Vec<Vec<String>> = world.calls().into_iter().map(|call| call.details).collect();
    assert_eq!(sent[sent.len() - 2..], [texts(0..3), texts(1..3)]);
    assert_eq!((world.arrived(), world.api.duplicates()), (texts(0..3), 0));
    world.check();
}

#[test]
fn l33_events_spilled_during_replay_are_neither_lost_nor_sent_twice() {
    seeds!(20, |seed| {
        let mut world = World::scripted(seed, |_, _| Script::slow(Duration::from_millis(30)));
        world.leave_behind(0..300);
        world.start(spilling());
        for number in 300..400 {
            world.log_durable(event(number));
        }
        world.wait_until_drained();
        assert_eq!(
            world.arrived(),
            texts(0..400),
            "each of them, in their order"
        );
        assert_eq!(world.api.duplicates(), 0);
        world.check();
    });
}

/// Covers W4: the reference glues the next good event to the torn one and loses it.
#[test]
fn l34_a_torn_last_line_is_set_aside_and_no_good_event_is_touched() {
    // A snapshot is in place, whose replay fails: so what comes next goes to the torn file.
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log_durable(event(0));
    world.wait(MINUTE, "its replay has failed", |logger| {
        logger.metrics().is_circuit_open
    });
    world.log_all_durably(1..3);
    world.shut_down();
    world.new_process();
    let torn = b"{\"applicationId\":\"pet-resort-api\",\"details\":\"half a li";
    let mut bytes = world.content(ACTIVE);
    bytes.extend_from_slice(torn);
    world.put(ACTIVE, &bytes);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log(3..6);
    world.wait_for_spilled(6);
    let lines = world.lines(ACTIVE);
    let found: Vec<String> = lines.iter().map(|line| details(line.as_bytes())).collect();
    assert_eq!(found, texts(1..6), "behind the good lines of the torn file");
    world.check();
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived(0..6);
    assert_eq!(
        world.content(CORRUPT),
        [&torn[..], b"\n"].concat(),
        "byte for byte"
    );
    world.check();
}

/// Covers W5 and W10: in the reference nothing of the file is delivered, for ever.
#[test]
fn l35_one_invalid_byte_among_1001_lines_costs_one_line_that_is_set_aside_and_reported() {
    let mut world = left_behind(1, 1_002);
    let mut bytes = world.content(ACTIVE);
    let at = bytes
        .windows(11)
        .position(|w| w == b"\"event 500\"")
        .unwrap();
    bytes[at + 3] = 0xff;
    let line: Vec<u8> = bytes.split(|b| *b == b'\n').nth(500).unwrap().to_vec();
    world.put(ACTIVE, &bytes);
    world.start(spilling());
    assert_eq!(
        world.account().spilled,
        1_002,
        "the one that cannot be read counts"
    );
    world.wait_until_drained();
    world.run_for(MINUTE);
    world.assert_arrived((0..1_002).filter(|n| *n != 500));
    assert_eq!(
        world.content(CORRUPT),
        [&line[..], b"\n"].concat(),
        "byte for byte"
    );
    assert_eq!(world.losses.reasons(), ["spillover_corrupt"]);
    assert_eq!(world.account().dead_lettered, 1);
    assert_eq!(world.files(), [BOOKS, CORRUPT, LOCK]);
    world.check();
}

#[test]
fn l35_the_same_in_a_file_that_a_java_client_left() {
    let mut world = World::new(1);
    let mut bytes: Vec<u8> = (0..1_002)
        .flat_map(|n| foreign_line(n).into_bytes())
        .collect();
    let at = bytes
        .windows(11)
        .position(|w| w == b"\"event 500\"")
        .unwrap();
    bytes[at + 3] = 0xff;
    world.put(ACTIVE, &bytes);
    world.start(spilling());
    world.wait_until_drained();
    world.run_for(MINUTE);
    world.assert_arrived((0..1_002).filter(|n| *n != 500));
    assert_eq!(world.losses.reasons(), ["spillover_corrupt"]);
    assert_eq!(world.content(CORRUPT).len(), foreign_line(500).len());
    let account = world.account();
    assert_eq!(
        (account.delivered, account.dead_lettered),
        (1_001, 1),
        "{account:?}"
    );
    world.check();
}

#[test]
fn l35_a_restart_after_the_corrupt_line_and_before_the_end_closes_the_books_too() {
    let mut world = World::scripted(1, |_, _| Script::slow(Duration::from_millis(300)));
    world.leave_behind(0..1_000);
    let mut bytes = world.content(ACTIVE);
    let at = bytes.windows(9).position(|w| w == b"\"event 5\"").unwrap();
    bytes[at + 3] = 0xff;
    world.put(ACTIVE, &bytes);
    world.start(spilling());
    world.wait_for_stored(500);
    world.check();
    world.run_for(Duration::from_millis(150));
    world.kill();
    world.start(spilling());
    world.check();
    world.wait_until_drained();
    world.run_for(MINUTE);
    world.assert_arrived((0..1_000).filter(|n| *n != 5));
    assert_eq!(
        world.losses.reasons(),
        ["spillover_corrupt"],
        "once over both processes"
    );
    let account = world.account();
    assert_eq!(
        (account.delivered, account.dead_lettered, account.spilled),
        (999, 1, 0)
    );
    world.check();
}

/// Covers W11: in the reference nothing behind it is delivered, for ever.
#[test]
fn l36_a_rejected_event_at_the_head_of_a_thousand_holds_nobody_up() {
    for batch_size in [1, 50] {
        let mut world = World::down(1);
        world.start(spilling().circuit_breaker_threshold(1));
        world.logger().log(event_saying("REJECT this")).unwrap();
        world.wait_for_spilled(1);
        world.log_all_durably(1..1_000);
        world.shut_down();
        world.new_process();
        world.api.up();
        world.start(spilling().batch_size(batch_size));
        world.wait_until_drained();
        world.assert_arrived(1..1_000);
        let aside = world.lines(REJECTED);
        assert_eq!(aside.len(), 1);
        let line: serde_json::Value = serde_json::from_str(&aside[0]).unwrap();
        assert_eq!(line["event"]["details"], "REJECT this");
        assert_eq!(line["code"], "event.invalid");
        assert_eq!(world.losses.reasons(), ["rejected"]);
        let reported = &world.losses.all()[0];
        assert_eq!(reported.details.as_deref(), Some("REJECT this"));
        assert_eq!(
            Some(line["_id"].as_str().unwrap().to_owned()),
            reported.id.map(|id| id.to_string())
        );
        let account = world.account();
        assert_eq!((account.delivered, account.dead_lettered), (999, 1));
        assert!(!world.metrics().is_circuit_open);
        world.check();
    }
}

#[test]
fn l37_a_wrong_token_or_address_keeps_all_events_and_correcting_it_delivers_all() {
    for status in [401, 403, 404] {
        let is_right = Arc::new(AtomicBool::new(false));
        let right = Arc::clone(&is_right);
        let mut world = World::scripted(1, move |_, _| {
            if right.load(Ordering::SeqCst) {
                Script::Serve
            } else {
                Script::status(status)
            }
        });
        world.start(spilling().queue_capacity(1_000));
        world.log(0..200);
        world.run_for(10 * MINUTE);
        assert_eq!(world.account().spilled, 200, "{status}");
        assert!(
            matches!(world.logger().health(), LoggerHealth::Degraded(_)),
            "{status}"
        );
        assert_eq!(world.losses.all(), []);
        world.check();
        is_right.store(true, Ordering::SeqCst);
        world.wait_until_drained();
        world.assert_arrived(0..200);
        assert_eq!(world.logger().health(), LoggerHealth::Up);
        world.check();
    }
}

/// Covers W14: what is sent again carries the id it had.
#[test]
fn l38_after_a_kill_between_send_and_cursor_each_event_is_stored_once() {
    let mut duplicates = 0;
    for seed in 0..scaled(400) {
        // Slower than it is written down how far replay has come.
        let mut world = World::scripted(seed, |_, _| Script::slow(Duration::from_millis(30)));
        world.leave_behind(0..1_000);
        for target in [150, 400, 401, 700, 999] {
            world.start(spilling());
            world.wait_for_stored(target);
            if seed % 2 == 0 {
                world.kill();
            } else {
                world.power_cut();
            }
        }
        world.start(spilling());
        world.wait_until_drained();
        assert_eq!(world.arrived(), texts(0..1_000));
        duplicates += world.api.duplicates();
        world.check();
    }
    assert!(
        duplicates > 0,
        "no scenario was killed between send and cursor"
    );
}

#[test]
fn l38_events_whose_answer_was_lost_are_sent_again_under_their_id() {
    let mut world = World::scripted(1, |_, call| {
        if call % 2 == 1 {
            Script::AnswerLost
        } else {
            Script::Serve
        }
    });
    world.start(spilling().batch_size(5));
    world.log(0..100);
    world.wait_until_drained();
    world.assert_arrived(0..100);
    assert!(world.api.duplicates() > 0);
    world.check();
}

/// Covers W16 for what was spilled by the breaker.
#[test]
fn l41_events_that_were_all_spilled_by_the_breaker_arrive_in_their_order() {
    seeds!(20, |seed| {
        let mut world = World::down(seed);
        world.start(
            spilling()
                .batch_size(3)
                .circuit_breaker_threshold(2)
                .queue_capacity(1_000),
        );
        for number in 0..100 {
            world.log([number]);
            world.run_for(Duration::from_millis(number % 7));
        }
        world.wait_for_spilled(100);
        world.api.up();
        world.wait_until_drained();
        assert_eq!(world.arrived(), texts(0..100));
        world.check();
    });
}

#[test]
fn l41_events_that_were_all_spilled_by_a_full_queue_and_the_breaker_arrive_in_their_order() {
    seeds!(10, |seed| {
        let mut world = World::down(seed);
        let opened = world.open(
            spilling()
                .batch_size(3)
                .circuit_breaker_threshold(1)
                .queue_capacity(10),
        );
        world.log(0..20);
        world.run(opened);
        world.wait_for_spilled(20);
        world.api.up();
        world.wait_until_drained();
        assert_eq!(world.arrived(), texts(0..20));
        world.check();
    });
}

#[test]
fn l41_events_that_were_all_spilled_after_their_retries_arrive_in_their_order() {
    seeds!(10, |seed| {
        let mut world = World::down(seed);
        world.start(
            spilling()
                .batch_size(1)
                .max_retries(1)
                .circuit_breaker_threshold(1_000),
        );
        world.log(0..5);
        world.wait_for_spilled(5);
        world.api.up();
        world.wait_until_drained();
        assert_eq!(world.arrived(), texts(0..5));
        world.check();
    });
}

/// The memory part of W2: bounded, and said so.
#[test]
fn a08_a_kill_takes_at_most_what_was_in_memory_and_the_next_process_says_how_much() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log_all_durably(0..20);
    world.run_for(2 * SECOND);
    world.kill();
    world.api.up();
    world.start(spilling());
    world.wait_until_drained();
    world.assert_arrived(0..20);
    let report = world.shut_down();
    assert_eq!(report.unverifiable, 0, "nothing was in memory");
    world.check_report(&report);
}
