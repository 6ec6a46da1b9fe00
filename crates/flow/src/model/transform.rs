//! Expressions, assignments, transforms and decision tables.

use std::cell::RefCell;
use std::sync::Arc;

use super::memory::{StateValues, state_time};
use super::script::ModelScript;
use super::{FlowModel, Moving, Stepped, timestamp};
use crate::expression::{EvaluationFailure, ExpressionBindings, ExpressionHost, StepBudget};
use crate::plan::{
    AssignPlan, BodyPlan, CheckPlan, FailureKind, PlanExpression, ProcessPlan, StatePlan,
    TablePlan, TargetPlan, TransformPlan, TrimPlan,
};
use crate::value::paths::{key_of, set_at};
use crate::value::{FlowType, FlowValue, JsonRecord, MapKey, ValueMap};

type Value = FlowValue<'static>;
type Evaluated = Result<Value, Box<EvaluationFailure>>;

/// State and functions for one record.
#[derive(Debug)]
struct ModelHost<'m> {
    process: &'m ProcessPlan,
    state: &'m RefCell<StateValues>,
    script: &'m ModelScript,
    moving: &'m Moving,
    now: i64,
}

impl ExpressionHost for ModelHost<'_> {
    fn state(&self, name: &str) -> Evaluated {
        let Some(plan) = state_plan(self.process, name) else {
            let message = format!("there is no state `{name}`");
            return Err(EvaluationFailure::new("expr.missing", message));
        };
        let key = key_of(&self.moving.record, &plan.key);
        let time = state_time(plan, self.now, self.moving.time);
        Ok(self.state.borrow_mut().read(plan, &key, time))
    }

    fn call(&self, name: &str, arguments: &[FlowValue<'_>]) -> Evaluated {
        let Some(function) = self.script.rules.get(name) else {
            let message = format!("the script has no function `{name}`");
            return Err(EvaluationFailure::new("function.missing", message));
        };
        function(arguments)
    }
}

fn state_plan<'p>(process: &'p ProcessPlan, name: &str) -> Option<&'p StatePlan> {
    let ids = [format!("state/{name}"), format!("uses/{name}")];
    process.state.iter().find(|state| ids.contains(&state.id))
}

impl FlowModel<'_> {
    /// The value of an expression for a record.
    pub(super) fn evaluate_for(
        &mut self,
        expression: &PlanExpression,
        moving: &Moving,
        route: Option<&str>,
    ) -> Evaluated {
        let Some(checked) = &expression.checked else {
            let message = "the plan was read from JSON; check the flow again";
            return Err(EvaluationFailure::new("plan.unchecked", message));
        };
        let state = RefCell::new(std::mem::take(&mut self.memory.state));
        let host = ModelHost {
            process: self.process,
            state: &state,
            script: &self.script,
            moving,
            now: self.now(),
        };
        let bindings = ExpressionBindings {
            record: &moving.record,
            metadata: &moving.metadata,
            now: timestamp(self.now()),
            route,
            host: &host,
        };
        let value = checked.evaluate(&bindings, &mut StepBudget::default());
        let value = value.map(FlowValue::into_owned);
        self.memory.state = state.into_inner();
        value
    }

    pub(super) fn evaluate(&mut self, of: &PlanExpression, moving: &Moving) -> Stepped<Value> {
        let value = self.evaluate_for(of, moving, None);
        value.map_err(|failure| moving.fails(FailureKind::Transform, failure))
    }

    pub(super) fn is_true(&mut self, condition: &PlanExpression, moving: &Moving) -> Stepped<bool> {
        let value = self.evaluate(condition, moving)?;
        if let FlowValue::Boolean(yes) = value {
            return Ok(yes);
        }
        let message = format!("a condition is {} and not a boolean", value.kind());
        Err(moving.refused(FailureKind::Transform, "expr.type", &message))
    }

    pub(super) fn require(
        &mut self,
        checks: &[CheckPlan],
        kind: FailureKind,
        moving: &Moving,
    ) -> Stepped {
        for check in checks {
            if !self.is_true(&check.require, moving)? {
                return Err(moving.refused(kind, "rule.rejected", &check.message));
            }
        }
        Ok(())
    }

    /// Sets fields and state, each assignment seeing the ones before.
    pub(super) fn assign(&mut self, assignments: &[AssignPlan], moving: &mut Moving) -> Stepped {
        let came = moving.clone();
        let failed = |failure| came.fails(FailureKind::Transform, failure);
        for assignment in assignments {
            let checked = assignment.value.checked.as_ref();
            let copied = checked.and_then(|checked| checked.raw_field(&moving.record));
            let copied = copied.map(str::to_owned);
            match (&assignment.target, copied) {
                (TargetPlan::Field(path), Some(raw)) => set_at(&mut moving.record, path, &raw),
                (TargetPlan::Field(path), None) => {
                    let value = self.evaluate_for(&assignment.value, moving, None);
                    let text = json(&value.map_err(failed)?, &came)?;
                    set_at(&mut moving.record, path, &text);
                }
                (TargetPlan::State { name, key }, _) => {
                    let value = self.evaluate_for(&assignment.value, moving, None);
                    let value = value.map_err(failed)?;
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
        mut value: FlowValue<'static>,
        moving: &Moving,
    ) {
        let Some(plan) = state_plan(self.process, name) else {
            return;
        };
        let key = key_of(&moving.record, &plan.key);
        let time = state_time(plan, self.now(), moving.time);
        if let Some(entry) = entry.and_then(MapKey::of) {
            let mut entries = ValueMap::new();
            if let FlowValue::Map(stored) = self.memory.state.read(plan, &key, time) {
                entries = Arc::unwrap_or_clone(stored);
            }
            entries.insert(entry, value);
            value = FlowValue::Map(Arc::new(entries));
        }
        self.memory.state.write(plan, &key, time, value);
    }

    /// The records that a transform makes of one.
    pub(super) fn transform(
        &mut self,
        transform: &TransformPlan,
        moving: &Moving,
    ) -> Stepped<Vec<Moving>> {
        let kind = FailureKind::Transform;
        match &transform.body {
            BodyPlan::Apply {
                checks,
                assignments,
                trim,
                output,
            } => {
                self.require(checks, kind, moving)?;
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
                self.require(checks, kind, moving)?;
                let refuse = |message: &str| moving.refused(kind, "expr.type", message);
                let FlowValue::List(elements) = self.evaluate(each, moving)? else {
                    return Err(refuse("`each` needs a list of maps"));
                };
                let mut results = Vec::new();
                for element in elements.iter() {
                    let text = element.to_json().map_err(|error| refuse(&error.0))?;
                    let Ok(record) = JsonRecord::of_text(&text) else {
                        let message = format!("`each` needs maps, this is {}", element.kind());
                        return Err(refuse(&message));
                    };
                    let mut result = moving.with(record);
                    self.finish_record(&mut result, trim.as_ref(), output.as_ref(), moving)?;
                    results.push(result);
                }
                Ok(results)
            }
            BodyPlan::Table(table) => {
                let mut result = moving.clone();
                for (name, value) in self.decide(table, moving)? {
                    result.record.set_raw(&name, json(&value, moving)?);
                }
                Ok(vec![result])
            }
            BodyPlan::Registered => {
                let Some(function) = self.script.transforms.get(&transform.name).copied() else {
                    let message = format!("the script has no transform `{}`", transform.name);
                    return Err(moving.refused(kind, "function.missing", &message));
                };
                let records = self.ask(kind, moving, |_| function(&moving.record))?;
                Ok(records
                    .into_iter()
                    .map(|record| moving.with(record))
                    .collect())
            }
        }
    }

    fn finish_record(
        &self,
        result: &mut Moving,
        trim: Option<&TrimPlan>,
        output: Option<&String>,
        came: &Moving,
    ) -> Stepped {
        if let Some(trim) = trim {
            trim.trim(&mut result.record);
        }
        let conforms = self.conform(&mut result.record, output);
        conforms.map_err(|error| came.refused(FailureKind::Transform, "schema.invalid", &error))
    }

    /// The results of a table; no row at all is a rule failure.
    fn decide(&mut self, table: &TablePlan, moving: &Moving) -> Stepped<Vec<(String, Value)>> {
        let mut hits: Vec<Vec<Value>> = vec![Vec::new(); table.results.len()];
        let mut is_hit = false;
        for row in &table.rows {
            if is_hit && !table.collect_all {
                break;
            }
            let mut fits = true;
            for condition in &row.when {
                fits = fits && self.is_true(condition, moving)?;
            }
            is_hit |= fits;
            for (value, column) in row.then.iter().zip(&mut hits).filter(|_| fits) {
                column.push(self.evaluate(value, moving)?);
            }
        }
        if !is_hit {
            let message = "no row of the table matches";
            return Err(moving.refused(FailureKind::Rule, "rule.unmatched", message));
        }
        let value = |mut column: Vec<Value>| match table.collect_all {
            true => FlowValue::list(column),
            false => column.pop().unwrap_or(FlowValue::Null),
        };
        let results = table.results.iter().cloned();
        Ok(results.zip(hits.into_iter().map(value)).collect())
    }

    /// The answer of a rule: the only result of a table, or what Rust says.
    pub(super) fn rule(
        &mut self,
        rule: &TransformPlan,
        moving: &Moving,
        column: Option<&str>,
    ) -> Stepped<FlowValue<'static>> {
        if let BodyPlan::Table(table) = &rule.body {
            let mut results = self.decide(table, moving)?.into_iter();
            let wanted = results.find(|(name, _)| column.is_none_or(|column| column == name));
            return Ok(wanted.map_or(FlowValue::Null, |(_, value)| value));
        }
        let kind = FailureKind::Rule;
        let Some(function) = self.script.rules.get(&rule.name).copied() else {
            let message = format!("the script has no rule `{}`", rule.name);
            return Err(moving.refused(kind, "function.missing", &message));
        };
        let text = moving.record.to_string();
        let record = FlowValue::parse_json(&text, &FlowType::Dynamic);
        let record = record.map_err(|error| moving.refused(kind, "schema.invalid", &error.0))?;
        self.ask(kind, moving, |_| function(std::slice::from_ref(&record)))
    }

    /// One question to the world outside, which may fail for a while.
    pub(super) fn ask<T>(
        &mut self,
        kind: FailureKind,
        moving: &Moving,
        ask: impl FnOnce(&mut ModelScript) -> Result<T, Box<EvaluationFailure>>,
    ) -> Stepped<T> {
        ask(&mut self.script).map_err(|failure| moving.fails(kind, failure))
    }
}

fn json(value: &FlowValue<'_>, moving: &Moving) -> Stepped<String> {
    let text = value.to_json();
    text.map_err(|error| moving.refused(FailureKind::Transform, "expr.convert", &error.0))
}
