use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Env;

use super::*;

fn state() -> DispatchState {
    DispatchState::new(Env::system().entropy.fork("test"))
}

fn event(id: i64, lease: LeaseId) -> ClaimedEvent {
    ClaimedEvent {
        claim: Claim {
            id,
            event_id: EventId::from_u128(1),
            lease,
            place: Place::Retrying,
            trace_id: None,
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
    event(id, LeaseId::Row { id, token })
}

fn of_batch(id: i64, batch: i64, token: i64) -> ClaimedEvent {
    event(id, LeaseId::Batch { batch, token })
}

/// A worker takes the next event and finishes it.
fn finish(state: &mut DispatchState) {
    let event = state.take().expect("there is something to handle");
    let to = Disposition::Finalize {
        errors: Vec::new(),
        handlers: None,
    };
    let results = HandlerResults {
        version: 0,
        type_name: event.type_name,
        states: Vec::new(),
        new_states: Vec::new(),
        has_history: false,
    };
    state.decided(event.claim, event.key, (to, Vec::new()), results);
}

#[test]
fn an_event_behind_an_unknown_end_is_parked_and_not_handled() {
    let mut state = state();
    let keyed = |id| ClaimedEvent {
        key: Some("k".to_owned()),
        ..of_batch(id, 7, 1)
    };
    state.add(vec![keyed(1), keyed(2), of_batch(3, 7, 1)], false);
    let first = state.take().expect("there is something to handle");
    state.abandon(&first);
    finish(&mut state);
    assert!(state.take().is_none(), "the second waits for the first");
    let batch = LeaseId::Batch { batch: 7, token: 1 };
    let outcomes = state.outcomes().remove(&batch).unwrap();
    let parked = outcomes
        .iter()
        .filter(|one| matches!(one.to, Disposition::Park { .. }));
    let parked: Vec<i64> = parked.map(|one| one.claim.id).collect();
    assert_eq!((parked, outcomes.len()), (vec![2], 2));
    assert_eq!(state.ends_with(batch, 2), None, "the first is open still");
}

#[test]
fn two_claims_of_one_row_are_never_settled_together() {
    let mut state = state();
    state.add(vec![row(1, 3), row(2, 8)], false);
    finish(&mut state);
    state.add(vec![row(1, 4)], false);
    finish(&mut state);
    finish(&mut state);
    let outcomes: Vec<LeaseId> = state.outcomes().into_keys().collect();
    let newest = [
        LeaseId::Row { id: 1, token: 4 },
        LeaseId::Row { id: 2, token: 8 },
    ];
    assert_eq!(outcomes, newest);
    assert_eq!(state.report.stale, 1);
}

#[test]
fn an_event_claimed_again_before_it_was_begun_is_handled_once() {
    let mut state = state();
    state.add(vec![row(1, 3)], false);
    state.add(vec![row(1, 4)], false);
    finish(&mut state);
    assert!(state.take().is_none());
    assert_eq!(state.lease_ids(), [LeaseId::Row { id: 1, token: 4 }]);
    assert_eq!(state.report.stale, 1);
}

#[test]
fn a_batch_that_was_claimed_again_is_held_by_its_newest_token() {
    let mut state = state();
    let (first, reopened) = (
        LeaseId::Batch { batch: 7, token: 1 },
        LeaseId::Batch { batch: 7, token: 2 },
    );
    state.add(vec![of_batch(1, 7, 1), of_batch(2, 7, 1)], false);
    state.add(vec![of_batch(3, 8, 1)], false);
    state.reopened(first, reopened, 2);
    state.add(vec![of_batch(1, 7, 3), of_batch(2, 7, 3)], false);
    let newest = [
        LeaseId::Batch { batch: 7, token: 3 },
        LeaseId::Batch { batch: 8, token: 1 },
    ];
    assert_eq!(state.lease_ids(), newest);
    assert_eq!(state.ready.len(), 3);
}

const BATCH: LeaseId = LeaseId::Batch { batch: 7, token: 1 };

/// A state with three events of one batch.
fn with_three() -> DispatchState {
    let mut state = state();
    state.add((1..=3).map(|id| of_batch(id, 7, 1)).collect(), false);
    state
}

#[test]
fn a_lease_ends_with_its_last_event() {
    let mut state = with_three();
    assert_eq!(state.ends_with(BATCH, 2), None);
    assert_eq!(state.ends_with(BATCH, 3), Some(BATCH));
    state.settled(BATCH, 2);
    assert_eq!(
        (state.lease_ids(), state.holds_nothing()),
        (vec![BATCH], false)
    );
    assert_eq!(state.ends_with(BATCH, 0), None);
    assert_eq!(state.ends_with(BATCH, 1), Some(BATCH));
    state.settled(BATCH, 1);
    assert_eq!((state.lease_ids(), state.holds_nothing()), (vec![], true));
    assert_eq!(state.ends_with(BATCH, 1), None);
}

#[test]
fn a_lease_with_an_event_that_was_left_is_not_finished_and_not_kept() {
    let mut state = with_three();
    state.leave(BATCH);
    assert_eq!(state.ends_with(BATCH, 2), None, "one of it is open still");
    state.settled(BATCH, 2);
    assert!(
        state.holds_nothing(),
        "it would be ours, and nobody's, for ever"
    );
}

#[test]
fn a_batch_that_was_reopened_goes_by_its_newest_token() {
    let newest = LeaseId::Batch { batch: 7, token: 2 };
    let mut state = with_three();
    let claim = state.take().unwrap().claim;
    state.reopened(BATCH, newest, 2);
    assert_eq!(state.current(&claim).unwrap().lease, newest);
    assert_eq!(state.newest(BATCH), Some(newest));
    assert_eq!(state.ends_with(BATCH, 1), None);
    assert_eq!(state.ends_with(BATCH, 2), Some(newest));
    // A renewal that was on its way tells of the older token.
    state.lose(&[BATCH]);
    assert_eq!(state.lease_ids(), [newest]);
    state.lose(&[newest]);
    assert_eq!((state.lease_ids(), state.current(&claim)), (vec![], None));
    assert_eq!((state.ready.len(), state.report.stale), (0, 2));
    // All of it was settled, and the answer was lost: it is ended by whoever asks next.
    let mut state = with_three();
    state.reopened(BATCH, newest, 0);
    assert_eq!(state.ends_with(BATCH, 0), Some(newest));
    // Only abandoned events are left of it.
    let mut state = with_three();
    state.leave(BATCH);
    state.reopened(BATCH, newest, 1);
    assert!(state.holds_nothing());
}

#[test]
fn events_of_a_lost_lease_are_not_settled() {
    let mut state = with_three();
    state.add(vec![row(9, 4)], false);
    (0..4).for_each(|_| finish(&mut state));
    state.give_up(BATCH);
    let outcomes: Vec<LeaseId> = state.outcomes().into_keys().collect();
    assert_eq!(outcomes, [LeaseId::Row { id: 9, token: 4 }]);
    assert_eq!(state.report.stale, 3);
    assert!(!state.has_outcomes());
}

#[test]
fn a_batch_is_whole_when_all_that_is_open_of_it_is_decided() {
    let mut state = with_three();
    assert!(!state.has_whole() && !state.has_outcomes());
    finish(&mut state);
    assert!(!state.has_whole() && state.has_outcomes());
    state.settled(BATCH, 1);
    finish(&mut state);
    assert!(state.has_whole(), "two are decided, and two are open");
    let mut state = with_three();
    finish(&mut state);
    state.give_up(BATCH);
    assert!(state.has_whole(), "nobody waits for what is lost");
}

#[test]
fn events_are_in_memory_until_they_are_settled() {
    let mut state = with_three();
    assert_eq!((state.in_memory(), state.is_idle()), (3, true));
    let _running = state.take();
    finish(&mut state);
    assert_eq!((state.in_memory(), state.is_idle()), (3, false));
    state.outcomes();
    assert_eq!((state.in_memory(), state.is_idle()), (2, false));
    let mut state = with_three();
    finish(&mut state);
    assert!(!state.is_idle(), "there is something to settle");
    state.outcomes();
    state.is_claiming = true;
    assert!(!state.is_idle(), "there may be something to give back");
    state.is_claiming = false;
    assert!(state.is_idle());
}

#[test]
fn events_claimed_while_stopping_are_held_and_not_handled() {
    let mut state = state();
    state.is_stopping = true;
    state.add(vec![of_batch(1, 7, 1)], false);
    assert!(state.take().is_none());
    assert_eq!((state.lease_ids(), state.ready.len()), (vec![BATCH], 0));
}

#[test]
fn a_suspect_is_known_for_as_long_as_it_is_held() {
    let suspect = |abandoned| ClaimedEvent {
        abandoned,
        ..of_batch(1, 7, 1)
    };
    for (abandoned, is_poison) in [(0, false), (1, false), (2, true), (3, true)] {
        let mut state = state();
        state.add(vec![suspect(abandoned)], is_poison);
        assert_eq!(state.is_poison(BATCH), is_poison);
        assert_eq!(state.is_isolated(), is_poison);
        assert_eq!(state.holds_abandoned(), abandoned > 0);
        state.settled(BATCH, 1);
        assert!(!state.is_poison(BATCH) && !state.is_isolated() && !state.holds_abandoned());
    }
}

#[test]
fn the_health_names_what_is_wrong() {
    let mut state = state();
    assert!(state.health().is_up);
    state.problem = Some((FailureClass::Transient, "away".to_owned()));
    let health = state.health();
    assert_eq!(
        (health.is_up, health.problem.as_deref()),
        (true, Some("away"))
    );
    state.problem = Some((FailureClass::System, "refused".to_owned()));
    assert!(!state.health().is_up);
    state.problem = None;
    assert_eq!((state.health().is_up, state.health().problem), (true, None));
    state.broken = Some("the token is wrong".to_owned());
    let health = state.health();
    assert_eq!(
        (health.is_up, health.class),
        (false, Some(FailureClass::System))
    );
    state.broken = None;
    state.is_stopping = true;
    assert!(!state.health().is_up);
}

fn registry(version: u64, handlers: &[&str]) -> Registry {
    let handlers = handlers.iter().map(|id| (*id).to_owned()).collect();
    Registry {
        version,
        handlers: BTreeMap::from([("a".to_owned(), handlers)]),
    }
}

/// One event of which handler `one` said that it succeeded, as of the registry that the state knows.
fn succeeded(state: &mut DispatchState) -> Vec<Transition> {
    state.add(vec![of_batch(1, 7, 1)], false);
    let event = state.take().unwrap();
    let success = HandlerState {
        handler: "one".to_owned(),
        result: crate::port::HandlerResult::Success,
        attempts: 1,
        error: None,
    };
    let results = HandlerResults {
        version: state.registry.version,
        type_name: event.type_name,
        states: vec![success.clone()],
        new_states: vec![success],
        has_history: false,
    };
    let verdict = state.verdict(&results, &crate::Policy::default());
    state.decided(event.claim, event.key, verdict, results);
    state.outcomes().remove(&BATCH).unwrap()
}

#[test]
fn an_event_is_decided_again_when_somebody_else_wants_it_too() {
    let policy = crate::Policy::default();
    let mut state = state();
    state.learn(registry(4, &["one"]));
    let mut transitions = succeeded(&mut state);
    assert!(matches!(transitions[0].to, Disposition::Finalize { .. }));
    assert!(transitions[0].states.is_empty(), "one number says it all");
    // A read that was on its way for long tells nothing.
    state.learn(registry(3, &["one", "two"]));
    assert_eq!(
        state.bring_up_to_date(Some(BATCH), &mut transitions, &policy),
        4
    );
    assert!(matches!(transitions[0].to, Disposition::Finalize { .. }));
    state.learn(registry(5, &["one", "two"]));
    for _ in 0..2 {
        assert_eq!(
            state.bring_up_to_date(Some(BATCH), &mut transitions, &policy),
            5
        );
        let lane = Lane::new("a", ["two"]);
        assert_eq!(transitions[0].to, Disposition::Defer { lane });
        assert_eq!(
            transitions[0].states.len(),
            1,
            "what was said is remembered"
        );
    }
    // The tables have gone back, and the same number is of another registry.
    state.begin_anew(registry(5, &["one"]));
    assert_eq!(
        state.bring_up_to_date(Some(BATCH), &mut transitions, &policy),
        5
    );
    assert!(matches!(transitions[0].to, Disposition::Finalize { .. }));
}
