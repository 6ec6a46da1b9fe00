//! The loop of a shard: it carries out the effects of its [`Machine`], and hands over what happens.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Spawn};
use tidegate_core::{Code, Failure, FailureClass, GroupName, Mutex, Offset, Topic};
use tidegate_log::{
    Assignment, Commit, Fence, Log, LogError, Read, RecordPosition, Session, SessionEvent,
    TopicPartition,
};
use tokio::sync::mpsc;

use crate::chain::TaskTime;
use crate::machine::{Effect, Machine, MachineCounts, MachineInput, TaskStatus};
use crate::planted_bugs::{PlantedStageBug, is};
use crate::recovery::{self, InputCommitted, RecoveredTask, RecoveryError, RecoveryStart, Replay};
use crate::state::backend::{MapBackend, StateBackend};

/// The wait before asking again what is committed, or reading again what did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The part of a stage that a recovery needs.
#[derive(Debug, Clone)]
pub(crate) struct RecoverySettings {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) changelog: Topic,
    pub(crate) partitions: u32,
    pub(crate) is_batch: bool,
}

/// A look at the tasks of a shard, between two of its steps.
pub(crate) type MachineLook = Box<dyn FnOnce(&Machine, TaskTime) + Send>;

/// A question to a running shard.
pub(crate) enum ShardQuestion {
    /// Looks at its tasks.
    Look(MachineLook),
    /// Finish and end.
    Drain,
}

impl std::fmt::Debug for ShardQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardQuestion")
    }
}

/// The last news of a shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShardStatus {
    pub(crate) counts: MachineCounts,
    pub(crate) tasks: Vec<TaskStatus>,
}

/// A shard, ready to run.
pub(crate) struct Shard {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) group: GroupName,
    pub(crate) machine: Machine,
    pub(crate) recovery: RecoverySettings,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) questions: mpsc::UnboundedReceiver<ShardQuestion>,
    pub(crate) status: Arc<Mutex<ShardStatus>>,
    pub(crate) on_news: OnNews,
}

/// Told after each committed epoch: counts, values of declared metrics, bytes of state.
pub(crate) type OnNews = Arc<dyn Fn(MachineCounts, Vec<(usize, String)>, u64) + Send + Sync>;

type CommitFuture =
    Pin<Box<dyn Future<Output = Result<Option<Vec<RecordPosition>>, LogError>> + Send>>;
type Recovered = (i32, Fence, Result<RecoveredTask, Failure>);

/// The wall time at the start and the time since then: it follows no jump of the wall clock.
struct TaskClock {
    clock: Arc<dyn Clock>,
    start_ms: i64,
    start: Duration,
}

impl TaskClock {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            start_ms: i64::try_from(clock.now_ms()).unwrap_or(0),
            start: clock.elapsed(),
        }
    }

    fn now_ms(&self) -> i64 {
        let passed = self.clock.elapsed().saturating_sub(self.start);
        let passed = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        self.start_ms.saturating_add(passed)
    }
}

impl Shard {
    /// Runs until the machine is drained or fails.
    ///
    /// # Errors
    /// The stage cannot go on.
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let clock = Arc::clone(&self.recovery.clock);
        let time = TaskClock::new(&clock);
        let (tell, mut recovered) = mpsc::unbounded_channel::<Recovered>();
        let mut commit: Option<CommitFuture> = None;
        // A session that ends right after it lost its partitions was replaced by a namesake.
        let mut was_lost = false;
        let mut is_asked = true;
        loop {
            let now = time.now_ms();
            let wakes_at = self.machine.wakes_at(now);
            let wait = wakes_at.map_or(Duration::from_secs(3_600), |at| {
                Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0))
            });
            let session = Arc::clone(&self.session);
            let input = tokio::select! {
                biased;
                done = answer(&mut commit) => {
                    commit = None;
                    match done {
                        Ok(positions) => MachineInput::Committed(positions),
                        Err(error) => MachineInput::NotCommitted(error),
                    }
                }
                Some((partition, fence, recovered)) = recovered.recv() => {
                    MachineInput::Recovered { partition, fence, recovered }
                }
                // A closed channel answers at once and for ever; it drains once.
                question = self.questions.recv(), if is_asked => match question {
                    Some(ShardQuestion::Look(look)) => {
                        let now_ms = time.now_ms();
                        look(&self.machine, TaskTime { now_ms, epoch_start_ms: now_ms });
                        continue;
                    }
                    Some(ShardQuestion::Drain) => MachineInput::Drain,
                    None => {
                        is_asked = false;
                        MachineInput::Drain
                    }
                },
                event = session.poll(), if self.machine.is_hungry() => match event {
                    Ok(event) => {
                        was_lost = matches!(event, SessionEvent::Lost(_));
                        MachineInput::Session(event)
                    }
                    Err(error) => match poll_failure(error, was_lost) {
                        Some(failure) => return Err(self.ended(failure).await),
                        None => {
                            clock.sleep(ASK_AGAIN).await;
                            MachineInput::Tick
                        }
                    },
                },
                () = clock.sleep(wait) => MachineInput::Tick,
            };
            let effects = self.machine.step(input, time.now_ms());
            for effect in effects {
                match effect {
                    Effect::Recover { partition, inputs } => self.recover(partition, inputs, &tell),
                    Effect::Commit(one) => commit = Some(self.commit(one)),
                    Effect::Seek(at, fence, offset) => self.seek(&at, fence, offset).await,
                    Effect::Release(partitions) => {
                        if let Err(error) = self.session.release(&partitions).await {
                            tracing::warn!(%error, "partitions could not be let go");
                        }
                    }
                    Effect::Cut(at, offset) => {
                        // It is cut again with the next base.
                        if let Err(error) = self.recovery.log.delete_before(&at, offset).await {
                            tracing::warn!(%error, %at, "the changelog was not cut");
                        }
                    }
                    Effect::Fail(failure) => return Err(self.ended(failure).await),
                    Effect::Drained => {
                        self.tell();
                        return self.session.close().await.map_err(Failure::from);
                    }
                }
            }
            self.tell();
        }
    }

    async fn ended(&mut self, failure: Failure) -> Failure {
        self.tell();
        // The session may be gone, too; the failure is what counts.
        self.session.close().await.ok();
        failure
    }

    fn tell(&mut self) {
        let metrics = self.machine.take_metrics();
        let counts = self.machine.counts();
        let mut status = self.status.lock();
        if status.counts != counts || status.tasks.is_empty() || !metrics.is_empty() {
            status.counts = counts;
            status.tasks = self.machine.tasks().collect();
            let bytes = status.tasks.iter().map(|task| task.bytes).sum();
            drop(status);
            (self.on_news)(counts, metrics, bytes);
        }
    }

    async fn seek(&self, at: &TopicPartition, fence: Fence, offset: Offset) {
        // A partition that is not ours any more needs no position; others stand where they were told.
        loop {
            match self.session.seek(at, fence, offset).await {
                Ok(())
                | Err(LogError::Fenced { .. } | LogError::Closed | LogError::Stopped { .. }) => {
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, %at, "a position was not set yet");
                    self.recovery.clock.sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    fn recover(
        &self,
        partition: i32,
        inputs: Vec<Assignment>,
        tell: &mpsc::UnboundedSender<Recovered>,
    ) {
        let settings = self.recovery.clone();
        let tell = tell.clone();
        let name = format!("stage-recovery-{partition}");
        let task = self.spawn.spawn(
            &name,
            Box::pin(async move {
                let fence = inputs.first().map_or(Fence(0), |first| first.fence);
                let recovered = settings.recover(partition, &inputs).await;
                tell.send((partition, fence, recovered)).ok();
            }),
        );
        drop(task);
    }

    /// The commit of an epoch. The committed offset decides where its answer was lost.
    fn commit(&self, mut commit: Commit) -> CommitFuture {
        let session = Arc::clone(&self.session);
        let log = Arc::clone(&self.recovery.log);
        let clock = Arc::clone(&self.recovery.clock);
        let group = self.group.clone();
        Box::pin(async move {
            if is(PlantedStageBug::OffsetsBeforeOutputs) {
                let appends = std::mem::take(&mut commit.appends);
                session.commit(commit.clone()).await?;
                return log.append(appends).await.map(Some);
            }
            let asked = commit.offsets.first().map(|first| {
                let wanted = (first.next, first.metadata.clone());
                (first.at.clone(), wanted)
            });
            let error = match session.commit(commit).await {
                Ok(positions) => return Ok(Some(positions)),
                Err(error) => error,
            };
            let (LogError::OutcomeUnknown { .. }, Some((at, (next, metadata)))) = (&error, asked)
            else {
                return Err(error);
            };
            loop {
                match log.committed(&group, std::slice::from_ref(&at)).await {
                    Ok(found) => {
                        let found = found.into_iter().next().flatten();
                        // All of it is there, or nothing: one partition tells.
                        return match found {
                            Some(found) if found.next == next && found.metadata == metadata => {
                                Ok(None)
                            }
                            _ => Err(error),
                        };
                    }
                    Err(LogError::Closed | LogError::Stopped { .. }) => return Err(error),
                    Err(_) => clock.sleep(ASK_AGAIN).await,
                }
            }
        })
    }
}

/// The answer to the commit on its way; never, where there is none.
async fn answer(
    commit: &mut Option<CommitFuture>,
) -> Result<Option<Vec<RecordPosition>>, LogError> {
    match commit {
        Some(commit) => commit.await,
        None => std::future::pending().await,
    }
}

/// A failure of a poll that stops the stage; none where polling goes on.
fn poll_failure(error: LogError, was_lost: bool) -> Option<Failure> {
    let (code, message) = match &error {
        LogError::Closed if !was_lost => {
            let code = Code::from_static("stage.session.closed");
            return Some(Failure::transient(code, "the log ended the session"));
        }
        LogError::Closed => (
            "stage.instance.taken",
            "another process with the same instance name took this one's place".to_owned(),
        ),
        LogError::OutOfRange { .. } => (
            "stage.offset.lost",
            format!("the next record of an input is not in the log any more: {error}"),
        ),
        LogError::Damaged { .. } => (
            "stage.input.damaged",
            format!("a record of an input cannot be read: {error}"),
        ),
        LogError::Stopped { .. } => ("stage.log.stopped", error.to_string()),
        // The session tells of these once, and goes on.
        LogError::UnknownTopic { .. }
        | LogError::UnknownPartition { .. }
        | LogError::TopicConfig { .. }
        | LogError::RecordTooLarge { .. }
        | LogError::HeaderTooLong { .. }
        | LogError::CommitTooLarge { .. }
        | LogError::MetadataTooLong { .. }
        | LogError::MetadataNotAscii { .. }
        | LogError::Full { .. }
        | LogError::Overloaded { .. }
        | LogError::Fenced { .. }
        | LogError::OffsetRegressed { .. }
        | LogError::PrecedingCommitFailed { .. }
        | LogError::OutcomeUnknown { .. }
        | LogError::Unavailable { .. }
        | LogError::Login { .. }
        | LogError::Refused { .. }
        | LogError::Forbidden { .. }
        | LogError::RecordRefused { .. }
        | LogError::Remote { .. }
        | LogError::Locked { .. }
        | LogError::Format { .. }
        | LogError::Disk { .. } => return None,
    };
    let code = Code::from_static(code);
    Some(Failure::new(FailureClass::System, code, message))
}

impl RecoverySettings {
    /// Reads the state of a task.
    pub(crate) async fn recover(
        &self,
        partition: i32,
        inputs: &[Assignment],
    ) -> Result<RecoveredTask, Failure> {
        let committed: Vec<InputCommitted> = inputs
            .iter()
            .map(|input| InputCommitted {
                topic: input.at.topic.to_string(),
                committed: input
                    .committed
                    .as_ref()
                    .map(|held| (held.next.0, held.metadata.clone())),
            })
            .collect();
        let mut recovered = self.read(partition, &committed).await?;
        if self.is_batch {
            for input in inputs {
                let described = self.again(|| self.log.describe(&input.at.topic)).await?;
                let mut partitions = described.partitions.iter();
                let end = partitions.find(|found| found.partition == input.at.partition);
                recovered.ends.push(end.map_or(0, |found| found.end.0));
            }
        }
        Ok(recovered)
    }

    /// Reads the state that belongs to committed offsets, of a task that nobody else runs.
    pub(crate) async fn read(
        &self,
        partition: i32,
        committed: &[InputCommitted],
    ) -> Result<RecoveredTask, Failure> {
        self.replay(partition, committed, false).await
    }

    /// Reads the state that belongs to committed offsets; frames of later epochs are left where they are.
    pub(crate) async fn read_committed(
        &self,
        partition: i32,
        committed: &[InputCommitted],
    ) -> Result<RecoveredTask, Failure> {
        self.replay(partition, committed, true).await
    }

    async fn replay(
        &self,
        partition: i32,
        committed: &[InputCommitted],
        may_be_behind: bool,
    ) -> Result<RecoveredTask, Failure> {
        let described = self.again(|| self.log.describe(&self.changelog)).await?;
        let mut partitions = described.partitions.iter();
        let found = partitions.find(|found| found.partition.0 == partition);
        let (first, end) = found.map_or((0, 0), |found| (found.start.0, found.end.0));
        let backend: Box<dyn StateBackend> = Box::new(MapBackend::default());
        let mark = match recovery::start(partition, committed, (first, end)).map_err(refused)? {
            RecoveryStart::First { base } => {
                return Ok(RecoveredTask {
                    backend,
                    epoch: 0,
                    base,
                    clock_ms: 0,
                    replayed_bytes: 0,
                    ends: Vec::new(),
                });
            }
            RecoveryStart::Replay { mark } => mark,
        };
        let at = TopicPartition::new(self.changelog.clone(), partition);
        let mut replay = Replay::new(partition, self.partitions, mark, backend);
        let mut from = Offset(mark.base);
        while from.0 < end {
            let read = Read {
                max_bytes: 8 * 1024 * 1024,
                ..Read::new(at.clone(), from)
            };
            let batch = match self.again(|| self.log.read(read.clone())).await {
                Ok(batch) => batch,
                Err(LogError::Damaged { .. }) => {
                    let error = crate::changelog::FrameError::Damaged;
                    let offset = from.0;
                    return Err(refused(RecoveryError::Frame {
                        partition,
                        offset,
                        error,
                    }));
                }
                Err(error) => return Err(error.into()),
            };
            for stored in &batch.records {
                if may_be_behind && replay.is_complete() {
                    return replay.finish(committed).map_err(refused);
                }
                let frame = stored.record.value.clone().unwrap_or_default();
                replay.frame(stored.offset.0, &frame).map_err(refused)?;
            }
            if batch.next <= from {
                break;
            }
            from = batch.next;
        }
        replay.finish(committed).map_err(refused)
    }

    /// Calls until the log answers.
    async fn again<'a, T>(
        &'a self,
        call: impl Fn() -> tidegate_log::LogFuture<'a, T>,
    ) -> Result<T, LogError> {
        loop {
            match call().await {
                Err(LogError::Unavailable { .. } | LogError::OutcomeUnknown { .. }) => {
                    self.clock.sleep(ASK_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }
}

fn refused(error: RecoveryError) -> Failure {
    let code = Code::from_static(error.code());
    Failure::new(FailureClass::System, code, error.to_string()).with_source(error)
}
