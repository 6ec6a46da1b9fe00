//! The words between the loop of a task and its operators: what goes in, and what comes out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::books::Place;
use tidegate_core::{EventId, Failure};
use tidegate_log::{Headers, StoredRecord};

use crate::task_state::TaskState;

/// The time of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskTime {
    /// Processing time in milliseconds since 1970. It never goes back, whatever the wall clock does.
    pub now_ms: i64,
    /// The start of the epoch, which expressions see as `now()`.
    pub epoch_start_ms: i64,
}

/// A topic that a task reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInput {
    /// The stream, or the name of the repartition topic.
    pub stream: Arc<str>,
    /// Whether it is a topic of the stage's own, through which records get the key of the stage.
    pub is_repartition: bool,
}

/// A record that a task handles.
#[derive(Debug, Clone, Copy)]
pub struct InputRecord<'a> {
    /// Which of the [inputs](TaskOperators::inputs) it came by.
    pub input: usize,
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The id of its event.
    pub id: EventId,
    /// The record.
    pub record: &'a StoredRecord,
}

/// Which partition an output goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputPartition {
    /// The one of its key.
    #[default]
    ByKey,
    /// Every one.
    Broadcast,
    /// One after the other.
    RoundRobin,
}

/// A record that a task writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageOutput {
    /// A stream of the plan; also a stream of dead letters, or a repartition topic.
    pub stream: Arc<str>,
    /// Which partition it goes to.
    pub to: OutputPartition,
    /// The key.
    pub key: Option<Bytes>,
    /// The content.
    pub value: Option<Bytes>,
    /// The headers, without the id of the event.
    pub headers: Headers,
    /// The id of the event.
    pub id: EventId,
    /// When it was made.
    pub timestamp_ms: u64,
    /// The input of a dead letter, so that it is found again in the books of that input.
    pub dead_letter_of: Option<usize>,
    /// The other events that a dead letter stands for, each with the input in whose books it is.
    pub stands_for: Vec<(usize, EventId)>,
}

/// An event that has another place now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageMove {
    /// Which of the [inputs](TaskOperators::inputs) keeps its books.
    pub input: usize,
    /// The event.
    pub id: EventId,
    /// Where it was: queued, or parked.
    pub from: Place,
    /// Where it is.
    pub to: Place,
}

/// How much of a record that the log refuses is in its dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedContent {
    /// Key, value and headers.
    All,
    /// Where it lies, and nothing of it: a letter with all of it was refused, too.
    Nothing,
}

/// Everything that comes out of records and timers.
#[derive(Debug, Clone, Default)]
pub struct ChainOutput {
    /// Records to write, in their order.
    pub outputs: Vec<StageOutput>,
    /// Events that moved.
    pub moves: Vec<StageMove>,
    /// Values that metrics of the plan saw, by their index there, as JSON.
    pub metrics: Vec<(usize, String)>,
}

impl ChainOutput {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty() && self.moves.is_empty() && self.metrics.is_empty()
    }
}

/// A record that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRecord {
    /// Which of the inputs keeps its books.
    pub input: usize,
    /// The event.
    pub id: EventId,
    /// The state that it waits in: `await/…`, `hold/…`.
    pub step: String,
    /// Its key.
    pub key: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: i64,
    /// When its time is up.
    pub due_ms: i64,
}

/// The operators of one task, as one synchronous chain. Everything that outlives a call is in the [`TaskState`].
///
/// An implementation must keep: the same calls with the same state give the same results, so that an epoch that is
/// done again is done alike; a record that fails leaves the state as it was, and takes the way of its handler.
pub trait TaskOperators: Send + Sync + fmt::Debug {
    /// The topics that it reads: the streams of the sources, then the repartition topics.
    fn inputs(&self) -> &[ChainInput];

    /// Handles one record.
    ///
    /// # Errors
    /// Only what stops the stage; failures of the record have their way out.
    fn record(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        out: &mut ChainOutput,
    ) -> Result<(), Failure>;

    /// Makes one record a dead letter, since the log refuses what [`record`](Self::record) makes of it.
    ///
    /// # Errors
    /// Only what stops the stage.
    fn reject(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        reason: (&Failure, RejectedContent),
        out: &mut ChainOutput,
    ) -> Result<(), Failure>;

    /// Fires the first timers that are due until one of them makes something. That becomes a dead letter, since the log
    /// refuses it.
    ///
    /// # Errors
    /// Only what stops the stage.
    fn reject_timer(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        reason: (&Failure, RejectedContent),
        out: &mut ChainOutput,
    ) -> Result<(), Failure>;

    /// Fires timers that are due, at most so many. Says whether more are.
    ///
    /// # Errors
    /// Only what stops the stage.
    fn fire(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure>;

    /// The processing time at which [`fire`](Self::fire) has something to do though no record comes.
    fn next_due(&self, state: &dyn TaskState) -> Option<i64>;

    /// Forgets what it holds in memory and reads it again, as after a recovery.
    fn reload(&mut self, state: &dyn TaskState, time: TaskTime);

    /// Everything that is not committed was taken back, and the state with it.
    fn aborted(&mut self, state: &dyn TaskState);

    /// The open epoch is closed, and on its way.
    fn sealed(&mut self);

    /// The epoch that is on its way the longest was committed.
    fn committed(&mut self);

    /// The end of all inputs: fires timers, due or not, at most so many. Says whether more are left.
    ///
    /// # Errors
    /// Only what stops the stage.
    fn finish(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure>;

    /// Removes a batch of expired values of the states that are not cleaned up otherwise. Says whether all are gone.
    ///
    /// Calls that follow each other go on where the last one ended.
    ///
    /// # Errors
    /// A row cannot be read.
    fn clean(&mut self, state: &mut dyn TaskState, time: TaskTime) -> Result<bool, Failure>;

    /// Visits the records that wait.
    fn pending(&self, state: &dyn TaskState, visit: &mut dyn FnMut(PendingRecord));

    /// The values of a declared state that have not expired, as JSON by key.
    fn values(&self, state: &dyn TaskState, name: &str, time: TaskTime)
    -> BTreeMap<String, String>;
}
