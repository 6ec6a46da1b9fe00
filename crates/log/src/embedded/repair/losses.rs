//! The losses that a repair posts: the books minus a recount, as far as damage explains it.
//!
//! | missing in | as | at most |
//! |---|---|---|
//! | a topic | `lost:damaged` | the offsets that cannot be read, and those that were removed without a posting |
//! | a group | `lost:damaged` | the offsets that it had still to read |
//! | a group that lost commits | `lost:commit_damaged` | the same, and what those commits may have posted |
//!
//! Where more is missing, nothing is posted but what is damaged for certain, and the rest stays missing.
//!
//! A group of the journal may tell of events that the books never had, because their records were lost
//! before it. They are among the lost offsets, so that they only exchange one bucket for another.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::books::{Books, Bucket, LossReason, Place, Tally};
use tidegate_core::env::Disk;

use super::{COMMIT_DAMAGED, DAMAGED, Repaired};
use crate::embedded::audit::{self, TopicAudit, group_books};
use crate::embedded::change::PartitionKey;
use crate::embedded::config::DeadLetterTopics;
use crate::embedded::injected_bugs::{self, InjectedBug};
use crate::embedded::segment::Minutes;
use crate::embedded::state::{GroupProgress, Hole, LogState, TopicState};
use crate::embedded::tally::{queue_all, queue_minutes};
use crate::error::LogError;
use crate::record::TopicPartition;

/// Sums of ids by bucket.
type Sums = BTreeMap<Bucket, Tally>;

/// The part of a damaged segment that cannot be read any more.
#[derive(Debug)]
pub(super) struct DamagedSegment {
    pub(super) at: PartitionKey,
    /// The first offset that is damaged, and the one behind the last.
    pub(super) offsets: (i64, i64),
    pub(super) minutes: Minutes,
}

/// The postings of a repair.
#[derive(Debug, Default)]
pub(super) struct Posted {
    pub(super) repaired: Vec<Repaired>,
    /// Events of topics that are lost.
    pub(super) damaged: u64,
    /// Events of groups that are lost with their commits.
    pub(super) commit_damaged: u64,
}

/// Posts what was lost with damage, for topics and for the groups that read them.
pub(super) fn post(
    disk: &dyn Disk,
    dir: &Path,
    state: &mut LogState,
    segments: &[DamagedSegment],
    now_ms: u64,
) -> Result<Posted, LogError> {
    let mut posted = Posted::default();
    let is_lost = |topic: &TopicState| topic.holes().count() > 0;
    let is_journal_damaged = !state.journal_damage.is_empty() || state.topics.iter().any(is_lost);
    let is_removed = state.topics.iter().any(|topic| removed_unread(topic) > 0);
    if !is_journal_damaged && !is_removed && segments.is_empty() {
        return Ok(posted);
    }
    let damage = Damage {
        segments,
        is_journal_damaged,
        now_ms: now_ms.max(state.folded_from()),
    };
    // Minutes that are folded in the books are folded in what is compared with them.
    state.fold(damage.now_ms);
    // A topic comes before its groups, which have to do with what it posted.
    for audited in audit::count(disk, dir, state, &DeadLetterTopics::new())? {
        let known = state.known_topic(&audited.topic);
        let number = known.map_or(u32::MAX, |(number, _)| number);
        let Some(topic) = state.topics.get_mut(number as usize) else {
            continue;
        };
        let Some(group) = &audited.group else {
            damage.post_topic((number, topic), &audited, &mut posted);
            continue;
        };
        let commits = state.lost_commits.iter();
        let commits = commits.filter(|lost| lost.group == *group && lost.at.0 == number);
        let commits: u64 = commits.map(|lost| lost.events).sum();
        let by_topic = state.groups.get_mut(group);
        if let Some(progress) = by_topic.and_then(|of| of.get_mut(&number)) {
            damage.post_group((number, topic), progress, commits, &audited, &mut posted);
        }
    }
    Ok(posted)
}

/// The damage, as far as it is known.
struct Damage<'a> {
    segments: &'a [DamagedSegment],
    is_journal_damaged: bool,
    now_ms: u64,
}

impl Damage<'_> {
    fn post_topic(
        &self,
        (number, topic): (u32, &mut TopicState),
        audited: &TopicAudit,
        posted: &mut Posted,
    ) {
        let missing = self.missing(&topic.books, audited);
        let removed = |p: usize| (0, topic.partitions.get(p).map_or(0, |p| p.start));
        let (known, mut most) = self.explained(number, &missing, removed);
        most = most.saturating_add(match self.is_journal_damaged {
            true => removed_unposted(topic),
            false => removed_unread(topic),
        });
        for bucket in known.keys() {
            if let Some(Hole {
                partition, offsets, ..
            }) = Hole::of(*bucket, 0)
            {
                let at = TopicPartition::new(topic.name.clone(), partition.0);
                let aside = None;
                let lost = Repaired::Records { at, offsets, aside };
                posted.repaired.push(lost);
            }
        }
        let (lost, exchanged) = explain(missing, &known, most);
        posted.damaged += events(&lost);
        lose(&mut topic.books, &DAMAGED, lost);
        let exchanged = exchanged.into_iter();
        let exchanged = exchanged.map(|(bucket, tally)| (bucket, Tally::default().minus(tally)));
        queue_all(&mut topic.books, exchanged);
    }

    /// `commits` is how many events the group passed without a posting behind lost commits.
    fn post_group(
        &self,
        (number, topic): (u32, &TopicState),
        progress: &mut GroupProgress,
        commits: u64,
        audited: &TopicAudit,
        posted: &mut Posted,
    ) {
        let missing = self.missing(&group_books(topic, progress), audited);
        let start = |p: usize| topic.partitions.get(p).map_or(0, |p| p.start);
        let began = |p: usize| progress.starts.get(p).copied().unwrap_or(0);
        let passed = |p: usize| (began(p), progress.needs(p).max(start(p)));
        let (known, most) = self.explained(number, &missing, passed);
        // Retention waits for a group: what it removed the group had passed, with a commit that was lost
        // where it seems to need it still.
        let removed = (0..topic.partitions.len()).map(|p| (start(p) - progress.needs(p)).max(0));
        let removed = removed.filter(|_| self.is_journal_damaged).sum::<i64>();
        let commits = i64::try_from(commits).unwrap_or(i64::MAX);
        let commits = commits.saturating_add(removed);
        let (lost, exchanged) = explain(missing, &known, most.saturating_add(commits));
        let reason = if commits > 0 { COMMIT_DAMAGED } else { DAMAGED };
        if let (true, count @ 1.., Some(group)) = (commits > 0, events(&lost), &audited.group) {
            posted.commit_damaged += count;
            posted.repaired.push(Repaired::Commits {
                group: group.clone(),
                topic: audited.topic.clone(),
                events: count,
            });
        }
        lose(&mut progress.posted, &reason, lost);
        queue_all(&mut progress.before, exchanged);
    }

    /// The events that damaged segments and lost offsets explain, by bucket, and how many they are at most.
    /// The offsets within the range that `passed` gives for a partition explain nothing.
    fn explained(
        &self,
        topic: u32,
        missing: &Sums,
        passed: impl Fn(usize) -> (i64, i64),
    ) -> (Sums, i64) {
        let (mut most, mut harmed) = (0, Books::default());
        for segment in self.segments.iter().filter(|s| s.at.0 == topic) {
            let (_, from) = passed(segment.at.1 as usize);
            let held: i64 = segment.minutes.values().map(|tally| tally.count).sum();
            let (first, behind) = segment.offsets;
            let count = held.min(behind - from.max(first)).max(0);
            most += count;
            if count > 0 {
                let minutes = segment.minutes.iter().map(|(m, t)| (*m, *t));
                queue_minutes(&mut harmed, minutes);
            }
        }
        harmed.fold(self.now_ms);
        let mut known = harmed.tallies(&Place::Queued);
        for (bucket, tally) in missing {
            let Some(mut hole) = Hole::of(*bucket, tally.count) else {
                continue;
            };
            let (first, behind) = hole.offsets;
            let (from, to) = passed(usize::try_from(hole.partition.0).unwrap_or(usize::MAX));
            let within = (behind.min(to) - first.max(from)).max(0);
            hole.count = hole.count.min(behind - first - within);
            if hole.count > 0 {
                most += hole.count;
                known.insert(*bucket, hole.tally());
            }
        }
        (known, most)
    }

    /// The events that the books have as queued, by bucket, and the records do not have.
    fn missing(&self, books: &Books, audited: &TopicAudit) -> Sums {
        let mut recount = audited.recount.clone();
        recount.fold(self.now_ms);
        let mut missing = books.tallies(&Place::Queued);
        let removed = books.removed_tallies(&Place::Queued);
        for (bucket, tally) in removed.into_iter().chain(recount.tallies(&Place::Queued)) {
            let rest = missing.entry(bucket).or_default();
            *rest = rest.minus(tally);
        }
        missing.retain(|_, tally| !tally.is_zero());
        missing
    }
}

/// Splits what is missing into what is lost, and what only exchanges one bucket for another. That is all
/// of it, where damage explains so many events. Else only what is known to be damaged is lost.
fn explain(missing: Sums, known: &Sums, most: i64) -> (Sums, Sums) {
    let in_holes: i64 = missing.iter().filter(|(b, _)| is_hole(b)).map(count).sum();
    let told: i64 = missing.iter().map(count).filter(|count| *count < 0).sum();
    let total: i64 = missing.iter().map(count).sum();
    let is_possible =
        in_holes + told >= 0 && (in_holes > 0 || missing.iter().all(|m| count(m) > 0));
    let is_within = (0..=most).contains(&total) || injected_bugs::is(InjectedBug::UnboundedRepair);
    let mut lost = Sums::new();
    if !is_possible || !is_within {
        for (bucket, held) in known {
            let missing = missing.get(bucket).copied().unwrap_or_default();
            let part = if held.count < missing.count {
                *held
            } else {
                missing
            };
            if part.count > 0 {
                lost.insert(*bucket, part);
            }
        }
        return (lost, Sums::new());
    }
    let mut exchanged = missing;
    let mut left = total;
    let (holes, minutes): (Vec<Bucket>, Vec<Bucket>) = exchanged.keys().partition(|b| is_hole(b));
    let whole = |bucket| (bucket, i64::MAX);
    // Offsets that were passed were read, so that the events of others are lost before theirs.
    let unread = known.iter().filter(|(bucket, _)| is_hole(bucket));
    let unread = unread.map(|(bucket, tally)| (*bucket, tally.count));
    let order = minutes.into_iter().map(whole).chain(unread);
    for (bucket, most) in order.chain(holes.into_iter().map(whole)) {
        let Some(rest) = exchanged.get_mut(&bucket) else {
            continue;
        };
        let part = Tally {
            count: rest.count.min(left).min(most),
            ..*rest
        };
        if part.count > 0 {
            left -= part.count;
            *rest = rest.minus(part);
            let sum = lost.entry(bucket).or_default();
            *sum = sum.plus(part);
        }
    }
    exchanged.retain(|_, tally| !tally.is_zero());
    (lost, exchanged)
}

fn count((_, tally): (&Bucket, &Tally)) -> i64 {
    tally.count
}

fn events(sums: &Sums) -> u64 {
    let count: i64 = sums.iter().map(count).sum();
    u64::try_from(count).unwrap_or(0)
}

fn is_hole(bucket: &Bucket) -> bool {
    matches!(bucket, Bucket::Offsets { .. })
}

/// How many records were removed, at least, that could not be read then: a removal posts what it can
/// read. Those that a repair posted as lost are none of them.
fn removed_unread(topic: &TopicState) -> i64 {
    if topic.config.compact {
        return 0;
    }
    let lost = topic.books.in_place(&Place::Lost(DAMAGED));
    (removed_unposted(topic) - lost).max(0)
}

/// How many records were removed from a topic, at most, of which the books do not tell. Of a topic that
/// is compacted it is unknown.
fn removed_unposted(topic: &TopicState) -> i64 {
    if topic.config.compact {
        return i64::MAX;
    }
    let removed: i64 = topic.partitions.iter().map(|p| p.start).sum();
    (removed - topic.books.removed().accepted).max(0)
}

fn lose(books: &mut Books, reason: &LossReason, lost: Sums) {
    for (bucket, tally) in lost {
        let (from, to) = (Some(Place::Queued), Some(Place::Lost(reason.clone())));
        books.move_tally(bucket, from, to, tally);
    }
}
