//! The storage of the records of a local log.

use std::fmt;

use tidegate_core::books::Posting;
use tidegate_core::{GroupName, Offset, Topic};

use crate::commit_order::CommitTicket;
use crate::group_snapshot::GroupSnapshot;
use crate::port::{Append, Batch, Committed, LogFuture, Read, RecordPosition};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

/// The storage of the records of a local log. It knows nothing of members and fences: the caller of
/// a write with offsets has checked that it may.
///
/// Calls that only look answer from memory and do not wait.
pub trait RecordStorage: Send + Sync + fmt::Debug {
    /// The name of this log.
    fn cluster(&self) -> &str;

    /// As [`Log::create_topic`](crate::Log::create_topic).
    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()>;

    /// The names of all topics, sorted.
    fn topics(&self) -> Vec<Topic>;

    /// Describes a topic; none if there is no such topic.
    fn describe(&self, topic: &Topic) -> Option<TopicDescription>;

    /// Does all of it or nothing, and returns when it is durable and readers see it. Writes become
    /// visible in the order in which they were handed over (at the first poll of the call). If
    /// canceled after that, it happens all the same.
    ///
    /// Every append has its partition by now. Limits of records, commits and the whole log are
    /// checked here; a write with offsets may use the reserve.
    ///
    /// A write with an offset whose [`CommitTicket`] is rejected is refused
    /// ([`LogError::PrecedingCommitFailed`](crate::LogError::PrecedingCommitFailed)). One that was handed over and is not done,
    /// or whose outcome is unknown, rejects the tickets behind it before any of them is done.
    fn write(&self, write: Write) -> LogFuture<'_, Vec<RecordPosition>>;

    /// As [`Log::read`](crate::Log::read), without waiting.
    fn read<'a>(&'a self, read: &'a Read) -> LogFuture<'a, Batch>;

    /// Returns when a record at or after `from` may be there, and with an error when none can come
    /// any more. If canceled, nothing is missed.
    ///
    /// # Errors
    /// [`LogError::Closed`](crate::LogError::Closed), [`LogError::Stopped`](crate::LogError::Stopped):
    /// a waiting caller would else wait for ever, or ask again and again.
    fn wait_for<'a>(&'a self, at: &'a TopicPartition, from: Offset) -> LogFuture<'a, ()>;

    /// As [`Log::offset_at`](crate::Log::offset_at).
    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset>;

    /// As [`Log::delete_before`](crate::Log::delete_before).
    fn delete_before<'a>(&'a self, at: &'a TopicPartition, offset: Offset)
    -> LogFuture<'a, Offset>;

    /// Every registered group, sorted.
    fn groups(&self) -> Vec<GroupName>;

    /// The committed offset of a group, of writes that are durable.
    fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed>;

    /// As [`Log::group_books`](crate::Log::group_books), at one cut.
    fn group_books(&self, asked: &[(GroupName, Topic)]) -> Vec<GroupSnapshot>;

    /// Registers a group that reads these topics, durably: from now on retention waits for it.
    /// For partitions where it has committed nothing, that means everything that is there now.
    /// Registering twice changes nothing.
    fn register_group<'a>(&'a self, group: &'a GroupName, topics: &'a [Topic])
    -> LogFuture<'a, ()>;

    /// Lets a registered group begin behind everything that these partitions hold, durably: that is
    /// committed, and what lies before was never in its books. A partition of which it has committed
    /// something stays as it is, so calling twice changes nothing.
    fn skip_to_end<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, ()>;

    /// Forgets a group and its offsets, durably.
    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()>;
}

/// One atomic write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Write {
    /// Records to add, each with its partition.
    pub appends: Vec<Append>,
    /// Offsets to set.
    pub offsets: Vec<GroupOffset>,
}

/// An offset of a group that is to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOffset {
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub at: TopicPartition,
    /// The offset and its metadata.
    pub committed: Committed,
    /// The postings of the records since the last commit, for the books of the group on that topic.
    pub postings: Vec<Posting>,
    /// Its ticket among the commits of the group for that partition.
    pub ticket: CommitTicket,
}
