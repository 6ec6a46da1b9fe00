//! What happens to an event after its handlers have spoken.
//!
//! **Invariant:** an event is finalized only when every registered handler is terminal, or one of
//! them failed for good and the policy does not wait for the others; otherwise it comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::env::Entropy;
use tidegate_core::{Backoff, Retry};

use crate::port::{Disposition, HandlerResult, HandlerState, Lane};

/// When an event with an error that nobody can mend is finalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFatal {
    /// At once.
    #[default]
    Finalize,
    /// When every other handler is terminal too.
    AwaitOthers,
}

/// What happens to an event that no handler wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// What a fatal error does to the event.
    pub on_fatal: OnFatal,
    /// What becomes of events without handlers.
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

/// What is known of an event when nothing more can be done for it here and now.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its type.
    pub type_name: &'a str,
    /// Every handler that is registered for its type, anywhere.
    pub registered: &'a BTreeSet<String>,
    /// What handlers said, before and now.
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
pub fn decide(facts: &Facts<'_>, policy: &Policy, entropy: &mut dyn Entropy) -> Disposition {
    if facts.registered.is_empty() && facts.states.is_empty() {
        return match policy.unhandled {
            Unhandled::Keep => Disposition::Leave {
                lane: Lane::new(facts.type_name, []),
            },
            Unhandled::Complete => Disposition::Finalize {
                errors: Vec::new(),
                handlers: None,
            },
        };
    }
    let states: BTreeMap<&str, &HandlerState> = facts
        .states
        .iter()
        .map(|state| (state.handler.as_str(), state))
        .collect();
    let of = |handler: &str| progress(states.get(handler).copied(), &policy.retry);
    let is_failed = |handler: &&str| of(handler) == Progress::Failed;
    let failed = states.keys().copied().filter(|handler| is_failed(handler));
    let has_failed = failed.count() > 0;
    let open = facts.registered.iter().map(String::as_str);
    let open = open.filter(|h| matches!(of(h), Progress::Pending | Progress::Retrying));
    let open: Vec<&str> = open.collect();
    if open.is_empty() || (has_failed && policy.on_fatal == OnFatal::Finalize) {
        return finalize(facts, has_failed);
    }
    let lane = Lane::new(facts.type_name, open.iter().copied());
    // The handler that waits the shortest decides when the event is due. One that was not called
    // yet, because it is another process's, waits with them: due at once, the event would come
    // straight back to us, and our handler would have no back-off at all.
    let waits = open.iter().filter_map(|handler| {
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
        None => Disposition::Leave { lane },
    }
}

fn finalize(facts: &Facts<'_>, has_failed: bool) -> Disposition {
    if has_failed {
        let errors = facts
            .states
            .iter()
            .filter(|s| s.result != HandlerResult::Success);
        return Disposition::Finalize {
            errors: errors.cloned().collect(),
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
