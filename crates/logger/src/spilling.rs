//! How events pass from the spill queue through the writer's hand to the disk, back, or to the callback.
//!
//! **Invariant:** whoever stops the logger takes everything out of the hand at any moment, and does it
//! under the lock of the hand. So what is taken out of it is kept elsewhere or posted as lost, and the
//! counts follow it, before that lock is let go; losses are reported right after.

use tidegate_core::books::{LossReason, Place, postings};
use tidegate_core::breaker::BreakerState;

use crate::config::OnFull;
use crate::hand::Hand;
use crate::loss::reason;
use crate::spill::Written;
use crate::state::{Phase, Queued, State};

use super::hub::{Hub, Unreported};

/// What came of events that the disk was asked to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// All of them have left the hand.
    All,
    /// Some wait for room on the disk.
    Waiting,
    /// The logger has stopped without waiting for the disk: they were reported as lost before, and may
    /// arrive all the same.
    TooLate,
}

impl Hub {
    /// Takes what waits in the spill queue, and says how many there are behind the first `skip`.
    pub(crate) fn refill(&self, skip: usize) -> usize {
        let mut hand = self.hand();
        let mut state = self.state();
        if hand.is_given_up() {
            // Nobody waits for the disk any more, and the writer is to end.
            let late = state.spill.drain(..).collect();
            let late = self.post_lost(&mut state, late, reason::SPILLOVER_WRITE_ERROR);
            drop((state, hand));
            self.report_lost(late);
            return 0;
        }
        hand.refill(&mut state);
        hand.len().saturating_sub(skip)
    }

    /// Settles the first events of the hand after they were written; the directory has so many bytes
    /// now.
    pub(crate) fn settle_written(&self, written: Written, bytes: u64) -> Settled {
        let Written {
            taken,
            ids,
            refused,
        } = written;
        let moved = postings(
            ids.iter().copied(),
            Some(Place::InFlight),
            Some(Place::Spilled),
        );
        let mut hand = self.hand();
        if hand.is_given_up() {
            return Settled::TooLate;
        }
        {
            let mut state = self.state();
            moved.iter().for_each(|posting| state.books().post(posting));
            state.counters.spilled += ids.len() as u64;
            state.backlog += ids.len() as u64;
            state.backlog_bytes = bytes;
            state.spilling -= ids.len();
        }
        let (was_awaited, over) = hand.let_go(taken, refused);
        let (settled, lost) = if over.is_empty() {
            (Settled::All, Vec::new())
        } else {
            self.settle_over(&mut hand, over)
        };
        drop(hand);
        self.progress.notify_waiters();
        if was_awaited || settled == Settled::Waiting || self.state().phase > Phase::Running {
            self.replay_bell.notify_one();
        }
        for unreported in lost {
            self.report_lost(unreported);
        }
        self.ring_after(settled);
        settled
    }

    /// Settles events that no cap leaves room for, and gives back those that are lost by that.
    fn settle_over(
        &self,
        hand: &mut Hand,
        over: Vec<(Queued, LossReason)>,
    ) -> (Settled, Vec<Unreported>) {
        let mut state = self.state();
        if self.is_patient(&state) {
            // Replay makes room; until then nothing is taken.
            let events = over.into_iter().map(|(queued, _)| queued).collect();
            put_back(hand, &mut state, events);
            (Settled::Waiting, Vec::new())
        } else {
            state.spilling -= over.len();
            let lost = over
                .into_iter()
                .map(|(queued, reason)| self.post_lost(&mut state, vec![queued], reason))
                .collect();
            (Settled::All, lost)
        }
    }

    /// Settles the first so many events of the hand after the disk refused them.
    pub(crate) fn settle_refused(&self, taken: usize) -> Settled {
        let mut hand = self.hand();
        if hand.is_given_up() {
            return Settled::TooLate;
        }
        let batch = hand.take(taken);
        let mut state = self.state();
        let (settled, lost) = if self.is_patient(&state) {
            put_back(&mut hand, &mut state, batch);
            (Settled::Waiting, Vec::new())
        } else {
            state.spilling -= batch.len();
            (Settled::All, batch)
        };
        let lost = self.post_lost(&mut state, lost, reason::SPILLOVER_WRITE_ERROR);
        drop((state, hand));
        self.report_lost(lost);
        self.ring_after(settled);
        settled
    }

    fn ring_after(&self, settled: Settled) {
        if settled == Settled::Waiting {
            // They may be in the main queue again.
            self.sender_bell.notify_one();
        }
        self.ring_room();
    }

    /// Whether events wait for the disk rather than be dropped.
    fn is_patient(&self, state: &State) -> bool {
        self.config.on_full == OnFull::Block && state.phase < Phase::Draining
    }

    /// The directory is given up: what waits for it is lost and reported. What is in it stays for the
    /// next process.
    pub(crate) fn give_spill_up(&self, why: String) {
        let lost = {
            let mut hand = self.hand();
            let mut state = self.state();
            state.spill_failure = Some(why);
            state.spilling = 0;
            let mut waiting = hand.give_up();
            waiting.extend(state.spill.drain(..));
            self.post_lost(&mut state, waiting, reason::SPILLOVER_WRITE_ERROR)
        };
        self.report_lost(lost);
        self.ring_all();
    }
}

/// Events that the disk does not take go back in their order: to the API if that may be asked again, or
/// to the front of the hand.
fn put_back(hand: &mut Hand, state: &mut State, events: Vec<Queued>) {
    if state.breaker.state() == BreakerState::Open {
        hand.put_back(events);
    } else {
        state.spilling -= events.len();
        for queued in events.into_iter().rev() {
            state.queue.push_front(queued);
        }
    }
}
