//! The decisions of a shard: a pure machine from inputs and time to effects.
//!
//! It owns the tasks of the shard. Records go through the operators of their task into its open epoch. The epochs of
//! all tasks are closed together and become one commit. Meanwhile the next epoch runs on top of it. A commit that was
//! not done takes both back.

mod alignment;
mod epoch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::LossReason;
use tidegate_core::{Code, Failure, Offset, Topic};
use tidegate_log::{
    Assignment, Batch, Commit, Fence, LogError, RecordPosition, SessionEvent, TopicPartition,
};

use crate::aligner::Aligner;
use crate::chain::TaskOperators;
use crate::recovery::RecoveredTask;
use crate::task::{LeftTask, QueuedRecord, RecordPlace, StageTask, TaskInput};

/// The first wait after a commit that was not done; doubled up to [`LONGEST_WAIT_MS`].
const FIRST_WAIT_MS: i64 = 50;
const LONGEST_WAIT_MS: i64 = 5_000;
/// A task that is idle commits its offsets again after this time, so that a broker does not forget them.
const IDLE_COMMIT_MS: i64 = 60 * 60 * 1_000;
/// How long the tasks have to come to the marker of a checkpoint.
const ALIGN_MS: i64 = 10_000;
/// Why the tasks are not aligned where their partitions move.
const MOVED: &str = "partitions moved";
/// Timers that fire at once.
const MAX_FIRED: usize = 1_000;
/// How long the state of a task is kept that was let go. It often comes back soon, and nobody went on from there.
const LEFT_KEPT_MS: i64 = 60_000;
/// Records that wait in the tasks of a shard before no more are taken.
const MAX_QUEUED: usize = 20_000;

/// The topic behind a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkTopic {
    /// Its name.
    pub topic: Topic,
    /// Its partitions.
    pub partitions: u32,
    /// Bytes that a record may have there.
    pub max_record_bytes: usize,
}

/// The settings of a machine.
#[derive(Debug, Clone)]
pub struct MachineOptions {
    /// The name of the log, from which records without an id get theirs.
    pub cluster: String,
    /// The topics of the inputs, in the order of [`TaskOperators::inputs`].
    pub inputs: Vec<Topic>,
    /// Partitions of each input.
    pub partitions: u32,
    /// Where the streams are written to.
    pub sinks: BTreeMap<String, SinkTopic>,
    /// The changelog.
    pub changelog: Topic,
    /// Records that close an epoch.
    pub epoch_records: u64,
    /// The time that closes an epoch.
    pub epoch_interval: Duration,
    /// Bytes that close an epoch.
    pub epoch_bytes: usize,
    /// Whether the whole state is written into the changelog again and again. Checkpoints that every host reaches take
    /// its place.
    pub rolls_base: bool,
    /// How often the states are cleaned up that are not cleaned up otherwise.
    pub clean_interval: Duration,
    /// The value of the header that names the group of a dead letter.
    pub group: String,
}

/// An event for a machine.
#[derive(Debug)]
pub enum MachineInput {
    /// An event of the session.
    Session(SessionEvent),
    /// The state of a task was read, or cannot be.
    Recovered {
        /// The partition.
        partition: i32,
        /// The assignment for which it was read.
        fence: Fence,
        /// The state.
        recovered: Result<RecoveredTask, Failure>,
    },
    /// The commit on its way was done. The places of its records are not always known.
    Committed(Option<Vec<RecordPosition>>),
    /// The commit on its way was not done.
    NotCommitted(LogError),
    /// Nobody can tell whether the commit on its way was done.
    CommitUnknown(LogError),
    /// A checkpoint begins: its marker enters the queues of all tasks.
    Checkpoint,
    /// All inputs are read to their ends: what waits in the state goes on now, as in `mode batch`.
    Finish,
    /// Time passed.
    Tick,
    /// It shall take nothing new, finish what waits in its tasks, and end.
    Drain,
}

/// Work to be done for a machine.
#[derive(Debug)]
pub enum Effect {
    /// Read the state of a task.
    Recover {
        /// The partition.
        partition: i32,
        /// The assignments of its inputs, in their order.
        inputs: Vec<Assignment>,
    },
    /// Commit.
    Commit(Commit),
    /// Read on from here.
    Seek(TopicPartition, Fence, Offset),
    /// Let partitions go.
    Release(Vec<TopicPartition>),
    /// Remove what lies before.
    Cut(TopicPartition, Offset),
    /// The tasks were aligned, and what came before the marker is committed: the text beside the offsets of each task,
    /// and the offsets.
    Aligned(BTreeMap<i32, AlignedTask>),
    /// The tasks were not aligned, for this reason.
    NotAligned(&'static str),
    /// The stage cannot go on.
    Fail(Failure),
    /// Everything is finished.
    Drained,
}

/// The text beside the committed offsets of a task, and these offsets by topic.
pub type AlignedTask = (String, Vec<(Topic, i64)>);

/// Makes the operators of a task.
pub type NewOperators = Arc<dyn Fn() -> Result<Box<dyn TaskOperators>, Failure> + Send + Sync>;

/// A commit on its way.
#[derive(Debug, Default)]
struct InFlight {
    tasks: Vec<SentTask>,
    counts: MachineCounts,
    news: MachineNews,
}

/// The news of committed epochs beside their counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineNews {
    /// Values that metrics of the plan saw, by their index there, as JSON.
    pub metrics: Vec<(usize, String)>,
    /// Lost events by their reason.
    pub losses: BTreeMap<LossReason, u64>,
}

/// The epoch of one task within a commit.
#[derive(Debug)]
struct SentTask {
    partition: i32,
    /// The assignment of the task: a later one takes no answer of an earlier one for its own.
    fence: Option<Fence>,
    records: u64,
    last: Option<RecordPlace>,
    has_fired: bool,
    /// Where the first piece of a base is among the records of the commit.
    first_piece: Option<usize>,
}

/// Counts of a machine since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCounts {
    /// Records of committed epochs.
    pub records_in: u64,
    /// Outputs of committed epochs.
    pub records_out: u64,
    /// Committed epochs.
    pub epochs: u64,
    /// Epochs that were taken back.
    pub aborted: u64,
    /// Dead letters of committed epochs.
    pub dead_letters: u64,
}

/// The pure machine of a shard.
pub struct Machine {
    options: MachineOptions,
    new_operators: NewOperators,
    /// Assignments by partition and input, of tasks that do not run yet, too.
    assigned: BTreeMap<i32, Vec<Option<Assignment>>>,
    /// Partitions that are to be let go.
    revoking: BTreeSet<TopicPartition>,
    tasks: BTreeMap<i32, StageTask>,
    /// Tasks that were let go, for a while.
    left: BTreeMap<i32, LeftTask>,
    in_flight: Option<InFlight>,
    aligner: Aligner,
    /// When the open epoch began.
    opened_ms: Option<i64>,
    open_bytes: usize,
    wait_until_ms: i64,
    failures: u32,
    /// Records that close an epoch now: fewer than usual after the log refused one for what it held.
    epoch_limit: u64,
    /// When the states are cleaned up next.
    clean_at_ms: Option<i64>,
    is_finishing: bool,
    is_draining: bool,
    is_ended: bool,
    round_robin: u32,
    /// Records that were handled, committed or not.
    handled: u64,
    counts: MachineCounts,
    news: MachineNews,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("tasks", &self.tasks.keys())
            .field("is_draining", &self.is_draining)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine without tasks.
    #[must_use]
    pub fn new(options: MachineOptions, new_operators: NewOperators) -> Self {
        Self {
            epoch_limit: options.epoch_records,
            options,
            new_operators,
            assigned: BTreeMap::new(),
            revoking: BTreeSet::new(),
            tasks: BTreeMap::new(),
            left: BTreeMap::new(),
            in_flight: None,
            aligner: Aligner::default(),
            opened_ms: None,
            open_bytes: 0,
            wait_until_ms: 0,
            failures: 0,
            clean_at_ms: None,
            is_finishing: false,
            is_draining: false,
            is_ended: false,
            round_robin: 0,
            handled: 0,
            counts: MachineCounts::default(),
            news: MachineNews::default(),
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> MachineCounts {
        self.counts
    }

    /// The news of committed epochs, told once.
    pub fn take_news(&mut self) -> MachineNews {
        std::mem::take(&mut self.news)
    }

    /// Records that were handled since the start, committed or not.
    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// The tasks that run, with their last committed epoch, entries and bytes.
    pub fn tasks(&self) -> impl Iterator<Item = TaskStatus> {
        self.tasks.values().map(|task| {
            let (entries, bytes) = task.state.backend().size();
            TaskStatus {
                partition: task.partition,
                epoch: task.committed_epoch(),
                entries,
                bytes,
                queued: task.queue.len() as u64,
            }
        })
    }

    /// Whether it was told to [finish](MachineInput::Finish), and each of its tasks has committed that.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let is_finished = |partition: &i32| {
            let task = self.tasks.get(partition);
            task.is_some_and(|task| task.is_finished && !task.is_open() && task.queue.is_empty())
        };
        self.is_finishing && self.in_flight.is_none() && self.assigned.keys().all(is_finished)
    }

    /// Whether every task that it was given runs, and has nothing to do now.
    #[must_use]
    pub fn is_at_rest(&self, now_ms: i64) -> bool {
        let is_at_rest = |partition: &i32| {
            let task = self.tasks.get(partition);
            task.is_some_and(|task| task.is_at_rest(now_ms))
        };
        let is_idle = self.in_flight.is_none() && self.revoking.is_empty();
        is_idle && self.assigned.keys().all(is_at_rest)
    }

    /// Whether it takes more records now.
    #[must_use]
    pub fn is_hungry(&self) -> bool {
        let queued: usize = self.tasks.values().map(|task| task.queue.len()).sum();
        queued < MAX_QUEUED && !self.is_ended && !self.is_draining
    }

    /// When it has something to do though nothing happens.
    #[must_use]
    pub fn wakes_at(&self, now_ms: i64) -> Option<i64> {
        if self.is_ended {
            return None;
        }
        let waits = self.tasks.values().any(|task| !task.queue.is_empty());
        let mut at = None::<i64>;
        let mut soonest = |due: i64| at = Some(at.map_or(due, |at| at.min(due)));
        self.aligner.until_ms().into_iter().for_each(&mut soonest);
        if self.wait_until_ms > now_ms {
            soonest(self.wait_until_ms);
            return at;
        }
        if self.is_draining {
            // The commit on its way is all that it waits for.
            return self.in_flight.is_none().then_some(now_ms);
        }
        if let (Some(opened), None) = (self.opened_ms, &self.in_flight) {
            soonest(opened.saturating_add(self.interval_ms()));
        }
        if self.is_full(now_ms) && self.in_flight.is_some() {
            // Nothing can be done before the commit on its way is answered.
            return at;
        }
        if waits && self.in_flight.is_none() {
            soonest(now_ms);
        }
        let cleans = self.tasks.values().any(StageTask::cleans);
        if let Some(clean) = self.clean_at_ms.filter(|_| !self.tasks.is_empty()) {
            soonest(if cleans { now_ms } else { clean });
        }
        for left in self.left.values() {
            soonest(left.left_ms.saturating_add(LEFT_KEPT_MS));
        }
        for task in self.tasks.values() {
            if let Some(due) = task.chain.next_due(&task.state) {
                soonest(due.max(now_ms.saturating_add(1)));
            }
            soonest(task.last_commit_ms.saturating_add(IDLE_COMMIT_MS));
        }
        at
    }

    fn interval_ms(&self) -> i64 {
        i64::try_from(self.options.epoch_interval.as_millis()).unwrap_or(i64::MAX)
    }

    /// Takes what happened, works, and says what is to be done.
    pub fn step(&mut self, input: MachineInput, now_ms: i64) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_ended {
            return effects;
        }
        match input {
            MachineInput::Session(event) => self.session(event, now_ms, &mut effects),
            MachineInput::Recovered {
                partition,
                fence,
                recovered,
            } => self.recovered(partition, fence, recovered, now_ms, &mut effects),
            MachineInput::Committed(positions) => {
                self.committed(positions.as_deref(), &mut effects)
            }
            MachineInput::NotCommitted(error) => self.not_committed(&error, now_ms, &mut effects),
            MachineInput::CommitUnknown(error) => {
                // The next start reads again how far it was committed.
                let code = Code::from_static("stage.commit.unknown");
                let message = format!("nobody can tell whether an epoch was committed: {error}");
                self.fail(Failure::transient(code, message), &mut effects);
            }
            MachineInput::Checkpoint => self.begin_alignment(now_ms, &mut effects),
            MachineInput::Finish => self.is_finishing = true,
            MachineInput::Tick => {}
            MachineInput::Drain => self.is_draining = true,
        }
        if !self.is_ended
            && let Err(failure) = self.work(now_ms, &mut effects)
        {
            self.fail(failure, &mut effects);
        }
        effects
    }

    fn fail(&mut self, failure: Failure, effects: &mut Vec<Effect>) {
        self.is_ended = true;
        effects.push(Effect::Fail(failure));
    }

    fn session(&mut self, event: SessionEvent, now_ms: i64, effects: &mut Vec<Effect>) {
        match event {
            SessionEvent::Assigned(assignments) => {
                for assignment in assignments {
                    self.assign(assignment, now_ms, effects);
                }
            }
            SessionEvent::Revoking(partitions) => {
                self.end_alignment(MOVED, effects);
                for at in partitions {
                    self.revoking.insert(at);
                }
            }
            SessionEvent::Lost(partitions) => {
                self.end_alignment(MOVED, effects);
                for at in partitions {
                    self.forget(&at, now_ms);
                    self.revoking.remove(&at);
                }
            }
            SessionEvent::Records { fence, batch } => self.records(fence, batch),
        }
    }

    fn input_of(&self, at: &TopicPartition) -> Option<usize> {
        self.options
            .inputs
            .iter()
            .position(|topic| *topic == at.topic)
    }

    fn assign(&mut self, assignment: Assignment, now_ms: i64, effects: &mut Vec<Effect>) {
        let Some(input) = self.input_of(&assignment.at) else {
            return;
        };
        let partition = assignment.at.partition.0;
        self.revoking.remove(&assignment.at);
        self.leave(partition, now_ms);
        let inputs = self.options.inputs.len();
        let slots = self
            .assigned
            .entry(partition)
            .or_insert_with(|| vec![None; inputs]);
        slots[input] = Some(assignment);
        let all: Option<Vec<Assignment>> = slots.iter().cloned().collect();
        let Some(inputs) = all else { return };
        match self.left.remove(&partition) {
            Some(left) if left.is_at(&inputs) => {
                let fence = inputs.first().map_or(Fence(0), |first| first.fence);
                self.recovered(partition, fence, Ok(left.recovered), now_ms, effects);
            }
            Some(_) | None => effects.push(Effect::Recover { partition, inputs }),
        }
    }

    /// A task stops. Its committed state is kept for a while.
    fn leave(&mut self, partition: i32, now_ms: i64) {
        if let Some(task) = self.tasks.remove(&partition) {
            self.left.insert(partition, task.leave(now_ms));
        }
    }

    /// A partition is not ours any more: the task without it stops.
    fn forget(&mut self, at: &TopicPartition, now_ms: i64) {
        let Some(input) = self.input_of(at) else {
            return;
        };
        let partition = at.partition.0;
        if let Some(slots) = self.assigned.get_mut(&partition) {
            slots[input] = None;
            if slots.iter().all(Option::is_none) {
                self.assigned.remove(&partition);
            }
        }
        self.leave(partition, now_ms);
    }

    fn records(&mut self, fence: Fence, batch: Batch) {
        let Some(input) = self.input_of(&batch.at) else {
            return;
        };
        let Some(task) = self.tasks.get_mut(&batch.at.partition.0) else {
            // The task reads them again once its state is there.
            return;
        };
        let is_ours = task.inputs[input].fence == fence && !self.revoking.contains(&batch.at);
        if !is_ours || self.is_draining {
            return;
        }
        let last = batch.records.len().saturating_sub(1);
        let next = batch.next.0;
        for (number, stored) in batch.records.into_iter().enumerate() {
            let next = match number == last {
                true => next,
                false => stored.offset.0 + 1,
            };
            task.queue.push_back(QueuedRecord {
                input,
                stored,
                next,
            });
        }
    }

    fn recovered(
        &mut self,
        partition: i32,
        fence: Fence,
        recovered: Result<RecoveredTask, Failure>,
        now_ms: i64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slots) = self.assigned.get(&partition) else {
            return;
        };
        let all: Option<Vec<Assignment>> = slots.iter().cloned().collect();
        let Some(assignments) = all else { return };
        if assignments.first().is_none_or(|first| first.fence != fence) {
            return;
        }
        let recovered = match recovered {
            Ok(recovered) => recovered,
            Err(failure) => return self.fail(failure, effects),
        };
        let mut inputs = Vec::new();
        let mut mark = String::new();
        for assignment in assignments {
            if let Some(committed) = &assignment.committed {
                mark.clone_from(&committed.metadata);
            }
            let position = match &assignment.committed {
                Some(committed) => committed.next,
                None => assignment.position,
            };
            let Assignment { at, fence, .. } = assignment;
            // Records that came while the state was read were not kept.
            effects.push(Effect::Seek(at.clone(), fence, position));
            inputs.push(TaskInput::new(at, fence, position.0));
        }
        let chain = match (self.new_operators)() {
            Ok(chain) => chain,
            Err(failure) => return self.fail(failure, effects),
        };
        let task = StageTask::new(partition, inputs, chain, recovered, mark, now_ms);
        self.tasks.insert(partition, task);
    }

    /// Whether epochs are shorter than usual, since the log refused one for what it held.
    fn is_careful(&self) -> bool {
        self.epoch_limit < self.options.epoch_records
    }

    /// Timers that fire at once.
    fn fired_at_once(&self) -> usize {
        let limit = usize::try_from(self.epoch_limit).unwrap_or(usize::MAX);
        MAX_FIRED.min(limit).max(1)
    }

    /// Whether the open epoch has to be closed.
    fn is_full(&self, now_ms: i64) -> bool {
        let records: u64 = self.tasks.values().map(|task| task.records).sum();
        let is_old = |opened: i64| now_ms >= opened.saturating_add(self.interval_ms());
        records >= self.epoch_limit
            || self.is_careful() && self.tasks.values().any(StageTask::has_fired)
            || self.open_bytes >= self.options.epoch_bytes
            || self.opened_ms.is_some_and(is_old)
    }

    /// Handles what waits, closes the epoch if it is time, and lets go what is to be let go.
    fn work(&mut self, now_ms: i64, effects: &mut Vec<Effect>) -> Result<(), Failure> {
        if self.aligner.until_ms().is_some_and(|until| now_ms >= until) {
            self.end_alignment("the tasks did not come to the marker in time", effects);
        }
        self.left
            .retain(|_, left| now_ms < left.left_ms.saturating_add(LEFT_KEPT_MS));
        if now_ms < self.wait_until_ms {
            self.release(now_ms, effects);
            return Ok(());
        }
        loop {
            let is_done = self.fill(now_ms)?;
            let wants = self.is_full(now_ms)
                || self.aligner.is_aligned()
                || self.is_draining
                || !self.revoking.is_empty()
                || self.tasks.values().any(|task| {
                    let is_last = task.is_finished && task.is_open();
                    is_last || now_ms.saturating_sub(task.last_commit_ms) >= IDLE_COMMIT_MS
                });
            if wants && self.in_flight.is_none() {
                self.close(now_ms, effects);
            }
            // With the epoch on its way there is room for the next one.
            if is_done || self.is_full(now_ms) {
                break;
            }
        }
        self.release(now_ms, effects);
        let is_idle = self.in_flight.is_none()
            && self
                .tasks
                .values()
                .all(|task| !task.is_open() && task.queue.is_empty());
        if is_idle && self.is_draining {
            self.is_ended = true;
            effects.push(Effect::Drained);
        }
        Ok(())
    }

    /// Handles records and timers until the epoch is full or nothing waits. Says whether nothing waits.
    fn fill(&mut self, now_ms: i64) -> Result<bool, Failure> {
        self.clean(now_ms)?;
        let partitions: Vec<i32> = self.tasks.keys().copied().collect();
        let mut is_done = true;
        let (at_once, is_careful) = (self.fired_at_once(), self.is_careful());
        for partition in partitions {
            if self.is_revoking(partition) {
                continue;
            }
            loop {
                let task = self.tasks.get(&partition);
                if task.is_some_and(StageTask::is_at_marker) {
                    // Nothing behind the marker is handled before the others have come to it.
                    self.aligner.arrived(partition);
                    break;
                }
                if self.is_full(now_ms) {
                    return Ok(false);
                }
                let epoch_start = self.opened_ms.unwrap_or(now_ms);
                let Some(task) = self.tasks.get_mut(&partition) else {
                    break;
                };
                let before = task.records;
                let (bytes, outputs) = (task.open_bytes(), task.out.outputs.len());
                // Timers can set timers for ever; those of a draining stage fire in its next run.
                if !self.is_draining {
                    task.fire(now_ms, epoch_start, at_once)?;
                }
                let mut goes_on = task.has_due && !self.is_draining;
                // The log refuses something: each timer and each record has an epoch of its own.
                let is_alone = task.has_fired() && is_careful;
                if !goes_on && !is_alone {
                    goes_on = task.handle(now_ms, epoch_start, &self.options.cluster)?;
                }
                if !goes_on && !is_alone && self.is_finishing && !task.is_finished {
                    goes_on = task.finish(now_ms, epoch_start, at_once)?;
                }
                self.handled += task.records - before;
                let written = task.out.outputs.iter().skip(outputs);
                let written: usize = written
                    .map(|output| {
                        let value = output.value.as_ref().map_or(0, bytes::Bytes::len);
                        let key = output.key.as_ref().map_or(0, bytes::Bytes::len);
                        value + key + output.headers.as_bytes().len() + 96
                    })
                    .sum();
                self.open_bytes += written + task.open_bytes().saturating_sub(bytes);
                if task.is_open() && self.opened_ms.is_none() {
                    self.opened_ms = Some(now_ms);
                }
                goes_on |= is_alone;
                is_done &= !goes_on;
                if !goes_on {
                    break;
                }
            }
        }
        Ok(is_done)
    }

    /// Does a batch of the clean-up of each task, once it is time.
    fn clean(&mut self, now_ms: i64) -> Result<(), Failure> {
        let interval = i64::try_from(self.options.clean_interval.as_millis()).unwrap_or(i64::MAX);
        let next = now_ms.saturating_add(interval);
        let at = *self.clean_at_ms.get_or_insert(next);
        if now_ms >= at {
            self.clean_at_ms = Some(next);
            self.tasks.values_mut().for_each(StageTask::begin_clean);
        }
        if self.is_full(now_ms) || self.is_draining || !self.revoking.is_empty() {
            return Ok(());
        }
        let epoch_start = self.opened_ms.unwrap_or(now_ms);
        for task in self.tasks.values_mut() {
            if task.is_at_marker() {
                continue;
            }
            let bytes = task.open_bytes();
            task.clean(now_ms, epoch_start)?;
            self.open_bytes += task.open_bytes().saturating_sub(bytes);
            if task.is_open() && self.opened_ms.is_none() {
                self.opened_ms = Some(now_ms);
            }
        }
        Ok(())
    }

    fn is_revoking(&self, partition: i32) -> bool {
        self.revoking.iter().any(|at| at.partition.0 == partition)
    }

    /// Lets partitions go whose tasks have nothing open and nothing on its way.
    fn release(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        if self.revoking.is_empty() {
            return;
        }
        let revoking: Vec<TopicPartition> = self.revoking.iter().cloned().collect();
        let mut released = Vec::new();
        for at in revoking {
            let partition = at.partition.0;
            let is_open = self.tasks.get(&partition).is_some_and(StageTask::is_open);
            let sent = self.in_flight.as_ref();
            let is_sent =
                sent.is_some_and(|sent| sent.tasks.iter().any(|one| one.partition == partition));
            if !is_open && !is_sent {
                self.revoking.remove(&at);
                released.push(at);
            }
        }
        for at in &released {
            self.forget(at, now_ms);
        }
        if !released.is_empty() {
            effects.push(Effect::Release(released));
        }
    }

    /// A task, to be looked at.
    pub(crate) fn task(&self, partition: i32) -> Option<&StageTask> {
        self.tasks.get(&partition)
    }

    /// The partitions of the tasks that run.
    pub(crate) fn partitions(&self) -> Vec<i32> {
        self.tasks.keys().copied().collect()
    }
}

/// A task that runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaskStatus {
    /// Its partition.
    pub partition: i32,
    /// Its last committed epoch.
    pub epoch: u64,
    /// Entries of its state.
    pub entries: u64,
    /// About how many bytes they take.
    pub bytes: u64,
    /// Records that wait in it.
    pub queued: u64,
}
