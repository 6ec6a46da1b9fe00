//! The order of the commits of a partition: a commit behind one that was not done is not done either.
//!
//! Commits are called one behind the other without waiting. Each says what became of the records since
//! the one before it. If that one fails, the next would take the group past records that nobody booked.
//!
//! **Invariant:** from the failure of a commit until its caller has seen the error, no commit of the
//! partition is done. This holds for commits that were called before the failure and for those called
//! after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::LogError;
use crate::record::TopicPartition;

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

/// The position of a commit among those of a partition. It is taken when the commit is called.
///
/// ```
/// use tidegate_log::local::CommitTicket;
///
/// let partition = CommitTicket::default();
/// let (first, second, third) = (partition.next(), partition.next(), partition.next());
/// second.fail();
/// assert!(third.is_rejected());
/// assert!(!first.is_rejected(), "it was called before");
/// assert!(partition.next().is_rejected(), "no caller has seen the failure yet");
/// ```
#[derive(Debug, Clone, Default)]
pub struct CommitTicket {
    sequence: Arc<CommitSequence>,
    /// None for the partition itself, and for a commit that waits for nobody.
    slot: Option<Arc<Slot>>,
}

/// The commits of a partition that were called and are not forgotten.
#[derive(Debug, Default)]
struct CommitSequence(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Those that failed and whose caller has not seen the error, and whether it still waits for it.
    failed: BTreeMap<u64, bool>,
}

/// A commit that may still fail.
#[derive(Debug)]
struct Open {
    is_rejected: Arc<AtomicBool>,
    caller: Caller,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Waiting,
    Acknowledged,
    /// The call was dropped.
    Gone,
}

impl CommitSequence {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The position of a commit in the sequence.
#[derive(Debug)]
struct Slot {
    sequence: Arc<CommitSequence>,
    number: u64,
    is_rejected: Arc<AtomicBool>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.sequence.slots().open.remove(&self.number);
    }
}

impl CommitTicket {
    /// The ticket of a commit that is called now.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut slots = self.sequence.slots();
        slots.last += 1;
        let number = slots.last;
        let is_rejected = Arc::new(AtomicBool::new(!slots.failed.is_empty()));
        let open = Open {
            is_rejected: Arc::clone(&is_rejected),
            caller: Caller::Waiting,
        };
        slots.open.insert(number, open);
        drop(slots);
        let sequence = Arc::clone(&self.sequence);
        Self {
            slot: Some(Arc::new(Slot {
                sequence: Arc::clone(&sequence),
                number,
                is_rejected,
            })),
            sequence,
        }
    }

    /// Whether an earlier commit has failed and its caller had not seen the error when this one was called.
    /// Then this one must not be done.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        let slot = self.slot.as_ref();
        slot.is_some_and(|slot| slot.is_rejected.load(Ordering::Acquire))
    }

    /// This commit is not done, or its outcome is unknown. Every later ticket that is taken before its
    /// caller sees the error is rejected; earlier ones are not.
    ///
    /// The failure of a rejected ticket changes nothing: the failure before it was counted.
    pub fn fail(&self) {
        let Some(slot) = &self.slot else {
            return;
        };
        let mut slots = self.sequence.slots();
        let caller = slots.open.get(&slot.number).map(|open| open.caller);
        if self.is_rejected() || caller == Some(Caller::Acknowledged) {
            return;
        }
        let waits = caller == Some(Caller::Waiting);
        slots.failed.insert(slot.number, waits);
        for (_, later) in slots.open.range(slot.number + 1..) {
            later.is_rejected.store(true, Ordering::Release);
        }
    }

    /// The caller sees how it ended. `is_rejection` says that it learns of an earlier failure by
    /// that, which counts as seen if no other caller waits for it.
    fn acknowledge(&self, is_rejection: bool) {
        let Some(slot) = &self.slot else {
            return;
        };
        let mut slots = self.sequence.slots();
        if let Some(open) = slots.open.get_mut(&slot.number) {
            open.caller = Caller::Acknowledged;
        }
        slots.failed.remove(&slot.number);
        if is_rejection {
            let is_kept = |number: u64, waits: bool| number > slot.number || waits;
            slots
                .failed
                .retain(|number, waits| is_kept(*number, *waits));
        }
    }

    /// Whether nothing is kept of any commit.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let slots = self.sequence.slots();
        slots.open.is_empty() && slots.failed.is_empty()
    }

    /// The caller does not wait any more, and sees no result.
    fn abandon(&self) {
        let Some(slot) = &self.slot else {
            return;
        };
        let mut slots = self.sequence.slots();
        if let Some(open) = slots.open.get_mut(&slot.number) {
            open.caller = Caller::Gone;
        }
        if let Some(waits) = slots.failed.get_mut(&slot.number) {
            *waits = false;
        }
    }
}

/// Two are the same if they have the same position in the same sequence.
impl PartialEq for CommitTicket {
    fn eq(&self, other: &Self) -> bool {
        let number = |ticket: &Self| ticket.slot.as_ref().map(|slot| slot.number);
        Arc::ptr_eq(&self.sequence, &other.sequence) && number(self) == number(other)
    }
}

impl Eq for CommitTicket {}

/// The tickets of one call, by partition. A call that is dropped before it is
/// [submitted](Self::mark_submitted) has failed.
#[derive(Debug, Default)]
pub(crate) struct CommitTickets {
    all: Vec<(TopicPartition, CommitTicket)>,
    is_submitted: bool,
    is_acknowledged: bool,
}

impl CommitTickets {
    pub(crate) fn new(all: Vec<(TopicPartition, CommitTicket)>) -> Self {
        Self {
            all,
            is_submitted: false,
            is_acknowledged: false,
        }
    }

    /// From here on the thread that does the commit says whether it is done.
    pub(crate) fn mark_submitted(&mut self) {
        self.is_submitted = true;
    }

    /// The same tickets, for the thread that does the commit.
    pub(crate) fn to_vec(&self) -> Vec<(TopicPartition, CommitTicket)> {
        self.all.clone()
    }

    /// Whether it may still be done.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        check(&self.all)
    }

    /// Takes note of an answer that is returned now.
    pub(crate) fn acknowledge<T>(&mut self, answer: &Result<T, LogError>) {
        self.is_acknowledged = true;
        if answer.is_err() {
            fail(&self.all);
        }
        for (at, ticket) in &self.all {
            let is_it =
                matches!(answer, Err(LogError::PrecedingCommitFailed { at: of }) if of == at);
            ticket.acknowledge(is_it);
        }
    }
}

impl Drop for CommitTickets {
    fn drop(&mut self) {
        if self.is_acknowledged {
            return;
        }
        if !self.is_submitted {
            fail(&self.all);
        }
        self.all.iter().for_each(|(_, ticket)| ticket.abandon());
    }
}

/// Whether a commit with these tickets may still be done.
pub(crate) fn check(tickets: &[(TopicPartition, CommitTicket)]) -> Result<(), LogError> {
    match tickets.iter().find(|(_, ticket)| ticket.is_rejected()) {
        Some((at, _)) => Err(LogError::PrecedingCommitFailed { at: at.clone() }),
        None => Ok(()),
    }
}

/// A commit with these tickets is not done.
pub(crate) fn fail(tickets: &[(TopicPartition, CommitTicket)]) {
    tickets.iter().for_each(|(_, ticket)| ticket.fail());
}
