//! Settles what the workers decided, a lease at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Shared, Workers, registry_sync};
use tidegate_core::{Classify, FailureClass, error_chain};

use crate::port::{Disposition, HandlerResult, HandlerState, LeaseId, Settlement, Transition};
use crate::{QueueError, limit};

/// Who is named where no handler failed, but the store refused what they said.
const STORE: &str = "store";

/// How long a part of a batch waits for the rest. A finished event that is not settled is handled again
/// after a crash, so it is short.
const LINGER: Duration = Duration::from_millis(3);
/// The pause after a settle that failed.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn settle(shared: &Shared, workers: &mut Workers) {
    loop {
        let (has_whole, has_some, is_stopping, is_idle) = {
            let state = shared.state();
            (
                state.has_whole(),
                state.has_outcomes(),
                state.is_stopping,
                state.is_idle(),
            )
        };
        if is_stopping && (is_idle || shared.is_past_stop()) {
            break;
        }
        if has_some {
            if !has_whole {
                shared.env.clock.sleep(LINGER).await;
            }
            flush(shared).await;
            continue;
        }
        tokio::select! {
            biased;
            () = shared.signals.outcome.notified() => {}
            // Wakes up now and then while stopping, to look at the time.
            () = shared.env.clock.sleep(PAUSE), if is_stopping => {}
            () = shared.stopping(), if !is_stopping => {}
        }
    }
    // Those that still run are past the stop timeout; their events come back.
    workers.end(&*shared.env.clock).await;
    give_back(shared).await;
    shared.end();
}

async fn flush(shared: &Shared) {
    let by_lease = shared.state().outcomes();
    let mut rows = Vec::new();
    for (key, transitions) in by_lease {
        match key {
            LeaseId::Row { .. } => rows.extend(transitions),
            LeaseId::Batch { .. } => settle_batch(shared, key, transitions).await,
        }
    }
    if !rows.is_empty() {
        settle_rows(shared, rows).await;
    }
    shared.signals.room.notify_one();
}

async fn settle_batch(shared: &Shared, key: LeaseId, mut transitions: Vec<Transition>) {
    let mut changes = 0_u32;
    loop {
        let policy = &shared.options.policy;
        let registry = shared
            .state()
            .bring_up_to_date(Some(key), &mut transitions, policy);
        let finished = shared.state().ends_with(key, transitions.len());
        let settlement = Settlement {
            registry: Some(registry),
            finished: finished.into_iter().collect(),
            transitions,
        };
        let error = match shared.queue.store().settle(&settlement).await {
            Ok(stale) => {
                settled(shared, key, &settlement.transitions, &stale);
                if settlement
                    .transitions
                    .iter()
                    .all(|one| stale.contains(&one.claim.id))
                {
                    look_after(shared, key).await;
                }
                return;
            }
            Err(QueueError::RegistryChanged) => {
                transitions = settlement.transitions;
                changes = changes.saturating_add(1);
                if read_registry(shared, changes).await {
                    continue;
                }
                shared.state().give_up(key);
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "could not settle a batch; retrying");
        transitions = settlement.transitions;
        if error.class() == FailureClass::Permanent {
            if transitions.len() > 1 {
                one_by_one(shared, key, transitions).await;
                return;
            }
            let Some(ended) = transitions.pop().and_then(|one| refused(one, &error)) else {
                // Asking again would be for nothing. It comes back when the lease ends.
                tracing::error!(%error, "could not settle an event; letting its lease expire");
                shared.state().leave(key);
                return;
            };
            transitions = vec![ended];
            continue;
        }
        shared.env.clock.sleep(PAUSE).await;
        if error.may_have_happened() {
            transitions = match reopen(shared, key, transitions).await {
                Some(left) => left,
                None => return,
            };
        }
        let is_over = transitions.is_empty() && shared.state().ends_with(key, 0).is_none();
        if is_over {
            return;
        }
        if shared.is_past_stop() {
            // The lease runs out, and others handle them again.
            shared.state().give_up(key);
            return;
        }
    }
}

/// None of what was settled was ours any more. Either these events alone left the lease, and the
/// others are still to be handled, or all of it is somebody else's; asking for more time tells.
async fn look_after(shared: &Shared, key: LeaseId) {
    let Some(held) = shared.state().newest(key) else {
        return;
    };
    let store = shared.queue.store();
    match store.renew(&[held], shared.options.lease).await {
        Ok(lost) => shared.state().lose(&lost),
        // The next renewal asks again.
        Err(error) => tracing::warn!(%error, "could not check a lease"),
    }
}

/// One of the transitions is what the store refuses, and the others are not to suffer for it.
async fn one_by_one(shared: &Shared, key: LeaseId, transitions: Vec<Transition>) {
    for mut one in transitions {
        // The lease may be lost, or have got a newer token, on the way.
        let Some(newest) = shared.state().newest(key) else {
            shared.state().report.stale += 1;
            continue;
        };
        one.claim.lease = newest;
        Box::pin(settle_batch(shared, key, vec![one])).await;
    }
}

/// The end of an event whose result the store refuses for good: trying again would call its
/// handlers for ever, so it ends among the dead letters, with the reason, and can be given back from
/// there. None where that is what was refused.
fn refused(one: Transition, error: &QueueError) -> Option<Transition> {
    let is_ended = match &one.to {
        Disposition::Finalize { errors, .. } => errors.iter().any(|e| e.handler == STORE),
        Disposition::Retry { .. } | Disposition::Defer { .. } | Disposition::Park { .. } => false,
    };
    if is_ended {
        return None;
    }
    let reason = error_chain(error);
    tracing::error!(
        event = one.claim.id,
        trace_id = one.claim.trace_id.map(tracing::field::display),
        reason,
        "store refused the result; moving the event to dead letters"
    );
    let errors = vec![HandlerState {
        handler: STORE.to_owned(),
        result: HandlerResult::UnrecoverableError,
        attempts: 0,
        error: Some(limit::kept(&format!("queue.refused: {reason}"))),
    }];
    Some(Transition {
        to: Disposition::Finalize {
            errors,
            handlers: None,
        },
        states: Vec::new(),
        ..one
    })
}

/// After an answer that was lost: what of the transitions did not happen, under a new token.
async fn reopen(
    shared: &Shared,
    key: LeaseId,
    transitions: Vec<Transition>,
) -> Option<Vec<Transition>> {
    let (batch, token) = match shared.state().newest(key)? {
        LeaseId::Batch { batch, token } => (batch, token),
        LeaseId::Row { .. } => return None,
    };
    while !shared.is_past_stop() {
        match shared.queue.store().reopen(batch, token).await {
            Ok(Some((next, left))) => {
                let held = LeaseId::Batch { batch, token: next };
                let left: BTreeSet<i64> = left.into_iter().collect();
                shared.state().reopened(key, held, left.len());
                let kept = transitions
                    .into_iter()
                    .filter(|one| left.contains(&one.claim.id));
                let renewed = kept.map(|mut one| {
                    one.claim.lease = held;
                    one
                });
                return Some(renewed.collect());
            }
            // It was settled whole, or is somebody else's: either way there is nothing to do.
            Ok(None) => break,
            // Either our token is the newest or the next one is; and the next one may as well be
            // that of somebody who took the batch over. The rest comes back when the lease
            // ends.
            Err(error) if error.may_have_happened() => {
                tracing::warn!(%error, "could not reopen a batch; letting its lease expire");
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "could not reopen a batch; retrying");
                shared.env.clock.sleep(PAUSE).await;
            }
        }
    }
    shared.state().give_up(key);
    None
}

async fn settle_rows(shared: &Shared, transitions: Vec<Transition>) {
    let mut settlement = Settlement {
        registry: None,
        transitions,
        finished: Vec::new(),
    };
    let mut changes = 0_u32;
    loop {
        let policy = &shared.options.policy;
        let transitions = &mut settlement.transitions;
        settlement.registry = Some(shared.state().bring_up_to_date(None, transitions, policy));
        match shared.queue.store().settle(&settlement).await {
            Ok(stale) => {
                for one in &settlement.transitions {
                    settled(shared, one.claim.lease, std::slice::from_ref(one), &stale);
                }
                return;
            }
            Err(QueueError::RegistryChanged) => {
                changes = changes.saturating_add(1);
                if !read_registry(shared, changes).await {
                    return;
                }
            }
            Err(error) if error.class() == FailureClass::Permanent => {
                if settlement.transitions.len() > 1 {
                    for one in settlement.transitions {
                        Box::pin(settle_rows(shared, vec![one])).await;
                    }
                    return;
                }
                let held = settlement.transitions.first().map(|one| one.claim.lease);
                let ended = settlement
                    .transitions
                    .pop()
                    .and_then(|one| refused(one, &error));
                let Some(ended) = ended else {
                    tracing::error!(%error, "could not settle an event; letting its lease expire");
                    held.into_iter()
                        .for_each(|held| shared.state().give_up(held));
                    return;
                };
                settlement.transitions = vec![ended];
            }
            // A row whose settle happened has no such claim any more: asking again is safe.
            Err(error) => {
                tracing::warn!(%error, "could not settle events; retrying");
                shared.env.clock.sleep(PAUSE).await;
                if shared.is_past_stop() {
                    return;
                }
            }
        }
    }
}

/// Handlers came or went while events were handled, so many times in a row: reads who there is now. Says
/// no when the time after the stop is over; the leases run out then.
async fn read_registry(shared: &Shared, changes: u32) -> bool {
    let mut is_to_wait = changes > 1;
    loop {
        if is_to_wait {
            shared.env.clock.sleep(PAUSE).await;
        }
        if shared.is_past_stop() {
            return false;
        }
        match registry_sync::refresh(shared).await {
            Ok(()) => return true,
            Err(error) => tracing::warn!(%error, "could not read the handler registry"),
        }
        is_to_wait = true;
    }
}

fn settled(shared: &Shared, key: LeaseId, transitions: &[Transition], stale: &[i64]) {
    let mut state = shared.state();
    for one in transitions {
        if stale.contains(&one.claim.id) {
            state.report.stale += 1;
            continue;
        }
        match one.to {
            Disposition::Finalize { .. } => state.report.finalized += 1,
            Disposition::Retry { .. } => state.report.retried += 1,
            Disposition::Defer { .. } | Disposition::Park { .. } => {}
        }
    }
    let is_poison = state.is_poison(key);
    state.settled(key, transitions.len());
    drop(state);
    if is_poison {
        // The next one goes now that this one is done.
        shared.signals.rows.notify_one();
    }
    // Behind a row with a key others may be parked, and the first of them is free now. They go one
    // at a time, and would go no faster than the polls.
    let is_row = matches!(key, LeaseId::Row { .. });
    if is_row && transitions.iter().any(|one| one.key.is_some()) {
        shared.signals.rows.notify_one();
    }
    // The process that has the other handlers is told, as by a publish.
    let is_left = |one: &Transition| match &one.to {
        Disposition::Defer { lane } => !lane.wanted.is_empty(),
        Disposition::Finalize { .. } | Disposition::Retry { .. } | Disposition::Park { .. } => {
            false
        }
    };
    if transitions.iter().any(is_left) {
        shared.queue.store().wake();
    }
}

/// Ends the leases of what was not begun, so that others take it at once.
async fn give_back(shared: &Shared) {
    let held = shared.state().lease_ids();
    if held.is_empty() {
        return;
    }
    let given: Result<_, QueueError> = shared.queue.store().renew(&held, Duration::ZERO).await;
    if let Err(error) = given {
        tracing::warn!(%error, "could not release leases; letting them expire");
    }
}
