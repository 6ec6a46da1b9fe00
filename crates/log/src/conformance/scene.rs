//! The stage that a rule is played on.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::books::{Books, LossReason, Place, Tally};
use tidegate_core::env::{Clock, Spawn};
use tidegate_core::{EventId, GroupName, Offset, Topic};

use super::member::Member;
use crate::admin::SKIPPED;
use crate::{
    Append, Committed, Join, Log, LogAdmin, LogError, LogFuture, PartitionDescription, Read,
    Record, RecordPosition, StoredRecord, TopicConfig, TopicPartition,
};

/// An implementation under test, with what a test needs around it.
pub trait Stage: Send + Sync + fmt::Debug {
    /// The log.
    fn log(&self) -> Arc<dyn Log>;

    /// The same for operators; none for an implementation that has nobody to operate it.
    fn admin(&self) -> Option<Arc<dyn LogAdmin>> {
        None
    }

    /// The time in which the log lives.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Who runs tasks beside the rule.
    fn spawn(&self) -> Arc<dyn Spawn>;

    /// A part of a name that nobody has used before, because topics and groups outlive a rule where
    /// the log is shared.
    fn unique(&self) -> String;

    /// How long things take here.
    fn times(&self) -> Times;

    /// The promises of this implementation beyond the rules.
    fn promises(&self) -> Promises;

    /// Gives the log back as the next process finds it: everything that was done is there, every
    /// session is gone. The rule has dropped what it had of the old one.
    fn reopen(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>>;

    /// The log at the end of a line that can break; the same one where no line is between.
    fn over_a_bad_line(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Log>> + Send + '_>>;

    /// The answer to the next such write over the bad line is lost: the log has done it, and nobody hears
    /// of it. Where there is no line, the log fails between doing it and saying so.
    fn lose_next_answer(&self, of: Written);

    /// How many answers were lost.
    fn answers_lost(&self) -> u64;

    /// The next commit is handed over and then refused; nothing of it is done, and the log goes on. False
    /// where that cannot be arranged.
    fn refuse_next_commit(&self) -> bool;

    /// The books of a group on a topic, and whether the records say the same.
    fn account<'a>(&'a self, group: &'a GroupName, topic: &'a Topic) -> LogFuture<'a, Account>;
}

/// The kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Records.
    Append,
    /// Offsets, with records or without.
    Commit,
}

/// The events of a topic that a group is done with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Records that left the hands of the group, and the sum of their ids.
    pub settled: Tally,
    /// Where they went, and the sums of their ids.
    pub places: BTreeMap<Place, Tally>,
    /// Whether a recount of the records agrees.
    pub is_confirmed: bool,
}

impl Account {
    /// The reason of losses that rules post.
    pub const LOST: LossReason = LossReason::from_static("log_retention");

    /// The books, beside a recount of them.
    #[must_use]
    pub fn new(books: &Books, is_confirmed: bool) -> Self {
        let mut settled = Tally::default();
        let mut places = BTreeMap::new();
        for place in [
            Place::Retrying,
            Place::Parked,
            Place::DeadLettered,
            Place::Delivered,
            Place::Lost(Self::LOST),
            Place::Lost(SKIPPED),
        ] {
            let tallies = books.tallies(&place).into_values();
            let there = tallies.fold(Tally::default(), Tally::plus);
            settled = settled.plus(there);
            if !there.is_zero() {
                places.insert(place, there);
            }
        }
        Self {
            settled,
            places,
            is_confirmed,
        }
    }
}

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Longer than anything takes that must happen: past it, a rule is broken.
    pub settle: Duration,
    /// How long to look on before it is believed that nothing happens.
    pub quiet: Duration,
}

/// The promises of an implementation beyond the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Nothing is deleted that a registered group has not committed yet.
    pub deletion_waits_for_groups: bool,
    /// An append whose answer is lost is answered in the end: the log, or its client, tries again.
    pub answers_in_the_end: bool,
    /// The records of a commit can be read once it is answered. A broker answers before it ends the
    /// transaction in the partitions, so there they can be read a moment later.
    pub reads_commits_at_once: bool,
}

/// A stage with a log on it, and short ways to say what rules say.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The stage.
    pub stage: Arc<dyn Stage>,
    /// The log as it is now.
    pub log: Arc<dyn Log>,
}

impl Scene {
    /// Sets a rule on a stage.
    #[must_use]
    pub fn new(stage: Arc<dyn Stage>) -> Self {
        let log = stage.log();
        Self { stage, log }
    }

    /// The log as the next process finds it. Members must have been dropped.
    pub async fn reopened(self) -> Self {
        let Self { stage, log } = self;
        drop(log);
        let log = stage.reopen().await;
        Self { stage, log }
    }

    /// The log at the end of a line that can break.
    pub async fn over_a_bad_line(self) -> Self {
        let Self { stage, log } = self;
        drop(log);
        let log = stage.over_a_bad_line().await;
        Self { stage, log }
    }

    /// The books of a group on a topic. The records must say the same.
    pub async fn settled(&self, group: &GroupName, topic: &Topic) -> Tally {
        let account = self.stage.account(group, topic).await.unwrap();
        assert!(account.is_confirmed, "books and records agree: {account:?}");
        account.settled
    }

    /// Where the events of a topic went that a group is done with. The records must say the same.
    pub async fn places(&self, group: &GroupName, topic: &Topic) -> BTreeMap<Place, Tally> {
        let account = self.stage.account(group, topic).await.unwrap();
        assert!(account.is_confirmed, "books and records agree: {account:?}");
        account.places
    }

    /// A fresh name.
    #[must_use]
    pub fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.stage.unique())
    }

    /// A fresh topic with so many partitions.
    pub async fn topic(&self, partitions: u32) -> Topic {
        self.topic_with(TopicConfig::new(partitions)).await
    }

    /// A fresh topic that is set up like this.
    pub async fn topic_with(&self, config: TopicConfig) -> Topic {
        let topic = Topic::new(self.name("topic")).unwrap();
        self.log.create_topic(&topic, config).await.unwrap();
        topic
    }

    /// A fresh group.
    #[must_use]
    pub fn group(&self) -> GroupName {
        GroupName::new(self.name("group")).unwrap()
    }

    /// Appends values to one partition and says where they lie.
    pub async fn append(&self, at: &TopicPartition, values: &[&str]) -> Vec<Offset> {
        let appends = values.iter().map(|value| append_to(at, value)).collect();
        let positions = self.log.append(appends).await.unwrap();
        positions
            .into_iter()
            .map(|position| position.offset)
            .collect()
    }

    /// Appends `count` events to one partition and says which and where.
    pub async fn append_events(&self, at: &TopicPartition, count: u64) -> Vec<(Offset, EventId)> {
        let end = self.partition(at).await.end;
        let ids = (0..count).map(|number| event_id(at, end, number));
        let appends = ids.clone().map(|id| {
            let record = Record::new("event").event_id(id);
            Append::new(at.topic.clone(), record).partition(at.partition.0)
        });
        let positions = self.log.append(appends.collect()).await.unwrap();
        let offsets = positions.into_iter().map(|position| position.offset);
        offsets.zip(ids).collect()
    }

    /// Appends `count` numbered values to one partition.
    pub async fn append_numbers(&self, at: &TopicPartition, count: usize) -> Vec<Offset> {
        let values: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        self.append(at, &values).await
    }

    /// Everything that a partition holds.
    pub async fn everything(&self, at: &TopicPartition) -> Vec<StoredRecord> {
        let there = self.partition(at).await;
        let mut from = there.start;
        let mut all = Vec::new();
        while from < there.end {
            let batch = self.log.read(Read::new(at.clone(), from)).await.unwrap();
            assert_eq!(&batch.at, at);
            assert!(batch.next > from, "a read before the end gets on");
            from = batch.next;
            all.extend(batch.records);
        }
        all
    }

    /// The values that a partition holds, as text.
    pub async fn values(&self, at: &TopicPartition) -> Vec<String> {
        self.everything(at).await.iter().map(text).collect()
    }

    /// The values that a partition holds after a commit that made them so many. It waits only for a log
    /// that does not promise to have them at once.
    pub async fn values_once(&self, at: &TopicPartition, count: usize) -> Vec<String> {
        self.soon("the records of a commit", async {
            loop {
                let values = self.values(at).await;
                if values.len() >= count || self.stage.promises().reads_commits_at_once {
                    return values;
                }
                self.stage.clock().sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// Describes a partition.
    pub async fn partition(&self, at: &TopicPartition) -> PartitionDescription {
        let description = self.log.describe(&at.topic).await.unwrap();
        description.partitions[usize::try_from(at.partition.0).unwrap()]
    }

    /// The committed offset of a group for a partition.
    pub async fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed> {
        let mut found = self
            .log
            .committed(group, std::slice::from_ref(at))
            .await
            .unwrap();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// A new member of a group.
    pub async fn join(&self, group: &GroupName, topic: &Topic) -> Member {
        self.join_as(Join::new(group.clone(), vec![topic.clone()]))
            .await
    }

    /// A new member that joins like this.
    pub async fn join_as(&self, join: Join) -> Member {
        let session = self.log.join(join).await.unwrap();
        Member::new(self.clone(), session)
    }

    /// Runs something that must end; how soon depends on the stage.
    pub async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        let limit = self.stage.times().settle;
        match self.within(limit, future).await {
            Some(value) => value,
            None => panic!("{what} did not happen within {limit:?}"),
        }
    }

    /// Runs something for at most this long.
    pub async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let clock = self.stage.clock();
        tokio::select! {
            biased;
            value = future => Some(value),
            () = clock.sleep(limit) => None,
        }
    }
}

/// An id that nobody else on this topic has, of some minute or other.
fn event_id(at: &TopicPartition, end: Offset, number: u64) -> EventId {
    let partition = u128::from(at.partition.0.unsigned_abs());
    let number = u128::from(end.0.unsigned_abs() + number);
    let time = 0x019a_8f3e_5c00 + number * 7_000;
    EventId::from_u128((time << 80) | (0x7abc_8def << 48) | (partition << 32) | number)
}

/// A record with a text, for a partition.
#[must_use]
pub(super) fn append_to(at: &TopicPartition, value: &str) -> Append {
    let record = Record::new(value.to_owned());
    Append::new(at.topic.clone(), record).partition(at.partition.0)
}

/// Begins a call without waiting for it.
pub(super) async fn once<T>(call: &mut LogFuture<'_, T>) -> Option<Result<T, LogError>> {
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The value of a record as text.
#[must_use]
pub(super) fn text(stored: &StoredRecord) -> String {
    let value = stored.record.value.as_deref().unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

/// The code of the error that a call must end with.
pub(super) fn code<T: fmt::Debug>(result: Result<T, LogError>) -> String {
    match result {
        Ok(value) => panic!("this must be refused, and gave {value:?}"),
        Err(error) => error.code().to_string(),
    }
}

/// Just the offsets.
#[must_use]
pub(super) fn offsets(positions: &[RecordPosition]) -> Vec<i64> {
    positions.iter().map(|position| position.offset.0).collect()
}
