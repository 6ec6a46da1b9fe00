//! Rules of what is left when retention has removed an event.

use std::time::Duration;

use tidegate_core::EventId;

use super::{LONG, World, completed, numbers};
use crate::port::{ClaimedEvent, HandlerCommit, HandlerResult, HandlerState};

/// A success of handler `one` with the side effect `mail`.
fn mailed(event: &ClaimedEvent) -> HandlerCommit {
    HandlerCommit {
        claim: event.claim.clone(),
        state: HandlerState {
            handler: "one".to_owned(),
            result: HandlerResult::Success,
            attempts: 1,
            error: None,
        },
        follow_ups: Vec::new(),
        done: vec!["mail".to_owned()],
        event_id: event.claim.event_id,
    }
}

async fn is_mailed(world: &World, event: EventId) -> bool {
    let done = world.store.is_done(None, "one", event, "mail").await;
    done.unwrap()
}

/// Removes what is finalized, and gives how many that were.
async fn remove_finalized(world: &World) -> u64 {
    world.store.sequence(100).await.unwrap();
    world.wait(Duration::from_millis(5)).await;
    let cleaned = world.store.clean(Some(Duration::ZERO)).await;
    cleaned.unwrap().events
}

/// An event that was finalized and then removed is not settled again by its batch, which lives on for the
/// others and still lists it.
pub async fn q06_finalizing_again_after_retention_changes_nothing(world: &World) {
    let ids = world.publish("a", 2).await;
    let claimed = world.claim(2, LONG).await;
    world.settle_part(&claimed[0], &completed()).await;
    assert_eq!(remove_finalized(world).await, 1);
    let books = world.store.account().await.unwrap();
    assert_eq!(world.settle(&claimed[..1], &completed()).await, ids[..1]);
    let recorded = world.store.record(None, &mailed(&claimed[0])).await;
    assert!(!recorded.unwrap());
    assert!(!is_mailed(world, claimed[0].claim.event_id).await);
    assert_eq!(world.store.account().await.unwrap(), books);
    world.audit().await;
    // Together with one that is the batch's, only that one is settled.
    assert_eq!(world.settle(&claimed, &completed()).await, ids[..1]);
    assert_eq!(world.store.account().await.unwrap().in_flight, 0);
    world.audit().await;
}

/// An id that was published twice is guarded until both are gone.
pub async fn q17_a_guard_outlives_one_of_two_events_with_the_same_id(world: &World) {
    let event = world.event("a");
    let id = event.event_id;
    let first = world.store.publish(std::slice::from_ref(&event)).await;
    let second = world.store.publish(&[event]).await.unwrap();
    let claimed = world.claim(1, LONG).await;
    assert_eq!(numbers(&claimed), first.unwrap());
    let recorded = world.store.record(None, &mailed(&claimed[0])).await;
    assert!(recorded.unwrap());
    // Others come and go beside them.
    world.publish("a", 3).await;
    world.settle(&claimed, &completed()).await;
    assert_eq!(remove_finalized(world).await, 1);
    assert!(is_mailed(world, id).await, "the other one is there yet");
    let others = world.claim(10, LONG).await;
    assert_eq!(numbers(&others)[..1], second);
    world.settle(&others[1..], &completed()).await;
    assert_eq!(remove_finalized(world).await, 3);
    assert!(is_mailed(world, id).await);
    world.settle(&others[..1], &completed()).await;
    assert_eq!(remove_finalized(world).await, 1);
    assert!(!is_mailed(world, id).await, "nothing is left to guard");
    world.audit().await;
}

/// An id is published once, until the event and all that is remembered of it are gone.
pub async fn an_event_that_is_published_once_is_there_once(world: &World) {
    let event = world.event("a");
    assert!(world.store.publish_once(&event).await.unwrap());
    assert!(!world.store.publish_once(&event).await.unwrap());
    let claimed = world.claim(10, LONG).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].claim.event_id, event.event_id);
    world.settle(&claimed, &completed()).await;
    assert!(
        !world.store.publish_once(&event).await.unwrap(),
        "it is in the log"
    );
    assert_eq!(remove_finalized(world).await, 1);
    assert!(world.store.publish_once(&event).await.unwrap());
    world.audit().await;
}
