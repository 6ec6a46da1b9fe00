//! The way of a record through the steps.

use jiff::Timestamp;
use tidegate_core::EventId;
use tidegate_core::books::{LossReason, Place};

use super::fields::{conform, is_literal, keep, key_of, raw_at, remove};
use super::{FlowModel, Moving, StepFailure};
use crate::expression::{EvaluationFailure, RecordMetadata};
use crate::plan::{
    ArmPlan, FailureKind, OnFailurePlan, OnSuccessPlan, OperatorPlan, OtherwisePlan, ProjectPlan,
    SelectorPlan, SourcePlan, StepPlan, TransformPlan,
};
use crate::value::{FlowType, FlowValue, JsonRecord};

impl FlowModel<'_> {
    /// The record of some bytes; none where the filter of the input does not want it.
    pub(super) fn decode(
        &mut self,
        source: &SourcePlan,
        value: &[u8],
        metadata: &RecordMetadata,
        id: EventId,
    ) -> Result<Option<Moving>, StepFailure> {
        let invalid = |message: String, record: &JsonRecord| {
            StepFailure::new(FailureKind::Transform, "schema.invalid", message, record)
        };
        let record = JsonRecord::parse(value);
        let mut record =
            record.map_err(|error| invalid(error.to_string(), &JsonRecord::default()))?;
        if let Some(schema) = source
            .schema
            .as_ref()
            .and_then(|schema| self.plan.schemas.get(schema))
        {
            let came = record.clone();
            conform(&mut record, &schema.fields).map_err(|error| invalid(error, &came))?;
        }
        let mut time = metadata.timestamp.as_millisecond();
        if let (Some(path), true) = (&source.time, self.process.time.is_some()) {
            let raw = raw_at(&record, path).unwrap_or("null");
            time = match FlowValue::from_json(raw, &FlowType::Timestamp) {
                Ok(FlowValue::Timestamp(time)) => Timestamp::as_millisecond(time),
                Ok(_) | Err(_) => return Err(invalid(format!("`{path}` is not a time"), &record)),
            };
        }
        match &source.project {
            Some(ProjectPlan::Keep(paths)) => keep(&mut record, paths),
            Some(ProjectPlan::Except(paths)) => remove(&mut record, paths),
            None => {}
        }
        let mut moving = Moving {
            record,
            metadata: metadata.clone(),
            time,
            id,
            ids: vec![id],
        };
        if !self.process.partition_by.is_empty() {
            moving.metadata.key = Some(key_of(&moving.record, &self.process.partition_by));
        }
        if let Some(filter) = &source.filter
            && !self.is_true(filter, &moving)?
        {
            return Ok(None);
        }
        Ok(Some(moving))
    }

    /// Moves a record of a stream through the steps from `start` on.
    pub(super) fn flow(
        &mut self,
        stream: &str,
        start: usize,
        moving: Moving,
    ) -> Result<(), StepFailure> {
        let steps = &self.process.steps;
        let takes = |step: &StepPlan| step.inputs.iter().any(|input| input == stream);
        let Some(at) = (start..steps.len()).find(|at| takes(&steps[*at])) else {
            self.results.settle(&moving.ids, Place::Delivered);
            return Ok(());
        };
        let step = &steps[at];
        match &step.operator {
            OperatorPlan::Filter { condition } => {
                if !self.is_true(condition, &moving)? {
                    self.results.settle(&moving.ids, Place::Delivered);
                    return Ok(());
                }
                self.flow(&step.output, at + 1, moving)
            }
            OperatorPlan::Validate { checks } => {
                self.require(checks, FailureKind::Rule, &moving)?;
                self.flow(&step.output, at + 1, moving)
            }
            OperatorPlan::Enrich { lookup, on, select } => {
                let moving = self.enrich(lookup, on, select, moving)?;
                self.flow(&step.output, at + 1, moving)
            }
            OperatorPlan::Transform {
                transform,
                on_success,
                on_failure,
            } => self.apply(
                at,
                step,
                transform,
                on_success,
                on_failure.as_ref(),
                &moving,
            ),
            OperatorPlan::Assign { assignments } => {
                let mut moving = moving;
                self.assign(assignments, &mut moving)?;
                self.flow(&step.output, at + 1, moving)
            }
            OperatorPlan::Deduplicate {
                by,
                window_ms,
                on_duplicate,
            } => {
                let key = (at, key_of(&moving.record, by));
                let window = i64::try_from(*window_ms).unwrap_or(i64::MAX);
                let seen = self.memory.seen.get(&key).copied();
                if seen.is_some_and(|seen| (moving.time - seen).abs() < window) {
                    return match on_duplicate {
                        Some(leave) => {
                            let failure = StepFailure::new(
                                FailureKind::Rule,
                                "record.duplicate",
                                "the record is a duplicate",
                                &moving.record,
                            );
                            self.leave(leave, &moving, &failure, "deduplicate")
                        }
                        None => {
                            self.results.settle(&moving.ids, Place::Delivered);
                            Ok(())
                        }
                    };
                }
                self.memory.seen.insert(key, moving.time);
                self.flow(&step.output, at + 1, moving)
            }
            OperatorPlan::Window { .. } => self.window(at, &moving),
            OperatorPlan::Aggregate { using } => {
                for result in self.transform(using, &moving)? {
                    self.flow(&step.output, at + 1, result)?;
                }
                Ok(())
            }
            OperatorPlan::Join { .. } => self.join(at, stream, moving),
            OperatorPlan::Merge => self.flow(&step.output, at + 1, moving),
            OperatorPlan::Await { .. } => self.correlate(at, stream, moving),
            OperatorPlan::Hold { .. } => self.hold(at, stream, moving),
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => self.route(at, selector, arms, otherwise, moving),
            OperatorPlan::Emit { stream } => {
                self.emit(stream, &moving)?;
                self.flow(&step.output, at + 1, moving)
            }
        }
    }

    fn enrich(
        &mut self,
        lookup: &str,
        on: &[String],
        select: &[String],
        mut moving: Moving,
    ) -> Result<Moving, StepFailure> {
        let key = key_of(&moving.record, on);
        let answer = self.attempts(FailureKind::Lookup, &moving, |script| {
            script.ask(lookup, &key)
        })?;
        if select.is_empty() {
            let nested = answer.map_or_else(|| "null".to_owned(), |answer| answer.to_string());
            moving.record.set_raw(lookup, nested);
            return Ok(moving);
        }
        for path in select {
            let raw = answer
                .as_ref()
                .and_then(|answer| raw_at(answer, path))
                .unwrap_or("null");
            let raw = raw.to_owned();
            moving.record.set_raw(super::fields::last_name(path), raw);
        }
        Ok(moving)
    }

    fn apply(
        &mut self,
        at: usize,
        step: &StepPlan,
        transform: &TransformPlan,
        on_success: &[OnSuccessPlan],
        on_failure: Option<&OnFailurePlan>,
        moving: &Moving,
    ) -> Result<(), StepFailure> {
        let results = match (self.transform(transform, moving), on_failure) {
            (Ok(results), _) => results,
            (Err(failure), None) => return Err(failure),
            (Err(failure), Some(handler)) => {
                let mut moving = moving.clone();
                self.assign(&handler.assignments, &mut moving)?;
                return match &handler.leave {
                    Some(leave) => self.leave(leave, &moving, &failure, &transform.name),
                    None => self.flow(&step.output, at + 1, moving),
                };
            }
        };
        if results.is_empty() {
            self.results.settle(&moving.ids, Place::Delivered);
        }
        for mut result in results {
            for also in on_success {
                match also {
                    OnSuccessPlan::Emit(stream) => self.write(stream, &result)?,
                    OnSuccessPlan::Assign(assignments) => self.assign(assignments, &mut result)?,
                }
            }
            self.flow(&step.output, at + 1, result)?;
        }
        Ok(())
    }

    fn route(
        &mut self,
        at: usize,
        selector: &SelectorPlan,
        arms: &[ArmPlan],
        otherwise: &OtherwisePlan,
        moving: Moving,
    ) -> Result<(), StepFailure> {
        let targets = match selector {
            SelectorPlan::When => {
                let mut target = None;
                for arm in arms {
                    let is_taken = match &arm.when {
                        Some(when) => self.is_true(when, &moving)?,
                        None => false,
                    };
                    if is_taken {
                        target = Some(arm.stream.clone());
                        break;
                    }
                }
                target.into_iter().collect()
            }
            SelectorPlan::Field(path) => {
                let raw = raw_at(&moving.record, path).unwrap_or("null");
                chosen(arms, &[raw.to_owned()])
            }
            SelectorPlan::Rule(rule) => {
                let value = self.rule(rule, &moving, None)?;
                chosen(arms, &each(&value, &moving)?)
            }
            SelectorPlan::Target(rule) => {
                let value = self.rule(rule, &moving, Some("target"))?;
                let names = each(&value, &moving)?;
                let texts = names.iter().filter_map(|name| {
                    match FlowValue::parse_json(name, &FlowType::String) {
                        Ok(FlowValue::String(text)) => Some(text.into_owned()),
                        Ok(_) | Err(_) => None,
                    }
                });
                distinct(texts)
            }
        };
        for stream in &targets {
            self.write(stream, &moving)?;
        }
        if !targets.is_empty() {
            return Ok(());
        }
        match otherwise {
            OtherwisePlan::To(stream) => self.write(stream, &moving),
            OtherwisePlan::Continue => self.flow(&self.process.steps[at].output, at + 1, moving),
            OtherwisePlan::Skip => {
                self.results
                    .settle(&moving.ids, Place::Lost(LossReason::from_static("skipped")));
                Ok(())
            }
            OtherwisePlan::Fail => Err(StepFailure::new(
                FailureKind::Rule,
                "route.unmatched",
                "no arm of the route fits",
                &moving.record,
            )),
        }
    }
}

/// The streams of the arms with one of these values, each once.
fn chosen(arms: &[ArmPlan], raws: &[String]) -> Vec<String> {
    let is_chosen = |arm: &&ArmPlan| {
        let value = arm.value.as_ref();
        value.is_some_and(|value| raws.iter().any(|raw| is_literal(raw, value)))
    };
    distinct(arms.iter().filter(is_chosen).map(|arm| arm.stream.clone()))
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The JSON of a value, or of each element of a list.
fn each(value: &FlowValue<'_>, moving: &Moving) -> Result<Vec<String>, StepFailure> {
    let texts: Result<Vec<String>, _> = if let FlowValue::List(values) = value {
        values.iter().map(FlowValue::to_json).collect()
    } else {
        value.to_json().map(|text| vec![text])
    };
    texts.map_err(|error| {
        let failure = *EvaluationFailure::new("expr.convert", error.0);
        StepFailure::of(FailureKind::Rule, failure, &moving.record)
    })
}
