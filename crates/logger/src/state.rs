//! Everything a logger holds in memory, under one lock.
//!
//! **Invariant:** an event that was accepted and is in memory is in exactly one place: the main queue,
//! the retry set, the spill queue, the pending rejects, the spill buffer, or the hands of one task.
//! That task puts it into the next place under the same lock as its posting.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidegate_core::books::{Account, Books, Bucket, LossReason, Place, Tally, postings};
use tidegate_core::breaker::{Breaker, BreakerState};
use tidegate_core::{EventId, EventIdMinter};
use tokio::sync::oneshot;

use crate::event::Event;
use crate::telemetry::Metrics;

/// How far a logger is on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoggerPhase {
    /// It takes events on.
    Running,
    /// It takes no more on, and sends what it has.
    Stopping,
    /// It sends no more, and spills what it has.
    Draining,
    /// It is done.
    Stopped,
}

/// An event on its way.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) event: Event,
    pub(crate) id: EventId,
    pub(crate) timestamp_ms: u64,
    /// Sends that failed.
    pub(crate) attempts: u32,
    /// The order in which events were taken on.
    pub(crate) number: u64,
    /// Gets the outcome.
    pub(crate) waiter: Option<Waiter>,
}

/// Gets the outcome of an event.
pub(crate) type Waiter = oneshot::Sender<Result<EventId, LossReason>>;

impl Queued {
    /// Sends the outcome to the waiter, if there is one.
    pub(crate) fn notify_waiter(&mut self, outcome: Result<(), LossReason>) {
        if let Some(waiter) = self.waiter.take() {
            // The waiter may have been dropped.
            waiter.send(outcome.map(|()| self.id)).ok();
        }
    }
}

pub(crate) struct LoggerState {
    pub(crate) phase: LoggerPhase,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) retries: BTreeMap<(Duration, u64), Queued>,
    pub(crate) spill: VecDeque<Queued>,
    /// Rejected events that wait to be set aside, by their numbers.
    pub(crate) pending_rejects: BTreeMap<u64, Queued>,
    /// Under the lock that `log` holds anyway.
    pub(crate) ids: EventIdMinter,
    pub(crate) breaker: Breaker,
    /// The counts; the numbers of now are filled in by [`Metrics::of`].
    pub(crate) counters: Metrics,
    /// Events that senders hold.
    pub(crate) sending: usize,
    /// Events in the spill buffer.
    pub(crate) spilling: usize,
    /// Events in the spill queue that somebody waits for.
    pub(crate) awaited: usize,
    /// Those who wait until nothing is in memory any more.
    pub(crate) flushing: usize,
    /// Whether a request with replayed events is on its way.
    pub(crate) is_replaying: bool,
    /// Lines on disk that wait for replay, and their bytes.
    pub(crate) backlog: u64,
    pub(crate) backlog_bytes: u64,
    /// Senders that wait for an event.
    pub(crate) idle_senders: usize,
    /// How many of them were notified since they began to wait.
    pub(crate) woken_senders: usize,
    /// Threads that wait for room.
    pub(crate) blocked: usize,
    /// Whether the task of the logger was dropped before it stopped.
    pub(crate) is_canceled: bool,
    /// Why the spill directory was given up.
    pub(crate) spill_failure: Option<String>,
    /// Why the API refuses us, while it does: a wrong token or address.
    pub(crate) api_failure: Option<String>,
    next_number: u64,
    books: Books,
    accepting: Accepting,
}

/// Accepted events that are not in the books yet, all of one minute. Adding to two numbers is all
/// that the caller of `log` pays for its posting.
#[derive(Default)]
struct Accepting {
    bucket: Option<Bucket>,
    tally: Tally,
}

impl LoggerState {
    pub(crate) fn new(ids: EventIdMinter, breaker: Breaker, books: Books, backlog: u64) -> Self {
        Self {
            phase: LoggerPhase::Running,
            queue: VecDeque::new(),
            retries: BTreeMap::new(),
            spill: VecDeque::new(),
            pending_rejects: BTreeMap::new(),
            ids,
            breaker,
            counters: Metrics::default(),
            sending: 0,
            spilling: 0,
            awaited: 0,
            flushing: 0,
            is_replaying: false,
            backlog,
            backlog_bytes: 0,
            idle_senders: 0,
            woken_senders: 0,
            blocked: 0,
            is_canceled: false,
            spill_failure: None,
            api_failure: None,
            next_number: 0,
            books,
            accepting: Accepting::default(),
        }
    }

    /// Takes an event on: it is in memory now. Says how many were before it, and itself.
    pub(crate) fn accept(&mut self, id: EventId) -> u64 {
        let bucket = Bucket::of(id);
        if self.accepting.bucket != Some(bucket) {
            self.post_accepted();
            self.accepting.bucket = Some(bucket);
        }
        self.accepting.tally = self.accepting.tally.plus(Tally::of(id));
        self.next_number += 1;
        self.next_number
    }

    /// Takes an event on that is lost at once.
    pub(crate) fn accept_lost(&mut self, id: EventId, reason: LossReason) {
        self.counters.events_failed += 1;
        self.books.move_one(id, None, Some(Place::Lost(reason)));
    }

    /// Posts a move of these events.
    pub(crate) fn post(&mut self, ids: impl IntoIterator<Item = EventId>, from: Place, to: Place) {
        self.post_accepted();
        for posting in postings(ids, Some(from), Some(to)) {
            self.books.post(&posting);
        }
    }

    fn post_accepted(&mut self) {
        let Accepting { bucket, tally } = std::mem::take(&mut self.accepting);
        if let Some(bucket) = bucket {
            self.books
                .move_tally(bucket, None, Some(Place::InFlight), tally);
        }
    }

    /// The books of now.
    pub(crate) fn books(&mut self) -> &mut Books {
        self.post_accepted();
        &mut self.books
    }

    /// The account of now.
    pub(crate) fn account(&mut self) -> Account {
        self.books().account()
    }

    /// Whether an event that is taken on now has no place to be: the spill directory was given up,
    /// and the API cannot be reached. One at a time is taken on to ask the API whether it can again.
    pub(crate) fn has_nowhere_to_go(&self) -> bool {
        self.spill_failure.is_some()
            && match self.breaker.state() {
                BreakerState::Closed => false,
                BreakerState::HalfOpen => !self.is_sent(),
                BreakerState::Open => true,
            }
    }

    /// Takes everything out that waits for a retry.
    pub(crate) fn take_retries(&mut self) -> Vec<Queued> {
        let waiting: Vec<Queued> = std::mem::take(&mut self.retries).into_values().collect();
        let ids: Vec<EventId> = waiting.iter().map(|queued| queued.id).collect();
        self.post(ids, Place::Retrying, Place::InFlight);
        waiting
    }

    /// Takes everything out that waits for a retry, or for its first send.
    pub(crate) fn take_unsent(&mut self) -> (Vec<Queued>, Vec<Queued>) {
        (self.take_retries(), self.queue.drain(..).collect())
    }

    /// Takes those of these rejected events out that still wait to be set aside.
    pub(crate) fn take_pending_rejects(&mut self, numbers: &[u64]) -> Vec<Queued> {
        let taken = numbers
            .iter()
            .map(|number| self.pending_rejects.remove(number));
        taken.flatten().collect()
    }

    /// Gives an event to the spill writer.
    pub(crate) fn push_spill(&mut self, queued: Queued) {
        self.awaited += usize::from(queued.waiter.is_some());
        self.spill.push_back(queued);
    }

    /// Events that wait for the disk, all of which count against its limit.
    pub(crate) fn spill_depth(&self) -> usize {
        self.spill.len() + self.spilling
    }

    /// Whether no request is on its way, and the senders have nothing left to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_sent() && !self.is_replaying
    }

    /// Whether the senders have nothing left to do.
    pub(crate) fn is_sent(&self) -> bool {
        self.queue.is_empty() && self.retries.is_empty() && self.sending == 0
    }

    /// Whether nothing is in memory any more: delivered, or on disk.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_sent() && self.spill_depth() == 0
    }
}
