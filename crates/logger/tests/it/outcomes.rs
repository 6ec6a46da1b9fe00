//! An API that answers for fewer or more events than it was given: it says nothing about any of them.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_testkit::Script;

use crate::fixture::{MINUTE, World, memory_only, spilling, texts};

/// A world whose API answers for so many events in its first call with three, and well from then on.
fn miscounting(count: usize) -> World {
    let has_erred = AtomicBool::new(false);
    World::scripted(1, move |batch, _| {
        if batch.len() == 3 && !has_erred.swap(true, Ordering::SeqCst) {
            Script::Outcomes(count)
        } else {
            Script::Serve
        }
    })
}

/// All three were sent twice, and once each they are in the books.
#[track_caller]
fn check_all_sent_again(mut world: World) {
    let logger = world.logger();
    let is_flushed = world.block_on(async move { logger.flush(MINUTE).await });
    assert!(is_flushed, "flush ends: {:?}", world.account());
    world.wait_until_drained();
    let sent: Vec<Vec<String>> = world.calls().into_iter().map(|call| call.details).collect();
    let last = &sent[sent.len() - 2..];
    assert_eq!(last, [texts(0..3), texts(0..3)], "sent, and sent again");
    world.assert_arrived(0..3);
    assert_eq!(world.account().delivered, 3, "{:?}", world.account());
    assert_eq!(world.losses.all(), []);
    world.check();
}

#[test]
fn a_batch_is_retried_whole_when_its_answer_is_about_another_number_of_events() {
    for count in [0, 1, 2, 4] {
        for config in [memory_only(), spilling()] {
            let mut world = miscounting(count);
            let opened = world.open(config.batch_size(3));
            world.log(0..3);
            world.run(opened);
            check_all_sent_again(world);
        }
    }
}

#[test]
fn a_replayed_batch_is_sent_again_whole_when_its_answer_is_about_another_number_of_events() {
    for count in [0, 1, 2, 4] {
        let mut world = miscounting(count);
        world.leave_behind(0..3);
        world.start(spilling());
        check_all_sent_again(world);
    }
}

#[test]
fn a_batch_that_goes_in_parts_leaves_nothing_counted_as_being_sent() {
    let mut world = World::scripted(1, |batch, _| match batch.len() {
        1 => Script::Serve,
        _ => Script::status(413),
    });
    let opened = world.open(memory_only().batch_size(8));
    world.log(0..8);
    world.run(opened);
    let logger = world.logger();
    let is_flushed = world.block_on(async move { logger.flush(MINUTE).await });
    assert!(is_flushed, "flush ends: {:?}", world.account());
    world.assert_arrived(0..8);
    world.check();
}
