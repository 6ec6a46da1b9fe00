//! A stage: one process of a plan, from its start to its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::env::Env;
use tidegate_core::{Code, Failure, FailureClass, Mutex, Shutdown, Topic};
use tidegate_flow::plan::{FlowPlan, ModePlan, ProcessPlan};
use tidegate_log::{
    Join, Log, LogError, Session, StartAt, TopicConfig, TopicDescription, TopicPartition,
};
use tokio::sync::{mpsc, oneshot};

use crate::batch::{BatchInputs, LOOK_AGAIN};
use crate::books::StageBooks;
use crate::chain::{PendingRecord, TaskOperators, TaskTime};
use crate::checkpoint::CheckpointManifest;
use crate::lifecycle::{InitStep, StageEvent, StageState};
use crate::machine::{Machine, MachineCounts, MachineOptions, NewOperators, SinkTopic, TaskStatus};
use crate::operators::{ChainOptions, RegisteredFunctions, TaskChain};
use crate::options::{StageOptions, dead_letters, written};
use crate::restore::StageCheckpoints;
use crate::shard::{RecoverySettings, Shard, ShardQuestion, ShardStatus};
use crate::telemetry::Telemetry;

/// The code of a session that ended, and of which nobody says why.
pub(crate) const SESSION_CLOSED: &str = "stage.session.closed";

/// How long the end of other shards is waited for, which may say why one ended.
const OTHER_SHARDS: Duration = Duration::from_secs(1);

/// How often the states of a flow are cleaned up that names no interval of its own.
const CLEAN_INTERVAL: Duration = Duration::from_secs(300);

/// How often a stage looks whether a checkpoint is due.
const LOOK_FOR_CHECKPOINT: Duration = Duration::from_secs(1);

/// Bytes that the log adds to a record beside its key and its value, at most.
const RECORD_ROOM: u64 = 4 * 1024;

/// A stage. Cloning gives another handle on the same one.
#[derive(Clone)]
pub struct Stage(Arc<StageInner>);

struct StageInner {
    plan: Arc<FlowPlan>,
    process: ProcessPlan,
    options: StageOptions,
    functions: Arc<RegisteredFunctions>,
    log: Arc<dyn Log>,
    env: Env,
    telemetry: Arc<Telemetry>,
    life: Mutex<Life>,
}

/// The changing part of a stage.
struct Life {
    state: StageState,
    failure: Option<StageFailure>,
    starts: u32,
    shards: Vec<RunningShard>,
}

struct RunningShard {
    status: Arc<Mutex<ShardStatus>>,
    questions: mpsc::UnboundedSender<ShardQuestion>,
}

/// Tells how a shard ended. A shard that panics tells it by being dropped.
struct ShardEnd(Option<mpsc::UnboundedSender<Result<(), Failure>>>);

impl ShardEnd {
    fn tell(&mut self, end: Result<(), Failure>) {
        if let Some(ended) = self.0.take() {
            // Nobody listens once the stage has ended.
            ended.send(end).ok();
        }
    }
}

impl Drop for ShardEnd {
    fn drop(&mut self) {
        let message = "a shard panicked; the log of the process says where";
        let code = "stage.panic";
        self.tell(Err(failure(FailureClass::Transient, code, message)));
    }
}

/// The reason for which a stage failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StageFailure {
    /// The code.
    pub code: String,
    /// The failure in words.
    pub message: String,
    /// Whether no new start mends it.
    pub is_lasting: bool,
    /// The way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A stage as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StageStatus {
    /// The process.
    pub process: String,
    /// Its consumer group.
    pub group: String,
    /// Its state.
    pub state: StageState,
    /// Its shards.
    pub shards: usize,
    /// How often it was started.
    pub starts: u32,
    /// Records of committed epochs, since the last start.
    pub records_in: u64,
    /// Outputs of committed epochs.
    pub records_out: u64,
    /// Dead letters of committed epochs.
    pub dead_letters: u64,
    /// Committed epochs.
    pub epochs: u64,
    /// Epochs that were taken back.
    pub aborted_epochs: u64,
    /// The tasks that run.
    pub tasks: Vec<TaskStatus>,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<StageFailure>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.life.lock().state;
        write!(f, "Stage({}, {state})", self.0.options.process)
    }
}

fn failure(class: FailureClass, code: &'static str, message: impl Into<String>) -> Failure {
    Failure::new(class, Code::from_static(code), message)
}

/// The way out of a failure that no new start mends; none of one that a new start may mend.
fn lasting(failure: &Failure) -> Option<&'static str> {
    let code = failure.code.as_str();
    let parts = [
        (
            "stage.offset.forgotten",
            "the offsets are gone and the state is not; docs/guides/stage.md says the way out",
        ),
        (
            "stage.offset.lost",
            "records were removed before they were read; see docs/guides/stage.md, lost offsets",
        ),
        (
            "stage.offset.",
            "another program commits in this group; give the process a `group-id` of its own",
        ),
        (
            "stage.changelog.",
            "the changelog does not fit the committed offsets; see docs/guides/stage.md, a changelog that does not fit",
        ),
        (
            "stage.partitions.",
            "the number of partitions of an input changed; make the topic anew or give the process a new name",
        ),
        (
            "stage.instance.taken",
            "give each program its own `resources.<process>.instance`",
        ),
        (
            "stage.state.",
            "the state was written by another plan, or is damaged; see docs/guides/stage.md, state of another plan",
        ),
        (
            "stage.commit.refused",
            "the log refuses even the dead letter of a record; raise the limit that the message names",
        ),
        (
            "stage.init.configuration",
            "the configuration or the flow has to be changed; the message says what",
        ),
        (
            "stage.input.damaged",
            "`tidegate log check` shows what is damaged",
        ),
    ];
    let found = parts.iter().find(|(part, _)| code.starts_with(part));
    found.map(|(_, hint)| *hint)
}

impl Stage {
    /// A stage that was not started. Its functions are those that were registered for its process.
    ///
    /// # Errors
    /// The plan has no such process, or names no topic can have.
    pub fn new(
        plan: Arc<FlowPlan>,
        options: StageOptions,
        functions: Arc<RegisteredFunctions>,
        log: Arc<dyn Log>,
        env: &Env,
    ) -> Result<Self, Failure> {
        let Some(process) = plan.processes.get(&options.process).cloned() else {
            let message = format!("the plan has no process `{}`", options.process);
            return Err(failure(FailureClass::Permanent, "stage.process", message));
        };
        let telemetry = Telemetry::new(&options.namespace, &options.process, &process.metrics);
        let inner = StageInner {
            env: env.fork(&format!("stage.{}", options.process)),
            telemetry: Arc::new(telemetry),
            plan,
            process,
            options,
            functions,
            log,
            life: Mutex::new(Life {
                state: StageState::Created,
                failure: None,
                starts: 0,
                shards: Vec::new(),
            }),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The name of the process.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.options.process
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> StageState {
        self.0.life.lock().state
    }

    /// The stage as it is now.
    #[must_use]
    pub fn status(&self) -> StageStatus {
        let life = self.0.life.lock();
        let mut counts = MachineCounts::default();
        let mut tasks = Vec::new();
        for shard in &life.shards {
            let status = shard.status.lock();
            counts.records_in += status.counts.records_in;
            counts.records_out += status.counts.records_out;
            counts.dead_letters += status.counts.dead_letters;
            counts.epochs += status.counts.epochs;
            counts.aborted += status.counts.aborted;
            tasks.extend(status.tasks.iter().cloned());
        }
        tasks.sort_by_key(|task| task.partition);
        StageStatus {
            process: self.name().to_owned(),
            group: self.0.options.group.to_string(),
            state: life.state,
            shards: life.shards.len(),
            starts: life.starts,
            records_in: counts.records_in,
            records_out: counts.records_out,
            dead_letters: counts.dead_letters,
            epochs: counts.epochs,
            aborted_epochs: counts.aborted,
            tasks,
            failure: life.failure.clone(),
        }
    }

    /// Its books, read from the log.
    ///
    /// # Errors
    /// A stream has no name that a topic can have.
    pub fn books(&self) -> Result<StageBooks, Failure> {
        let inner = &self.0;
        StageBooks::new(
            Arc::clone(&inner.log),
            &inner.env,
            Arc::clone(&inner.plan),
            inner.options.clone(),
        )
    }

    /// The records that wait in the tasks that run here.
    pub async fn pending(&self) -> Vec<PendingRecord> {
        let mut all = Vec::new();
        for found in self
            .look(|chain, state, _| {
                let mut found = Vec::new();
                chain.pending(state, &mut |record| found.push(record));
                found
            })
            .await
        {
            all.extend(found);
        }
        all.sort_by(|a, b| {
            (a.due_ms, &a.step, &a.key, a.id).cmp(&(b.due_ms, &b.step, &b.key, b.id))
        });
        all
    }

    /// The values of a declared state in the tasks that run here, as JSON by key.
    pub async fn values(&self, name: &str) -> BTreeMap<String, String> {
        let name = name.to_owned();
        let found = self
            .look(move |chain, state, time| chain.values(state, &name, time))
            .await;
        found.into_iter().flatten().collect()
    }

    /// Looks at every task that runs here.
    async fn look<T: Send + 'static>(
        &self,
        look: impl Fn(&dyn TaskOperators, &dyn crate::task_state::TaskState, TaskTime) -> T
        + Send
        + Sync
        + 'static,
    ) -> Vec<T> {
        let look = Arc::new(look);
        let shards: Vec<_> = {
            let life = self.0.life.lock();
            life.shards
                .iter()
                .map(|shard| shard.questions.clone())
                .collect()
        };
        let mut all = Vec::new();
        for questions in shards {
            let (tell, told) = oneshot::channel();
            let look = Arc::clone(&look);
            let question = ShardQuestion::Look(Box::new(move |machine: &Machine, time| {
                let tasks = machine.partitions();
                let tasks = tasks
                    .into_iter()
                    .filter_map(|partition| machine.task(partition));
                let found: Vec<T> = tasks
                    .map(|task| look(&*task.chain, &task.state, time))
                    .collect();
                tell.send(found).ok();
            }));
            if questions.send(question).is_ok()
                && let Ok(found) = told.await
            {
                all.extend(found);
            }
        }
        all
    }

    /// Finishes what is in flight and ends; a new start is up to whoever [runs](Self::run) it. Returns at once.
    pub fn drain(&self) {
        let mut life = self.0.life.lock();
        // A checkpoint is read from the log, and does not hold up a drain.
        if let Some(running) = life.state.after(StageEvent::CheckpointEnd) {
            life.state = running;
        }
        if let Some(next) = life.state.after(StageEvent::Drain) {
            life.state = next;
            for shard in &life.shards {
                shard.questions.send(ShardQuestion::Drain).ok();
            }
        }
    }

    /// Runs until `stop`, or until it ends by itself. A failure that a new start may mend is followed by one.
    ///
    /// # Errors
    /// The failure that no new start mends, or the last one that is allowed.
    pub async fn run(&self, stop: Shutdown) -> Result<(), Failure> {
        let restart = self.0.options.restart;
        let mut wait = restart.initial_delay;
        let mut attempts = 0;
        loop {
            let began = self.0.env.clock.elapsed();
            let Err(failure) = self.once(stop.clone()).await else {
                return Ok(());
            };
            let hint = lasting(&failure);
            let is_lasting = hint.is_some();
            self.failed(&failure, hint);
            let ran = self.0.env.clock.elapsed().saturating_sub(began);
            if ran > restart.max_delay {
                (wait, attempts) = (restart.initial_delay, 0);
            }
            attempts += 1;
            let is_last = restart.max_attempts > 0 && attempts >= restart.max_attempts;
            if is_lasting || is_last {
                return Err(failure);
            }
            tokio::select! {
                biased;
                () = stop.clone().requested() => return Err(failure),
                () = self.0.env.clock.sleep(wait) => {}
            }
            let longer = wait.as_secs_f64() * restart.multiplier.max(1.0);
            wait = Duration::from_secs_f64(longer).min(restart.max_delay);
        }
    }

    fn set(&self, event: StageEvent) {
        let mut life = self.0.life.lock();
        if let Some(next) = life.state.after(event) {
            tracing::info!(stage = self.name(), from = %life.state, to = %next, "the state of a stage changed");
            life.state = next;
        }
    }

    fn failed(&self, failure: &Failure, hint: Option<&str>) {
        tracing::error!(stage = self.name(), code = %failure.code, %failure, "a stage failed");
        self.0.telemetry.failed(failure.code.as_str());
        self.set(StageEvent::Fail);
        let mut life = self.0.life.lock();
        life.shards.clear();
        life.failure = Some(StageFailure {
            code: failure.code.to_string(),
            message: failure.to_string(),
            is_lasting: hint.is_some(),
            hint: hint.map(str::to_owned),
        });
    }

    /// One life: start, run, end.
    async fn once(&self, stop: Shutdown) -> Result<(), Failure> {
        let inner = &*self.0;
        {
            let mut life = inner.life.lock();
            // A new start is a new stage: the one before has ended.
            life.state = StageState::Created;
            life.starts += 1;
            life.shards.clear();
        }
        self.set(StageEvent::Start);
        let started = inner
            .env
            .clock
            .within(inner.options.init_timeout, self.start());
        let (shards, batch) = match started.await {
            Some(started) => started?,
            None => {
                let message = format!(
                    "the start took longer than {:?}",
                    inner.options.init_timeout
                );
                return Err(failure(
                    FailureClass::Transient,
                    "stage.init.timeout",
                    message,
                ));
            }
        };
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        let count = shards.len();
        {
            let mut life = inner.life.lock();
            for (number, (shard, questions)) in shards.into_iter().enumerate() {
                life.shards.push(RunningShard {
                    status: Arc::clone(&shard.status),
                    questions,
                });
                let mut ended = ShardEnd(Some(ended.clone()));
                let name = format!("stage-{}-{number}", inner.options.process);
                let running = Box::pin(async move {
                    let end = shard.run().await;
                    ended.tell(end);
                });
                tasks.push(inner.env.spawn.spawn_thread(&name, running));
            }
            life.failure = None;
        }
        drop(ended);
        self.set(StageEvent::Ready);
        let mut is_stopping = false;
        let mut left = count;
        let mut outcome: Result<(), Failure> = Ok(());
        let mut deadline = None;
        let mut batch = std::pin::pin!(self.end_of_batch(batch));
        let mut is_batch = true;
        let mut checkpoints = std::pin::pin!(self.checkpoints());
        while left > 0 {
            let late = deadline.map_or(Duration::from_secs(86_400), |at: Duration| {
                at.saturating_sub(inner.env.clock.elapsed())
            });
            tokio::select! {
                biased;
                end = ends.recv() => {
                    left -= 1;
                    let end = end.unwrap_or(Ok(()));
                    let known = outcome.as_ref().err().and_then(lasting);
                    if let Err(failure) = end && known.is_none() {
                        outcome = Err(failure);
                    }
                    // A shard without partitions does not see who took its place; another one does.
                    let is_closed = |failure: &Failure| failure.code.as_str() == SESSION_CLOSED;
                    match &outcome {
                        Ok(()) => {}
                        Err(failure) if is_closed(failure) => {
                            deadline = Some(inner.env.clock.elapsed() + OTHER_SHARDS);
                        }
                        Err(_) => break,
                    }
                }
                () = stop.clone().requested(), if !is_stopping => {
                    is_stopping = true;
                    deadline = Some(inner.env.clock.elapsed() + inner.options.drain_timeout);
                    self.drain();
                }
                read = &mut batch, if is_batch => {
                    is_batch = false;
                    match read {
                        Ok(()) => self.drain(),
                        Err(failure) => {
                            outcome = Err(failure);
                            break;
                        }
                    }
                }
                () = &mut checkpoints, if !is_stopping => {}
                () = inner.env.clock.sleep(late), if deadline.is_some() => {
                    if outcome.is_ok() {
                        outcome = Err(failure(FailureClass::System, "stage.drain.timeout",
                            format!("the stop took longer than {:?}", inner.options.drain_timeout)));
                    }
                    break;
                }
            }
        }
        for task in &tasks {
            if outcome.is_err() {
                task.abort();
            }
        }
        for task in tasks {
            task.join().await;
        }
        outcome?;
        if inner.options.checkpoints.is_some() {
            // The changelog has the state, too.
            self.checkpoint().await.ok();
        }
        // A batch ends by itself.
        self.set(StageEvent::Drain);
        self.set(StageEvent::Drained);
        Ok(())
    }

    /// Takes checkpoints as the flow says, for ever.
    async fn checkpoints(&self) {
        let (inner, plan) = (&*self.0, &self.0.process.checkpoint);
        if inner.options.checkpoints.is_none() {
            return std::future::pending().await;
        }
        let clock = &inner.env.clock;
        let records = || self.status().records_in;
        let mut last = (clock.elapsed(), records());
        loop {
            clock.sleep(LOOK_FOR_CHECKPOINT).await;
            let passed = clock.elapsed().saturating_sub(last.0);
            let came = records().saturating_sub(last.1);
            let is_time = plan
                .every_ms
                .is_some_and(|every| passed >= Duration::from_millis(every));
            let is_count = plan.records.is_some_and(|every| came >= every);
            if came > 0 && (is_time || is_count) {
                // A failure was told; the next interval tries again.
                self.checkpoint().await.ok();
                last = (clock.elapsed(), records());
            }
        }
    }

    /// Takes a checkpoint now: the state of every task at its last committed epoch. Records flow meanwhile.
    ///
    /// # Errors
    /// No place for checkpoints is set, or it cannot be written.
    pub async fn checkpoint(&self) -> Result<CheckpointManifest, Failure> {
        let inner = &*self.0;
        self.set(StageEvent::CheckpointBegin);
        let began = inner.env.clock.elapsed();
        let (tell, told) = oneshot::channel();
        let checkpoints = self.open_checkpoints();
        let taking = async move {
            let taken = match checkpoints {
                Ok(checkpoints) => checkpoints.take().await,
                Err(failure) => Err(failure),
            };
            tell.send(taken).ok();
        };
        // It writes much, and must not hold up others.
        let task = inner
            .env
            .spawn
            .spawn_thread("stage-checkpoint", Box::pin(taking));
        let taken = told.await.unwrap_or_else(|_| {
            let message = "a checkpoint panicked; the log of the process says where";
            Err(failure(FailureClass::Transient, "stage.panic", message))
        });
        drop(task);
        self.set(StageEvent::CheckpointEnd);
        let took = inner.env.clock.elapsed().saturating_sub(began);
        match &taken {
            Ok(manifest) => {
                let bytes = manifest.tasks.iter().map(|task| task.bytes).sum();
                inner.telemetry.checkpoint(took, bytes);
                tracing::info!(
                    stage = self.name(),
                    number = manifest.number,
                    bytes,
                    ?took,
                    "a checkpoint was taken"
                );
            }
            Err(failure) => {
                tracing::error!(stage = self.name(), %failure, "a checkpoint was not taken");
            }
        }
        taken
    }

    /// The checkpoints of this stage.
    ///
    /// # Errors
    /// A stream has no name that a topic can have.
    pub fn open_checkpoints(&self) -> Result<StageCheckpoints, Failure> {
        let options = self.0.options.checkpoints.clone();
        Ok(StageCheckpoints::new(self.books()?, &self.0.env, options))
    }

    /// Waits for the end of a batch: everything is read, and what waited in the state went on. Never, without one.
    async fn end_of_batch(&self, batch: Option<BatchInputs>) -> Result<(), Failure> {
        let Some(inputs) = batch else {
            return std::future::pending().await;
        };
        inputs.read().await?;
        for shard in &self.0.life.lock().shards {
            shard.questions.send(ShardQuestion::Finish).ok();
        }
        // Records that go on now may pass topics of the stage's own.
        while !self.is_finished() || !inputs.are_read().await? {
            self.0.env.clock.sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        let life = self.0.life.lock();
        let mut shards = life.shards.iter();
        shards.all(|shard| shard.status.lock().is_finished)
    }

    /// A step of the start: its failure has the code of the step.
    async fn step<T>(
        &self,
        step: InitStep,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let clock = &self.0.env.clock;
        let began = clock.elapsed();
        let done = work.await.map_err(|error| {
            let class = error.class;
            let is_own = error.code.as_str().starts_with("stage.");
            match is_own {
                true => error,
                false => failure(class, step.code(), error.to_string()).with_source(error),
            }
        })?;
        let took = clock.elapsed().saturating_sub(began);
        tracing::info!(
            stage = self.name(),
            step = step.word(),
            ?took,
            "a step of a start is done"
        );
        Ok(done)
    }

    /// The eight steps of a start.
    async fn start(&self) -> Result<(ReadyShards, Option<BatchInputs>), Failure> {
        let inner = &*self.0;
        let changelog = self
            .step(InitStep::Configuration, async {
                self.operators(false, BTreeMap::new())()?;
                inner.options.changelog().map_err(named)
            })
            .await?;
        self.step(InitStep::Metrics, async {
            inner.telemetry.describe();
            Ok(())
        })
        .await?;
        let sources = self.step(InitStep::Sources, self.sources()).await?;
        let sinks = self
            .step(InitStep::Sinks, self.sinks(sources.partitions))
            .await?;
        self.step(InitStep::State, async {
            let config = TopicConfig::new(sources.partitions);
            match inner.log.create_topic(&changelog, config).await {
                Err(LogError::TopicConfig { why, .. }) => {
                    let message =
                        format!("the changelog `{changelog}` was made for other inputs: {why}");
                    Err(failure(
                        FailureClass::System,
                        "stage.partitions.changed",
                        message,
                    ))
                }
                made => Ok(made?),
            }
        })
        .await?;
        // Lookups over the network, and data that is read ahead, are not known yet: both steps have nothing to do.
        self.step(InitStep::Services, async { Ok(()) }).await?;
        self.step(InitStep::WarmUp, async { Ok(()) }).await?;
        self.step(InitStep::Ready, async {
            let batch = self.batch(&sources).await?;
            let shards = self.shards(&sources, &sinks, &changelog).await?;
            Ok((shards, batch))
        })
        .await
    }

    /// The ends of the inputs, in `mode batch`.
    async fn batch(&self, sources: &Sources) -> Result<Option<BatchInputs>, Failure> {
        let inner = &*self.0;
        if inner.process.mode != ModePlan::Batch {
            return Ok(None);
        }
        let chain = self.operators(sources.partitions > 1, BTreeMap::new())()?;
        let own = chain.inputs().iter().map(|input| input.is_repartition);
        let topics = sources.topics.iter().cloned().zip(own).collect();
        let (log, clock) = (Arc::clone(&inner.log), Arc::clone(&inner.env.clock));
        let inputs = BatchInputs::new(log, clock, inner.options.group.clone(), topics).await?;
        Ok(Some(inputs))
    }

    /// `max_stream_bytes` has what the topics of the streams take.
    fn operators(
        &self,
        is_repartitioned: bool,
        max_stream_bytes: BTreeMap<String, usize>,
    ) -> NewOperators {
        let inner = &*self.0;
        let limit = TopicConfig::MAX_RECORD_SIZE.saturating_sub(RECORD_ROOM);
        let streams = inner.options.streams.iter();
        let idle = streams.map(|(name, stream)| {
            let idle = u64::try_from(stream.idle_timeout.as_millis()).unwrap_or(u64::MAX);
            (name.clone(), idle)
        });
        let options = ChainOptions {
            instance: inner.options.instance.clone(),
            max_record_bytes: usize::try_from(limit).unwrap_or(usize::MAX),
            max_stream_bytes,
            idle_timeout_ms: idle.collect(),
            is_repartitioned,
            functions: Arc::clone(&inner.functions),
        };
        let (plan, name) = (Arc::clone(&inner.plan), inner.options.process.clone());
        Arc::new(move || {
            let chain = TaskChain::new(Arc::clone(&plan), &name, options.clone());
            let chain = chain.map_err(|error| {
                failure(
                    FailureClass::Permanent,
                    InitStep::Configuration.code(),
                    error.to_string(),
                )
            })?;
            Ok(Box::new(chain) as Box<dyn TaskOperators>)
        })
    }

    /// The inputs are there and have as many partitions as each other; topics of the stage's own are made.
    async fn sources(&self) -> Result<Sources, Failure> {
        let inner = &*self.0;
        let log = &*inner.log;
        let mut partitions: Option<(Topic, u32)> = None;
        for input in self.operators(false, BTreeMap::new())()?.inputs() {
            let topic = inner.options.topic(&input.stream).map_err(named)?;
            let stream = inner.options.stream(&input.stream);
            let wanted = stream.partitions.or_else(|| {
                let makes = inner.options.makes_inputs;
                makes.then_some(TopicConfig::PARTITIONS)
            });
            let found = find(log, &topic).await?;
            let found = match (found, wanted) {
                (Some(found), _) => found,
                (None, Some(wanted)) => {
                    log.create_topic(&topic, TopicConfig::new(wanted)).await?;
                    log.describe(&topic).await?
                }
                (None, None) => {
                    let message = format!(
                        "topic `{topic}` of stream `{}` does not exist; `streams.{}.partitions` makes it",
                        input.stream, input.stream
                    );
                    return Err(failure(
                        FailureClass::Transient,
                        "stage.init.sources",
                        message,
                    ));
                }
            };
            let count = u32::try_from(found.partitions.len()).unwrap_or(u32::MAX);
            if let Some(wanted) = stream.partitions.filter(|wanted| *wanted != count) {
                let message = format!(
                    "topic `{topic}` has {count} partitions, and `streams.{}.partitions` says {wanted}",
                    input.stream
                );
                return Err(failure(
                    FailureClass::System,
                    "stage.partitions.differ",
                    message,
                ));
            }
            match &partitions {
                None => partitions = Some((topic, count)),
                Some((first, of_first)) if *of_first != count => {
                    let message = format!(
                        "`{first}` has {of_first} partitions and `{topic}` has {count}: inputs of one process need as many"
                    );
                    return Err(failure(
                        FailureClass::System,
                        "stage.partitions.differ",
                        message,
                    ));
                }
                Some(_) => {}
            }
        }
        let partitions = partitions.map_or(1, |(_, count)| count);
        let mut topics = Vec::new();
        for input in self.operators(partitions > 1, BTreeMap::new())()?.inputs() {
            let topic = inner.options.topic(&input.stream).map_err(named)?;
            if input.is_repartition {
                log.create_topic(&topic, TopicConfig::new(partitions))
                    .await?;
            }
            topics.push(topic);
        }
        Ok(Sources { topics, partitions })
    }

    /// The topics of every stream that is written to; those that are missing are made.
    async fn sinks(&self, partitions: u32) -> Result<BTreeMap<String, SinkTopic>, Failure> {
        let inner = &*self.0;
        let letters = dead_letters(self.name(), &inner.process);
        let mut sinks = BTreeMap::new();
        for stream in written(self.name(), &inner.process) {
            let topic = inner.options.topic(&stream).map_err(named)?;
            let wanted = inner
                .options
                .stream(&stream)
                .partitions
                .unwrap_or(partitions);
            let found = match find(&*inner.log, &topic).await? {
                Some(found) => found,
                None => {
                    let mut config = TopicConfig::new(wanted);
                    if letters.contains(&stream) {
                        // The envelope holds the record as text, which is longer than the record.
                        config.max_record_size = 2 * TopicConfig::MAX_RECORD_SIZE;
                    }
                    inner.log.create_topic(&topic, config).await?;
                    inner.log.describe(&topic).await?
                }
            };
            let partitions = u32::try_from(found.partitions.len()).unwrap_or(u32::MAX);
            let limit = found.config.max_record_size.saturating_sub(RECORD_ROOM);
            let max_record_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
            let sink = SinkTopic {
                topic,
                partitions,
                max_record_bytes,
            };
            sinks.insert(stream, sink);
        }
        Ok(sinks)
    }

    /// Joins the group once for each shard.
    async fn shards(
        &self,
        sources: &Sources,
        sinks: &BTreeMap<String, SinkTopic>,
        changelog: &Topic,
    ) -> Result<ReadyShards, Failure> {
        let inner = &*self.0;
        let options = &inner.options;
        let of_flow = inner.process.parallelism.map(|plan| plan.tasks);
        let of_flow = of_flow.map(|tasks| u32::try_from(tasks).unwrap_or(u32::MAX));
        let wanted = options.parallelism.or(of_flow).unwrap_or(1);
        let count = wanted.clamp(1, sources.partitions.max(1));
        let limits = sinks.iter();
        let limits = limits.map(|(stream, sink)| (stream.clone(), sink.max_record_bytes));
        let new_operators = self.operators(sources.partitions > 1, limits.collect());
        let clean_ms = inner.process.checkpoint.every_ms;
        let mut shards = Vec::new();
        for number in 0..count {
            let (first, others) = match sources.topics.split_first() {
                Some((first, others)) => (first.clone(), others.to_vec()),
                None => {
                    return Err(failure(
                        FailureClass::Permanent,
                        "stage.init.sources",
                        "no inputs",
                    ));
                }
            };
            let mut join = Join::new(options.group.clone(), vec![first]);
            join.co_partitioned = others;
            join.instance = Some(format!("{}-{number}", options.instance));
            join.name = Some(format!("stage-{}-{number}", options.process));
            join.start = self.start_at();
            join.release_timeout = Duration::from_secs(30);
            join.max_poll_records = 2_000;
            let session: Arc<dyn Session> = inner.log.join(join).await?;
            let machine = MachineOptions {
                cluster: inner.log.cluster().to_owned(),
                inputs: sources.topics.clone(),
                partitions: sources.partitions,
                sinks: sinks.clone(),
                changelog: changelog.clone(),
                epoch_records: options.epoch_records,
                epoch_interval: options.interval(&inner.process),
                epoch_bytes: usize::try_from(options.max_commit_size / 2).unwrap_or(usize::MAX),
                clean_interval: clean_ms.map_or(CLEAN_INTERVAL, Duration::from_millis),
                group: options.group.to_string(),
            };
            let (ask, questions) = mpsc::unbounded_channel();
            let telemetry = Arc::clone(&inner.telemetry);
            let shard = Shard {
                session,
                group: options.group.clone(),
                machine: Machine::new(machine, Arc::clone(&new_operators)),
                recovery: RecoverySettings {
                    log: Arc::clone(&inner.log),
                    clock: Arc::clone(&inner.env.clock),
                    changelog: changelog.clone(),
                    partitions: sources.partitions,
                },
                spawn: Arc::clone(&inner.env.spawn),
                questions,
                status: Arc::default(),
                on_news: Arc::new(move |counts, metrics, state_bytes| {
                    telemetry.news(number, counts, metrics, state_bytes);
                }),
            };
            shards.push((shard, ask));
        }
        Ok(shards)
    }

    /// Where a group without an offset begins: at the earliest record, unless the streams say the latest.
    fn start_at(&self) -> StartAt {
        let streams = self.0.process.sources.iter();
        let mut starts = streams.map(|source| self.0.options.stream(&source.stream).start);
        match starts.all(|start| start == StartAt::Latest) {
            true => StartAt::Latest,
            false => StartAt::Earliest,
        }
    }
}

/// Shards that are ready to run, each with the way to ask it.
type ReadyShards = Vec<(Shard, mpsc::UnboundedSender<ShardQuestion>)>;

struct Sources {
    topics: Vec<Topic>,
    partitions: u32,
}

async fn find(log: &dyn Log, topic: &Topic) -> Result<Option<TopicDescription>, LogError> {
    match log.describe(topic).await {
        Ok(found) => Ok(Some(found)),
        Err(LogError::UnknownTopic { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn named(error: tidegate_core::NameError) -> Failure {
    let message = error.to_string();
    failure(
        FailureClass::Permanent,
        InitStep::Configuration.code(),
        message,
    )
}

/// The partitions of a topic.
pub(crate) fn partitions_of(topic: &Topic, count: u32) -> impl Iterator<Item = TopicPartition> {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    (0..count).map(move |partition| TopicPartition::new(topic.clone(), partition))
}
