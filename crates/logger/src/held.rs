//! Events in the hands of a task.

use std::collections::VecDeque;

use tidegate_core::books::LossReason;

use crate::loss::reason;
use crate::state::{Phase, Queued};

use super::hub::Hub;

/// Events in the hands of a task. Whoever lets go of them without having placed them, because it
/// was canceled or has panicked, gives them to the disk, or reports them.
pub(crate) struct Held<'a> {
    hub: &'a Hub,
    events: VecDeque<Queued>,
    /// How many of them count as being sent.
    sending: usize,
    reason: LossReason,
}

impl<'a> Held<'a> {
    /// Takes events in hand; without a spill they would be lost for this reason.
    pub(crate) fn new(hub: &'a Hub, events: Vec<Queued>, reason: LossReason) -> Self {
        Self {
            hub,
            events: events.into(),
            sending: 0,
            reason,
        }
    }

    /// Takes a batch in hand that counts as being sent until it is let go of.
    pub(crate) fn sending(hub: &'a Hub, events: Vec<Queued>) -> Self {
        let sending = events.len();
        let mut held = Self::new(hub, events, reason::SHUTDOWN_QUEUED);
        held.sending = sending;
        held
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
            hub: self.hub,
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
    pub(crate) fn spill_what_fits(&mut self) -> bool {
        let hub = self.hub;
        if self.events.is_empty() {
            return true;
        }
        let mut state = hub.state();
        let lost = if hub.config.spillover_path.is_none() {
            Some(self.reason.clone())
        } else {
            let is_given_up = state.spill_failure.is_some();
            is_given_up.then_some(reason::SPILLOVER_WRITE_ERROR)
        };
        if let Some(reason) = lost {
            drop(state);
            hub.lose(self.take(), reason);
            return true;
        }
        // While we stop nothing new comes in, so what is in memory is bounded already, and nobody
        // may be left holding events that a hanging disk would keep for ever.
        let is_stopping = state.phase > Phase::Running;
        while (is_stopping || state.spill_depth() < hub.config.queue_capacity)
            && let Some(event) = self.events.pop_front()
        {
            state.push_spill(event);
        }
        drop(state);
        hub.writer_bell.notify_one();
        self.events.is_empty()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.hub.spill_or_lose_now(self.take(), self.reason.clone());
        if self.sending > 0 {
            self.hub.state().sending -= self.sending;
            self.hub.progress.notify_waiters();
        }
    }
}
