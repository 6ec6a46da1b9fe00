//! The books of a group on a topic, with the offsets that they belong to.

use tidegate_core::books::{Books, Bucket, Tally};
use tidegate_core::{GroupName, Offset, Partition, Topic};

use crate::port::Committed;
use crate::record::TopicPartition;

/// The books of a group on a topic, with the offsets that they belong to.
///
/// A group that is not there has read nothing. A topic that is not there has no partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// The group.
    pub group: GroupName,
    /// The topic.
    pub topic: Topic,
    /// The records that wait for it, as queued, and its postings. A log that keeps no sums of its topics
    /// (Kafka) has the postings alone.
    pub books: Books,
    /// Its postings alone. Those of a group that reads a tier may take from places that another group filled.
    pub posted: Books,
    /// The one bucket of all postings, where they are kept without theirs.
    pub bucket: Option<Bucket>,
    /// Whether the topic keeps only the last record of each key, so that others may be gone.
    pub is_compacted: bool,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionProgress>,
}

impl GroupSnapshot {
    /// The bucket of postings that are kept without theirs: all offsets of all partitions.
    pub const EVERYTHING: Bucket = Bucket::Offsets {
        partition: Partition(-1),
        first: Offset(0),
        last: Offset(i64::MAX),
    };

    /// A group on a topic that is not there.
    #[must_use]
    pub fn empty(group: &GroupName, topic: &Topic) -> Self {
        Self {
            group: group.clone(),
            topic: topic.clone(),
            books: Books::default(),
            posted: Books::default(),
            bucket: None,
            is_compacted: false,
            partitions: Vec::new(),
        }
    }
}

/// How far a group is in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionProgress {
    /// The partition.
    pub at: TopicPartition,
    /// The first offset that is there.
    pub start: Offset,
    /// The offset behind the last one.
    pub end: Offset,
    /// The next record for the group: the committed offset, or where it begins.
    pub next: Offset,
    /// The committed offset and its metadata.
    pub committed: Option<Committed>,
    /// The records that the group has settled, where its books say that and the log keeps no sums of its
    /// topics.
    pub settled: Option<SettledSince>,
}

/// The records of a partition that a group has settled since some offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledSince {
    /// The first offset that is counted.
    pub base: Offset,
    /// The settled records from there on.
    pub tally: Tally,
    /// How many were settled before.
    pub earlier: u64,
}
