//! The state of the log as of its last durable group, and the effect of every change on it.
//!
//! The same function applies a group when it was made durable and when it is found in the journal
//! again. So a recovered log is the log that was lost.

mod group_progress;
mod unknown_loss;
mod validate;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidegate_core::books::{Books, Bucket, Place, Posting, Tally};
use tidegate_core::{GroupName, Offset, Partition, Topic};
use tokio::sync::Notify;

use super::change::{LogChange, PartitionKey};
use super::chunk::Chunk;
use super::secret::LogSecret;
use super::segment::Segment;
use super::tally::{queue_all, queue_minutes};
use crate::error::LogError;
use crate::record::TopicPartition;
use crate::topic::{PartitionDescription, TopicConfig, TopicDescription};

pub(super) use group_progress::GroupProgress;
pub(super) use unknown_loss::LostCommit;
pub use unknown_loss::{JournalDamage, UnknownLoss};

/// A place in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct JournalPlace {
    /// The number of the file.
    pub(super) file: u64,
    /// Bytes from its beginning.
    pub(super) at: u64,
}

/// The content of the log.
#[derive(Debug, Clone, Default)]
pub(super) struct LogState {
    pub(super) cluster: String,
    pub(super) secret: LogSecret,
    /// The sequence and the CRC of the last group.
    pub(super) sequence: u64,
    pub(super) crc: u32,
    /// Where the next group goes.
    pub(super) journal: JournalPlace,
    /// By number.
    pub(super) topics: Vec<TopicState>,
    pub(super) numbers: BTreeMap<Topic, u32>,
    pub(super) groups: BTreeMap<GroupName, BTreeMap<u32, GroupProgress>>,
    /// Bytes of all records, in segments and in memory.
    pub(super) used: u64,
    /// Bytes of records that are in no segment yet.
    pub(super) unflushed_bytes: u64,
    /// Segments that are not part of the log any more and wait to be removed.
    pub(super) garbage: Vec<Garbage>,
    /// Parts of the journal that were lost, until a repair takes note of them.
    pub(super) journal_damage: Vec<JournalDamage>,
    /// Commits of groups before which others were lost, until a repair.
    pub(super) lost_commits: Vec<LostCommit>,
    /// Offsets that all partitions together have given.
    pub(super) offsets_assigned: u64,
    /// The same number by the last group: more, where groups before it are lost.
    pub(super) offsets_reported: u64,
}

/// A file that is not part of the log any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Garbage {
    pub(super) topic: u32,
    pub(super) name: String,
    /// The sequence of the group that took it out: once that is in a checkpoint, the file can go.
    pub(super) sequence: u64,
}

#[derive(Debug, Clone)]
pub(super) struct TopicState {
    pub(super) name: Topic,
    pub(super) config: TopicConfig,
    /// All its records as queued, and what was removed.
    pub(super) books: Books,
    /// The books of the groups that were forgotten, together.
    pub(super) forgotten: Books,
    /// Whether it was removed: it takes nothing, and nobody finds it by its name until it is made again.
    pub(super) is_removed: bool,
    pub(super) partitions: Vec<PartitionState>,
}

impl TopicState {
    /// Whether it was removed before anything was in it: nobody needs to know of it any more.
    pub(super) fn is_traceless(&self) -> bool {
        self.is_removed && self.books.account().accepted == 0
    }

    /// The offsets that were lost with the journal and that no repair has posted yet.
    pub(super) fn holes(&self) -> impl Iterator<Item = Hole> {
        let removed = self.books.removed_tallies(&Place::Queued);
        let queued = self.books.tallies(&Place::Queued).into_iter();
        queued.filter_map(move |(bucket, tally)| {
            let gone = removed.get(&bucket).map_or(0, |gone| gone.count);
            let count = tally.count - gone;
            Hole::of(bucket, count).filter(|hole| hole.count > 0)
        })
    }
}

/// Offsets of a partition that were lost with the journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    /// Where the books have them.
    pub(super) bucket: Bucket,
    pub(super) partition: Partition,
    /// The first one, and the one behind the last.
    pub(super) offsets: (i64, i64),
    /// How many events are missing there.
    pub(super) count: i64,
}

impl Hole {
    /// The events, of which no ids are known.
    pub(super) fn tally(&self) -> Tally {
        Tally {
            count: self.count,
            id_sum: 0,
        }
    }

    /// The lost offsets of a bucket; none for one that counts events by time.
    pub(super) fn of(bucket: Bucket, count: i64) -> Option<Self> {
        match bucket {
            Bucket::Offsets {
                partition,
                first,
                last,
            } => Some(Self {
                bucket,
                partition,
                offsets: (first.0, last.0 + 1),
                count,
            }),
            Bucket::Minute(_) | Bucket::Hour(_) | Bucket::Day(_) => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct PartitionState {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) segments: Vec<Segment>,
    /// Chunks that are in no segment yet, in their order.
    pub(super) unflushed: VecDeque<Chunk>,
    pub(super) unflushed_bytes: u64,
    /// Offsets that were lost to damage: from the first up to the one behind the last.
    pub(super) damaged: Vec<(i64, i64)>,
    /// Notified when records are added.
    pub(super) appended: Arc<Notify>,
}

impl LogState {
    pub(super) fn topic(&self, name: &Topic) -> Option<(u32, &TopicState)> {
        let number = *self.numbers.get(name)?;
        Some((number, self.topics.get(number as usize)?))
    }

    /// The same, also of a topic that was removed.
    pub(super) fn known_topic(&self, name: &Topic) -> Option<(u32, &TopicState)> {
        self.topic(name).or_else(|| {
            let mut removed = self.topics.iter().zip(0..);
            let found = removed.find(|(topic, _)| topic.is_removed && topic.name == *name);
            found.map(|(topic, number)| (number, topic))
        })
    }

    /// The numbers of a partition, if it is there.
    pub(super) fn find(&self, at: &TopicPartition) -> Option<PartitionKey> {
        let (number, topic) = self.topic(&at.topic)?;
        let partition = u32::try_from(at.partition.0).ok()?;
        ((partition as usize) < topic.partitions.len()).then_some((number, partition))
    }

    pub(super) fn partition(&self, (topic, partition): PartitionKey) -> Option<&PartitionState> {
        let topic = self.topics.get(topic as usize)?;
        topic.partitions.get(partition as usize)
    }

    /// The partition of this name.
    ///
    /// # Errors
    /// The topic or the partition is not there.
    pub(super) fn at(&self, at: &TopicPartition) -> Result<&PartitionState, LogError> {
        let (_, topic) = self.topic(&at.topic).ok_or(LogError::UnknownTopic {
            topic: at.topic.clone(),
        })?;
        let found = usize::try_from(at.partition.0).ok();
        let found = found.and_then(|partition| topic.partitions.get(partition));
        found.ok_or_else(|| LogError::UnknownPartition {
            at: at.clone(),
            partitions: topic.config.partitions,
        })
    }

    pub(super) fn partition_mut(
        &mut self,
        (topic, partition): PartitionKey,
    ) -> Option<&mut PartitionState> {
        let topic = self.topics.get_mut(topic as usize)?;
        topic.partitions.get_mut(partition as usize)
    }

    /// All partitions by their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (PartitionKey, &PartitionState)> {
        self.topics.iter().zip(0..).flat_map(|(topic, number)| {
            let partitions = topic.partitions.iter().zip(0..);
            partitions.map(move |(partition, p)| ((number, p), partition))
        })
    }

    /// Whether offsets that were lost to damage are posted as lost.
    pub(super) fn is_posted(&self, at: &TopicPartition, (from, to): (i64, i64)) -> bool {
        let topic = self.topic(&at.topic).into_iter();
        let mut holes = topic.flat_map(|(_, topic)| topic.holes());
        !holes.any(|hole| {
            hole.partition == at.partition && hole.offsets.0 < to && hole.offsets.1 > from
        })
    }

    /// The name of a partition.
    pub(super) fn name(&self, (topic, partition): PartitionKey) -> Option<TopicPartition> {
        let name = self.topics.get(topic as usize)?.name.clone();
        let partition = i32::try_from(partition).ok()?;
        Some(TopicPartition::new(name, partition))
    }

    /// The offset up to which no registered group needs anything of a partition any more.
    pub(super) fn needed_from(&self, (topic, partition): PartitionKey) -> i64 {
        let by_topic = self.groups.values().filter_map(|group| group.get(&topic));
        let needs = by_topic.map(|progress| progress.needs(partition as usize));
        needs.min().unwrap_or(i64::MAX)
    }

    pub(super) fn describe(&self, name: &Topic) -> Option<TopicDescription> {
        let (_, topic) = self.topic(name)?;
        let partitions = topic.partitions.iter().zip(0..);
        let partitions = partitions.map(|(partition, number)| PartitionDescription {
            partition: Partition(number),
            start: Offset(partition.start),
            end: Offset(partition.end),
        });
        Some(TopicDescription {
            topic: name.clone(),
            config: topic.config.clone(),
            partitions: partitions.collect(),
        })
    }

    /// Applies the changes of the group with this sequence: all of them, or none.
    ///
    /// # Errors
    /// A change speaks of something that is not there, which only damage can bring about; nothing
    /// was changed.
    pub(super) fn apply(
        &mut self,
        sequence: u64,
        changes: Vec<LogChange>,
    ) -> Result<(), InvalidChange> {
        self.validate(&changes)?;
        for change in changes {
            let applied = self.apply_one(sequence, change);
            applied.ok_or(InvalidChange("an unknown topic or partition"))?;
        }
        Ok(())
    }

    /// Applies a change; none where it speaks of something that is not there.
    fn apply_one(&mut self, sequence: u64, change: LogChange) -> Option<()> {
        change.for_each_end(|at, offset| self.mark_gap_up_to(at, offset));
        match change {
            LogChange::Chunk { at, chunk } => self.add_chunk(at, chunk)?,
            LogChange::Offset {
                group,
                at,
                committed,
                postings,
            } => {
                let progress = self.progress(group, at.0)?;
                let posted = &mut progress.posted;
                postings.iter().for_each(|posting| posted.post(posting));
                *progress.committed.get_mut(at.1 as usize)? = Some(committed);
            }
            LogChange::Topic {
                number,
                name,
                config,
            } => self.set_topic(number, name, config),
            LogChange::Register { group, topics } => {
                self.groups.entry(group.clone()).or_default();
                for topic in topics {
                    self.progress(group.clone(), topic)?;
                }
            }
            LogChange::Skip {
                group,
                at,
                next,
                before,
            } => {
                let progress = self.progress(group, at.0)?;
                progress.skip(at.1 as usize, next, &before);
            }
            LogChange::Forget { group, left } => {
                for (topic, postings) in left {
                    self.close_books(&group, topic, &postings);
                }
                self.groups.remove(&group);
            }
            LogChange::Seek {
                group,
                at,
                next,
                posted,
                regained,
            } => {
                let progress = self.progress(group, at.0)?;
                progress.seek(at.1 as usize, next, &posted, &regained)?;
            }
            LogChange::RemoveTopic { topic } => {
                let removed = self.topics.get_mut(topic as usize)?;
                removed.is_removed = true;
                self.numbers.remove(&removed.name);
            }
            LogChange::Start { at, start, removed } => {
                self.post(at.0, &removed)?;
                self.set_start(sequence, at, start)?;
            }
            LogChange::Switch {
                at,
                end,
                segments,
                removed,
            } => {
                self.post(at.0, &removed)?;
                let added: u64 = segments.iter().map(|segment| segment.len).sum();
                self.used += added;
                self.replace_segments(sequence, at, (segments, end))?;
            }
            LogChange::EndOffsets {
                offsets_assigned, ..
            } => self.offsets_reported = offsets_assigned,
        }
        Some(())
    }

    /// Makes a topic, or sets it up anew. One that was removed goes on. The change was found to
    /// [fit](State::validate).
    fn set_topic(&mut self, number: u32, name: Topic, config: TopicConfig) {
        if let Some(topic) = self.topics.get_mut(number as usize) {
            topic.config = config;
            topic.is_removed = false;
            self.numbers.insert(name, number);
            return;
        }
        self.numbers.insert(name.clone(), number);
        let partitions = (0..config.partitions).map(|_| PartitionState::default());
        self.topics.push(TopicState {
            name,
            partitions: partitions.collect(),
            config,
            books: Books::default(),
            forgotten: Books::default(),
            is_removed: false,
        });
    }

    fn post(&mut self, topic: u32, postings: &[Posting]) -> Option<()> {
        let books = &mut self.topics.get_mut(topic as usize)?.books;
        postings.iter().for_each(|posting| books.post(posting));
        Some(())
    }

    fn add_chunk(&mut self, at: PartitionKey, unflushed: Chunk) -> Option<()> {
        let topic = self.topics.get_mut(at.0 as usize)?;
        let partition = topic.partitions.get_mut(at.1 as usize)?;
        queue_minutes(&mut topic.books, unflushed.head.tallies.iter().copied());
        let len = unflushed.bytes.len() as u64;
        self.offsets_assigned += unflushed.head.end().abs_diff(partition.end);
        partition.end = unflushed.head.end();
        partition.unflushed_bytes += len;
        partition.unflushed.push_back(unflushed);
        self.unflushed_bytes += len;
        self.used += len;
        Some(())
    }

    /// An offset is spoken of, so the records before it were there. Only groups that were lost to damage
    /// leave a gap: the one writer does not. The number of the lost records is all that is known of them.
    /// The books have them as queued, where no recount finds them, until a repair posts them as lost.
    /// Of a partition that is unknown itself, nothing is marked.
    fn mark_gap_up_to(&mut self, (topic, number): PartitionKey, offset: i64) {
        let Some(topic) = self.topics.get_mut(topic as usize) else {
            return;
        };
        let partition = topic.partitions.get_mut(number as usize);
        let Some(partition) = partition.filter(|partition| partition.end < offset) else {
            return;
        };
        let bucket = Bucket::Offsets {
            partition: Partition(i32::try_from(number).unwrap_or(i32::MAX)),
            first: Offset(partition.end),
            last: Offset(offset - 1),
        };
        let count = offset - partition.end;
        queue_all(&mut topic.books, [(bucket, Tally { count, id_sum: 0 })]);
        partition.damaged.push((partition.end, offset));
        self.offsets_assigned += offset.abs_diff(partition.end);
        partition.end = offset;
    }

    fn set_start(&mut self, sequence: u64, at: PartitionKey, start: i64) -> Option<()> {
        let partition = self.partition_mut(at)?;
        partition.start = partition.start.max(start.min(partition.end));
        let start = partition.start;
        partition.damaged.retain(|(_, to)| *to > start);
        self.replace_segments(sequence, at, (Vec::new(), start))
    }

    /// Puts these segments in place of those before `end`. Chunks that are in no segment and end there go
    /// as well. When a removal was journaled they were in the segments it speaks of; a start that reads the
    /// journal again has not filled those.
    fn replace_segments(
        &mut self,
        sequence: u64,
        at: PartitionKey,
        (mut segments, end): (Vec<Segment>, i64),
    ) -> Option<()> {
        let partition = self.partition_mut(at)?;
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut partition.segments)
            .into_iter()
            .partition(|segment| segment.is_before(end));
        segments.extend(kept);
        partition.segments = segments;
        let mut bytes = 0;
        while let Some(first) = partition.unflushed.front()
            && first.head.end() <= end
        {
            bytes += first.bytes.len() as u64;
            partition.unflushed.pop_front();
        }
        partition.unflushed_bytes = partition.unflushed_bytes.saturating_sub(bytes);
        self.unflushed_bytes = self.unflushed_bytes.saturating_sub(bytes);
        let removed: u64 = gone.iter().map(|segment| segment.len).sum();
        self.used = self.used.saturating_sub(bytes + removed);
        self.garbage.extend(gone.iter().map(|segment| Garbage {
            topic: at.0,
            name: segment.name(at.1),
            sequence,
        }));
        Some(())
    }
}

/// A change that speaks of something that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidChange(pub(super) &'static str);

const NO_TOPIC: InvalidChange = InvalidChange("an unknown topic");
const NO_PARTITION: InvalidChange = InvalidChange("an unknown partition");

impl LogState {
    /// Folds the books of the past into coarser buckets.
    pub(super) fn fold(&mut self, now_ms: u64) {
        for topic in &mut self.topics {
            topic.books.fold(now_ms);
            topic.forgotten.fold(now_ms);
        }
        for progress in self.groups.values_mut().flat_map(BTreeMap::values_mut) {
            progress.posted.fold(now_ms);
            progress.before.fold(now_ms);
        }
    }

    /// When the books were folded as they are, or later: what is to be compared with them is folded as
    /// of then, also by a clock that is behind.
    pub(super) fn folded_from(&self) -> u64 {
        let topics = self.topics.iter().map(|topic| &topic.books);
        let by_topic = self.groups.values().flat_map(BTreeMap::values);
        let by_topic = by_topic.flat_map(|progress| [&progress.posted, &progress.before]);
        let books = topics.chain(by_topic);
        books.map(|books| books.folded_from()).max().unwrap_or(0)
    }

    /// The state without its segments and without what is in no segment yet.
    pub(super) fn checkpoint(&self) -> Self {
        let without_records = |partition: &PartitionState| PartitionState {
            start: partition.start,
            end: partition.end,
            damaged: partition.damaged.clone(),
            ..PartitionState::default()
        };
        let topics = self.topics.iter().map(|topic| TopicState {
            name: topic.name.clone(),
            config: topic.config.clone(),
            books: topic.books.clone(),
            forgotten: topic.forgotten.clone(),
            is_removed: topic.is_removed,
            partitions: topic.partitions.iter().map(without_records).collect(),
        });
        Self {
            cluster: self.cluster.clone(),
            secret: self.secret,
            sequence: self.sequence,
            crc: self.crc,
            journal: self.journal,
            topics: topics.collect(),
            numbers: self.numbers.clone(),
            groups: self.groups.clone(),
            journal_damage: self.journal_damage.clone(),
            lost_commits: self.lost_commits.clone(),
            offsets_assigned: self.offsets_assigned,
            ..Self::default()
        }
    }

    /// Completes what [`checkpoint`](Self::checkpoint) gave.
    pub(super) fn put_segments_into(&self, snapshot: &mut Self) {
        for (topic, known) in snapshot.topics.iter_mut().zip(&self.topics) {
            for (partition, known) in topic.partitions.iter_mut().zip(&known.partitions) {
                let segments = known.segments.iter().map(Segment::without_index);
                partition.segments = segments.collect();
            }
        }
    }

    /// Whether a segment has the name of a file that waits to be removed.
    pub(super) fn uses(&self, garbage: &Garbage) -> bool {
        let topic = self.topics.get(garbage.topic as usize);
        let partitions = topic.map(|topic| topic.partitions.iter().zip(0..));
        let mut partitions = partitions.into_iter().flatten();
        partitions.any(|(partition, number)| {
            let mut segments = partition.segments.iter();
            segments.any(|segment| segment.name(number) == garbage.name)
        })
    }

    /// Seals the last segments of which `is_to_seal` says so.
    pub(super) fn seal_segments(&mut self, is_to_seal: impl Fn(&TopicConfig, &Segment) -> bool) {
        for topic in &mut self.topics {
            for partition in &mut topic.partitions {
                if let Some(last) = partition.segments.last_mut()
                    && is_to_seal(&topic.config, last)
                {
                    last.is_sealed = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_offsets_are_known_until_the_partition_starts_behind_them() {
        let mut state = LogState::default();
        state.set_topic(0, Topic::new("orders").unwrap(), TopicConfig::default());
        let partition = state.partition_mut((0, 0)).unwrap();
        partition.end = 30;
        partition.damaged = vec![(5, 10), (20, 25)];
        for (start, damaged) in [
            (9, vec![(5, 10), (20, 25)]),
            (10, vec![(20, 25)]),
            (24, vec![(20, 25)]),
            (25, vec![]),
        ] {
            state.set_start(1, (0, 0), start).unwrap();
            let partition = state.partition((0, 0)).unwrap();
            assert_eq!((partition.start, &partition.damaged), (start, &damaged));
        }
    }
}
