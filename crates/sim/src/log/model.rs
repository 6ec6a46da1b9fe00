//! The content of a log as plain values: the model that real logs are compared with.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::books::{Books, Place, Tally};
use tidegate_core::{GroupName, Offset, Partition, Topic};
use tidegate_log::local::{GroupOffset, Write};
use tidegate_log::{
    Append, Batch, Committed, GroupSnapshot, LogError, PartitionDescription, PartitionProgress,
    Read, RecordPosition, StoredRecord, TopicConfig, TopicDescription, TopicPartition,
};

/// Largest commit that a log takes where nobody says otherwise, in bytes of its records.
const MAX_COMMIT: u64 = 64 * 1024 * 1024;

/// The content of a log.
#[derive(Debug)]
pub(super) struct LogModel {
    topics: BTreeMap<Topic, ModelTopic>,
    groups: BTreeMap<GroupName, ModelGroup>,
    books: BTreeMap<(GroupName, Topic), Books>,
    /// Whether commits take offsets that hold no record.
    pub(super) has_holes: bool,
    pub(super) max_commit: u64,
}

impl Default for LogModel {
    fn default() -> Self {
        Self {
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            books: BTreeMap::new(),
            has_holes: false,
            max_commit: MAX_COMMIT,
        }
    }
}

#[derive(Debug)]
struct ModelTopic {
    config: TopicConfig,
    partitions: Vec<ModelPartition>,
}

#[derive(Debug, Default)]
struct ModelPartition {
    start: i64,
    end: i64,
    /// Those before the start are kept: the books of a log count them for ever.
    records: BTreeMap<i64, StoredRecord>,
}

#[derive(Debug, Default)]
struct ModelGroup {
    topics: BTreeSet<Topic>,
    /// Where each partition began when the group was registered, or where it began itself.
    floors: BTreeMap<TopicPartition, Offset>,
    offsets: BTreeMap<TopicPartition, Committed>,
}

impl LogModel {
    pub(super) fn create_topic(
        &mut self,
        topic: &Topic,
        config: TopicConfig,
    ) -> Result<(), LogError> {
        let refused = |why: String| LogError::TopicConfig {
            topic: topic.clone(),
            why,
        };
        if config.partitions == 0 {
            return Err(refused("a topic has at least one partition".to_owned()));
        }
        if let Some(found) = self.topics.get_mut(topic) {
            let has = found.config.partitions;
            if has != config.partitions {
                let wants = config.partitions;
                return Err(refused(format!(
                    "it has {has} partitions, and {wants} are asked for"
                )));
            }
            found.config = config;
            return Ok(());
        }
        let partitions = (0..config.partitions)
            .map(|_| ModelPartition::default())
            .collect();
        self.topics
            .insert(topic.clone(), ModelTopic { config, partitions });
        Ok(())
    }

    pub(super) fn topics(&self) -> Vec<Topic> {
        self.topics.keys().cloned().collect()
    }

    pub(super) fn describe(&self, topic: &Topic) -> Option<TopicDescription> {
        let found = self.topics.get(topic)?;
        let describe = |(number, partition): (i32, &ModelPartition)| PartitionDescription {
            partition: Partition(number),
            start: Offset(partition.start),
            end: Offset(partition.end),
        };
        Some(TopicDescription {
            topic: topic.clone(),
            config: found.config.clone(),
            partitions: (0..).zip(&found.partitions).map(describe).collect(),
        })
    }

    /// Says why a write cannot be taken.
    pub(super) fn check(&self, write: &Write) -> Result<(), LogError> {
        let mut total = 0;
        for append in &write.appends {
            let topic = append.topic.clone();
            let found = self
                .topics
                .get(&topic)
                .ok_or(LogError::UnknownTopic { topic })?;
            self.partition(&place_of(append))?;
            let size = append.record.size() as u64;
            let limit = found.config.max_record_size;
            if size > limit {
                return Err(LogError::RecordTooLarge {
                    topic: append.topic.clone(),
                    size,
                    limit,
                });
            }
            total += size;
        }
        if total > self.max_commit {
            return Err(LogError::CommitTooLarge {
                size: total,
                limit: self.max_commit,
            });
        }
        Ok(())
    }

    /// Does a write that was checked.
    pub(super) fn apply(&mut self, write: Write, now_ms: u64) -> Vec<RecordPosition> {
        let is_commit = !write.offsets.is_empty();
        let touched: BTreeSet<TopicPartition> = write.appends.iter().map(place_of).collect();
        let positions = write
            .appends
            .into_iter()
            .filter_map(|append| self.add(append, now_ms))
            .collect();
        if is_commit {
            touched.iter().for_each(|at| self.skip(at));
        }
        for offset in write.offsets {
            self.set(offset);
        }
        positions
    }

    /// A commit that was not done: its records and its end took offsets, where commits do.
    pub(super) fn abort(&mut self, write: &Write) {
        let touched: BTreeSet<TopicPartition> = write.appends.iter().map(place_of).collect();
        for append in &write.appends {
            self.skip(&place_of(append));
        }
        touched.iter().for_each(|at| self.skip(at));
    }

    /// An offset that holds no record, where commits take some.
    fn skip(&mut self, at: &TopicPartition) {
        let has_holes = self.has_holes;
        if let Some(partition) = self.partition_mut(at).filter(|_| has_holes) {
            partition.end += 1;
        }
    }

    fn add(&mut self, append: Append, now_ms: u64) -> Option<RecordPosition> {
        let at = place_of(&append);
        let partition = self.partition_mut(&at)?;
        let offset = Offset(partition.end);
        partition.end += 1;
        let mut record = append.record;
        if record.timestamp_ms == 0 {
            record.timestamp_ms = now_ms;
        }
        partition
            .records
            .insert(offset.0, StoredRecord { offset, record });
        Some(RecordPosition { at, offset })
    }

    fn set(&mut self, offset: GroupOffset) {
        let group = self.groups.entry(offset.group.clone()).or_default();
        group.offsets.insert(offset.at.clone(), offset.committed);
        let books = self
            .books
            .entry((offset.group, offset.at.topic))
            .or_default();
        for posting in &offset.postings {
            books.post(posting);
        }
    }

    pub(super) fn read(&self, read: &Read) -> Result<Batch, LogError> {
        let partition = self.partition(&read.at)?;
        if read.from.0 < partition.start || read.from.0 > partition.end {
            return Err(LogError::OutOfRange {
                at: read.at.clone(),
                asked: read.from,
                start: Offset(partition.start),
                end: Offset(partition.end),
            });
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        for stored in partition
            .records
            .range(read.from.0..)
            .map(|(_, stored)| stored)
        {
            let size = stored.record.size();
            let is_full = records.len() >= read.max_records || bytes + size > read.max_bytes;
            if is_full && !records.is_empty() {
                break;
            }
            bytes += size;
            records.push(stored.clone());
        }
        let next = match records.last() {
            Some(last) => Offset(last.offset.0 + 1),
            None => Offset(partition.end),
        };
        Ok(Batch {
            at: read.at.clone(),
            records,
            next,
        })
    }

    pub(super) fn end(&self, at: &TopicPartition) -> Result<Offset, LogError> {
        Ok(Offset(self.partition(at)?.end))
    }

    pub(super) fn offset_at(
        &self,
        at: &TopicPartition,
        timestamp_ms: u64,
    ) -> Result<Offset, LogError> {
        let partition = self.partition(at)?;
        let mut records = partition.records.range(partition.start..);
        let mut records = records.by_ref().map(|(_, stored)| stored);
        let found = records.find(|stored| stored.record.timestamp_ms >= timestamp_ms);
        Ok(found.map_or(Offset(partition.end), |stored| stored.offset))
    }

    pub(super) fn delete_before(
        &mut self,
        at: &TopicPartition,
        offset: Offset,
    ) -> Result<Offset, LogError> {
        let floor = self
            .groups
            .values()
            .filter_map(|group| group.still_to_read(at))
            .min();
        self.partition(at)?;
        let Some(partition) = self.partition_mut(at) else {
            return Ok(offset);
        };
        let limit = floor.map_or(partition.end, |floor| floor.0.min(partition.end));
        partition.start = partition.start.max(offset.0.min(limit));
        Ok(Offset(partition.start))
    }

    pub(super) fn groups(&self) -> Vec<GroupName> {
        self.groups.keys().cloned().collect()
    }

    pub(super) fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed> {
        self.groups.get(group)?.offsets.get(at).cloned()
    }

    pub(super) fn register_group(&mut self, name: &GroupName, topics: &[Topic]) {
        let mut floors = Vec::new();
        for topic in topics {
            for found in self
                .describe(topic)
                .into_iter()
                .flat_map(|topic| topic.partitions)
            {
                floors.push((
                    TopicPartition::new(topic.clone(), found.partition.0),
                    found.start,
                ));
            }
        }
        let group = self.groups.entry(name.clone()).or_default();
        group.topics.extend(topics.iter().cloned());
        for (at, start) in floors {
            group.floors.entry(at).or_insert(start);
        }
    }

    /// A group begins behind all that these partitions hold, where it has committed nothing.
    pub(super) fn skip_to_end(&mut self, name: &GroupName, partitions: &[TopicPartition]) {
        for at in partitions {
            let Ok(end) = self.end(at) else {
                continue;
            };
            let group = self.groups.entry(name.clone()).or_default();
            if !group.offsets.contains_key(at) {
                let begun = Committed {
                    next: end,
                    metadata: String::new(),
                };
                group.offsets.insert(at.clone(), begun);
                group.floors.insert(at.clone(), end);
            }
        }
    }

    pub(super) fn forget_group(&mut self, group: &GroupName) {
        self.groups.remove(group);
        self.books.retain(|(name, _), _| name != group);
    }

    pub(super) fn books(&self, group: &GroupName, topic: &Topic) -> Books {
        let found = self.books.get(&(group.clone(), topic.clone()));
        found.cloned().unwrap_or_default()
    }

    /// The books and offsets of a group on a topic.
    pub(super) fn group_books(
        &self,
        cluster: &str,
        name: &GroupName,
        topic: &Topic,
    ) -> GroupSnapshot {
        let mut snapshot = GroupSnapshot::empty(name, topic);
        let Some(known) = self.topics.get(topic) else {
            return snapshot;
        };
        let group = self.groups.get(name);
        snapshot.posted = self.books(name, topic);
        snapshot.books = snapshot.posted.clone();
        snapshot.is_compacted = known.config.compact;
        for (number, partition) in (0..).zip(&known.partitions) {
            let at = TopicPartition::new(topic.clone(), number);
            let floor = group.and_then(|group| group.floors.get(&at));
            let floor = floor.map_or(partition.start, |floor| floor.0);
            for stored in partition.records.range(floor..).map(|(_, stored)| stored) {
                let id = stored.event_id(cluster, &at);
                snapshot.books.move_one(id, None, Some(Place::Queued));
            }
            let committed = group.and_then(|group| group.offsets.get(&at)).cloned();
            let next = committed
                .as_ref()
                .map_or(floor, |committed| committed.next.0);
            snapshot.partitions.push(PartitionProgress {
                at,
                start: Offset(partition.start),
                end: Offset(partition.end),
                next: Offset(next.max(partition.start)),
                committed,
                settled: None,
            });
        }
        snapshot
    }

    /// The records of a topic that a group has settled: how many lie between its beginning
    /// and what it has committed, and the sum of their ids.
    pub(super) fn recount(&self, cluster: &str, name: &GroupName, topic: &Topic) -> Tally {
        let mut sum = Tally::default();
        let Some(group) = self.groups.get(name) else {
            return sum;
        };
        for (at, committed) in &group.offsets {
            if at.topic != *topic {
                continue;
            }
            let floor = group.floors.get(at).map_or(0, |floor| floor.0);
            let records = self.partition(at).map(|partition| &partition.records);
            for stored in records
                .into_iter()
                .flat_map(|records| records.range(floor..committed.next.0.max(floor)))
            {
                sum = sum.plus(Tally::of(stored.1.event_id(cluster, at)));
            }
        }
        sum
    }

    fn partition(&self, at: &TopicPartition) -> Result<&ModelPartition, LogError> {
        let topic = at.topic.clone();
        let found = self
            .topics
            .get(&topic)
            .ok_or(LogError::UnknownTopic { topic })?;
        let index = usize::try_from(at.partition.0).unwrap_or(usize::MAX);
        found
            .partitions
            .get(index)
            .ok_or(LogError::UnknownPartition {
                at: at.clone(),
                partitions: found.config.partitions,
            })
    }

    fn partition_mut(&mut self, at: &TopicPartition) -> Option<&mut ModelPartition> {
        let index = usize::try_from(at.partition.0).ok()?;
        self.topics.get_mut(&at.topic)?.partitions.get_mut(index)
    }
}

impl ModelGroup {
    /// The first offset that it has not settled; none if it does not read the topic.
    fn still_to_read(&self, at: &TopicPartition) -> Option<Offset> {
        if !self.topics.contains(&at.topic) {
            return None;
        }
        let committed = self.offsets.get(at).map(|committed| committed.next);
        committed.or_else(|| self.floors.get(at).copied())
    }
}

fn place_of(append: &Append) -> TopicPartition {
    TopicPartition {
        topic: append.topic.clone(),
        partition: append.partition.unwrap_or_default(),
    }
}
