//! Events that a task holds.

use std::collections::VecDeque;

use tidegate_core::books::LossReason;

use crate::loss::reason;
use crate::state::Queued;

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

    /// Gives to the spill writer what it has room for, and says whether that was all.
    fn spill_fitting(&mut self) -> bool {
        let capacity = self.engine.config.options.queue_capacity;
        self.engine
            .spill_up_to(capacity, &mut self.events, &self.reason);
        self.events.is_empty()
    }
}

impl Engine {
    /// Gives events to the spill writer, in their order, and waits for room where there is none.
    /// Without a spill they are lost for the given reason. If canceled, or never waited for, they go
    /// there without waiting.
    pub(crate) fn spill_or_lose(
        &self,
        events: Vec<Queued>,
        reason: LossReason,
    ) -> impl Future<Output = ()> + Send {
        let mut guard = BatchGuard::new(self, events, reason);
        async move {
            while !guard.spill_fitting() {
                // Made before it is tried again, so that room made in between is not missed.
                let room = self.room.notified();
                if guard.spill_fitting() {
                    break;
                }
                room.await;
            }
        }
    }
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        self.engine
            .spill_up_to(usize::MAX, &mut self.events, &self.reason);
        if self.sending > 0 {
            self.engine.state().sending -= self.sending;
            self.engine.progress.notify_waiters();
        }
    }
}
