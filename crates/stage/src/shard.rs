//! The loop of a shard: it carries out the effects of its [`Machine`], and hands over what happens.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Spawn};
use tidegate_core::{Classify, Code, Failure, FailureClass, GroupName, Mutex, Offset};
use tidegate_log::{
    Assignment, Commit, Fence, LogError, RecordPosition, Session, SessionEvent, TopicPartition,
};
use tokio::sync::{mpsc, oneshot};

use crate::chain::TaskTime;
use crate::changelog_reader::ChangelogReader;
use crate::commit_outcome::{AskedOffset, CommitOutcome, commit_outcome};
use crate::machine::{AlignedTask, Effect, Machine, MachineCounts, MachineInput, TaskStatus};
use crate::planted_bugs::{PlantedStageBug, is};
use crate::recovery::RecoveredTask;
use crate::stage::SESSION_CLOSED;
use crate::telemetry::Telemetry;

/// The wait before asking again what is committed, or reading again what did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A look at the tasks of a shard, between two of its steps.
pub(crate) type MachineLook = Box<dyn FnOnce(&Machine, TaskTime) + Send>;

/// The tasks of a shard at the marker of a checkpoint, or why they were not aligned.
pub(crate) type AlignedTasks = Result<BTreeMap<i32, AlignedTask>, &'static str>;

/// A question to a running shard.
pub(crate) enum ShardQuestion {
    /// Looks at its tasks.
    Look(MachineLook),
    /// Aligns its tasks for a checkpoint.
    Align(oneshot::Sender<AlignedTasks>),
    /// All inputs are read: what waits in the state goes on.
    Finish,
    /// End once everything is committed.
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
    /// Nothing waits in its tasks any more, in `mode batch`.
    pub(crate) is_finished: bool,
}

/// A shard, ready to run.
pub(crate) struct Shard {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) group: GroupName,
    pub(crate) machine: Machine,
    pub(crate) recovery: ChangelogReader,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) questions: mpsc::UnboundedReceiver<ShardQuestion>,
    pub(crate) status: Arc<Mutex<ShardStatus>>,
    /// Its number among the shards of the stage.
    pub(crate) number: u32,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The end of a commit.
enum CommitEnd {
    /// It was done; the places of its records are not always known.
    Done(Option<Vec<RecordPosition>>),
    /// It was not done.
    NotDone(LogError),
    /// Nobody can tell.
    Unknown(LogError),
}

type CommitFuture = Pin<Box<dyn Future<Output = CommitEnd> + Send>>;
type Recovered = (i32, Fence, Result<RecoveredTask, Failure>);

/// Tells the end of a recovery. One that panics tells it by being dropped.
struct RecoveryEnd {
    partition: i32,
    fence: Fence,
    tell: Option<mpsc::UnboundedSender<Recovered>>,
}

impl RecoveryEnd {
    fn tell(&mut self, recovered: Result<RecoveredTask, Failure>) {
        if let Some(tell) = self.tell.take() {
            tell.send((self.partition, self.fence, recovered)).ok();
        }
    }
}

impl Drop for RecoveryEnd {
    fn drop(&mut self) {
        let message = "a recovery panicked; the log of the process says where";
        let code = Code::from_static("stage.panic");
        self.tell(Err(Failure::transient(code, message)));
    }
}

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
        let mut aligning: Option<oneshot::Sender<AlignedTasks>> = None;
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
                        CommitEnd::Done(positions) => MachineInput::Committed(positions),
                        CommitEnd::NotDone(error) => MachineInput::NotCommitted(error),
                        CommitEnd::Unknown(error) => MachineInput::CommitUnknown(error),
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
                        // The clock may have moved since its pause was reckoned.
                        MachineInput::Tick
                    }
                    Some(ShardQuestion::Align(tell)) => {
                        if aligning.is_some() {
                            tell.send(Err("another checkpoint has begun")).ok();
                            continue;
                        }
                        aligning = Some(tell);
                        MachineInput::Checkpoint
                    }
                    Some(ShardQuestion::Finish) => MachineInput::Finish,
                    Some(ShardQuestion::Drain) => MachineInput::Drain,
                    None => {
                        is_asked = false;
                        MachineInput::Drain
                    }
                },
                event = session.poll(), if self.machine.is_hungry() => match event {
                    // It does not hear that its partitions are gone.
                    Ok(SessionEvent::Lost(_)) if is(PlantedStageBug::Zombie) => MachineInput::Tick,
                    Ok(event) => {
                        was_lost = matches!(event, SessionEvent::Lost(_));
                        MachineInput::Session(event)
                    }
                    Err(error) => match self.poll_failure(error, was_lost).await {
                        Some(failure) => return Err(self.ended(failure).await),
                        None => {
                            clock.sleep(ASK_AGAIN).await;
                            MachineInput::Tick
                        }
                    },
                },
                () = clock.sleep(wait) => MachineInput::Tick,
            };
            let (began, handled) = (clock.elapsed(), self.machine.handled());
            let effects = self.machine.step(input, time.now_ms());
            let handled = self.machine.handled() - handled;
            if handled > 0 {
                let took = clock.elapsed().saturating_sub(began);
                self.telemetry.handled(handled, took);
            }
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
                    Effect::Aligned(tasks) => {
                        if let Some(tell) = aligning.take() {
                            tell.send(Ok(tasks)).ok();
                        }
                    }
                    Effect::NotAligned(why) => {
                        if let Some(tell) = aligning.take() {
                            tell.send(Err(why)).ok();
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

    /// A failure of a poll that ends the shard; none where polling goes on.
    async fn poll_failure(&self, error: LogError, was_lost: bool) -> Option<Failure> {
        let lasting = |code, message| {
            let code = Code::from_static(code);
            Some(Failure::new(FailureClass::System, code, message))
        };
        if let LogError::Closed = &error {
            if was_lost {
                let message = "another process with the same instance name took this one's place";
                return lasting("stage.instance.taken", message.to_owned());
            }
            let code = Code::from_static(SESSION_CLOSED);
            return Some(Failure::transient(code, "the log ended the session"));
        }
        if let LogError::OutOfRange {
            at, asked, start, ..
        } = &error
        {
            // Behind the end there is nothing to come to: the topic is another one.
            if asked < start && self.is_behind_its_group(at, *start).await {
                let code = Code::from_static(SESSION_CLOSED);
                let message = "the group went on without this process, which stood still";
                return Some(Failure::transient(code, message));
            }
            let message =
                format!("the next record of an input is not in the log any more: {error}");
            return lasting("stage.offset.lost", message);
        }
        if let LogError::Damaged { .. } = &error {
            let message = format!("a record of an input cannot be read: {error}");
            return lasting("stage.input.damaged", message);
        }
        if let LogError::Stopped { .. } = &error {
            return lasting("stage.log.stopped", error.to_string());
        }
        if error.class() == FailureClass::Transient {
            tracing::warn!(%error, "the inputs of a stage cannot be read yet");
            return None;
        }
        // Asking again does not help, and a stage that reads nothing must not look as if it runs.
        Some(Failure::from(error))
    }

    /// Whether the group has committed what is not in the log any more, so that only the position of this process is
    /// old. If the log does not answer, a new session finds out.
    async fn is_behind_its_group(&self, at: &TopicPartition, start: Offset) -> bool {
        let asked = std::slice::from_ref(at);
        match self.recovery.log.committed(&self.group, asked).await {
            Ok(found) => found
                .iter()
                .flatten()
                .any(|committed| committed.next >= start),
            Err(_) => true,
        }
    }

    async fn ended(&mut self, failure: Failure) -> Failure {
        self.tell();
        // The session may be gone, too; the failure is what counts.
        self.session.close().await.ok();
        failure
    }

    fn tell(&mut self) {
        let news = self.machine.take_news();
        let counts = self.machine.counts();
        let mut status = self.status.lock();
        status.is_finished = self.machine.is_finished();
        let told = status.tasks.iter().map(|task| task.partition);
        if status.counts != counts || !told.eq(self.machine.partitions()) {
            status.counts = counts;
            status.tasks = self.machine.tasks().collect();
            let bytes = status.tasks.iter().map(|task| task.bytes).sum();
            drop(status);
            self.telemetry.news(self.number, counts, news, bytes);
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
        let mut end = RecoveryEnd {
            partition,
            fence: inputs.first().map_or(Fence(0), |first| first.fence),
            tell: Some(tell.clone()),
        };
        let name = format!("stage-recovery-{partition}");
        let task = self.spawn.spawn(
            &name,
            Box::pin(async move {
                let recovered = settings.recover(partition, &inputs).await;
                end.tell(recovered);
            }),
        );
        drop(task);
    }

    /// The commit of an epoch. The committed offsets decide where its answer was lost.
    fn commit(&self, mut commit: Commit) -> CommitFuture {
        let session = Arc::clone(&self.session);
        let log = Arc::clone(&self.recovery.log);
        let clock = Arc::clone(&self.recovery.clock);
        let group = self.group.clone();
        Box::pin(async move {
            if is(PlantedStageBug::OffsetsBeforeOutputs) {
                let appends = std::mem::take(&mut commit.appends);
                let done = match session.commit(commit.clone()).await {
                    Ok(_) => log.append(appends).await,
                    Err(error) => Err(error),
                };
                return done.map_or_else(CommitEnd::NotDone, |at| CommitEnd::Done(Some(at)));
            }
            let asked: Vec<AskedOffset> = commit.offsets.iter().map(AskedOffset::of).collect();
            let at: Vec<TopicPartition> = commit.offsets.iter().map(|one| one.at.clone()).collect();
            let of_zombie = is(PlantedStageBug::Zombie).then(|| commit.appends.clone());
            let error = match session.commit(commit).await {
                Ok(positions) => return CommitEnd::Done(Some(positions)),
                Err(error @ LogError::OutcomeUnknown { .. }) => error,
                Err(error) => {
                    if let (LogError::Fenced { .. }, Some(appends)) = (&error, of_zombie) {
                        log.append(appends).await.ok();
                    }
                    return CommitEnd::NotDone(error);
                }
            };
            loop {
                match log.committed(&group, &at).await {
                    Ok(found) => {
                        return match commit_outcome(&asked, &found) {
                            CommitOutcome::Done => CommitEnd::Done(None),
                            CommitOutcome::NotDone => CommitEnd::NotDone(error),
                        };
                    }
                    Err(why) if !may_answer_later(&why) => {
                        tracing::error!(error = %why, "nobody can tell whether an epoch was committed");
                        return CommitEnd::Unknown(error);
                    }
                    Err(why) => {
                        tracing::warn!(error = %why, "the log does not tell yet whether an epoch was committed");
                        clock.sleep(ASK_AGAIN).await;
                    }
                }
            }
        })
    }
}

/// Whether the same question may have an answer later.
fn may_answer_later(error: &LogError) -> bool {
    error.class() == FailureClass::Transient && !matches!(error, LogError::Closed)
}

/// The end of the commit on its way; never, where there is none.
async fn answer(commit: &mut Option<CommitFuture>) -> CommitEnd {
    match commit {
        Some(commit) => commit.await,
        None => std::future::pending().await,
    }
}
