//! Rules of who may touch what a projection has built.

use std::time::Duration;

use super::dispatchers::{Calls, Placed, Running, quick};
use super::projections::{
    TABLE, add, caught_up, create, projector, projector_in, publish, start, times,
};
use super::{CountedSleeps, LONG, SHORT, World, completed};
use crate::port::Leadership;
use crate::{Delivery, Dispatcher, Handled, QueueError, RebuildError, Target};

async fn leadership(world: &World, owner: &str, span: Duration) -> Leadership {
    let taken = world
        .store
        .acquire_leadership("projection.counting", owner, span);
    taken.await.unwrap().unwrap()
}

/// A process that lost the leadership drops nothing that the next one builds, and an unfinished rebuild is
/// not swapped in.
pub async fn a_rebuild_is_touched_only_by_whoever_has_its_turn(world: &World) {
    let tables = [TABLE.to_owned()];
    let late = leadership(world, "late", SHORT).await;
    world.wait(SHORT * 2).await;
    let ours = leadership(world, "ours", LONG).await;
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
    let shadow = ["counting#rebuild".to_owned()];
    let forget = async |leadership| {
        let forgotten = store.forget_projection(leadership, &shadow, &tables);
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
    let swapped = store.swap(&ours, "counting", "counting#rebuild", &tables, &[]);
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
        // Leadership that was given back is free from the next millisecond on.
        world.wait(Duration::from_millis(5)).await;
        queue.forget_projection("counting").await.unwrap();
    }
    assert_eq!(queue.projections().await.unwrap(), []);
    publish(world, 5..8).await;
    world.finalized(8).await;
    let projecting = start(world, &calls);
    let known = async || world.store.projections().await.unwrap();
    world
        .until(async || known().await == [("counting".to_owned(), 8)])
        .await;
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

/// A step of a projection that was forgotten while the step was under way comes to nothing: by its position
/// everything before it would never be built again. Nor does one from where the projection is not.
pub async fn a_step_from_another_position_comes_to_nothing(world: &World) {
    let (store, leadership) = (&world.store, leadership(world, "ours", LONG).await);
    let step = async |from, to| {
        let mut tx = store.begin().await.unwrap();
        create(&mut tx, Target::Live).await.unwrap();
        add(&mut tx, Target::Live, 7).await.unwrap();
        let advanced = store.advance(tx, &leadership, "counting", from, to);
        advanced.await.unwrap()
    };
    assert!(step(0, 500).await);
    assert_eq!(times(world, 7).await, 1);
    for from in [0, 499, 501, 600] {
        assert!(!step(from, 600).await, "from {from}");
        assert_eq!(store.projection("counting").await.unwrap(), 500);
    }
    // The reader of the next page has begun by now.
    let names = ["counting".to_owned()];
    let forgotten = store.forget_projection(None, &names, &[]).await;
    assert!(forgotten.unwrap());
    assert!(!step(500, 600).await, "it was forgotten meanwhile");
    assert_eq!(store.projections().await.unwrap(), [], "it has no position");
    assert_eq!(times(world, 7).await, 1, "nothing of those steps is there");
    assert!(step(0, 100).await, "it begins with the first event");
    assert_eq!(store.projection("counting").await.unwrap(), 100);
}

/// A rebuild has to wait, and what retention removes meanwhile would be missing in it: it is refused,
/// and readers see what they saw.
pub async fn events_removed_while_a_rebuild_waits_are_not_lost(world: &World) {
    let calls = Calls::default();
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(world.queue()).options(quick());
    let handling = Running::start(world, builder.register_fn("one", act).unwrap());
    publish(world, 0..5).await;
    world.finalized(5).await;
    handling.stop().await;
    let projecting = start(world, &calls);
    caught_up(world).await;
    let mut env = world.env.fork("other");
    let sleeps = CountedSleeps::of(&mut env);
    let other = projector_in(world, &calls, &env);
    let removing = async {
        // The other one has asked for the leadership in vain.
        world.until(async || sleeps.count() > 0).await;
        let cleaned = world.store.clean(Some(Duration::ZERO)).await.unwrap();
        assert_eq!(cleaned.events, 5);
        projecting.stop().await;
    };
    let (rebuilt, ()) = tokio::join!(other.rebuild("counting"), removing);
    let error = rebuilt.unwrap_err();
    assert!(
        matches!(
            &error,
            RebuildError::Store {
                source: QueueError::EventsRemoved { .. },
                ..
            }
        ),
        "{error:?}"
    );
    for n in 0..5 {
        assert_eq!(times(world, n).await, 1, "event {n}");
    }
    let known = world.store.projections().await.unwrap();
    assert_eq!(
        known,
        [("counting".to_owned(), 5)],
        "nothing is left of the rebuild"
    );
}

/// A request that was written before retention removed something, and is found after that, is refused by
/// whoever finds it; one that may do without what was removed is served.
pub async fn a_request_is_served_only_from_a_log_that_is_whole(world: &World) {
    let calls = Calls::default();
    publish(world, 0..3).await;
    let claimed = world.claim(3, LONG).await;
    world.settle(&claimed, &completed()).await;
    let projecting = start(world, &calls);
    caught_up(world).await;
    world.wait(Duration::from_millis(5)).await;
    world.store.clean(Some(Duration::ZERO)).await.unwrap();
    // As somebody leaves it who dies right after writing it.
    let request = "counting#wanted";
    let noted = world.store.note_position("counting", request, 0).await;
    assert!(noted.unwrap());
    let is_gone = async || {
        let known = world.store.projections().await.unwrap();
        known.iter().all(|(name, _)| name == "counting")
    };
    world.until(&is_gone).await;
    assert_eq!(world.store.rebuilds("counting").await.unwrap(), 0);
    assert_eq!(times(world, 0).await, 1);
    let queue = world.queue();
    queue.request_partial_rebuild("counting").await.unwrap();
    world.until(&is_gone).await;
    assert_eq!(queue.rebuilds("counting").await.unwrap(), 1);
    assert_eq!(times(world, 0).await, 0);
    projecting.stop().await;
}

/// A request for a rebuild is durable when the caller is told so, whatever others do who ask for the
/// same; and what is asked for in spite of removed events stays so.
pub async fn a_request_is_written_down_for_everybody_who_asks(world: &World) {
    let store = &world.store;
    let leadership = leadership(world, "ours", LONG).await;
    let tx = store.begin().await.unwrap();
    assert!(
        store
            .advance(tx, &leadership, "counting", 0, 3)
            .await
            .unwrap()
    );
    // Somebody else who asked, and died.
    let asked = store
        .acquire_leadership("request.counting", "dead", LONG)
        .await;
    asked.unwrap().unwrap();
    let queue = world.queue();
    let at = async || store.projections().await.unwrap();
    queue.request_rebuild("counting").await.unwrap();
    let known = [
        ("counting".to_owned(), 3),
        ("counting#wanted".to_owned(), 0),
    ];
    assert_eq!(at().await, known);
    queue.request_partial_rebuild("counting").await.unwrap();
    queue.request_rebuild("counting").await.unwrap();
    assert_eq!(at().await[1], ("counting#wanted".to_owned(), -1));
    queue.withdraw_rebuild("counting").await.unwrap();
    assert_eq!(at().await, [("counting".to_owned(), 3)]);
    assert_eq!(queue.rebuilds("counting").await.unwrap(), 0);
}

/// The marks by which a rebuild was asked for go with the swap, or not at all.
pub async fn a_swap_takes_its_marks_away(world: &World) {
    let (store, tables) = (&world.store, [TABLE.to_owned()]);
    let marks = ["counting#wanted", "counting#forgotten"].map(str::to_owned);
    let late = leadership(world, "late", SHORT).await;
    world.wait(SHORT * 2).await;
    let ours = leadership(world, "ours", LONG).await;
    for (target, name) in [
        (Target::Live, "counting"),
        (Target::Rebuild, "counting#rebuild"),
    ] {
        let mut tx = store.begin().await.unwrap();
        create(&mut tx, target).await.unwrap();
        assert!(store.advance(tx, &ours, name, 0, 1).await.unwrap());
    }
    for mark in &marks {
        assert!(store.note_position("counting", mark, 0).await.unwrap());
    }
    let swap = async |leadership| {
        let swapped = store.swap(leadership, "counting", "counting#rebuild", &tables, &marks);
        swapped.await.unwrap()
    };
    assert!(!swap(&late).await);
    assert_eq!(store.projections().await.unwrap().len(), 4);
    assert_eq!(store.rebuilds("counting").await.unwrap(), 0);
    assert!(swap(&ours).await);
    let known = store.projections().await.unwrap();
    assert_eq!(known, [("counting".to_owned(), 1)]);
    assert_eq!(store.rebuilds("counting").await.unwrap(), 1);
}

/// Events that are finalized, have a position, and were seen by the projection.
async fn seen(world: &World, numbers: std::ops::Range<u32>) {
    let count = numbers.len();
    publish(world, numbers).await;
    let claimed = world.claim(u32::try_from(count).unwrap(), LONG).await;
    assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
    let projecting = start(world, &Calls::default());
    caught_up(world).await;
    projecting.stop().await;
    // Retention removes what is older than now, and leadership that was given back is free by then.
    world.wait(Duration::from_millis(5)).await;
}

/// A rebuild that failed in its middle is gone, and retention does not wait for it.
pub async fn a_rebuild_that_failed_leaves_nothing_behind(world: &World) {
    seen(world, 0..20).await;
    // One that has not seen number 13 fails there, after its first batch.
    let failed = projector(world, &Calls::default())
        .rebuild("counting")
        .await;
    assert!(
        matches!(failed, Err(RebuildError::Failed { .. })),
        "{failed:?}"
    );
    let known = world.store.projections().await.unwrap();
    assert_eq!(known, [("counting".to_owned(), 20)]);
    let cleaned = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cleaned.events, 20);
}

/// The rest of a rebuild that nobody asks for, left by a dead process, goes when the projection is run:
/// retention would wait for it for ever.
pub async fn tables_of_a_rebuild_that_nobody_makes_are_dropped(world: &World) {
    seen(world, 0..5).await;
    let store = &world.store;
    let mut tx = store.begin().await.unwrap();
    create(&mut tx, Target::Rebuild).await.unwrap();
    tx.commit().await.unwrap();
    let noted = store.note_position("counting", "counting#rebuild", 2).await;
    assert!(noted.unwrap());
    let projecting = start(world, &Calls::default());
    world
        .until(async || store.projections().await.unwrap().len() == 1)
        .await;
    projecting.stop().await;
    let known = store.projections().await.unwrap();
    assert_eq!(known, [("counting".to_owned(), 5)]);
    let cleaned = store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cleaned.events, 5);
}

/// A projection that was forgotten is built beside its tables by hand as well, and is one like another then.
pub async fn a_projection_that_was_forgotten_and_is_rebuilt_by_hand_is_whole_again(world: &World) {
    seen(world, 0..5).await;
    let queue = world.queue();
    queue.forget_projection("counting").await.unwrap();
    world.wait(Duration::from_millis(5)).await;
    let rebuilt = projector(world, &Calls::default())
        .rebuild("counting")
        .await;
    rebuilt.unwrap();
    let known = world.store.projections().await.unwrap();
    assert_eq!(known, [("counting".to_owned(), 5)]);
    for n in 0..5 {
        assert_eq!(times(world, n).await, 1, "event {n}");
    }
}

/// A request for a rebuild while the projection is forgotten is refused, or forgotten with it.
pub async fn a_request_beside_a_forgetting_leaves_nothing_behind(world: &World) {
    let store = &world.store;
    let queue = world.queue();
    for round in 0..20 {
        let leadership = leadership(world, "ours", LONG).await;
        let tx = store.begin().await.unwrap();
        assert!(
            store
                .advance(tx, &leadership, "counting", 0, 3)
                .await
                .unwrap()
        );
        store
            .renew_leadership(&leadership, Duration::ZERO)
            .await
            .unwrap();
        world.wait(Duration::from_millis(5)).await;
        let asking = async {
            world.wait(Duration::from_micros(300 * round)).await;
            queue.request_rebuild("counting").await
        };
        let (asked, forgotten) = tokio::join!(asking, queue.forget_projection("counting"));
        forgotten.unwrap();
        if let Err(error) = asked {
            assert!(
                matches!(error, QueueError::UnknownProjection { .. }),
                "{error:?}"
            );
        }
        let known = store.projections().await.unwrap();
        assert_eq!(known, [("counting#forgotten".to_owned(), i64::MAX)]);
        world.wait(Duration::from_millis(5)).await;
    }
}
