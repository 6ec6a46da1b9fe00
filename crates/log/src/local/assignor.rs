//! Which member is to have which partition.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Topic;

use super::group::MemberId;
use crate::record::TopicPartition;

/// Spreads partitions over the members that read their topics.
///
/// A partition stays with its owner unless moving it makes the shares more even, because every move
/// repeats records. The rest goes to the member that has least, the member of longest standing first. In
/// the end no single move would make the shares more even; where all members read the same topics,
/// no two shares differ by more than one. A partition whose topic nobody reads is not in the answer.
pub(super) fn assign_sticky<'a>(
    partitions: impl Iterator<Item = (&'a TopicPartition, Option<MemberId>)>,
    members: &BTreeMap<MemberId, &BTreeSet<Topic>>,
) -> BTreeMap<&'a TopicPartition, MemberId> {
    let mut shares: BTreeMap<MemberId, usize> = members.keys().map(|member| (*member, 0)).collect();
    let mut target = BTreeMap::new();
    let mut free = Vec::new();
    for (at, holder) in partitions {
        let reads = |member: MemberId| members.get(&member).is_some_and(|t| t.contains(&at.topic));
        match holder.filter(|member| reads(*member)) {
            Some(member) => {
                target.insert(at, member);
                *shares.entry(member).or_default() += 1;
            }
            None => free.push(at),
        }
    }
    // Free partitions are moved first when shares are evened out: it costs nothing.
    let mut order = free.clone();
    order.extend(target.keys());
    for at in free {
        if let Some((_, least)) = least_of(&at.topic, members, &shares) {
            target.insert(at, least);
            *shares.entry(least).or_default() += 1;
        }
    }
    // Each move lowers the sum of the squares of the shares, so this ends.
    while let Some((at, to)) = next_move(&order, &target, members, &shares) {
        if let Some(from) = target.insert(at, to) {
            *shares.entry(from).or_default() -= 1;
        }
        *shares.entry(to).or_default() += 1;
    }
    target
}

/// The smallest share among the readers of a topic, and whose it is.
fn least_of(
    topic: &Topic,
    members: &BTreeMap<MemberId, &BTreeSet<Topic>>,
    shares: &BTreeMap<MemberId, usize>,
) -> Option<(usize, MemberId)> {
    let readers = members.iter().filter(|(_, topics)| topics.contains(topic));
    readers
        .map(|(member, _)| (shares.get(member).copied().unwrap_or(0), *member))
        .min()
}

/// A partition of the largest share that somebody with at least two fewer could have.
fn next_move<'a>(
    order: &[&'a TopicPartition],
    target: &BTreeMap<&'a TopicPartition, MemberId>,
    members: &BTreeMap<MemberId, &BTreeSet<Topic>>,
    shares: &BTreeMap<MemberId, usize>,
) -> Option<(&'a TopicPartition, MemberId)> {
    let moves = order.iter().filter_map(|at| {
        let share = shares.get(target.get(at)?).copied()?;
        let (least, to) = least_of(&at.topic, members, shares)?;
        (share >= least + 2).then_some((share, *at, to))
    });
    // The first of the largest, so that what is free goes before what somebody has.
    let largest = moves.fold(None, |best: Option<(usize, _, _)>, next| match best {
        Some(best) if best.0 >= next.0 => Some(best),
        Some(_) | None => Some(next),
    });
    largest.map(|(_, at, to)| (at, to))
}
