#![doc = include_str!("../README.md")]
#![cfg_attr(
    test,
    allow(
        clippy::duplicate_mod,
        reason = "`interleavings` plays the same files with other locks"
    )
)]

pub mod admin;
mod commit_order;
#[cfg(test)]
#[path = "commit_order/tests.rs"]
mod commit_order_tests;
#[cfg(feature = "conformance")]
#[expect(clippy::unwrap_used, reason = "these are the bodies of tests")]
pub mod conformance;
pub mod embedded;
mod error;
mod group_snapshot;
pub mod inspect;
#[cfg(test)]
mod interleavings;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod local;
mod options;
mod port;
mod record;
mod sync;
mod topic;

pub use admin::LogAdmin;
pub use embedded::{EmbeddedConfig, EmbeddedLog, EmbeddedStorage};
pub use error::LogError;
pub use group_snapshot::{GroupSnapshot, PartitionProgress, SettledSince};
pub use inspect::{
    LogComponent, LogDirectory, NoMarks, OpenLog, OwnedAudit, OwnedGroup, SettledMarks, copies_of,
};
pub use options::{LogBackend, LogOptions};
pub use port::{
    Append, Assignment, Batch, Commit, Committed, Fence, Join, Lag, Log, LogFuture, MAX_METADATA,
    OffsetCommit, Read, RecordPosition, Session, SessionEvent, StartAt,
};
pub use record::{
    EVENT_ID, Headers, Record, RecordHeaderError, StoredRecord, TopicPartition, offsets_in_words,
    partition_of,
};
pub use topic::{PartitionDescription, TopicConfig, TopicDescription};
