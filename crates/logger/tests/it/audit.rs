//! The second witness: what a recount says of damaged directories, and how the books age.

use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_logger::spill::{ACTIVE, BOOKS, CORRUPT, REJECTED, REPLAY, find, inspect};
use tidegate_sim::{Fault, FaultKind, Operation, is_long};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, details, dir, event, spilling};

/// Damages the line that says `text`, in place.
fn damage(world: &World, file: &str, text: &str) {
    let mut bytes = world.content(file);
    let at = bytes.windows(text.len()).position(|w| w == text.as_bytes());
    bytes[at.unwrap() + 3] = 0xff;
    world.put(file, &bytes);
}

/// Cuts the line that says `text` out.
fn cut(world: &World, file: &str, text: &str) {
    let found = String::from_utf8(world.content(file)).unwrap();
    let rest: Vec<&str> = found
        .split_inclusive('\n')
        .filter(|line| !line.contains(text))
        .collect();
    assert!(rest.concat().len() < found.len(), "no line says {text}");
    world.put(file, rest.concat().as_bytes());
}

#[test]
fn a01_a_torn_line_does_not_stand_for_a_rejected_event_that_is_missing() {
    let mut world = World::scripted(1, |_, _| Script::status(400));
    world.start(spilling());
    world.log([0]);
    world.wait(MINUTE, "it is refused", |logger| {
        logger.account().dead_lettered == 1
    });
    let id = world.losses.all()[0].id;
    world.shut_down();
    world.new_process();
    world.put(ACTIVE, b"{\"details\":\"torn");
    world.start(spilling());
    world.run_for(MINUTE);
    world.shut_down();
    assert_eq!(world.content(CORRUPT), b"{\"details\":\"torn\n");
    assert_eq!(world.recount().unaccounted(), 0);
    world.put(REJECTED, b"");
    let recount = world.recount();
    assert_eq!(recount.unaccounted(), 1, "{:?}", recount.missing);
    assert_eq!(recount.missing[0].id, id);
}

#[test]
fn a09_rejected_events_are_found_in_a_file_that_an_operator_renamed() {
    let mut world = World::scripted(1, |_, _| Script::status(400));
    world.start(spilling());
    world.log([0]);
    world.wait(MINUTE, "it is refused", |logger| {
        logger.account().dead_lettered == 1
    });
    world.shut_down();
    let lines = world.content(REJECTED);
    world.put(REJECTED, b"");
    assert_eq!(world.recount().unaccounted(), 1);
    world.put("eventlog-spillover.rejected-2026-06-01.jsonl", &lines);
    assert_eq!(world.recount().unaccounted(), 0);
}

/// A snapshot with twenty events and an active file with nineteen, and no process.
fn snapshot_and_active() -> World {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world.wait_for_spilled(1);
    world.log_all_durably(1..20);
    world.shut_down();
    world.new_process();
    // It takes the active file as its snapshot, and the API stays down.
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([20]);
    world.run_for(5 * SECOND);
    world.log_all_durably(21..40);
    world.run_for(5 * SECOND);
    world.shut_down();
    world.new_process();
    world
}

#[test]
fn a01_lines_that_cannot_be_read_are_missing_until_they_are_set_aside() {
    let mut world = snapshot_and_active();
    damage(&world, REPLAY, "\"event 10\"");
    damage(&world, ACTIVE, "\"event 30\"");
    let recount = world.recount();
    assert_eq!((recount.unaccounted(), recount.unverifiable), (2, 0));
    world.start(spilling());
    world.run_for(20 * MINUTE);
    world.api.up();
    world.wait_until_drained();
    world.run_for(MINUTE);
    world.assert_arrived((0..40).filter(|n| *n != 10 && *n != 30));
    let account = world.account();
    assert_eq!(
        (account.dead_lettered, account.spilled),
        (2, 0),
        "{account:?}"
    );
    assert_eq!(world.losses.reasons(), ["spillover_corrupt"; 2]);
    world.check();
}

#[test]
fn a01_a_line_that_cannot_be_read_does_not_stand_for_another_one_that_is_missing() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world.wait_for_spilled(1);
    let cut_out = world.log_durable(event(1));
    world.log_durable(event(2));
    world.run_for(2 * MINUTE);
    let destroyed = world.log_durable(event(3));
    world.run_for(2 * MINUTE);
    world.log_durable(event(4));
    world.shut_down();
    let of = |text: &str| {
        let holds = |name: &&str| {
            let bytes = world.content(name);
            bytes.windows(text.len()).any(|w| w == text.as_bytes())
        };
        [REPLAY, ACTIVE].into_iter().find(holds).unwrap()
    };
    cut(&world, of("\"event 1\""), "\"event 1\"");
    damage(&world, of("\"event 3\""), "\"event 3\"");
    let recount = world.recount();
    let ids: Vec<_> = recount.missing.iter().map(|one| one.id).collect();
    assert_eq!(ids, [Some(cut_out), Some(destroyed)]);
    assert_eq!(recount.unverifiable, 0);
}

#[test]
fn a01_properties_of_an_event_that_are_named_like_ours_disturb_no_check() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world.wait_for_spilled(1);
    for number in 1..6 {
        let event = event(number).metadata("x", "1").metadata("_sum", "00ff");
        world.logger().log(event).unwrap();
    }
    world.wait_for_spilled(6);
    let found = inspect(&world.disk(), dir()).unwrap().findings;
    assert_eq!(found, []);
    world.check();
}

#[test]
fn a01_a_line_that_is_missing_from_the_first_batch_is_named_by_the_inspection_too() {
    for number in [0, 3, 9] {
        let mut world = World::down(1);
        let opened = world.open(spilling().circuit_breaker_threshold(1).batch_size(10));
        world.log(0..10);
        world.run(opened);
        world.wait_for_spilled(10);
        world.shut_down();
        let text = format!("\"event {number}\"");
        let lines = world.lines(ACTIVE);
        let line = lines.iter().find(|line| line.contains(&text)).unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        cut(&world, ACTIVE, &text);
        let found = inspect(&world.disk(), dir()).unwrap().findings;
        assert_eq!(found.len(), 1, "{found:?}");
        let id = line["_id"].as_str().unwrap();
        assert!(found[0].message.contains(id), "{}", found[0]);
    }
}

/// The books tell minutes apart for a day, hours for a month, and days from then on.
#[test]
fn a01_the_books_of_forty_days_are_folded_and_still_balance() {
    let mut world = World::new(1);
    let config = || spilling().metrics(false).max_batch_wait_ms(1_000);
    world.start(config());
    for number in 0..40 * 24 * 2 {
        world.log([number]);
        // The API takes one event in fifty from the disk, and refuses none.
        if number % 50 == 0 {
            world.log_durable(event(1_000_000 + number));
        }
        // Playing each second of forty days takes long; else only the clock goes on.
        if is_long() {
            world.run_for(30 * MINUTE);
        } else {
            world.run_for(2 * SECOND);
            let passed = (number + 1) * 30 * 60 * 1_000;
            world
                .node
                .set_clock_offset_ms(i64::try_from(passed).unwrap());
        }
    }
    world.check();
    world.shut_down();
    let text = String::from_utf8_lossy(&world.content(BOOKS)).into_owned();
    let buckets = |kind: char| text.matches(&format!("\"b\":\"{kind}")).count() / 4;
    assert!(buckets('m') <= 55, "{} minutes", buckets('m'));
    assert!(
        (600..=745).contains(&buckets('h')),
        "{} hours",
        buckets('h')
    );
    assert!((9..=12).contains(&buckets('d')), "{} days", buckets('d'));
    assert!(world.content(BOOKS).len() <= 1 << 20);
    // The next process goes on with them, also for lines that are older than a minute is kept.
    world.new_process();
    world.api.down();
    world.start(config().circuit_breaker_threshold(1));
    world.log([1]);
    world.wait_for_spilled(1);
    world.run_for(MINUTE * 60 * 50);
    world.check();
    world.api.up();
    world.wait_until_drained();
    world.run_for(MINUTE);
    world.check();
    let account = world.account();
    assert_eq!(account.delivered, account.accepted, "{account:?}");
}

#[test]
fn a01_a_lost_event_does_not_come_back_after_a_write_that_cannot_be_undone() {
    let faults = [
        (Operation::Truncate, FaultKind::IoError),
        (Operation::Sync, FaultKind::SyncDropsDirty),
    ];
    for ((operation, kind), is_power_cut) in faults
        .into_iter()
        .flat_map(|fault| [(fault, false), (fault, true)])
    {
        let mut world = World::down(1);
        world.start(spilling().circuit_breaker_threshold(1));
        world.log([0]);
        world.wait_for_spilled(1);
        world.run_for(10 * SECOND);
        let fail = |operation, kind| {
            world.disk().fail(Fault {
                operation,
                path: ACTIVE.into(),
                nth: 1,
                kind,
            });
        };
        fail(Operation::Write, FaultKind::ShortWrite);
        fail(operation, kind);
        world.log(1..30);
        world.wait(MINUTE, "they are reported", |logger| {
            logger.account().lost.total() == 29
        });
        if is_power_cut {
            world.power_cut();
        } else {
            world.kill();
        }
        world.api.up();
        world.start(spilling());
        world.run_for(10 * MINUTE);
        world.assert_arrived([0]);
        assert_eq!(world.losses.all().len(), 29);
        assert_eq!(world.recount().unaccounted(), 0);
    }
}

#[test]
fn a_file_that_a_java_client_had_not_finished_is_set_aside_under_a_name_of_its_own() {
    let mut world = World::new(1);
    let half = b"{\"details\":\"event 0\"}\n{\"deta";
    for round in 1..3 {
        world.put("eventlog-spillover.replay.jsonl.tmp", half);
        world.put(REPLAY, b"{\"details\":\"event 0\"}\n");
        world.start(spilling());
        world.wait_until_drained();
        let name = format!("eventlog-spillover.leftover-{round}.jsonl");
        assert_eq!(world.content(&name), half, "byte for byte");
        assert!(!world.files().iter().any(|name| name.ends_with(".tmp")));
        let found = inspect(&world.disk(), dir()).unwrap().findings;
        let codes: Vec<&str> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, vec!["file.leftover"; round]);
        world.shut_down();
        world.new_process();
    }
    world.run_for(Duration::ZERO);
    assert_eq!(world.recount().unaccounted(), 0);
}

#[test]
fn a09_find_tells_sent_waiting_and_unreadable_lines_of_a_snapshot_apart() {
    // So far behind the first line that the damage leaves the start of the file as it is.
    let (unreadable, refused) = (40, 50);
    let mut world = World::scripted(1, move |batch, _| {
        match details(&batch[0].json) == format!("event {refused}") {
            true => Script::Refuse,
            false => Script::Serve,
        }
    });
    world.leave_behind(0..60);
    let ids: Vec<_> = world
        .lines(ACTIVE)
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["_id"].as_str().unwrap().parse().unwrap())
        .collect();
    world.start(spilling().batch_size(1));
    world.run_for(5 * SECOND);
    world.kill();
    let snapshot = world.content(REPLAY);
    let text = format!("\"event {unreadable}\"");
    let at = snapshot
        .windows(text.len())
        .position(|w| w == text.as_bytes());
    assert!(at.unwrap() > 4096, "{at:?}");
    damage(&world, REPLAY, &text);
    for (number, id) in ids.into_iter().enumerate() {
        let found = find(&world.disk(), dir(), id).unwrap();
        assert_eq!(found[0].details["file"], REPLAY, "{found:?}");
        assert!(!found[0].details.contains_key("code"), "{found:?}");
        let places: Vec<Place> = found.into_iter().map(|seen| seen.place).collect();
        let expect = match number {
            _ if number == unreadable => Place::DeadLettered,
            _ if number < refused => Place::Delivered,
            _ => Place::Spilled,
        };
        assert_eq!(places, [expect], "event {number}");
    }
}

#[test]
fn the_inspection_counts_the_lines_of_files_that_are_kept() {
    let world = World::new(1);
    world.put(CORRUPT, b"{\n\nnot json\n{}\n");
    world.put(REJECTED, b"nothing\n");
    let files = inspect(&world.disk(), dir()).unwrap().files;
    let count = |name| {
        let file = files.iter().find(|file| file.name == name).unwrap();
        (file.lines, file.unreadable)
    };
    assert_eq!((count(CORRUPT), count(REJECTED)), ((3, 2), (1, 1)));
}

#[test]
fn the_inspection_counts_all_lines_that_are_missing_from_a_batch() {
    let mut world = World::down(1);
    let opened = world.open(spilling().circuit_breaker_threshold(1).batch_size(10));
    world.log(0..10);
    world.run(opened);
    world.wait_for_spilled(10);
    world.shut_down();
    for number in [2, 3, 6] {
        cut(&world, ACTIVE, &format!("\"event {number}\""));
    }
    let found = inspect(&world.disk(), dir()).unwrap().findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, "sequence.gap");
    assert!(found[0].message.starts_with("3 "), "{}", found[0]);
}
