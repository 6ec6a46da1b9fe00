//! The way of a record through the steps.

use tidegate_core::books::Place;

use super::{FlowModel, Moving, Stepped, ms};
use crate::plan::{
    ArmPlan, FailureKind, OnFailurePlan, OnSuccessPlan, OperatorPlan, OtherwisePlan, SelectorPlan,
    SourcePlan, TransformPlan, is_literal,
};
use crate::value::paths::{key_of, last_name, raw_at};
use crate::value::{FlowType, FlowValue, JsonRecord};

impl FlowModel<'_> {
    /// Fills in the record of some bytes.
    pub(super) fn decode(
        &mut self,
        source: &SourcePlan,
        value: &[u8],
        moving: &mut Moving,
    ) -> Stepped {
        let invalid = |moving: &Moving, message: &str| {
            moving.refused(FailureKind::Transform, "schema.invalid", message)
        };
        let record = JsonRecord::parse(value);
        moving.record = record.map_err(|error| invalid(moving, &error.to_string()))?;
        let mut record = moving.record.clone();
        self.conform(&mut record, source.schema.as_ref())
            .map_err(|error| invalid(moving, &error))?;
        moving.record = record;
        if let (Some(path), true) = (&source.time, self.process.time.is_some()) {
            let raw = raw_at(&moving.record, path).unwrap_or("null");
            let Ok(FlowValue::Timestamp(time)) = FlowValue::from_json(raw, &FlowType::Timestamp)
            else {
                return Err(invalid(moving, &format!("`{path}` is not a time")));
            };
            moving.time = time.as_millisecond();
        }
        if let Some(project) = &source.project {
            project.trim(&mut moving.record);
        }
        if !self.process.partition_by.is_empty() {
            moving.metadata.key = Some(key_of(&moving.record, &self.process.partition_by));
        }
        Ok(())
    }

    /// A record that was decoded: the filter of its input, then the steps.
    pub(super) fn enter(&mut self, source: &SourcePlan, moving: Moving) -> Stepped {
        if let Some(filter) = &source.filter
            && !self.is_true(filter, &moving)?
        {
            return self.delivered(&moving);
        }
        self.flow(&source.alias, 0, moving)
    }

    /// Moves a record of a stream through the steps from `start` on.
    pub(super) fn flow(&mut self, stream: &str, start: usize, mut moving: Moving) -> Stepped {
        let steps = &self.process.steps;
        let takes = |at: &usize| steps[*at].inputs.iter().any(|input| input == stream);
        let Some(at) = (start..steps.len()).find(takes) else {
            return self.delivered(&moving);
        };
        let step = &steps[at];
        match &step.operator {
            OperatorPlan::Filter { condition } => {
                if !self.is_true(condition, &moving)? {
                    return self.delivered(&moving);
                }
            }
            OperatorPlan::Validate { checks } => {
                self.require(checks, FailureKind::Rule, &moving)?
            }
            OperatorPlan::Enrich { lookup, on, select } => {
                self.enrich(lookup, on, select, &mut moving)?;
            }
            OperatorPlan::Transform {
                transform,
                on_success,
                on_failure,
            } => return self.apply(at, transform, on_success, on_failure.as_ref(), &moving),
            OperatorPlan::Assign { assignments } => self.assign(assignments, &mut moving)?,
            OperatorPlan::Deduplicate {
                by,
                window_ms,
                on_duplicate,
            } => {
                let key = (at, key_of(&moving.record, by));
                let seen = self.memory.seen.get(&key);
                if seen.is_some_and(|seen| (moving.time - seen).abs() < ms(*window_ms)) {
                    let Some(leave) = on_duplicate else {
                        return self.delivered(&moving);
                    };
                    let message = "the record is a duplicate";
                    let failure = moving.refused(FailureKind::Rule, "record.duplicate", message);
                    return self.leave(leave, &moving, &failure, "deduplicate");
                }
                self.memory.seen.insert(key, moving.time);
            }
            OperatorPlan::Window { .. } => return self.window(at, &moving),
            OperatorPlan::Aggregate { using } => {
                let results = self.transform(using, &moving)?;
                return self.flow_all(at, results);
            }
            OperatorPlan::Join { .. } | OperatorPlan::Await { .. } | OperatorPlan::Hold { .. } => {
                return self.meet(at, stream, moving);
            }
            OperatorPlan::Merge => {}
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => {
                if !self.route(selector, arms, otherwise, &moving)? {
                    return Ok(());
                }
            }
            OperatorPlan::Emit { stream } => self.emit(stream, &moving)?,
        }
        self.flow(&step.output, at + 1, moving)
    }

    /// Moves the results of a step on.
    pub(super) fn flow_all(&mut self, at: usize, results: Vec<Moving>) -> Stepped {
        let output = &self.process.steps[at].output;
        let mut results = results.into_iter();
        results.try_for_each(|result| self.flow(output, at + 1, result))
    }

    fn enrich(
        &mut self,
        lookup: &str,
        on: &[String],
        select: &[String],
        moving: &mut Moving,
    ) -> Stepped {
        let key = key_of(&moving.record, on);
        let kind = FailureKind::Lookup;
        let answer = self.ask(kind, moving, |script| script.ask(lookup, &key))?;
        let answer = answer.as_ref();
        if select.is_empty() {
            let nested = answer.map_or_else(|| "null".to_owned(), JsonRecord::to_string);
            moving.record.set_raw(lookup, nested);
        }
        for path in select {
            let raw = answer.and_then(|answer| raw_at(answer, path));
            moving
                .record
                .set_raw(last_name(path), raw.unwrap_or("null"));
        }
        Ok(())
    }

    fn apply(
        &mut self,
        at: usize,
        transform: &TransformPlan,
        on_success: &[OnSuccessPlan],
        on_failure: Option<&OnFailurePlan>,
        moving: &Moving,
    ) -> Stepped {
        let mut results = match (self.transform(transform, moving), on_failure) {
            (Ok(results), _) => results,
            (Err(failure), None) => return Err(failure),
            (Err(failure), Some(handler)) => {
                let mut moving = moving.clone();
                self.assign(&handler.assignments, &mut moving)?;
                return match &handler.leave {
                    Some(leave) => self.leave(leave, &moving, &failure, &transform.name),
                    None => self.flow_all(at, vec![moving]),
                };
            }
        };
        if results.is_empty() {
            self.results.settle(&moving.ids, Place::Delivered);
        }
        for result in &mut results {
            for also in on_success {
                match also {
                    OnSuccessPlan::Emit(stream) => self.write(stream, result)?,
                    OnSuccessPlan::Assign(assignments) => self.assign(assignments, result)?,
                }
            }
        }
        self.flow_all(at, results)
    }

    /// Sends a record to its streams; true where it goes on.
    fn route(
        &mut self,
        selector: &SelectorPlan,
        arms: &[ArmPlan],
        otherwise: &OtherwisePlan,
        moving: &Moving,
    ) -> Stepped<bool> {
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
                        && when.map_or(Ok(false), |when| self.is_true(when, moving))?
                    {
                        targets.push(arm.stream.clone());
                    }
                }
            }
            SelectorPlan::Field(path) => {
                let raw = raw_at(&moving.record, path).unwrap_or("null");
                targets = chosen(&[raw.to_owned()]);
            }
            SelectorPlan::Rule(rule) => {
                targets = chosen(&each(&self.rule(rule, moving, None)?, moving)?);
            }
            SelectorPlan::Target(rule) => {
                let names = each(&self.rule(rule, moving, Some("target"))?, moving)?;
                let names = names
                    .iter()
                    .map(|name| serde_json::from_str::<String>(name));
                targets.extend(names.filter_map(Result::ok));
            }
        }
        let mut seen: Vec<&str> = Vec::new();
        for stream in &targets {
            if !seen.contains(&stream.as_str()) {
                seen.push(stream);
                self.write(stream, moving)?;
            }
        }
        if !targets.is_empty() {
            return Ok(false);
        }
        match otherwise {
            OtherwisePlan::To(stream) => self.write(stream, moving)?,
            OtherwisePlan::Continue => return Ok(true),
            OtherwisePlan::Skip => self.skipped(moving)?,
            OtherwisePlan::Fail => {
                let message = "no arm of the route fits";
                return Err(moving.refused(FailureKind::Rule, "route.unmatched", message));
            }
        }
        Ok(false)
    }
}

/// The JSON of a value, or of each element of a list.
fn each(value: &FlowValue<'_>, moving: &Moving) -> Stepped<Vec<String>> {
    let texts: Result<Vec<String>, _> = if let FlowValue::List(values) = value {
        values.iter().map(FlowValue::to_json).collect()
    } else {
        value.to_json().map(|text| vec![text])
    };
    texts.map_err(|error| moving.refused(FailureKind::Rule, "expr.convert", &error.0))
}
