//! Events that a task holds.

use std::collections::VecDeque;

use tidegate_core::books::LossReason;

use crate::loss::reason;
use crate::state::{LoggerPhase, Queued};

use super::engine::Engine;

/// Events that a task holds. Dropping it with events, because the task was canceled or has panicked,
/// gives them to the spill writer, or reports them as lost.
pub(crate) struct BatchGuard<'a> {
    engine: &'a Engine,
    events: VecDeque<Queued>,
    /// How many of them count as being sent.
    sending: usize,
    reason: LossReason,
}

impl<'a> BatchGuard<'a> {
    /// Guards events; without a spill they would be lost for this reason.
    pub(crate) fn new(engine: &'a Engine, events: Vec<Queued>, reason: LossReason) -> Self {
        Self {
            engine,
            events: events.into(),
            sending: 0,
            reason,
        }
    }

    /// Guards a batch that counts as being sent until the guard is dropped.
    pub(crate) fn sending(engine: &'a Engine, events: Vec<Queued>) -> Self {
        let sending = events.len();
        let mut guard = Self::new(engine, events, reason::SHUTDOWN_QUEUED);
        guard.sending = sending;
        guard
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &Queued> {
        self.events.iter()
    }

    /// Splits the events behind the first `count` off.
    pub(crate) fn split_off(&mut self, count: usize) -> Self {
        let events = self.events.split_off(count);
        let sending = self.sending.min(events.len());
        self.sending -= sending;
        Self {
            engine: self.engine,
            events,
            sending,
            reason: self.reason.clone(),
        }
    }

    /// Gives all of them to somebody who places them.
    pub(crate) fn take(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.events).into()
    }

    /// Gives to the spill writer what it has room for, and says whether that was all. Without a
    /// spill, or after it was given up, all are lost.
    pub(crate) fn spill_fitting(&mut self) -> bool {
        let engine = self.engine;
        if self.events.is_empty() {
            return true;
        }
        let mut state = engine.state();
        let lost = if engine.config.spillover_path.is_none() {
            Some(self.reason.clone())
        } else {
            let is_given_up = state.spill_failure.is_some();
            is_given_up.then_some(reason::SPILLOVER_WRITE_ERROR)
        };
        if let Some(reason) = lost {
            drop(state);
            engine.lose(self.take(), reason);
            return true;
        }
        // While we stop nothing new comes in, so what is in memory is bounded already, and nobody
        // may be left holding events that a hanging disk would keep for ever.
        let is_stopping = state.phase > LoggerPhase::Running;
        while (is_stopping || state.spill_depth() < engine.config.queue_capacity)
            && let Some(event) = self.events.pop_front()
        {
            state.push_spill(event);
        }
        drop(state);
        engine.writer_wake.notify_one();
        self.events.is_empty()
    }
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        self.engine
            .spill_or_lose_now(self.take(), self.reason.clone());
        if self.sending > 0 {
            self.engine.state().sending -= self.sending;
            self.engine.progress.notify_waiters();
        }
    }
}
