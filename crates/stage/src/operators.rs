//! The operators of a task, as one synchronous call chain.
//!
//! A [`TaskChain`] takes the records of a task one by one, without a clock or a thread. Everything that outlives a
//! call lies in the tables of the task. A chain that is made anew from the tables goes on identically.
//! Steps without memory are those of `tidegate_flow::apply`; what is kept between records is here.
//!
//! - `keyed_state`: declared state, its life and its removal.
//! - `combine`: join, await and hold; `window`: windows; `steps`: all others, and the way between them.
//! - `results`: outputs with their ids, dead letters, completions and moves of the books.

mod arrival;
mod chain_plan;
mod combine;
mod due;
mod firing;
mod host;
mod keyed_state;
mod moving;
mod progress;
mod registered;
mod results;
mod steps;
mod task;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::{Code, Failure, FailureClass};
use tidegate_flow::apply::StepRefusal;
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::plan::{FlowPlan, PlanChangeKind, ProcessPlan, StatePlan, compare};

pub use self::keyed_state::{KeyedState, StateResult};
pub use self::registered::{LookupFunction, RegisteredFunctions, RuleFunction, TransformFunction};

use self::chain_plan::{ChainPlan, StateTables};
use self::moving::{InputEvent, Moving, Stepped, ms};
use self::progress::Progress;
use self::results::{InHand, RecordResults};
use crate::chain::{ChainInput, RejectedContent, TaskTime};
use crate::task_state::codec::Writer;
use crate::task_state::journal::{StateJournal, rows_behind};
use crate::task_state::{TableId, TaskState};
use crate::timers::Timers;

/// The table of the chain itself: its progress, the names of the tables, and events that wait in several places.
const CHAIN: TableId = TableId::CHAIN;
/// The last table that a chain may use.
const LAST_TABLE: u16 = 999;
/// The form of what goes through a topic of the stage's own.
const REPARTITION_VERSION: u8 = 1;
/// Timers that fire in one turn where nobody says how many.
const FIRED_AT_ONCE: usize = 1_000;
/// How often the clean-up in the background does a batch, in milliseconds.
const TIDY_EVERY_MS: i64 = 1_000;
/// Rows that one batch of a clean-up looks at.
const CLEANUP_BATCH: usize = 256;

/// The settings of a chain beside its plan.
#[derive(Debug, Clone)]
pub struct ChainOptions {
    /// The instance of the stage, which dead letters name.
    pub instance: String,
    /// Bytes that an output may have, with its key and its headers. A record that makes a larger one fails.
    pub max_record_bytes: usize,
    /// The same for streams whose topics take other records than most.
    pub max_stream_bytes: BTreeMap<String, usize>,
    /// How long a stream may be silent before it stops holding back the watermark, where it is not 30 seconds.
    pub idle_timeout_ms: BTreeMap<String, u64>,
    /// Whether records whose key is not that of the step go through a topic of the stage's own. With one
    /// partition they need not.
    pub is_repartitioned: bool,
    /// The functions and lookups of the process.
    pub functions: Arc<RegisteredFunctions>,
}

impl Default for ChainOptions {
    fn default() -> Self {
        Self {
            instance: "0".to_owned(),
            max_record_bytes: 1_000_000,
            max_stream_bytes: BTreeMap::new(),
            idle_timeout_ms: BTreeMap::new(),
            is_repartitioned: true,
            functions: Arc::default(),
        }
    }
}

impl ChainOptions {
    /// Bytes that an output for a stream may have.
    fn record_limit(&self, stream: &str) -> usize {
        let of_stream = self.max_stream_bytes.get(stream).copied();
        of_stream.unwrap_or(self.max_record_bytes)
    }
}

/// Why a chain cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The plan has no such process.
    #[error("the plan has no process `{0}`")]
    Process(String),
    /// The plan was read from JSON, so its expressions are texts.
    #[error("the expressions of the process `{0}` are not checked; check its flow again")]
    Unchecked(String),
}

/// The operators of one task.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::{EventId, Offset};
/// use tidegate_flow::check::{Registered, check_flows};
/// use tidegate_log::{Record, StoredRecord};
/// use tidegate_stage::chain::{ChainOutput, InputRecord, TaskOperators, TaskTime};
/// use tidegate_stage::operators::{ChainOptions, TaskChain};
/// use tidegate_stage::state::{LayeredState, backend::MapBackend};
/// let flow = "process big receive orders filter amount > 10 emit to large end";
/// let plan = check_flows(&[flow], &Registered::default()).plan.expect("is right");
/// let mut chain = TaskChain::new(Arc::new(plan), "big", ChainOptions::default())?;
/// let mut state = LayeredState::new(Box::new(MapBackend::default()));
/// let (mut out, time) = (ChainOutput::default(), TaskTime::default());
/// chain.reload(&state, time);
/// let record = StoredRecord { offset: Offset(0), record: Record::new(r#"{"amount":50}"#) };
/// let id = EventId::from_u128(7);
/// let input = InputRecord { input: 0, topic: "orders", partition: 0, id, record: &record };
/// chain.record(&mut state, time, input, &mut out)?;
/// assert_eq!((&*out.outputs[0].stream, out.outputs[0].id), ("large", id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TaskChain {
    fixed: ChainPlan,
    progress: Progress,
    timers: Timers,
    /// The progress as it lies in the table.
    stored: Vec<u8>,
    /// Rows that name the tables and are not written yet.
    names: Vec<(Vec<u8>, Bytes)>,
    /// Why the stored state cannot be used.
    refused: Option<String>,
    is_slow: bool,
    /// Where the clean-up in the background goes on, by the id of the state.
    cleaned_to: BTreeMap<String, Vec<u8>>,
    /// When the clean-up in the background did its last batch.
    tidied_at: Option<i64>,
    /// The next entry that a timer takes out is a dead letter.
    rejecting: Option<Rejecting>,
}

/// One record or one timer on its way.
#[derive(Debug)]
struct Run<'r> {
    fixed: &'r ChainPlan,
    progress: &'r mut Progress,
    timers: &'r mut Timers,
    journal: StateJournal<'r>,
    now: i64,
    epoch_start: i64,
    results: RecordResults,
    /// The record that came, while it is worked on.
    in_hand: Option<InHand>,
    /// The writes of a timer before its entry went on, and what left with it.
    taken_out: Option<(usize, BTreeMap<InputEvent, i64>)>,
    /// Why the next entry that a timer takes out is a dead letter, and how much of it is kept.
    rejecting: Option<Rejecting>,
}

/// Why the log refuses what a timer makes, and how much of its entry the dead letter keeps.
type Rejecting = (StepRefusal, RejectedContent);

impl Run<'_> {
    /// The time that timers run on: the watermark, or the clock.
    fn reached(&self) -> i64 {
        match self.fixed.process.time {
            Some(_) => self.progress.watermark,
            None => self.now,
        }
    }

    /// From here on, a failure takes back what was written, and leaves out the entry of the timer.
    fn taken_out(&mut self) {
        self.taken_out = Some((self.journal.mark(), self.results.left()));
    }

    /// Whether the log takes what a timer makes of its entry.
    fn may_leave(&self, moving: &Moving) -> Stepped {
        match &self.rejecting {
            None => Ok(()),
            Some((refusal, _)) => Err(moving.refuses(refusal.clone())),
        }
    }
}

/// A row that is not what was written.
pub(crate) fn damaged(table: TableId) -> Failure {
    let message = format!("a row of table {} cannot be read", table.0);
    Failure::new(
        FailureClass::System,
        Code::from_static("stage.state.damaged"),
        message,
    )
}

/// A failure of the stage, as a step without memory reports it.
fn evaluation(failure: Failure) -> Box<EvaluationFailure> {
    Box::new(EvaluationFailure {
        class: failure.class,
        code: failure.code,
        message: failure.message,
    })
}

/// A failure of class System is not the record's: it stops the stage.
fn stops(refusal: &StepRefusal) -> Result<(), Failure> {
    match refusal.failure.class {
        FailureClass::System => Err(Failure::from((*refusal.failure).clone())),
        FailureClass::Transient | FailureClass::Permanent => Ok(()),
    }
}

impl TaskChain {
    /// A chain of one process of a plan. It must be [reloaded](crate::chain::TaskOperators::reload) before its first record.
    ///
    /// # Errors
    /// The plan has no such process, or its expressions are not checked.
    pub fn new(
        plan: Arc<FlowPlan>,
        process: &str,
        options: ChainOptions,
    ) -> Result<Self, ChainError> {
        let Some(found) = plan.processes.get(process).cloned() else {
            return Err(ChainError::Process(process.to_owned()));
        };
        let mut inputs: Vec<ChainInput> = Vec::new();
        let mut add = |stream: &str, is_repartition: bool| {
            if !inputs.iter().any(|input| &*input.stream == stream) {
                let stream = Arc::from(stream);
                inputs.push(ChainInput {
                    stream,
                    is_repartition,
                });
            }
        };
        for source in &found.sources {
            add(&source.stream, false);
        }
        if options.is_repartitioned {
            let topics = found.sources.iter().flat_map(|source| &source.repartition);
            let topics = topics.chain(found.steps.iter().flat_map(|step| &step.repartition));
            topics.for_each(|topic| add(topic, true));
        }
        let streams = found
            .sinks
            .iter()
            .map(|sink| Arc::from(sink.stream.as_str()));
        let fixed = ChainPlan {
            plan,
            name: process.to_owned(),
            dead_letters: format!("{process}_dlq"),
            options,
            inputs,
            tables: BTreeMap::new(),
            streams: streams.collect(),
            process: found,
        };
        let mut chain = Self {
            progress: fixed.begin(),
            timers: Timers::default(),
            fixed,
            stored: Vec::new(),
            names: Vec::new(),
            refused: None,
            is_slow: false,
            cleaned_to: BTreeMap::new(),
            tidied_at: None,
            rejecting: None,
        };
        chain.name_tables(&BTreeMap::new());
        Ok(chain)
    }

    /// Records come faster than they leave, or no longer.
    pub fn set_slow(&mut self, is_slow: bool) {
        self.is_slow = is_slow;
    }

    /// Gives each state its tables: those of its name, or the next free ones.
    fn name_tables(&mut self, stored: &BTreeMap<String, (u16, StatePlan)>) {
        self.fixed.tables.clear();
        self.names.clear();
        let last = stored.values().map(|(table, _)| *table).max();
        let mut next = last.map_or(2, |last| last + 2);
        for state in &self.fixed.process.state {
            let known = stored.get(&state.id);
            let main = known.map_or(next, |(table, _)| *table);
            if known.is_none() {
                next += 2;
            }
            if main >= LAST_TABLE {
                self.refused = Some(format!(
                    "the process has had more than {} states, the limit `tables`",
                    LAST_TABLE / 2
                ));
                return;
            }
            let tables = StateTables {
                main: TableId(main),
                elements: TableId(main + 1),
            };
            self.fixed.tables.insert(state.id.clone(), tables);
            if known.is_none_or(|(_, plan)| plan != state) {
                let mut writer = Writer::default();
                writer.number(u64::from(main));
                let json = serde_json::to_vec(state).unwrap_or_default();
                writer.0.extend_from_slice(&json);
                self.names
                    .push((name_row(&state.id), Bytes::from(writer.0)));
            }
        }
    }

    /// Why the stored state cannot be used by this plan; none where it can.
    fn refusal(
        &self,
        state: &dyn TaskState,
        stored: &BTreeMap<String, (u16, StatePlan)>,
    ) -> Option<String> {
        let plan_of = |states: Vec<StatePlan>| {
            let process = ProcessPlan {
                state: states,
                ..ProcessPlan::default()
            };
            FlowPlan {
                processes: BTreeMap::from([(self.fixed.name.clone(), process)]),
                ..FlowPlan::default()
            }
        };
        let before = plan_of(stored.values().map(|(_, plan)| plan.clone()).collect());
        let now = plan_of(self.fixed.process.state.clone());
        for change in compare(&before, &now, &BTreeMap::new()) {
            let Some(code) = change.code else {
                continue;
            };
            let has_data = || {
                let table = stored.get(&change.id).map(|(table, _)| TableId(*table));
                table.is_some_and(|table| !rows_behind(state, table, None, 1).is_empty())
            };
            if change.kind != PlanChangeKind::Dropped || has_data() {
                return Some(format!("{code}: the state `{}` {}", change.id, change.text));
            }
        }
        None
    }

    /// Writes down what a reload found missing, and refuses to run on state of another plan.
    fn ready(&mut self, state: &mut dyn TaskState, time: TaskTime) -> Result<i64, Failure> {
        if let Some(message) = &self.refused {
            let code = Code::from_static("stage.state.incompatible");
            return Err(Failure::new(FailureClass::System, code, message.as_str()));
        }
        for (key, value) in self.names.drain(..) {
            state.put(CHAIN, &key, value);
        }
        let now = self
            .progress
            .clock
            .map_or(time.now_ms, |clock| clock.max(time.now_ms));
        if self.progress.clock.is_none() {
            for input in &mut self.progress.inputs {
                input.last_seen = now;
            }
        }
        Ok(now)
    }

    fn run<'r>(
        fixed: &'r ChainPlan,
        (progress, timers): (&'r mut Progress, &'r mut Timers),
        state: &'r mut dyn TaskState,
        (now, epoch_start): (i64, i64),
    ) -> Run<'r> {
        Run {
            fixed,
            progress,
            timers,
            journal: StateJournal::new(state),
            now,
            epoch_start,
            results: RecordResults::default(),
            in_hand: None,
            taken_out: None,
            rejecting: None,
        }
    }

    /// Writes the progress down, where something depends on it.
    fn save(&mut self, state: &mut dyn TaskState) {
        // Without event time and timers there is nothing that a restart would have to know.
        if self.fixed.process.time.is_none() && self.fixed.process.state.is_empty() {
            return;
        }
        let is_new = |bytes: &Vec<u8>| *bytes != self.stored;
        if let Some(bytes) = Some(self.progress.to_bytes()).filter(is_new) {
            self.stored.clone_from(&bytes);
            state.put(CHAIN, b"p", Bytes::from(bytes));
        }
    }

    fn move_watermark(&mut self, now: i64) {
        if let Some(time) = &self.fixed.process.time {
            let delay = ms(time.watermark_delay_ms);
            self.progress.move_watermark(now, delay);
        }
    }

    /// Does a batch of the clean-up in the background, if it is time.
    fn tidy(&mut self, state: &mut dyn TaskState, now: i64) -> Result<(), Failure> {
        let is_time = |last: i64| now.saturating_sub(last) >= TIDY_EVERY_MS;
        if !self.fixed.process.state.is_empty() && self.tidied_at.is_none_or(is_time) {
            self.tidied_at = Some(now);
            self.clean_batch(state, now, "background")?;
        }
        Ok(())
    }

    /// Removes a batch of values that have expired, of the states whose clean-up is this one.
    ///
    /// # Errors
    /// A row cannot be read.
    fn clean_batch(
        &mut self,
        state: &mut dyn TaskState,
        now: i64,
        cleanup: &str,
    ) -> Result<bool, Failure> {
        let mut is_done = keyed_state::remove_garbage(state, CLEANUP_BATCH) < CLEANUP_BATCH;
        for plan in &self.fixed.process.state {
            let Some(ttl) = &plan.ttl else {
                continue;
            };
            if plan.cleanup.as_deref().unwrap_or("on_checkpoint") != cleanup {
                continue;
            }
            let Some(tables) = self.fixed.tables.get(&plan.id) else {
                continue;
            };
            let time = match ttl.is_event_time {
                true => self.progress.watermark,
                false => now,
            };
            let behind = self.cleaned_to.remove(&plan.id);
            let (of, behind) = ((plan, *tables), behind.as_deref());
            let next = keyed_state::remove_expired(state, of, behind, time, CLEANUP_BATCH)?;
            if let Some(next) = next {
                is_done = false;
                self.cleaned_to.insert(plan.id.clone(), next);
            }
        }
        Ok(is_done)
    }
}

fn name_row(id: &str) -> Vec<u8> {
    let mut row = vec![b'd'];
    row.extend_from_slice(id.as_bytes());
    row
}
