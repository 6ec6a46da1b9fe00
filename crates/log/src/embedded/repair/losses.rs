//! What a repair posts as lost.
//!
//! What the books of a topic expect and its records do not have is lost, as far as what was damaged
//! held it. A group loses of that what it had still to read.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::books::{Books, Bucket, LossReason, Place, Tally};
use tidegate_core::env::Disk;
use tidegate_core::{GroupName, Topic};

use super::{COMMIT_DAMAGED, DAMAGED, Repaired};
use crate::embedded::audit::{self, Audited};
use crate::embedded::segment::Minutes;
use crate::embedded::state::{State, TopicState, removed};
use crate::embedded::tally::{self, add_all};
use crate::error::LogError;
use crate::record::TopicPartition;

/// The offsets of a topic that were lost with a part of the journal and that nobody has posted yet.
pub(super) fn holes(topic: &TopicState) -> Vec<Repaired> {
    let queued = topic.books.tallies(&Place::Queued).into_keys();
    queued
        .filter_map(|bucket| match bucket {
            Bucket::Offsets {
                partition,
                first,
                last,
            } => Some(Repaired::Records {
                at: TopicPartition::new(topic.name.clone(), partition.0),
                offsets: (first.0, last.0 + 1),
                aside: None,
            }),
            Bucket::Minute(_) | Bucket::Hour(_) | Bucket::Day(_) => None,
        })
        .collect()
}

/// Sums of ids by bucket.
type Sums = BTreeMap<Bucket, Tally>;

/// What a damaged segment held and cannot be read any more.
#[derive(Debug)]
pub(super) struct Harm {
    pub(super) topic: u32,
    pub(super) partition: u32,
    /// The offset behind the last one that is damaged.
    pub(super) to: i64,
    pub(super) minutes: Minutes,
}

/// Posts what was lost with damage, for topics and for the groups that read them: of what the books
/// have and the records do not, as much as the damage held. Any other difference is not ours to explain,
/// and an audit goes on naming it.
pub(super) fn post(
    disk: &dyn Disk,
    dir: &Path,
    state: &mut State,
    harms: &[Harm],
    now_ms: u64,
) -> Result<(), LogError> {
    // Minutes that are folded in the books are folded in what is compared with them.
    state.fold(now_ms);
    let unposted = unposted(disk, dir, state, now_ms)?;
    let counted = audit::count(disk, dir, state)?;
    let numbers: BTreeMap<Topic, u32> = state.numbers.clone();
    for audited in counted {
        let Some(number) = numbers.get(&audited.topic) else {
            continue;
        };
        let mut missing = missing(&audited, now_ms);
        let harms = harms.iter().filter(|harm| harm.topic == *number);
        match &audited.group {
            None => {
                let held = folded(harms, now_ms);
                if let Some(topic) = state.topics.get_mut(*number as usize) {
                    lose(
                        &mut topic.books,
                        &DAMAGED,
                        within(positive(&missing), &held),
                    );
                }
            }
            Some(group) => {
                let readings = state.groups.get_mut(group);
                let Some(reading) = readings.and_then(|of| of.get_mut(number)) else {
                    continue;
                };
                let passed = unposted.get(&(group.clone(), *number));
                let mut passed = within(positive(&missing), passed.unwrap_or(&BTreeMap::new()));
                passed.retain(|(bucket, _)| !is_hole(bucket));
                for (bucket, tally) in &passed {
                    let rest = missing.entry(*bucket).or_default();
                    *rest = rest.minus(*tally);
                }
                lose(&mut reading.posted, &COMMIT_DAMAGED, passed);
                let had_to_read = |harm: &&Harm| harm.to > reading.needs(harm.partition as usize);
                let held = folded(harms.filter(had_to_read), now_ms);
                let Settled { never_had, lost } = settle(&missing);
                for (bucket, tally) in never_had {
                    let queued = Some(Place::Queued);
                    reading.before.move_tally(bucket, None, queued, tally);
                }
                lose(&mut reading.posted, &DAMAGED, within(lost, &held));
            }
        }
    }
    state.unposted.clear();
    Ok(())
}

/// Sums by bucket, as the books have them by now.
fn folded<'a>(harms: impl Iterator<Item = &'a Harm>, now_ms: u64) -> Sums {
    let mut sums = Minutes::new();
    for harm in harms {
        add_all(&mut sums, harm.minutes.iter().map(|(m, t)| (*m, *t)));
    }
    let sums = sums.into_iter();
    fold(
        sums.map(|(minute, tally)| (Bucket::Minute(minute), tally)),
        now_ms,
    )
}

fn fold(sums: impl IntoIterator<Item = (Bucket, Tally)>, now_ms: u64) -> Sums {
    let mut books = Books::default();
    for (bucket, tally) in sums {
        books.move_tally(bucket, None, Some(Place::Queued), tally);
    }
    books.fold(now_ms);
    books.tallies(&Place::Queued)
}

/// Of what is missing, no more than was held. Offsets that were lost with the journal are in a bucket of
/// their own, which holds nothing else.
fn within(missing: impl IntoIterator<Item = (Bucket, Tally)>, held: &Sums) -> Vec<(Bucket, Tally)> {
    let missing = missing.into_iter();
    missing
        .filter_map(|(bucket, tally)| {
            if is_hole(&bucket) {
                return Some((bucket, tally));
            }
            let held = held.get(&bucket).filter(|held| held.count > 0)?;
            Some((
                bucket,
                if held.count < tally.count {
                    *held
                } else {
                    tally
                },
            ))
        })
        .collect()
}

/// By group and topic: what the group passed, without a posting, in its first commit behind groups that
/// were lost. Those posted it.
fn unposted(
    disk: &dyn Disk,
    dir: &Path,
    state: &State,
    now_ms: u64,
) -> Result<BTreeMap<(GroupName, u32), Sums>, LogError> {
    let mut found: BTreeMap<(GroupName, u32), Vec<(Bucket, Tally)>> = BTreeMap::new();
    for lost in &state.unposted {
        let range = (lost.from, lost.to);
        let Some((at, partition)) = state
            .name(lost.topic, lost.partition)
            .zip(state.partition(lost.topic, lost.partition))
        else {
            continue;
        };
        let place = tally::Shelved {
            disk,
            dir,
            cluster: &state.cluster,
            at: &at,
        };
        let passed = place.of_segments(&partition.segments, range)?;
        let sums = found.entry((lost.group.clone(), lost.topic)).or_default();
        let passed = passed.into_iter();
        sums.extend(passed.map(|(minute, tally)| (Bucket::Minute(minute), tally)));
        let posted = lost.postings.iter();
        let posted = posted.filter(|posting| posting.from == Some(Place::Queued));
        sums.extend(posted.map(|posting| {
            let tally = Tally {
                count: i64::try_from(posting.count).unwrap_or(i64::MAX),
                id_sum: posting.id_sum,
            };
            (posting.bucket, Tally::default().minus(tally))
        }));
    }
    let found = found.into_iter();
    Ok(found.map(|(of, sums)| (of, fold(sums, now_ms))).collect())
}

fn lose(books: &mut Books, reason: &LossReason, lost: impl IntoIterator<Item = (Bucket, Tally)>) {
    for (bucket, tally) in lost {
        let (from, to) = (Some(Place::Queued), Some(Place::Lost(reason.clone())));
        books.move_tally(bucket, from, to, tally);
    }
}

/// What the books have as queued, by bucket, and the records do not have.
fn missing(audited: &Audited, now_ms: u64) -> Sums {
    let mut recount = audited.recount.clone();
    recount.fold(now_ms);
    let mut missing = audited.books.tallies(&Place::Queued);
    for found in [removed(&audited.books), recount] {
        for (bucket, tally) in found.tallies(&Place::Queued) {
            let rest = missing.entry(bucket).or_default();
            *rest = rest.minus(tally);
        }
    }
    missing
}

/// Whether a bucket is of offsets that were lost with a part of the journal.
fn is_hole(bucket: &Bucket) -> bool {
    matches!(bucket, Bucket::Offsets { .. })
}

fn positive(missing: &Sums) -> Vec<(Bucket, Tally)> {
    let found = missing.iter().filter(|(_, tally)| tally.count > 0);
    found.map(|(bucket, tally)| (*bucket, *tally)).collect()
}

/// How the books of a group are brought in line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settled {
    /// What counts from now on as what the group never had.
    never_had: Vec<(Bucket, Tally)>,
    /// What it had still to read.
    lost: Vec<(Bucket, Tally)>,
}

/// Decides what of the missing records a group has lost.
///
/// It may have settled records that the topic lost with a part of the journal: then its own postings
/// tell their ids and minutes, in which the topic has too few by now, and the topic has as many too
/// many in the buckets of lost offsets. The group keeps what it posted.
fn settle(missing: &Sums) -> Settled {
    let mut settled = Settled::default();
    let mut known = 0;
    let has_holes = positive(missing).iter().any(|(bucket, _)| is_hole(bucket));
    let too_few = missing.iter().filter(|(_, tally)| tally.count < 0);
    for (bucket, tally) in too_few.filter(|_| has_holes) {
        known -= tally.count;
        settled.never_had.push((*bucket, *tally));
    }
    for (bucket, tally) in positive(missing) {
        let mut rest = tally;
        if is_hole(&bucket) {
            let of_them = Tally {
                count: known.min(tally.count),
                id_sum: 0,
            };
            known -= of_them.count;
            rest = tally.minus(of_them);
            if of_them.count > 0 {
                settled.never_had.push((bucket, of_them));
            }
        }
        if rest.count > 0 {
            settled.lost.push((bucket, rest));
        }
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Offset, Partition};

    #[test]
    fn a_group_loses_what_it_had_still_to_read_and_keeps_what_it_posted() {
        let tally = |count, id_sum| Tally { count, id_sum };
        let minute = Bucket::Minute(7);
        let hole = |first, last| Bucket::Offsets {
            partition: Partition(0),
            first: Offset(first),
            last: Offset(last),
        };
        let gone = tally(-2, 5_u128.wrapping_neg());
        let settle = |missing: &[(Bucket, Tally)]| settle(&missing.iter().copied().collect());
        let settled = |never_had: &[_], lost: &[_]| Settled {
            never_had: never_had.to_vec(),
            lost: lost.to_vec(),
        };
        assert_eq!(settle(&[]), Settled::default());
        assert_eq!(
            settle(&[(minute, tally(1, 9)), (hole(3, 4), tally(2, 0))]),
            settled(&[], &[(minute, tally(1, 9)), (hole(3, 4), tally(2, 0))])
        );
        assert_eq!(
            settle(&[(minute, gone), (hole(3, 4), tally(2, 0))]),
            settled(&[(minute, gone), (hole(3, 4), tally(2, 0))], &[])
        );
        assert_eq!(
            settle(&[(minute, gone), (hole(3, 5), tally(3, 0))]),
            settled(
                &[(minute, gone), (hole(3, 5), tally(2, 0))],
                &[(hole(3, 5), tally(1, 0))]
            )
        );
    }
}
