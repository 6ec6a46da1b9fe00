//! Rules of events with a key that operators and missing handlers get in the way of.

use std::collections::BTreeMap;

use super::operators::failed;
use super::{LONG, World, completed, numbers};
use crate::port::{Disposition, Lane};

/// Dead letters that are given back are handled one after the other, in their order, however they are
/// given back.
pub async fn an_event_given_back_keeps_the_order_of_its_key(world: &World) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.publish_keyed("a", "k").await);
        let claimed = world.claim(1, LONG).await;
        world.settle(&claimed, &failed()).await;
    }
    for id in [ids[1], ids[0], ids[2]] {
        world.store.redrive(id).await.unwrap();
    }
    for id in ids {
        let claimed = world.claim(10, LONG).await;
        assert_eq!(numbers(&claimed), [id], "one at a time, the earliest first");
        assert_eq!(numbers(&world.claim(10, LONG).await), [0_i64; 0]);
        world.settle(&claimed, &completed()).await;
    }
    world.audit().await;
}

/// A redriven event waits for a later event of its key that is being handled. That one may be part of a
/// batch or have a row of its own.
pub async fn an_event_given_back_waits_for_the_one_at_work_on_its_key(world: &World) {
    let first = world.publish_keyed("a", "k").await;
    let claimed = world.claim(1, LONG).await;
    world.settle(&claimed, &failed()).await;
    let later = world.publish_keyed("a", "k").await;
    let mut working = world.claim(1, LONG).await;
    assert_eq!(numbers(&working), [later]);
    world.store.redrive(first).await.unwrap();
    assert_eq!(numbers(&world.claim(10, LONG).await), [0_i64; 0]);
    world.settle(&working, &failed()).await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), [first]);
    world.settle(&claimed, &failed()).await;
    world.store.redrive(later).await.unwrap();
    working = world.claim(10, LONG).await;
    assert_eq!(numbers(&working), [later], "now as a row");
    world.store.redrive(first).await.unwrap();
    assert_eq!(numbers(&world.claim(10, LONG).await), [0_i64; 0]);
    world.settle(&working, &completed()).await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), [first]);
    world.settle(&claimed, &completed()).await;
    world.audit().await;
}

/// One that was canceled before anybody claimed it goes behind what was published before it.
pub async fn an_event_canceled_unclaimed_comes_back_behind_the_earlier_ones(world: &World) {
    let first = world.publish_keyed("a", "k").await;
    let second = world.publish_keyed("a", "k").await;
    world.store.cancel(second).await.unwrap();
    world.store.redrive(second).await.unwrap();
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), [first]);
    assert_eq!(numbers(&world.claim(10, LONG).await), [0_i64; 0]);
    world.settle(&claimed, &completed()).await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), [second]);
    world.settle(&claimed, &completed()).await;
    world.audit().await;
}

/// An event that nobody wants holds up the later ones of its key, which are counted; they go when
/// somebody wants it, or when it is canceled.
pub async fn events_behind_one_that_nobody_wants_are_counted(world: &World) {
    let handler = ("a".to_owned(), "one".to_owned());
    world.store.register(&[handler]).await.unwrap();
    let unwanted = world.publish_keyed("nobody", "k").await;
    let mut behind = Vec::new();
    for _ in 0..2 {
        behind.push(world.publish_keyed("a", "k").await);
    }
    world.publish_keyed("nobody", "other").await;
    let claimed = world.claim(10, LONG).await;
    for event in &claimed {
        let to = match event.type_name.as_str() {
            "nobody" => Disposition::Defer {
                lane: Lane::new("nobody", []),
            },
            _ => Disposition::Park {
                lane: super::lane(),
            },
        };
        world.settle_part(event, &to).await;
    }
    let stats = world.store.stats().await.unwrap();
    let unhandled = BTreeMap::from([("nobody".to_owned(), 2)]);
    assert_eq!((stats.unhandled, stats.held_up), (unhandled, 2));
    let one = || super::handler_filter(&[("a", "one")]);
    let claimed = world.claim_as("x", 10, LONG, one()).await;
    assert_eq!(numbers(&claimed), [0_i64; 0], "they have to wait");
    world.store.cancel(unwanted).await.unwrap();
    assert_eq!(world.store.stats().await.unwrap().held_up, 0);
    for id in behind {
        let claimed = world.claim_as("x", 10, LONG, one()).await;
        assert_eq!(numbers(&claimed), [id]);
        world.settle(&claimed, &completed()).await;
    }
    world.audit().await;
}
