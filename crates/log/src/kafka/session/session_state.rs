//! The state of a member of a group, as a plain value: partitions, their fences, records that wait to
//! be handed out, pauses, and what has happened.
//!
//! Nothing here talks to a broker or waits. The client thread puts in what the client says and asks
//! what to tell it; the session takes out what happens.
//!
//! **Invariant:** within one assignment records are handed out in the order of their offsets, each
//! once, unless a seek says otherwise. [`OwnedPartition::fetched`] is our own watermark: records that
//! the client hands over again, or out of order, are dropped.
//!
//! **Invariant:** a fence is gone before the client is told to let the partition go. So the group
//! cannot move on while we still believe that the partition is ours.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tidegate_core::Offset;

use crate::commit_order::CommitTicket;
use crate::error::LogError;
use crate::kafka::books::GroupBooks;
use crate::port::{Assignment, Batch, Committed, Fence, SessionEvent};
use crate::record::{StoredRecord, TopicPartition};

/// How long a partition may be full before its client is paused. The client throws away what it has
/// fetched when it is paused, so a short wait is cheaper.
const PATIENCE: Duration = Duration::from_millis(500);

/// A partition that begins.
#[derive(Debug)]
pub(super) struct PartitionStart {
    pub(super) at: TopicPartition,
    pub(super) committed: Option<Committed>,
    pub(super) books: GroupBooks,
    pub(super) position: Offset,
    /// Why nothing is handed out until it is sought.
    pub(super) stopped: Option<LogError>,
}

/// A partition that is held.
#[derive(Debug)]
pub(super) struct OwnedPartition {
    pub(super) fence: Fence,
    ready: VecDeque<StoredRecord>,
    ready_bytes: usize,
    /// The next offset that the client is to hand over.
    fetched: Offset,
    /// Where the client is to be sent; until then everything it hands over is dropped.
    seek: Option<Offset>,
    /// Nothing is handed out until it is sought.
    stopped: bool,
    /// It is to be let go; nothing more is handed out.
    revoking: bool,
    /// Whether the client was told to pause it.
    client_paused: bool,
    full_since: Option<Duration>,
    /// When the client handed over something last, or was sent somewhere.
    pub(super) moved: Duration,
    /// The committed offset; none before the first commit of the group.
    pub(super) committed: Option<Offset>,
    /// The metadata of the caller for it.
    pub(super) metadata: String,
    /// Where the group began without a committed offset.
    pub(super) begin: Offset,
    pub(super) books: GroupBooks,
    /// Behind everything that is known to be there.
    pub(super) seen: Offset,
    /// The outcome of the last commit is not known; it is asked for before the next one.
    pub(super) outcome_unknown: bool,
    /// Where the tickets of its commits come from.
    pub(super) ticket: CommitTicket,
}

/// The commands for the client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConsumerCommands {
    pub(super) pause: Vec<TopicPartition>,
    pub(super) resume: Vec<(TopicPartition, Offset)>,
    pub(super) seek: Vec<(TopicPartition, Offset)>,
    /// Take nothing more from the client for a moment: what is there is being handed out.
    pub(super) hold: bool,
}

/// The state of a member.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    pub(super) held: BTreeMap<TopicPartition, OwnedPartition>,
    /// Pauses outlive assignments.
    paused: BTreeSet<TopicPartition>,
    happened: VecDeque<Result<SessionEvent, LogError>>,
    /// The partition that was served last, so that all are served round-robin.
    served: Option<TopicPartition>,
    /// The session is over; said once all that happened before was told.
    pub(super) end: Option<SessionEnd>,
    /// Partitions with a commit on its way to the broker, and how many.
    committing: BTreeMap<TopicPartition, usize>,
    /// Records that one partition holds ready, and bytes that all do.
    limit_records: usize,
    limit_bytes: usize,
}

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// It was closed.
    Closed,
    /// Another one of its name has taken its place.
    Replaced,
    /// It cannot go on.
    Failed(String),
}

impl SessionState {
    /// An empty state with room for so much.
    pub(super) fn new(limit_records: usize, limit_bytes: usize) -> Self {
        Self {
            limit_records,
            limit_bytes,
            ..Self::default()
        }
    }

    /// Takes partitions in.
    pub(super) fn assign(&mut self, begins: Vec<(Fence, PartitionStart)>, now: Duration) {
        let mut assigned = Vec::new();
        let mut stops = Vec::new();
        for (fence, begin) in begins {
            let stopped = begin.stopped.is_some();
            stops.extend(begin.stopped.map(Err));
            let committed = begin.committed.as_ref().map(|committed| committed.next);
            let held = OwnedPartition {
                fence,
                ready: VecDeque::new(),
                ready_bytes: 0,
                fetched: begin.position,
                seek: None,
                stopped,
                revoking: false,
                client_paused: false,
                full_since: None,
                moved: now,
                committed,
                metadata: begin
                    .committed
                    .as_ref()
                    .map_or_else(String::new, |committed| committed.metadata.clone()),
                begin: begin.position,
                books: begin.books,
                seen: if stopped { Offset(0) } else { begin.position },
                outcome_unknown: false,
                ticket: CommitTicket::default(),
            };
            self.held.insert(begin.at.clone(), held);
            assigned.push(Assignment {
                at: begin.at,
                fence,
                committed: begin.committed,
                position: begin.position,
            });
        }
        if !assigned.is_empty() {
            self.happened
                .push_back(Ok(SessionEvent::Assigned(assigned)));
        }
        self.happened.extend(stops);
    }

    /// Asks for partitions back. Nothing more is handed out of them.
    pub(super) fn revoke(&mut self, partitions: &[TopicPartition]) {
        let mut revoking = Vec::new();
        for at in partitions {
            if let Some(held) = self.held.get_mut(at) {
                held.revoking = true;
                held.clear();
                revoking.push(at.clone());
            }
        }
        if !revoking.is_empty() {
            self.happened
                .push_back(Ok(SessionEvent::Revoking(revoking)));
        }
    }

    /// Lets partitions go that were asked back.
    pub(super) fn release(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            if self.held.get(at).is_some_and(|held| held.revoking) {
                self.held.remove(at);
            }
        }
    }

    /// Takes away what is still held of these, and says so.
    pub(super) fn lose(&mut self, partitions: &[TopicPartition]) {
        let held = partitions
            .iter()
            .filter(|at| self.held.remove(*at).is_some());
        let lost: Vec<TopicPartition> = held.cloned().collect();
        if !lost.is_empty() {
            self.happened.push_back(Ok(SessionEvent::Lost(lost)));
        }
    }

    /// Ends the session. The partitions it held are lost; what happened before is still told.
    pub(super) fn finish(&mut self, end: SessionEnd) {
        if self.end.is_some() {
            return;
        }
        match end {
            SessionEnd::Closed => self.happened.clear(),
            SessionEnd::Replaced | SessionEnd::Failed(_) => {
                let all: Vec<TopicPartition> = self.held.keys().cloned().collect();
                self.lose(&all);
            }
        }
        self.held.clear();
        self.end = Some(end);
    }

    /// Tells an error once.
    pub(super) fn tell(&mut self, error: LogError) {
        self.happened.push_back(Err(error));
    }

    /// Takes in what the client handed over, in its order. Returns whether any of it is of use.
    pub(super) fn accept(
        &mut self,
        at: &TopicPartition,
        mut records: Vec<StoredRecord>,
        now: Duration,
    ) -> bool {
        let Some(held) = self.held.get_mut(at) else {
            return false;
        };
        if held.seek.is_some() || held.stopped || held.revoking {
            return false;
        }
        records.retain(|stored| {
            let is_next = stored.offset >= held.fetched;
            if is_next {
                held.fetched = Offset(stored.offset.0 + 1);
                held.ready_bytes += stored.record.size();
            }
            is_next
        });
        held.seen = held.seen.max(held.fetched);
        held.moved = now;
        let useful = !records.is_empty();
        // Whole runs change hands as they are where somebody keeps up with the client.
        if held.ready.is_empty() {
            held.ready = records.into();
        } else {
            held.ready.extend(records);
        }
        useful
    }

    /// Stops a partition until it is sought, and says why.
    pub(super) fn stop(&mut self, at: &TopicPartition, why: LogError) {
        if let Some(held) = self.held.get_mut(at)
            && !held.stopped
        {
            held.stopped = true;
            held.seek = None;
            self.happened.push_back(Err(why));
        }
    }

    pub(super) fn is_stopped(&self, at: &TopicPartition) -> bool {
        self.held.get(at).is_none_or(|held| held.stopped)
    }

    /// The next thing to hand out, with at most so many records.
    pub(super) fn next(&mut self, max_records: usize) -> Option<Result<SessionEvent, LogError>> {
        if let Some(happened) = self.happened.pop_front() {
            return Some(happened);
        }
        if let Some(end) = &self.end {
            return Some(Err(match end {
                SessionEnd::Closed | SessionEnd::Replaced => LogError::Closed,
                SessionEnd::Failed(why) => LogError::Stopped { why: why.clone() },
            }));
        }
        let at = self.next_partition()?;
        let held = self.held.get_mut(&at)?;
        let count = held.ready.len().min(max_records.max(1));
        let records: Vec<StoredRecord> = if count == held.ready.len() {
            held.ready_bytes = 0;
            std::mem::take(&mut held.ready).into()
        } else {
            let records: Vec<StoredRecord> = held.ready.drain(..count).collect();
            let bytes: usize = records.iter().map(|stored| stored.record.size()).sum();
            held.ready_bytes = held.ready_bytes.saturating_sub(bytes);
            records
        };
        let last = records.last()?;
        // Holes up to the next record are known only when that one is there.
        let next = held
            .ready
            .front()
            .map_or(Offset(last.offset.0 + 1), |next| next.offset);
        self.served = Some(at.clone());
        Some(Ok(SessionEvent::Records {
            fence: held.fence,
            batch: Batch { at, records, next },
        }))
    }

    /// The next partition, round-robin, of those with something to hand out.
    fn next_partition(&self) -> Option<TopicPartition> {
        let ready = |(at, held): &(&TopicPartition, &OwnedPartition)| {
            !held.ready.is_empty() && !held.revoking && !self.paused.contains(*at)
        };
        let behind = |at: &TopicPartition| self.served.as_ref().is_none_or(|served| at > served);
        let mut all = self.held.iter().filter(ready).map(|(at, _)| at);
        let first = all.clone().next();
        all.find(|at| behind(at)).or(first).cloned()
    }

    pub(super) fn pause(&mut self, partitions: &[TopicPartition]) {
        self.paused.extend(partitions.iter().cloned());
    }

    pub(super) fn resume(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.paused.remove(at);
        }
    }

    /// The next record handed out is the first at or after `offset`.
    pub(super) fn seek(
        &mut self,
        at: &TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> Result<(), LogError> {
        let held = self.held.get_mut(at).filter(|held| held.fence == fence);
        let Some(held) = held.filter(|held| !held.revoking) else {
            return Err(LogError::Fenced { at: at.clone() });
        };
        held.clear();
        held.stopped = false;
        held.fetched = offset;
        held.seek = Some(offset);
        Ok(())
    }

    /// Bytes of records that wait to be polled.
    pub(super) fn ready_bytes(&self) -> usize {
        self.held.values().map(|held| held.ready_bytes).sum()
    }

    /// The commands for the client now. None of them is done yet: [`Self::sought`] and
    /// [`Self::flowing`] say what was.
    pub(super) fn orders(&mut self, now: Duration) -> ConsumerCommands {
        let mut orders = ConsumerCommands::default();
        let share = self.limit_bytes / self.held.len().max(1);
        for (at, held) in &mut self.held {
            if let Some(offset) = held.seek {
                orders.seek.push((at.clone(), offset));
                continue;
            }
            let records = held.ready.len();
            let is_full =
                records >= self.limit_records || (records > 0 && held.ready_bytes >= share);
            let is_low = records <= self.limit_records / 2 && held.ready_bytes <= share / 2;
            if held.client_paused {
                if is_low {
                    orders.resume.push((at.clone(), held.fetched));
                }
            } else if is_full {
                let since = *held.full_since.get_or_insert(now);
                // Nobody takes from a paused partition, so waiting for it would hold up the others.
                let is_patient = now.saturating_sub(since) < PATIENCE;
                if is_patient && !self.paused.contains(at) {
                    orders.hold = true;
                } else {
                    orders.pause.push(at.clone());
                }
            } else {
                held.full_since = None;
            }
        }
        orders
    }

    /// The client was sent there. A later seek that came in between stays.
    pub(super) fn sought(&mut self, at: &TopicPartition, offset: Offset, now: Duration) {
        if let Some(held) = self.held.get_mut(at)
            && held.seek == Some(offset)
        {
            held.seek = None;
            held.moved = now;
        }
    }

    /// The client was told to pause a partition, or to go on with it.
    pub(super) fn flowing(&mut self, at: &TopicPartition, flows: bool, now: Duration) {
        if let Some(held) = self.held.get_mut(at) {
            held.client_paused = !flows;
            held.full_since = None;
            held.moved = now;
        }
    }

    /// Partitions that should move and have not for so long, with where they stand.
    pub(super) fn quiet(&self, now: Duration, limit: Duration) -> Vec<(TopicPartition, Offset)> {
        let is_quiet = |held: &OwnedPartition| {
            let waits = held.stopped || held.revoking || held.client_paused || held.seek.is_some();
            !waits && held.ready.is_empty() && now.saturating_sub(held.moved) >= limit
        };
        let quiet = self.held.iter().filter(|(_, held)| is_quiet(held));
        quiet.map(|(at, held)| (at.clone(), held.fetched)).collect()
    }

    /// Where the client stands in each partition that flows.
    pub(super) fn positions(&self) -> Vec<(TopicPartition, Offset)> {
        let flows = self.held.iter().filter(|(_, held)| !held.stopped);
        flows.map(|(at, held)| (at.clone(), held.fetched)).collect()
    }

    /// A quiet partition was looked after: there is nothing to move.
    pub(super) fn touch(&mut self, at: &TopicPartition, now: Duration) {
        if let Some(held) = self.held.get_mut(at) {
            held.moved = now;
        }
    }

    /// Sends the client once more to where it should be.
    pub(super) fn seek_again(&mut self, at: &TopicPartition, from: Offset) {
        if let Some(held) = self.held.get_mut(at)
            && held.fetched == from
            && held.seek.is_none()
        {
            held.seek = Some(from);
        }
    }

    /// Whether a commit for one of these is on its way. Until it has ended the client must not let
    /// them go: it would send the commit under the generation that comes next, in which they are
    /// somebody else's, and the broker would take it.
    pub(super) fn is_committing(&self, partitions: &[TopicPartition]) -> bool {
        partitions.iter().any(|at| self.committing.contains_key(at))
    }

    pub(super) fn begin_commit<'a>(&mut self, all: impl Iterator<Item = &'a TopicPartition>) {
        for at in all {
            *self.committing.entry(at.clone()).or_default() += 1;
        }
    }

    pub(super) fn end_commit<'a>(&mut self, all: impl Iterator<Item = &'a TopicPartition>) {
        for at in all {
            if let Some(count) = self.committing.get_mut(at) {
                *count -= 1;
                if *count == 0 {
                    self.committing.remove(at);
                }
            }
        }
    }
}

impl OwnedPartition {
    fn clear(&mut self) {
        self.ready.clear();
        self.ready_bytes = 0;
        self.full_since = None;
    }
}

#[cfg(test)]
mod tests;
