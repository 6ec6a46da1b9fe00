//! A simulated log: the model of what a log is, behind the port, with faults.

mod faults;
mod model;
mod storage;

use std::fmt;
use std::sync::Arc;

use tidegate_core::books::{Books, Tally};
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Mutex, Offset, Topic};
use tidegate_log::local::LocalLog;
use tidegate_log::{
    Append, Batch, Committed, GroupSnapshot, Join, Log, LogFuture, Read, RecordPosition, Session,
    TopicConfig, TopicDescription, TopicPartition,
};

pub use faults::{LogFault, LogRates};

use storage::ModelStorage;

/// A log that every simulated node can reach, as a broker would be.
///
/// **May fail:** any call may be slow or refused
/// ([`LogError::Unavailable`](tidegate_log::LogError::Unavailable)); the answer to a commit may be
/// lost, whether it was done or not
/// ([`LogError::OutcomeUnknown`](tidegate_log::LogError::OutcomeUnknown)); partitions are asked back at
/// any moment; a member is taken for dead while it lives; the log crashes, and with it goes everything
/// that was not done and every session. **Must not fail:** what was answered as done stays; a write is
/// done whole or not at all, and in the order in which writes were handed over; it is done once,
/// however often its answer was lost.
///
/// It lives on the node whose ports it is given; when that node crashes, nothing answers any more.
/// Cloning gives another handle on the same log.
///
/// ```
/// use tidegate_core::Topic;
/// use tidegate_log::{Append, Log, Record, TopicConfig};
/// use tidegate_sim::{LogFault, Sim, SimLog};
///
/// let mut sim = Sim::new(7);
/// let broker = sim.node("broker");
/// let log = SimLog::new(&broker.env());
/// let topic = Topic::new("orders")?;
/// sim.block_on(&broker, async move {
///     log.create_topic(&topic, TopicConfig::new(1)).await.unwrap();
///     log.inject(LogFault::LoseAnswer);
///     let record = Append::new(topic.clone(), Record::new("placed"));
///     log.append(vec![record]).await.unwrap();
///     let end = log.describe(&topic).await.unwrap().partitions[0].end;
///     assert_eq!(end.0, 1, "the answer was lost, the record is there once");
/// });
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Clone)]
pub struct SimLog {
    storage: Arc<ModelStorage>,
    /// The present life: it ends with a crash.
    life: Arc<Mutex<LocalLog<ModelStorage>>>,
    env: Arc<Env>,
}

impl SimLog {
    /// An empty log on a node.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        let env = Arc::new(env.fork("log"));
        let storage = Arc::new(ModelStorage::new(&env));
        let life = LocalLog::new(Arc::clone(&storage), &env);
        Self {
            storage,
            life: Arc::new(Mutex::new(life)),
            env,
        }
    }

    /// Something goes wrong with the next write; called again, with the one after it.
    pub fn inject(&self, fault: LogFault) {
        self.storage.state.lock().faults.script.push_back(fault);
    }

    /// How many of the injected faults have not struck yet.
    #[must_use]
    pub fn faults_left(&self) -> u64 {
        self.storage.state.lock().faults.script.len() as u64
    }

    /// How often things go wrong from now on. The default is never.
    pub fn set_rates(&self, rates: LogRates) {
        self.storage.state.lock().faults.rates = rates;
    }

    /// Whether the log refuses records that come without offsets, as one that is full.
    pub fn set_full(&self, is_full: bool) {
        self.storage.state.lock().faults.is_full = is_full;
    }

    /// Whether commits take offsets that hold no record, as on Kafka: one behind the records of a commit, and as many
    /// as its records where it was not done.
    pub fn set_holes(&self, has_holes: bool) {
        self.storage.state.lock().model.has_holes = has_holes;
    }

    /// The most bytes of records that a commit may have from now on.
    pub fn set_max_commit(&self, bytes: u64) {
        self.storage.state.lock().model.max_commit = bytes;
    }

    /// Loses everything that was not done, and every session; the log is there again at once.
    pub fn crash(&self) {
        let fresh = LocalLog::new(Arc::clone(&self.storage), &self.env);
        let ended = std::mem::replace(&mut *self.life.lock(), fresh);
        ended.end_sessions();
        self.storage.crash();
    }

    /// Asks every member of a group to let everything go.
    pub fn rebalance(&self, group: &GroupName) {
        self.present().rebalance(group);
    }

    /// Takes the `nth` member of a group for dead: it is a zombie until its next poll tells it.
    /// Says whether there is such a member.
    pub fn expel(&self, group: &GroupName, nth: usize) -> bool {
        self.present().expel(group, nth)
    }

    /// The books of a group on a topic: the sum of the postings that were committed.
    #[must_use]
    pub fn books(&self, group: &GroupName, topic: &Topic) -> Books {
        self.storage.state.lock().model.books(group, topic)
    }

    /// The records of a topic that a group has settled, to be compared with its books.
    #[must_use]
    pub fn recount(&self, group: &GroupName, topic: &Topic) -> Tally {
        let state = self.storage.state.lock();
        state.model.recount(self.cluster(), group, topic)
    }

    fn present(&self) -> LocalLog<ModelStorage> {
        self.life.lock().clone()
    }
}

impl fmt::Debug for SimLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLog({:?})", self.storage)
    }
}

impl Log for SimLog {
    fn cluster(&self) -> &str {
        "sim"
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(async move { self.present().create_topic(topic, config).await })
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async move { self.present().topics().await })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        Box::pin(async move { self.present().describe(topic).await })
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move { self.present().append(records).await })
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        Box::pin(async move { self.present().read(read).await })
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        Box::pin(async move { self.present().offset_at(at, timestamp_ms).await })
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        Box::pin(async move { self.present().delete_before(at, offset).await })
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        Box::pin(async move {
            // A local log answers from memory; a broker may be slow, or away.
            self.storage.pass().await?;
            self.present().committed(group, partitions).await
        })
    }

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        Box::pin(async move { self.present().group_books(asked).await })
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        Box::pin(async move { self.present().groups().await })
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(async move { self.present().forget_group(group).await })
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        Box::pin(async move { self.present().join(join).await })
    }
}
