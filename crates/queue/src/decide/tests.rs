use proptest::prelude::*;
use tidegate_core::env::Stream;

use super::*;

fn state(handler: &str, result: HandlerResult, attempts: u32) -> HandlerState {
    HandlerState {
        handler: handler.to_owned(),
        result,
        attempts,
        error: None,
    }
}

fn names(handlers: &[&str]) -> BTreeSet<String> {
    handlers
        .iter()
        .map(|handler| (*handler).to_owned())
        .collect()
}

fn decided(
    registered: &[&str],
    states: &[HandlerState],
    on_fatal: OnFatal,
    attempts: Option<u32>,
) -> Disposition {
    let mut policy = Policy {
        on_fatal,
        ..Policy::default()
    };
    policy.retry.attempts = attempts;
    let facts = EventFacts {
        type_name: "a",
        registered: &names(registered),
        states,
        has_history: false,
    };
    decide(&facts, &policy, &mut Stream::new(1))
}

use HandlerResult::{Success, TransientError as Transient, UnrecoverableError as Fatal};
use OnFatal::{AwaitOthers, Finalize};

#[test]
fn every_handler_done_is_completed_under_one_name() {
    let states = [state("two", Success, 1), state("one", Success, 1)];
    let expect = Disposition::Finalize {
        errors: Vec::new(),
        handlers: Some("one,two".to_owned()),
    };
    assert_eq!(decided(&["one", "two"], &states, Finalize, None), expect);
}

#[test]
fn q12_a_fatal_error_ends_the_event_at_once_or_when_the_others_are_terminal() {
    let states = [state("one", Fatal, 1), state("two", Transient, 1)];
    let ended = decided(&["one", "two", "three"], &states, Finalize, None);
    let Disposition::Finalize { errors, .. } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(errors.len(), 2, "all errors are listed");
    let waiting = decided(&["one", "two", "three"], &states, AwaitOthers, None);
    let Disposition::Retry { lane, .. } = waiting else {
        panic!("{waiting:?}");
    };
    assert_eq!(lane.to_string(), "a:three,two");
    let states = [state("one", Fatal, 1), state("two", Success, 2)];
    let ended = decided(&["one", "two"], &states, AwaitOthers, None);
    assert!(matches!(ended, Disposition::Finalize { errors, .. } if errors.len() == 1));
}

#[test]
fn q11_a_handler_that_used_up_its_attempts_has_failed() {
    let at = |attempts| {
        decided(
            &["one"],
            &[state("one", Transient, attempts)],
            Finalize,
            Some(3),
        )
    };
    assert!(matches!(at(2), Disposition::Retry { .. }));
    assert!(matches!(at(3), Disposition::Finalize { errors, .. } if errors.len() == 1));
}

#[test]
fn q14_an_event_nobody_wants_is_kept_or_completed() {
    let kept = decided(&[], &[], Finalize, None);
    assert_eq!(
        kept,
        Disposition::Defer {
            lane: Lane::new("a", [])
        }
    );
    let policy = Policy {
        unhandled: Unhandled::Complete,
        ..Policy::default()
    };
    let facts = EventFacts {
        type_name: "a",
        registered: &BTreeSet::new(),
        states: &[],
        has_history: false,
    };
    let completed = decide(&facts, &policy, &mut Stream::new(1));
    assert!(matches!(completed, Disposition::Finalize { errors, .. } if errors.is_empty()));
}

#[test]
fn a_handler_of_another_process_is_left_its_part() {
    let left = decided(&["one", "two"], &[state("one", Success, 1)], Finalize, None);
    assert_eq!(
        left,
        Disposition::Defer {
            lane: Lane::new("a", ["two"])
        }
    );
}

#[test]
fn waits_grow_with_the_attempts_of_the_handler() {
    let mut policy = Policy::default();
    policy.retry.backoff =
        Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1));
    let wait = |attempts| {
        let facts = EventFacts {
            type_name: "a",
            registered: &names(&["one"]),
            states: &[state("one", Transient, attempts)],
            has_history: true,
        };
        let decided = decide(&facts, &policy, &mut Stream::new(1));
        let Disposition::Retry { after, .. } = decided else {
            panic!("{decided:?}");
        };
        after.as_millis()
    };
    assert_eq!([1, 2, 3, 9].map(wait), [100, 200, 400, 1000]);
}

fn retry(attempts: Option<u32>) -> Retry {
    Retry {
        attempts,
        ..Policy::default().retry
    }
}

#[test]
fn q11_an_event_that_takes_its_process_down_is_given_up_on_when_it_was_alone_often_enough() {
    let at = |abandoned| poison_state(abandoned, &retry(Some(3)));
    use PoisonState::{GivenUp, Suspected, Trusted};
    let expect = [Trusted, Trusted, Suspected, Suspected, Suspected, GivenUp];
    assert_eq!([0, 1, 2, 3, 4, 5].map(at), expect);
    // One lease that ran out on it alone may have been somebody else's fault.
    let at = |abandoned| poison_state(abandoned, &retry(Some(1)));
    assert_eq!([2, 3, 4].map(at), [Suspected, Suspected, GivenUp]);
    let state = never_answered("one", 5);
    assert_eq!((state.result, state.attempts), (Fatal, 3));
    assert!(state.error.unwrap().starts_with("queue.abandoned: "));
}

#[test]
fn a_handler_that_is_unregistered_after_an_error_did_not_succeed() {
    // Somebody else is done: nobody is waited for, and the error stands.
    let states = [state("gone", Transient, 1), state("one", Success, 1)];
    let ended = decided(&["one"], &states, Finalize, None);
    let Disposition::Finalize { errors, handlers } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((errors.as_slice(), handlers), (&states[..1], None));
    // Nobody is registered at all: it is kept until somebody registers, and tried again by a process that
    // still has the handler, not at once.
    let kept = decided(&[], &states[..1], Finalize, None);
    let Disposition::Retry { after, lane } = kept else {
        panic!("{kept:?}");
    };
    assert!(lane.wanted.is_empty() && after > Duration::ZERO);
    // A handler that was done stays done.
    let ended = decided(&[], &states[1..], Finalize, None);
    assert!(matches!(ended, Disposition::Finalize { errors, .. } if errors.is_empty()));
    // One that failed for good has failed.
    let ended = decided(&[], &states[..1], Finalize, Some(1));
    assert!(matches!(ended, Disposition::Finalize { errors, .. } if errors.len() == 1));
}

fn any_state() -> impl Strategy<Value = HandlerState> {
    let result = prop_oneof![Just(Success), Just(Transient), Just(Fatal)];
    ("[a-d]", result, 1_u32..6)
        .prop_map(|(handler, result, attempts)| state(&handler, result, attempts))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Nobody is given up on for leases that ran out on others too; whoever is, used up its attempts
    /// alone; with a limit that comes, and without one it never does.
    #[test]
    fn only_an_event_that_was_alone_is_given_up_on(
        abandoned in 0_u32..50,
        limit in prop::option::of(0_u32..20),
    ) {
        let poison_state = poison_state(abandoned, &retry(limit));
        prop_assert_eq!(poison_state == PoisonState::Trusted, abandoned < POISON_AFTER);
        match limit {
            None => prop_assert_ne!(poison_state, PoisonState::GivenUp),
            Some(limit) => {
                let is_used_up = alone(abandoned) >= limit.max(ALONE_AT_LEAST);
                prop_assert_eq!(poison_state == PoisonState::GivenUp, is_used_up);
                prop_assert!(poison_state != PoisonState::GivenUp || abandoned > POISON_AFTER);
                let later = super::poison_state(POISON_AFTER + limit + ALONE_AT_LEAST, &retry(Some(limit)));
                prop_assert_eq!(later, PoisonState::GivenUp);
            }
        }
    }

    /// Its end is that of any event with a fatal error: at once, or when the others are terminal.
    #[test]
    fn who_never_answered_has_failed_like_another(
        registered in prop::collection::btree_set("[a-d]", 1..4),
        abandoned in 4_u32..50,
        awaits in any::<bool>(),
    ) {
        let mine: BTreeSet<String> = registered.iter().take(1).cloned().collect();
        let retry = retry(Some(2));
        let states: Vec<HandlerState> = to_call(&mine, &[], &retry)
            .into_iter().map(|handler| never_answered(handler, abandoned)).collect();
        let policy = Policy {
            retry,
            on_fatal: if awaits { AwaitOthers } else { Finalize },
            ..Policy::default()
        };
        let facts = EventFacts { type_name: "t", registered: &registered, states: &states, has_history: true };
        match decide(&facts, &policy, &mut Stream::new(7)) {
            Disposition::Finalize { errors, .. } => {
                prop_assert!(!awaits || registered.len() == 1);
                prop_assert_eq!(errors, states);
            }
            Disposition::Defer { lane } => {
                prop_assert!(awaits);
                prop_assert!(lane.wanted.is_disjoint(&mine));
            }
            Disposition::Retry { .. } | Disposition::Park { .. } => prop_assert!(false),
        }
    }

    /// An event ends only when every registered handler is terminal or one has failed; it never
    /// ends well with a handler that did not succeed; and while it goes on, somebody is wanted.
    #[test]
    fn no_handler_is_forgotten(
        registered in prop::collection::btree_set("[a-d]", 0..4),
        states in prop::collection::vec(any_state(), 0..4),
        awaits in any::<bool>(),
        limit in prop::option::of(1_u32..6),
    ) {
        let by_handler: BTreeMap<String, HandlerState> =
            states.into_iter().map(|s| (s.handler.clone(), s)).collect();
        let states: Vec<HandlerState> = by_handler.values().cloned().collect();
        let mut policy = Policy { on_fatal: if awaits { AwaitOthers } else { Finalize }, ..Policy::default() };
        policy.retry.attempts = limit;
        let facts = EventFacts { type_name: "t", registered: &registered, states: &states, has_history: true };
        let succeeded = |h: &String| by_handler.get(h).is_some_and(|s| s.result == Success);
        let failed = |s: &HandlerState| s.result == Fatal
            || (s.result == Transient && limit.is_some_and(|l| s.attempts >= l));
        match decide(&facts, &policy, &mut Stream::new(7)) {
            Disposition::Finalize { errors, .. } if errors.is_empty() => {
                prop_assert!(registered.iter().all(succeeded));
                prop_assert!(states.iter().all(|s| s.result == Success));
            }
            Disposition::Finalize { errors, .. } => {
                let is_gone = |s: &HandlerState| s.result != Success && !registered.contains(&s.handler);
                prop_assert!(states.iter().any(|s| failed(s) || is_gone(s)));
                prop_assert!(errors.iter().all(|e| e.result != Success));
                if awaits {
                    let terminal = |h: &String| by_handler.get(h).is_some_and(|s| failed(s) || s.result == Success);
                    prop_assert!(registered.iter().all(terminal));
                }
            }
            Disposition::Retry { lane, .. } | Disposition::Defer { lane } => {
                prop_assert!(registered.is_empty() || !lane.wanted.is_empty());
                let is_wanted = |h: &String| registered.contains(h) && !succeeded(h);
                prop_assert!(lane.wanted.iter().all(is_wanted));
                // A handler that is wanted is also called by the process that has it.
                for handler in &lane.wanted {
                    let mine = BTreeSet::from([handler.clone()]);
                    prop_assert_eq!(to_call(&mine, &states, &policy.retry).len(), 1);
                }
            }
            Disposition::Park { .. } => prop_assert!(false, "only a key parks"),
        }
    }
}
