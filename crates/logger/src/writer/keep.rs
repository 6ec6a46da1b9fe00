//! How the writer gets events to the disk.
//!
//! An event stays in the writer's hand until the disk has it. While many wait, one batch is written
//! and synced by a helper thread and the next one is made here at the same time.

use std::sync::Arc;

use tidegate_core::books::{LossReason, Place, postings};
use tidegate_core::breaker::BreakerState;
use tokio::sync::mpsc;

use super::{BATCH, PAUSE, Writer};
use crate::config::OnFull;
use crate::loss::reason;
use crate::spill::{Append, Mark, Prepared, SpillError, Writing, Written};
use crate::state::{Hand, Phase, Queued};

/// Hands batches to the helper thread and takes them back.
pub(crate) struct Helper {
    work: mpsc::Sender<Writing>,
    done: mpsc::Receiver<Writing>,
}

/// A helper, and what its thread is to run.
pub(crate) fn help() -> (Helper, impl Future<Output = ()> + Send) {
    let (work, mut given) = mpsc::channel::<Writing>(1);
    let (back, done) = mpsc::channel(1);
    let run = async move {
        while let Some(writing) = given.recv().await {
            if back.send(writing.run()).await.is_err() {
                return;
            }
        }
    };
    (Helper { work, done }, run)
}

impl Helper {
    /// Hands a batch over.
    async fn give(&self, writing: Writing) -> Result<(), SpillError> {
        self.work.send(writing).await.map_err(|_| Self::gone())
    }

    /// Waits for it.
    async fn take(&mut self) -> Result<Writing, SpillError> {
        self.done.recv().await.ok_or_else(Self::gone)
    }

    fn gone() -> SpillError {
        SpillError::Disk {
            doing: "write",
            path: crate::spill::ACTIVE.into(),
            source: std::io::Error::other("the thread that writes has ended"),
        }
    }
}

impl Writer {
    /// Writes what waits: one batch here, or, while there are full ones, one after the other with
    /// the helper.
    pub(super) async fn spill_some(&mut self) -> Result<(), SpillError> {
        let shared = Arc::clone(&self.shared);
        let books = || shared.books();
        self.refill(0);
        let mut prepared = self.prepare(self.spool.mark(), 0);
        loop {
            let taken = prepared.taken;
            if taken == 0 {
                self.spool.recycle(prepared);
                return Ok(());
            }
            if self.refill(taken) < BATCH || prepared.is_empty() {
                // Handing it over and waiting for it would gain nothing.
                let appended = self.spool.keep(prepared, &books)?;
                self.settle(appended, taken);
                return Ok(());
            }
            let ends = prepared.ends;
            let writing = self.spool.begin(prepared)?;
            self.helper.give(writing).await?;
            let next = self.prepare(ends, taken);
            let writing = self.helper.take().await?;
            let appended = self.spool.complete(writing, &books)?;
            let is_clear = self.settle(appended, taken);
            // It was made for the place behind the batch before it, and of the events behind those.
            let fits = is_clear && next.begins == self.spool.mark();
            if !fits || !self.commands.is_empty() {
                self.spool.recycle(next);
                return Ok(());
            }
            prepared = next;
        }
    }

    /// Takes what waits in the spill queue into the hand, unless there is a batch behind the first
    /// `skip` events already, and says how many there are.
    fn refill(&mut self, skip: usize) -> usize {
        let mut hand = self.shared.hand();
        if hand.events.len() < skip + BATCH && !hand.is_given_up {
            let mut state = self.shared.state();
            std::mem::swap(&mut state.spill, &mut self.fresh);
            state.spilling += self.fresh.len();
            hand.awaited += std::mem::take(&mut state.awaited);
            drop(state);
            hand.events.append(&mut self.fresh);
        }
        hand.events.len().saturating_sub(skip)
    }

    /// Makes lines of the events behind the first `skip`, to be written behind `mark`.
    fn prepare(&mut self, mark: Mark, skip: usize) -> Prepared {
        let hand = self.shared.hand();
        let defaults = &self.shared.config.defaults;
        let mut encode = |index: usize, buffer: &mut Vec<u8>| {
            let queued = &hand.events[skip + index];
            queued
                .event
                .encode_open(queued.id, queued.timestamp_ms, defaults, buffer);
            queued.id
        };
        let count = hand.events.len().saturating_sub(skip).min(BATCH);
        self.spool.prepare(mark, count, &mut encode)
    }

    /// Settles the first `taken` events of the hand, and says whether all of them have left it.
    fn settle(&mut self, appended: Append, taken: usize) -> bool {
        self.last_sync = self.shared.clock.elapsed();
        match appended {
            Append::Written(written) => self.settle_written(written),
            Append::Refused(error) => {
                tracing::error!(%error, events = taken, "the disk refused a spill");
                self.settle_refused(taken);
                false
            }
        }
    }

    fn settle_written(&mut self, written: Written) -> bool {
        let shared = Arc::clone(&self.shared);
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
        let mut hand = shared.hand();
        if hand.is_given_up {
            // The disk answered too late: they were reported as lost, and may arrive all the same.
            return false;
        }
        {
            let mut state = shared.state();
            moved.iter().for_each(|posting| state.books().post(posting));
            state.counters.spilled += ids.len() as u64;
            state.backlog += ids.len() as u64;
            state.spilling -= ids.len();
        }
        let (was_awaited, over) = let_go(&mut hand, taken, refused);
        drop(hand);
        self.is_dirty |= !ids.is_empty();
        shared.progress.notify_waiters();
        if was_awaited || shared.state().phase > Phase::Running {
            shared.replay_bell.notify_one();
        }
        let is_clear = over.is_empty();
        if is_clear {
            shared.ring_room();
        } else {
            self.settle_over(over);
        }
        is_clear
    }

    /// Settles events that no cap leaves room for.
    fn settle_over(&mut self, over: Vec<(Queued, LossReason)>) {
        let shared = Arc::clone(&self.shared);
        if self.is_patient() {
            // Replay makes room; until then nothing is taken.
            self.blocked_until = Some(shared.clock.elapsed().saturating_add(PAUSE));
            self.put_back(over.into_iter().map(|(queued, _)| queued).collect());
            shared.replay_bell.notify_one();
            return;
        }
        shared.state().spilling -= over.len();
        for (queued, reason) in over {
            shared.lose(vec![queued], Place::InFlight, reason);
        }
        shared.ring_room();
    }

    /// Settles events that the disk refused.
    fn settle_refused(&mut self, taken: usize) {
        let shared = Arc::clone(&self.shared);
        let mut hand = shared.hand();
        if hand.is_given_up {
            return;
        }
        let batch: Vec<Queued> = hand.events.drain(..taken).collect();
        hand.count_awaited();
        drop(hand);
        if self.is_patient() {
            self.blocked_until = Some(shared.clock.elapsed().saturating_add(PAUSE));
            self.put_back(batch);
            return;
        }
        shared.state().spilling -= batch.len();
        shared.lose(batch, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
        shared.ring_room();
    }

    /// Whether events wait for the disk rather than be dropped.
    fn is_patient(&self) -> bool {
        self.shared.config.on_full == OnFull::Block && self.shared.is_sending()
    }

    /// Events that the disk does not take go back in their order: to the API if that may be asked
    /// again, or to the front of the hand.
    fn put_back(&mut self, events: Vec<Queued>) {
        let shared = Arc::clone(&self.shared);
        let mut hand = shared.hand();
        let mut state = shared.state();
        if state.breaker.state() == BreakerState::Open {
            for queued in events.into_iter().rev() {
                hand.events.push_front(queued);
            }
            hand.count_awaited();
        } else {
            state.spilling -= events.len();
            for queued in events.into_iter().rev() {
                state.queue.push_front(queued);
            }
        }
        drop((state, hand));
        shared.sender_bell.notify_one();
        shared.ring_room();
    }
}

/// Lets the first `taken` events go, tells those who wait for them, and gives back the ones that were
/// refused; also says whether anybody waited.
fn let_go(
    hand: &mut Hand,
    taken: usize,
    refused: Vec<(usize, LossReason)>,
) -> (bool, Vec<(Queued, LossReason)>) {
    let mut over = Vec::new();
    if hand.awaited == 0 && refused.is_empty() {
        hand.events.drain(..taken);
        return (false, over);
    }
    let mut refused = refused.into_iter().peekable();
    let mut was_awaited = false;
    for (index, mut queued) in hand.events.drain(..taken).enumerate() {
        hand.awaited -= usize::from(queued.waiter.is_some());
        match refused.next_if(|(at, _)| *at == index) {
            Some((_, reason)) => over.push((queued, reason)),
            None => {
                was_awaited |= queued.waiter.is_some();
                queued.tell(Ok(()));
            }
        }
    }
    (was_awaited, over)
}
