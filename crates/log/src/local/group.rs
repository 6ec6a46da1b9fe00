//! Who owns which partition within a group.
//!
//! A [`Group`] is a value: it is told what happened and at what time, and says what follows. The
//! session around it reads, waits and wakes.
//!
//! **Invariants:** a partition has at most one owner; each assignment has a higher [`Fence`] than
//! all before it; a partition changes hands only after its owner let it go, ran out of time, or
//! left, and after every commit that was begun under the old fence has ended; while there are
//! members that read it, a partition without owner waits for nothing but such a commit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::{Offset, Topic};

use super::spread::spread;
use crate::port::Fence;
use crate::record::TopicPartition;
use crate::turn::Turn;

/// The number of a member; later members have higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(pub(super) u64);

/// The number of a commit; later commits have higher ones.
pub(super) type Ticket = u64;

/// The members of a group and what they own.
#[derive(Debug, Default)]
pub(super) struct Group {
    members: BTreeMap<MemberId, Member>,
    slots: BTreeMap<TopicPartition, Slot>,
    last_fence: u64,
}

/// How a member joins.
#[derive(Debug, Clone)]
pub(super) struct Newcomer {
    pub(super) topics: BTreeSet<Topic>,
    pub(super) instance: Option<String>,
    pub(super) release_timeout: Duration,
}

#[derive(Debug)]
struct Member {
    who: Newcomer,
    standing: Standing,
    /// What it knows of, which may be older than what is so.
    told: BTreeMap<TopicPartition, Told>,
    /// Whether what it knows may differ from what is so.
    has_news: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It takes its share.
    Present,
    /// It is taken for dead until it is heard of again.
    Missing,
    /// Another member has its name now; it never comes back.
    Replaced,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    fence: Fence,
    is_revoking: bool,
}

#[derive(Debug, Default)]
struct Slot {
    owner: Option<Owner>,
    /// Commits under way and how far they go.
    commits: BTreeMap<Ticket, Offset>,
    /// The turns of its owner's commits.
    turn: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    member: MemberId,
    fence: Fence,
    /// When it is asked to let go: until when it may keep it.
    let_go_by: Option<Duration>,
}

/// What follows from what happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Partitions that were given to somebody.
    pub(super) given: Vec<(MemberId, TopicPartition, Fence)>,
    /// Members that have something to hear.
    pub(super) concerned: BTreeSet<MemberId>,
}

/// What a member has not heard yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    Lost(Vec<TopicPartition>),
    Revoking(Vec<TopicPartition>),
    Assigned(Vec<(TopicPartition, Fence)>),
}

impl Group {
    /// Adds a member. Whoever has its instance name loses everything at once and for good.
    pub(super) fn join(
        &mut self,
        member: MemberId,
        who: Newcomer,
        partitions: impl IntoIterator<Item = TopicPartition>,
        now: Duration,
    ) -> Outcome {
        for at in partitions {
            self.slots.entry(at).or_default();
        }
        let namesake =
            |other: &Member| other.who.instance.is_some() && other.who.instance == who.instance;
        let earlier: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, m)| namesake(m))
            .map(|(id, _)| *id)
            .collect();
        for id in &earlier {
            self.strip(*id, Standing::Replaced);
        }
        let newcomer = Member {
            who,
            standing: Standing::Present,
            told: BTreeMap::new(),
            has_news: false,
        };
        self.members.insert(member, newcomer);
        let mut outcome = self.settle(now);
        outcome.concerned.extend(earlier);
        outcome
    }

    /// Takes a member out, with all it owns.
    pub(super) fn leave(&mut self, member: MemberId, now: Duration) -> Outcome {
        self.strip(member, Standing::Replaced);
        self.members.remove(&member);
        self.settle(now)
    }

    /// Takes everything from a member without asking, until it is [heard of](Self::heard_of).
    pub(super) fn lose(&mut self, member: MemberId, now: Duration) -> Outcome {
        if self.standing(member) == Some(Standing::Present) {
            self.strip(member, Standing::Missing);
        }
        let mut outcome = self.settle(now);
        outcome.concerned.insert(member);
        outcome
    }

    /// A member gave a sign of life.
    pub(super) fn heard_of(&mut self, member: MemberId, now: Duration) -> Outcome {
        match self.members.get_mut(&member) {
            Some(found) if found.standing == Standing::Missing => {
                found.standing = Standing::Present;
                self.settle(now)
            }
            Some(_) | None => Outcome::default(),
        }
    }

    /// Asks everybody to let everything go.
    pub(super) fn shake(&mut self, now: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        let held: Vec<TopicPartition> = self.slots.keys().cloned().collect();
        for at in held {
            self.revoke(&at, now, &mut outcome);
        }
        let settled = self.settle(now);
        outcome.given.extend(settled.given);
        outcome.concerned.extend(settled.concerned);
        outcome
    }

    /// A member lets go of what it was asked for; anything else stays as it is.
    pub(super) fn release(
        &mut self,
        member: MemberId,
        partitions: &[TopicPartition],
        now: Duration,
    ) -> Outcome {
        for at in partitions {
            let Some(slot) = self.slots.get_mut(at) else {
                continue;
            };
            let asked = |owner: Owner| owner.member == member && owner.let_go_by.is_some();
            if slot.owner.is_some_and(asked) {
                slot.owner = None;
                if let Some(member) = self.members.get_mut(&member) {
                    member.told.remove(at);
                }
            }
        }
        self.settle(now)
    }

    /// Brings owners in line with time and members.
    pub(super) fn settle(&mut self, now: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        for slot in self.slots.values_mut() {
            let overdue = |owner: &mut Owner| owner.let_go_by.is_some_and(|by| by <= now);
            if let Some(owner) = slot.owner.take_if(overdue) {
                concern(&mut self.members, owner.member, &mut outcome);
            }
        }
        for (at, member) in self.target() {
            let owner = self.slots.get(&at).and_then(|slot| slot.owner);
            if owner.is_some_and(|owner| owner.member != member) {
                self.revoke(&at, now, &mut outcome);
            }
            let Some(slot) = self.slots.get_mut(&at) else {
                continue;
            };
            if slot.owner.is_none() && slot.commits.is_empty() {
                self.last_fence += 1;
                let fence = Fence(self.last_fence);
                slot.turn = Turn::default();
                slot.owner = Some(Owner {
                    member,
                    fence,
                    let_go_by: None,
                });
                outcome.given.push((member, at, fence));
                concern(&mut self.members, member, &mut outcome);
            }
        }
        outcome
    }

    /// When time alone changes something.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let owners = self.slots.values().filter_map(|slot| slot.owner);
        owners.filter_map(|owner| owner.let_go_by).min()
    }

    /// The next thing a member has to hear; it counts as heard.
    pub(super) fn news(&mut self, id: MemberId) -> Option<News> {
        let member = self.members.get_mut(&id)?;
        if !member.has_news {
            return None;
        }
        let slots = &self.slots;
        let owner = |at: &TopicPartition, told: &Told| {
            let owner = slots.get(at).and_then(|slot| slot.owner);
            owner.filter(|owner| owner.member == id && owner.fence == told.fence)
        };
        let lost: Vec<TopicPartition> = member
            .told
            .iter()
            .filter(|(at, told)| owner(at, told).is_none())
            .map(|(at, _)| at.clone())
            .collect();
        if !lost.is_empty() {
            member.told.retain(|at, _| !lost.contains(at));
            return Some(News::Lost(lost));
        }
        let mut revoking = Vec::new();
        for (at, told) in &mut member.told {
            let is_asked = owner(at, told).is_some_and(|owner| owner.let_go_by.is_some());
            if is_asked && !told.is_revoking {
                told.is_revoking = true;
                revoking.push(at.clone());
            }
        }
        if !revoking.is_empty() {
            return Some(News::Revoking(revoking));
        }
        member.has_news = false;
        let mut assigned = Vec::new();
        for (at, slot) in slots {
            if let Some(owner) = slot.owner.filter(|owner| owner.member == id)
                && !member.told.contains_key(at)
            {
                let told = Told {
                    fence: owner.fence,
                    is_revoking: false,
                };
                member.told.insert(at.clone(), told);
                assigned.push((at.clone(), owner.fence));
            }
        }
        (!assigned.is_empty()).then_some(News::Assigned(assigned))
    }

    /// Whether a member owns a partition under this fence, asked to let go or not.
    pub(super) fn owns(&self, member: MemberId, at: &TopicPartition, fence: Fence) -> bool {
        let owner = self.slots.get(at).and_then(|slot| slot.owner);
        owner.is_some_and(|owner| owner.member == member && owner.fence == fence)
    }

    /// Whether a member may be given records of a partition: it owns it, knows so, and was not asked
    /// to let go.
    pub(super) fn may_read(&self, member: MemberId, at: &TopicPartition, fence: Fence) -> bool {
        let is_told = self
            .members
            .get(&member)
            .and_then(|member| member.told.get(at))
            .is_some_and(|told| told.fence == fence);
        let owner = self.slots.get(at).and_then(|slot| slot.owner);
        let is_safe = |owner: Owner| {
            owner.member == member && owner.fence == fence && owner.let_go_by.is_none()
        };
        is_told && owner.is_some_and(is_safe)
    }

    /// What a member owns, in order.
    pub(super) fn owned(&self, member: MemberId) -> Vec<TopicPartition> {
        let owns = |slot: &Slot| slot.owner.is_some_and(|owner| owner.member == member);
        self.slots
            .iter()
            .filter(|(_, slot)| owns(slot))
            .map(|(at, _)| at.clone())
            .collect()
    }

    /// Every partition that a member reads or has read.
    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        self.slots.keys().cloned().collect()
    }

    /// Whether another member has taken this one's name.
    pub(super) fn is_replaced(&self, member: MemberId) -> bool {
        self.standing(member) == Some(Standing::Replaced)
    }

    /// The members that take their share or may come back to it.
    pub(super) fn members(&self) -> impl Iterator<Item = MemberId> {
        let stays = |member: &Member| member.standing != Standing::Replaced;
        self.members
            .iter()
            .filter(move |(_, member)| stays(member))
            .map(|(id, _)| *id)
    }

    /// A commit of this partition is handed to the disk.
    pub(super) fn begin_commit(&mut self, at: &TopicPartition, ticket: Ticket, next: Offset) {
        self.slots
            .entry(at.clone())
            .or_default()
            .commits
            .insert(ticket, next);
    }

    /// A commit of this partition has ended, in whatever way. A partition that nobody owns may have
    /// waited for it: [`settle`](Self::settle) then.
    pub(super) fn end_commit(&mut self, at: &TopicPartition, ticket: Ticket) {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.commits.remove(&ticket);
        }
    }

    /// How far the commits go that are under way.
    pub(super) fn highest_under_way(&self, at: &TopicPartition) -> Option<Offset> {
        self.slots.get(at)?.commits.values().max().copied()
    }

    /// Whether a commit of this partition that began before `ticket` is still under way.
    pub(super) fn is_under_way(&self, at: &TopicPartition, ticket: Ticket) -> bool {
        let commits = self.slots.get(at).map(|slot| &slot.commits);
        commits.is_some_and(|commits| commits.range(..ticket).next().is_some())
    }

    /// The turn of a commit of this partition that its owner calls now; whoever else calls one is
    /// refused, and disturbs nobody.
    pub(super) fn turn(&self, member: MemberId, at: &TopicPartition, fence: Fence) -> Option<Turn> {
        let slot = self.slots.get(at)?;
        self.owns(member, at, fence).then(|| slot.turn.next())
    }

    /// Whether somebody owns this partition.
    pub(super) fn is_owned(&self, at: &TopicPartition) -> bool {
        self.slots.get(at).is_some_and(|slot| slot.owner.is_some())
    }

    fn standing(&self, member: MemberId) -> Option<Standing> {
        self.members.get(&member).map(|member| member.standing)
    }

    fn strip(&mut self, id: MemberId, standing: Standing) {
        for slot in self.slots.values_mut() {
            slot.owner.take_if(|owner| owner.member == id);
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.standing = standing;
            member.has_news = true;
        }
    }

    /// Who is to have what. Partitions that are being let go count as free: where they go is
    /// decided anew each time, and may be where they came from.
    fn target(&self) -> Vec<(TopicPartition, MemberId)> {
        let present = self
            .members
            .iter()
            .filter(|(_, member)| member.standing == Standing::Present);
        let members = present
            .map(|(id, member)| (*id, &member.who.topics))
            .collect();
        let kept = |slot: &Slot| {
            let owner = slot.owner.filter(|owner| owner.let_go_by.is_none());
            owner.map(|owner| owner.member)
        };
        let slots = self.slots.iter().map(|(at, slot)| (at, kept(slot)));
        let target = spread(slots, &members);
        target
            .into_iter()
            .map(|(at, member)| (at.clone(), member))
            .collect()
    }

    /// Asks the owner to let go. One that does not know yet that it is the owner has nothing to
    /// finish, so it is not asked.
    fn revoke(&mut self, at: &TopicPartition, now: Duration, outcome: &mut Outcome) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let Some(owner) = &mut slot.owner else {
            return;
        };
        if owner.let_go_by.is_some() {
            return;
        }
        let Some(member) = self.members.get(&owner.member) else {
            return;
        };
        let is_told = member
            .told
            .get(at)
            .is_some_and(|told| told.fence == owner.fence);
        if is_told {
            owner.let_go_by = Some(now.saturating_add(member.who.release_timeout));
            concern(&mut self.members, owner.member, outcome);
        } else {
            slot.owner = None;
        }
    }
}

/// Something changed for a member.
fn concern(members: &mut BTreeMap<MemberId, Member>, id: MemberId, outcome: &mut Outcome) {
    outcome.concerned.insert(id);
    if let Some(member) = members.get_mut(&id) {
        member.has_news = true;
    }
}

#[cfg(test)]
mod tests;
