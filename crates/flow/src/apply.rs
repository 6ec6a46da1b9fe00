//! The work of steps on one record, as far as nothing is kept between records.
//!
//! Expressions, assignments, transforms, decision tables, schemas and the choice of a route are here. The state and
//! the functions that they need come in by [`ApplyHost`]. The model and the runtime share this, so that a step
//! without memory has one meaning.

use std::sync::Arc;

use jiff::Timestamp;
use tidegate_core::books::LossReason;
use tidegate_core::{EventId, FailureClass};

use crate::expression::{
    EvaluationFailure, ExpressionBindings, ExpressionHost, RecordMetadata, StepBudget,
};
use crate::plan::{
    ArmPlan, AssignPlan, BodyPlan, CheckPlan, FailureKind, FlowPlan, OtherwisePlan, PlanExpression,
    ProcessPlan, SelectorPlan, SlowPlan, SourcePlan, StateKind, StatePlan, TablePlan, TargetPlan,
    TransformPlan, TrimPlan, conform, is_literal,
};
use crate::value::paths::{key_of, last_name, raw_at, set_at};
use crate::value::{FlowType, FlowValue, JsonRecord, MapKey, Scanner, ValueMap};

type Value = FlowValue<'static>;
type Evaluated = Result<Value, Box<EvaluationFailure>>;

/// A record as expressions see it, and the time that its state lives by.
#[derive(Debug, Clone, Copy)]
pub struct RecordView<'a> {
    /// The record.
    pub record: &'a JsonRecord,
    /// Where it came from.
    pub metadata: &'a RecordMetadata,
    /// Its event time, or the time when it came, in milliseconds since 1970.
    pub time: i64,
}

/// A failure of a step, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRefusal {
    /// The kind, which finds the handler.
    pub kind: FailureKind,
    /// The failure.
    pub failure: Box<EvaluationFailure>,
    /// Attempts in all.
    pub attempts: u32,
}

impl StepRefusal {
    /// A failure of the first attempt.
    #[must_use]
    pub const fn of(kind: FailureKind, failure: Box<EvaluationFailure>) -> Self {
        Self {
            kind,
            failure,
            attempts: 1,
        }
    }

    /// A permanent failure of the first attempt.
    #[must_use]
    pub fn new(kind: FailureKind, code: &'static str, message: impl Into<String>) -> Self {
        Self::of(kind, EvaluationFailure::new(code, message))
    }
}

/// The answer of a step, or its failure.
pub type StepResult<T = ()> = Result<T, StepRefusal>;

/// Everything outside of a step that its work needs.
pub trait ApplyHost: std::fmt::Debug {
    /// The clock of the process, which `now()` gives.
    fn now(&self) -> Timestamp;

    /// The value of a declared state for a record.
    ///
    /// # Errors
    /// There is no such state, or it cannot be read.
    fn read_state(&self, name: &str, view: RecordView<'_>) -> Evaluated;

    /// Sets a declared state, or one entry of a map.
    ///
    /// # Errors
    /// The state cannot be written.
    fn write_state(
        &self,
        name: &str,
        entry: Option<MapKey<'static>>,
        value: Value,
        view: RecordView<'_>,
    ) -> Result<(), Box<EvaluationFailure>>;

    /// The answer of a registered function.
    ///
    /// # Errors
    /// The function failed.
    fn call(&self, name: &str, arguments: &[FlowValue<'_>]) -> Evaluated;

    /// The records that a registered transform makes of one.
    ///
    /// # Errors
    /// The transform failed.
    fn transform(
        &self,
        name: &str,
        view: RecordView<'_>,
    ) -> Result<Vec<JsonRecord>, Box<EvaluationFailure>>;

    /// The answer of a registered rule, which gets the record as a map.
    ///
    /// # Errors
    /// The rule failed.
    fn rule(&self, name: &str, record: &FlowValue<'_>) -> Evaluated;

    /// Whether the caller makes the attempts after the first one, each after its wait. Otherwise they follow at once.
    fn waits(&self) -> bool {
        false
    }

    /// The answer of a lookup for a key; none where it has nothing under it.
    ///
    /// # Errors
    /// The lookup failed.
    fn ask(&self, lookup: &str, key: &str) -> Result<Option<JsonRecord>, Box<EvaluationFailure>>;
}

/// The host of one evaluation: state is read for the record that is there.
#[derive(Debug)]
struct HostOfRecord<'a> {
    host: &'a dyn ApplyHost,
    view: RecordView<'a>,
}

impl ExpressionHost for HostOfRecord<'_> {
    fn state(&self, name: &str) -> Evaluated {
        self.host.read_state(name, self.view)
    }

    fn call(&self, name: &str, arguments: &[FlowValue<'_>]) -> Evaluated {
        self.host.call(name, arguments)
    }
}

/// The streams that a route chose, or what happens without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteChoice {
    /// To these streams, each once.
    To(Vec<String>),
    /// The record goes on.
    Continue,
    /// Nowhere, as a loss by declaration.
    Skip,
}

/// Trims a record to the fields that its input wants.
pub fn project(source: &SourcePlan, record: &mut JsonRecord) {
    if let Some(project) = &source.project {
        project.trim(record);
    }
}

/// The declared state of this name.
#[must_use]
pub fn state_plan<'p>(process: &'p ProcessPlan, name: &str) -> Option<&'p StatePlan> {
    let is_named = |state: &&StatePlan| match state.id.split_once('/') {
        Some(("state" | "uses", declared)) => declared == name,
        Some(_) | None => false,
    };
    process.state.iter().find(is_named)
}

/// The key of a declared state for a record; state that Rust brings has the key of the record itself.
#[must_use]
pub fn state_key(plan: &StatePlan, view: RecordView<'_>) -> String {
    if plan.kind == StateKind::Uses {
        return view.metadata.key.clone().unwrap_or_default();
    }
    key_of(view.record, &plan.key)
}

/// The value of a state before it was ever written.
#[must_use]
pub fn unset(plan: &StatePlan) -> Value {
    let StateKind::Local(kind) = &plan.kind else {
        return FlowValue::Null;
    };
    match kind.as_str() {
        "counter" => FlowValue::Integer(0),
        "map" => FlowValue::Map(Arc::new(ValueMap::new())),
        "list" => FlowValue::list(Vec::new()),
        _ => FlowValue::Null,
    }
}

/// The reason for which a record is lost while records come faster than they leave.
#[must_use]
pub fn slow_loss(slow: &SlowPlan, id: EventId) -> Option<LossReason> {
    match slow {
        SlowPlan::Block | SlowPlan::BlockAlert { .. } => None,
        SlowPlan::Drop { .. } => Some(LossReason::from_static("slow_drop")),
        SlowPlan::Sample { rate, .. } => {
            // The hash of the id, so that a replay keeps the same ones.
            let hashed = EventId::derived(&[&id.to_string()]).as_u128();
            #[expect(clippy::cast_precision_loss, reason = "a share of records, not money")]
            let share = (hashed >> 64) as f64 / 18_446_744_073_709_551_616.0;
            let is_kept = share < rate.parse().unwrap_or(1.0);
            (!is_kept).then(|| LossReason::from_static("slow_sample"))
        }
    }
}

/// The steps of a process without memory, with the host that they ask.
#[derive(Debug, Clone, Copy)]
pub struct Apply<'a> {
    /// The plan, for its schemas.
    pub plan: &'a FlowPlan,
    /// The process, for its handlers.
    pub process: &'a ProcessPlan,
    /// State, functions and lookups.
    pub host: &'a dyn ApplyHost,
}

impl Apply<'_> {
    /// Fills in the defaults of a schema, and says what breaks it.
    ///
    /// # Errors
    /// The record breaks the schema; the text says how.
    pub fn conform(&self, record: &mut JsonRecord, schema: Option<&String>) -> Result<(), String> {
        let schema = schema.and_then(|schema| self.plan.schemas.get(schema));
        schema.map_or(Ok(()), |schema| conform(record, &schema.fields))
    }

    /// The record of some bytes, and its event time if it has one. The filter of the input sees all of its fields;
    /// [`project`] trims it after that.
    ///
    /// # Errors
    /// The bytes are no record of the input's schema: `schema.invalid`.
    pub fn decode(
        &self,
        source: &SourcePlan,
        value: &[u8],
    ) -> StepResult<(JsonRecord, Option<i64>)> {
        let invalid =
            |message: String| StepRefusal::new(FailureKind::Transform, "schema.invalid", message);
        let record = JsonRecord::parse(value);
        let mut record = record.map_err(|error| invalid(error.to_string()))?;
        self.conform(&mut record, source.schema.as_ref())
            .map_err(invalid)?;
        let mut time = None;
        if let (Some(path), true) = (&source.time, self.process.time.is_some()) {
            let raw = raw_at(&record, path).unwrap_or("null");
            let Ok(FlowValue::Timestamp(at)) = FlowValue::from_json(raw, &FlowType::Timestamp)
            else {
                return Err(invalid(format!("`{path}` is not a time")));
            };
            time = Some(at.as_millisecond());
        }
        Ok((record, time))
    }

    /// The value of an expression for a record; `route` is the stream that the record leaves by, in metrics.
    ///
    /// # Errors
    /// The expression has no value for the record.
    pub fn evaluate(
        &self,
        expression: &PlanExpression,
        view: RecordView<'_>,
        route: Option<&str>,
    ) -> Evaluated {
        let Some(checked) = &expression.checked else {
            let message = "the plan was read from JSON; check the flow again";
            return Err(EvaluationFailure::new("plan.unchecked", message));
        };
        let host = HostOfRecord {
            host: self.host,
            view,
        };
        let bindings = ExpressionBindings {
            record: view.record,
            metadata: view.metadata,
            now: self.host.now(),
            route,
            host: &host,
        };
        let value = checked.evaluate(&bindings, &mut StepBudget::default());
        value.map(FlowValue::into_owned)
    }

    /// The value of an expression; without one it is a transform failure.
    ///
    /// # Errors
    /// The expression has no value for the record.
    pub fn value(&self, of: &PlanExpression, view: RecordView<'_>) -> StepResult<Value> {
        let value = self.evaluate(of, view, None);
        value.map_err(|failure| StepRefusal::of(FailureKind::Transform, failure))
    }

    /// Whether a condition is true.
    ///
    /// # Errors
    /// It has no value, or one that is not a boolean.
    pub fn is_true(&self, condition: &PlanExpression, view: RecordView<'_>) -> StepResult<bool> {
        let value = self.value(condition, view)?;
        if let FlowValue::Boolean(yes) = value {
            return Ok(yes);
        }
        let message = format!("a condition is {} and not a boolean", value.kind());
        Err(StepRefusal::new(
            FailureKind::Transform,
            "expr.type",
            message,
        ))
    }

    /// Conditions that must all be true.
    ///
    /// # Errors
    /// One is false: `rule.rejected` with its message.
    pub fn require(
        &self,
        checks: &[CheckPlan],
        kind: FailureKind,
        view: RecordView<'_>,
    ) -> StepResult {
        for check in checks {
            if !self.is_true(&check.require, view)? {
                return Err(StepRefusal::new(
                    kind,
                    "rule.rejected",
                    check.message.as_str(),
                ));
            }
        }
        Ok(())
    }

    /// Sets fields and state, each assignment seeing the ones before.
    ///
    /// # Errors
    /// A value cannot be computed or written.
    pub fn assign(
        &self,
        assignments: &[AssignPlan],
        record: &mut JsonRecord,
        metadata: &RecordMetadata,
        time: i64,
    ) -> StepResult {
        let failed = |failure| StepRefusal::of(FailureKind::Transform, failure);
        for assignment in assignments {
            let checked = assignment.value.checked.as_ref();
            let copied = checked.and_then(|checked| checked.raw_field(record));
            let copied = copied.map(str::to_owned);
            let view = |record| RecordView {
                record,
                metadata,
                time,
            };
            match (&assignment.target, copied) {
                (TargetPlan::Field(path), Some(raw)) => set_at(record, path, &raw),
                (TargetPlan::Field(path), None) => {
                    let value = self.value(&assignment.value, view(record))?;
                    set_at(record, path, &json(&value)?);
                }
                (TargetPlan::State { name, key }, _) => {
                    let value = self.value(&assignment.value, view(record))?;
                    let key = key.as_ref().map(|key| self.value(key, view(record)));
                    let key = key.transpose()?;
                    let entry = key.as_ref().map(|key| {
                        let message = || format!("{} is no key of a map", key.kind());
                        let refuse =
                            || StepRefusal::new(FailureKind::Transform, "expr.type", message());
                        MapKey::of(key).ok_or_else(refuse)
                    });
                    let entry = entry.transpose()?;
                    let written = self.host.write_state(name, entry, value, view(record));
                    written.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// The records that a transform makes of one.
    ///
    /// # Errors
    /// The transform failed on the record.
    pub fn transform(
        &self,
        transform: &TransformPlan,
        view: RecordView<'_>,
    ) -> StepResult<Vec<JsonRecord>> {
        let kind = FailureKind::Transform;
        match &transform.body {
            BodyPlan::Apply {
                checks,
                assignments,
                trim,
                output,
            } => {
                self.require(checks, kind, view)?;
                let mut result = view.record.clone();
                self.assign(assignments, &mut result, view.metadata, view.time)?;
                self.finish(&mut result, trim.as_ref(), output.as_ref())?;
                Ok(vec![result])
            }
            BodyPlan::Each {
                checks,
                each,
                trim,
                output,
            } => {
                self.require(checks, kind, view)?;
                let refuse = |message: String| StepRefusal::new(kind, "expr.type", message);
                let FlowValue::List(elements) = self.value(each, view)? else {
                    return Err(refuse("`each` needs a list of maps".to_owned()));
                };
                // A field without a schema is copied as it stands, so that numbers keep all of their digits.
                let checked = each.checked.as_ref();
                let raw = checked.and_then(|checked| checked.raw_field(view.record));
                let raw = raw.unwrap_or_default();
                let mut places = Vec::new();
                // Without a text there is no place.
                Scanner::new(raw)
                    .list(0, &mut |place| places.push(place))
                    .ok();
                let mut results = Vec::with_capacity(elements.len());
                for (at, element) in elements.iter().enumerate() {
                    let text = match places.get(at) {
                        Some((start, end)) => raw[*start as usize..*end as usize].to_owned(),
                        None => element.to_json().map_err(|error| refuse(error.0))?,
                    };
                    let Ok(mut record) = JsonRecord::of_text(&text) else {
                        let message = format!("`each` needs maps, this is {}", element.kind());
                        return Err(refuse(message));
                    };
                    self.finish(&mut record, trim.as_ref(), output.as_ref())?;
                    results.push(record);
                }
                Ok(results)
            }
            BodyPlan::Table(table) => {
                let mut result = view.record.clone();
                for (name, value) in self.decide(table, view)? {
                    result.set_raw(&name, json(&value)?);
                }
                Ok(vec![result])
            }
            BodyPlan::Registered => {
                self.attempts(kind, || self.host.transform(&transform.name, view))
            }
        }
    }

    fn finish(
        &self,
        record: &mut JsonRecord,
        trim: Option<&TrimPlan>,
        output: Option<&String>,
    ) -> StepResult {
        if let Some(trim) = trim {
            trim.trim(record);
        }
        let conforms = self.conform(record, output);
        conforms.map_err(|error| StepRefusal::new(FailureKind::Transform, "schema.invalid", error))
    }

    /// The results of a table; no row at all is a rule failure.
    fn decide(&self, table: &TablePlan, view: RecordView<'_>) -> StepResult<Vec<(String, Value)>> {
        let mut hits: Vec<Vec<Value>> = vec![Vec::new(); table.results.len()];
        let mut is_hit = false;
        for row in &table.rows {
            if is_hit && !table.collect_all {
                break;
            }
            let mut fits = true;
            for condition in &row.when {
                fits = fits && self.is_true(condition, view)?;
            }
            is_hit |= fits;
            for (value, column) in row.then.iter().zip(&mut hits).filter(|_| fits) {
                column.push(self.value(value, view)?);
            }
        }
        if !is_hit {
            let message = "no row of the table matches";
            return Err(StepRefusal::new(
                FailureKind::Rule,
                "rule.unmatched",
                message,
            ));
        }
        let value = |mut column: Vec<Value>| match table.collect_all {
            true => FlowValue::list(column),
            false => column.pop().unwrap_or(FlowValue::Null),
        };
        let results = table.results.iter().cloned();
        Ok(results.zip(hits.into_iter().map(value)).collect())
    }

    /// The answer of a rule: the only result of a table or the one of a column, or what Rust says.
    ///
    /// # Errors
    /// No row matches, or the rule failed.
    pub fn rule(
        &self,
        rule: &TransformPlan,
        view: RecordView<'_>,
        column: Option<&str>,
    ) -> StepResult<Value> {
        if let BodyPlan::Table(table) = &rule.body {
            let mut results = self.decide(table, view)?.into_iter();
            let wanted = results.find(|(name, _)| column.is_none_or(|column| column == name));
            return Ok(wanted.map_or(FlowValue::Null, |(_, value)| value));
        }
        let kind = FailureKind::Rule;
        let text = view.record.to_string();
        let record = FlowValue::parse_json(&text, &FlowType::Dynamic);
        let record = record.map_err(|error| StepRefusal::new(kind, "schema.invalid", error.0))?;
        self.attempts(kind, || self.host.rule(&rule.name, &record))
    }

    /// Adds the answer of a lookup to a record.
    ///
    /// # Errors
    /// The lookup failed.
    pub fn enrich(
        &self,
        lookup: &str,
        key: &str,
        select: &[String],
        record: &mut JsonRecord,
    ) -> StepResult {
        let answer = self.attempts(FailureKind::Lookup, || self.host.ask(lookup, key))?;
        let answer = answer.as_ref();
        if select.is_empty() {
            let nested = answer.map_or_else(|| self.unanswered(lookup), JsonRecord::to_string);
            record.set_raw(lookup, nested);
        }
        for path in select {
            let raw = answer.and_then(|answer| raw_at(answer, path));
            record.set_raw(last_name(path), raw.unwrap_or("null"));
        }
        Ok(())
    }

    /// The answer of a lookup that has nothing under a key: its fields, each of them null.
    fn unanswered(&self, lookup: &str) -> String {
        let mut nothing = JsonRecord::default();
        for field in self
            .plan
            .lookups
            .get(lookup)
            .into_iter()
            .flat_map(|one| &one.fields)
        {
            nothing.set_raw(&field.name, "null");
        }
        nothing.to_string()
    }

    /// Attempts at something that may fail for a while, as the handler of its kind allows. They follow each other
    /// without delay, unless the host waits.
    ///
    /// # Errors
    /// The failure is permanent, or the attempts are used up.
    pub fn attempts<T>(
        &self,
        kind: FailureKind,
        mut attempt: impl FnMut() -> Result<T, Box<EvaluationFailure>>,
    ) -> StepResult<T> {
        let mut handlers = self.process.handlers.iter();
        let handler = handlers.find(|handler| handler.failure == kind);
        let retry = handler.and_then(|handler| handler.retry);
        let retry = retry.filter(|_| !self.host.waits());
        let most = retry.map_or(1, |retry| retry.attempts);
        let mut attempts = 0_u32;
        loop {
            attempts += 1;
            let failure = match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            // Another attempt at a permanent failure changes nothing.
            if u64::from(attempts) >= most || failure.class != FailureClass::Transient {
                return Err(StepRefusal {
                    kind,
                    failure,
                    attempts,
                });
            }
        }
    }

    /// The streams that a route sends a record to.
    ///
    /// # Errors
    /// A condition or rule failed, or no arm fits: `route.unmatched`.
    pub fn choose(
        &self,
        (selector, arms, otherwise): (&SelectorPlan, &[ArmPlan], &OtherwisePlan),
        view: RecordView<'_>,
    ) -> StepResult<RouteChoice> {
        let mut targets: Vec<String> = Vec::new();
        let chosen = |raws: &[String]| {
            let is_chosen = |arm: &&ArmPlan| {
                let value = arm.value.as_ref();
                value.is_some_and(|value| raws.iter().any(|raw| is_literal(raw, value)))
            };
            let streams = arms.iter().filter(is_chosen).map(|arm| arm.stream.clone());
            streams.collect::<Vec<String>>()
        };
        match selector {
            SelectorPlan::When => {
                for arm in arms {
                    let when = arm.when.as_ref();
                    if when.is_some_and(|_| targets.is_empty())
                        && when.map_or(Ok(false), |when| self.is_true(when, view))?
                    {
                        targets.push(arm.stream.clone());
                    }
                }
            }
            SelectorPlan::Field(path) => {
                let raw = raw_at(view.record, path).unwrap_or("null");
                targets = chosen(&[raw.to_owned()]);
            }
            SelectorPlan::Rule(rule) => targets = chosen(&each(&self.rule(rule, view, None)?)?),
            SelectorPlan::Target(rule) => {
                let names = each(&self.rule(rule, view, Some("target"))?)?;
                let names = names
                    .iter()
                    .map(|name| serde_json::from_str::<String>(name));
                targets.extend(names.filter_map(Result::ok));
            }
        }
        let mut once: Vec<String> = Vec::new();
        for stream in targets {
            if !once.contains(&stream) {
                once.push(stream);
            }
        }
        if !once.is_empty() {
            return Ok(RouteChoice::To(once));
        }
        match otherwise {
            OtherwisePlan::To(stream) => Ok(RouteChoice::To(vec![stream.clone()])),
            OtherwisePlan::Continue => Ok(RouteChoice::Continue),
            OtherwisePlan::Skip => Ok(RouteChoice::Skip),
            OtherwisePlan::Fail => {
                let message = "no arm of the route fits";
                Err(StepRefusal::new(
                    FailureKind::Rule,
                    "route.unmatched",
                    message,
                ))
            }
        }
    }
}

/// The JSON of a value, or of each element of a list.
fn each(value: &FlowValue<'_>) -> StepResult<Vec<String>> {
    let texts: Result<Vec<String>, _> = if let FlowValue::List(values) = value {
        values.iter().map(FlowValue::to_json).collect()
    } else {
        value.to_json().map(|text| vec![text])
    };
    texts.map_err(|error| StepRefusal::new(FailureKind::Rule, "expr.convert", error.0))
}

fn json(value: &FlowValue<'_>) -> StepResult<String> {
    let text = value.to_json();
    text.map_err(|error| StepRefusal::new(FailureKind::Transform, "expr.convert", error.0))
}

/// The last part of the id of a completion: one record may have several, by their number.
#[must_use]
pub fn completion_part(number: usize) -> String {
    match number {
        0 => "completion".to_owned(),
        number => format!("completion/{number}"),
    }
}
