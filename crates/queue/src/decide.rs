//! The next place of an event after its handlers have spoken.
//!
//! **Invariant:** an event is finalized only in two cases: every registered handler is terminal, or one
//! of them failed for good and the policy does not wait for the others. Otherwise it comes back.
//!
//! **Invariant:** an event of which a handler last said an error is never COMPLETED, also where that
//! handler was unregistered since: what it said stands, and can be given back.
//!
//! **Invariant:** an event is never given up on because another event of its batch takes processes
//! down: only leases that ran out on an event alone are counted against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::env::Entropy;
use tidegate_core::{Backoff, Retry};

use crate::port::{Disposition, HandlerResult, HandlerState, Lane, POISON_AFTER};

/// So often at least must an event be alone with a lease that runs out before it is given up on: a
/// process has other events beside a poison candidate, and one of them may have been the reason once.
const ALONE_AT_LEAST: u32 = 2;

/// When an event with an error that nobody can mend is finalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFatal {
    /// At once.
    #[default]
    Finalize,
    /// When every other handler is terminal too.
    AwaitOthers,
}

/// The end of an event that no handler wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unhandled {
    /// It stays PENDING, is counted and listed.
    #[default]
    Keep,
    /// It is COMPLETED, with a counter.
    Complete,
}

/// The rules of one dispatcher.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Attempts and waits of a handler.
    pub retry: Retry,
    /// The effect of a fatal error on the event.
    pub on_fatal: OnFatal,
    /// The end of events without handlers.
    pub unhandled: Unhandled,
}

impl Default for Policy {
    fn default() -> Self {
        let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(60));
        Self {
            retry: Retry {
                attempts: None,
                backoff: backoff.with_jitter(0.125),
            },
            on_fatal: OnFatal::default(),
            unhandled: Unhandled::default(),
        }
    }
}

/// The facts of an event when nothing more can be done for it here and now.
#[derive(Debug)]
pub struct EventFacts<'a> {
    /// Its type.
    pub type_name: &'a str,
    /// Every handler that is registered for its type, anywhere.
    pub registered: &'a BTreeSet<String>,
    /// The results of handlers, before and now.
    pub states: &'a [HandlerState],
    /// Whether anything was written down about it before, so that its end must be too.
    pub has_history: bool,
}

/// How far one handler is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It was not called, or not in this process.
    Pending,
    /// It is done.
    Done,
    /// It failed and will be called again.
    Retrying,
    /// It failed for good, or too often.
    Failed,
}

fn progress(state: Option<&HandlerState>, retry: &Retry) -> Progress {
    match state {
        None => Progress::Pending,
        Some(state) => match state.result {
            HandlerResult::Success => Progress::Done,
            HandlerResult::UnrecoverableError => Progress::Failed,
            HandlerResult::TransientError => {
                let is_exhausted = retry.attempts.is_some_and(|limit| state.attempts >= limit);
                if is_exhausted {
                    Progress::Failed
                } else {
                    Progress::Retrying
                }
            }
        },
    }
}

/// The suspicion against an event, by the leases of it that ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoisonState {
    /// Nothing: it was one among others.
    Trusted,
    /// It may be what takes processes down, and is handled with no other poison candidate beside it.
    Suspected,
    /// Its attempts are used up, alone: it is not handled again.
    GivenUp,
}

/// How often an event was alone with a lease that ran out, of so many that did.
#[must_use]
pub(crate) fn alone(abandoned: u32) -> u32 {
    // From there on it is handed out alone, so each one counts.
    abandoned.saturating_sub(POISON_AFTER)
}

/// The suspicion against an event of which so many leases ran out.
#[must_use]
pub(crate) fn poison_state(abandoned: u32, retry: &Retry) -> PoisonState {
    if abandoned < POISON_AFTER {
        return PoisonState::Trusted;
    }
    match retry.attempts {
        Some(limit) if alone(abandoned) >= limit.max(ALONE_AT_LEAST) => PoisonState::GivenUp,
        Some(_) | None => PoisonState::Suspected,
    }
}

/// The state of a handler that never answered for an event.
#[must_use]
pub(crate) fn never_answered(handler: &str, abandoned: u32) -> HandlerState {
    let alone = alone(abandoned);
    HandlerState {
        handler: handler.to_owned(),
        result: HandlerResult::UnrecoverableError,
        attempts: alone,
        error: Some(format!(
            "queue.abandoned: no answer ever came, and {abandoned} leases ran out, {alone} of them on \
             this event alone: it seems to take its process down"
        )),
    }
}

/// Which of these handlers of ours are to be called for an event.
pub fn to_call<'a>(
    mine: &'a BTreeSet<String>,
    states: &[HandlerState],
    retry: &Retry,
) -> Vec<&'a str> {
    let state = |handler: &str| states.iter().find(|state| state.handler == handler);
    let open = mine.iter().filter(|handler| {
        matches!(
            progress(state(handler), retry),
            Progress::Pending | Progress::Retrying
        )
    });
    open.map(String::as_str).collect()
}

/// Decides where an event goes.
#[must_use]
pub fn decide(facts: &EventFacts<'_>, policy: &Policy, entropy: &mut dyn Entropy) -> Disposition {
    let states: BTreeMap<&str, &HandlerState> = facts
        .states
        .iter()
        .map(|state| (state.handler.as_str(), state))
        .collect();
    let of = |handler: &str| progress(states.get(handler).copied(), &policy.retry);
    let is_failed = |handler: &&str| of(handler) == Progress::Failed;
    let failed = states.keys().copied().filter(|handler| is_failed(handler));
    let has_failed = failed.count() > 0;
    let is_retrying = |handler: &&str| of(handler) == Progress::Retrying;
    let is_unfinished = states.is_empty() || states.keys().any(is_retrying);
    let is_unhandled = facts.registered.is_empty() && is_unfinished && !has_failed;
    if is_unhandled && policy.unhandled == Unhandled::Complete {
        return finalize(facts);
    }
    let open = facts.registered.iter().map(String::as_str);
    let open = open.filter(|h| matches!(of(h), Progress::Pending | Progress::Retrying));
    let open: Vec<&str> = open.collect();
    let is_over = open.is_empty() && !is_unhandled;
    if is_over || (has_failed && policy.on_fatal == OnFatal::Finalize) {
        return finalize(facts);
    }
    // Where nobody is registered any more, whoever failed last may be on its way to another version:
    // nobody has done what it is there for, and a process that still has it tries again.
    let waiting: Vec<&str> = match is_unhandled {
        true => states.keys().copied().filter(is_retrying).collect(),
        false => open.clone(),
    };
    let lane = Lane::new(facts.type_name, open.iter().copied());
    // The handler that waits the shortest decides when the event is due. One that was not called
    // yet, because it is another process's, waits with them: due at once, the event would come
    // straight back to us, and our handler would have no back-off at all.
    let waits = waiting.iter().filter_map(|handler| {
        let state = states.get(handler)?;
        Some(
            policy
                .retry
                .backoff
                .wait(state.attempts.saturating_sub(1), entropy),
        )
    });
    match waits.min() {
        Some(after) => Disposition::Retry { after, lane },
        None => Disposition::Defer { lane },
    }
}

fn finalize(facts: &EventFacts<'_>) -> Disposition {
    let errors = facts.states.iter();
    let errors = errors.filter(|s| s.result != HandlerResult::Success);
    let errors: Vec<HandlerState> = errors.cloned().collect();
    if !errors.is_empty() {
        return Disposition::Finalize {
            errors,
            handlers: None,
        };
    }
    let handlers: Vec<&str> = facts.states.iter().map(|s| s.handler.as_str()).collect();
    // One number for the whole set of handlers, where all succeeded at once.
    let is_plain = !facts.has_history && !handlers.is_empty();
    Disposition::Finalize {
        errors: Vec::new(),
        handlers: is_plain.then(|| {
            let mut handlers = handlers;
            handlers.sort_unstable();
            handlers.join(",")
        }),
    }
}

#[cfg(test)]
mod tests;
