//! Rules of what is removed without anybody asking.

use std::time::Duration;

use super::World;
use super::dispatchers::{Placed, Running, placed, quick};
use crate::{Delivery, Dispatcher, DispatcherOptions, Handled};

/// A dispatcher alone removes what is older than its retention: it gives positions where nobody else does.
pub async fn a_dispatcher_alone_removes_what_is_old(world: &World) {
    let queue = world.queue();
    for n in 0..5 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let options = DispatcherOptions {
        cleanup_interval: Duration::from_millis(50),
        retention: Some(Duration::from_millis(1)),
        ..quick()
    };
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(queue).options(options);
    let running = Running::start(world, builder.register_fn("one", act).unwrap());
    let recount = async || world.store.recount().await.unwrap();
    world
        .until(async || recount().await.books.removed().delivered == 5)
        .await;
    assert_eq!(running.stop().await.finalized, 5);
    let recount = world.store.recount().await.unwrap();
    assert_eq!(recount.books.removed().delivered, 5);
    world.audit().await;
    // Its leadership is free for a projector.
    world.wait(Duration::from_millis(5)).await;
    let leadership = world
        .store
        .acquire_leadership("queue.sequencer", "other", Duration::ZERO);
    assert!(leadership.await.unwrap().is_some());
}
