//! The log port: topics of partitions of records, with one atomic commit.
//!
//! # What every implementation keeps
//!
//! - **Order.** Records of one partition have ascending offsets in the order in which their appends
//!   returned or, within one call, in the order of the call. Offsets may have holes that hold no
//!   record (commits take offsets on Kafka, compaction removes records); readers go by what they
//!   are given, never by counting.
//! - **Durable on return.** An append or a commit that was reported as done survives a power cut of this
//!   machine (embedded) or whatever the broker's replication survives (Kafka).
//! - **Visible when committed.** Readers see a record when its append or commit is done, never
//!   before, and never if it was aborted. On Kafka another program may have a transaction open in
//!   the same partition: what lies behind its beginning is seen, in order, once it has ended.
//! - **One owner.** A partition has at most one owner in a group. Each assignment has a new
//!   [`Fence`]; a commit under an old one changes nothing.
//! - **Nothing skipped.** A new owner begins at the committed offset; without one, where the group
//!   says it starts. Records that were handed out and not committed are handed out again.
//! - **Retention never outruns a group** (embedded): nothing at or above the committed offset of a
//!   registered group is removed. On Kafka the broker removes, and a committed offset that is not
//!   there any more is [`LogError::OutOfRange`], never a silent jump.
//! - **No call of a remote log hangs.** Each has a deadline of its own and answers
//!   [`LogError::Unavailable`], [`LogError::OutcomeUnknown`] or a result; only [`Session::poll`], a
//!   [`Log::read`] with a wait and [`Log::deliver`] are there to be waited for. The embedded log has no deadlines: it
//!   waits for its disk.
//!
//! Calls are made per batch. Every method may be called from many tasks at once.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Posting;
use tidegate_core::{GroupName, Offset, Partition, Topic};

use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::record::{Record, StoredRecord, TopicPartition, partition_of};
use crate::topic::{TopicConfig, TopicDescription};

/// A call on its way, boxed so that the port is object-safe.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// Longest metadata of a committed offset, in bytes of printable ASCII. A broker takes 4,096 by
/// default; the books need the rest.
pub const MAX_METADATA: usize = 3_328;

/// Topics of partitions of records.
pub trait Log: Send + Sync + fmt::Debug {
    /// The name of this log, from which records that carry no id get theirs.
    fn cluster(&self) -> &str;

    /// Whether other machines use it too, so that the next owner of a partition may be on one of them.
    fn is_shared(&self) -> bool {
        true
    }

    /// Makes a topic. Returns when it would survive a crash and can be used.
    ///
    /// If it is there already: with as many partitions, its other settings are changed to these;
    /// otherwise it is refused. So calling twice changes nothing. If canceled, the topic may have
    /// been made.
    ///
    /// # Errors
    /// [`LogError::TopicConfig`] for another number of partitions or a setting that cannot be.
    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()>;

    /// The names of all topics, sorted.
    fn topics(&self) -> LogFuture<'_, Vec<Topic>>;

    /// Describes a topic, as of some moment during the call.
    ///
    /// # Errors
    /// [`LogError::UnknownTopic`].
    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription>;

    /// Adds records, each to the end of its partition. Returns where each lies, in the order of
    /// the call, when all are durable and can be read.
    ///
    /// All or none is promised only by [`Session::commit`]: after an error, or if canceled, any of the
    /// records may be there. Within one call that succeeds each record is there once, however often the
    /// log had to try: an answer that was lost is not an append that is repeated. Calling again after
    /// an error may add records twice, with the event ids they carry.
    ///
    /// # Errors
    /// [`LogError::UnknownTopic`], [`LogError::UnknownPartition`], [`LogError::RecordTooLarge`],
    /// [`LogError::HeaderTooLong`], [`LogError::CommitTooLarge`], [`LogError::Full`],
    /// [`LogError::Overloaded`] (too much waits for the disk) and [`LogError::Disk`] (the disk has no
    /// room): none was added.
    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>>;

    /// Adds records as [`append`](Self::append) does, waits for as long as it takes, and tells the outcome of
    /// each record.
    ///
    /// A remote log may be away for hours meanwhile: the records stay on their way, and each is added once. So
    /// a caller who must not repeat them has nothing to guess. If canceled, any of the records may be there, or
    /// come later.
    ///
    /// # Errors
    /// As for [`append`](Self::append); then none is on its way any more. Only
    /// [`LogError::OutcomeUnknown`] leaves open whether a record was added, also as the outcome of one.
    fn deliver(&self, records: Vec<Append>) -> LogFuture<'_, Vec<Result<(), LogError>>> {
        Box::pin(async move {
            let added = self.append(records).await?;
            Ok(added.iter().map(|_| Ok(())).collect())
        })
    }

    /// Reads records of one partition outside of any group: only what is committed, in order, and
    /// without skipping anything that is there.
    ///
    /// Returns at once with what there is, at least one record if there is any at or after
    /// `from`, however large it is; at the end, after at most `wait`, with none. The batch says
    /// where to go on. Calling twice reads twice.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`] before the start or behind the end; [`LogError::Damaged`] when the
    /// record at `from` is, with the offset at which to go on.
    fn read(&self, read: Read) -> LogFuture<'_, Batch>;

    /// The first offset whose record is not older than `timestamp_ms`; the end if there is none.
    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset>;

    /// Removes every record before `offset`: at once for readers, later from the disk. Returns
    /// the new start, which never lies behind the end or, embedded, behind what a registered group
    /// still has to read. Calling twice changes nothing.
    fn delete_before<'a>(&'a self, at: &'a TopicPartition, offset: Offset)
    -> LogFuture<'a, Offset>;

    /// The committed offsets of a group, in the order asked; none where it has committed nothing.
    ///
    /// The answer is stable: commits on their way are waited for, so that nobody who reads this
    /// can be overtaken by one that began before.
    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>>;

    /// The books of groups on topics and the offsets that belong to them, in the order asked. The embedded
    /// log answers for all of them at one cut. Whatever is not there is answered for as if it had just begun.
    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>>;

    /// Every group that is registered (it was joined once), sorted.
    fn groups(&self) -> LogFuture<'_, Vec<GroupName>>;

    /// Forgets a group and its offsets; retention does not wait for it any more. Forgetting twice
    /// changes nothing.
    ///
    /// # Errors
    /// [`LogError::Refused`] while it has members.
    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()>;

    /// Joins a group. Returns when the session exists; partitions come by [`Session::poll`].
    ///
    /// If canceled, the session is closed as if dropped. Joining twice makes two members; with the
    /// same [`Join::instance`], the second one takes the place of the first, whose commits are refused
    /// from then on.
    ///
    /// # Errors
    /// [`LogError::UnknownTopic`]; [`LogError::TopicConfig`] for topics that cannot be
    /// [read together](Join::co_partitioned).
    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>>;
}

/// One member of a group.
///
/// Dropping the last handle leaves the group without a word: what was not committed is handed out
/// again to others.
pub trait Session: Send + Sync + fmt::Debug {
    /// Waits for the next thing that happens. One caller at a time; a second one waits for the
    /// first. If canceled, nothing is missed: what would have been returned comes next time.
    ///
    /// The session stays a member whether it is polled or not; a slow caller stays owner.
    ///
    /// # Errors
    /// [`LogError::Closed`] after the end and [`LogError::Stopped`] once the log has stopped, each time; [`LogError::OutOfRange`] when the position of a partition
    /// is not there any more, or [`LogError::Damaged`] when what lies there cannot be read: that
    /// partition is stopped until it is sought. Others are told once and polling goes on.
    fn poll(&self) -> LogFuture<'_, SessionEvent>;

    /// Lets partitions go that [`SessionEvent::Revoking`] named. Returns when the log knows it. Letting
    /// go of what is not held changes nothing.
    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()>;

    /// Hands out no more records of these partitions until [`resume`](Self::resume).
    ///
    /// A pause holds for this session, also for a partition that it does not own (yet, or any
    /// more), so it survives a rebalance. Returns when no later poll hands out a record of them.
    /// Pausing twice is pausing once.
    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()>;

    /// Goes on where the pause began: right after the last record handed out, or where it was
    /// sought to since. Resuming what is not paused changes nothing.
    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()>;

    /// The next record handed out of `at` is the first one at or after `offset`. Returns when
    /// no later poll hands out anything else. It does not resume, and commits nothing.
    ///
    /// # Errors
    /// [`LogError::Fenced`] when the partition is not owned under that fence.
    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()>;

    /// Does all of it or nothing: the records are added, the offsets and their metadata set, the
    /// postings booked. Returns where the records lie, in the order of the call, when it is durable.
    ///
    /// If canceled it may happen all the same; [`Log::committed`] tells, stably. After
    /// [`LogError::OutcomeUnknown`] the same. A commit without records and offsets does nothing.
    ///
    /// Commits may be called one behind the other without waiting. Those of one partition are done in
    /// the order in which they are first polled, and none past a gap. When one fails, or its outcome is
    /// unknown, those that are called before its error was returned are refused
    /// ([`LogError::PrecedingCommitFailed`]). It does not matter whether they were called before it
    /// failed or after. So each may bring just the postings since the one before it. After the error,
    /// the caller continues from what is [committed](Log::committed).
    ///
    /// The error of a dropped call is not returned. If the call was not done, the next commit of each
    /// of its partitions is refused ([`LogError::PrecedingCommitFailed`]). So that commit reports it,
    /// whatever was asked or sought meanwhile. The one after that goes on from what is committed. A new
    /// assignment begins without any of this.
    ///
    /// # Errors
    /// Nothing was changed by [`LogError::Fenced`] (not the owner under that fence),
    /// [`LogError::OffsetRegressed`], [`LogError::PrecedingCommitFailed`],
    /// [`LogError::MetadataTooLong`], [`LogError::MetadataNotAscii`], [`LogError::RecordTooLarge`],
    /// [`LogError::HeaderTooLong`], [`LogError::CommitTooLarge`], [`LogError::UnknownTopic`],
    /// [`LogError::UnknownPartition`], [`LogError::OutOfRange`] (behind the end). A full log takes
    /// commits that bring offsets from its reserve, so that it can be drained.
    fn commit(&self, commit: Commit) -> LogFuture<'_, Vec<RecordPosition>>;

    /// How far each owned partition is behind, by partition.
    fn lag(&self) -> LogFuture<'_, Vec<Lag>>;

    /// Leaves the group. Returns when others may have the partitions, or at a deadline. Closing
    /// twice changes nothing.
    fn close(&self) -> LogFuture<'_, ()>;
}

/// A record on its way into a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The topic.
    pub topic: Topic,
    /// The partition; without one the key decides, and without a key it is the log's choice.
    pub partition: Option<Partition>,
    /// The record.
    pub record: Record,
}

impl Append {
    /// A record for a topic; its key decides about the partition.
    #[must_use]
    pub fn new(topic: Topic, record: Record) -> Self {
        Self {
            topic,
            partition: None,
            record,
        }
    }

    /// Says which partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(Partition(partition));
        self
    }

    /// The partition that it goes to, of so many: the one that it names, that of its key, or the one whose
    /// turn it is.
    ///
    /// # Errors
    /// There is no such partition, or no log takes the headers of the record.
    pub(crate) fn choose_partition(
        &self,
        partitions: u32,
        count: impl FnOnce() -> u32,
    ) -> Result<Partition, LogError> {
        if let Err(why) = self.record.headers.check() {
            let topic = self.topic.clone();
            return Err(LogError::HeaderTooLong { topic, why });
        }
        let partition = match (self.partition, &self.record.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of(key, partitions),
            (None, None) => Partition(i32::try_from(count() % partitions).unwrap_or(0)),
        };
        match u32::try_from(partition.0).is_ok_and(|number| number < partitions) {
            true => Ok(partition),
            false => Err(LogError::UnknownPartition {
                at: TopicPartition::new(self.topic.clone(), partition.0),
                partitions,
            }),
        }
    }
}

/// Where a record lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPosition {
    /// Its partition.
    pub at: TopicPartition,
    /// Its offset there.
    pub offset: Offset,
}

/// A read of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The partition.
    pub at: TopicPartition,
    /// The first offset.
    pub from: Offset,
    /// At most so many records; 0 is as 1.
    pub max_records: usize,
    /// About so many bytes, and one record however few.
    pub max_bytes: usize,
    /// How long to wait for a record when there is none.
    pub wait: Duration,
}

impl Read {
    /// Reads from an offset, in batches of a usual size and without waiting.
    #[must_use]
    pub fn new(at: TopicPartition, from: Offset) -> Self {
        Self {
            at,
            from,
            max_records: 10_000,
            max_bytes: 1024 * 1024,
            wait: Duration::ZERO,
        }
    }
}

/// Records of one partition, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The partition.
    pub at: TopicPartition,
    /// The records.
    pub records: Vec<StoredRecord>,
    /// The offset at which to go on: behind the last record, and behind holes that follow it.
    pub next: Offset,
}

/// One assignment of a partition, and of those [read together](Join::co_partitioned) with it, to a member:
/// what it commits carries it, and an old one commits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The committed offset of a group for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The next record to read.
    pub next: Offset,
    /// The text that was written beside it.
    pub metadata: String,
}

/// An event of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// These partitions are ours from now on.
    Assigned(Vec<Assignment>),
    /// These partitions are to be let go: stop their work, commit, then call
    /// [`Session::release`]. They are ours until then, or until the time is up; no more records of
    /// them are handed out.
    Revoking(Vec<TopicPartition>),
    /// These partitions are not ours any more; commits for them are refused.
    Lost(Vec<TopicPartition>),
    /// Records to handle.
    Records {
        /// The assignment under which they were handed out.
        fence: Fence,
        /// The records, at least one.
        batch: Batch,
    },
}

/// A partition that is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The partition.
    pub at: TopicPartition,
    /// The fence that commits for it carry.
    pub fence: Fence,
    /// The committed offset of the group, read stable.
    pub committed: Option<Committed>,
    /// The first offset that will be handed out.
    pub position: Offset,
}

/// Where a group without a committed offset starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// At the first record that is there.
    #[default]
    Earliest,
    /// Behind the last record, when the group first gets the partition. That is committed then, so
    /// that nothing which comes later is skipped; what lies before was never in its books.
    Latest,
    /// Not at all: polling returns [`LogError::OutOfRange`] with [`StartAt::NO_OFFSET`]. The partition is
    /// assigned, and stopped until it is sought.
    Fail,
}

impl StartAt {
    /// The offset in the error of a group that has committed nothing and [must not guess](Self::Fail).
    pub const NO_OFFSET: Offset = Offset(-1);
}

/// How to join a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The group.
    pub group: GroupName,
    /// The topics to read.
    pub topics: Vec<Topic>,
    /// Topics that are read partition by partition together with the one of `topics`, which has as many
    /// partitions.
    ///
    /// The owner of partition p of that topic has partition p of these, under the same [`Fence`]. They are
    /// assigned, asked back and lost together, and begin as `start` says. Each is committed, paused and
    /// sought by itself. A partition that is to be let go is handed on when all of its number were
    /// released. So the tasks of a stage have their inputs in one place.
    ///
    /// All members name the same ones: the embedded log refuses others. On Kafka a group subscribes only
    /// to the topic itself. So the broker forgets what was committed of these seven days after the last
    /// commit (`offsets.retention.minutes`). Commit them now and then, moved or not.
    pub co_partitioned: Vec<Topic>,
    /// A name that is this member's across restarts: it fences an earlier process of that name,
    /// and names its transactions on Kafka. Without one, a random name.
    pub instance: Option<String>,
    /// Where to start without a committed offset.
    pub start: StartAt,
    /// The name of this member in logs: on Kafka its client id and the name of its threads. It need not be
    /// unique.
    pub name: Option<String>,
    /// Records handed out at once.
    pub max_poll_records: usize,
    /// Bytes of records that are held ready for this member; none for as many as the log holds by itself.
    /// A single record may be larger.
    pub buffer: Option<usize>,
    /// After this time without a sign of life a member is gone (Kafka).
    pub session_timeout: Duration,
    /// The longest time between two signs of life (Kafka). They come more often where the session timeout
    /// asks for it, and at least every second.
    pub max_heartbeat: Duration,
    /// How long a partition that is to be let go is waited for.
    pub release_timeout: Duration,
}

impl Join {
    /// Joins a group on these topics, with the usual settings.
    #[must_use]
    pub fn new(group: GroupName, topics: Vec<Topic>) -> Self {
        Self {
            group,
            topics,
            co_partitioned: Vec::new(),
            instance: None,
            start: StartAt::Earliest,
            name: None,
            max_poll_records: 500,
            buffer: None,
            session_timeout: Duration::from_secs(45),
            max_heartbeat: Duration::from_secs(1),
            release_timeout: Duration::from_secs(10),
        }
    }

    /// Every topic that is read.
    pub(crate) fn all_topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter().chain(&self.co_partitioned)
    }

    /// Refuses topics that cannot be read partition by partition. `counts` has the number of partitions
    /// of [every topic](Self::all_topics).
    pub(crate) fn check_partitions(&self, counts: &BTreeMap<Topic, u32>) -> Result<(), LogError> {
        let Some(last) = self.co_partitioned.last() else {
            return Ok(());
        };
        let refused = |topic: &Topic, why| {
            let topic = topic.clone();
            Err(LogError::TopicConfig { topic, why })
        };
        let [leader] = &self.topics[..] else {
            let why = "it can be read together with one topic only".to_owned();
            return refused(last, why);
        };
        if counts.len() != 1 + self.co_partitioned.len() {
            let why = "one of the topics that are read together is named twice".to_owned();
            return refused(leader, why);
        }
        let (expected, all) = (counts.get(leader), self.co_partitioned.iter());
        for topic in all {
            if counts.get(topic) != expected {
                let number = |topic| counts.get(topic).copied().unwrap_or(0);
                return refused(
                    topic,
                    format!(
                        "it has {} partitions and is read partition by partition together with \
                         `{leader}`, which has {}",
                        number(topic),
                        number(leader)
                    ),
                );
            }
        }
        Ok(())
    }
}

/// Records and offsets that are written together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// Records to add.
    pub appends: Vec<Append>,
    /// Offsets to set.
    pub offsets: Vec<OffsetCommit>,
}

/// How far a partition is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetCommit {
    /// The partition.
    pub at: TopicPartition,
    /// The assignment under which it was read.
    pub fence: Fence,
    /// The next record to read.
    pub next: Offset,
    /// A text that is read back with it: at most [`MAX_METADATA`] bytes of printable ASCII.
    pub metadata: String,
    /// The postings of the records between the last commit and this one.
    pub postings: Vec<Posting>,
}

impl OffsetCommit {
    /// Refuses metadata that a broker would not keep as it is.
    pub(crate) fn check_metadata(&self) -> Result<(), LogError> {
        let (at, length) = (self.at.clone(), self.metadata.len());
        let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if length > MAX_METADATA {
            let limit = MAX_METADATA;
            return Err(LogError::MetadataTooLong { at, length, limit });
        }
        match self.metadata.bytes().all(is_plain) {
            true => Ok(()),
            false => Err(LogError::MetadataNotAscii { at }),
        }
    }
}

/// How far an owned partition is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// The partition.
    pub at: TopicPartition,
    /// Records from the committed offset, or the start of the group, to the end.
    pub records: u64,
    /// How old the oldest of them is; zero when there is none.
    pub age: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_printable_and_short() {
        let check = |metadata: &str| {
            let commit = OffsetCommit {
                at: TopicPartition::new(Topic::new("t").unwrap(), 0),
                fence: Fence(1),
                next: Offset(0),
                metadata: metadata.to_owned(),
                postings: Vec::new(),
            };
            commit.check_metadata()
        };
        assert!(check(&"~".repeat(MAX_METADATA)).is_ok());
        let long = check(&"~".repeat(MAX_METADATA + 1));
        assert!(matches!(long, Err(LogError::MetadataTooLong { .. })));
        for bad in ["ä", "\n", "\u{7f}"] {
            let error = check(bad);
            assert!(matches!(error, Err(LogError::MetadataNotAscii { .. })));
        }
    }
}
