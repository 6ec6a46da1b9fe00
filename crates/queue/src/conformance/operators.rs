//! Rules of what operators see and do, and of the order of the log.

use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::{LONG, SHORT, World, completed, numbers};
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{
    ClaimRequest, ClaimedEvent, Disposition, EventFilter, HandlerFilter, HandlerResult,
    HandlerState, QueueStatus, Settlement, Transition,
};

pub(super) fn failed() -> Disposition {
    Disposition::Finalize {
        errors: vec![HandlerState {
            handler: "one".to_owned(),
            result: HandlerResult::UnrecoverableError,
            attempts: 3,
            error: Some("broken".to_owned()),
        }],
        handlers: None,
    }
}

/// An event that completed with errors goes back to the handlers that failed, and to no other.
pub async fn an_event_with_errors_is_given_back(world: &World) {
    let register = [("a", "one"), ("a", "two")].map(|(t, h)| (t.to_owned(), h.to_owned()));
    world.store.register(&register).await.unwrap();
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let told = |handler: &str, result| HandlerState {
        handler: handler.to_owned(),
        result,
        attempts: 1,
        error: None,
    };
    let settlement = Settlement {
        registry: None,
        transitions: vec![Transition {
            claim: claimed[0].claim.clone(),
            key: None,
            to: failed(),
            states: vec![
                told("one", HandlerResult::UnrecoverableError),
                told("two", HandlerResult::Success),
            ],
        }],
        finished: vec![claimed[0].claim.lease],
    };
    world.store.settle(&settlement).await.unwrap();
    world.store.clean(None).await.unwrap();
    world.store.redrive(ids[0]).await.unwrap();
    world.audit().await;
    let again = world.store.redrive(ids[0]).await;
    assert!(
        matches!(again, Err(QueueError::WrongState { .. })),
        "{again:?}"
    );
    let two = super::handler_filter(&[("a", "two")]);
    assert!(world.claim_as("two", 10, LONG, two).await.is_empty());
    let one = super::handler_filter(&[("a", "one")]);
    let claimed = world.claim_as("one", 10, LONG, one).await;
    assert_eq!(numbers(&claimed), ids);
    assert_eq!(claimed[0].states, [told("two", HandlerResult::Success)]);
    assert_eq!(world.store.stats().await.unwrap().finalized, 0);
    world.settle(&claimed, &completed()).await;
    assert_eq!(world.store.account().await.unwrap().delivered, 1);
    assert_eq!(world.store.stats().await.unwrap().finalized, 1);
    let unknown = world.store.redrive(99_999).await;
    assert!(
        matches!(unknown, Err(QueueError::UnknownEvent { id: 99_999 })),
        "{unknown:?}"
    );
    world.audit().await;
}

/// An event that waits for its next attempt can be tried now; one that is due, behind its key or being
/// handled is left as it is.
pub async fn a_waiting_event_can_be_hastened(world: &World) {
    let ids = world.publish("a", 1).await;
    let due = world.store.redrive(ids[0]).await;
    assert!(matches!(due, Err(QueueError::WrongState { .. })), "{due:?}");
    let claimed = world.claim(1, LONG).await;
    let busy = world.store.redrive(ids[0]).await;
    assert!(
        matches!(busy, Err(QueueError::WrongState { .. })),
        "{busy:?}"
    );
    let retry = Disposition::Retry {
        after: LONG,
        lane: super::lane(),
    };
    world.settle(&claimed, &retry).await;
    assert!(world.claim(1, LONG).await.is_empty());
    world.store.redrive(ids[0]).await.unwrap();
    world.audit().await;
    let claimed = world.claim(1, LONG).await;
    assert_eq!(numbers(&claimed), ids);
    assert_eq!(claimed[0].attempts, 2);
    let park = Disposition::Park {
        lane: super::lane(),
    };
    world.settle(&claimed, &park).await;
    let parked = world.store.redrive(ids[0]).await;
    assert!(
        matches!(parked, Err(QueueError::WrongState { .. })),
        "{parked:?}"
    );
    world.audit().await;
}

/// An event that waits can be canceled, claimed before or not; it is then among the dead letters.
pub async fn a_waiting_event_can_be_canceled(world: &World) {
    let ids = world.publish("a", 3).await;
    world.store.cancel(ids[1]).await.unwrap();
    world.audit().await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), [ids[0], ids[2]]);
    let retry = Disposition::Retry {
        after: LONG,
        lane: super::lane(),
    };
    world.settle(&claimed, &retry).await;
    world.store.cancel(ids[2]).await.unwrap();
    let shown = world.store.show(ids[2]).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
    let account = world.store.account().await.unwrap();
    assert_eq!((account.dead_lettered, account.retrying), (2, 1));
    let again = world.store.cancel(ids[2]).await;
    assert!(
        matches!(again, Err(QueueError::WrongState { .. })),
        "{again:?}"
    );
    let unknown = world.store.cancel(99_999).await;
    assert!(
        matches!(unknown, Err(QueueError::UnknownEvent { .. })),
        "{unknown:?}"
    );
    world.audit().await;
}

/// An event behind a canceled one of its key goes on at once.
pub async fn canceling_an_event_releases_its_key(world: &World) {
    let first = world.publish_keyed("a", "k").await;
    let second = world.publish_keyed("a", "k").await;
    let claimed = world.claim(10, LONG).await;
    let to = |event: &ClaimedEvent, to: Disposition| Transition {
        claim: event.claim.clone(),
        key: event.key.clone(),
        to,
        states: Vec::new(),
    };
    let lane = super::lane;
    let retry = Disposition::Retry {
        after: LONG,
        lane: lane(),
    };
    let settlement = Settlement {
        registry: None,
        transitions: vec![
            to(&claimed[0], retry),
            to(&claimed[1], Disposition::Park { lane: lane() }),
        ],
        finished: vec![claimed[0].claim.lease],
    };
    world.store.settle(&settlement).await.unwrap();
    world.store.cancel(first).await.unwrap();
    // Not by a look for what others left behind, which releases keys too.
    let request = ClaimRequest {
        owner: "tester".to_owned(),
        limit: 10,
        lease: LONG,
        filter: HandlerFilter::All,
        reclaim_expired: false,
        include_delayed: true,
        include_poison: true,
        isolate: false,
    };
    let claimed = world.store.claim(&request).await.unwrap().events;
    assert_eq!(numbers(&claimed), [second]);
    world.audit().await;
}

/// An event that somebody handles cannot be canceled.
pub async fn a_claimed_event_cannot_be_canceled(world: &World) {
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let busy = world.store.cancel(ids[0]).await;
    assert!(matches!(busy, Err(QueueError::Busy { .. })), "{busy:?}");
    assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
}

/// An event that takes its processes down can be ended between two of them: once its lease is over it is
/// nobody's, and whoever had it settles nothing of it any more. By batch, of which the others go on, and by
/// row.
pub async fn an_event_whose_lease_is_over_can_be_canceled(world: &World) {
    let first = world.publish_keyed("a", "k").await;
    let second = world.publish_keyed("a", "k").await;
    let other = world.publish("a", 1).await[0];
    let dead = world.claim(10, SHORT).await;
    assert_eq!(numbers(&dead), [first, second, other]);
    world.wait(SHORT * 2).await;
    world.store.cancel(first).await.unwrap();
    world.audit().await;
    let canceled = world.store.show(first).await.unwrap().unwrap();
    assert_eq!(canceled.status, QueueStatus::CompletedWithErrors);
    assert_eq!(canceled.attempts, 1);
    let again = world.store.cancel(first).await;
    assert!(
        matches!(again, Err(QueueError::WrongState { .. })),
        "{again:?}"
    );
    // Nobody has taken the rest over, so that it is still its owner's, late as it is.
    let retry = Disposition::Retry {
        after: std::time::Duration::ZERO,
        lane: super::lane(),
    };
    assert_eq!(world.settle(&dead, &retry).await, [first]);
    world.audit().await;
    world.wait(std::time::Duration::from_millis(5)).await;
    let rows = world.claim(10, SHORT).await;
    assert_eq!(numbers(&rows), [second, other]);
    world.wait(SHORT * 2).await;
    world.store.cancel(second).await.unwrap();
    world.store.cancel(other).await.unwrap();
    assert_eq!(world.settle(&rows, &completed()).await, [second, other]);
    assert!(world.claim(10, LONG).await.is_empty());
    let account = world.store.account().await.unwrap();
    assert_eq!((account.dead_lettered, account.delivered), (3, 0));
    world.audit().await;
}

/// Events are listed by state and type, and found by their id wherever they are.
pub async fn events_are_listed_and_found(world: &World) {
    world.publish("a", 2).await;
    world.publish("b", 1).await;
    let first = world.claim(1, LONG).await;
    world.settle(&first, &failed()).await;
    let second = world.claim(1, LONG).await;
    let list = async |status, type_name: Option<&str>| {
        let filter = EventFilter {
            status,
            type_name: type_name.map(str::to_owned),
            after: 0,
            limit: 10,
        };
        let listed = world.store.list(&filter).await.unwrap();
        listed.into_iter().map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None).await.len(), 2);
    assert_eq!(list(None, Some("b")).await.len(), 1);
    assert_eq!(
        list(Some(QueueStatus::Processing), None).await,
        numbers(&second)
    );
    assert_eq!(
        list(Some(QueueStatus::CompletedWithErrors), None).await,
        numbers(&first)
    );
    assert!(list(Some(QueueStatus::Completed), None).await.is_empty());
    let find = async |id| world.store.find(id).await.unwrap();
    let seen = find(first[0].claim.event_id).await.unwrap();
    assert_eq!((seen.place, seen.attempts), (Place::DeadLettered, 1));
    let seen = find(second[0].claim.event_id).await.unwrap();
    assert_eq!(
        (seen.place, seen.status),
        (Place::InFlight, QueueStatus::Processing)
    );
    assert_eq!(find(world.ids.mint()).await, None);
}

/// An id that was published twice is two events, and whoever looks for it is told of both.
pub async fn an_id_that_was_published_twice_is_found_twice(world: &World) {
    let event = world.event("a");
    let twice = [event.clone(), event.clone()];
    let ids = world.store.publish(&twice).await.unwrap();
    let find = async || world.store.find(event.event_id).await.unwrap().unwrap();
    let seen = find().await;
    assert_eq!((seen.number, seen.others), (ids[0], vec![ids[1]]));
    let claimed = world.claim(1, LONG).await;
    world.settle(&claimed, &completed()).await;
    let seen = find().await;
    assert_eq!((seen.number, seen.others), (ids[1], vec![ids[0]]));
}

/// Depth by state, retries, ages, the size of the log, handler states and the lag.
pub async fn q22_stats_count_what_is_there(world: &World) {
    let old = EventId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
    let old = NewEvent::raw(old, "a", "{}").unwrap();
    world.store.publish(&[old]).await.unwrap();
    let ids = world.publish("a", 7).await;
    world.store.cancel(ids[6]).await.unwrap();
    let claimed = world.claim(3, LONG).await;
    let error = HandlerState {
        handler: "one".to_owned(),
        result: HandlerResult::TransientError,
        attempts: 1,
        error: Some("not yet".to_owned()),
    };
    let to = |event: &ClaimedEvent, to: Disposition, states: &[HandlerState]| Transition {
        claim: event.claim.clone(),
        key: None,
        to,
        states: states.to_vec(),
    };
    let lane = super::lane();
    let retry = Disposition::Retry { after: LONG, lane };
    let parked = Disposition::Park {
        lane: super::lane(),
    };
    // One is tried again, one waits behind others, one is finished.
    let settlement = Settlement {
        registry: None,
        transitions: vec![
            to(&claimed[0], retry, &[error]),
            to(&claimed[1], parked, &[]),
            to(&claimed[2], completed(), &[]),
        ],
        finished: vec![claimed[0].claim.lease],
    };
    world.store.settle(&settlement).await.unwrap();
    // A batch is claimed, of which one event is not finished; and a row.
    let claimed = world.claim(2, LONG).await;
    let one = Settlement {
        registry: None,
        transitions: vec![to(&claimed[0], completed(), &[])],
        finished: Vec::new(),
    };
    world.store.settle(&one).await.unwrap();
    let claimed = world.claim(1, LONG).await;
    let soon = Disposition::Retry {
        after: Duration::ZERO,
        lane: super::lane(),
    };
    world.settle(&claimed, &soon).await;
    let again = world.claim(1, LONG).await;
    assert_eq!(numbers(&again), numbers(&claimed));
    let stats = world.store.stats().await.unwrap();
    assert_eq!(
        (stats.pending, stats.processing, stats.retrying),
        (3, 2, 1),
        "two have a row, one was never claimed; {stats:?}"
    );
    assert_eq!(stats.finalized, 3, "one of them by an operator");
    assert_eq!(stats.handler_states, 1, "successes at once need none");
    assert_eq!(stats.ages, [4, 0, 1]);
    assert!(stats.oldest_age_seconds < 60.0, "since it was published");
    assert!(stats.unhandled.is_empty() && stats.lag.is_empty());
    let account = world.store.account().await.unwrap();
    assert_eq!((account.in_flight, account.retrying), (2, 1));
    world.audit().await;
}

/// Old events leave the log, those that a projection has not read stay, and the books know.
pub async fn retention_never_passes_a_projection(world: &World) {
    world.publish("a", 4).await;
    let claimed = world.claim(2, LONG).await;
    world.settle(&claimed, &completed()).await;
    let claimed = world.claim(2, LONG).await;
    world.settle(&claimed, &completed()).await;
    world.wait(Duration::from_millis(5)).await;
    let removed = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(
        removed.events, 0,
        "without a position nobody can have read it"
    );
    world.store.sequence(100).await.unwrap();
    let leadership = world
        .store
        .acquire_leadership("p", "me", LONG)
        .await
        .unwrap()
        .unwrap();
    let tx = world.store.begin().await.unwrap();
    assert!(
        world
            .store
            .advance(tx, &leadership, "p", 0, 2)
            .await
            .unwrap()
    );
    let removed = world.store.clean(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(removed.events, 2);
    assert_eq!(world.store.stats().await.unwrap().finalized, 2);
    world.audit().await;
    let recount = world.store.recount().await.unwrap();
    assert_eq!(recount.books.removed().delivered, 2);
    assert_eq!(recount.found.account().delivered, 2);
    let page = world.store.read_log(2, 10).await.unwrap();
    assert_eq!(page.events.len(), 2);
}

/// Leadership has one owner until it ends; the next has a larger token, and the old one is worthless.
pub async fn a_turn_has_one_owner_at_a_time(world: &World) {
    let store = &world.store;
    let first = store
        .acquire_leadership("t", "one", LONG)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        store.acquire_leadership("t", "two", LONG).await.unwrap(),
        None
    );
    assert!(store.renew_leadership(&first, SHORT).await.unwrap());
    world.wait(SHORT * 2).await;
    let second = store
        .acquire_leadership("t", "two", LONG)
        .await
        .unwrap()
        .unwrap();
    assert!(second.token > first.token);
    assert!(!store.renew_leadership(&first, LONG).await.unwrap());
    let tx = store.begin().await.unwrap();
    assert!(!store.advance(tx, &first, "p", 0, 1).await.unwrap());
    assert!(
        store
            .renew_leadership(&second, Duration::ZERO)
            .await
            .unwrap()
    );
    world.wait(Duration::from_millis(5)).await;
    assert!(
        store
            .acquire_leadership("t", "three", LONG)
            .await
            .unwrap()
            .is_some()
    );
}

/// The registry grows and shrinks, and its version says so.
pub async fn handlers_are_registered_and_unregistered(world: &World) {
    let both = [("a", "one"), ("a", "two")].map(|(t, h)| (t.to_owned(), h.to_owned()));
    world.store.register(&both).await.unwrap();
    let first = world.store.registry().await.unwrap();
    assert_eq!(first.of("a").collect::<Vec<_>>(), ["one", "two"]);
    world.store.register(&both).await.unwrap();
    assert_eq!(world.store.registry().await.unwrap().version, first.version);
    assert!(world.store.unregister("a", "one").await.unwrap());
    assert!(!world.store.unregister("a", "one").await.unwrap());
    let second = world.store.registry().await.unwrap();
    assert_eq!(second.of("a").collect::<Vec<_>>(), ["two"]);
    assert!(second.version > first.version);
    world.publish("a", 1).await;
    let request = crate::port::ClaimRequest {
        owner: "x".to_owned(),
        limit: 1,
        lease: LONG,
        filter: crate::port::HandlerFilter::All,
        reclaim_expired: false,
        include_delayed: false,
        include_poison: true,
        isolate: false,
    };
    let claimed = world.store.claim(&request).await.unwrap();
    assert_eq!(claimed.registry, second.version);
}

/// An event that waits for an unregistered handler does not wait any more: a process that knows the type
/// brings it to its end.
pub async fn events_that_waited_for_an_unregistered_handler_are_brought_to_their_end(
    world: &World,
) {
    let both = [("a", "one"), ("a", "two")].map(|(t, h)| (t.to_owned(), h.to_owned()));
    world.store.register(&both).await.unwrap();
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let leave = Disposition::Defer {
        lane: crate::port::Lane::new("a", ["two"]),
    };
    world.settle(&claimed, &leave).await;
    let claim = async |handler| {
        let filter = super::handler_filter(&[handler]);
        numbers(&world.claim_as("x", 10, LONG, filter).await)
    };
    assert_eq!(claim(("a", "one")).await, [0_i64; 0]);
    world.store.unregister("a", "two").await.unwrap();
    assert_eq!(
        claim(("b", "one")).await,
        [0_i64; 0],
        "it is of another type"
    );
    assert_eq!(claim(("a", "one")).await, ids);
}

/// Positions follow each other without holes, whatever the order of publishing and finalizing.
pub async fn q19_positions_have_no_holes(world: &World) {
    let ids = world.publish("a", 6).await;
    let one = world.claim(2, LONG).await;
    let two = world.claim(2, LONG).await;
    let three = world.claim(2, LONG).await;
    world.settle(&three, &completed()).await;
    world.store.sequence(100).await.unwrap();
    world.settle(&one, &completed()).await;
    world.settle(&two, &failed()).await;
    while world.store.sequence(1).await.unwrap() > 0 {}
    let page = world.store.read_log(0, 100).await.unwrap();
    let read: Vec<(i64, i64)> = page.events.iter().map(|e| (e.position, e.id)).collect();
    assert_eq!(read, [(1, ids[4]), (2, ids[5]), (3, ids[0]), (4, ids[1])]);
    assert_eq!(
        (page.last, page.head),
        (6, 6),
        "events with errors have positions too"
    );
    let page = world.store.read_log(1, 2).await.unwrap();
    let read: Vec<i64> = page.events.iter().map(|e| e.position).collect();
    assert_eq!((read, page.last), (vec![2, 3], 3));
}
