//! The port of operators: they move and remove groups and topics. Programs have the other port.
//!
//! Each call moves or removes events for good. So each can be made as a trial first, which changes nothing and
//! tells the same numbers. The postings are written in the same commit as what they describe; on Kafka that
//! is the committed offset with its metadata. A group that is removed from a broker takes its books along.

use std::collections::BTreeMap;
use std::fmt;

use tidegate_core::books::{Account, Bucket, LossReason, Place, Posting, Tally};
use tidegate_core::{GroupName, Offset, Topic};

use crate::port::LogFuture;
use crate::record::TopicPartition;

/// Records that a group was moved past.
pub const SKIPPED: LossReason = LossReason::from_static("skipped");
/// Records that a group had still to read when it was forgotten.
pub const FORGOTTEN: LossReason = LossReason::from_static("forgotten");
/// Records that a group had still to read when their topic was removed.
pub const TOPIC_REMOVED: LossReason = LossReason::from_static("topic_removed");

/// The calls of operators: they move and remove groups and topics.
///
/// Groups of bindings and stages are refused ([`LogError::InUse`]): those know more than the log about what
/// became of their records.
///
/// [`LogError::InUse`]: crate::LogError::InUse
pub trait LogAdmin: Send + Sync + fmt::Debug {
    /// How far a group is in each topic that it reads.
    ///
    /// # Errors
    /// [`LogError::UnknownGroup`](crate::LogError::UnknownGroup).
    fn describe_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, GroupDescription>;

    /// Has a group begin elsewhere. Records that it is moved past are lost to it (`lost{skipped}`); records that it
    /// reads again are queued once more.
    ///
    /// This is no commit: nobody who owns a partition can do it. Seeking twice to the same place changes nothing.
    ///
    /// # Errors
    /// [`LogError::InUse`](crate::LogError::InUse) while the group has members, or where its books do not say
    /// what became of the records.
    fn seek_group(&self, seek: GroupSeek) -> LogFuture<'_, Vec<PartitionSeek>>;

    /// Forgets a group and its offsets. The records that it had still to read are lost to it (`lost{forgotten}`).
    ///
    /// # Errors
    /// [`LogError::InUse`](crate::LogError::InUse) while it has members.
    fn remove_group<'a>(
        &'a self,
        group: &'a GroupName,
        mode: AdminMode,
    ) -> LogFuture<'a, RemovedGroup>;

    /// Removes a topic with all its records. A topic of that name that is made later goes on with its offsets and
    /// its books.
    ///
    /// # Errors
    /// [`LogError::Unread`](crate::LogError::Unread) where groups have still to read some of it and `is_forced` is
    /// not set, [`LogError::InUse`](crate::LogError::InUse) while one of them has members.
    fn remove_topic(&self, removal: TopicRemoval) -> LogFuture<'_, RemovedTopic>;
}

/// Whether something is done, or only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdminMode {
    /// Nothing is changed.
    #[default]
    Trial,
    /// It is done.
    Apply,
}

/// Where a group is to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSeek {
    /// The group.
    pub group: GroupName,
    /// The next offset of each partition. One that is not there is moved to the nearest that is.
    pub to: Vec<(TopicPartition, Offset)>,
    /// Whether it is done.
    pub mode: AdminMode,
}

/// The topic that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRemoval {
    /// The topic.
    pub topic: Topic,
    /// Whether it goes although groups have still to read some of it.
    pub is_forced: bool,
    /// Whether it is done.
    pub mode: AdminMode,
}

/// The move of a group in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSeek {
    /// The partition.
    pub at: TopicPartition,
    /// The next offset before.
    pub from: Offset,
    /// The next offset from now on.
    pub to: Offset,
    /// The records between the two: skipped, or to be read again.
    pub records: u64,
}

impl PartitionSeek {
    /// Whether its records are read again; otherwise they are skipped.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.to < self.from
    }
}

/// The group that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedGroup {
    /// The group.
    pub group: GroupName,
    /// How many records of each topic it had still to read.
    pub unread: Vec<(Topic, u64)>,
}

/// The topic that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedTopic {
    /// The topic.
    pub topic: Topic,
    /// How many records it had.
    pub records: u64,
    /// How many of them each group had still to read; groups that had read all are left out.
    pub unread: Vec<(GroupName, u64)>,
}

/// A group, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// The group.
    pub group: GroupName,
    /// How many members it has.
    pub members: u64,
    /// The topics that it reads, by name.
    pub topics: Vec<GroupTopic>,
}

/// A group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTopic {
    /// The topic.
    pub topic: Topic,
    /// Where its events are, for this group.
    pub account: Account,
    /// Its partitions, by number.
    pub partitions: Vec<GroupPartition>,
}

/// A group on a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPartition {
    /// The partition.
    pub at: TopicPartition,
    /// The first offset that is there.
    pub start: Offset,
    /// The offset behind the last one.
    pub end: Offset,
    /// The next record for the group.
    pub next: Offset,
}

impl GroupPartition {
    /// How many offsets the group has still to read.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.end.0.abs_diff(self.next.0.min(self.end.0))
    }
}

/// Why a group does not go back.
pub(crate) const NOT_DELIVERED: &str =
    "it did not deliver all of these records: some are dead letters, or lost";

/// The postings of records that leave the queue of a group for another place.
pub(crate) fn from_queue(
    tallies: impl IntoIterator<Item = (Bucket, Tally)>,
    to: &Place,
) -> Vec<Posting> {
    moves(tallies, &Place::Queued, to)
}

/// The postings of records that come back to the queue of a group.
pub(crate) fn back_to_queue(
    tallies: impl IntoIterator<Item = (Bucket, Tally)>,
    from: &Place,
) -> Vec<Posting> {
    moves(tallies, from, &Place::Queued)
}

fn moves(
    tallies: impl IntoIterator<Item = (Bucket, Tally)>,
    from: &Place,
    to: &Place,
) -> Vec<Posting> {
    let tallies = tallies.into_iter().filter(|(_, tally)| tally.count > 0);
    tallies
        .map(|(bucket, tally)| Posting {
            bucket,
            from: Some(from.clone()),
            to: Some(to.clone()),
            count: tally.count.unsigned_abs(),
            id_sum: tally.id_sum,
        })
        .collect()
}

/// How many events these postings move.
pub(crate) fn moved(postings: &[Posting]) -> u64 {
    postings.iter().map(|posting| posting.count).sum()
}

/// The sums of tallies by the bucket that each folds into.
pub(crate) fn folded(
    tallies: impl IntoIterator<Item = (Bucket, Tally)>,
    now_ms: u64,
) -> BTreeMap<Bucket, Tally> {
    let mut sums: BTreeMap<Bucket, Tally> = BTreeMap::new();
    for (bucket, tally) in tallies {
        let sum = sums.entry(bucket.folded(now_ms)).or_default();
        *sum = sum.plus(tally);
    }
    sums
}
