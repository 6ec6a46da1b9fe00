//! The JSON of what operators do with topics and groups.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::books::Account;
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::admin::{
    AdminMode, GroupDescription, GroupSeek, PartitionSeek, RemovedGroup, RemovedTopic,
};
#[cfg(feature = "http")]
use tidegate_log::admin::{GroupPartition, GroupTopic};
use tidegate_log::{TopicConfig, TopicPartition};

/// A topic that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTopic {
    /// How many partitions; it never changes.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10000))]
    pub partitions: u32,
    /// How long records are kept, in milliseconds; without it, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// How many bytes each partition keeps; without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    /// Whether only the last record of each key is kept in the long run.
    #[serde(default)]
    pub compact: bool,
    /// The largest record it takes; without it, 4 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_record_size: Option<u64>,
}

impl From<&TopicConfig> for NewTopic {
    fn from(config: &TopicConfig) -> Self {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            partitions: config.partitions,
            retention_ms: config.retention.map(ms),
            retention_bytes: config.retention_bytes,
            compact: config.compact,
            max_record_size: Some(config.max_record_size),
        }
    }
}

impl From<NewTopic> for TopicConfig {
    fn from(new: NewTopic) -> Self {
        Self {
            partitions: new.partitions,
            retention: new.retention_ms.map(Duration::from_millis),
            retention_bytes: new.retention_bytes,
            compact: new.compact,
            max_record_size: new.max_record_size.unwrap_or(Self::MAX_RECORD_SIZE),
        }
    }
}

/// The groups of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupNames {
    /// The names of all groups, sorted.
    pub groups: Vec<String>,
}

/// A group, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupInfo {
    /// Its name.
    pub group: String,
    /// How many members it has.
    pub members: u64,
    /// The topics that it reads, by name.
    pub topics: Vec<GroupTopicInfo>,
}

/// A group on a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupTopicInfo {
    /// The topic.
    pub topic: String,
    /// Where its events are, for this group.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub account: Account,
    /// Its partitions, by number.
    pub partitions: Vec<GroupPartitionInfo>,
}

/// A group on a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupPartitionInfo {
    /// The partition.
    pub partition: i32,
    /// The first offset that is there.
    pub start: i64,
    /// The offset that the next record gets.
    pub end: i64,
    /// The next record for the group.
    pub next: i64,
    /// How many offsets it has still to read.
    pub lag: u64,
}

impl From<GroupDescription> for GroupInfo {
    fn from(described: GroupDescription) -> Self {
        let topics = described.topics.into_iter().map(|read| GroupTopicInfo {
            topic: read.topic.to_string(),
            account: read.account,
            partitions: read
                .partitions
                .iter()
                .map(|found| GroupPartitionInfo {
                    partition: found.at.partition.0,
                    start: found.start.0,
                    end: found.end.0,
                    next: found.next.0,
                    lag: found.lag(),
                })
                .collect(),
        });
        Self {
            group: described.group.to_string(),
            members: described.members,
            topics: topics.collect(),
        }
    }
}

impl GroupInfo {
    /// Reads it back. Topics whose names no log has are left out.
    #[cfg(feature = "http")]
    pub(crate) fn into_described(self, group: &GroupName) -> GroupDescription {
        let topics = self.topics.into_iter().filter_map(|read| {
            let topic = Topic::new(read.topic).ok()?;
            let partitions = read.partitions.iter().map(|found| GroupPartition {
                at: TopicPartition::new(topic.clone(), found.partition),
                start: Offset(found.start),
                end: Offset(found.end),
                next: Offset(found.next),
            });
            Some(GroupTopic {
                partitions: partitions.collect(),
                account: read.account,
                topic: topic.clone(),
            })
        });
        GroupDescription {
            group: group.clone(),
            members: self.members,
            topics: topics.collect(),
        }
    }
}

/// Where a group is to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSeek {
    /// The next offset of each partition; one that is not there is moved to the nearest that is.
    pub partitions: Vec<SeekTarget>,
    /// Whether the numbers are only told, and nothing is changed.
    #[serde(default)]
    pub dry_run: bool,
}

/// The next offset of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeekTarget {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

impl NewSeek {
    /// The request for this seek.
    #[must_use]
    pub fn of(seek: &GroupSeek) -> Self {
        let targets = seek.to.iter().map(|(at, offset)| SeekTarget {
            topic: at.topic.to_string(),
            partition: at.partition.0,
            offset: offset.0,
        });
        Self {
            partitions: targets.collect(),
            dry_run: seek.mode == AdminMode::Trial,
        }
    }

    /// The seek that is meant.
    ///
    /// # Errors
    /// A topic has a name that none can have.
    pub fn into_seek(self, group: GroupName) -> Result<GroupSeek, String> {
        let to = self.partitions.into_iter().map(|target| {
            let topic = Topic::new(target.topic).map_err(|error| error.to_string())?;
            let at = TopicPartition::new(topic, target.partition);
            Ok((at, Offset(target.offset)))
        });
        Ok(GroupSeek {
            group,
            to: to.collect::<Result<_, String>>()?,
            mode: mode(self.dry_run),
        })
    }
}

/// Whether something is done.
#[must_use]
pub fn mode(dry_run: bool) -> AdminMode {
    match dry_run {
        true => AdminMode::Trial,
        false => AdminMode::Apply,
    }
}

/// The partitions in which a group was moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MovedPartitions {
    /// Those in which it was not there already.
    pub partitions: Vec<MovedPartition>,
}

/// The move of a group in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MovedPartition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next offset before.
    pub from: i64,
    /// The next offset from now on.
    pub to: i64,
    /// The records between the two: skipped, or to be read again.
    pub records: u64,
}

impl From<&PartitionSeek> for MovedPartition {
    fn from(sought: &PartitionSeek) -> Self {
        Self {
            topic: sought.at.topic.to_string(),
            partition: sought.at.partition.0,
            from: sought.from.0,
            to: sought.to.0,
            records: sought.records,
        }
    }
}

impl MovedPartition {
    #[cfg(feature = "http")]
    pub(crate) fn into_sought(self) -> Option<PartitionSeek> {
        Some(PartitionSeek {
            at: TopicPartition::new(Topic::new(self.topic).ok()?, self.partition),
            from: Offset(self.from),
            to: Offset(self.to),
            records: self.records,
        })
    }
}

/// So many records that a group had still to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnreadRecords {
    /// The group, or the topic.
    pub name: String,
    /// How many.
    pub records: u64,
}

impl UnreadRecords {
    fn all<N: ToString>(unread: &[(N, u64)]) -> Vec<Self> {
        let each = unread.iter().map(|(name, records)| Self {
            name: name.to_string(),
            records: *records,
        });
        each.collect()
    }
}

/// A group that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RemovedGroupInfo {
    /// The records of each topic that it had still to read.
    pub unread: Vec<UnreadRecords>,
}

impl From<RemovedGroup> for RemovedGroupInfo {
    fn from(removed: RemovedGroup) -> Self {
        Self {
            unread: UnreadRecords::all(&removed.unread),
        }
    }
}

impl RemovedGroupInfo {
    #[cfg(feature = "http")]
    pub(crate) fn into_removed(self, group: &GroupName) -> RemovedGroup {
        let unread = self.unread.into_iter();
        let unread = unread.filter_map(|one| Some((Topic::new(one.name).ok()?, one.records)));
        RemovedGroup {
            group: group.clone(),
            unread: unread.collect(),
        }
    }
}

/// A topic that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RemovedTopicInfo {
    /// How many records it had.
    pub records: u64,
    /// How many of them each group had still to read.
    pub unread: Vec<UnreadRecords>,
}

impl From<RemovedTopic> for RemovedTopicInfo {
    fn from(removed: RemovedTopic) -> Self {
        Self {
            records: removed.records,
            unread: UnreadRecords::all(&removed.unread),
        }
    }
}

impl RemovedTopicInfo {
    #[cfg(feature = "http")]
    pub(crate) fn into_removed(self, topic: &Topic) -> RemovedTopic {
        let unread = self.unread.into_iter();
        let unread = unread.filter_map(|one| Some((GroupName::new(one.name).ok()?, one.records)));
        RemovedTopic {
            topic: topic.clone(),
            records: self.records,
            unread: unread.collect(),
        }
    }
}
