//! What a repair posts: what is lost, and what is gone without being lost.
//!
//! What the books of a topic expect and its records do not have is lost, as far as what was damaged
//! held it. A group loses of that what it had still to read.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::GroupName;
use tidegate_core::books::{Books, Bucket, LossReason, Place, Tally};
use tidegate_core::env::Disk;

use super::settle::{Facts, Settled, Sums, is_hole, settle};
use super::{COMMIT_DAMAGED, DAMAGED, Repaired};
use crate::embedded::audit::{self, Audited, group_books};
use crate::embedded::segment::Minutes;
use crate::embedded::state::{Reading, State, TopicState, Unposted, removed};
use crate::embedded::tally::{self, add_all};
use crate::error::LogError;
use crate::record::TopicPartition;

/// What a damaged segment held and cannot be read any more.
#[derive(Debug)]
pub(super) struct Harm {
    pub(super) topic: u32,
    pub(super) partition: u32,
    /// The first offset that is damaged, and the one behind the last.
    pub(super) offsets: (i64, i64),
    pub(super) minutes: Minutes,
}

impl Harm {
    fn is_in(&self, lost: &Unposted) -> bool {
        let is_there = (self.topic, self.partition) == (lost.topic, lost.partition);
        is_there && self.offsets.0 < lost.to && lost.from < self.offsets.1
    }
}

/// Whether groups of the journal were lost, as far as anybody knows.
pub(super) fn is_journal_damaged(state: &State) -> bool {
    let has_holes = |topic: &TopicState| {
        let queued = topic.books.tallies(&Place::Queued);
        queued.keys().any(is_hole)
    };
    let is_in_doubt = !state.doubts.is_empty() || !state.unposted.is_empty();
    is_in_doubt || state.topics.iter().any(has_holes)
}

/// Posts what was lost with damage, for topics and for the groups that read them: of what the books
/// have and the records do not, as much as the damage held. Any other difference is not ours to explain,
/// and an audit goes on naming it.
pub(super) fn post(
    disk: &dyn Disk,
    dir: &Path,
    state: &mut State,
    damage: &Damage<'_>,
) -> Result<Vec<Repaired>, LogError> {
    // Minutes that are folded in the books are folded in what is compared with them.
    state.fold(damage.now_ms);
    let passed = passed(disk, dir, state, damage)?;
    let counted = audit::count(disk, dir, state)?;
    let mut repaired = Vec::new();
    // A topic comes before its groups, which have to do with what it settled.
    for audited in counted {
        let Some(number) = state.numbers.get(&audited.topic).copied() else {
            continue;
        };
        match &audited.group {
            None => {
                if let Some(topic) = state.topics.get_mut(number as usize) {
                    repaired.extend(damage.post_topic(number, topic, &audited));
                }
            }
            Some(group) => {
                let topic = state.topics.get(number as usize);
                let readings = state.groups.get_mut(group);
                let reading = readings.and_then(|of| of.get_mut(&number));
                let passed = passed.get(&(group.clone(), number));
                if let (Some(topic), Some(reading)) = (topic, reading) {
                    let passed = passed.cloned().unwrap_or_default();
                    damage.post_group((number, topic), reading, passed, &audited);
                }
            }
        }
    }
    state.unposted.clear();
    Ok(repaired)
}

/// What is known of the damage.
#[derive(Debug)]
pub(super) struct Damage<'a> {
    pub(super) harms: &'a [Harm],
    pub(super) is_journal_damaged: bool,
    pub(super) now_ms: u64,
}

impl Damage<'_> {
    fn post_topic(&self, number: u32, topic: &mut TopicState, audited: &Audited) -> Vec<Repaired> {
        let missing = self.missing(&topic.books, audited);
        let holes = missing.keys().filter(|bucket| is_hole(bucket));
        let removed = holes.map(|bucket| (*bucket, removed_of(topic, bucket)));
        let Settled {
            known, lost, gone, ..
        } = settle(&Facts {
            harmed: self.harmed(|harm| harm.topic == number),
            is_journal_damaged: self.is_journal_damaged,
            gone: match self.is_journal_damaged {
                true => removed_unposted(topic),
                false => removed_unread(topic),
            },
            removed: removed.collect(),
            missing,
            ..Facts::default()
        });
        let removed = [&known, &gone].into_iter().flatten();
        let removed = removed.filter(|(bucket, _)| is_hole(bucket));
        let in_holes: i64 = removed.map(|(_, tally)| tally.count).sum();
        let in_minutes = gone.iter().filter(|(bucket, _)| !is_hole(bucket));
        let in_minutes: i64 = in_minutes.map(|(_, tally)| tally.count).sum();
        let mut repaired = Vec::new();
        if let Ok(events @ 1..) = u64::try_from(in_holes + in_minutes) {
            let topic = topic.name.clone();
            repaired.push(Repaired::Removed { topic, events });
        }
        for (bucket, tally) in known {
            // In its minute it counts from now on, and among the lost offsets no more.
            let (queued, tally) = (Some(Place::Queued), Tally::default().minus(tally));
            topic.books.move_tally(bucket, None, queued, tally);
        }
        for (bucket, tally) in gone {
            let queued = Some(Place::Queued);
            topic.books.move_tally(bucket, queued, None, tally);
        }
        let holes = lost.iter().filter_map(|(bucket, _)| offsets(bucket));
        repaired.extend(holes.map(|(partition, offsets)| Repaired::Records {
            at: TopicPartition::new(topic.name.clone(), partition),
            offsets,
            aside: None,
        }));
        lose(&mut topic.books, &DAMAGED, lost);
        repaired
    }

    fn post_group(
        &self,
        (number, topic): (u32, &TopicState),
        reading: &mut Reading,
        passed: Passed,
        audited: &Audited,
    ) {
        let missing = self.missing(&group_books(topic, reading), audited);
        let had_to_read = |harm: &Harm| {
            harm.topic == number && harm.offsets.1 > reading.needs(harm.partition as usize)
        };
        // Retention waits for a group: what it removed the group had passed, with a commit that was
        // lost where it seems to need it still.
        let needed = topic.partitions.iter().enumerate();
        let needed = needed.map(|(p, partition)| (partition.start - reading.needs(p)).max(0));
        let gone = match self.is_journal_damaged {
            true => passed.removed + needed.sum::<i64>(),
            false => 0,
        };
        let Settled {
            known,
            lost,
            passed,
            gone,
        } = settle(&Facts {
            harmed: self.harmed(had_to_read),
            passed: passed.books.tallies(&Place::Queued),
            is_journal_damaged: self.is_journal_damaged,
            gone,
            gone_from: Some(removed(&topic.books).tallies(&Place::Queued)),
            missing,
            ..Facts::default()
        });
        for (bucket, tally) in known {
            // The group keeps what it posted, and has to do with the lost offsets no more.
            let queued = Some(Place::Queued);
            reading.before.move_tally(bucket, None, queued, tally);
        }
        lose(&mut reading.posted, &COMMIT_DAMAGED, passed);
        lose(&mut reading.posted, &COMMIT_DAMAGED, gone);
        lose(&mut reading.posted, &DAMAGED, lost);
    }

    /// What damaged segments held, by bucket.
    fn harmed(&self, is_meant: impl Fn(&Harm) -> bool) -> Sums {
        let mut sums = Minutes::new();
        for harm in self.harms.iter().filter(|harm| is_meant(harm)) {
            add_all(&mut sums, harm.minutes.iter().map(|(m, t)| (*m, *t)));
        }
        fold(in_minutes(sums), self.now_ms)
    }

    /// What books have as queued, by bucket, and the records do not have.
    fn missing(&self, books: &Books, audited: &Audited) -> Sums {
        let mut recount = audited.recount.clone();
        recount.fold(self.now_ms);
        let mut missing = books.tallies(&Place::Queued);
        for found in [removed(books), recount] {
            for (bucket, tally) in found.tallies(&Place::Queued) {
                let rest = missing.entry(bucket).or_default();
                *rest = rest.minus(tally);
            }
        }
        missing
    }
}

/// The partition and the offsets of a bucket of lost ones: the first, and the one behind the last.
fn offsets(bucket: &Bucket) -> Option<(i32, (i64, i64))> {
    match bucket {
        Bucket::Offsets {
            partition,
            first,
            last,
        } => Some((partition.0, (first.0, last.0 + 1))),
        Bucket::Minute(_) | Bucket::Hour(_) | Bucket::Day(_) => None,
    }
}

/// How many offsets of a bucket lie before the start of their partition.
fn removed_of(topic: &TopicState, bucket: &Bucket) -> i64 {
    let found = offsets(bucket).and_then(|(partition, offsets)| {
        let partition = topic.partitions.get(usize::try_from(partition).ok()?)?;
        Some(partition.start.min(offsets.1) - offsets.0)
    });
    found.unwrap_or(0).max(0)
}

/// How many records were removed, at least, that could not be read then: a removal posts what it can
/// read. Those that a repair posted as lost are none of them.
pub(super) fn removed_unread(topic: &TopicState) -> i64 {
    if topic.config.compact {
        return 0;
    }
    let lost = topic.books.in_place(&Place::Lost(DAMAGED));
    (removed_unposted(topic) - lost).max(0)
}

/// How many records were removed from a topic, at most, of which the books do not tell. Of a topic that
/// is compacted nobody can say.
fn removed_unposted(topic: &TopicState) -> i64 {
    if topic.config.compact {
        return i64::MAX;
    }
    let removed: i64 = topic.partitions.iter().map(|p| p.start).sum();
    (removed - topic.books.removed().accepted).max(0)
}

fn in_minutes(minutes: Minutes) -> impl Iterator<Item = (Bucket, Tally)> {
    let minutes = minutes.into_iter();
    minutes.map(|(minute, tally)| (Bucket::Minute(minute), tally))
}

/// Sums by bucket, as the books have them by now.
fn fold(sums: impl IntoIterator<Item = (Bucket, Tally)>, now_ms: u64) -> Sums {
    let mut books = Books::default();
    for (bucket, tally) in sums {
        books.move_tally(bucket, None, Some(Place::Queued), tally);
    }
    books.fold(now_ms);
    books.tallies(&Place::Queued)
}

/// What a group passed, without a posting, in its first commits behind groups that were lost. Those
/// posted it.
#[derive(Debug, Clone, Default)]
struct Passed {
    /// As queued.
    books: Books,
    /// How many of the offsets have been removed since.
    removed: i64,
}

impl Passed {
    fn add(&mut self, sums: impl IntoIterator<Item = (Bucket, Tally)>) {
        for (bucket, tally) in sums {
            let queued = Some(Place::Queued);
            self.books.move_tally(bucket, None, queued, tally);
        }
    }
}

fn passed(
    disk: &dyn Disk,
    dir: &Path,
    state: &State,
    damage: &Damage<'_>,
) -> Result<BTreeMap<(GroupName, u32), Passed>, LogError> {
    let mut found: BTreeMap<(GroupName, u32), Passed> = BTreeMap::new();
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
            seal: state.seal,
            cluster: &state.cluster,
            at: &at,
        };
        let passed = found.entry((lost.group.clone(), lost.topic)).or_default();
        passed.removed += (partition.start.min(lost.to) - lost.from).max(0);
        passed.add(in_minutes(place.of_segments(&partition.segments, range)?));
        for harm in damage.harms.iter().filter(|harm| harm.is_in(lost)) {
            passed.add(in_minutes(harm.minutes.clone()));
        }
        let posted = lost.postings.iter();
        let posted = posted.filter(|posting| posting.from == Some(Place::Queued));
        passed.add(posted.map(|posting| {
            let tally = Tally {
                count: i64::try_from(posting.count).unwrap_or(i64::MAX),
                id_sum: posting.id_sum,
            };
            (posting.bucket, Tally::default().minus(tally))
        }));
    }
    for passed in found.values_mut() {
        passed.books.fold(damage.now_ms);
    }
    Ok(found)
}

fn lose(books: &mut Books, reason: &LossReason, lost: impl IntoIterator<Item = (Bucket, Tally)>) {
    for (bucket, tally) in lost {
        let (from, to) = (Some(Place::Queued), Some(Place::Lost(reason.clone())));
        books.move_tally(bucket, from, to, tally);
    }
}
