//! A group with the state of its members: how far they have read, and what is paused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{GroupName, Offset};
use tokio::sync::Notify;

use super::group::{Group, MemberId, Reassignment, RebalanceEvent};
use super::reader::{PartitionReader, partition, round_robin};
use super::storage::RecordStorage;
use crate::error::LogError;
use crate::port::{Fence, Join, SessionEvent, StartAt};
use crate::record::TopicPartition;

/// A group with the state of its members.
#[derive(Debug)]
pub(super) struct GroupMembers {
    pub(super) name: GroupName,
    pub(super) storage: Arc<dyn RecordStorage>,
    pub(super) group: Group,
    states: BTreeMap<MemberId, MemberState>,
    /// Where a member began in a partition of which nothing was committed: until something is, the
    /// next one begins there again. Kept while there are members.
    begun: BTreeMap<TopicPartition, Offset>,
    /// Notified when a commit has ended.
    pub(super) commit_ended: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct MemberState {
    start: StartAt,
    pub(super) readers: BTreeMap<TopicPartition, PartitionReader>,
    pub(super) paused: BTreeSet<TopicPartition>,
    /// Whose records were handed out last.
    last: Option<TopicPartition>,
    /// Notified when the member has to look again.
    pub(super) wake: Arc<Notify>,
}

/// The next action of a member.
#[derive(Debug)]
pub(super) enum MemberAction {
    /// Something happened.
    Deliver(SessionEvent),
    /// Records are there: read them, and then [`GroupMembers::advance`].
    Read(TopicPartition, Fence, Offset),
    /// Nothing is there: wait for any of these, the wake-up, or the time.
    Wait {
        on: Vec<(TopicPartition, Offset)>,
        until: Option<Duration>,
    },
}

impl GroupMembers {
    /// A group without members.
    pub(super) fn new(name: GroupName, storage: Arc<dyn RecordStorage>) -> Self {
        Self {
            name,
            storage,
            group: Group::default(),
            states: BTreeMap::new(),
            begun: BTreeMap::new(),
            commit_ended: Arc::default(),
        }
    }

    /// Adds a member; [`apply`](Self::apply) what the group says about its joining.
    pub(super) fn add(&mut self, member: MemberId, join: &Join) -> Arc<Notify> {
        let wake = Arc::new(Notify::new());
        let member_state = MemberState {
            start: join.start,
            readers: BTreeMap::new(),
            paused: BTreeSet::new(),
            last: None,
            wake: Arc::clone(&wake),
        };
        self.states.insert(member, member_state);
        wake
    }

    pub(super) fn member_state(&mut self, member: MemberId) -> Result<&mut MemberState, LogError> {
        self.states.get_mut(&member).ok_or(LogError::Closed)
    }

    /// Removes a member and gives its partitions to others.
    pub(super) fn leave(&mut self, member: MemberId, now: Duration) {
        if let Some(member_state) = self.states.remove(&member) {
            let outcome = self.group.leave(member, now);
            self.apply(outcome);
            member_state.wake.notify_waiters();
        }
        if self.group.members().next().is_none() {
            self.begun.clear();
        }
    }

    /// Whether a member has begun in a partition.
    pub(super) fn has_begun(&self, at: &TopicPartition) -> bool {
        self.begun.contains_key(at)
    }

    /// Sets up readers for what was assigned, and wakes the members to notify.
    ///
    /// A partition is assigned only when no commit of it is under way, so what is read here as
    /// committed is stable.
    pub(super) fn apply(&mut self, outcome: Reassignment) {
        for (member, at, fence) in outcome.assigned {
            let there = partition(&*self.storage, &at);
            if let (Some(member_state), Some(there)) = (self.states.get_mut(&member), there) {
                let committed = self.storage.committed(&self.name, &at);
                let start = (member_state.start, self.begun.get(&at).copied());
                let reader = PartitionReader::new(fence, &at, committed, start, &there);
                self.begun.entry(at.clone()).or_insert(reader.first);
                member_state.readers.insert(at, reader);
            }
        }
        for member in &outcome.to_notify {
            if let Some(member_state) = self.states.get(member) {
                member_state.wake.notify_waiters();
            }
        }
    }

    /// Lets time have its effect.
    pub(super) fn tick(&mut self, now: Duration) {
        if self.group.next_deadline().is_some_and(|by| by <= now) {
            let outcome = self.group.reassign(now);
            self.apply(outcome);
        }
    }

    /// The next action of a member. `probe` names a partition that may have something new.
    pub(super) fn step(
        &mut self,
        member: MemberId,
        probe: Option<&TopicPartition>,
    ) -> Result<MemberAction, LogError> {
        if let Some(event) = self.group.next_event(member) {
            return Ok(MemberAction::Deliver(self.event_of(member, event)?));
        }
        if self.group.is_replaced(member) {
            return Err(LogError::Closed);
        }
        let until = self.group.next_deadline();
        let group = &self.group;
        let member_state = self.states.get_mut(&member).ok_or(LogError::Closed)?;
        let mut readers = member_state.readers.values_mut();
        if let Some(fault) = readers.find_map(|reader| reader.fault.take()) {
            return Err(fault);
        }
        let mut on = Vec::new();
        let mut described = BTreeMap::new();
        for (at, reader) in round_robin(
            &member_state.readers,
            &member_state.paused,
            member_state.last.as_ref(),
        ) {
            if !group.may_read(member, at, reader.fence) {
                continue;
            }
            let description = described
                .entry(&at.topic)
                .or_insert_with(|| self.storage.describe(&at.topic));
            let index = usize::try_from(at.partition.0).unwrap_or(usize::MAX);
            let there = description
                .as_ref()
                .and_then(|topic| topic.partitions.get(index));
            // A position behind the end is read too: the storage says what is wrong with it.
            let is_new = there.is_none_or(|there| there.end != reader.next);
            if is_new || probe == Some(at) {
                return Ok(MemberAction::Read(at.clone(), reader.fence, reader.next));
            }
            on.push((at.clone(), reader.next));
        }
        Ok(MemberAction::Wait { on, until })
    }

    /// A member has read from `from` up to `next`: says whether that may be handed out. It may not
    /// when the member was asked to let go, paused or sought in the meantime.
    pub(super) fn advance(
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
        let Some(member_state) = self.states.get_mut(&member) else {
            return false;
        };
        let is_paused = member_state.paused.contains(at);
        match member_state.readers.get_mut(at) {
            Some(reader) if !is_paused && reader.fence == fence && reader.next == from => {
                reader.next = next;
                member_state.last = Some(at.clone());
                true
            }
            Some(_) | None => false,
        }
    }

    /// A member could not read at `from`: its other partitions come next. Where what is there
    /// is missing, nothing more of this partition comes until it is sought; else it is tried again
    /// after them.
    pub(super) fn read_failed(
        &mut self,
        member: MemberId,
        at: &TopicPartition,
        (fence, from): (Fence, Offset),
        is_missing: bool,
    ) {
        let Some(member_state) = self.states.get_mut(&member) else {
            return;
        };
        member_state.last = Some(at.clone());
        if let Some(reader) = member_state.readers.get_mut(at)
            && reader.fence == fence
            && reader.next == from
        {
            reader.is_stopped |= is_missing;
        }
    }

    /// Forgets how far a member has read what it does not own any more.
    pub(super) fn forget_readers(&mut self, member: MemberId) {
        let group = &self.group;
        if let Some(member_state) = self.states.get_mut(&member) {
            member_state
                .readers
                .retain(|at, reader| group.owns(member, at, reader.fence));
        }
    }

    /// Wakes everybody, when the log is closed.
    pub(super) fn notify_all(&self) {
        for member_state in self.states.values() {
            member_state.wake.notify_waiters();
        }
        self.commit_ended.notify_waiters();
    }

    fn event_of(
        &mut self,
        member: MemberId,
        event: RebalanceEvent,
    ) -> Result<SessionEvent, LogError> {
        if matches!(event, RebalanceEvent::Lost(_)) {
            self.forget_readers(member);
        }
        let member_state = self.member_state(member)?;
        Ok(match event {
            RebalanceEvent::Revoking(partitions) => SessionEvent::Revoking(partitions),
            RebalanceEvent::Lost(partitions) => SessionEvent::Lost(partitions),
            RebalanceEvent::Assigned(assigned) => {
                let assigned = assigned.into_iter().filter_map(|(at, _)| {
                    let reader = member_state.readers.get(&at)?;
                    Some(reader.assignment(at))
                });
                SessionEvent::Assigned(assigned.collect())
            }
        })
    }
}
