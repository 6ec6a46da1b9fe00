//! Who owns which partition within a group.
//!
//! A [`Group`] is a value: it is told what happened and at what time, and says what follows. The
//! session around it reads, waits and wakes.
//!
//! **Invariants:**
//! - A partition has at most one owner.
//! - Each assignment has a higher [`Fence`] than all before it.
//! - Partitions that are read together have one owner and one fence, until some of them are let go.
//! - A partition changes hands only after its owner let it go, ran out of time, or left. Every commit that
//!   was begun under the old fence has ended by then.
//! - While there are members that read it, a partition without owner waits for nothing but such a commit.
//!   Partitions that are read together wait for each other's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::{Offset, Topic};

use super::assignor::assign_sticky;
use crate::commit_order::CommitTicket;
use crate::port::Fence;
use crate::record::TopicPartition;

/// The number of a member; later members have higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(pub(super) u64);

/// The number of a commit; later commits have higher ones.
pub(super) type CommitNumber = u64;

/// The members of a group and what they own.
#[derive(Debug, Default)]
pub(super) struct Group {
    members: BTreeMap<MemberId, Member>,
    ownerships: BTreeMap<TopicPartition, Ownership>,
    /// Topics that are read together with another one, with that one.
    leaders: BTreeMap<Topic, Topic>,
    last_fence: u64,
}

/// How a member joins.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub(super) topics: BTreeSet<Topic>,
    /// Topics that are read together with the one of `topics`.
    pub(super) co_partitioned: BTreeSet<Topic>,
    pub(super) instance: Option<String>,
    pub(super) release_timeout: Duration,
}

impl Subscription {
    fn is_same_instance(&self, other: &Self) -> bool {
        self.instance.is_some() && self.instance == other.instance
    }

    fn leads(&self) -> bool {
        !self.co_partitioned.is_empty()
    }

    fn all_topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter().chain(&self.co_partitioned)
    }
}

#[derive(Debug)]
struct Member {
    subscription: Subscription,
    status: MemberStatus,
    /// The assignments that it knows of, which may be older than the present ones.
    known: BTreeMap<TopicPartition, KnownAssignment>,
    /// Whether what it knows may differ from what is so.
    has_events: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberStatus {
    /// It takes its share.
    Present,
    /// It is taken for dead until its next heartbeat.
    Missing,
    /// Another member has its name now; it never comes back.
    Replaced,
}

#[derive(Debug, Clone, Copy)]
struct KnownAssignment {
    fence: Fence,
    is_revoking: bool,
}

#[derive(Debug, Default)]
struct Ownership {
    owner: Option<Owner>,
    /// Commits under way and how far they go.
    commits: BTreeMap<CommitNumber, Offset>,
    /// Where the tickets of its owner's commits come from.
    ticket: CommitTicket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    member: MemberId,
    fence: Fence,
    /// When it is asked to let go: until when it may keep it.
    release_by: Option<Duration>,
}

/// The owners that changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reassignment {
    /// Partitions that have a new owner.
    pub(super) assigned: Vec<(MemberId, TopicPartition, Fence)>,
    /// Members whose next poll returns an event.
    pub(super) to_notify: BTreeSet<MemberId>,
}

/// A change that a member has not polled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RebalanceEvent {
    Lost(Vec<TopicPartition>),
    Revoking(Vec<TopicPartition>),
    Assigned(Vec<(TopicPartition, Fence)>),
}

impl Group {
    /// Adds a member. A member with the same instance name loses everything at once and for good.
    pub(super) fn join(
        &mut self,
        member: MemberId,
        subscription: Subscription,
        partitions: impl IntoIterator<Item = TopicPartition>,
        now: Duration,
    ) -> Reassignment {
        for at in partitions {
            self.ownerships.entry(at).or_default();
        }
        let (topics, together) = (&subscription.topics, &subscription.co_partitioned);
        self.leaders
            .retain(|topic, leader| !topics.contains(topic) && !topics.contains(leader));
        if let Some(leader) = topics.first() {
            let together = together.iter().cloned();
            self.leaders
                .extend(together.map(|topic| (topic, leader.clone())));
        }
        let namesake = |other: &Member| subscription.is_same_instance(&other.subscription);
        let earlier: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, m)| namesake(m))
            .map(|(id, _)| *id)
            .collect();
        for id in &earlier {
            self.revoke_from(*id, MemberStatus::Replaced);
        }
        let joined = Member {
            subscription,
            status: MemberStatus::Present,
            known: BTreeMap::new(),
            has_events: false,
        };
        self.members.insert(member, joined);
        let mut outcome = self.reassign(now);
        outcome.to_notify.extend(earlier);
        outcome
    }

    /// A topic that a member to come would read together with others than some member does. Its partitions
    /// could have two owners then, or none.
    pub(super) fn conflict<'a>(&self, joining: &'a Subscription) -> Option<&'a Topic> {
        let others = self.members.values().filter(|other| {
            other.status != MemberStatus::Replaced && !joining.is_same_instance(&other.subscription)
        });
        let mut others = others.map(|other| &other.subscription);
        others.find_map(|other| {
            let is_same =
                joining.topics == other.topics && joining.co_partitioned == other.co_partitioned;
            if is_same || !joining.leads() && !other.leads() {
                return None;
            }
            joining
                .all_topics()
                .find(|topic| other.all_topics().any(|other| other == *topic))
        })
    }

    /// Takes a member out, with all it owns.
    pub(super) fn leave(&mut self, member: MemberId, now: Duration) -> Reassignment {
        self.revoke_from(member, MemberStatus::Replaced);
        self.members.remove(&member);
        self.reassign(now)
    }

    /// Takes everything from a member without asking, until its next [heartbeat](Self::heartbeat).
    pub(super) fn expire(&mut self, member: MemberId, now: Duration) -> Reassignment {
        if self.status(member) == Some(MemberStatus::Present) {
            self.revoke_from(member, MemberStatus::Missing);
        }
        let mut outcome = self.reassign(now);
        outcome.to_notify.insert(member);
        outcome
    }

    /// A member gave a sign of life.
    pub(super) fn heartbeat(&mut self, member: MemberId, now: Duration) -> Reassignment {
        match self.members.get_mut(&member) {
            Some(found) if found.status == MemberStatus::Missing => {
                found.status = MemberStatus::Present;
                self.reassign(now)
            }
            Some(_) | None => Reassignment::default(),
        }
    }

    /// Asks everybody to let everything go.
    pub(super) fn revoke_all(&mut self, now: Duration) -> Reassignment {
        let mut outcome = Reassignment::default();
        let held: Vec<TopicPartition> = self.ownerships.keys().cloned().collect();
        for at in held {
            self.revoke(&at, now, &mut outcome);
        }
        let reassigned = self.reassign(now);
        outcome.assigned.extend(reassigned.assigned);
        outcome.to_notify.extend(reassigned.to_notify);
        outcome
    }

    /// A member lets go of what it was asked for; anything else stays as it is.
    pub(super) fn release(
        &mut self,
        member: MemberId,
        partitions: &[TopicPartition],
        now: Duration,
    ) -> Reassignment {
        for at in partitions {
            let Some(ownership) = self.ownerships.get_mut(at) else {
                continue;
            };
            let asked = |owner: Owner| owner.member == member && owner.release_by.is_some();
            if ownership.owner.is_some_and(asked) {
                ownership.owner = None;
                if let Some(member) = self.members.get_mut(&member) {
                    member.known.remove(at);
                }
            }
        }
        self.reassign(now)
    }

    /// Brings owners in line with time and members.
    pub(super) fn reassign(&mut self, now: Duration) -> Reassignment {
        let mut outcome = Reassignment::default();
        for ownership in self.ownerships.values_mut() {
            let overdue = |owner: &mut Owner| owner.release_by.is_some_and(|by| by <= now);
            if let Some(owner) = ownership.owner.take_if(overdue) {
                note_change(&mut self.members, owner.member, &mut outcome);
            }
        }
        for (leader, member) in self.target() {
            let together = self.read_together(&leader);
            for at in &together {
                if self.owner(at).is_some_and(|owner| owner.member != member) {
                    self.revoke(at, now, &mut outcome);
                }
            }
            let mut ownerships = together.iter().filter_map(|at| self.ownerships.get(at));
            if ownerships.all(|one| one.owner.is_none() && one.commits.is_empty()) {
                self.last_fence += 1;
                for at in together {
                    self.assign(member, at, &mut outcome);
                }
            }
        }
        outcome
    }

    /// Gives a partition to a member, under the last fence.
    fn assign(&mut self, member: MemberId, at: TopicPartition, outcome: &mut Reassignment) {
        if let Some(ownership) = self.ownerships.get_mut(&at) {
            let fence = Fence(self.last_fence);
            ownership.ticket = CommitTicket::default();
            ownership.owner = Some(Owner {
                member,
                fence,
                release_by: None,
            });
            outcome.assigned.push((member, at, fence));
            note_change(&mut self.members, member, outcome);
        }
    }

    /// A partition, and those that are read together with it.
    fn read_together(&self, leader: &TopicPartition) -> Vec<TopicPartition> {
        let others = self.leaders.iter().filter(|(_, of)| **of == leader.topic);
        let others =
            others.map(|(topic, _)| TopicPartition::new(topic.clone(), leader.partition.0));
        std::iter::once(leader.clone()).chain(others).collect()
    }

    /// When time alone changes something.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let owners = self.ownerships.values().filter_map(|o| o.owner);
        owners.filter_map(|owner| owner.release_by).min()
    }

    /// The next event of a member; it counts as delivered.
    pub(super) fn next_event(&mut self, id: MemberId) -> Option<RebalanceEvent> {
        let member = self.members.get_mut(&id)?;
        if !member.has_events {
            return None;
        }
        let ownerships = &self.ownerships;
        let owner = |at: &TopicPartition, known: &KnownAssignment| {
            let owner = ownerships.get(at).and_then(|ownership| ownership.owner);
            owner.filter(|owner| owner.member == id && owner.fence == known.fence)
        };
        let lost: Vec<TopicPartition> = member
            .known
            .iter()
            .filter(|(at, known)| owner(at, known).is_none())
            .map(|(at, _)| at.clone())
            .collect();
        if !lost.is_empty() {
            member.known.retain(|at, _| !lost.contains(at));
            return Some(RebalanceEvent::Lost(lost));
        }
        let mut revoking = Vec::new();
        for (at, known) in &mut member.known {
            let is_asked = owner(at, known).is_some_and(|owner| owner.release_by.is_some());
            if is_asked && !known.is_revoking {
                known.is_revoking = true;
                revoking.push(at.clone());
            }
        }
        if !revoking.is_empty() {
            return Some(RebalanceEvent::Revoking(revoking));
        }
        member.has_events = false;
        let mut assigned = Vec::new();
        for (at, ownership) in ownerships {
            if let Some(owner) = ownership.owner.filter(|owner| owner.member == id)
                && !member.known.contains_key(at)
            {
                let known = KnownAssignment {
                    fence: owner.fence,
                    is_revoking: false,
                };
                member.known.insert(at.clone(), known);
                assigned.push((at.clone(), owner.fence));
            }
        }
        (!assigned.is_empty()).then_some(RebalanceEvent::Assigned(assigned))
    }

    /// Whether a member owns a partition under this fence, asked to let go or not.
    pub(super) fn owns(&self, member: MemberId, at: &TopicPartition, fence: Fence) -> bool {
        let is_it = |owner: Owner| owner.member == member && owner.fence == fence;
        self.owner(at).is_some_and(is_it)
    }

    fn owner(&self, at: &TopicPartition) -> Option<Owner> {
        self.ownerships.get(at)?.owner
    }

    /// Whether a member may be given records of a partition: it owns it, knows so, and was not asked
    /// to let go.
    pub(super) fn may_read(&self, member: MemberId, at: &TopicPartition, fence: Fence) -> bool {
        let known = self.members.get(&member).and_then(|m| m.known.get(at));
        let is_known = known.is_some_and(|known| known.fence == fence);
        let is_asked = self.owner(at).is_some_and(|o| o.release_by.is_some());
        is_known && self.owns(member, at, fence) && !is_asked
    }

    /// The partitions that a member owns, in order.
    pub(super) fn owned(&self, member: MemberId) -> Vec<TopicPartition> {
        let is_ours = |at: &&TopicPartition| self.owner(at).is_some_and(|o| o.member == member);
        self.ownerships.keys().filter(is_ours).cloned().collect()
    }

    /// Every partition that a member reads or has read.
    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        self.ownerships.keys().cloned().collect()
    }

    /// Whether another member has taken this one's name.
    pub(super) fn is_replaced(&self, member: MemberId) -> bool {
        self.status(member) == Some(MemberStatus::Replaced)
    }

    /// The members that take their share or may come back to it.
    pub(super) fn members(&self) -> impl Iterator<Item = MemberId> {
        let members = self.members.iter();
        let stay = members.filter(|(_, member)| member.status != MemberStatus::Replaced);
        stay.map(|(id, _)| *id)
    }

    /// A commit of this partition is handed to the disk.
    pub(super) fn begin_commit(&mut self, at: &TopicPartition, number: CommitNumber, next: Offset) {
        let ownership = self.ownerships.entry(at.clone()).or_default();
        ownership.commits.insert(number, next);
    }

    /// A commit of this partition has ended, in whatever way. A partition that nobody owns may have
    /// waited for it: [`reassign`](Self::reassign) then.
    pub(super) fn end_commit(&mut self, at: &TopicPartition, number: CommitNumber) {
        if let Some(ownership) = self.ownerships.get_mut(at) {
            ownership.commits.remove(&number);
        }
    }

    /// How far the commits go that are under way.
    pub(super) fn highest_under_way(&self, at: &TopicPartition) -> Option<Offset> {
        self.ownerships.get(at)?.commits.values().max().copied()
    }

    /// Whether a commit of this partition that began before `number` is still under way.
    pub(super) fn is_under_way(&self, at: &TopicPartition, number: CommitNumber) -> bool {
        let commits = self.ownerships.get(at).map(|ownership| &ownership.commits);
        commits.is_some_and(|commits| commits.range(..number).next().is_some())
    }

    /// The ticket of a commit of this partition that its owner calls now; a commit of another member
    /// is refused and has none.
    pub(super) fn ticket(
        &self,
        member: MemberId,
        at: &TopicPartition,
        fence: Fence,
    ) -> Option<CommitTicket> {
        let ownership = self.ownerships.get(at)?;
        self.owns(member, at, fence)
            .then(|| ownership.ticket.next())
    }

    /// Whether somebody owns this partition.
    pub(super) fn is_owned(&self, at: &TopicPartition) -> bool {
        self.owner(at).is_some()
    }

    fn status(&self, member: MemberId) -> Option<MemberStatus> {
        self.members.get(&member).map(|member| member.status)
    }

    fn revoke_from(&mut self, id: MemberId, status: MemberStatus) {
        for ownership in self.ownerships.values_mut() {
            ownership.owner.take_if(|owner| owner.member == id);
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.status = status;
            member.has_events = true;
        }
    }

    /// Who is to have what. Partitions that are being let go count as free: where they go is
    /// decided anew each time, and may be where they came from.
    fn target(&self) -> Vec<(TopicPartition, MemberId)> {
        let members = self.members.iter();
        let present = members.filter(|(_, member)| member.status == MemberStatus::Present);
        let topics = present.map(|(id, member)| (*id, &member.subscription.topics));
        let ownerships = self.ownerships.iter();
        let leading = ownerships.filter(|(at, _)| !self.leaders.contains_key(&at.topic));
        let ownerships = leading.map(|(at, ownership)| {
            let kept = ownership.owner.filter(|owner| owner.release_by.is_none());
            (at, kept.map(|owner| owner.member))
        });
        let target = assign_sticky(ownerships, &topics.collect()).into_iter();
        target.map(|(at, member)| (at.clone(), member)).collect()
    }

    /// Asks the owner to let go. One that does not know yet that it is the owner has nothing to
    /// finish, so it is not asked.
    fn revoke(&mut self, at: &TopicPartition, now: Duration, outcome: &mut Reassignment) {
        let Some(ownership) = self.ownerships.get_mut(at) else {
            return;
        };
        let Some(owner) = &mut ownership.owner else {
            return;
        };
        let Some(member) = self.members.get(&owner.member) else {
            return;
        };
        if owner.release_by.is_some() {
            return;
        }
        let known = member.known.get(at);
        if known.is_some_and(|known| known.fence == owner.fence) {
            owner.release_by = Some(now.saturating_add(member.subscription.release_timeout));
            note_change(&mut self.members, owner.member, outcome);
        } else {
            ownership.owner = None;
        }
    }
}

/// Something changed for a member.
fn note_change(members: &mut BTreeMap<MemberId, Member>, id: MemberId, outcome: &mut Reassignment) {
    outcome.to_notify.insert(id);
    if let Some(member) = members.get_mut(&id) {
        member.has_events = true;
    }
}

#[cfg(test)]
mod tests;
