//! Rules of spans without end and batches without limit: whoever writes "for ever" gets it.

use std::time::Duration;

use tidegate_core::{Backoff, Code, Failure};

use super::dispatchers::{Placed, Running, placed, quick};
use super::{LONG, World, completed, lane};
use crate::port::{Disposition, QueueStatus};
use crate::{Delivery, Dispatcher, DispatcherOptions, Handled};

const FOR_EVER: Duration = Duration::MAX;

/// Claims and leadership that are held for ever are held, and given back when that is asked for.
pub async fn a_lease_may_have_no_end(world: &World) {
    let store = &world.store;
    world.publish("a", 2).await;
    let fresh = world.claim(2, FOR_EVER).await;
    let again = Disposition::Retry {
        after: Duration::ZERO,
        lane: lane(),
    };
    assert_eq!(world.settle(&fresh[..1], &again).await, [0_i64; 0]);
    world.wait(Duration::from_millis(5)).await;
    let row = world.claim(2, FOR_EVER).await;
    let held = [fresh[1].claim.lease, row[0].claim.lease];
    assert_eq!(store.renew(&held, FOR_EVER).await.unwrap(), []);
    assert!(world.claim(2, FOR_EVER).await.is_empty());
    assert_eq!(store.renew(&held, Duration::ZERO).await.unwrap(), []);
    world.wait(Duration::from_millis(5)).await;
    let back = world.claim(2, LONG).await;
    assert_eq!(back.len(), 2);
    assert_eq!(world.settle(&back, &completed()).await, [0_i64; 0]);
    let leadership = store
        .acquire_leadership("mine", "one", FOR_EVER)
        .await
        .unwrap();
    let leadership = leadership.unwrap();
    assert!(store.renew_leadership(&leadership, FOR_EVER).await.unwrap());
    let other = store.acquire_leadership("mine", "two", LONG).await.unwrap();
    assert_eq!(other, None);
    world.audit().await;
}

/// A retry that is not to come by itself waits, harms nobody else, and can be hastened.
pub async fn a_retry_may_wait_for_ever(world: &World) {
    let act = |_: Delivery<Placed>| async {
        let failure = Failure::transient(Code::from_static("test.broken"), "not yet");
        Handled::TransientError(failure)
    };
    let mut options = quick();
    options.policy.retry.backoff = Backoff::steps([FOR_EVER]);
    let builder = Dispatcher::builder(world.queue()).options(options);
    let running = Running::start(world, builder.register_fn("one", act).unwrap());
    let queue = world.queue();
    for n in 1..=2 {
        queue.publish(&placed(n)).await.unwrap();
        world
            .until(async || world.store.account().await.unwrap().retrying == i64::from(n))
            .await;
    }
    running.stop().await;
    let shown = world.store.show(1).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::Pending);
    world.store.redrive(1).await.unwrap();
    world.wait(Duration::from_millis(5)).await;
    assert_eq!(world.claim(2, LONG).await.len(), 1);
    world.audit().await;
}

/// Events that are kept for ever are not removed, and the clean-up does the rest of its work.
pub async fn a_retention_may_have_no_end(world: &World) {
    world.publish("a", 3).await;
    let claimed = world.claim(3, LONG).await;
    assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
    world.store.sequence(100).await.unwrap();
    for days in [100_000, 9_999_999, 100_000_000_000] {
        let kept = Duration::from_secs(86_400 * days);
        assert_eq!(world.store.clean(Some(kept)).await.unwrap().events, 0);
    }
    let cleaned = world.store.clean(Some(FOR_EVER)).await.unwrap();
    assert_eq!(cleaned.events, 0);
    world.audit().await;
}

/// A dispatcher whose numbers are the largest there are works and stops like another.
pub async fn a_dispatcher_may_have_no_limits(world: &World) {
    for batch_size in [u32::MAX, i32::MAX.unsigned_abs(), 1 << 30] {
        let options = DispatcherOptions {
            batch_size,
            lease: FOR_EVER,
            handler_timeout: FOR_EVER,
            rescue_interval: FOR_EVER,
            stop_timeout: FOR_EVER,
            cleanup_interval: FOR_EVER,
            retention: Some(FOR_EVER),
            ..quick()
        };
        let before = world.store.account().await.unwrap().delivered;
        let act = |_: Delivery<Placed>| async { Handled::Success };
        let builder = Dispatcher::builder(world.queue()).options(options);
        let running = Running::start(world, builder.register_fn("one", act).unwrap());
        world.queue().publish(&placed(1)).await.unwrap();
        world
            .until(async || world.store.account().await.unwrap().delivered == before + 1)
            .await;
        assert!(running.handle.health().is_up);
        assert_eq!(running.stop().await.finalized, 1);
    }
    world.audit().await;
}
