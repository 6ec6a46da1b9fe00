use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new(topic).unwrap(), partition)
}

fn subscription(topics: &[&str]) -> Subscription {
    Subscription {
        topics: topics
            .iter()
            .map(|topic| Topic::new(*topic).unwrap())
            .collect(),
        co_partitioned: BTreeSet::new(),
        instance: None,
        release_timeout: TIMEOUT,
    }
}

/// A member that reads `a` reads `c` together with it.
fn subscription_with_c(topics: &[&str]) -> Subscription {
    let c = topics.contains(&"a").then(|| Topic::new("c").unwrap());
    Subscription {
        co_partitioned: c.into_iter().collect(),
        ..subscription(topics)
    }
}

fn partitions(topics: &[&str]) -> Vec<TopicPartition> {
    let each = |topic: &&str| (0..4).map(|number| at(topic, number)).collect::<Vec<_>>();
    topics.iter().flat_map(each).collect()
}

fn join(group: &mut Group, id: u64, topics: &[&str], now: Duration) -> Reassignment {
    group.join(MemberId(id), subscription(topics), partitions(topics), now)
}

/// Hears everything, and lets go of what is asked for.
fn oblige(group: &mut Group, id: u64, now: Duration) {
    while let Some(event) = group.next_event(MemberId(id)) {
        if let RebalanceEvent::Revoking(revoked) = event {
            group.release(MemberId(id), &revoked, now);
        }
    }
}

#[test]
fn a_second_member_gets_half_when_the_first_lets_go() {
    let mut group = Group::default();
    let now = Duration::ZERO;
    join(&mut group, 1, &["a"], now);
    let Some(RebalanceEvent::Assigned(all)) = group.next_event(MemberId(1)) else {
        panic!("the only member gets everything");
    };
    assert_eq!(all.len(), 4);
    join(&mut group, 2, &["a"], now);
    assert_eq!(group.next_event(MemberId(2)), None, "nothing is free yet");
    let Some(RebalanceEvent::Revoking(revoked)) = group.next_event(MemberId(1)) else {
        panic!("half is asked for");
    };
    assert_eq!(revoked.len(), 2);
    assert!(group.owns(MemberId(1), &revoked[0], all[0].1) || all[0].0 != revoked[0]);
    group.release(MemberId(1), &revoked, now);
    let Some(RebalanceEvent::Assigned(assigned)) = group.next_event(MemberId(2)) else {
        panic!("what was let go is assigned");
    };
    let names: Vec<TopicPartition> = assigned.iter().map(|(at, _)| at.clone()).collect();
    assert_eq!(names, revoked);
    assert!(assigned.iter().all(|(_, fence)| *fence > all[3].1));
}

#[test]
fn a_member_that_does_not_let_go_in_time_loses_the_partition() {
    let mut group = Group::default();
    join(&mut group, 1, &["a"], Duration::ZERO);
    oblige(&mut group, 1, Duration::ZERO);
    join(&mut group, 2, &["a"], Duration::ZERO);
    assert_eq!(group.next_deadline(), Some(TIMEOUT));
    let early = group.reassign(TIMEOUT - Duration::from_nanos(1));
    assert_eq!(early, Reassignment::default());
    let late = group.reassign(TIMEOUT);
    assert_eq!(late.assigned.len(), 2);
    assert!(
        matches!(group.next_event(MemberId(1)), Some(RebalanceEvent::Lost(lost)) if lost.len() == 2)
    );
}

#[test]
fn a_partition_waits_for_the_commit_of_whoever_had_it() {
    let mut group = Group::default();
    let now = Duration::ZERO;
    join(&mut group, 1, &["a"], now);
    oblige(&mut group, 1, now);
    group.begin_commit(&at("a", 0), 7, Offset(3));
    join(&mut group, 2, &["a"], now);
    let left = group.leave(MemberId(1), now);
    assert_eq!(
        left.assigned.len(),
        3,
        "all but the one that is being committed"
    );
    assert!(!group.is_owned(&at("a", 0)));
    group.end_commit(&at("a", 0), 7);
    let ended = group.reassign(now);
    assert_eq!(ended.assigned.len(), 1);
}

#[test]
fn a_second_member_of_the_same_name_takes_everything_at_once() {
    let mut group = Group::default();
    let named = Subscription {
        instance: Some("left".to_owned()),
        ..subscription(&["a"])
    };
    let now = Duration::ZERO;
    group.join(MemberId(1), named.clone(), partitions(&["a"]), now);
    oblige(&mut group, 1, now);
    let outcome = group.join(MemberId(2), named, partitions(&["a"]), now);
    assert_eq!(outcome.assigned.len(), 4);
    assert!(group.is_replaced(MemberId(1)));
    assert!(
        matches!(group.next_event(MemberId(1)), Some(RebalanceEvent::Lost(lost)) if lost.len() == 4)
    );
    assert_eq!(group.members().collect::<Vec<_>>(), [MemberId(2)]);
}

#[test]
fn an_unknown_partition_is_taken_without_asking() {
    let mut group = Group::default();
    join(&mut group, 1, &["a"], Duration::ZERO);
    let outcome = join(&mut group, 2, &["a"], Duration::ZERO);
    assert_eq!(outcome.assigned.len(), 2);
    assert!(
        matches!(group.next_event(MemberId(1)), Some(RebalanceEvent::Assigned(assigned)) if assigned.len() == 2)
    );
}

#[test]
fn topics_of_a_member_that_reads_them_together_are_read_by_others_in_the_same_way() {
    let mut group = Group::default();
    let now = Duration::ZERO;
    group.join(
        MemberId(1),
        subscription_with_c(&["a"]),
        partitions(&["a", "c"]),
        now,
    );
    assert_eq!(group.conflict(&subscription_with_c(&["a"])), None);
    assert_eq!(group.conflict(&subscription(&["b"])), None);
    for other in ["a", "c"] {
        let apart = subscription(&[other]);
        assert_eq!(group.conflict(&apart), apart.topics.first());
    }
    group.leave(MemberId(1), now);
    assert_eq!(group.conflict(&subscription(&["c"])), None);
    // The next one reads apart what was read together once.
    let outcome = join(&mut group, 2, &["a"], now);
    assert_eq!(outcome.assigned.len(), 4);
}

/// The partition of `a` that one of `c` is read together with.
fn leader(at: &TopicPartition) -> Option<TopicPartition> {
    (at.topic.as_str() == "c").then(|| self::at("a", at.partition.0))
}

/// The partition of the other topic that one of `a` or `c` is read together with.
fn together_with(at: &TopicPartition) -> Option<TopicPartition> {
    let led = || (at.topic.as_str() == "a").then(|| self::at("c", at.partition.0));
    leader(at).or_else(led)
}

/// An event of a group.
#[derive(Debug, Clone)]
enum Act {
    Join { topics: u8, instance: u8 },
    Leave(usize),
    Lose(usize),
    Hear(usize),
    Release(usize),
    Shake,
    Begin(usize),
    End,
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..4_u8, 0..4_u8).prop_map(|(topics, instance)| Act::Join { topics, instance }),
        1 => (0..6_usize).prop_map(Act::Leave),
        1 => (0..6_usize).prop_map(Act::Lose),
        6 => (0..6_usize).prop_map(Act::Hear),
        4 => (0..6_usize).prop_map(Act::Release),
        1 => Just(Act::Shake),
        2 => (0..8_usize).prop_map(Act::Begin),
        3 => Just(Act::End),
        2 => (0..12_u64).prop_map(Act::Wait),
    ];
    vec(act, 1..60)
}

/// A group, the time, and what is known about it from outside.
#[derive(Default)]
struct World {
    group: Group,
    now: Duration,
    last_member: u64,
    last_commit: CommitNumber,
    commits: Vec<(TopicPartition, CommitNumber)>,
    asked: BTreeMap<MemberId, Vec<TopicPartition>>,
    highest: u64,
}

impl World {
    fn member(&self, nth: usize) -> Option<MemberId> {
        let all: Vec<MemberId> = self.group.members.keys().copied().collect();
        all.get(nth % all.len().max(1)).copied()
    }

    fn play(&mut self, act: &Act) {
        let before = self.owners();
        let now = self.now;
        let picked = |nth: &usize| self.member(*nth);
        let outcome = match act {
            Act::Join { topics, instance } => {
                let read: Vec<&str> = ["a", "b"]
                    .into_iter()
                    .enumerate()
                    .filter(|(bit, _)| topics >> bit & 1 == 1)
                    .map(|(_, topic)| topic)
                    .collect();
                let subscription = Subscription {
                    instance: (*instance > 1).then(|| instance.to_string()),
                    ..subscription_with_c(&read)
                };
                let all: Vec<&str> = subscription.all_topics().map(Topic::as_str).collect();
                let all = partitions(&all);
                self.last_member += 1;
                self.group
                    .join(MemberId(self.last_member), subscription, all, now)
            }
            Act::Leave(nth) => {
                picked(nth).map_or_else(Reassignment::default, |m| self.group.leave(m, now))
            }
            Act::Lose(nth) => {
                picked(nth).map_or_else(Reassignment::default, |m| self.group.expire(m, now))
            }
            Act::Hear(nth) => {
                let Some(member) = picked(nth) else { return };
                let outcome = self.group.heartbeat(member, now);
                if let Some(RebalanceEvent::Revoking(asked)) = self.group.next_event(member) {
                    self.asked.entry(member).or_default().extend(asked);
                }
                outcome
            }
            Act::Release(nth) => {
                let Some(member) = picked(nth) else { return };
                let asked = self.asked.remove(&member).unwrap_or_default();
                self.group.release(member, &asked, now)
            }
            Act::Shake => self.group.revoke_all(now),
            Act::Begin(nth) => {
                let owned: Vec<TopicPartition> = before.keys().cloned().collect();
                let Some(at) = owned.get(*nth) else { return };
                self.last_commit += 1;
                self.group.begin_commit(at, self.last_commit, Offset(1));
                self.commits.push((at.clone(), self.last_commit));
                Reassignment::default()
            }
            Act::End => {
                let Some((at, number)) = self.commits.pop() else {
                    return;
                };
                self.group.end_commit(&at, number);
                self.group.reassign(now)
            }
            Act::Wait(seconds) => {
                self.now += Duration::from_secs(*seconds);
                self.group.reassign(self.now)
            }
        };
        self.check(&before, &outcome);
    }

    fn owners(&self) -> BTreeMap<TopicPartition, Owner> {
        let ownerships = self.group.ownerships.iter();
        ownerships
            .filter_map(|(at, ownership)| Some((at.clone(), ownership.owner?)))
            .collect()
    }

    fn check(&mut self, before: &BTreeMap<TopicPartition, Owner>, outcome: &Reassignment) {
        let after = self.owners();
        let highest = self.highest;
        for (_, at, fence) in &outcome.assigned {
            assert!(
                fence.0 > highest && fence.0 >= self.highest,
                "fences ascend"
            );
            let is_with_last = at.topic.as_str() == "c" && fence.0 == self.highest;
            assert!(
                fence.0 > self.highest || is_with_last,
                "{at} shares a fence"
            );
            self.highest = fence.0;
            let is_committing = self.commits.iter().any(|(other, _)| other == at);
            assert!(!is_committing, "{at} changed hands during a commit");
        }
        for (at, owner) in &after {
            if let Some(was) = before.get(at)
                && was.fence != owner.fence
            {
                assert!(owner.fence > was.fence);
            }
            let member = &self.group.members[&owner.member];
            assert_eq!(member.status, MemberStatus::Present);
            let mut topics = member.subscription.all_topics();
            assert!(topics.any(|topic| *topic == at.topic));
            if let Some(leader) = leader(at).and_then(|leader| after.get(&leader)) {
                let of = |owner: &Owner| (owner.member, owner.fence);
                assert_eq!(of(leader), of(owner), "{at} is read together");
            }
        }
        self.check_idle(&after);
    }

    /// Nothing lies idle: a partition without owner has no reader, or waits for a commit.
    fn check_idle(&self, after: &BTreeMap<TopicPartition, Owner>) {
        let present = || {
            self.group
                .members
                .values()
                .filter(|m| m.status == MemberStatus::Present)
        };
        for (at, ownership) in &self.group.ownerships {
            let reads = |member: &Member| {
                member
                    .subscription
                    .all_topics()
                    .any(|topic| *topic == at.topic)
            };
            let is_read = present().any(reads);
            let is_busy = |at: TopicPartition| {
                let other = self.group.ownerships.get(&at);
                other.is_some_and(|other| other.owner.is_some() || !other.commits.is_empty())
            };
            let waits = together_with(at).is_some_and(is_busy);
            if is_read && ownership.commits.is_empty() && !waits {
                assert!(after.contains_key(at), "{at} lies idle");
            }
        }
        let is_calm =
            after.values().all(|owner| owner.release_by.is_none()) && self.commits.is_empty();
        let reads_all = present().all(|member| member.subscription.topics.len() == 2);
        if is_calm && reads_all {
            let shares = self
                .group
                .members
                .iter()
                .filter(|(_, m)| m.status == MemberStatus::Present)
                .map(|(id, _)| {
                    let leading = after.iter().filter(|(at, _)| leader(at).is_none());
                    leading.filter(|(_, owner)| owner.member == *id).count()
                });
            let shares: Vec<usize> = shares.collect();
            let difference = shares.iter().max().unwrap_or(&0) - shares.iter().min().unwrap_or(&0);
            assert!(difference <= 1, "shares {shares:?} are uneven");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn one_owner_no_idle_partition_and_ascending_fences(acts in acts()) {
        let mut world = World::default();
        for act in &acts {
            world.play(act);
        }
    }

    #[test]
    fn a_member_that_comes_or_goes_moves_no_more_than_it_must(count in 1..6_u64, leaves in any::<bool>()) {
        let mut group = Group::default();
        let now = Duration::ZERO;
        let calm = |group: &mut Group, count| for _ in 0..3 {
            for id in 1..=count {
                oblige(group, id, now);
            }
        };
        for id in 1..=count {
            join(&mut group, id, &["a", "b"], now);
            calm(&mut group, id);
        }
        let owner_of = |group: &Group| -> BTreeMap<TopicPartition, MemberId> {
            group.ownerships.iter().filter_map(|(at, ownership)| Some((at.clone(), ownership.owner?.member))).collect()
        };
        let before = owner_of(&group);
        prop_assert_eq!(before.len(), 8);
        let must = if leaves {
            let gone = before.values().filter(|member| member.0 == 1).count();
            group.leave(MemberId(1), now);
            gone
        } else {
            join(&mut group, count + 1, &["a", "b"], now);
            8 / usize::try_from(count + 1).unwrap_or(1)
        };
        calm(&mut group, count + 1);
        let after = owner_of(&group);
        let moved = before.iter().filter(|(at, member)| after.get(*at) != Some(*member)).count();
        prop_assert_eq!(moved, must);
    }
}
