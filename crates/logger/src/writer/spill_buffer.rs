//! The events that the spill writer holds.

use std::collections::VecDeque;

use tidegate_core::books::LossReason;

use crate::state::{LoggerState, Queued};

/// Events that the spill writer has taken out of the spill queue, in their order: each stays here
/// until the disk has it.
///
/// It has a lock of its own, which is never held while the disk is asked. So a stop of the logger
/// finds the events of a disk that never answers.
#[derive(Default)]
pub(crate) struct SpillBuffer {
    first: VecDeque<Queued>,
    /// Those behind the first ones, exchanged as a whole for the spill queue. The lock that
    /// `log` needs is held for a moment only, and nothing is copied.
    later: VecDeque<Queued>,
    /// How many of all these somebody waits for.
    pub(crate) awaited: usize,
    /// Whether the logger has stopped without waiting for the disk any longer.
    is_given_up: bool,
}

impl SpillBuffer {
    /// Takes the spill queue, if there is room for it as a whole.
    pub(crate) fn refill(&mut self, state: &mut LoggerState) {
        if self.later.is_empty() && !self.is_given_up {
            std::mem::swap(&mut state.spill, &mut self.later);
            state.spilling += self.later.len();
            self.awaited += std::mem::take(&mut state.awaited);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.later.len()
    }

    /// Whether the logger has stopped without waiting for the disk any longer.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// One of them, counted from the front.
    pub(crate) fn get(&self, index: usize) -> &Queued {
        let first = self.first.get(index);
        first.unwrap_or_else(|| &self.later[index - self.first.len()])
    }

    /// Takes the first so many out.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Queued> {
        let of_first = count.min(self.first.len());
        let taken: Vec<Queued> = self
            .first
            .drain(..of_first)
            .chain(self.later.drain(..count - of_first))
            .collect();
        let awaited = taken.iter().filter(|queued| queued.waiter.is_some());
        self.awaited -= awaited.count();
        self.advance();
        taken
    }

    /// Takes all of them out, for good: answers of the disk come too late from now on.
    pub(crate) fn give_up(&mut self) -> Vec<Queued> {
        self.is_given_up = true;
        self.take(self.len())
    }

    /// Puts events in front again.
    pub(crate) fn put_back(&mut self, events: Vec<Queued>) {
        for queued in events.into_iter().rev() {
            self.awaited += usize::from(queued.waiter.is_some());
            self.first.push_front(queued);
        }
    }

    /// Removes the first so many, notifies their waiters, and gives back the ones that were refused;
    /// also says whether anybody waited.
    pub(crate) fn remove_written(
        &mut self,
        count: usize,
        refused: Vec<(usize, LossReason)>,
    ) -> (bool, Vec<(Queued, LossReason)>) {
        let mut over = Vec::new();
        let mut was_awaited = false;
        if self.awaited == 0 && refused.is_empty() {
            // Dropped where they lie.
            let of_first = count.min(self.first.len());
            self.first.drain(..of_first);
            self.later.drain(..count - of_first);
            self.advance();
            return (was_awaited, over);
        }
        let mut refused = refused.into_iter().peekable();
        for (index, mut queued) in self.take(count).into_iter().enumerate() {
            match refused.next_if(|(at, _)| *at == index) {
                Some((_, reason)) => over.push((queued, reason)),
                None => {
                    was_awaited |= queued.waiter.is_some();
                    queued.notify_waiter(Ok(()));
                }
            }
        }
        (was_awaited, over)
    }

    fn advance(&mut self) {
        if self.first.is_empty() {
            std::mem::swap(&mut self.first, &mut self.later);
        }
    }
}
