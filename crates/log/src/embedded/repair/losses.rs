//! What a repair posts as lost.
//!
//! What the books of a topic expect and its records do not have is lost with what was damaged. A
//! group loses of that what it had still to read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tidegate_core::Topic;
use tidegate_core::books::{Books, Bucket, Place, Tally};
use tidegate_core::env::Disk;

use super::{DAMAGED, Repaired};
use crate::embedded::audit::{self, Audited};
use crate::embedded::state::{State, TopicState, removed};
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

/// Posts what is missing of these topics, for them and for the groups that read them.
pub(super) fn post(
    disk: &dyn Disk,
    dir: &Path,
    state: &mut State,
    damaged: &BTreeSet<u32>,
    now_ms: u64,
) -> Result<(), LogError> {
    // Minutes that are folded in the books are folded in what is compared with them.
    state.fold(now_ms);
    let counted = audit::count(disk, dir, state)?;
    let numbers: BTreeMap<Topic, u32> = state.numbers.clone();
    for audited in counted {
        let number = numbers.get(&audited.topic);
        let Some(number) = number.filter(|number| damaged.contains(number)) else {
            continue;
        };
        let missing = missing(&audited, now_ms);
        match &audited.group {
            None => {
                if let Some(topic) = state.topics.get_mut(*number as usize) {
                    lose(&mut topic.books, positive(&missing));
                }
            }
            Some(group) => {
                let readings = state.groups.get_mut(group);
                if let Some(reading) = readings.and_then(|of| of.get_mut(number)) {
                    let Settled { never_had, lost } = settle(&missing);
                    for (bucket, tally) in never_had {
                        let queued = Some(Place::Queued);
                        reading.before.move_tally(bucket, None, queued, tally);
                    }
                    lose(&mut reading.posted, lost);
                }
            }
        }
    }
    Ok(())
}

fn lose(books: &mut Books, lost: impl IntoIterator<Item = (Bucket, Tally)>) {
    for (bucket, tally) in lost {
        let (from, to) = (Some(Place::Queued), Some(Place::Lost(DAMAGED)));
        books.move_tally(bucket, from, to, tally);
    }
}

/// What the books have as queued, by bucket, and the records do not have.
fn missing(audited: &Audited, now_ms: u64) -> BTreeMap<Bucket, Tally> {
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

fn positive(missing: &BTreeMap<Bucket, Tally>) -> Vec<(Bucket, Tally)> {
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
fn settle(missing: &BTreeMap<Bucket, Tally>) -> Settled {
    let mut settled = Settled::default();
    let mut known = 0;
    for (bucket, tally) in missing.iter().filter(|(_, tally)| tally.count < 0) {
        known -= tally.count;
        settled.never_had.push((*bucket, *tally));
    }
    for (bucket, tally) in positive(missing) {
        let mut rest = tally;
        if matches!(bucket, Bucket::Offsets { .. }) {
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
