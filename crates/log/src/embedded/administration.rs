//! Changes that an operator asks for: a group that begins elsewhere or is forgotten, a topic that is removed.
//!
//! The writer makes them, because between the look at the books and the change nothing else may come.

use std::collections::BTreeMap;

use tidegate_core::books::{Books, Bucket, Place, Posting, Tally};
use tidegate_core::{GroupName, Offset, Topic};

use super::audit::group_books;
use super::change::{LogChange, PartitionKey};
use super::segment::Minutes;
use super::state::{GroupProgress, LogState, TopicState};
use super::tally::{PartitionSnapshot, add_all};
use super::writer::JournalWriter;
use crate::admin::{
    AdminMode, FORGOTTEN, GroupSeek, NOT_DELIVERED, PartitionSeek, RemovedGroup, RemovedTopic,
    SKIPPED, TOPIC_REMOVED, TopicRemoval, back_to_queue, folded, from_queue, moved,
};
use crate::error::LogError;
use crate::record::TopicPartition;

impl JournalWriter {
    /// Moves a group, see [`LogAdmin::seek_group`](crate::LogAdmin::seek_group). The caller has made sure that it
    /// has no members.
    pub(super) fn seek(&mut self, seek: &GroupSeek) -> Result<Vec<PartitionSeek>, LogError> {
        let (mut sought, mut changes) = (Vec::new(), Vec::new());
        let mut taken = BTreeMap::new();
        for (at, to) in &seek.to {
            let planned = {
                let state = self.context.state();
                SeekFacts::of(&state, &seek.group, at, *to)?
            };
            let Some(facts) = planned else {
                continue;
            };
            let (change, records) = self.planned(&seek.group, &facts, &mut taken)?;
            sought.push(PartitionSeek {
                at: at.clone(),
                from: Offset(facts.old),
                to: Offset(facts.new),
                records,
            });
            changes.push(change);
        }
        if seek.mode == AdminMode::Apply && !changes.is_empty() {
            self.change(&changes)?;
        }
        Ok(sought)
    }

    /// The change that moves a group in a partition, and how many records lie between. `taken` has what the
    /// partitions before have taken from what is delivered.
    fn planned(
        &self,
        group: &GroupName,
        facts: &SeekFacts,
        taken: &mut BTreeMap<(u32, Bucket), i64>,
    ) -> Result<(LogChange, u64), LogError> {
        let minutes = |from: i64, to: i64| match from < to {
            true => facts.snapshot.minutes(&self.context, (from, to)),
            false => Ok(Minutes::new()),
        };
        let (posted, regained) = match facts.new > facts.old {
            true => {
                let passed = by_minute(minutes(facts.old, facts.new)?);
                (from_queue(passed, &Place::Lost(SKIPPED)), Vec::new())
            }
            false => {
                // Records before its beginning were never in its books.
                let begin = facts.begin.clamp(facts.new, facts.old);
                let mut again = Minutes::new();
                let mut skipped = Minutes::new();
                let mut from = begin;
                for (first, behind) in facts.skipped_within(begin) {
                    add_all(&mut again, minutes(from, first)?);
                    add_all(&mut skipped, minutes(first, behind)?);
                    from = behind;
                }
                add_all(&mut again, minutes(from, facts.old)?);
                let mut posted = back_to_queue(by_minute(skipped), &Place::Lost(SKIPPED));
                posted.extend(facts.undelivered(again, taken)?);
                let before = by_minute(minutes(facts.new, begin)?);
                let accepted = before.map(|(bucket, tally)| accepted(bucket, tally));
                (posted, accepted.collect())
            }
        };
        let records = moved(&posted) + moved(&regained);
        let change = LogChange::Seek {
            group: group.clone(),
            at: facts.key,
            next: facts.new,
            posted,
            regained,
        };
        Ok((change, records))
    }

    /// Forgets a group, see [`LogAdmin::remove_group`](crate::LogAdmin::remove_group). The caller has made sure
    /// that it has no members.
    pub(super) fn forget(
        &mut self,
        group: &GroupName,
        mode: AdminMode,
    ) -> Result<RemovedGroup, LogError> {
        let (mut unread, mut left) = (Vec::new(), Vec::new());
        {
            let state = self.context.state();
            let by_topic = state.groups.get(group);
            let by_topic = by_topic.ok_or_else(|| LogError::UnknownGroup {
                group: group.clone(),
            })?;
            for (number, progress) in by_topic {
                let Some(topic) = state.topics.get(*number as usize) else {
                    continue;
                };
                let waiting = waiting(&state, topic, progress);
                let postings = from_queue(waiting, &Place::Lost(FORGOTTEN));
                unread.push((topic.name.clone(), moved(&postings)));
                left.push((*number, postings));
            }
        }
        if mode == AdminMode::Apply {
            let group = group.clone();
            self.change(&[LogChange::Forget { group, left }])?;
        }
        let group = group.clone();
        Ok(RemovedGroup { group, unread })
    }

    /// Removes a topic, see [`LogAdmin::remove_topic`](crate::LogAdmin::remove_topic): nobody finds it any more, and
    /// its records can go. The caller has made sure that no group that reads it has members.
    pub(super) fn remove_topic(
        &mut self,
        removal: &TopicRemoval,
    ) -> Result<RemovedTopic, LogError> {
        let name = &removal.topic;
        let (mut unread, mut changes) = (Vec::new(), Vec::new());
        let records = {
            let state = self.context.state();
            let unknown = || LogError::UnknownTopic {
                topic: name.clone(),
            };
            let (number, topic) = state.topic(name).ok_or_else(unknown)?;
            for (group, by_topic) in &state.groups {
                let Some(progress) = by_topic.get(&number) else {
                    continue;
                };
                let waiting = waiting(&state, topic, progress);
                let postings = from_queue(waiting, &Place::Lost(TOPIC_REMOVED));
                if moved(&postings) > 0 {
                    unread.push((group.clone(), moved(&postings)));
                }
                changes.extend(to_the_end(group, (number, topic), postings));
            }
            changes.push(LogChange::RemoveTopic { topic: number });
            let (books, removed) = (topic.books.account(), topic.books.removed());
            u64::try_from(books.queued - removed.queued).unwrap_or(0)
        };
        if !unread.is_empty() && !removal.is_forced {
            let topic = name.clone();
            return Err(LogError::Unread {
                topic,
                groups: unread,
            });
        }
        if removal.mode == AdminMode::Apply {
            self.change(&changes)?;
            self.context.renew_catalog();
        }
        let topic = name.clone();
        Ok(RemovedTopic {
            topic,
            records,
            unread,
        })
    }
}

/// The events that a group has still in its queue, in the buckets that the books keep them in.
fn waiting(
    state: &LogState,
    topic: &TopicState,
    progress: &GroupProgress,
) -> BTreeMap<Bucket, Tally> {
    let queued = group_books(topic, progress).tallies(&Place::Queued);
    folded(queued, state.folded_from())
}

/// The changes that have a group read nothing more of a topic: its books end with the first of them.
fn to_the_end(
    group: &GroupName,
    (number, topic): (u32, &TopicState),
    postings: Vec<Posting>,
) -> impl Iterator<Item = LogChange> {
    let mut postings = Some(postings);
    let ends: Vec<i64> = topic.partitions.iter().map(|p| p.end).collect();
    let group = group.clone();
    ends.into_iter()
        .zip(0..)
        .map(move |(end, partition)| LogChange::Seek {
            group: group.clone(),
            at: (number, partition),
            next: end,
            posted: postings.take().unwrap_or_default(),
            regained: Vec::new(),
        })
}

/// The facts about a group that is moved in a partition.
struct SeekFacts {
    key: PartitionKey,
    /// The next offset before and from now on.
    old: i64,
    new: i64,
    /// Where the group began.
    begin: i64,
    snapshot: PartitionSnapshot,
    /// The events that the group has delivered, by bucket.
    delivered: BTreeMap<Bucket, Tally>,
    /// The offsets that it was moved past, in their order.
    skipped: Vec<(i64, i64)>,
    now_ms: u64,
    group: GroupName,
}

impl SeekFacts {
    /// None where the group is there already.
    fn of(
        state: &LogState,
        group: &GroupName,
        at: &TopicPartition,
        to: Offset,
    ) -> Result<Option<Self>, LogError> {
        let partition = state.at(at)?;
        let key = state.find(at).unwrap_or_default();
        let by_topic = state.groups.get(group);
        let progress = by_topic.and_then(|of| of.get(&key.0));
        let progress = progress.ok_or_else(|| LogError::UnknownGroup {
            group: group.clone(),
        })?;
        let old = progress.needs(key.1 as usize).max(partition.start);
        let new = to.0.clamp(partition.start, partition.end);
        if new == old {
            return Ok(None);
        }
        let topic = &state.topics[key.0 as usize];
        if topic.holes().next().is_some() {
            let why =
                "records of the topic were lost to damage, and `tidegate log repair` comes first";
            return Err(in_use(group, why));
        }
        let now_ms = state.folded_from();
        let skipped = progress.skipped.iter();
        let skipped = skipped.filter(|(partition, ..)| *partition == key.1);
        let mut skipped: Vec<_> = skipped.map(|(_, from, to)| (*from, *to)).collect();
        skipped.sort_unstable();
        let unknown = || LogError::UnknownTopic {
            topic: at.topic.clone(),
        };
        Ok(Some(Self {
            key,
            old,
            new,
            begin: progress.starts.get(key.1 as usize).copied().unwrap_or(0),
            delivered: folded(progress.posted.tallies(&Place::Delivered), now_ms),
            skipped,
            snapshot: PartitionSnapshot::of(state, key).ok_or_else(unknown)?,
            now_ms,
            group: group.clone(),
        }))
    }

    /// The offsets from `begin` to where the group is that it was moved past, one range behind the other.
    fn skipped_within(&self, begin: i64) -> Vec<(i64, i64)> {
        let mut from = begin;
        let ranges = self.skipped.iter().filter_map(|(first, behind)| {
            let range = ((*first).max(from), (*behind).min(self.old));
            from = from.max(range.1);
            (range.0 < range.1).then_some(range)
        });
        ranges.collect()
    }

    /// The postings of records that the group has settled and reads again. Those that it has not delivered are dead
    /// letters, or lost: nobody knows which these are.
    fn undelivered(
        &self,
        again: Minutes,
        taken: &mut BTreeMap<(u32, Bucket), i64>,
    ) -> Result<Vec<Posting>, LogError> {
        let again = folded(by_minute(again), self.now_ms);
        for (bucket, records) in &again {
            let delivered = self.delivered.get(bucket).copied().unwrap_or_default();
            let taken = taken.entry((self.key.0, *bucket)).or_default();
            *taken += records.count;
            if *taken > delivered.count {
                return Err(in_use(&self.group, NOT_DELIVERED));
            }
        }
        Ok(back_to_queue(again, &Place::Delivered))
    }
}

fn in_use(group: &GroupName, why: &str) -> LogError {
    LogError::InUse {
        what: format!("group `{group}`"),
        why: why.to_owned(),
    }
}

/// The records of minutes by their buckets.
fn by_minute(minutes: Minutes) -> impl Iterator<Item = (Bucket, Tally)> {
    let minutes = minutes.into_iter();
    minutes.map(|(minute, tally)| (Bucket::Minute(minute), tally))
}

/// The posting of events that come into the books.
fn accepted(bucket: Bucket, tally: Tally) -> Posting {
    Posting {
        bucket,
        from: None,
        to: Some(Place::Queued),
        count: u64::try_from(tally.count).unwrap_or(0),
        id_sum: tally.id_sum,
    }
}

/// The books of the groups that were forgotten, by topic.
pub(super) fn forgotten(state: &LogState) -> Vec<(Topic, Books)> {
    let topics = state.topics.iter();
    let closed = topics.filter(|topic| topic.forgotten.account().accepted != 0);
    closed
        .map(|topic| (topic.name.clone(), topic.forgotten.clone()))
        .collect()
}
