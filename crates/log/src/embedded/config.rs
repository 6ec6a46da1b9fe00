//! How an embedded log is set up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_core::Topic;

const MIB: u64 = 1024 * 1024;

/// The topics that the dead letters of a topic are written to, by that topic.
pub type DeadLetterTopics = BTreeMap<Topic, BTreeSet<Topic>>;

/// How an embedded log is set up.
///
/// ```
/// use tidegate_log::EmbeddedConfig;
/// let config = EmbeddedConfig { max_size: 1 << 30, ..EmbeddedConfig::new("./data/log") };
/// assert_eq!(config.segment_size, 64 * 1024 * 1024);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "config",
    derive(serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub struct EmbeddedConfig {
    /// The directory, which is made where it is missing.
    #[cfg_attr(feature = "config", serde(rename = "path"))]
    pub dir: PathBuf,
    /// The name of the log. It is written down when the directory is made and stays from then on.
    #[cfg_attr(feature = "config", serde(skip, default = "cluster"))]
    pub cluster: String,
    /// About how large a segment of a partition grows.
    pub segment_size: u64,
    /// How large a journal file is. A commit that is larger gets a file of its size.
    pub journal_size: u64,
    /// How many bytes the records of all topics may take; above it, appends are refused.
    pub max_size: u64,
    /// How many bytes commits with offsets may take above that, so that a full log can be drained.
    pub reserve: u64,
    /// How many bytes one commit may have.
    pub max_commit_size: u64,
    /// How long a sync waits for company.
    #[cfg_attr(feature = "config", serde(with = "tidegate_config::millis"))]
    pub group_commit_delay: Duration,
    /// How many bytes of unflushed records are kept in memory before they go to their segments.
    pub cache_size: u64,
    /// How many bytes of commits may wait for the disk; above it, they are refused.
    pub max_queued_size: u64,
    /// How many bytes of keys one round of compaction may hold in memory.
    pub compaction_memory: u64,
    /// Where this process answers for the directory, for others that find it locked.
    #[cfg_attr(feature = "config", serde(skip))]
    pub answers_at: Option<String>,
    /// Where the audit looks for the events that a group gave up on.
    #[cfg_attr(feature = "config", serde(skip))]
    pub dead_letters: DeadLetterTopics,
}

impl EmbeddedConfig {
    /// A log in this directory, with the usual settings.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            cluster: cluster(),
            segment_size: 64 * MIB,
            journal_size: 64 * MIB,
            max_size: 10 * 1024 * MIB,
            reserve: 64 * MIB,
            max_commit_size: 64 * MIB,
            group_commit_delay: Duration::ZERO,
            cache_size: 16 * MIB,
            max_queued_size: 256 * MIB,
            compaction_memory: 64 * MIB,
            answers_at: None,
            dead_letters: DeadLetterTopics::new(),
        }
    }
}

/// The name of a log that nobody named.
fn cluster() -> String {
    "embedded".to_owned()
}

impl From<&Path> for EmbeddedConfig {
    fn from(dir: &Path) -> Self {
        Self::new(dir)
    }
}
