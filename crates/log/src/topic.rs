//! How topics are set up, and what is known about them.

use std::time::Duration;

use tidegate_core::{Offset, Partition, Topic};

/// How a topic is set up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_log::TopicConfig;
/// let day = Some(Duration::from_secs(86_400));
/// let config = TopicConfig { retention: day, ..TopicConfig::new(8) };
/// assert_eq!(config.partitions, 8);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// How many partitions it has; never changed afterwards, because keys would move.
    pub partitions: u32,
    /// How long records are kept; none keeps them for ever.
    pub retention: Option<Duration>,
    /// How many bytes each partition keeps; none keeps all.
    pub retention_bytes: Option<u64>,
    /// Whether only the last record of each key is kept in the long run.
    pub compact: bool,
    /// The largest record it takes, by [`Record::size`](crate::Record::size).
    pub max_record_size: u64,
}

impl TopicConfig {
    /// Partitions of a topic that says nothing else.
    pub const PARTITIONS: u32 = 4;
    /// The largest record of a topic that says nothing else.
    pub const MAX_RECORD_SIZE: u64 = 4 * 1024 * 1024;

    /// A topic with so many partitions, that keeps everything.
    #[must_use]
    pub fn new(partitions: u32) -> Self {
        Self {
            partitions,
            retention: None,
            retention_bytes: None,
            compact: false,
            max_record_size: Self::MAX_RECORD_SIZE,
        }
    }
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self::new(Self::PARTITIONS)
    }
}

/// A topic as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub topic: Topic,
    /// How it is set up.
    pub config: TopicConfig,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionDescription>,
}

/// A partition as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionDescription {
    /// Its number.
    pub partition: Partition,
    /// The first offset that is still there.
    pub start: Offset,
    /// The offset that the next record gets, of those that readers may see.
    pub end: Offset,
}
