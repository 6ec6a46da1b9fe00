//! The model: a plain interpreter of a plan, which says what the runtime has to do.
//!
//! One record at a time, ordered maps, virtual time, no durability and no speed. A record that fails leaves
//! everything as it was before it came, and takes the way that its handler names. Where the handler allows another
//! attempt, the record waits for it and is then worked on from its beginning; later records go on meanwhile. A system
//! failure stops the process: what comes from then on stays queued.
//!
//! Two things are simpler than in the runtime: waits have no jitter, and there is one partition.

mod combine;
mod memory;
mod outputs;
mod script;
mod steps;
mod transform;
mod window;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::books::{Account, Books, Place};
use tidegate_core::{EventId, FailureClass};

pub use outputs::{ModelDeadLetter, ModelOutput};
pub use script::{ModelScript, ScriptedAnswer, ScriptedFailure, ScriptedRule, ScriptedTransform};

use self::memory::{Memory, ModelRecord, ModelWork, state_time};
use self::outputs::Came;
use crate::apply::{RecordView, StepRefusal, slow_loss};
use crate::expression::{EvaluationFailure, RecordMetadata};
use crate::plan::{FailureKind, FlowPlan, ModePlan, OperatorPlan, ProcessPlan};
use crate::value::JsonRecord;

/// How long an input may be silent before it stops holding back the watermark.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A record that is sent to the model.
#[derive(Debug, Clone, Default)]
pub struct ModelInput {
    /// The stream.
    pub stream: String,
    /// The key.
    pub key: Option<String>,
    /// When it is sent; the clock never goes back.
    pub at: Option<Timestamp>,
    /// Its event id; one is made from stream and offset without it.
    pub id: Option<EventId>,
    /// The value.
    pub value: Vec<u8>,
    /// The headers.
    pub headers: BTreeMap<String, String>,
}

/// A record on its way through the steps.
#[derive(Debug, Clone)]
struct Moving {
    record: JsonRecord,
    metadata: RecordMetadata,
    /// Its event time, or the time when it came.
    time: i64,
    id: EventId,
    /// The inputs that it stands for in the books.
    ids: Vec<EventId>,
}

impl Moving {
    fn with(&self, record: JsonRecord) -> Self {
        Self {
            record,
            ..self.clone()
        }
    }

    fn fails(&self, kind: FailureKind, failure: Box<EvaluationFailure>) -> StepFailure {
        StepFailure {
            kind,
            failure,
            attempts: 1,
            moving: Box::new(self.clone()),
        }
    }

    fn refuses(&self, refusal: StepRefusal) -> StepFailure {
        StepFailure {
            attempts: refusal.attempts,
            ..self.fails(refusal.kind, refusal.failure)
        }
    }

    const fn view(&self) -> RecordView<'_> {
        RecordView {
            record: &self.record,
            metadata: &self.metadata,
            time: self.time,
        }
    }

    fn refused(&self, kind: FailureKind, code: &'static str, message: &str) -> StepFailure {
        self.fails(kind, EvaluationFailure::new(code, message))
    }
}

/// A step that failed, and the record as it came to the step.
#[derive(Debug)]
struct StepFailure {
    kind: FailureKind,
    failure: Box<EvaluationFailure>,
    attempts: u32,
    moving: Box<Moving>,
}

type Stepped<T = ()> = Result<T, StepFailure>;

/// A duration of the plan as the model counts time.
fn ms(duration: u64) -> i64 {
    i64::try_from(duration).unwrap_or(i64::MAX)
}

fn timestamp(ms: i64) -> Timestamp {
    let bound = if ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_millisecond(ms).unwrap_or(bound)
}

/// An interpreter of one process.
///
/// ```
/// use tidegate_flow::check::{Registered, check_flows};
/// use tidegate_flow::model::{FlowModel, ModelInput, ModelScript};
/// let flow = "process big receive orders filter amount > 10 emit to large end";
/// let plan = check_flows(&[flow], &Registered::default()).plan.expect("is right");
/// let mut model = FlowModel::new(&plan, "big", ModelScript::default()).expect("has the process");
/// for amount in [5, 50] {
///     let value = format!("{{\"amount\":{amount}}}").into_bytes();
///     model.send(ModelInput { stream: "orders".to_owned(), value, ..ModelInput::default() });
/// }
/// assert_eq!(model.outputs("large").count(), 1);
/// assert_eq!(model.account().delivered, 2);
/// ```
#[derive(Debug)]
pub struct FlowModel<'p> {
    plan: &'p FlowPlan,
    process: &'p ProcessPlan,
    name: String,
    script: RefCell<ModelScript>,
    /// The clock in milliseconds since 1970; none before the first record.
    clock: Option<i64>,
    is_slow: bool,
    /// Whether a system failure has ended it.
    is_stopped: bool,
    memory: Memory,
    /// The memory after a timer took out its entry.
    taken_out: Option<Memory>,
    offsets: BTreeMap<String, i64>,
    /// The results of the record or timer that is being worked on.
    results: outputs::Results,
    outputs: Vec<ModelOutput>,
    dead_letters: Vec<ModelDeadLetter>,
    places: BTreeMap<EventId, Place>,
    books: Books,
    metrics: BTreeMap<String, Vec<String>>,
}

impl<'p> FlowModel<'p> {
    /// A model of one process of a plan; none where the plan has no such process.
    #[must_use]
    pub fn new(plan: &'p FlowPlan, process: &str, script: ModelScript) -> Option<Self> {
        Some(Self {
            plan,
            process: plan.processes.get(process)?,
            name: process.to_owned(),
            script: RefCell::new(script),
            clock: None,
            is_slow: false,
            is_stopped: false,
            memory: Memory::default(),
            taken_out: None,
            offsets: BTreeMap::new(),
            results: outputs::Results::default(),
            outputs: Vec::new(),
            dead_letters: Vec::new(),
            places: BTreeMap::new(),
            books: Books::default(),
            metrics: BTreeMap::new(),
        })
    }

    fn now(&self) -> i64 {
        self.clock.unwrap_or(0)
    }

    /// Records come faster than they leave, or no longer.
    pub fn set_slow(&mut self, is_slow: bool) {
        self.is_slow = is_slow;
    }

    /// Sends a record. Timers that are due before it fire first.
    pub fn send(&mut self, input: ModelInput) {
        let at = input
            .at
            .map_or(self.now(), Timestamp::as_millisecond)
            .max(self.now());
        if self.clock.replace(self.now()).is_none() {
            for source in &self.process.sources {
                self.memory.input(&source.alias).last_seen = at;
            }
        }
        self.move_clock(at);
        let offset = self.offsets.entry(input.stream.clone()).or_insert(0);
        *offset += 1;
        let offset = *offset - 1;
        let made = || EventId::derived(&[&input.stream, &offset.to_string()]);
        let id = input.id.unwrap_or_else(made);
        let sources = self.process.sources.iter().enumerate();
        for (source, _) in sources.filter(|(_, source)| source.stream == input.stream) {
            let metadata = RecordMetadata {
                key: input.key.clone(),
                id: id.to_string(),
                topic: input.stream.clone(),
                partition: 0,
                offset,
                timestamp: timestamp(at),
                headers: input.headers.clone(),
            };
            let record = ModelRecord {
                source,
                value: input.value.clone(),
                metadata,
                id,
            };
            let loss = slow_loss(&self.process.slow, id).filter(|_| self.is_slow);
            match loss.map(Place::Lost) {
                _ if self.is_stopped => self.results.settle(&[id], Place::Queued),
                Some(lost) => self.results.settle(&[id], lost),
                None => self.work(0, ModelWork::Record(record)),
            }
            self.commit();
        }
        self.fire_due();
    }

    /// Works on a record or a timer, after so many attempts that failed.
    fn work(&mut self, failed: u32, work: ModelWork) {
        let before = self.memory.clone();
        self.taken_out = None;
        let done = match &work {
            ModelWork::Record(record) => self.take(record),
            ModelWork::Timer(timer) => self.fired(timer),
        };
        let Err(mut failure) = done else {
            return self.commit();
        };
        failure.attempts = failed + 1;
        let mut handlers = self.process.handlers.iter();
        let handler = handlers.find(|handler| handler.failure == failure.kind);
        let retry = handler.and_then(|handler| handler.retry);
        let retry = retry.filter(|retry| u64::from(failure.attempts) < retry.attempts);
        match (failure.failure.class, retry) {
            (FailureClass::System, _) => {
                self.is_stopped = true;
                self.memory.go_back(before);
                self.results = outputs::Results::default();
                self.settle_record(&work, Place::Queued);
            }
            (FailureClass::Transient, Some(retry)) => {
                self.memory.go_back(before);
                self.results = outputs::Results::default();
                self.settle_record(&work, Place::Retrying);
                let wait = retry.waits().wait_without_jitter(failed).as_millis();
                let wait = i64::try_from(wait).unwrap_or(i64::MAX);
                let due = self.now().saturating_add(wait);
                self.memory.retry_at(due, failure.attempts, work);
            }
            _ => {
                self.results.clear();
                let value = failure.moving.record.to_string();
                let (memory, came) = match &work {
                    ModelWork::Record(record) => (before, Came::as_sent(record)),
                    // The timer took its entry out for good, and nothing else stays.
                    ModelWork::Timer(_) => {
                        let memory = self.taken_out.take().unwrap_or(before);
                        (memory, Came::of(&failure.moving, &value))
                    }
                };
                self.memory.go_back(memory);
                self.handle(&failure, &came);
            }
        }
        self.commit();
    }

    /// The place of a record; those of a timer are where they were.
    fn settle_record(&mut self, work: &ModelWork, place: Place) {
        if let ModelWork::Record(record) = work {
            self.results.settle(&[record.id], place);
        }
    }

    /// One record of one input, from its bytes to its last place.
    fn take(&mut self, sent: &ModelRecord) -> Stepped {
        let source = &self.process.sources[sent.source];
        let mut moving = Moving {
            record: JsonRecord::default(),
            time: sent.metadata.timestamp.as_millisecond(),
            metadata: sent.metadata.clone(),
            id: sent.id,
            ids: vec![sent.id],
        };
        if let Err(failure) = self.decode(source, &sent.value, &mut moving) {
            let stream = format!("{}_dlq", self.name);
            self.bury(&stream, &failure, "decode", &Came::as_sent(sent));
            return Ok(());
        }
        let (time, now) = (moving.time, self.now());
        let done = self.enter(source, moving);
        let input = self.memory.input(&source.alias);
        input.newest = input.newest.max(Some(time));
        input.last_seen = now;
        done
    }

    /// Moves the clock; timers that become due fire in their order.
    pub fn advance(&mut self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.move_clock(self.now().saturating_add(by));
    }

    fn move_clock(&mut self, to: i64) {
        while let Some(due) = self.next_due().filter(|due| *due <= to) {
            self.clock = Some(due.max(self.now()));
            self.fire_due();
        }
        self.clock = Some(to);
        self.fire_due();
    }

    /// The next time of the clock at which something happens.
    fn next_due(&self) -> Option<i64> {
        let timers = self
            .memory
            .next_due()
            .filter(|_| self.process.time.is_none());
        let dues = timers.into_iter().chain(self.memory.next_retry());
        dues.min().filter(|_| !self.is_stopped)
    }

    /// The end of all inputs: in `mode batch` it ends every retry and every join.
    pub fn finish(&mut self) {
        if self.process.mode != ModePlan::Batch {
            return;
        }
        while let Some(due) = self.memory.next_retry().filter(|_| !self.is_stopped) {
            self.move_clock(due.max(self.now()));
        }
        while let Some(timer) = self.memory.pop_due(i64::MAX).filter(|_| !self.is_stopped) {
            self.work(0, ModelWork::Timer(timer));
        }
    }

    /// The time that timers run on: the watermark, or the clock.
    fn progress(&self) -> i64 {
        if self.process.time.is_none() {
            return self.now();
        }
        self.memory.watermark
    }

    /// Moves the watermark, which never goes back.
    fn move_watermark(&mut self) {
        let Some(time) = &self.process.time else {
            return;
        };
        let idle = i64::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
        let newest = self.memory.newest(self.now(), idle);
        let watermark = newest.saturating_sub(ms(time.watermark_delay_ms));
        self.memory.watermark = self.memory.watermark.max(watermark);
    }

    fn fire_due(&mut self) {
        while !self.is_stopped {
            self.move_watermark();
            let timer = self.memory.pop_due(self.progress());
            let timer = timer.map(|timer| (0, ModelWork::Timer(timer)));
            let now = self.now();
            let Some((failed, work)) = timer.or_else(|| self.memory.pop_retry(now)) else {
                return;
            };
            self.work(failed, work);
        }
    }

    /// The records of a stream, in the order of their commit.
    pub fn outputs<'m>(&'m self, stream: &'m str) -> impl Iterator<Item = &'m ModelOutput> {
        self.outputs
            .iter()
            .filter(move |output| output.stream == stream)
    }

    /// All records that the process wrote, in the order of their commit.
    pub(crate) fn all_outputs(&self) -> &[ModelOutput] {
        &self.outputs
    }

    /// The records that were given up, in their order.
    #[must_use]
    pub fn dead_letters(&self) -> &[ModelDeadLetter] {
        &self.dead_letters
    }

    /// The books.
    #[must_use]
    pub fn account(&self) -> Account {
        self.books.account()
    }

    /// Whether every record that was sent is in exactly one place.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.books.is_balanced()
    }

    /// The values that a metric saw, as JSON.
    #[must_use]
    pub fn metric(&self, name: &str) -> &[String] {
        self.metrics.get(name).map_or(&[], Vec::as_slice)
    }

    /// How many values each metric saw.
    pub(crate) fn metric_counts(&self) -> BTreeMap<String, usize> {
        let counts = self.metrics.iter();
        counts
            .map(|(name, values)| (name.clone(), values.len()))
            .collect()
    }

    /// The values of every declared state.
    pub(crate) fn states(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let ids = self.process.state.iter().map(|state| &state.id);
        let names = ids.filter_map(|id| id.strip_prefix("state/"));
        names
            .map(|name| (name.to_owned(), self.state(name)))
            .collect()
    }

    /// The values of a declared state that have not expired, as JSON by key.
    #[must_use]
    pub fn state(&self, name: &str) -> BTreeMap<String, String> {
        let id = format!("state/{name}");
        let plan = self.process.state.iter().find(|state| state.id == id);
        plan.map_or_else(BTreeMap::new, |plan| {
            let time = state_time(plan, self.now(), self.progress());
            self.memory.state.borrow().shown(plan, time)
        })
    }

    /// Records that wait in `await` and `hold`.
    #[must_use]
    pub fn pending(&self) -> usize {
        let waits = |at: usize| {
            let operator = &self.process.steps[at].operator;
            matches!(
                operator,
                OperatorPlan::Await { .. } | OperatorPlan::Hold { .. }
            )
        };
        let kept = self.memory.kept.iter().filter(|((at, _), _)| waits(*at));
        kept.map(|(_, kept)| kept.len()).sum()
    }
}
