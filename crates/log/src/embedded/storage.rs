//! The embedded storage: hands over to its threads, and answers from memory what it can.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::env::{Env, Task};
use tidegate_core::{GroupName, Offset, Topic};
use tokio::sync::{mpsc, oneshot};

use super::audit::Audited;
use super::config::EmbeddedConfig;
use super::hub::{Hub, Refusing};
use super::kept::{Kept, kept};
use super::open::{Opened, open};
use super::pending::{encode, place, unplaced};
use super::reader::{Reader, Source, from_memory, locate, unknown};
use super::state::UnknownLoss;
use super::telemetry;
use super::threads::{
    Answer, Chore, Order, Question, run_auditor, run_keeper, run_reader, run_writer,
};
use crate::error::LogError;
use crate::local::{RecordStorage, Write};
use crate::port::{Batch, Call, Committed, Position, Read};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

/// Threads that read segments.
const READERS: usize = 2;
/// Questions that may wait for a thread; more wait where they are asked.
const WAITING: usize = 64;

/// A directory of topics, as the records' side of a local log.
///
/// Four kinds of threads work on it: one writes the journal, one fills segments and removes what
/// may go, some read, one counts. Dropping it lets them finish what was handed over; [`close`](Self::close)
/// also waits for that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # runtime.block_on(async {
/// use tidegate_core::{Offset, Topic, env::Env};
/// use tidegate_log::local::{RecordStorage, Write};
/// use tidegate_log::{Append, EmbeddedConfig, EmbeddedStorage, Read, Record, TopicConfig, TopicPartition};
///
/// let config = EmbeddedConfig { journal_size: 1 << 20, ..EmbeddedConfig::new(dir.path()) };
/// let storage = EmbeddedStorage::open(&Env::system(), config)?;
/// let orders = Topic::new("orders")?;
/// storage.create_topic(&orders, TopicConfig::new(1)).await?;
/// let append = Append::new(orders.clone(), Record::new("placed")).partition(0);
/// let written = storage.write(Write { appends: vec![append], offsets: vec![] }).await?;
/// assert_eq!(written[0].offset, Offset(0));
/// let read = Read::new(TopicPartition::new(orders, 0), Offset(0));
/// assert_eq!(storage.read(&read).await?.records.len(), 1);
/// storage.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
pub struct EmbeddedStorage {
    hub: Arc<Hub>,
    cluster: String,
    lines: Mutex<Option<Lines>>,
    threads: Mutex<Vec<Task>>,
}

/// Where to hand things over.
#[derive(Clone)]
struct Lines {
    orders: mpsc::UnboundedSender<Order>,
    chores: mpsc::Sender<Chore>,
    readers: Vec<mpsc::Sender<Question>>,
    audits: mpsc::Sender<Answer<Vec<Audited>>>,
}

impl EmbeddedStorage {
    /// Opens the directory, makes it whole after a crash, and starts the threads.
    ///
    /// Opening it twice is refused while the first one holds its lock.
    ///
    /// # Errors
    /// [`LogError::Locked`] by another process, [`LogError::Format`] of another version or without
    /// its manifest, [`LogError::Disk`].
    pub fn open(env: &Env, config: EmbeddedConfig) -> Result<Self, LogError> {
        let mut entropy = env.entropy.fork("embedded log");
        let opened = open(
            Arc::clone(&env.disk),
            Arc::clone(&env.clock),
            config,
            entropy.next_u64(),
        )?;
        let Opened {
            hub,
            writer,
            keeper,
            lock,
        } = opened;
        let (orders, ordered) = mpsc::unbounded_channel();
        let (chores, asked) = mpsc::channel(WAITING);
        let (removals, removing) = mpsc::channel(1);
        let (drained, is_drained) = oneshot::channel();
        let spawn = &env.spawn;
        let write = run_writer(writer, ordered, removing, drained);
        let keep = run_keeper(keeper, asked, removals, is_drained, lock);
        let mut threads = vec![
            spawn.spawn_thread("tidegate-journal", Box::pin(write)),
            spawn.spawn_thread("tidegate-keeper", Box::pin(keep)),
        ];
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let (questions, asked) = mpsc::channel(WAITING);
            let reader = Reader::new(Arc::clone(&hub));
            let read = run_reader(reader, asked);
            threads.push(spawn.spawn_thread("tidegate-reader", Box::pin(read)));
            readers.push(questions);
        }
        let (audits, asked) = mpsc::channel(WAITING);
        let audit = run_auditor(Arc::clone(&hub), asked);
        threads.push(spawn.spawn_thread("tidegate-audit", Box::pin(audit)));
        let cluster = hub.state().cluster.clone();
        Ok(Self {
            hub,
            cluster,
            lines: Mutex::new(Some(Lines {
                orders,
                chores,
                readers,
                audits,
            })),
            threads: Mutex::new(threads),
        })
    }

    /// Closes the log. Returns when everything that was handed over is done, a last checkpoint is
    /// written and the lock is free. If canceled, that goes on. Closing twice changes nothing.
    pub async fn close(&self) {
        self.hub.status().is_closed = true;
        let lines = lock(&self.lines).take();
        drop(lines);
        self.hub.end_bell.notify_waiters();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            thread.join().await;
        }
    }

    /// Does at once what the keeper does in its time: retention, compaction, a checkpoint, the
    /// removal of files. Returns when it is done. Calling twice changes nothing more.
    ///
    /// # Errors
    /// [`LogError::Closed`], [`LogError::Stopped`], [`LogError::Disk`].
    pub async fn tidy(&self) -> Result<(), LogError> {
        let (answer, done) = oneshot::channel();
        let chores = self.lines()?.chores;
        self.tell(chores.send(Chore::Tidy { answer }).await)?;
        self.wait(done).await
    }

    /// Makes or changes topics, see [`Log::create_topic`](crate::Log::create_topic). New ones are in a
    /// checkpoint when it returns, all of them in one: damage of the journal cannot take their creation.
    ///
    /// # Errors
    /// As [`Log::create_topic`](crate::Log::create_topic); the topics before the refused one are made.
    pub async fn create_topics(&self, topics: &[(Topic, TopicConfig)]) -> Result<(), LogError> {
        for (topic, config) in topics {
            let (topic, config) = (topic.clone(), config.clone());
            self.order(|answer| Order::CreateTopic {
                topic,
                config,
                answer,
            })
            .await?;
        }
        if topics
            .iter()
            .all(|(topic, _)| self.hub.is_in_checkpoint(topic))
        {
            return Ok(());
        }
        let (answer, done) = oneshot::channel();
        let chores = self.lines()?.chores;
        self.tell(chores.send(Chore::Checkpoint { answer }).await)?;
        self.wait(done).await
    }

    /// Recounts every topic from its records at one cut and compares that with the books. Nothing is
    /// removed meanwhile; appends and reads go on. Several at a time are done one after the other.
    ///
    /// # Errors
    /// [`LogError::Closed`], [`LogError::Disk`].
    pub async fn audit(&self) -> Result<Vec<Audited>, LogError> {
        let (answer, done) = oneshot::channel();
        let audits = self.lines()?.audits;
        self.tell(audits.send(answer).await)?;
        self.wait(done).await
    }

    /// The books of every topic and of every group on it, at one cut and from memory.
    #[must_use]
    pub fn books(&self) -> Vec<Kept> {
        kept(&self.hub.state())
    }

    /// What was lost with the journal and is in no books, until `log repair` takes note of it.
    #[must_use]
    pub fn unknown_loss(&self) -> Option<UnknownLoss> {
        self.hub.state().unknown_loss()
    }

    /// Bytes that the records of all topics take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.hub.state().used
    }

    /// Why the log takes nothing any more; none while it does.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        self.hub.status().why(Refusing::Stopped).cloned()
    }

    /// Why appends are refused for want of room, on the disk or by `max_size`; none while they are
    /// taken. Reads go on, commits do as long as they can, and what makes room is tried again.
    #[must_use]
    pub fn no_room(&self) -> Option<String> {
        self.hub.status().no_room()
    }

    fn lines(&self) -> Result<Lines, LogError> {
        lock(&self.lines).clone().ok_or(LogError::Closed)
    }

    /// The error of a thread that is gone.
    fn tell<T>(&self, sent: Result<(), mpsc::error::SendError<T>>) -> Result<(), LogError> {
        sent.map_err(|_| self.gone())
    }

    fn gone(&self) -> LogError {
        self.hub.check_open().err().unwrap_or(LogError::Closed)
    }

    async fn wait<T>(&self, done: oneshot::Receiver<Result<T, LogError>>) -> Result<T, LogError> {
        match done.await {
            Ok(result) => result,
            // The thread ended without an answer: by a panic, or with its node.
            Err(_) => Err(LogError::OutcomeUnknown {
                doing: "a write",
                why: "the thread that was to answer has ended".to_owned(),
            }),
        }
    }

    /// Hands an order to the writer, at once.
    async fn order<T>(&self, make: impl FnOnce(Answer<T>) -> Order) -> Result<T, LogError> {
        let (answer, done) = oneshot::channel();
        let sent = self.lines()?.orders.send(make(answer));
        self.tell(sent)?;
        self.wait(done).await
    }

    async fn ask<T>(
        &self,
        which: usize,
        question: Question,
        done: oneshot::Receiver<Result<T, LogError>>,
    ) -> Result<T, LogError> {
        let readers = self.lines()?.readers;
        let reader = &readers[which % READERS];
        self.tell(reader.send(question).await)?;
        self.wait(done).await
    }

    async fn write_now(&self, write: Write) -> Result<Vec<Position>, LogError> {
        if write.appends.is_empty() && write.offsets.is_empty() {
            return Ok(Vec::new());
        }
        self.hub.check_open()?;
        let since = self.hub.now();
        let config = &self.hub.config;
        let catalog = self.hub.catalog();
        let (pending, placing) = encode(&write, &catalog, config, self.hub.clock.now_ms())?;
        let orders = self.lines()?.orders;
        {
            let mut status = self.hub.status();
            let queued = status.queued + pending.bytes.len() as u64;
            if queued > config.max_queued_size && status.queued > 0 {
                return Err(LogError::Overloaded {
                    queued: status.queued,
                    limit: config.max_queued_size,
                });
            }
            status.queued = queued;
            telemetry::queued(queued);
        }
        let (answer, done) = oneshot::channel();
        let order = Order::Write {
            pending,
            since,
            answer,
        };
        self.tell(orders.send(order))?;
        let mut positions = unplaced(write.appends, &placing);
        let bases = self.wait(done).await?;
        place(&mut positions, &placing, &bases);
        Ok(positions)
    }

    fn numbers(&self, topics: &[Topic]) -> Result<Vec<u32>, LogError> {
        let catalog = self.hub.catalog();
        let numbers = topics.iter().map(|topic| Ok(catalog.topic(topic)?.0));
        numbers.collect()
    }

    async fn read_now(&self, read: &Read) -> Result<Batch, LogError> {
        let (source, lost) = locate(&self.hub.state(), read)?;
        match source {
            Source::Nothing(end) => Ok(Batch {
                at: read.at.clone(),
                records: Vec::new(),
                next: Offset(end),
            }),
            Source::Fresh(fresh) => from_memory(read, &fresh, lost),
            Source::Segment { .. } => {
                let (answer, done) = oneshot::channel();
                let which = usize::try_from(read.at.partition.0).unwrap_or(0);
                let read = read.clone();
                self.ask(which, Question::Read { read, answer }, done).await
            }
        }
    }

    async fn wait_for_records(&self, at: &TopicPartition, from: Offset) -> Result<(), LogError> {
        loop {
            let bell = {
                let state = self.hub.state();
                let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
                let Some(partition) = found else {
                    return Err(unknown(&state, at));
                };
                Arc::clone(&partition.bell)
            };
            let mut rung = pin!(bell.notified());
            let mut ended = pin!(self.hub.end_bell.notified());
            // From here on no ring is missed; so what is true now is looked at once more.
            rung.as_mut().enable();
            ended.as_mut().enable();
            let end = {
                let state = self.hub.state();
                let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
                found.map_or(i64::MAX, |partition| partition.end)
            };
            if end > from.0 {
                return Ok(());
            }
            self.hub.check_open()?;
            tokio::select! {
                biased;
                () = rung => {}
                () = ended => {}
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RecordStorage for EmbeddedStorage {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> Call<'a, ()> {
        Box::pin(async move {
            let topics = [(topic.clone(), config)];
            self.create_topics(&topics).await
        })
    }

    fn topics(&self) -> Vec<Topic> {
        self.hub.state().numbers.keys().cloned().collect()
    }

    fn describe(&self, topic: &Topic) -> Option<TopicDescription> {
        self.hub.state().describe(topic)
    }

    fn write(&self, write: Write) -> Call<'_, Vec<Position>> {
        Box::pin(self.write_now(write))
    }

    fn read<'a>(&'a self, read: &'a Read) -> Call<'a, Batch> {
        Box::pin(self.read_now(read))
    }

    fn wait_for<'a>(&'a self, at: &'a TopicPartition, from: Offset) -> Call<'a, ()> {
        Box::pin(self.wait_for_records(at, from))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> Call<'a, Offset> {
        Box::pin(async move {
            let (answer, done) = oneshot::channel();
            let which = usize::try_from(at.partition.0).unwrap_or(0);
            let question = Question::OffsetAt {
                at: at.clone(),
                timestamp_ms,
                answer,
            };
            self.ask(which, question, done).await
        })
    }

    fn delete_before<'a>(&'a self, at: &'a TopicPartition, offset: Offset) -> Call<'a, Offset> {
        Box::pin(async move {
            let (answer, done) = oneshot::channel();
            let chores = self.lines()?.chores;
            let at = at.clone();
            let chore = Chore::DeleteBefore { at, offset, answer };
            self.tell(chores.send(chore).await)?;
            self.wait(done).await
        })
    }

    fn groups(&self) -> Vec<GroupName> {
        self.hub.state().groups.keys().cloned().collect()
    }

    fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed> {
        let state = self.hub.state();
        let (topic, partition) = state.find(at)?;
        let reading = state.groups.get(group)?.get(&topic)?;
        reading.committed.get(partition as usize)?.clone()
    }

    fn register_group<'a>(&'a self, group: &'a GroupName, topics: &'a [Topic]) -> Call<'a, ()> {
        Box::pin(async move {
            let topics = self.numbers(topics)?;
            let group = group.clone();
            self.order(|answer| Order::Register {
                group,
                topics,
                answer,
            })
            .await
        })
    }

    fn skip_to_end<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> Call<'a, ()> {
        Box::pin(async move {
            let catalog = self.hub.catalog();
            let numbers = partitions.iter().map(|at| catalog.find(at));
            let partitions = numbers.collect::<Result<_, _>>()?;
            let group = group.clone();
            self.order(|answer| Order::Skip {
                group,
                partitions,
                answer,
            })
            .await
        })
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> Call<'a, ()> {
        Box::pin(self.order(|answer| Order::Forget {
            group: group.clone(),
            answer,
        }))
    }
}

impl fmt::Debug for EmbeddedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddedStorage({})", self.hub.config.dir.display())
    }
}
