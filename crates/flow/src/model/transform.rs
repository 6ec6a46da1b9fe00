//! Expressions, assignments, transforms and decision tables.

use std::cell::RefCell;

use super::fields::{conform, keep, key_of, remove, set_at};
use super::memory::{StateValues, state_time};
use super::script::ModelScript;
use super::{FlowModel, Moving, StepFailure};
use crate::expression::{EvaluationFailure, ExpressionBindings, ExpressionHost, StepBudget};
use crate::plan::{
    AssignPlan, BodyPlan, CheckPlan, FailureKind, PlanExpression, ProcessPlan, StatePlan,
    TablePlan, TargetPlan, TransformPlan, TrimPlan,
};
use crate::value::{FlowType, FlowValue, JsonRecord, MapKey, ValueMap};

/// State and functions for one record.
#[derive(Debug)]
struct ModelHost<'m> {
    process: &'m ProcessPlan,
    state: &'m RefCell<StateValues>,
    script: &'m ModelScript,
    record: &'m JsonRecord,
    now: i64,
    time: i64,
}

impl ExpressionHost for ModelHost<'_> {
    fn state(&self, name: &str) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        let Some(plan) = state_plan(self.process, name) else {
            return Err(EvaluationFailure::new(
                "expr.missing",
                format!("there is no state `{name}`"),
            ));
        };
        let key = key_of(self.record, &plan.key);
        let time = state_time(plan, self.now, self.time);
        Ok(self.state.borrow_mut().read(plan, &key, time))
    }

    fn call(
        &self,
        name: &str,
        arguments: &[FlowValue<'_>],
    ) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        match self.script.rules.get(name) {
            Some(function) => function(arguments),
            None => Err(EvaluationFailure::new(
                "function.missing",
                format!("the script has no function `{name}`"),
            )),
        }
    }
}

fn state_plan<'p>(process: &'p ProcessPlan, name: &str) -> Option<&'p StatePlan> {
    let [local, used] = [format!("state/{name}"), format!("uses/{name}")];
    process
        .state
        .iter()
        .find(|state| state.id == local || state.id == used)
}

impl FlowModel<'_> {
    /// The value of an expression for a record.
    pub(super) fn evaluate_for(
        &mut self,
        expression: &PlanExpression,
        moving: &Moving,
        route: Option<&str>,
    ) -> Result<FlowValue<'static>, EvaluationFailure> {
        let Some(checked) = &expression.checked else {
            let message = "the plan was read from JSON; check the flow again";
            return Err(*EvaluationFailure::new("plan.unchecked", message));
        };
        let state = RefCell::new(std::mem::take(&mut self.memory.state));
        let result = {
            let host = ModelHost {
                process: self.process,
                state: &state,
                script: &self.script,
                record: &moving.record,
                now: self.now(),
                time: moving.time,
            };
            let bindings = ExpressionBindings {
                record: &moving.record,
                metadata: &moving.metadata,
                now: Self::timestamp(self.now()),
                route,
                host: &host,
            };
            checked
                .evaluate(&bindings, &mut StepBudget::default())
                .map(FlowValue::into_owned)
        };
        self.memory.state = state.into_inner();
        result
    }

    pub(super) fn evaluate(
        &mut self,
        expression: &PlanExpression,
        moving: &Moving,
    ) -> Result<FlowValue<'static>, StepFailure> {
        let value = self.evaluate_for(expression, moving, None);
        value.map_err(|failure| StepFailure::of(FailureKind::Transform, failure, &moving.record))
    }

    pub(super) fn is_true(
        &mut self,
        expression: &PlanExpression,
        moving: &Moving,
    ) -> Result<bool, StepFailure> {
        let value = self.evaluate(expression, moving)?;
        if let FlowValue::Boolean(yes) = value {
            return Ok(yes);
        }
        let message = format!("a condition is {} and not a boolean", value.kind());
        Err(StepFailure::new(
            FailureKind::Transform,
            "expr.type",
            message,
            &moving.record,
        ))
    }

    pub(super) fn require(
        &mut self,
        checks: &[CheckPlan],
        kind: FailureKind,
        moving: &Moving,
    ) -> Result<(), StepFailure> {
        for check in checks {
            if !self.is_true(&check.require, moving)? {
                return Err(StepFailure::new(
                    kind,
                    "rule.rejected",
                    check.message.clone(),
                    &moving.record,
                ));
            }
        }
        Ok(())
    }

    /// Sets fields and state, each assignment seeing the ones before.
    pub(super) fn assign(
        &mut self,
        assignments: &[AssignPlan],
        moving: &mut Moving,
    ) -> Result<(), StepFailure> {
        let came = moving.record.clone();
        let failed =
            |failure: EvaluationFailure| StepFailure::of(FailureKind::Transform, failure, &came);
        for assignment in assignments {
            let copied = assignment
                .value
                .checked
                .as_ref()
                .and_then(|checked| checked.raw_field(&moving.record));
            if let (TargetPlan::Field(path), Some(raw)) = (&assignment.target, copied) {
                let raw = raw.to_owned();
                set_at(&mut moving.record, path, &raw);
                continue;
            }
            let value = self
                .evaluate_for(&assignment.value, moving, None)
                .map_err(failed)?;
            match &assignment.target {
                TargetPlan::Field(path) => {
                    let text = value.to_json();
                    let text = text.map_err(|error| {
                        failed(*EvaluationFailure::new("expr.convert", error.0))
                    })?;
                    set_at(&mut moving.record, path, &text);
                }
                TargetPlan::State { name, key } => {
                    let key = key.as_ref().map(|key| self.evaluate_for(key, moving, None));
                    let key = key.transpose().map_err(failed)?;
                    self.set_state(name, key.as_ref(), value, moving);
                }
            }
        }
        Ok(())
    }

    fn set_state(
        &mut self,
        name: &str,
        entry: Option<&FlowValue<'static>>,
        value: FlowValue<'static>,
        moving: &Moving,
    ) {
        let Some(plan) = state_plan(self.process, name) else {
            return;
        };
        let key = key_of(&moving.record, &plan.key);
        let time = state_time(plan, self.now(), moving.time);
        let value = match entry.and_then(MapKey::of) {
            None => value,
            Some(entry) => {
                let mut entries = ValueMap::new();
                if let FlowValue::Map(stored) = self.memory.state.read(plan, &key, time) {
                    entries = std::sync::Arc::unwrap_or_clone(stored);
                }
                entries.insert(entry, value);
                FlowValue::Map(std::sync::Arc::new(entries))
            }
        };
        self.memory.state.write(plan, &key, time, value);
    }

    /// The records that a transform makes of one.
    pub(super) fn transform(
        &mut self,
        transform: &TransformPlan,
        moving: &Moving,
    ) -> Result<Vec<Moving>, StepFailure> {
        match &transform.body {
            BodyPlan::Apply {
                checks,
                assignments,
                trim,
                output,
            } => {
                self.require(checks, FailureKind::Transform, moving)?;
                let mut result = moving.clone();
                self.assign(assignments, &mut result)?;
                self.finish_record(&mut result, trim.as_ref(), output.as_ref(), moving)?;
                Ok(vec![result])
            }
            BodyPlan::Each {
                checks,
                each,
                trim,
                output,
            } => {
                self.require(checks, FailureKind::Transform, moving)?;
                let refuse = |message: String| {
                    StepFailure::new(FailureKind::Transform, "expr.type", message, &moving.record)
                };
                let FlowValue::List(elements) = self.evaluate(each, moving)? else {
                    return Err(refuse("`each` needs a list of maps".to_owned()));
                };
                let mut results = Vec::new();
                for element in elements.iter() {
                    let text = element.to_json().map_err(|error| refuse(error.0))?;
                    let record = JsonRecord::of_text(&text).map_err(|_| {
                        refuse(format!("`each` needs maps, this is {}", element.kind()))
                    })?;
                    let mut result = Moving {
                        record,
                        ..moving.clone()
                    };
                    self.finish_record(&mut result, trim.as_ref(), output.as_ref(), moving)?;
                    results.push(result);
                }
                Ok(results)
            }
            BodyPlan::Table(table) => {
                let mut result = moving.clone();
                for (name, value) in self.decide(table, moving)? {
                    let text = value.to_json();
                    let text = text.map_err(|error| {
                        StepFailure::new(
                            FailureKind::Transform,
                            "expr.convert",
                            error.0,
                            &moving.record,
                        )
                    })?;
                    result.record.set_raw(&name, text);
                }
                Ok(vec![result])
            }
            BodyPlan::Registered => self.registered(&transform.name, moving),
        }
    }

    fn finish_record(
        &self,
        result: &mut Moving,
        trim: Option<&TrimPlan>,
        output: Option<&String>,
        came: &Moving,
    ) -> Result<(), StepFailure> {
        match trim {
            Some(TrimPlan::Keep(paths)) => keep(&mut result.record, paths),
            Some(TrimPlan::Drop(paths)) => remove(&mut result.record, paths),
            None => {}
        }
        let schema = output.and_then(|output| self.plan.schemas.get(output));
        let fields = schema.map_or(&[][..], |schema| &schema.fields);
        conform(&mut result.record, fields).map_err(|error| {
            StepFailure::new(
                FailureKind::Transform,
                "schema.invalid",
                error,
                &came.record,
            )
        })
    }

    /// The results of a table; no row at all is a rule failure.
    pub(super) fn decide(
        &mut self,
        table: &TablePlan,
        moving: &Moving,
    ) -> Result<Vec<(String, FlowValue<'static>)>, StepFailure> {
        let mut hits: Vec<Vec<FlowValue<'static>>> = Vec::new();
        for row in &table.rows {
            let mut is_hit = true;
            for condition in &row.when {
                is_hit = is_hit && self.is_true(condition, moving)?;
            }
            if is_hit {
                let values: Result<Vec<_>, _> = row
                    .then
                    .iter()
                    .map(|value| self.evaluate(value, moving))
                    .collect();
                hits.push(values?);
                if !table.collect_all {
                    break;
                }
            }
        }
        if hits.is_empty() {
            return Err(StepFailure::new(
                FailureKind::Rule,
                "rule.unmatched",
                "no row of the table matches",
                &moving.record,
            ));
        }
        let value = |column: usize| {
            let all: Vec<_> = hits
                .iter()
                .filter_map(|row| row.get(column).cloned())
                .collect();
            if table.collect_all {
                FlowValue::list(all)
            } else {
                all.into_iter().next().unwrap_or(FlowValue::Null)
            }
        };
        Ok(table
            .results
            .iter()
            .enumerate()
            .map(|(at, name)| (name.clone(), value(at)))
            .collect())
    }

    /// The answer of a rule: the only result of a table, or what Rust says.
    pub(super) fn rule(
        &mut self,
        rule: &TransformPlan,
        moving: &Moving,
        column: Option<&str>,
    ) -> Result<FlowValue<'static>, StepFailure> {
        if let BodyPlan::Table(table) = &rule.body {
            let results = self.decide(table, moving)?;
            let wanted = results
                .into_iter()
                .find(|(name, _)| column.is_none_or(|column| column == name));
            return Ok(wanted.map_or(FlowValue::Null, |(_, value)| value));
        }
        let refuse = |failure: EvaluationFailure| {
            StepFailure::of(FailureKind::Rule, failure, &moving.record)
        };
        let Some(function) = self.script.rules.get(&rule.name).copied() else {
            let message = format!("the script has no rule `{}`", rule.name);
            return Err(refuse(*EvaluationFailure::new("function.missing", message)));
        };
        let text = moving.record.to_string();
        let record = FlowValue::parse_json(&text, &FlowType::Dynamic);
        let record =
            record.map_err(|error| refuse(*EvaluationFailure::new("schema.invalid", error.0)))?;
        self.attempts(FailureKind::Rule, moving, |_| {
            function(std::slice::from_ref(&record)).map_err(|failure| *failure)
        })
    }

    fn registered(&mut self, name: &str, moving: &Moving) -> Result<Vec<Moving>, StepFailure> {
        let Some(function) = self.script.transforms.get(name).copied() else {
            let message = format!("the script has no transform `{name}`");
            return Err(StepFailure::new(
                FailureKind::Transform,
                "function.missing",
                message,
                &moving.record,
            ));
        };
        let records = self.attempts(FailureKind::Transform, moving, |_| {
            function(&moving.record).map_err(|failure| *failure)
        })?;
        Ok(records
            .into_iter()
            .map(|record| Moving {
                record,
                ..moving.clone()
            })
            .collect())
    }

    /// Attempts at something that may fail for a while, as the handler of its kind allows.
    pub(super) fn attempts<T>(
        &mut self,
        kind: FailureKind,
        moving: &Moving,
        mut attempt: impl FnMut(&mut ModelScript) -> Result<T, EvaluationFailure>,
    ) -> Result<T, StepFailure> {
        let handler = self
            .process
            .handlers
            .iter()
            .find(|handler| handler.failure == kind);
        let most = handler
            .and_then(|handler| handler.retry)
            .map_or(1, |retry| retry.attempts);
        let mut used = 0_u32;
        loop {
            used += 1;
            match attempt(&mut self.script) {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    let is_last = u64::from(used) >= most;
                    // Another attempt at a permanent failure changes nothing.
                    if is_last || failure.class != tidegate_core::FailureClass::Transient {
                        let mut failed = StepFailure::of(kind, failure, &moving.record);
                        failed.attempts = used;
                        return Err(failed);
                    }
                }
            }
        }
    }
}
