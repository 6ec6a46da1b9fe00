//! The embedded storage: hands over to its threads, and answers from memory what it can.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::books::Books;
use tidegate_core::env::{Env, Task};
use tidegate_core::{GroupName, Offset, Topic};
use tokio::sync::{mpsc, oneshot};

use super::administration;
use super::audit::{DirectoryAudit, TopicAudit};
use super::config::EmbeddedConfig;
use super::context::{EmbeddedContext, LogStatus, RefusalReason};
use super::open::{OpenedLog, open};
use super::pending::{encode, place, unplaced};
use super::reader::{Located, SegmentReader, locate};
use super::recover;
use super::state::UnknownLoss;
use super::telemetry;
use super::threads::{
    MaintenanceCommand, MaintenanceTask, ReplySender, ThreadCall, WriterCommand, call, run_auditor,
    run_maintenance, run_reader, run_writer,
};
use super::topic_books::{TopicBooks, group_snapshot, topic_books};
use super::writer::JournalWriter;
use crate::admin::{AdminMode, GroupSeek, PartitionSeek, RemovedGroup, RemovedTopic, TopicRemoval};
use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::local::{RecordStorage, Write};
use crate::port::{Batch, Committed, LogFuture, Read, RecordPosition};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

/// Threads that read segments.
const READERS: usize = 2;
/// How often a view looks for what others add.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Requests that may wait for a thread; later callers wait before they send.
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
    context: Arc<EmbeddedContext>,
    cluster: String,
    channels: Mutex<Option<Channels>>,
    threads: Mutex<Vec<Task>>,
    /// Whether somebody else may write to the directory, of which this is a view.
    is_view: bool,
}

/// The channels to the threads.
#[derive(Clone)]
struct Channels {
    writer_commands: mpsc::UnboundedSender<WriterCommand>,
    maintenance_commands: mpsc::Sender<MaintenanceCommand>,
    readers: Vec<mpsc::Sender<ThreadCall<SegmentReader>>>,
    audits: mpsc::Sender<ReplySender<DirectoryAudit>>,
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
        let OpenedLog {
            context,
            writer,
            maintenance,
            lock,
        } = opened;
        let (writer_commands, to_writer) = mpsc::unbounded_channel();
        let (maintenance_commands, asked) = mpsc::channel(WAITING);
        let (removals, removing) = mpsc::channel(1);
        let (drained, is_drained) = oneshot::channel();
        let spawn = &env.spawn;
        let write = run_writer(writer, to_writer, removing, drained);
        let keep = run_maintenance(maintenance, asked, removals, is_drained, lock);
        let mut threads = vec![
            spawn.spawn_thread("tidegate-journal", Box::pin(write)),
            spawn.spawn_thread("tidegate-maint", Box::pin(keep)),
        ];
        let (to_writer, to_maintenance) = (writer_commands, maintenance_commands);
        let channels = start_readers(env, &context, &mut threads, to_writer, to_maintenance);
        Ok(Self::new(context, channels, threads, false))
    }

    /// Looks at a directory without its lock, which somebody else may hold; none where there is no log.
    /// Nothing is ever written: calls that would change something are refused as [`LogError::Closed`]. Those
    /// who wait for new records see later commits within half a second.
    ///
    /// # Errors
    /// [`LogError::Format`] of another version or without its manifest, [`LogError::Disk`].
    pub fn look(env: &Env, config: EmbeddedConfig) -> Result<Option<Self>, LogError> {
        let Some(found) = recover::look(&*env.disk, &config.dir)? else {
            return Ok(None);
        };
        let (disk, clock) = (Arc::clone(&env.disk), Arc::clone(&env.clock));
        let status = LogStatus::default();
        let context = EmbeddedContext::new(config, disk, clock, found.state, status, Vec::new());
        let context = Arc::new(context);
        let mut threads = Vec::new();
        // Nobody listens there.
        let (nobody, nobody_else) = (mpsc::unbounded_channel().0, mpsc::channel(1).0);
        let channels = start_readers(env, &context, &mut threads, nobody, nobody_else);
        Ok(Some(Self::new(context, channels, threads, true)))
    }

    fn new(
        context: Arc<EmbeddedContext>,
        channels: Channels,
        threads: Vec<Task>,
        is_view: bool,
    ) -> Self {
        let cluster = context.state().cluster.clone();
        Self {
            context,
            cluster,
            channels: Mutex::new(Some(channels)),
            threads: Mutex::new(threads),
            is_view,
        }
    }

    /// Closes the log. Returns when everything that was handed over is done, a last checkpoint is
    /// written and the lock is free. If canceled, that goes on. Closing twice changes nothing.
    pub async fn close(&self) {
        self.context.status().is_closed = true;
        let channels = lock(&self.channels).take();
        drop(channels);
        self.context.ended.notify_waiters();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            thread.join().await;
        }
    }

    /// Does at once what the maintenance thread does in its time: retention, compaction, a checkpoint, the
    /// removal of files. Returns when it is done. Calling twice changes nothing more.
    ///
    /// # Errors
    /// [`LogError::Closed`], [`LogError::Stopped`], [`LogError::Disk`].
    pub async fn tidy(&self) -> Result<(), LogError> {
        self.maintain(MaintenanceTask::Tidy).await
    }

    /// Makes or changes topics, see [`Log::create_topic`](crate::Log::create_topic). New ones are in a
    /// checkpoint when it returns, all of them in one: damage of the journal cannot take their creation.
    ///
    /// # Errors
    /// As [`Log::create_topic`](crate::Log::create_topic); the topics before the refused one are made.
    pub async fn create_topics(&self, topics: &[(Topic, TopicConfig)]) -> Result<(), LogError> {
        // One that was removed is in the checkpoint as such.
        let is_removed = {
            let state = self.context.state();
            let mut names = topics.iter().map(|(topic, _)| topic);
            names.any(|topic| {
                state
                    .known_topic(topic)
                    .is_some_and(|(_, found)| found.is_removed)
            })
        };
        for (topic, config) in topics {
            let (topic, config) = (topic.clone(), config.clone());
            self.call_writer(move |writer| writer.create_topic(&topic, config))
                .await?;
        }
        let mut names = topics.iter().map(|(topic, _)| topic);
        match !is_removed && names.all(|topic| self.context.is_in_checkpoint(topic)) {
            true => Ok(()),
            false => self.maintain(MaintenanceTask::Checkpoint).await,
        }
    }

    /// Recounts every topic from its records at one cut and compares that with the books. Nothing is
    /// removed meanwhile; appends and reads go on. Several at a time are done one after the other.
    ///
    /// # Errors
    /// [`LogError::Closed`], [`LogError::Disk`].
    pub async fn audit(&self) -> Result<Vec<TopicAudit>, LogError> {
        Ok(self.audit_files().await?.topics)
    }

    /// The same with the damage of files that is no missing record.
    ///
    /// # Errors
    /// [`LogError::Closed`], [`LogError::Disk`], [`LogError::Format`] if no manifest can be used any more.
    pub async fn audit_files(&self) -> Result<DirectoryAudit, LogError> {
        let (answer, done) = oneshot::channel();
        let audits = self.channels()?.audits;
        self.sent(audits.send(answer).await)?;
        self.wait(done).await
    }

    /// The books of every topic and of every group on it, at one cut and from memory.
    #[must_use]
    pub fn books(&self) -> Vec<TopicBooks> {
        topic_books(&self.context.state())
    }

    /// The books of the groups that were forgotten, by topic.
    #[must_use]
    pub fn forgotten(&self) -> Vec<(Topic, Books)> {
        administration::forgotten(&self.context.state())
    }

    /// Moves a group that has no members, see [`LogAdmin::seek_group`](crate::LogAdmin::seek_group).
    ///
    /// # Errors
    /// As [`LogAdmin::seek_group`](crate::LogAdmin::seek_group).
    pub async fn seek_group(&self, seek: GroupSeek) -> Result<Vec<PartitionSeek>, LogError> {
        self.call_writer(move |writer| writer.seek(&seek)).await
    }

    /// Forgets a group that has no members, see [`LogAdmin::remove_group`](crate::LogAdmin::remove_group).
    ///
    /// # Errors
    /// As [`LogAdmin::remove_group`](crate::LogAdmin::remove_group).
    pub async fn remove_group(
        &self,
        group: &GroupName,
        mode: AdminMode,
    ) -> Result<RemovedGroup, LogError> {
        let group = group.clone();
        self.call_writer(move |writer| writer.forget(&group, mode))
            .await
    }

    /// Removes a topic, see [`LogAdmin::remove_topic`](crate::LogAdmin::remove_topic). Its files are gone when it
    /// returns, unless somebody reads them just then.
    ///
    /// # Errors
    /// As [`LogAdmin::remove_topic`](crate::LogAdmin::remove_topic).
    pub async fn remove_topic(&self, removal: TopicRemoval) -> Result<RemovedTopic, LogError> {
        let mode = removal.mode;
        let removed = self.call_writer(move |writer| writer.remove_topic(&removal));
        let removed = removed.await?;
        if mode == AdminMode::Apply {
            self.maintain(MaintenanceTask::Tidy).await?;
        }
        Ok(removed)
    }

    /// The loss with the journal that is in no books, until `log repair` takes note of it.
    #[must_use]
    pub fn unknown_loss(&self) -> Option<UnknownLoss> {
        self.context.state().unknown_loss()
    }

    /// The first damage that a read or an audit of this process came upon, or the loss that the start found.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        let found = self.context.status().damage.clone();
        found.or_else(|| Some(format!("journal: {}", self.unknown_loss()?)))
    }

    /// Bytes that the records of all topics take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.context.state().used
    }

    /// Why the log takes nothing any more; none while it does.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        self.context.status().why(RefusalReason::Stopped).cloned()
    }

    /// Why appends are refused for want of room, on the disk or by `max_size`; none while they are
    /// taken. Reads go on, commits do as long as they can, and what makes room is tried again.
    #[must_use]
    pub fn no_room(&self) -> Option<String> {
        self.context.status().no_room()
    }

    fn channels(&self) -> Result<Channels, LogError> {
        lock(&self.channels).clone().ok_or(LogError::Closed)
    }

    /// The error of a thread that is gone.
    fn sent<T>(&self, sent: Result<(), mpsc::error::SendError<T>>) -> Result<(), LogError> {
        sent.or_else(|_| self.context.check_open().and(Err(LogError::Closed)))
    }

    async fn wait<T>(&self, done: oneshot::Receiver<Result<T, LogError>>) -> Result<T, LogError> {
        match done.await {
            Ok(result) => result,
            // The thread ended without an answer: by a panic, or with its node.
            Err(_) => Err(LogError::OutcomeUnknown {
                doing: "a write",
                why: "the thread that does it has ended".to_owned(),
            }),
        }
    }

    /// Has the writer make a call.
    async fn call_writer<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut JournalWriter) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let (call, done) = call(act);
        let writer_commands = self.channels()?.writer_commands;
        self.sent(writer_commands.send(WriterCommand::Call(call)))?;
        self.wait(done).await
    }

    /// Has the reader of a partition make a call.
    async fn call_reader<T: Send + 'static>(
        &self,
        at: &TopicPartition,
        act: impl FnOnce(&mut SegmentReader) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let (call, done) = call(act);
        let readers = self.channels()?.readers;
        let which = usize::try_from(at.partition.0).unwrap_or(0) % READERS;
        self.sent(readers[which].send(call).await)?;
        self.wait(done).await
    }

    /// Has the maintenance thread do something.
    async fn maintain(&self, task: MaintenanceTask) -> Result<(), LogError> {
        let (answer, done) = oneshot::channel();
        let maintenance_commands = self.channels()?.maintenance_commands;
        self.sent(maintenance_commands.send((task, answer)).await)?;
        self.wait(done).await
    }

    async fn write_now(&self, write: Write) -> Result<Vec<RecordPosition>, LogError> {
        if write.appends.is_empty() && write.offsets.is_empty() {
            return Ok(Vec::new());
        }
        self.context.check_open()?;
        let since = self.context.now();
        let config = &self.context.config;
        let catalog = self.context.catalog();
        let (pending, placing) = encode(&write, &catalog, config, self.context.clock.now_ms())?;
        let writer_commands = self.channels()?.writer_commands;
        {
            let mut status = self.context.status();
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
        let command = WriterCommand::Write {
            pending,
            since,
            answer,
        };
        self.sent(writer_commands.send(command))?;
        let mut positions = unplaced(write.appends, &placing);
        let bases = self.wait(done).await?;
        place(&mut positions, &placing, &bases);
        Ok(positions)
    }

    async fn read_now(&self, read: &Read) -> Result<Batch, LogError> {
        let found = match locate(&self.context, read) {
            Ok(Located::Batch(batch)) => Ok(batch),
            Ok(Located::Segment { .. }) => {
                let (at, read) = (&read.at, read.clone());
                self.call_reader(at, move |reader| reader.read(&read)).await
            }
            Err(error) => Err(error),
        };
        if let Err(error @ LogError::Damaged { .. }) = &found {
            self.context.note_damage(&error.to_string());
        }
        found
    }

    /// Waits for records that somebody else adds: the files tell.
    async fn watch_for_records(&self, at: &TopicPartition, from: Offset) -> Result<(), LogError> {
        while self.context.state().at(at)?.end <= from.0 {
            self.context.check_open()?;
            self.context.clock.sleep(LOOK_AGAIN).await;
            let context = Arc::clone(&self.context);
            self.call_reader(at, move |_| look_again(&context)).await?;
        }
        Ok(())
    }

    async fn wait_for_records(&self, at: &TopicPartition, from: Offset) -> Result<(), LogError> {
        if self.is_view {
            return self.watch_for_records(at, from).await;
        }
        loop {
            let appended = Arc::clone(&self.context.state().at(at)?.appended);
            let mut appended = pin!(appended.notified());
            let mut ended = pin!(self.context.ended.notified());
            // From here on no notification is missed; so what is true now is looked at once more.
            appended.as_mut().enable();
            ended.as_mut().enable();
            if self.context.state().at(at)?.end > from.0 {
                return Ok(());
            }
            self.context.check_open()?;
            tokio::select! {
                biased;
                () = appended => {}
                () = ended => {}
            }
        }
    }
}

/// Starts those who read, and gives the channels to all threads.
fn start_readers(
    env: &Env,
    context: &Arc<EmbeddedContext>,
    threads: &mut Vec<Task>,
    writer_commands: mpsc::UnboundedSender<WriterCommand>,
    maintenance_commands: mpsc::Sender<MaintenanceCommand>,
) -> Channels {
    let spawn = &env.spawn;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let (requests, asked) = mpsc::channel(WAITING);
        let reader = SegmentReader::new(Arc::clone(context));
        let read = run_reader(reader, asked);
        threads.push(spawn.spawn_thread("tidegate-reader", Box::pin(read)));
        readers.push(requests);
    }
    let (audits, asked) = mpsc::channel(WAITING);
    let audit = run_auditor(Arc::clone(context), asked);
    threads.push(spawn.spawn_thread("tidegate-audit", Box::pin(audit)));
    Channels {
        writer_commands,
        maintenance_commands,
        readers,
        audits,
    }
}

/// Takes in what was committed since the last look.
fn look_again(context: &EmbeddedContext) -> Result<(), LogError> {
    let (disk, dir) = (&*context.disk, &context.config.dir);
    let known = context.state().clone();
    if recover::has_grown(disk, dir, &known)?
        && let Some(found) = recover::look(disk, dir)?
    {
        *context.state() = found.state;
        context.renew_catalog();
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RecordStorage for EmbeddedStorage {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(async move {
            let topics = [(topic.clone(), config)];
            self.create_topics(&topics).await
        })
    }

    fn topics(&self) -> Vec<Topic> {
        self.context.state().numbers.keys().cloned().collect()
    }

    fn describe(&self, topic: &Topic) -> Option<TopicDescription> {
        self.context.state().describe(topic)
    }

    fn write(&self, write: Write) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(self.write_now(write))
    }

    fn read<'a>(&'a self, read: &'a Read) -> LogFuture<'a, Batch> {
        Box::pin(self.read_now(read))
    }

    fn wait_for<'a>(&'a self, at: &'a TopicPartition, from: Offset) -> LogFuture<'a, ()> {
        Box::pin(self.wait_for_records(at, from))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        let partition = at.clone();
        let find = move |reader: &mut SegmentReader| reader.offset_at(&partition, timestamp_ms);
        Box::pin(self.call_reader(at, find))
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        Box::pin(async move {
            let task = MaintenanceTask::DeleteBefore(at.clone(), offset);
            self.maintain(task).await?;
            Ok(Offset(self.context.state().at(at)?.start))
        })
    }

    fn groups(&self) -> Vec<GroupName> {
        self.context.state().groups.keys().cloned().collect()
    }

    fn committed(&self, group: &GroupName, at: &TopicPartition) -> Option<Committed> {
        let state = self.context.state();
        let (topic, partition) = state.find(at)?;
        let progress = state.groups.get(group)?.get(&topic)?;
        progress.committed.get(partition as usize)?.clone()
    }

    fn register_group<'a>(
        &'a self,
        group: &'a GroupName,
        topics: &'a [Topic],
    ) -> LogFuture<'a, ()> {
        Box::pin(async move {
            let catalog = self.context.catalog();
            let numbers = topics.iter().map(|topic| Ok(catalog.topic(topic)?.0));
            let topics = numbers.collect::<Result<_, LogError>>()?;
            let group = group.clone();
            self.call_writer(move |writer| writer.register(group, topics))
                .await
        })
    }

    fn skip_to_end<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, ()> {
        Box::pin(async move {
            let catalog = self.context.catalog();
            let numbers = partitions.iter().map(|at| catalog.find(at));
            let partitions: Vec<_> = numbers.collect::<Result<_, _>>()?;
            let group = group.clone();
            self.call_writer(move |writer| writer.skip(&group, &partitions))
                .await
        })
    }

    fn group_books(&self, asked: &[(GroupName, Topic)]) -> Vec<GroupSnapshot> {
        let state = self.context.state();
        let asked = asked.iter();
        asked
            .map(|(group, topic)| group_snapshot(&state, group, topic))
            .collect()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(async move {
            match self.remove_group(group, AdminMode::Apply).await {
                Ok(_) | Err(LogError::UnknownGroup { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}

impl fmt::Debug for EmbeddedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddedStorage({})", self.context.config.dir.display())
    }
}
