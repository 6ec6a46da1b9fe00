//! No room: caps that are hit and disks that are full. L23 and L24, through the logger.

use std::time::Duration;

use tidegate_logger::spill::{ACTIVE, CORRUPT, CURSOR, REPLAY};
use tidegate_logger::{LoggerHealth, OnFull};
use tidegate_sim::{Fault, FaultKind, Operation, seeds};
use tidegate_testkit::Script;

use crate::fixture::{MINUTE, SECOND, World, event, event_saying, spilling, texts};

#[test]
fn l23_drop_newest_loses_exactly_the_newest_and_reports_each() {
    let mut world = World::down(1);
    let opened = world.open(spilling().queue_capacity(5));
    let taken: Vec<bool> = (0..14)
        .map(|n| world.logger().log(event(n)).is_ok())
        .collect();
    let expect: Vec<bool> = (0..14).map(|n| n < 10).collect();
    assert_eq!(
        taken, expect,
        "five in the queue, five in the queue of the spill"
    );
    assert_eq!(world.losses.reasons(), ["spillover_queue_full"; 4]);
    let lost: Vec<String> = world
        .losses
        .all()
        .into_iter()
        .filter_map(|t| t.details)
        .collect();
    assert_eq!(lost, texts(10..14));
    world.run(opened);
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived(0..10);
    world.check();
}

/// Logs these events, waiting for room, on a task of their own.
fn log_when_room(world: &World, numbers: std::ops::Range<u64>) {
    let logger = world.logger();
    let task = world.node.start("application", async move {
        for number in numbers {
            logger.log_when_room(event(number)).await.unwrap();
        }
    });
    drop(task);
}

#[test]
fn l23_block_waits_for_room_and_loses_nothing() {
    seeds!(10, |seed| {
        let mut world = World::down(seed);
        let config = spilling()
            .on_full(OnFull::Block)
            .queue_capacity(5)
            .batch_size(2)
            .max_spillover_events(10)
            .circuit_breaker_threshold(2);
        world.start(config);
        log_when_room(&world, 0..200);
        world.run_for(MINUTE);
        let waiting = world.account();
        assert!(waiting.accepted < 60, "the caller waits: {waiting:?}");
        assert_eq!(
            world.lines(ACTIVE).len() + world.lines(REPLAY).len(),
            10 + world.lines(REPLAY).len()
        );
        world.check();
        world.api.up();
        world.wait_for_stored(200);
        world.wait_until_drained();
        world.assert_arrived(0..200);
        assert_eq!(world.losses.all(), []);
        world.check();
    });
}

#[test]
fn l23_block_without_a_spill_waits_for_the_queue() {
    let mut world = World::scripted(1, |_, _| Script::slow(Duration::from_millis(100)));
    let config = crate::fixture::memory_only()
        .on_full(OnFull::Block)
        .queue_capacity(3);
    world.start(config.batch_size(1));
    log_when_room(&world, 0..40);
    world.wait_for_stored(40);
    assert_eq!(world.arrived(), texts(0..40));
    assert_eq!(world.losses.all(), []);
    world.check();
}

#[test]
fn l23_block_with_a_disk_that_is_full_for_a_while_loses_nothing() {
    let mut world = World::down(1);
    let config = spilling()
        .on_full(OnFull::Block)
        .queue_capacity(5)
        .circuit_breaker_threshold(1);
    world.start(config);
    world.log([0]);
    world.wait_for_spilled(1);
    world.disk().set_capacity(0);
    log_when_room(&world, 1..50);
    world.run_for(10 * SECOND);
    assert_eq!(
        (world.account().spilled, world.losses.all()),
        (1, Vec::new())
    );
    world.disk().set_capacity(1 << 30);
    world.wait_for_spilled(50);
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived(0..50);
    world.check();
}

#[test]
fn l23_block_with_a_disk_that_stays_full_delivers_once_the_api_is_back() {
    let mut world = World::down(1);
    let config = spilling()
        .on_full(OnFull::Block)
        .queue_capacity(5)
        .circuit_breaker_threshold(1);
    world.start(config);
    world.run_for(SECOND);
    world.disk().set_capacity(0);
    log_when_room(&world, 0..50);
    world.run_for(10 * SECOND);
    world.api.up();
    world.wait_for_stored(50);
    assert_eq!(world.losses.all(), []);
}

/// Covers W7: the reference raises a counter and reports nothing.
#[test]
fn l24_a_write_error_reaches_callback_and_counter_and_the_next_event_is_spilled() {
    for kind in [FaultKind::Full, FaultKind::IoError, FaultKind::ShortWrite] {
        let mut world = World::down(1);
        world.start(spilling().circuit_breaker_threshold(1));
        world.log([0]);
        world.wait_for_spilled(1);
        world.disk().fail(Fault {
            operation: Operation::Write,
            path: ACTIVE.into(),
            nth: 1,
            kind,
        });
        world.log(1..4);
        world.wait(MINUTE, "they are reported", |logger| {
            logger.account().lost.total() == 3
        });
        assert_eq!(
            world.losses.reasons(),
            ["spillover_write_error"; 3],
            "{kind:?}"
        );
        assert_eq!(
            world.logger().health(),
            LoggerHealth::Degraded("connection.refused: nobody listens".into())
        );
        world.log([4]);
        world.wait_for_spilled(2);
        world.check();
        world.api.up();
        world.wait_until_drained();
        world.assert_arrived([0, 4]);
        world.check();
    }
}

#[test]
fn l24_a_disk_that_is_full_for_minutes_loses_only_events_of_that_time() {
    let mut world = World::down(1);
    world.start(spilling().circuit_breaker_threshold(1));
    world.log([0]);
    world.wait_for_spilled(1);
    world.disk().set_capacity(0);
    for number in 1..20 {
        world.log([number]);
        world.run_for(10 * SECOND);
    }
    assert!(
        !matches!(world.logger().health(), LoggerHealth::System(_)),
        "{:?}",
        world.logger().health()
    );
    assert_eq!(world.losses.reasons(), ["spillover_write_error"; 19]);
    world.disk().set_capacity(1 << 30);
    world.log([20]);
    world.wait_for_spilled(2);
    world.check();
    world.api.up();
    world.wait_until_drained();
    world.assert_arrived([0, 20]);
}

#[test]
fn l24_a_full_disk_when_an_event_is_to_be_set_aside_does_not_give_the_spill_up() {
    let mut world = World::new(1);
    world.start(spilling());
    world.run_for(SECOND);
    world.disk().set_capacity(0);
    world.logger().log(event_saying("REJECT")).unwrap();
    world.run_for(SECOND);
    assert_eq!(world.losses.reasons(), ["rejected"]);
    world.disk().set_capacity(1 << 30);
    assert_eq!(world.logger().health(), LoggerHealth::Up);
    world.api.down();
    world.log([1]);
    world.wait(30 * MINUTE, "it is spilled", |logger| {
        logger.account().spilled == 1
    });
    world.check();
}

/// Bytes that the files of the directory take.
fn used(world: &World) -> u64 {
    let files = world.files();
    files
        .iter()
        .map(|name| world.content(name).len() as u64)
        .sum()
}

fn is_given_up(world: &World) -> bool {
    matches!(world.logger().health(), LoggerHealth::System(_))
}

#[test]
fn l23_block_ignores_the_caps_when_nobody_can_wait_any_longer() {
    let mut world = World::down(1);
    let config = spilling()
        .on_full(OnFull::Block)
        .circuit_breaker_threshold(1)
        .max_spillover_events(5);
    world.start(config);
    world.log([0]);
    world.wait_for_spilled(1);
    world.log(1..100);
    world.run_for(MINUTE);
    assert_eq!(world.lines(ACTIVE).len(), 5, "{:?}", world.account());
    let report = world.shut_down();
    assert_eq!(report.account.lost.total(), 0, "{:?}", report.account);
    assert_eq!(report.account.spilled, 100, "{:?}", report.account);
    world.check_report(&report);
    world.new_process();
    world.api.up();
    world.start(spilling());
    world.wait_until_drained();
    assert_eq!(world.arrived(), texts(0..100));
}

#[test]
fn l24_a_disk_that_is_full_when_a_corrupt_line_is_set_aside_costs_no_good_line() {
    for corrupt in [0, 50, 99] {
        let mut world = World::new(1);
        world.leave_behind(0..100);
        let mut bytes = world.content(ACTIVE);
        let text = format!("\"event {corrupt}\"");
        let at = bytes.windows(text.len()).position(|w| w == text.as_bytes());
        bytes[at.unwrap() + 3] = 0xff;
        world.put(ACTIVE, &bytes);
        for nth in 1..=3 {
            world.disk().fail(Fault {
                operation: Operation::Write,
                path: CORRUPT.into(),
                nth,
                kind: FaultKind::Full,
            });
        }
        world.start(spilling());
        world.wait_until_drained();
        world.run_for(MINUTE);
        world.assert_arrived((0..100).filter(|n| *n != corrupt));
        assert_eq!(world.lines_lossy(CORRUPT), 1);
        assert_eq!(world.losses.reasons(), ["spillover_corrupt"]);
        assert_eq!(
            (world.account().spilled, world.account().dead_lettered),
            (0, 1)
        );
        world.check();
    }
}

#[test]
fn l24_a_disk_without_room_for_the_cursor_is_replayed_all_the_same() {
    let mut world = World::new(1);
    world.leave_behind(0..100);
    for nth in 1..1_000 {
        world.disk().fail(Fault {
            operation: Operation::Write,
            path: CURSOR.into(),
            nth,
            kind: FaultKind::Full,
        });
    }
    world.start(spilling());
    world.wait_until_drained();
    assert!(!is_given_up(&world), "{:?}", world.logger().health());
    world.assert_arrived(0..100);
    world.check();
}

#[test]
fn l24_a_disk_that_fills_up_is_emptied_by_replay_and_used_again() {
    for spare in [0, 100, 1_000] {
        let mut world = World::down(1);
        world.start(spilling().circuit_breaker_threshold(1));
        world.log([0]);
        world.wait_for_spilled(1);
        world.log_all_durably(1..100);
        world.disk().set_capacity(used(&world) + spare);
        world.log(100..110);
        world.run_for(2 * SECOND);
        assert_eq!(world.losses.by_reason()["spillover_write_error"], 10);
        world.api.up();
        world.wait_until_drained();
        assert!(
            !is_given_up(&world),
            "{spare}: {:?}",
            world.logger().health()
        );
        // The sent events have made room.
        world.api.down();
        world.log(200..210);
        world.wait_for_spilled(10);
        world.api.up();
        world.wait_until_drained();
        world.assert_arrived((0..100).chain(200..210));
        world.check();
    }
}

/// After a kill the active file and the books are written anew, which takes as much room again.
#[test]
fn l24_a_directory_on_a_full_disk_is_opened_after_a_kill_and_delivers_everything() {
    for torn in [false, true] {
        for spare in [0, 64, 128, 1_000, 40_000, 80_000, 200_000] {
            let mut world = World::down(1);
            world.start(spilling().circuit_breaker_threshold(1));
            world.log([0]);
            world.wait_for_spilled(1);
            world.log_all_durably(1..100);
            world.kill();
            if torn {
                let mut bytes = world.content(ACTIVE);
                bytes.extend_from_slice(b"{\"details\":\"torn");
                world.put(ACTIVE, &bytes);
            }
            world.api.up();
            world.disk().set_capacity(used(&world) + spare);
            world.start(spilling());
            world.wait_for_stored(100);
            world.run_for(10 * MINUTE);
            world.assert_arrived(0..100);
            assert!(
                !is_given_up(&world),
                "{spare}: {:?}",
                world.logger().health()
            );
            world.disk().set_capacity(1 << 40);
            world.wait_until_drained();
            world.run_for(MINUTE);
            assert_eq!(world.lines_lossy(CORRUPT), usize::from(torn), "{spare}");
            assert_eq!(world.recount().unaccounted(), 0);
        }
    }
}

#[test]
fn l24_a_directory_that_was_left_in_good_order_is_opened_on_a_full_disk() {
    for spare in [0, 64, 1_000, 80_000] {
        let mut world = World::new(1);
        world.leave_behind(0..100);
        world.disk().set_capacity(used(&world) + spare);
        world.start(spilling());
        world.wait_until_drained();
        world.assert_arrived(0..100);
        world.check();
    }
}
