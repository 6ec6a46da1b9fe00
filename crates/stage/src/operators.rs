//! The operators of a task, as one synchronous call chain.
//!
//! A [`TaskChain`] takes the records of a task one by one, without a clock or a thread. Everything that outlives a
//! call lies in the tables of the task. A chain that is made anew from the tables goes on identically.
//! Steps without memory are those of `tidegate_flow::apply`; what is kept between records is here.
//!
//! - `keyed_state`: declared state, its life and its removal.
//! - `combine`: join, await and hold; `window`: windows; `steps`: all others, and the way between them.
//! - `results`: outputs with their ids, dead letters, completions and moves of the books.

mod chain_plan;
mod combine;
mod host;
mod keyed_state;
mod moving;
mod progress;
mod registered;
mod results;
mod steps;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::books::Place;
use tidegate_core::{Code, Failure, FailureClass};
use tidegate_flow::apply::{StepRefusal, slow_loss, state_plan};
use tidegate_flow::expression::{EvaluationFailure, RecordMetadata};
use tidegate_flow::plan::{
    FailureKind, FlowPlan, ModePlan, OperatorPlan, PlanChangeKind, ProcessPlan, StatePlan, compare,
};
use tidegate_flow::value::JsonRecord;

pub use self::keyed_state::{KeyedState, StateResult};
pub use self::registered::{LookupFunction, RegisteredFunctions, RuleFunction, TransformFunction};

use self::chain_plan::{ChainPlan, StateTables};
use self::combine::Kept;
use self::moving::{InputEvent, Moving, StepFailure, ms, timestamp};
use self::progress::Progress;
use self::results::{InHand, RecordAsCame, RecordResults, is_foreign};
use crate::chain::{
    ChainInput, ChainOutput, InputRecord, PendingRecord, RejectedContent, TaskOperators, TaskTime,
};
use crate::task_state::codec::{Reader, Writer, split_key};
use crate::task_state::journal::{StateJournal, rows, rows_from};
use crate::task_state::{TableId, TaskState};
use crate::timers::{self, Timer};

/// The table of the chain itself: its progress, the names of the tables, and events that wait in several places.
const CHAIN: TableId = TableId(0);
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
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
/// use bytes::Bytes;
/// use tidegate_core::{EventId, Offset};
/// use tidegate_flow::check::{Registered, check_flows};
/// use tidegate_log::{Record, StoredRecord};
/// use tidegate_stage::chain::{ChainOutput, InputRecord, TaskOperators, TaskTime};
/// use tidegate_stage::operators::{ChainOptions, TaskChain};
/// # use tidegate_stage::task_state::{RowVisit, TableId, TaskState};
/// # #[derive(Debug, Default)]
/// # struct Tables(BTreeMap<(TableId, Vec<u8>), Bytes>);
/// # impl TaskState for Tables {
/// #     fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> { self.0.get(&(table, key.to_vec())).cloned() }
/// #     fn put(&mut self, table: TableId, key: &[u8], value: Bytes) { self.0.insert((table, key.to_vec()), value); }
/// #     fn delete(&mut self, table: TableId, key: &[u8]) { self.0.remove(&(table, key.to_vec())); }
/// #     fn scan(&self, table: TableId, from: &[u8], to: Option<&[u8]>,
/// #         visit: &mut RowVisit<'_>) {
/// #         for ((_, key), value) in self.0.range((table, from.to_vec())..)
/// #             .take_while(|((of, key), _)| *of == table && to.is_none_or(|to| &**key < to)) {
/// #             if visit(key, value).is_break() { return; }
/// #         }
/// #     }
/// # }
/// let flow = "process big receive orders filter amount > 10 emit to large end";
/// let plan = check_flows(&[flow], &Registered::default()).plan.expect("is right");
/// let mut chain = TaskChain::new(Arc::new(plan), "big", ChainOptions::default())?;
/// let (mut state, mut out, time) = (Tables::default(), ChainOutput::default(), TaskTime::default());
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
}

/// One record or one timer on its way.
#[derive(Debug)]
struct Run<'r> {
    fixed: &'r ChainPlan,
    progress: &'r mut Progress,
    journal: StateJournal<'r>,
    now: i64,
    epoch_start: i64,
    results: RecordResults,
    /// The record that came, while it is worked on.
    in_hand: Option<InHand>,
    /// The writes of a timer before its entry went on, and what left with it.
    taken_out: Option<(usize, BTreeMap<InputEvent, i64>)>,
}

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
    /// A chain of one process of a plan. It must be [reloaded](TaskOperators::reload) before its first record.
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
            fixed,
            stored: Vec::new(),
            names: Vec::new(),
            refused: None,
            is_slow: false,
            cleaned_to: BTreeMap::new(),
            tidied_at: None,
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
                table.is_some_and(|table| !rows_from(state, table, &[], None, 1).is_empty())
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
        progress: &'r mut Progress,
        state: &'r mut dyn TaskState,
        (now, epoch_start): (i64, i64),
    ) -> Run<'r> {
        Run {
            fixed,
            progress,
            journal: StateJournal::new(state),
            now,
            epoch_start,
            results: RecordResults::default(),
            in_hand: None,
            taken_out: None,
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

    /// Fires the timers that are due by `until`, at most so many. Says whether more are.
    fn fire_until(
        &mut self,
        state: &mut dyn TaskState,
        (time, until): (TaskTime, Option<i64>),
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let now = self.ready(state, time)?;
        self.move_watermark(now);
        let is_event_time = self.fixed.process.time.is_some();
        let own = if is_event_time {
            self.progress.watermark
        } else {
            now
        };
        let until = until.unwrap_or(own);
        let mut left = limit;
        while self.progress.first_due <= until {
            if left == 0 {
                self.save(state);
                return Ok(true);
            }
            let range = (self.progress.first_due, until);
            let batch = timers::due(state, range, left.min(FIRED_AT_ONCE))?;
            if batch.is_empty() {
                let next = until.checked_add(1);
                let first = next.and_then(|next| timers::first_due(state, next));
                self.progress.first_due = first.unwrap_or(i64::MAX);
                break;
            }
            self.progress.first_set = i64::MAX;
            for (due, key, timer) in batch {
                // A timer that another one set meanwhile comes first.
                if self.progress.first_set < due {
                    break;
                }
                left -= 1;
                self.progress.first_due = due;
                self.fire_one(state, (now, time.epoch_start_ms), (due, &key, &timer), out)?;
            }
        }
        self.progress.clock = Some(now);
        // Time that passes changes nothing by itself: an idle task has nothing to commit.
        if left < limit {
            self.save(state);
        }
        Ok(false)
    }

    fn fire_one(
        &mut self,
        state: &mut dyn TaskState,
        (now, epoch_start): (i64, i64),
        (due, key, timer): (i64, &[u8], &Timer),
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        let is_event_time = self.fixed.process.time.is_some();
        let at = due.min(now);
        let at = self.progress.clock.map_or(at, |clock| clock.max(at));
        let times = (if is_event_time { now } else { at }, epoch_start);
        let mut run = Self::run(&self.fixed, &mut self.progress, state, times);
        run.journal.take(timers::TIMERS, key);
        if !is_event_time {
            // A timer that fires late still fires at its time.
            run.progress.clock = Some(at);
        }
        // A step that is gone held no data when it went.
        if let Some(step) = run.fixed.step_of(timer.table) {
            if let Err(failure) = run.fired(step, due, timer) {
                run.timer_failed(failure)?;
            }
            run.commit(out)?;
        }
        Ok(())
    }

    /// Whether a timer is due before the next record.
    fn is_due(&mut self, time: TaskTime) -> bool {
        let now = self
            .progress
            .clock
            .map_or(time.now_ms, |clock| clock.max(time.now_ms));
        if self.fixed.process.time.is_none() {
            return self.progress.first_due <= now;
        }
        // Before the first record no input has been silent yet.
        if self.progress.clock.is_some() {
            self.move_watermark(now);
        }
        self.progress.first_due <= self.progress.watermark
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
            let from = self.cleaned_to.remove(&plan.id).unwrap_or_default();
            let of = (plan, *tables);
            let next = keyed_state::remove_expired(state, of, &from, time, CLEANUP_BATCH)?;
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

impl Run<'_> {
    /// A timer took its entry out for good, and nothing else stays: the handler gets the record as it was.
    fn timer_failed(&mut self, failure: StepFailure) -> Result<(), Failure> {
        let (refusal, moving) = match failure {
            StepFailure::Stage(failure) => return Err(failure),
            StepFailure::Record { refusal, moving } => (refusal, moving),
        };
        self.results.clear();
        if let Some((mark, copies)) = self.taken_out.take() {
            self.journal.undo_to(mark);
            self.results.restore(copies);
        }
        let came = moving.clone();
        self.handle(
            StepFailure::Record { refusal, moving },
            &RecordAsCame::of(&came),
        )
    }

    /// One record of one source, from its bytes to its last place.
    fn take(
        &mut self,
        at: usize,
        input: InputRecord<'_>,
        (event, metadata): (InputEvent, &Arc<RecordMetadata>),
        is_slow: bool,
    ) -> Result<(), Failure> {
        let fixed = self.fixed;
        let (source, record) = (&fixed.process.sources[at], &input.record.record);
        let events = [event];
        if let Some(reason) = slow_loss(&fixed.process.slow, event.id).filter(|_| is_slow) {
            self.results.settle(&events, &Place::Lost(reason));
            return Ok(());
        }
        let mark = self.journal.mark();
        let mut moving = Moving {
            record: JsonRecord::default(),
            metadata: Arc::clone(metadata),
            time: self.now,
            id: event.id,
            events: events.to_vec(),
        };
        let came = RecordAsCame {
            metadata,
            key: record.key.as_ref(),
            value: record.value.clone(),
            headers: Some(&record.headers),
            events: &events,
        };
        let value = record.value.as_deref().unwrap_or_default();
        match self.decode(source, value, &mut moving) {
            Ok(true) => {}
            Ok(false) => {
                self.results.settle(&events, &Place::Delivered);
                return Ok(());
            }
            Err(StepFailure::Stage(failure)) => return Err(failure),
            Err(StepFailure::Record { refusal, .. }) => {
                self.journal.undo_to(mark);
                self.results.clear();
                self.bury(&fixed.dead_letters, &refusal, "decode", &came);
                return Ok(());
            }
        }
        let time = moving.time;
        let topic = source.repartition.as_ref();
        let flowed = match topic.filter(|_| fixed.options.is_repartitioned) {
            Some(topic) => {
                let key = moving.key().to_owned();
                let value = steps::repartitioned("", &source.alias, &moving);
                self.repartition(topic, key, value, &moving);
                Ok(())
            }
            None => self.flow(&source.alias, 0, moving),
        };
        if let Err(failure) = flowed {
            self.journal.undo_to(mark);
            self.results.clear();
            self.handle(failure, &came)?;
        }
        self.seen(at, time);
        Ok(())
    }

    /// One record of a topic of the stage's own, which goes on where it was sent from.
    fn arrived(
        &mut self,
        at: usize,
        input: InputRecord<'_>,
        (event, metadata): (InputEvent, &Arc<RecordMetadata>),
    ) -> Result<(), Failure> {
        let (fixed, record) = (self.fixed, &input.record.record);
        let (events, mark) = ([event], self.journal.mark());
        let value = record.value.as_deref().unwrap_or_default();
        let read = steps::read_repartitioned(value);
        let found = read.and_then(|(state, stream, moving)| {
            let mut steps = fixed.process.steps.iter();
            let step = steps.position(|step| step.state.as_ref() == Some(&state));
            (state.is_empty() || step.is_some()).then_some((step, stream, moving))
        });
        let Some((step, stream, mut moving)) = found else {
            let message = "the record is for a step that this plan does not have";
            let refusal = StepRefusal::new(FailureKind::Transform, "schema.invalid", message);
            let came = RecordAsCame {
                metadata,
                key: record.key.as_ref(),
                value: record.value.clone(),
                headers: Some(&record.headers),
                events: &events,
            };
            self.bury(&fixed.dead_letters, &refusal, "decode", &came);
            return Ok(());
        };
        moving.id = event.id;
        Arc::make_mut(&mut moving.metadata)
            .id
            .clone_from(&metadata.id);
        moving.events = events.to_vec();
        let (time, before) = (moving.time, moving.clone());
        let flowed = match step {
            Some(step) => self.arrive(step, &stream, moving),
            None => self.flow(&stream, 0, moving),
        };
        if let Err(failure) = flowed {
            self.journal.undo_to(mark);
            self.results.clear();
            self.handle(failure, &RecordAsCame::of(&before))?;
        }
        self.seen(at, time);
        Ok(())
    }

    /// An input has come as far as this event time.
    fn seen(&mut self, at: usize, time: i64) {
        if let Some(input) = self.progress.inputs.get_mut(at) {
            input.newest = input.newest.max(Some(time));
            input.last_seen = self.now;
        }
    }
}

impl TaskOperators for TaskChain {
    fn inputs(&self) -> &[ChainInput] {
        &self.fixed.inputs
    }

    /// Timers that are due fire before the record.
    fn record(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        while self.is_due(time) && self.fire_until(state, (time, None), FIRED_AT_ONCE, out)? {}
        let now = self.ready(state, time)?;
        self.progress.clock = Some(now);
        let times = (now, time.epoch_start_ms);
        let mut run = Self::run(&self.fixed, &mut self.progress, state, times);
        let fixed = run.fixed;
        let Some(input) = fixed.inputs.get(record.input) else {
            let message = format!("the task has no input {}", record.input);
            let code = Code::from_static("stage.input.unknown");
            return Err(Failure::new(FailureClass::System, code, message));
        };
        let event = InputEvent {
            input: u16::try_from(record.input).unwrap_or(u16::MAX),
            id: record.id,
        };
        run.in_hand = Some(InHand {
            event,
            place: Place::Queued,
            copies: 0,
        });
        let metadata = Arc::new(metadata_of(record));
        if input.is_repartition {
            let topics = fixed.inputs.iter().filter(|input| input.is_repartition);
            let mut topics = topics.take_while(|topic| topic.stream != input.stream);
            let at = fixed.process.sources.len() + topics.by_ref().count();
            run.arrived(at, record, (event, &metadata))?;
            run.commit(out)?;
        } else {
            for (at, source) in fixed.process.sources.iter().enumerate() {
                if *source.stream == *input.stream {
                    run.take(at, record, (event, &metadata), self.is_slow)?;
                    run.commit(out)?;
                }
            }
        }
        self.move_watermark(now);
        self.tidy(state, now)?;
        self.save(state);
        Ok(())
    }

    fn reject(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        (failure, keep): (&Failure, RejectedContent),
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        let now = self.ready(state, time)?;
        self.progress.clock = Some(now);
        let times = (now, time.epoch_start_ms);
        let mut run = Self::run(&self.fixed, &mut self.progress, state, times);
        let event = InputEvent {
            input: u16::try_from(record.input).unwrap_or(u16::MAX),
            id: record.id,
        };
        run.in_hand = Some(InHand {
            event,
            place: Place::Queued,
            copies: 0,
        });
        let (mut metadata, is_kept) = (metadata_of(record), keep == RejectedContent::All);
        let of_log = &record.record.record;
        let mut message = failure.message.clone();
        if !is_kept {
            metadata.key = None;
            let size = of_log.size();
            message.push_str(&format!(
                "; with its content of {size} bytes the dead letter was refused, too: the record lies where it came from"
            ));
        }
        let refusal = StepRefusal::new(FailureKind::Transform, "stage.commit.refused", message);
        let came = RecordAsCame {
            metadata: &metadata,
            key: of_log.key.as_ref().filter(|_| is_kept),
            value: of_log.value.clone().filter(|_| is_kept),
            headers: is_kept.then_some(&of_log.headers),
            events: &[event],
        };
        let fixed = run.fixed;
        run.bury(&fixed.dead_letters, &refusal, "commit", &came);
        run.commit(out)?;
        self.save(state);
        Ok(())
    }

    fn fire(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let has_more = self.fire_until(state, (time, None), limit, out)?;
        self.tidy(state, time.now_ms)?;
        Ok(has_more)
    }

    fn next_due(&self, _state: &dyn TaskState) -> Option<i64> {
        let first = self.progress.first_due;
        if first == i64::MAX {
            return None;
        }
        if self.fixed.process.time.is_none() {
            return Some(first);
        }
        if first <= self.progress.watermark {
            return self.progress.clock;
        }
        // Only an input that falls silent moves the watermark by itself.
        let now = self.progress.clock?;
        let inputs = self.progress.inputs.iter();
        let silent_at = inputs.map(|input| input.last_seen.saturating_add(input.idle_timeout));
        silent_at.filter(|at| *at > now).min()
    }

    fn reload(&mut self, state: &dyn TaskState, time: TaskTime) {
        let _: TaskTime = time;
        self.refused = None;
        self.cleaned_to.clear();
        self.tidied_at = None;
        self.progress = self.fixed.begin();
        self.stored.clear();
        let mut stored = BTreeMap::new();
        for (key, value) in rows(state, CHAIN, b"d", usize::MAX) {
            match read_name(&key, &value) {
                Some((id, named)) => drop(stored.insert(id, named)),
                None => self.refused = Some(damaged(CHAIN).message),
            }
        }
        self.name_tables(&stored);
        self.refused = self.refused.take().or_else(|| self.refusal(state, &stored));
        if let Some(bytes) = state.get(CHAIN, b"p") {
            if self.progress.read(&bytes).is_none() {
                self.refused = Some(damaged(CHAIN).message);
            }
            self.stored = bytes.to_vec();
        }
        self.progress.first_due = timers::first_due(state, i64::MIN).unwrap_or(i64::MAX);
    }

    fn finish(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let is_batch = self.fixed.process.mode == ModePlan::Batch;
        let has_more = self.fire_until(state, (time, None), limit, out)?
            || is_batch && self.fire_until(state, (time, Some(i64::MAX)), limit, out)?;
        Ok(has_more)
    }

    fn clean(&mut self, state: &mut dyn TaskState, time: TaskTime) -> Result<bool, Failure> {
        let now = self.ready(state, time)?;
        self.clean_batch(state, now, "on_checkpoint")
    }

    fn pending(&self, state: &dyn TaskState, visit: &mut dyn FnMut(PendingRecord)) {
        for (at, step) in self.fixed.process.steps.iter().enumerate() {
            let tables = self.fixed.step_tables(at);
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "only these two let records wait"
            )]
            let (table, timeout) = match &step.operator {
                OperatorPlan::Await { timeout_ms, .. } => (tables.main, *timeout_ms),
                OperatorPlan::Hold { timeout_ms, .. } => (tables.elements, *timeout_ms),
                _ => continue,
            };
            // The records of one entry follow each other; its time counts from the first.
            let mut entry: Option<(Vec<u8>, i64)> = None;
            for (row, bytes) in rows_from(state, table, &[], None, usize::MAX) {
                let entry_row = row[..row.len().saturating_sub(8)].to_vec();
                let Ok(kept) = Kept::read(table, row, &bytes) else {
                    continue;
                };
                let since = kept.moving.time;
                let is_hold = table == tables.elements;
                let first = match &entry {
                    Some((row, first)) if is_hold && *row == entry_row => *first,
                    Some(_) | None => since,
                };
                let key = split_key(&kept.row).map_or_else(String::new, |(key, _)| key);
                entry = Some((entry_row, first));
                for event in &kept.moving.events {
                    visit(PendingRecord {
                        input: usize::from(event.input),
                        id: event.id,
                        step: step.state.clone().unwrap_or_default(),
                        key: key.clone(),
                        since_ms: since,
                        due_ms: first.saturating_add(ms(timeout)),
                    });
                }
            }
        }
    }

    fn values(
        &self,
        state: &dyn TaskState,
        name: &str,
        time: TaskTime,
    ) -> BTreeMap<String, String> {
        let plan = state_plan(&self.fixed.process, name);
        let found = plan.and_then(|plan| Some((plan, *self.fixed.tables.get(&plan.id)?)));
        found.map_or_else(BTreeMap::new, |(plan, tables)| {
            let is_event_time = plan.ttl.as_ref().is_some_and(|ttl| ttl.is_event_time);
            let is_event_time = is_event_time && self.fixed.process.time.is_some();
            let at = match is_event_time {
                true => self.progress.watermark,
                false => time.now_ms,
            };
            keyed_state::shown(state, (plan, tables), at)
        })
    }
}

fn read_name(key: &[u8], value: &[u8]) -> Option<(String, (u16, StatePlan))> {
    let id = String::from_utf8(key.get(1..)?.to_vec()).ok()?;
    let mut reader = Reader(value);
    let table = u16::try_from(reader.number()?).ok()?;
    Some((id, (table, serde_json::from_slice(reader.0).ok()?)))
}

fn metadata_of(input: InputRecord<'_>) -> RecordMetadata {
    let record = &input.record.record;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = record.headers.iter().filter(|(name, _)| is_foreign(name));
    let headers = headers.filter_map(|(name, value)| {
        let value = std::str::from_utf8(value?).ok()?;
        Some((name.to_owned(), value.to_owned()))
    });
    RecordMetadata {
        key: record.key.as_deref().map(text),
        id: input.id.to_string(),
        topic: input.topic.to_owned(),
        partition: i64::from(input.partition),
        offset: input.record.offset.0,
        timestamp: timestamp(i64::try_from(record.timestamp_ms).unwrap_or(i64::MAX)),
        headers: headers.collect(),
    }
}
