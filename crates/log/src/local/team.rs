//! A group with what its members have at hand: the group decides, the seats remember.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Offset};
use tokio::sync::Notify;

use super::group::{Group, MemberId, News, Outcome};
use super::reader::{Reader, in_turn, partition};
use super::storage::RecordStorage;
use crate::error::LogError;
use crate::port::{Fence, Join, SessionEvent, StartAt};
use crate::record::TopicPartition;

/// A group with what its members have at hand.
#[derive(Debug, Default)]
pub(super) struct Team {
    pub(super) group: Group,
    seats: BTreeMap<MemberId, Seat>,
    /// Where a member began in a partition of which nothing was committed: until something is, the
    /// next one begins there again. Kept while there are members.
    begun: BTreeMap<TopicPartition, Offset>,
    /// Rings when a commit has ended.
    pub(super) settled: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct Seat {
    start: StartAt,
    pub(super) readers: BTreeMap<TopicPartition, Reader>,
    pub(super) paused: BTreeSet<TopicPartition>,
    /// Whose records were handed out last.
    last: Option<TopicPartition>,
    /// Rings when the member has to look again.
    pub(super) bell: Arc<Notify>,
}

/// What a member does next.
#[derive(Debug)]
pub(super) enum Step {
    /// Something happened.
    Tell(SessionEvent),
    /// Records are there: read them, and then [`Team::took`].
    Read(TopicPartition, Fence, Offset),
    /// Nothing is there: wait for any of these, the bell, or the time.
    Wait {
        on: Vec<(TopicPartition, Offset)>,
        until: Option<Duration>,
    },
}

impl Team {
    /// Gives a member its seat; [`apply`](Self::apply) what the group says about its joining.
    pub(super) fn sit(&mut self, member: MemberId, join: &Join) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        let seat = Seat {
            start: join.start,
            readers: BTreeMap::new(),
            paused: BTreeSet::new(),
            last: None,
            bell: Arc::clone(&bell),
        };
        self.seats.insert(member, seat);
        bell
    }

    pub(super) fn seat(&mut self, member: MemberId) -> Result<&mut Seat, LogError> {
        self.seats.get_mut(&member).ok_or(LogError::Closed)
    }

    /// Takes a member's seat away and gives its partitions to others.
    pub(super) fn leave(
        &mut self,
        member: MemberId,
        name: &GroupName,
        storage: &dyn RecordStorage,
        now: Duration,
    ) {
        if let Some(seat) = self.seats.remove(&member) {
            let outcome = self.group.leave(member, now);
            self.apply(outcome, name, storage);
            seat.bell.notify_waiters();
        }
        if self.group.members().next().is_none() {
            self.begun.clear();
        }
    }

    /// Whether a member has begun in a partition.
    pub(super) fn has_begun(&self, at: &TopicPartition) -> bool {
        self.begun.contains_key(at)
    }

    /// Sets up readers for what was given, and wakes whom it concerns.
    ///
    /// A partition is given only when no commit of it is under way, so what is read here as
    /// committed is stable.
    pub(super) fn apply(
        &mut self,
        outcome: Outcome,
        name: &GroupName,
        storage: &dyn RecordStorage,
    ) {
        for (member, at, fence) in outcome.given {
            if let (Some(seat), Some(there)) =
                (self.seats.get_mut(&member), partition(storage, &at))
            {
                let committed = storage.committed(name, &at);
                let begun = self.begun.get(&at).copied();
                let reader = Reader::new(fence, &at, committed, (seat.start, begun), &there);
                self.begun.entry(at.clone()).or_insert(reader.first);
                seat.readers.insert(at, reader);
            }
        }
        for member in &outcome.concerned {
            if let Some(seat) = self.seats.get(member) {
                seat.bell.notify_waiters();
            }
        }
    }

    /// Lets time have its effect.
    pub(super) fn tick(&mut self, name: &GroupName, storage: &dyn RecordStorage, now: Duration) {
        if self.group.next_deadline().is_some_and(|by| by <= now) {
            let outcome = self.group.settle(now);
            self.apply(outcome, name, storage);
        }
    }

    /// What a member does next. `probe` names a partition that may have something new.
    pub(super) fn step(
        &mut self,
        member: MemberId,
        storage: &dyn RecordStorage,
        probe: Option<&TopicPartition>,
    ) -> Result<Step, LogError> {
        if let Some(news) = self.group.news(member) {
            return Ok(Step::Tell(self.hear(member, news)?));
        }
        if self.group.is_replaced(member) {
            return Err(LogError::Closed);
        }
        let until = self.group.next_deadline();
        let group = &self.group;
        let seat = self.seats.get_mut(&member).ok_or(LogError::Closed)?;
        if let Some(fault) = seat
            .readers
            .values_mut()
            .find_map(|reader| reader.fault.take())
        {
            return Err(fault);
        }
        let mut on = Vec::new();
        let mut described = BTreeMap::new();
        for (at, reader) in in_turn(&seat.readers, &seat.paused, seat.last.as_ref()) {
            if !group.may_read(member, at, reader.fence) {
                continue;
            }
            let description = described
                .entry(&at.topic)
                .or_insert_with(|| storage.describe(&at.topic));
            let index = usize::try_from(at.partition.0).unwrap_or(usize::MAX);
            let there = description
                .as_ref()
                .and_then(|topic| topic.partitions.get(index));
            // A position behind the end is read too: the storage says what is wrong with it.
            let is_new = there.is_none_or(|there| there.end != reader.next);
            if is_new || probe == Some(at) {
                return Ok(Step::Read(at.clone(), reader.fence, reader.next));
            }
            on.push((at.clone(), reader.next));
        }
        Ok(Step::Wait { on, until })
    }

    /// A member has read from `from` up to `next`: says whether that may be handed out. It may not
    /// when the member was asked to let go, paused or sought in the meantime.
    pub(super) fn took(
        &mut self,
        member: MemberId,
        at: &TopicPartition,
        fence: Fence,
        from: Offset,
        next: Offset,
    ) -> bool {
        if !self.group.may_read(member, at, fence) {
            return false;
        }
        let Some(seat) = self.seats.get_mut(&member) else {
            return false;
        };
        let is_paused = seat.paused.contains(at);
        match seat.readers.get_mut(at) {
            Some(reader) if !is_paused && reader.fence == fence && reader.next == from => {
                reader.next = next;
                seat.last = Some(at.clone());
                true
            }
            Some(_) | None => false,
        }
    }

    /// A member could not read at `from`: it is the turn of its other partitions. Where what is there
    /// is missing, nothing more of this partition comes until it is sought; else it is tried again
    /// in its turn.
    pub(super) fn failed(
        &mut self,
        member: MemberId,
        at: &TopicPartition,
        (fence, from): (Fence, Offset),
        is_missing: bool,
    ) {
        let Some(seat) = self.seats.get_mut(&member) else {
            return;
        };
        seat.last = Some(at.clone());
        if let Some(reader) = seat.readers.get_mut(at)
            && reader.fence == fence
            && reader.next == from
        {
            reader.is_stopped |= is_missing;
        }
    }

    /// Forgets how far a member has read what it does not own any more.
    pub(super) fn forget_readers(&mut self, member: MemberId) {
        let group = &self.group;
        if let Some(seat) = self.seats.get_mut(&member) {
            seat.readers
                .retain(|at, reader| group.owns(member, at, reader.fence));
        }
    }

    /// Wakes everybody, when the log is closed.
    pub(super) fn ring_all(&self) {
        for seat in self.seats.values() {
            seat.bell.notify_waiters();
        }
        self.settled.notify_waiters();
    }

    fn hear(&mut self, member: MemberId, news: News) -> Result<SessionEvent, LogError> {
        if matches!(news, News::Lost(_)) {
            self.forget_readers(member);
        }
        let seat = self.seat(member)?;
        Ok(match news {
            News::Revoking(partitions) => SessionEvent::Revoking(partitions),
            News::Lost(partitions) => SessionEvent::Lost(partitions),
            News::Assigned(given) => {
                let assigned = given.into_iter().filter_map(|(at, _)| {
                    let reader = seat.readers.get(&at)?;
                    Some(reader.assignment(at))
                });
                SessionEvent::Assigned(assigned.collect())
            }
        })
    }
}
