//! The spill file: L20–L22, L25–L27, L29, through the logger.

use std::time::Duration;

use serde::Deserialize;
use tidegate_core::env::Disk;
use tidegate_logger::spill::{ACTIVE, BOOKS, CORRUPT, CURSOR, LOCK, REJECTED, REPLAY, inspect};
use tidegate_logger::{LoggerHealth, OnFull};
use tidegate_sim::{Fault, FaultKind, Operation, Survivors, scaled, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, details, dir, event, event_saying, spilling, texts};

/// The reader of an older client: it knows the documented fields and ignores the others.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct OlderEntry {
    correlation_id: String,
    process_name: String,
    process_status: String,
    step: String,
    details: String,
    timestamp: String,
    user_id: String,
}

#[test]
fn l20_the_directory_is_made_and_holds_one_documented_object_per_line() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world
        .logger()
        .log(event_saying("two\nlines, \"quoted\", 鯨"))
        .unwrap();
    world.wait_for_spilled(2);
    let entries: Vec<OlderEntry> = world
        .lines(ACTIVE)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let entry = |details: &str| OlderEntry {
        correlation_id: "a1b2c3d4".to_owned(),
        process_name: "CreateBooking".to_owned(),
        process_status: "STEP".to_owned(),
        step: "BookingCreated".to_owned(),
        details: details.to_owned(),
        timestamp: "2026-01-01T00:00:00.000Z".to_owned(),
        user_id: "system".to_owned(),
    };
    assert_eq!(
        entries,
        [entry("event 0"), entry("two\nlines, \"quoted\", 鯨")]
    );
    world.check();
}

/// Covers W6: the caps are configuration, and each event past them is reported.
#[test]
fn l21_the_event_cap_counts_lines_and_reports_each_event_past_it() {
    let mut world = World::down(1);
    world.start(
        spilling()
            .circuit_breaker_threshold(1)
            .max_spillover_events(10),
    );
    world.log(0..25);
    world.wait(MINUTE, "15 are reported", |logger| {
        logger.account().lost.total() == 15
    });
    assert_eq!(world.lines(ACTIVE).len(), 10);
    assert_eq!(world.losses.by_reason()["spillover_max_events"], 15);
    assert_eq!(world.metrics().events_spilled, 10);
    // They are the newest.
    let spilled: Vec<String> = world
        .lines(ACTIVE)
        .iter()
        .map(|l| details(l.as_bytes()))
        .collect();
    assert_eq!(spilled, texts(0..10));
    world.check();
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived(0..10);
    world.check();
}

#[test]
fn l21_the_size_cap_counts_bytes_of_utf_8_and_not_characters() {
    let fitting = |text: &str, cap: i64| {
        let mut world = World::down(1);
        world.start(
            spilling()
                .circuit_breaker_threshold(1)
                .max_spillover_size_bytes(cap),
        );
        for _ in 0..4 {
            world.logger().log(event_saying(text)).unwrap();
        }
        world.wait(MINUTE, "all are dealt with", |logger| {
            let account = logger.account();
            account.spilled + account.lost.total() == 4
        });
        let len = world.content(ACTIVE).len();
        assert!(
            len <= usize::try_from(cap).unwrap(),
            "{len} bytes under a cap of {cap}"
        );
        let lost = world
            .losses
            .by_reason()
            .get("spillover_max_size")
            .copied()
            .unwrap_or(0);
        assert_eq!(lost, world.account().lost.total());
        world.check();
        world.account().spilled
    };
    // A line is about 330 bytes and its details; the cap is for three with 300 bytes of details.
    let cap = 3 * 700;
    assert_eq!(fitting(&"x".repeat(300), cap), 3);
    // As many characters, and twice to four times the bytes.
    assert_eq!(fitting(&"ä".repeat(300), cap), 2);
    assert_eq!(fitting(&"鯨".repeat(300), cap), 1);
    assert_eq!(fitting(&"🐕".repeat(300), cap), 1);
}

/// A snapshot whose replay fails, and six more events in the active file; then the power goes.
fn snapshot_and_six() -> World {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log_durable(event(0));
    world.wait(MINUTE, "its replay has failed", |logger| {
        logger.metrics().is_circuit_open
    });
    world.log_all_durably(1..7);
    world.power_cut();
    world
}

#[test]
fn l22_after_a_restart_the_counters_equal_the_lines_and_bytes_of_the_active_file() {
    let mut world = snapshot_and_six();
    world.start(
        spilling()
            .circuit_breaker_threshold(1)
            .max_spillover_events(10),
    );
    assert_eq!(world.account().spilled, 7);
    let files = inspect(&world.disk(), dir()).unwrap().files;
    let active = files.iter().find(|file| file.name == ACTIVE).unwrap();
    assert_eq!(
        (active.lines, active.bytes),
        (6, world.content(ACTIVE).len() as u64)
    );
    // The lines that are there count under the cap.
    world.log(10..20);
    world.wait(MINUTE, "six are reported", |logger| {
        logger.account().lost.total() == 6
    });
    assert_eq!(world.losses.reasons(), ["spillover_max_events"; 6]);
    assert_eq!(world.lines(ACTIVE).len(), 10);
    world.check();
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived((0..7).chain(10..14));
    world.check();
}

#[test]
fn l22_the_size_cap_counts_events_of_an_earlier_process_too() {
    let mut world = snapshot_and_six();
    let len = i64::try_from(world.content(ACTIVE).len()).unwrap();
    world.start(
        spilling()
            .circuit_breaker_threshold(1)
            .max_spillover_size_bytes(len),
    );
    world.log([7]);
    world.wait(MINUTE, "it is reported", |logger| {
        logger.account().lost.total() == 1
    });
    assert_eq!(world.losses.reasons(), ["spillover_max_size"]);
    assert_eq!(world.lines(ACTIVE).len(), 6);
    world.check();
}

#[test]
fn l25_a_failed_sync_loses_no_event_promised_before_or_after_it() {
    seeds!(20, |seed| {
        let mut world = World::down(seed);
        world.start(spilling().circuit_breaker_threshold(1));
        world.log_all_durably(0..100);
        let kind = FaultKind::SyncDropsDirty;
        world.disk().fail(Fault {
            operation: Operation::Sync,
            path: ACTIVE.into(),
            nth: 1,
            kind,
        });
        world.log_durable(event(100));
        assert!(
            world
                .files()
                .iter()
                .any(|name| name == "eventlog-spillover.sealed-1.jsonl")
        );
        world.log_durable(event(101));
        world.check();
        world.power_cut();
        world.api.up();
        world.start(spilling());
        world.wait_until_drained();
        assert_eq!(world.arrived(), texts(0..102));
        world.check();
    });
}

#[test]
fn a06_a_disk_that_fails_twice_is_system_and_nothing_is_lost_in_silence() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log_durable(event(0));
    for nth in [1, 2] {
        let kind = FaultKind::SyncDropsDirty;
        world.disk().fail(Fault {
            operation: Operation::Sync,
            path: ACTIVE.into(),
            nth,
            kind,
        });
    }
    let logger = world.logger();
    let refused = world.block_on(async move { logger.log_durable(event(1)).await });
    assert_eq!(refused.unwrap_err().as_str(), "spillover_write_error");
    assert!(matches!(world.logger().health(), LoggerHealth::System(_)));
    world.run_for(SECOND);
    assert_eq!(world.losses.reasons(), ["spillover_write_error"]);
    // From now on it is a logger without a spill, which loses nothing in silence either.
    for number in 2..6 {
        world.logger().log(event(number)).ok();
    }
    world.run_for(10 * MINUTE);
    let report = world.shut_down();
    assert!(report.spill_failure.is_some());
    let account = &report.account;
    assert_eq!(
        (account.accepted, account.spilled, account.in_flight),
        (6, 1, 0),
        "{account:?}"
    );
    assert_eq!(
        i64::try_from(world.losses.all().len()).unwrap(),
        account.lost.total()
    );
    // The promised events are there for the next process.
    world.new_process();
    world.api.up();
    world.start(spilling());
    world.wait_until_drained();
    assert_eq!(world.arrived()[..1], texts([0]));
}

/// A06: with the directory given up, nothing is taken on that has no place to be.
#[test]
fn a06_without_a_disk_and_without_the_api_new_events_are_refused_until_the_api_is_back() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1).max_retries(100));
    world.run_for(SECOND);
    for nth in [1, 2] {
        world.disk().fail(Fault {
            operation: Operation::Sync,
            path: ACTIVE.into(),
            nth,
            kind: FaultKind::SyncDropsDirty,
        });
    }
    world.log([0]);
    world.wait(MINUTE, "the disk is given up", |logger| {
        matches!(logger.health(), LoggerHealth::System(_))
    });
    assert_eq!(world.losses.reasons(), ["spillover_write_error"]);
    // The breaker is open.
    let refused = world.logger().log(event(1)).unwrap_err();
    assert_eq!(refused.reason, "spillover_write_error");
    let logger = world.logger();
    let refused = world.block_on(async move { logger.log_durable(event(2)).await });
    assert_eq!(refused.unwrap_err().as_str(), "spillover_write_error");
    assert_eq!(world.account().in_flight, 0);
    // Half open: one event asks the API, and only one. It fails, and waits for its retry.
    world.run_for(31 * SECOND);
    let taken: Vec<bool> = (3..6)
        .map(|n| world.logger().log(event(n)).is_ok())
        .collect();
    assert_eq!(taken, [true, false, false]);
    world.run_for(SECOND);
    assert!(world.logger().log(event(6)).is_err());
    world.check();
    // The API is back: its retry closes the breaker, and events flow although the disk is gone.
    world.api.up();
    world.wait_for_stored(1);
    world.run_for(SECOND);
    world.log(10..20);
    world.wait_for_stored(11);
    assert!(matches!(world.logger().health(), LoggerHealth::System(_)));
    world.assert_arrived([3].into_iter().chain(10..20));
    world.check();
}

#[test]
fn a06_with_on_full_block_callers_wait_until_there_is_room_again() {
    let mut world = World::down(1);
    let config = spilling()
        .on_full(OnFull::Block)
        .circuit_breaker_threshold(1);
    world.start(config.max_retries(100));
    world.run_for(SECOND);
    for nth in [1, 2] {
        world.disk().fail(Fault {
            operation: Operation::Sync,
            path: ACTIVE.into(),
            nth,
            kind: FaultKind::SyncDropsDirty,
        });
    }
    world.log([0]);
    world.wait(MINUTE, "the disk is given up", |logger| {
        matches!(logger.health(), LoggerHealth::System(_))
    });
    let logger = world.logger();
    drop(world.node.start("application", async move {
        for number in 1..5 {
            logger.log_when_room(event(number)).await.unwrap();
        }
    }));
    world.run_for(10 * SECOND);
    assert_eq!(world.account().accepted, 1, "it waits");
    world.api.up();
    world.wait_for_stored(4);
    world.assert_arrived(1..5);
    world.check();
}

/// L40: the reference has a fallback for file systems without an atomic rename. Ours asks for one,
/// and when it fails there is one complete file, under its old name.
#[test]
fn l40_a_rename_that_fails_leaves_one_complete_file_and_nothing_is_lost() {
    let mut world = World::new(1);
    world.leave_behind(0..50);
    let before = world.content(ACTIVE);
    world.disk().fail(Fault {
        operation: Operation::Rename,
        path: REPLAY.into(),
        nth: 1,
        kind: FaultKind::IoError,
    });
    world.start(spilling());
    world.wait(MINUTE, "the directory is given up", |logger| {
        matches!(logger.health(), LoggerHealth::System(_))
    });
    assert_eq!(world.content(ACTIVE), before);
    assert!(!world.files().iter().any(|name| name == REPLAY));
    assert_eq!(
        (world.account().spilled, world.losses.all()),
        (50, Vec::new())
    );
    world.shut_down();
    world.new_process();
    world.start(spilling());
    world.wait_until_drained();
    world.assert_arrived(0..50);
    world.check();
}

/// Covers W3 and, where it is asked for, W2.
#[test]
fn l26_events_of_log_durable_survive_a_power_cut_at_once() {
    seeds!(scaled(1_000), |seed| {
        let mut world = World::down(seed);
        world.start(spilling());
        let ids: Vec<_> = (0..5)
            .map(|number| world.log_durable(event(number)))
            .collect();
        world.log(100..110);
        world.power_cut();
        world.api.up();
        world.start(spilling());
        world.wait_until_drained();
        let stored = world.api.ids();
        for id in &ids {
            assert!(stored.contains(id), "{id} was promised");
        }
        assert_eq!(world.arrived()[..5], texts(0..5));
        world.check();
    });
}

#[test]
fn l26_log_durable_does_not_return_before_the_sync() {
    let mut world = World::down(1);
    world.start(spilling());
    world.run_for(SECOND);
    for number in 0..20 {
        world.log_durable(event(number));
        // Not one byte of the file that was promised is at risk.
        let found = world.disk().after_crash(&Survivors::Nothing);
        let read = |name| (&found as &dyn Disk).read(&dir().join(name), 1 << 20);
        let bytes = [REPLAY, ACTIVE].map(|name| read(name).unwrap_or_default());
        let text = String::from_utf8(bytes.concat()).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(details(last.as_bytes()), format!("event {number}"));
    }
    world.check();
}

#[test]
fn l26_a_durable_event_is_sent_at_once_and_not_at_the_next_replay() {
    let mut world = World::new(1);
    world.start(spilling().replay_interval_ms(3_600_000));
    world.run_for(SECOND);
    for number in 0..5 {
        world.log_durable(event(number));
        let before = world.sim.now();
        world.wait_for_stored(usize::try_from(number).unwrap() + 1);
        assert!(world.sim.now() - before < SECOND, "the replayer was woken");
    }
    world.check();
}

#[test]
fn l26_without_a_spill_log_durable_resolves_on_the_answer_of_the_api() {
    let mut world = World::scripted(1, |_, call| match call {
        1 => Script::Refuse,
        2 => Script::slow(Duration::from_secs(2)),
        _ => Script::Serve,
    });
    world.start(crate::fixture::memory_only());
    world.log_durable(event(0));
    assert_eq!(world.api.count(), 1);
    assert!(world.sim.now() > 2 * SECOND);
    let logger = world.logger();
    let rejected = world.block_on(async move { logger.log_durable(event_saying("REJECT")).await });
    assert_eq!(rejected.unwrap_err().as_str(), "rejected");
    world.check();
}

/// Covers W3: every operation of spilling, rotating and replaying is once the last before the
/// power goes.
#[test]
fn l27_a_power_cut_at_any_operation_leaves_the_old_or_the_new_names() {
    let play = |seed: u64, kill_at: u64| -> bool {
        let mut world = World::new(seed);
        world.disk().kill_at(kill_at);
        if world.try_start(spilling().batch_size(2)).is_err() {
            return true;
        }
        let mut promised = Vec::new();
        for number in 0..6 {
            let logger = world.logger();
            let outcome = std::sync::Arc::new(std::sync::Mutex::new(None));
            let slot = std::sync::Arc::clone(&outcome);
            let task = world.node.start("application", async move {
                *slot.lock().unwrap() = Some(logger.log_durable(event(number)).await);
            });
            drop(task);
            let node = world.node.clone();
            world.sim.run_until(SECOND, || {
                outcome.lock().unwrap().is_some() || !node.is_up()
            });
            if let Some(Ok(id)) = *outcome.lock().unwrap() {
                promised.push(id);
            }
            if number == 3 {
                world.run_for(3 * SECOND);
            }
        }
        world.run_for(3 * SECOND);
        let was_killed = !world.node.is_up();
        world.power_cut();
        let gone: Vec<_> = promised
            .iter()
            .filter(|id| !world.api.ids().contains(id))
            .copied()
            .collect();
        if !gone.is_empty() {
            let names = world.files();
            assert!(
                names.iter().any(|n| n == ACTIVE || n == REPLAY),
                "at {kill_at}: {names:?}"
            );
        }
        world.start(spilling());
        world.check();
        world.wait_until_drained();
        let stored = world.api.ids();
        for id in promised {
            assert!(
                stored.contains(&id),
                "{id} was promised before a power cut at {kill_at}"
            );
        }
        world.check();
        was_killed
    };
    seeds!(scaled(100), |seed| {
        // Opening an empty directory may be killed inside `open` itself; the sweep starts behind.
        let mut world = World::new(seed);
        world.start(spilling());
        let first = world.disk().operations() + 1;
        let mut kill_at = first;
        while play(seed, kill_at) {
            kill_at += 1;
        }
        assert!(kill_at - first > 30, "only {} operations", kill_at - first);
    });
}

/// Covers W17: the documented bound is three times the cap.
#[test]
fn l29_disk_use_stays_within_the_caps_one_snapshot_and_the_files_set_aside() {
    let cap = 8_192;
    let mut world = World::scripted(7, |_, call| {
        if call % 3 == 0 {
            Script::slow(Duration::from_millis(200))
        } else {
            Script::Refuse
        }
    });
    let config = spilling()
        .circuit_breaker_threshold(1)
        .circuit_breaker_reset_ms(1_000)
        .replay_interval_ms(1_000)
        .batch_size(3)
        .max_spillover_size_bytes(cap);
    world.start(config);
    let mut seen_both = false;
    for number in 0..600 {
        world.logger().log(event(number)).ok();
        world.run_for(Duration::from_millis(50));
        let entries = world.disk().list(dir()).unwrap();
        let len = |name: &str| entries.iter().find(|e| e.name == name).map_or(0, |e| e.len);
        let cap = u64::try_from(cap).unwrap();
        assert!(len(ACTIVE) <= cap && len(REPLAY) <= cap);
        seen_both |= len(ACTIVE) > 0 && len(REPLAY) > 0;
        let known = [ACTIVE, REPLAY, CURSOR, BOOKS, LOCK, CORRUPT, REJECTED];
        let other: Vec<_> = entries
            .iter()
            .filter(|e| !known.contains(&e.name.as_str()))
            .collect();
        assert!(other.is_empty(), "{other:?}");
        assert!(len(CURSOR) <= 128);
    }
    assert!(seen_both, "the scenario has both files at once");
    assert!(
        world.account().lost.total() > 0,
        "the scenario hits the cap"
    );
    world.check();
}
