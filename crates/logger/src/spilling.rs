//! How events pass from the spill queue through the spill buffer to the disk, or back.
//!
//! **Invariant:** a stop of the logger may empty the buffer at any moment, under the lock of the buffer.
//! So events that leave the buffer are stored elsewhere or posted as lost, and the counts follow,
//! before that lock is released. Losses are reported right after.

use tidegate_core::books::{LossReason, Place, postings};
use tidegate_core::breaker::BreakerState;

use crate::config::OnFull;
use crate::loss::reason;
use crate::spill::BatchWritten;
use crate::state::{LoggerPhase, LoggerState, Queued};
use crate::writer::SpillBuffer;

use super::engine::{Engine, PostedLosses};

/// The outcome of a spill write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpillOutcome {
    /// All of them have left the buffer.
    All,
    /// Some wait for room on the disk.
    Waiting,
    /// The logger has stopped without waiting for the disk: they were reported as lost before, and may
    /// arrive all the same.
    TooLate,
}

impl Engine {
    /// Takes what waits in the spill queue, and says how many there are behind the first `skip`.
    pub(crate) fn refill(&self, skip: usize) -> usize {
        let mut buffer = self.spill_buffer();
        let mut state = self.state();
        if buffer.is_given_up() {
            // Nobody waits for the disk any more, and the writer is to end.
            let late = state.spill.drain(..).collect();
            let late = self.post_lost(&mut state, late, reason::SPILLOVER_WRITE_ERROR);
            drop((state, buffer));
            self.report_lost(late);
            return 0;
        }
        buffer.refill(&mut state);
        buffer.len().saturating_sub(skip)
    }

    /// Removes the first events of the buffer after they were written; the directory has so many
    /// bytes now.
    pub(crate) fn finish_written(&self, written: BatchWritten, bytes: u64) -> SpillOutcome {
        let BatchWritten {
            taken,
            ids,
            refused,
        } = written;
        let moved = postings(
            ids.iter().copied(),
            Some(Place::InFlight),
            Some(Place::Spilled),
        );
        let mut buffer = self.spill_buffer();
        if buffer.is_given_up() {
            return SpillOutcome::TooLate;
        }
        {
            let mut state = self.state();
            moved.iter().for_each(|posting| state.books().post(posting));
            state.counters.events_spilled += ids.len() as u64;
            state.backlog += ids.len() as u64;
            state.backlog_bytes = bytes;
            state.spilling -= ids.len();
        }
        let (was_awaited, over) = buffer.remove_written(taken, refused);
        let (outcome, lost) = self.put_back_or_lose(&mut buffer, over);
        drop(buffer);
        self.progress.notify_waiters();
        if was_awaited
            || outcome == SpillOutcome::Waiting
            || self.state().phase > LoggerPhase::Running
        {
            self.replay_wake.notify_one();
        }
        for posted in lost {
            self.report_lost(posted);
        }
        self.wake_after(outcome);
        outcome
    }

    /// Puts events back that exceed a cap or that the disk refused, or posts and returns them as lost.
    fn put_back_or_lose(
        &self,
        buffer: &mut SpillBuffer,
        over: Vec<(Queued, LossReason)>,
    ) -> (SpillOutcome, Vec<PostedLosses>) {
        let mut state = self.state();
        if !over.is_empty() && self.waits_for_disk(&state) {
            // Replay makes room; until then nothing is taken.
            let events = over.into_iter().map(|(queued, _)| queued).collect();
            put_back(buffer, &mut state, events);
            (SpillOutcome::Waiting, Vec::new())
        } else {
            state.spilling -= over.len();
            let lost = over
                .into_iter()
                .map(|(queued, reason)| self.post_lost(&mut state, vec![queued], reason))
                .collect();
            (SpillOutcome::All, lost)
        }
    }

    /// Puts the first so many events back after the disk refused them, or loses them.
    pub(crate) fn finish_refused(&self, taken: usize) -> SpillOutcome {
        let mut buffer = self.spill_buffer();
        if buffer.is_given_up() {
            return SpillOutcome::TooLate;
        }
        let refused = buffer.take(taken).into_iter();
        let refused = refused.map(|queued| (queued, reason::SPILLOVER_WRITE_ERROR));
        let (outcome, lost) = self.put_back_or_lose(&mut buffer, refused.collect());
        drop(buffer);
        for posted in lost {
            self.report_lost(posted);
        }
        self.wake_after(outcome);
        outcome
    }

    fn wake_after(&self, outcome: SpillOutcome) {
        if outcome == SpillOutcome::Waiting {
            // They may be in the main queue again.
            self.sender_wake.notify_one();
        }
        self.wake_room();
    }

    /// Whether events wait for the disk rather than be dropped.
    fn waits_for_disk(&self, state: &LoggerState) -> bool {
        self.config.options.on_full == OnFull::Block && state.phase < LoggerPhase::Draining
    }

    /// Gives the directory up: events that wait for it are lost and reported. Its files stay for the
    /// next process.
    pub(crate) fn give_up_spill(&self, why: String) {
        let lost = {
            let mut buffer = self.spill_buffer();
            let mut state = self.state();
            state.spill_failure = Some(why);
            state.spilling = 0;
            let mut waiting = buffer.give_up();
            waiting.extend(state.spill.drain(..));
            self.post_lost(&mut state, waiting, reason::SPILLOVER_WRITE_ERROR)
        };
        self.report_lost(lost);
        self.wake_all();
    }
}

/// Events that the disk does not take go back in their order. They go to the API if that may be asked again, or
/// to the front of the buffer.
fn put_back(buffer: &mut SpillBuffer, state: &mut LoggerState, events: Vec<Queued>) {
    if state.breaker.state() == BreakerState::Open {
        buffer.put_back(events);
    } else {
        state.spilling -= events.len();
        for queued in events.into_iter().rev() {
            state.queue.push_front(queued);
        }
    }
}
