//! Rules of the recount: it finds every event where the books have it, wherever that is.

use std::time::Duration;

use tidegate_core::books::Place;

use super::{LONG, World, completed};
use crate::port::{ClaimedEvent, Disposition, HandlerResult, HandlerState, Settlement, Transition};

fn failed() -> Disposition {
    Disposition::Finalize {
        errors: vec![HandlerState {
            handler: "one".to_owned(),
            result: HandlerResult::UnrecoverableError,
            attempts: 1,
            error: Some("broken".to_owned()),
        }],
        handlers: None,
    }
}

/// Settles one event of a batch that goes on.
async fn settle_one(world: &World, event: &ClaimedEvent, to: &Disposition) {
    let settlement = Settlement {
        registry: None,
        transitions: vec![Transition {
            claim: event.claim.clone(),
            key: event.key.clone(),
            to: to.clone(),
            states: Vec::new(),
        }],
        finished: Vec::new(),
    };
    let stale = world.store.settle(&settlement).await.unwrap();
    assert_eq!(stale, [0_i64; 0]);
}

/// Checks that books, recount and account agree, and gives the account.
async fn agreed(world: &World) -> tidegate_core::books::Account {
    let recount = world.store.recount().await.unwrap();
    let audited = recount.audited();
    assert_eq!(audited.missing, [], "books and tables differ");
    assert_eq!(audited.unaccounted, 0);
    let account = world.store.account().await.unwrap();
    assert_eq!(audited.books, account, "the same events are in flight");
    assert!(account.is_balanced(), "{account:?}");
    let kept = audited.recount.accepted + audited.removed.accepted;
    assert_eq!(kept, account.accepted, "books = recount + removed");
    account
}

/// Events that wait, are claimed, retried, parked, left, delivered, given up on, canceled, given back
/// and removed are all counted, each once.
pub async fn a01_a_recount_finds_every_event_wherever_it_is(world: &World) {
    let register = [("a".to_owned(), "one".to_owned())];
    world.store.register(&register).await.unwrap();
    // Canceled before anybody claimed it, and the same given back: it keeps its number above the
    // cursor all the while.
    let ids = world.publish("a", 2).await;
    for id in &ids {
        world.store.cancel(*id).await.unwrap();
        assert!(agreed(world).await.dead_lettered > 0);
    }
    world.store.redrive(ids[1]).await.unwrap();
    let account = agreed(world).await;
    assert_eq!((account.queued, account.dead_lettered), (1, 1));
    let given_back = world.claim(10, LONG).await;
    assert_eq!(given_back.len(), 1);
    assert_eq!(agreed(world).await.in_flight, 1);
    world.settle(&given_back, &completed()).await;
    // One of each from a batch that is settled in parts.
    world.publish("a", 5).await;
    let first = world.publish_keyed("a", "k").await;
    world.publish_keyed("a", "k").await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(claimed.len(), 7);
    assert_eq!(agreed(world).await.in_flight, 7);
    let of = |id| {
        claimed
            .iter()
            .position(|event| event.claim.id == id)
            .unwrap()
    };
    let (head, follower) = (of(first), claimed.len() - 1);
    let retry = Disposition::Retry {
        after: LONG,
        lane: super::lane(),
    };
    let park = Disposition::Park {
        lane: super::lane(),
    };
    let leave = Disposition::Defer {
        lane: super::lane(),
    };
    for (at, to) in [
        (0, &completed()),
        (1, &failed()),
        (2, &retry),
        (3, &leave),
        (head, &retry),
        (follower, &park),
    ] {
        settle_one(world, &claimed[at], to).await;
        agreed(world).await;
    }
    let account = agreed(world).await;
    assert_eq!(account.in_flight, 1, "{account:?}");
    assert_eq!((account.retrying, account.parked), (2, 1), "{account:?}");
    // A claim on a row of its own is in flight as well.
    let left = world.claim(1, LONG).await;
    assert_eq!(left[0].claim.place, Place::Queued);
    assert_eq!(agreed(world).await.in_flight, 2);
    // Waiting behind all of it, and one of them canceled.
    let waiting = world.publish("b", 3).await;
    world.store.cancel(waiting[1]).await.unwrap();
    let account = agreed(world).await;
    assert_eq!((account.queued, account.dead_lettered), (2, 3));
    // Events that retention takes away are in the books as removed.
    world.store.sequence(100).await.unwrap();
    world.wait(Duration::from_millis(20)).await;
    let cleaned = world.store.clean(Some(Duration::from_millis(1))).await;
    assert!(cleaned.unwrap().events > 0);
    let account = agreed(world).await;
    let recount = world.store.recount().await.unwrap();
    assert_eq!(recount.books.removed().accepted, account.delivered + 3);
}
