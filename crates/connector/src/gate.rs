//! Whether records of a binding flow: its pause reasons and its breaker, shared by main topic and tiers.
//!
//! **Invariant:** whoever adds a reason removes that one alone. A delay or back-pressure of one partition
//! is no reason of the binding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::breaker::{Breaker, BreakerChange, BreakerState, CallResult, Permit};
use tidegate_core::env::Clock;
use tidegate_core::{Mutex, PauseReason, PauseReasons};

use crate::lifecycle::ContainerState;
use crate::options::BreakerOptions;
use crate::planted_bugs::{PlantedBug, is};
use crate::signal::ChangeSignal;
use crate::telemetry;

/// Whether records of a binding flow.
pub(crate) struct BindingGate {
    binding: String,
    clock: Arc<dyn Clock>,
    pauses_on_open: bool,
    has_breaker: bool,
    state: Mutex<GateState>,
    /// A copy of `state.reasons.flows()`, which runs ask before each record.
    is_open: AtomicBool,
    /// Counts changes, so that consumers look again.
    changed: ChangeSignal,
}

struct GateState {
    /// The state by the commands alone.
    lifecycle: ContainerState,
    /// Whether it stopped by itself since.
    has_ended: bool,
    reasons: PauseReasons,
    breaker: Breaker,
    /// Whether a record is being tried alone because of a System failure.
    is_probing: bool,
    /// Why the binding was paused, in the words of the failure.
    why: Option<String>,
}

impl GateState {
    fn new(options: &BreakerOptions, lifecycle: ContainerState) -> Self {
        Self {
            lifecycle,
            has_ended: false,
            reasons: PauseReasons::default(),
            breaker: Breaker::new(options.rule.clone()),
            is_probing: false,
            why: None,
        }
    }

    /// The state that people see: paused means that the set of reasons is not empty.
    fn shown(&self) -> ContainerState {
        match self.lifecycle {
            ContainerState::Running if self.has_ended => ContainerState::Stopped,
            ContainerState::Running if !self.reasons.flows() => ContainerState::Paused,
            ContainerState::Created
            | ContainerState::Running
            | ContainerState::Paused
            | ContainerState::Stopped
            | ContainerState::Destroyed => self.lifecycle,
        }
    }
}

/// The answer of the breaker before an attempt.
pub(crate) enum BreakerAnswer<'a> {
    /// Go on.
    Go(BreakerPermit<'a>),
    /// Keep the record: the breaker is open, or its probes are all out.
    Keep,
    /// Fail at once, as the options ask.
    FailFast,
}

/// The right to one call. Dropped without a result, it goes back.
pub(crate) struct BreakerPermit<'a> {
    gate: &'a BindingGate,
    permit: Option<Permit>,
}

impl BreakerPermit<'_> {
    /// Gives it back with the result of its call.
    pub(crate) fn record(mut self, result: CallResult, took: Duration) {
        if let Some(permit) = self.permit.take() {
            self.gate.record(permit, result, took);
        }
    }
}

impl Drop for BreakerPermit<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.gate.state.lock().breaker.release(permit);
            self.gate.touch();
        }
    }
}

impl BindingGate {
    pub(crate) fn new(binding: &str, options: &BreakerOptions, clock: Arc<dyn Clock>) -> Self {
        let state = GateState::new(options, ContainerState::Created);
        telemetry::breaker(binding, state.breaker.state());
        telemetry::state(binding, state.shown());
        Self {
            binding: binding.to_owned(),
            clock,
            pauses_on_open: options.pauses_on_open,
            has_breaker: options.is_enabled,
            state: Mutex::new(state),
            is_open: AtomicBool::new(true),
            changed: ChangeSignal::default(),
        }
    }

    /// The state by the commands alone.
    pub(crate) fn lifecycle(&self) -> ContainerState {
        self.state.lock().lifecycle
    }

    /// The state that people see.
    pub(crate) fn shown(&self) -> ContainerState {
        self.state.lock().shown()
    }

    /// A command changed the state.
    pub(crate) fn set_lifecycle(&self, lifecycle: ContainerState) {
        let mut state = self.state.lock();
        (state.lifecycle, state.has_ended) = (lifecycle, false);
        self.publish(&state);
    }

    /// The binding stopped by itself.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        self.publish(&state);
    }

    /// Whether nothing stands in the way.
    pub(crate) fn flows(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Whether the record that is tried alone may go now: only the System failure stands in the way.
    pub(crate) fn lets_probe_through(&self) -> bool {
        let mut reasons = self.state.lock().reasons;
        reasons.remove(PauseReason::System);
        reasons.flows()
    }

    pub(crate) fn reasons(&self) -> PauseReasons {
        self.state.lock().reasons
    }

    /// Why it does not flow, as far as a failure said so.
    pub(crate) fn why(&self) -> Option<String> {
        self.state.lock().why.clone()
    }

    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.state.lock().breaker.state()
    }

    /// Tells when to look again.
    pub(crate) fn changes(&self) -> &ChangeSignal {
        &self.changed
    }

    /// Adds a reason, and says whether it is new.
    pub(crate) fn add(&self, reason: PauseReason, why: Option<String>) -> bool {
        let mut state = self.state.lock();
        let is_new = state.reasons.add(reason);
        if why.is_some() {
            state.why = why;
        }
        self.publish(&state);
        is_new
    }

    /// Takes a reason away, and says which remain.
    pub(crate) fn remove(&self, reason: PauseReason) -> PauseReasons {
        let mut state = self.state.lock();
        state.reasons.remove(reason);
        if state.reasons.flows() {
            state.why = None;
        }
        self.publish(&state);
        state.reasons
    }

    /// Forgets all reasons and everything that the breaker has seen, for a new start.
    pub(crate) fn reset(&self, options: &BreakerOptions) {
        let mut state = self.state.lock();
        *state = GateState::new(options, state.lifecycle);
        telemetry::breaker(&self.binding, state.breaker.state());
        self.publish(&state);
    }

    /// A record failed in a way that is not about it. Says whether this record is the one to be tried alone
    /// from now on.
    pub(crate) fn begin_probe(&self, why: String) -> bool {
        let mut state = self.state.lock();
        state.reasons.add(PauseReason::System);
        state.why = Some(why);
        let is_first = !std::mem::replace(&mut state.is_probing, true);
        self.publish(&state);
        is_first
    }

    /// The record that was tried alone got another answer, or is somebody else's now.
    pub(crate) fn end_probe(&self) {
        self.state.lock().is_probing = false;
        self.remove(PauseReason::System);
    }

    /// The right to one call.
    pub(crate) fn permit(&self) -> BreakerAnswer<'_> {
        if !self.has_breaker {
            return BreakerAnswer::Go(BreakerPermit {
                gate: self,
                permit: None,
            });
        }
        match self.state.lock().breaker.try_acquire(self.clock.elapsed()) {
            Some(permit) => BreakerAnswer::Go(BreakerPermit {
                gate: self,
                permit: Some(permit),
            }),
            None if self.pauses_on_open => BreakerAnswer::Keep,
            None => BreakerAnswer::FailFast,
        }
    }

    /// Whether the breaker keeps records from moving on.
    pub(crate) fn is_breaker_open(&self) -> bool {
        self.has_breaker
            && self.pauses_on_open
            && self.state.lock().breaker.state() == BreakerState::Open
    }

    /// Whether the breaker is finding out whether the other side answers.
    pub(crate) fn is_half_open(&self) -> bool {
        self.has_breaker
            && self.pauses_on_open
            && self.state.lock().breaker.state() == BreakerState::HalfOpen
    }

    /// Whether the breaker would let a call through now.
    pub(crate) fn has_permits(&self) -> bool {
        if !self.has_breaker || !self.pauses_on_open {
            return true;
        }
        let state = self.state.lock();
        match state.breaker.state() {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            // A half-open breaker has a timer once its probes are all out.
            BreakerState::HalfOpen => state.breaker.wakes_at().is_none(),
        }
    }

    /// When [`tick`](Self::tick) next has something to do.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        match self.has_breaker {
            true => self.state.lock().breaker.wakes_at(),
            false => None,
        }
    }

    /// Does what is due.
    pub(crate) fn tick(&self) {
        if self.has_breaker {
            let mut state = self.state.lock();
            let change = state.breaker.tick(self.clock.elapsed());
            self.follow(&mut state, change);
        }
    }

    fn record(&self, permit: Permit, result: CallResult, took: Duration) {
        let mut state = self.state.lock();
        let change = state
            .breaker
            .record(permit, result, took, self.clock.elapsed());
        self.follow(&mut state, change);
    }

    /// A change of the breaker is a change of the reasons.
    fn follow(&self, state: &mut GateState, change: Option<BreakerChange>) {
        let Some(BreakerChange { from, to, .. }) = change else {
            return;
        };
        match to {
            BreakerState::Open => {
                tracing::warn!(binding = self.binding, %from, "the breaker opened");
                if self.pauses_on_open {
                    state.reasons.add(PauseReason::Breaker);
                }
            }
            BreakerState::HalfOpen | BreakerState::Closed => {
                tracing::info!(binding = self.binding, %from, %to, "the breaker changed");
                state.reasons.remove(PauseReason::Breaker);
                if is(PlantedBug::ResumesForAll) {
                    state.reasons = PauseReasons::default();
                }
            }
        }
        telemetry::breaker(&self.binding, to);
        self.publish(state);
    }

    fn publish(&self, state: &GateState) {
        self.is_open.store(state.reasons.flows(), Ordering::Release);
        telemetry::state(&self.binding, state.shown());
        self.touch();
    }

    fn touch(&self) {
        self.changed.touch();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::breaker::{Rule, Trip};
    use tidegate_core::env::Env;

    use super::*;

    fn gate(pauses_on_open: bool) -> BindingGate {
        let options = BreakerOptions {
            is_enabled: true,
            rule: Rule {
                trip: Trip::InARow { failures: 2 },
                open_for: Duration::ZERO,
                probes: 1,
            },
            pauses_on_open,
        };
        BindingGate::new("orders", &options, Env::system().clock)
    }

    fn fail(gate: &BindingGate) {
        match gate.permit() {
            BreakerAnswer::Go(permit) => permit.record(CallResult::Failure, Duration::ZERO),
            BreakerAnswer::Keep | BreakerAnswer::FailFast => panic!("the breaker is open"),
        }
    }

    #[test]
    fn a07_nobody_resumes_what_somebody_else_paused() {
        let gate = gate(true);
        gate.add(PauseReason::Operator, None);
        fail(&gate);
        fail(&gate);
        assert_eq!(gate.reasons().to_string(), "operator, breaker");
        gate.tick();
        assert_eq!(gate.breaker_state(), BreakerState::HalfOpen);
        assert_eq!(gate.reasons().to_string(), "operator");
        assert!(!gate.flows());
        assert!(gate.begin_probe("no".to_owned()));
        assert!(
            !gate.begin_probe("no".to_owned()),
            "one record is tried alone"
        );
        assert!(!gate.lets_probe_through());
        assert_eq!(gate.remove(PauseReason::Operator).to_string(), "system");
        assert!(gate.lets_probe_through() && !gate.flows());
        gate.end_probe();
        assert!(gate.flows());
    }

    #[test]
    fn c41_half_open_lets_the_permitted_number_through() {
        let gate = gate(true);
        fail(&gate);
        fail(&gate);
        assert!(matches!(gate.permit(), BreakerAnswer::Keep));
        gate.tick();
        let BreakerAnswer::Go(probe) = gate.permit() else {
            panic!("a probe goes through");
        };
        assert!(matches!(gate.permit(), BreakerAnswer::Keep));
        drop(probe);
        assert!(
            matches!(gate.permit(), BreakerAnswer::Go(_)),
            "it was given back"
        );
    }

    #[test]
    fn without_a_pause_calls_fail_fast() {
        let gate = gate(false);
        fail(&gate);
        fail(&gate);
        assert!(gate.flows() && !gate.is_breaker_open());
        assert!(matches!(gate.permit(), BreakerAnswer::FailFast));
    }
}
