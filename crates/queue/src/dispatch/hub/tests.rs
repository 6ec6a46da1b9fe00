use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Env;

use super::*;

fn hub() -> Hub {
    Hub::new(Env::system().entropy.fork("test"))
}

fn event(id: i64, held: Held) -> ClaimedEvent {
    ClaimedEvent {
        claim: Claim {
            id,
            event_id: EventId::from_u128(1),
            held,
            place: Place::Retrying,
        },
        type_name: "a".to_owned(),
        key: None,
        payload: String::new(),
        headers: BTreeMap::new(),
        created_ms: 0,
        attempts: 1,
        abandoned: 0,
        is_blocked: false,
        states: Vec::new(),
    }
}

fn row(id: i64, token: i64) -> ClaimedEvent {
    event(id, Held::Row { id, token })
}

fn of_batch(id: i64, batch: i64, token: i64) -> ClaimedEvent {
    event(id, Held::Batch { batch, token })
}

/// A worker takes the next event and finishes it.
fn finish(hub: &mut Hub) {
    let event = hub.take().expect("there is something to handle");
    let to = Disposition::Finalize {
        errors: Vec::new(),
        handlers: None,
    };
    let said = Said {
        version: 0,
        type_name: event.type_name,
        states: Vec::new(),
        spoken: Vec::new(),
        has_history: false,
    };
    hub.decided(event.claim, event.key, (to, Vec::new()), said);
}

#[test]
fn an_event_behind_an_unknown_end_is_parked_and_not_handled() {
    let mut hub = hub();
    let keyed = |id| ClaimedEvent {
        key: Some("k".to_owned()),
        ..of_batch(id, 7, 1)
    };
    hub.add(vec![keyed(1), keyed(2), of_batch(3, 7, 1)], false);
    let first = hub.take().expect("there is something to handle");
    hub.abandon(&first);
    finish(&mut hub);
    assert!(hub.take().is_none(), "the second waits for the first");
    let batch = Held::Batch { batch: 7, token: 1 };
    let outcomes = hub.outcomes().remove(&batch).unwrap();
    let parked = outcomes
        .iter()
        .filter(|one| matches!(one.to, Disposition::Park { .. }));
    let parked: Vec<i64> = parked.map(|one| one.claim.id).collect();
    assert_eq!((parked, outcomes.len()), (vec![2], 2));
    assert_eq!(hub.ends_with(batch, 2), None, "the first is open still");
}

#[test]
fn two_claims_of_one_row_are_never_settled_together() {
    let mut hub = hub();
    hub.add(vec![row(1, 3), row(2, 8)], false);
    finish(&mut hub);
    hub.add(vec![row(1, 4)], false);
    finish(&mut hub);
    finish(&mut hub);
    let outcomes: Vec<Held> = hub.outcomes().into_keys().collect();
    let newest = [Held::Row { id: 1, token: 4 }, Held::Row { id: 2, token: 8 }];
    assert_eq!(outcomes, newest);
    assert_eq!(hub.report.stale, 1);
}

#[test]
fn what_was_claimed_again_before_it_was_begun_is_handled_once() {
    let mut hub = hub();
    hub.add(vec![row(1, 3)], false);
    hub.add(vec![row(1, 4)], false);
    finish(&mut hub);
    assert!(hub.take().is_none());
    assert_eq!(hub.held(), [Held::Row { id: 1, token: 4 }]);
    assert_eq!(hub.report.stale, 1);
}

#[test]
fn a_batch_that_was_claimed_again_is_held_by_its_newest_token() {
    let mut hub = hub();
    let (first, reopened) = (
        Held::Batch { batch: 7, token: 1 },
        Held::Batch { batch: 7, token: 2 },
    );
    hub.add(vec![of_batch(1, 7, 1), of_batch(2, 7, 1)], false);
    hub.add(vec![of_batch(3, 8, 1)], false);
    hub.reopened(first, reopened, 2);
    hub.add(vec![of_batch(1, 7, 3), of_batch(2, 7, 3)], false);
    let newest = [
        Held::Batch { batch: 7, token: 3 },
        Held::Batch { batch: 8, token: 1 },
    ];
    assert_eq!(hub.held(), newest);
    assert_eq!(hub.ready.len(), 3);
}

const BATCH: Held = Held::Batch { batch: 7, token: 1 };

/// A hub with three events of one batch.
fn with_three() -> Hub {
    let mut hub = hub();
    hub.add((1..=3).map(|id| of_batch(id, 7, 1)).collect(), false);
    hub
}

#[test]
fn a_lease_ends_with_its_last_event() {
    let mut hub = with_three();
    assert_eq!(hub.ends_with(BATCH, 2), None);
    assert_eq!(hub.ends_with(BATCH, 3), Some(BATCH));
    hub.settled(BATCH, 2);
    assert_eq!((hub.held(), hub.holds_nothing()), (vec![BATCH], false));
    assert_eq!(hub.ends_with(BATCH, 0), None);
    assert_eq!(hub.ends_with(BATCH, 1), Some(BATCH));
    hub.settled(BATCH, 1);
    assert_eq!((hub.held(), hub.holds_nothing()), (vec![], true));
    assert_eq!(hub.ends_with(BATCH, 1), None);
}

#[test]
fn a_lease_with_an_event_that_was_left_is_not_finished_and_not_kept() {
    let mut hub = with_three();
    hub.leave(BATCH);
    assert_eq!(hub.ends_with(BATCH, 2), None, "one of it is open still");
    hub.settled(BATCH, 2);
    assert!(
        hub.holds_nothing(),
        "it would be ours, and nobody's, for ever"
    );
}

#[test]
fn a_batch_that_was_reopened_goes_by_its_newest_token() {
    let newest = Held::Batch { batch: 7, token: 2 };
    let mut hub = with_three();
    let claim = hub.take().unwrap().claim;
    hub.reopened(BATCH, newest, 2);
    assert_eq!(hub.current(&claim).unwrap().held, newest);
    assert_eq!(hub.newest(BATCH), Some(newest));
    assert_eq!(hub.ends_with(BATCH, 1), None);
    assert_eq!(hub.ends_with(BATCH, 2), Some(newest));
    // A renewal that was on its way tells of the older token.
    hub.lose(&[BATCH]);
    assert_eq!(hub.held(), [newest]);
    hub.lose(&[newest]);
    assert_eq!((hub.held(), hub.current(&claim)), (vec![], None));
    assert_eq!((hub.ready.len(), hub.report.stale), (0, 2));
    // All of it was settled, and the answer was lost: it is ended by whoever asks next.
    let mut hub = with_three();
    hub.reopened(BATCH, newest, 0);
    assert_eq!(hub.ends_with(BATCH, 0), Some(newest));
    // What is left of it is what was abandoned.
    let mut hub = with_three();
    hub.leave(BATCH);
    hub.reopened(BATCH, newest, 1);
    assert!(hub.holds_nothing());
}

#[test]
fn what_waits_by_the_right_of_a_lost_lease_is_not_settled() {
    let mut hub = with_three();
    hub.add(vec![row(9, 4)], false);
    (0..4).for_each(|_| finish(&mut hub));
    hub.give_up(BATCH);
    let outcomes: Vec<Held> = hub.outcomes().into_keys().collect();
    assert_eq!(outcomes, [Held::Row { id: 9, token: 4 }]);
    assert_eq!(hub.report.stale, 3);
    assert!(!hub.has_outcomes());
}

#[test]
fn a_batch_is_whole_when_all_that_is_open_of_it_is_decided() {
    let mut hub = with_three();
    assert!(!hub.has_whole() && !hub.has_outcomes());
    finish(&mut hub);
    assert!(!hub.has_whole() && hub.has_outcomes());
    hub.settled(BATCH, 1);
    finish(&mut hub);
    assert!(hub.has_whole(), "two are decided, and two are open");
    let mut hub = with_three();
    finish(&mut hub);
    hub.give_up(BATCH);
    assert!(hub.has_whole(), "nobody waits for what is lost");
}

#[test]
fn events_are_in_memory_until_they_are_settled() {
    let mut hub = with_three();
    assert_eq!((hub.in_memory(), hub.is_idle()), (3, true));
    let _running = hub.take();
    finish(&mut hub);
    assert_eq!((hub.in_memory(), hub.is_idle()), (3, false));
    hub.outcomes();
    assert_eq!((hub.in_memory(), hub.is_idle()), (2, false));
    let mut hub = with_three();
    finish(&mut hub);
    assert!(!hub.is_idle(), "there is something to settle");
    hub.outcomes();
    hub.begin_claim();
    assert!(!hub.is_idle(), "there may be something to give back");
    hub.end_claim();
    assert!(hub.is_idle());
}

#[test]
fn what_is_claimed_while_stopping_is_held_and_not_handled() {
    let mut hub = hub();
    hub.is_stopping = true;
    hub.add(vec![of_batch(1, 7, 1)], false);
    assert!(hub.take().is_none());
    assert_eq!((hub.held(), hub.ready.len()), (vec![BATCH], 0));
}

#[test]
fn a_suspect_is_known_for_as_long_as_it_is_held() {
    let suspect = |abandoned| ClaimedEvent {
        abandoned,
        ..of_batch(1, 7, 1)
    };
    for (abandoned, is_suspect) in [(0, false), (1, false), (2, true), (3, true)] {
        let mut hub = hub();
        hub.add(vec![suspect(abandoned)], is_suspect);
        assert_eq!(hub.is_suspect(BATCH), is_suspect);
        assert_eq!(hub.is_alone(), is_suspect);
        assert_eq!(hub.holds_abandoned(), abandoned > 0);
        hub.settled(BATCH, 1);
        assert!(!hub.is_suspect(BATCH) && !hub.is_alone() && !hub.holds_abandoned());
    }
}

#[test]
fn the_health_names_what_is_wrong() {
    let mut hub = hub();
    assert!(hub.health().is_up);
    hub.fails(FailureClass::Transient, "away".to_owned());
    let health = hub.health();
    assert_eq!(
        (health.is_up, health.problem.as_deref()),
        (true, Some("away"))
    );
    hub.fails(FailureClass::System, "refused".to_owned());
    assert!(!hub.health().is_up);
    hub.works();
    assert_eq!((hub.health().is_up, hub.health().problem), (true, None));
    hub.broken = Some("the token is wrong".to_owned());
    let health = hub.health();
    assert_eq!(
        (health.is_up, health.class),
        (false, Some(FailureClass::System))
    );
    hub.broken = None;
    hub.is_stopping = true;
    assert!(!hub.health().is_up);
}

fn registry(version: u64, handlers: &[&str]) -> Registry {
    let handlers = handlers.iter().map(|id| (*id).to_owned()).collect();
    Registry {
        version,
        handlers: BTreeMap::from([("a".to_owned(), handlers)]),
    }
}

/// One event of which handler `one` said that it succeeded, as of the registry that the hub knows.
fn succeeded(hub: &mut Hub) -> Vec<Move> {
    hub.add(vec![of_batch(1, 7, 1)], false);
    let event = hub.take().unwrap();
    let state = HandlerState {
        handler: "one".to_owned(),
        result: crate::port::HandlerResult::Success,
        attempts: 1,
        error: None,
    };
    let said = Said {
        version: hub.registry.version,
        type_name: event.type_name,
        states: vec![state.clone()],
        spoken: vec![state],
        has_history: false,
    };
    let verdict = hub.verdict(&said, &crate::Policy::default());
    hub.decided(event.claim, event.key, verdict, said);
    hub.outcomes().remove(&BATCH).unwrap()
}

#[test]
fn an_event_is_decided_again_when_somebody_else_wants_it_too() {
    let policy = crate::Policy::default();
    let mut hub = hub();
    hub.learn(registry(4, &["one"]));
    let mut moves = succeeded(&mut hub);
    assert!(matches!(moves[0].to, Disposition::Finalize { .. }));
    assert!(moves[0].states.is_empty(), "one number says it all");
    // A read that was on its way for long tells nothing.
    hub.learn(registry(3, &["one", "two"]));
    assert_eq!(hub.bring_up_to_date(Some(BATCH), &mut moves, &policy), 4);
    assert!(matches!(moves[0].to, Disposition::Finalize { .. }));
    hub.learn(registry(5, &["one", "two"]));
    for _ in 0..2 {
        assert_eq!(hub.bring_up_to_date(Some(BATCH), &mut moves, &policy), 5);
        let lane = Lane::new("a", ["two"]);
        assert_eq!(moves[0].to, Disposition::Leave { lane });
        assert_eq!(moves[0].states.len(), 1, "what was said is remembered");
    }
    // The tables have gone back, and the same number is of another registry.
    hub.begin_anew(registry(5, &["one"]));
    assert_eq!(hub.bring_up_to_date(Some(BATCH), &mut moves, &policy), 5);
    assert!(matches!(moves[0].to, Disposition::Finalize { .. }));
}
