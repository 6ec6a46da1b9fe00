//! Apache Kafka as the log, through librdkafka.
//!
//! | file | part |
//! |---|---|
//! | `settings` | what clients are told; settings that are refused |
//! | `probe` | whether the broker is there, new enough and takes us |
//! | `catalog` | topics: partitions, limits, making and describing them |
//! | `produce` | appends |
//! | `read` | reads outside of a group |
//! | `groups` | what groups have committed |
//! | `session` | a member of a group: its client thread, its commits |
//! | `books` | the books in the metadata of committed offsets |
//! | `recount` | the second witness: the topic itself |
//! | `administration` | groups moved, groups and topics removed by operators |
//!
//! **Invariant:** nothing that blocks runs on an async thread, and every wait has a deadline. A client
//! that does not answer in time costs a thread (`workers`) and never the caller.
//!
//! **Exactly once** holds on brokers from 2.5 on; older ones are refused. A broker that forgets what
//! it acknowledged is beyond what a client can mend.

mod administration;
mod books;
mod catalog;
mod client_context;
mod convert;
mod failure;
mod groups;
mod in_flight;
mod probe;
mod produce;
mod read;
mod recount;
mod session;
mod settings;
mod telemetry;
mod workers;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, PoisonError, mpsc};
use std::time::Duration;

use rdkafka::error::KafkaError;
use tidegate_core::env::{Clock, Entropy, Env, Spawn};
use tidegate_core::{GroupName, Mutex, Offset, Topic};

use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::port::{Append, Batch, Committed, Join, Log, LogFuture, Read, RecordPosition, Session};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

pub use books::GroupBooks;
pub use recount::{GroupRecount, PartitionRecount, recount_group};

use catalog::KafkaCatalog;
use groups::OffsetFetchers;
use in_flight::InFlightCommits;
use produce::Producers;
use read::KafkaReaders;
use workers::{LateCall, Workers};

/// How a cluster is reached, and what it may cost.
///
/// ```
/// use tidegate_log::kafka::KafkaConfig;
/// let mut config = KafkaConfig::new("default", "127.0.0.1:9092");
/// config.properties.insert("sasl.password".to_owned(), "secret".to_owned());
/// assert!(!format!("{config:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaConfig {
    /// The name of the cluster in our configuration. Records without an id get theirs from it, so it
    /// stays the same for as long as the records do.
    pub cluster: String,
    /// Where brokers are found, as `host:port,host:port`.
    pub bootstrap_servers: String,
    /// Further settings of librdkafka, passed on. Those that carry a promise are refused by name.
    pub properties: BTreeMap<String, String>,
    /// The deadline of one call: `request-timeout`.
    pub request_timeout: Duration,
    /// The largest append or commit, in bytes: `max-commit-size`.
    pub max_commit_size: u64,
    /// Bytes of appends that are on their way at once; further appends wait: `max-in-flight`.
    pub max_in_flight: usize,
    /// Bytes of records that a session holds ready; beyond them its client is paused: `session-buffer`.
    pub session_buffer: usize,
    /// A partition that hands over nothing for so long is looked at from outside; a client that then
    /// turns out to be stalled seeks again, and ends its session after a few times: `stall-after`.
    pub stall_after: Duration,
    /// Copies of each partition of a topic that is made; none leaves it to the broker: `replication`.
    pub replication: Option<u32>,
}

impl KafkaConfig {
    /// A cluster with the usual limits.
    #[must_use]
    pub fn new(cluster: impl Into<String>, bootstrap_servers: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            bootstrap_servers: bootstrap_servers.into(),
            properties: BTreeMap::new(),
            request_timeout: Duration::from_secs(30),
            max_commit_size: 64 * 1024 * 1024,
            max_in_flight: 64 * 1024 * 1024,
            session_buffer: 16 * 1024 * 1024,
            stall_after: Duration::from_secs(30),
            replication: None,
        }
    }
}

impl KafkaConfig {
    /// The key of a limit, as its errors name it.
    fn key(&self, name: &str) -> String {
        format!("log.clusters.{}.{name}", self.cluster)
    }

    /// A call that had no answer in time and changed nothing.
    fn away(&self, why: impl Into<String>) -> LogError {
        LogError::Unavailable {
            servers: self.bootstrap_servers.clone(),
            why: why.into(),
        }
    }

    /// The error of a call that changed nothing.
    fn failed(&self, doing: &'static str, topic: Option<&Topic>, error: &KafkaError) -> LogError {
        failure::of_question(doing, &self.bootstrap_servers, topic, error)
    }

    /// Why a call has ended without an answer; counted.
    fn late(&self) -> String {
        telemetry::timed_out();
        format!(
            "no answer within {:?} (`{}`)",
            self.request_timeout,
            self.key("request-timeout")
        )
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of properties may be secrets.
        let names: Vec<_> = self.properties.keys().collect();
        f.debug_struct("KafkaConfig")
            .field("cluster", &self.cluster)
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("properties", &names)
            .finish_non_exhaustive()
    }
}

/// A log on Apache Kafka. Clones are the same log.
///
/// Appends are idempotent within the log's own tries; a commit with records is one transaction. The
/// port promises what the broker keeps: replication is the topic's business.
#[derive(Clone)]
pub struct KafkaLog {
    inner: Arc<KafkaInner>,
}

pub(crate) struct KafkaInner {
    pub(crate) config: KafkaConfig,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    entropy: Mutex<Box<dyn Entropy>>,
    workers: Workers,
    catalog: Arc<KafkaCatalog>,
    producers: Arc<Producers>,
    readers: Arc<KafkaReaders>,
    offset_fetchers: Arc<OffsetFetchers>,
    end: mpsc::Sender<Clients>,
    /// The next fence. It begins at the wall time, so that fences ascend also over restarts.
    fences: Arc<AtomicU64>,
    in_flight: Arc<InFlightCommits>,
    instances: session::Instances,
}

impl KafkaLog {
    /// Connects to a cluster. Returns when a broker has answered, knows what we need and takes us.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when none answers within the deadline of a call, [`LogError::Login`] for
    /// credentials and certificates, [`LogError::Refused`] for settings that cannot be and brokers before
    /// 2.5.
    pub async fn connect(config: KafkaConfig, env: Env) -> Result<Self, LogError> {
        settings::check(&config.properties)?;
        let workers = Workers::new(Arc::clone(&env.clock), Arc::clone(&env.spawn));
        probe::probe(&config, &env.clock, &workers).await?;
        let readers = Arc::new(KafkaReaders::new(config.clone(), Arc::clone(&env.clock)));
        let (end, ended) = mpsc::channel();
        let open = OpenClients::new();
        let task = Box::pin(async move {
            end_clients(&ended);
            drop(open);
        });
        drop(env.spawn.spawn_thread("kafka-end", task));
        let inner = KafkaInner {
            catalog: Arc::new(KafkaCatalog::new(&config)?),
            producers: Arc::new(Producers::new(
                &config,
                Arc::clone(&env.clock),
                Arc::clone(&env.spawn),
            )),
            end,
            readers,
            offset_fetchers: Arc::new(OffsetFetchers::new(config.clone())),
            workers,
            fences: Arc::new(AtomicU64::new(env.clock.now_ms() << 16)),
            in_flight: Arc::default(),
            instances: session::Instances::default(),
            config,
            clock: env.clock,
            spawn: env.spawn,
            entropy: Mutex::new(env.entropy),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The books that a group has committed with its offsets, in the order asked; none where it has
    /// committed nothing or keeps no books. Stable, as [`Log::committed`].
    ///
    /// # Errors
    /// As for [`Log::committed`].
    pub async fn books(
        &self,
        group: &GroupName,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<GroupBooks>>, LogError> {
        let found = self.inner.committed(group, partitions).await?;
        Ok(found
            .into_iter()
            .map(|found| found.and_then(|(books, _)| books))
            .collect())
    }
}

impl KafkaInner {
    /// A call that had no answer in time and changed nothing.
    fn away(&self, why: impl Into<String>) -> LogError {
        self.config.away(why)
    }

    /// Why a call has ended without an answer.
    fn late(&self) -> String {
        self.config.late()
    }

    /// Runs a question that blocks, with the deadline of a call.
    async fn ask<T: Send + 'static>(
        &self,
        name: &str,
        question: impl FnOnce() -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        self.ask_within(name, Duration::ZERO, question).await
    }

    /// The same, for a question that is allowed to take so much longer.
    async fn ask_within<T: Send + 'static>(
        &self,
        name: &str,
        longer: Duration,
        question: impl FnOnce() -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        // The client's own deadline comes first, because it knows better why there is no answer.
        let limit = self.config.request_timeout + longer + Duration::from_secs(1);
        let answer = self.workers.run(name, limit, question).await;
        answer.unwrap_or_else(|late| {
            Err(match late {
                LateCall::NotBegun => self.away("all workers wait for an answer"),
                LateCall::NoAnswer => self.away(self.late()),
            })
        })
    }

    async fn committed(
        self: &Arc<Self>,
        group: &GroupName,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<(Option<GroupBooks>, Committed)>>, LogError> {
        let limit = self.config.request_timeout;
        if !self.in_flight.wait(group, &*self.clock, limit).await {
            return Err(self.away("commits of this group have not ended"));
        }
        let (offset_fetchers, query) = (Arc::clone(&self.offset_fetchers), self.query());
        let (group, partitions) = (group.clone(), partitions.to_vec());
        self.ask("kafka-committed", move || {
            offset_fetchers.committed(&group, &partitions, &query)
        })
        .await
    }

    /// A name that nobody else has.
    fn random_name(&self) -> String {
        let mut entropy = self.entropy.lock();
        format!("{:016x}{:016x}", entropy.next_u64(), entropy.next_u64())
    }
}

/// Logs of this process whose clients have not ended.
static OPEN: (std::sync::Mutex<usize>, Condvar) = (std::sync::Mutex::new(0), Condvar::new());

/// Counts in [`OPEN`] for as long as it lives.
struct OpenClients;

impl OpenClients {
    fn new() -> Self {
        *OPEN.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for OpenClients {
    fn drop(&mut self) {
        *OPEN.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        OPEN.1.notify_all();
    }
}

/// Waits at most so long until the clients of all Kafka logs have ended, and says whether they have.
///
/// A program calls it last, after it dropped its logs: an open one is waited for as well. TLS cleans up when a process exits, and a client that still runs then
/// crashes it. It blocks, and calling it twice does no harm.
pub fn wait_until_closed(limit: Duration) -> bool {
    let open = OPEN.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = OPEN.1.wait_timeout_while(open, limit, |open| *open > 0);
    let (open, _) = waited.unwrap_or_else(PoisonError::into_inner);
    *open == 0
}

/// All clients of a log.
type Clients = (
    Arc<KafkaCatalog>,
    Arc<Producers>,
    Arc<KafkaReaders>,
    Arc<OffsetFetchers>,
);

/// Ends the clients of a log on a thread of their own, once it is dropped: that may take its time, or
/// hang, and whoever drops a log may be an async thread.
fn end_clients(ended: &mpsc::Receiver<Clients>) {
    let Ok((catalog, producers, readers, offset_fetchers)) = ended.recv() else {
        return;
    };
    // The thread that drops a log has its own share of these for a moment longer.
    let is_last = || {
        Arc::strong_count(&catalog) == 1
            && Arc::strong_count(&producers) == 1
            && Arc::strong_count(&readers) == 1
            && Arc::strong_count(&offset_fetchers) == 1
    };
    for _ in 0..100 {
        if is_last() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for KafkaInner {
    fn drop(&mut self) {
        let clients = (
            Arc::clone(&self.catalog),
            Arc::clone(&self.producers),
            Arc::clone(&self.readers),
            Arc::clone(&self.offset_fetchers),
        );
        // Without the thread they end here.
        drop(self.end.send(clients));
    }
}

impl fmt::Debug for KafkaLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaLog")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl Log for KafkaLog {
    fn cluster(&self) -> &str {
        &self.inner.config.cluster
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(self.inner.create_topic(topic, config))
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(self.inner.topics())
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        Box::pin(self.inner.describe(topic))
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(self.inner.append(records))
    }

    fn deliver(&self, records: Vec<Append>) -> LogFuture<'_, Vec<Result<(), LogError>>> {
        Box::pin(self.inner.deliver(records))
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        Box::pin(self.inner.read(read))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        Box::pin(self.inner.offset_at(at, timestamp_ms))
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        Box::pin(self.inner.delete_before(at, offset))
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        Box::pin(async move {
            let found = self.inner.committed(group, partitions).await?;
            Ok(found
                .into_iter()
                .map(|found| found.map(|(_, committed)| committed))
                .collect())
        })
    }

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(asked.len());
            for (group, topic) in asked {
                found.push(recount::snapshot(self, group, topic).await?);
            }
            Ok(found)
        })
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        Box::pin(self.inner.groups())
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(self.inner.forget_group(group))
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        Box::pin(async move {
            let session = session::join(&self.inner, join).await?;
            Ok(Arc::new(session) as Arc<dyn Session>)
        })
    }
}
