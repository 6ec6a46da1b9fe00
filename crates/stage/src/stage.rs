//! A stage: one process of a plan, from its start to its end.

mod checkpoints;
mod life;
mod start;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::env::Env;
use tidegate_core::{Code, Failure, FailureClass, Mutex, Topic};
use tidegate_flow::plan::{FlowPlan, ProcessPlan};
use tidegate_log::{Log, TopicPartition};
use tokio::sync::{mpsc, oneshot};

use self::checkpoints::MissedCheckpoints;
use crate::books::StageBooks;
use crate::chain::{PendingRecord, TaskOperators, TaskTime};
use crate::lifecycle::{InitStep, StageEvent, StageState};
use crate::machine::{Machine, MachineCounts, TaskStatus};
use crate::operators::RegisteredFunctions;
use crate::options::StageOptions;
use crate::shard::{ShardQuestion, ShardStatus};
use crate::telemetry::Telemetry;

/// The code of a session that ended, and of which nobody says why.
pub(crate) const SESSION_CLOSED: &str = "stage.session.closed";

/// How long the end of other shards is waited for, which may say why one ended.
const OTHER_SHARDS: Duration = Duration::from_secs(1);

/// How often the states of a flow are cleaned up that names no interval of its own.
const CLEAN_INTERVAL: Duration = Duration::from_secs(300);

/// How often a stage tells its throughput and its lag.
const TELL_PROGRESS: Duration = Duration::from_secs(10);

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
    missed: Mutex<MissedCheckpoints>,
    life: Mutex<Life>,
}

/// The changing part of a stage.
struct Life {
    state: StageState,
    failure: Option<StageFailure>,
    starts: u32,
    /// The last checkpoint that was taken here.
    checkpoint: Option<u64>,
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
    /// The last checkpoint that was taken here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// An alert that is no failure: checkpoints that are not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
    /// How many values each declared metric saw in committed epochs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, u64>,
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
            missed: Mutex::default(),
            life: Mutex::new(Life {
                state: StageState::Created,
                failure: None,
                starts: 0,
                checkpoint: None,
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
            checkpoint: life.checkpoint,
            alert: self.0.missed.lock().alert(),
            metrics: self.0.telemetry.observed(),
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

    /// Whether everything that has come to the tasks here is committed, and no timer is due. A stage that runs without a
    /// task is not at rest: it waits for one.
    pub async fn is_at_rest(&self) -> bool {
        let found = self
            .ask(|machine, time| {
                let tasks = machine.partitions().len();
                machine.is_at_rest(time.now_ms).then_some(tasks)
            })
            .await;
        let tasks: Option<usize> = found.into_iter().sum();
        tasks.is_some_and(|tasks| tasks > 0)
    }

    /// Looks at every task that runs here.
    async fn look<T: Send + 'static>(
        &self,
        look: impl Fn(&dyn TaskOperators, &dyn crate::task_state::TaskState, TaskTime) -> T
        + Send
        + Sync
        + 'static,
    ) -> Vec<T> {
        let found = self
            .ask(move |machine, time| {
                let tasks = machine.partitions().into_iter();
                let tasks = tasks.filter_map(|partition| machine.task(partition));
                tasks
                    .map(|task| look(&*task.chain, &task.state, time))
                    .collect::<Vec<T>>()
            })
            .await;
        found.into_iter().flatten().collect()
    }

    /// Asks every shard that runs here, between two of its steps.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl Fn(&Machine, TaskTime) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let ask = Arc::new(ask);
        let shards: Vec<_> = {
            let life = self.0.life.lock();
            let shards = life.shards.iter();
            shards.map(|shard| shard.questions.clone()).collect()
        };
        let mut answers = Vec::new();
        for questions in shards {
            let (tell, told) = oneshot::channel();
            let ask = Arc::clone(&ask);
            let question = ShardQuestion::Look(Box::new(move |machine: &Machine, time| {
                tell.send(ask(machine, time)).ok();
            }));
            if questions.send(question).is_ok()
                && let Ok(answer) = told.await
            {
                answers.push(answer);
            }
        }
        answers
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
