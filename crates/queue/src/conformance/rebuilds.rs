//! Rules of who may touch what a projection has built.

use super::dispatchers::{Calls, quick};
use super::projections::{TABLE, add, caught_up, create, publish, start, times};
use super::{LONG, SHORT, World};
use crate::conformance::dispatchers::{Placed, Running};
use crate::port::Turn;
use crate::{Delivery, Dispatcher, Handled, QueueError, Target};

async fn turn(world: &World, owner: &str, span: std::time::Duration) -> Turn {
    let taken = world.store.take_turn("projection.counting", owner, span);
    taken.await.unwrap().unwrap()
}

/// Whoever lost the turn drops nothing of what the next one builds, and what was not built to its end is
/// not swapped in.
pub async fn a_rebuild_is_touched_only_by_whoever_has_its_turn(world: &World) {
    let tables = [TABLE.to_owned()];
    let late = turn(world, "late", SHORT).await;
    world.wait(SHORT * 2).await;
    let ours = turn(world, "ours", LONG).await;
    let store = &world.store;
    for (target, name) in [
        (Target::Live, "counting"),
        (Target::Rebuild, "counting#rebuild"),
    ] {
        let mut tx = store.begin().await.unwrap();
        create(&mut tx, target).await.unwrap();
        add(&mut tx, target, 7).await.unwrap();
        assert!(store.advance(tx, &ours, name, 0, 1).await.unwrap());
    }
    let forget = async |turn| {
        let forgotten = store.forget_projection(turn, "counting#rebuild", &tables);
        forgotten.await.unwrap()
    };
    assert!(!forget(Some(&late)).await);
    let known = store.projections().await.unwrap();
    assert!(
        known.contains(&("counting#rebuild".to_owned(), 1)),
        "{known:?}"
    );
    assert!(forget(Some(&ours)).await);
    // A table without a position, as a stale owner would have left it.
    let mut tx = store.begin().await.unwrap();
    create(&mut tx, Target::Rebuild).await.unwrap();
    tx.commit().await.unwrap();
    let swapped = store.swap(&ours, "counting", "counting#rebuild", &tables);
    assert!(!swapped.await.unwrap());
    assert_eq!(times(world, 7).await, 1, "readers see what they saw");
    assert_eq!(store.projection("counting").await.unwrap(), 1);
}

/// A projection that is forgotten is not run; should it run again, it is built anew beside its tables, and
/// no event counts twice.
pub async fn a_projection_that_was_forgotten_is_built_anew(world: &World) {
    let calls = Calls::default();
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(world.queue()).options(quick());
    let handling = Running::start(world, builder.register_fn("one", act).unwrap());
    publish(world, 0..5).await;
    world.finalized(5).await;
    let queue = world.queue();
    let projecting = start(world, &calls);
    caught_up(world).await;
    let refused = queue.forget_projection("counting").await;
    assert!(
        matches!(refused, Err(QueueError::ProjectionRuns { .. })),
        "{refused:?}"
    );
    projecting.stop().await;
    for _ in 0..2 {
        // A turn that was given back is free from the next millisecond on.
        world.wait(std::time::Duration::from_millis(5)).await;
        queue.forget_projection("counting").await.unwrap();
    }
    assert_eq!(queue.projections().await.unwrap(), []);
    publish(world, 5..8).await;
    world.finalized(8).await;
    let projecting = start(world, &calls);
    for _ in 0..2_000 {
        let known = world.store.projections().await.unwrap();
        if known == [("counting".to_owned(), 8)] {
            break;
        }
        world.wait(std::time::Duration::from_millis(5)).await;
    }
    projecting.stop().await;
    handling.stop().await;
    let known = world.store.projections().await.unwrap();
    assert_eq!(
        known,
        [("counting".to_owned(), 8)],
        "nothing is left beside it"
    );
    for n in 0..8 {
        assert_eq!(times(world, n).await, 1, "event {n}");
    }
}
