//! Batches that are written while those before them are synced: a disk that fails in the middle.

use std::collections::BTreeSet;

use tidegate_logger::spill::ACTIVE;
use tidegate_sim::{Fault, FaultKind, Operation, scaled, seeds};

use crate::fixture::{MINUTE, World, event, spilling, texts};

/// Enough for a dozen batches, so that several are with the disk at a time.
const EVENTS: u64 = 8_000;

/// A disk that fails once while many batches are on their way. The power is cut when nothing moves
/// any more, and the next process sends what is there.
fn played(seed: u64, operation: Operation, nth: u64, kind: FaultKind) -> World {
    let mut world = World::down(seed);
    world.start(
        spilling()
            .circuit_breaker_threshold(1)
            .queue_capacity(20_000),
    );
    world.log_durable(event(0));
    world.disk().fail(Fault {
        operation,
        path: ACTIVE.into(),
        nth,
        kind,
    });
    world.log(1..EVENTS);
    world.wait(MINUTE, "all are placed", |logger| {
        let account = logger.account();
        account.in_flight == 0 && account.accepted == 8_000
    });
    world.check();
    world.power_cut();
    world.api.up();
    world.start(spilling());
    world.wait_until_drained();
    world.check();
    world
}

#[test]
fn l25_a_failed_sync_loses_no_batch_written_after_it() {
    seeds!(scaled(160), |seed| {
        let world = played(
            seed,
            Operation::Sync,
            1 + seed % 8,
            FaultKind::SyncDropsDirty,
        );
        assert_eq!(world.losses.reasons(), [""; 0]);
        world.assert_arrived(0..EVENTS);
    });
}

#[test]
fn l27_a_refused_write_loses_its_batch_alone_and_says_so() {
    seeds!(scaled(160), |seed| {
        let world = played(seed, Operation::Write, 1 + seed % 8, FaultKind::ShortWrite);
        let reasons: BTreeSet<String> = world.losses.reasons().into_iter().collect();
        assert_eq!(
            reasons,
            BTreeSet::from(["spillover_write_error".to_owned()])
        );
        let lost: BTreeSet<String> = world
            .losses
            .all()
            .into_iter()
            .filter_map(|reported| reported.details)
            .collect();
        let expected: BTreeSet<String> = texts(0..EVENTS).into_iter().collect();
        let arrived = world.arrived();
        let unique: BTreeSet<String> = arrived.iter().cloned().collect();
        assert_eq!(unique.len(), arrived.len(), "an event is there twice");
        assert!(lost.is_disjoint(&unique), "what is lost does not come back");
        assert!(lost.len() <= 1_000, "one batch: {}", lost.len());
        assert_eq!(&unique | &lost, expected);
    });
}

#[test]
fn a_process_that_may_open_no_more_files_writes_to_the_one_it_has() {
    // The first one is opened by replay, before anything waits.
    let world = played(1, Operation::Open, 2, FaultKind::IoError);
    assert_eq!(world.losses.reasons(), [""; 0]);
    world.assert_arrived(0..EVENTS);
}
