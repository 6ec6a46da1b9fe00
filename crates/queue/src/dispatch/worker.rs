//! A worker: takes an event, calls its handlers one after the other, and decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::env::CatchPanic;
use tidegate_core::{Code, Failure, FailureClass, error_chain};

use super::Shared;
use super::state::HandlerResults;
use crate::decide::{PoisonState, never_answered, poison_state, to_call};
use crate::handler::{AnyHandler, Context, Handled, RawEvent};
use crate::port::{ClaimedEvent, HandlerResult, HandlerState};
use crate::{limit, telemetry};

pub(super) async fn work(shared: Arc<Shared>) {
    loop {
        let notified = shared.signals.work.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let taken = shared.state().take();
        match taken {
            Some(event) => {
                handle(&shared, event).await;
                shared.signals.outcome.notify_one();
            }
            None if shared.state().is_stopping => return,
            None => notified.await,
        }
    }
}

/// The outcome of calling the handlers.
enum Called {
    /// They spoke; and whether one of them wrote its result down by itself.
    Spoke { has_recorded: bool },
    /// The claim is not ours any more, or nobody knows whether a result was written.
    Lost,
}

async fn handle(shared: &Arc<Shared>, event: ClaimedEvent) {
    let none = BTreeSet::new();
    let mine = shared.mine.get(&event.type_name).unwrap_or(&none);
    let policy = &shared.options.policy;
    let had_states = !event.states.is_empty();
    let mut states = event.states.clone();
    let mut new_states: Vec<HandlerState> = Vec::new();
    let mut has_recorded = false;
    let poison_state = poison_state(event.abandoned, &policy.retry);
    if poison_state == PoisonState::Suspected && !confirm(shared, &event).await {
        let_go(shared, &event);
        return;
    }
    for id in to_call(mine, &event.states, &policy.retry) {
        if poison_state == PoisonState::GivenUp {
            tracing::error!(
                event = event.claim.id,
                trace_id = event.claim.trace_id.map(tracing::field::display),
                handler = id,
                "poison event; its handler is not called again"
            );
            new_states.push(never_answered(id, event.abandoned));
            continue;
        }
        let Some(handler) = shared.handlers.get(id) else {
            continue;
        };
        let before = event.states.iter().find(|state| state.handler == id);
        let attempt = before.map_or(0, |state| state.attempts).saturating_add(1);
        match call(shared, handler, &event, attempt, &mut new_states).await {
            Called::Spoke { has_recorded: has } => has_recorded |= has,
            Called::Lost => {
                let_go(shared, &event);
                return;
            }
        }
    }
    for state in &new_states {
        states.retain(|old| old.handler != state.handler);
        states.push(state.clone());
    }
    let mut state = shared.state();
    let results = HandlerResults {
        version: state.registry.version,
        type_name: event.type_name,
        states,
        new_states,
        has_history: had_states || has_recorded,
    };
    let (to, remembered) = state.verdict(&results, policy);
    if results.states.is_empty() && state.registry.of(&results.type_name).next().is_none() {
        telemetry::unhandled(&results.type_name);
    }
    telemetry::attempts(event.attempts, &to);
    state.decided(event.claim, event.key, (to, remembered), results);
}

/// Nobody knows what became of an event, or it is not ours: its lease runs out.
fn let_go(shared: &Shared, event: &ClaimedEvent) {
    shared.state().abandon(event);
    // Nothing of it is settled, so nobody else says that there is room.
    shared.signals.room.notify_one();
}

/// Says that the claim of a poison candidate was heard of and that its handlers are called now: should the lease
/// run out from here on, that counts.
async fn confirm(shared: &Shared, event: &ClaimedEvent) -> bool {
    let current = shared.state().current(&event.claim);
    let Some(current) = current else {
        return false;
    };
    let store = shared.queue.store();
    match store.renew(&[current.lease], shared.options.lease).await {
        Ok(lost) => lost.is_empty(),
        Err(error) => {
            tracing::warn!(%error, "could not renew the lease of a possible poison event; letting it expire");
            false
        }
    }
}

async fn call(
    shared: &Arc<Shared>,
    handler: &AnyHandler,
    event: &ClaimedEvent,
    attempt: u32,
    new_states: &mut Vec<HandlerState>,
) -> Called {
    let queue = &shared.queue;
    let (store, ids) = (Arc::clone(queue.store()), queue.ids().clone());
    let mut context = Context::new(store, ids, &handler.id, event.claim.event_id);
    let (clock, limit) = (&*shared.env.clock, shared.options.handler_timeout);
    let began = clock.elapsed();
    let raw = RawEvent { event, attempt };
    let handled = {
        // Making the future is the handler's code too, so that it is made where panics are caught.
        let lent = &mut context;
        let call = Box::pin(async { (handler.act)(&raw, lent).await });
        let failed = |code, text| {
            let failure = Failure::transient(Code::from_static(code), text);
            Handled::TransientError(failure)
        };
        tokio::select! {
            biased;
            handled = CatchPanic(call) => {
                handled.unwrap_or_else(|panic| failed("handler.panic", panic))
            }
            // Begun only when the first poll does not end the call, which spares most calls a timer.
            () = async { clock.sleep(limit).await } => {
                failed("timeout.handler", format!("no result within {limit:?}"))
            }
        }
    };
    let took = clock.elapsed().saturating_sub(began);
    let (result, failure) = match &handled {
        Handled::Success => (HandlerResult::Success, None),
        Handled::TransientError(failure) => (HandlerResult::TransientError, Some(failure)),
        Handled::UnrecoverableError(failure) => (HandlerResult::UnrecoverableError, Some(failure)),
    };
    telemetry::called(&event.type_name, &handler.id, result, took);
    // Such a failure is not about the event but about everything the handler would be called for.
    let is_transient = result == HandlerResult::TransientError;
    let broken = failure.filter(|failure| is_transient && failure.class == FailureClass::System);
    if let Some(failure) = broken {
        shared.stop_for(&handler.id, failure);
    }
    let mut state = HandlerState {
        handler: handler.id.clone(),
        result,
        // A failure that is not about the event uses none of its attempts up.
        attempts: attempt - u32::from(broken.is_some()),
        error: failure.map(|failure| limit::kept(&failure.to_string())),
    };
    let mut has_recorded = false;
    if result == HandlerResult::Success && context.is_used() {
        // The claim may have got a newer token meanwhile.
        let current = shared.state().current(&event.claim);
        let Some(current) = current else {
            return Called::Lost;
        };
        let (tx, mut commit) = context.into_commit(event, state.clone());
        commit.claim = current;
        match queue.store().record(tx, &commit).await {
            Ok(true) => has_recorded = true,
            Ok(false) => return Called::Lost,
            // It may stand in the tables as a success, which must not be written over.
            Err(error) if error.may_have_happened() => return Called::Lost,
            Err(error) => {
                state.result = HandlerResult::TransientError;
                state.error = Some(limit::kept(&format!(
                    "queue.store: {}",
                    error_chain(&error)
                )));
            }
        }
    }
    new_states.push(state);
    Called::Spoke { has_recorded }
}
