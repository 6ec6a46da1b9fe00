//! State, functions and lookups of the model, for the work that it shares with the runtime.

use std::cell::RefCell;
use std::sync::Arc;

use jiff::Timestamp;

use super::memory::{StateValues, state_time};
use super::script::ModelScript;
use super::{FlowModel, Moving, Stepped, timestamp};
use crate::apply::{Apply, ApplyHost, RecordView, StepResult, state_key, state_plan};
use crate::expression::EvaluationFailure;
use crate::plan::{AssignPlan, PlanExpression, ProcessPlan, TransformPlan};
use crate::value::{FlowValue, JsonRecord, MapKey, ValueMap};

type Evaluated = Result<FlowValue<'static>, Box<EvaluationFailure>>;

/// State and functions as they are now.
#[derive(Debug)]
pub(super) struct ModelHost<'m> {
    process: &'m ProcessPlan,
    state: &'m RefCell<StateValues>,
    script: &'m RefCell<ModelScript>,
    now: i64,
}

impl ApplyHost for ModelHost<'_> {
    fn now(&self) -> Timestamp {
        timestamp(self.now)
    }

    fn read_state(&self, name: &str, view: RecordView<'_>) -> Evaluated {
        let Some(plan) = state_plan(self.process, name) else {
            let message = format!("there is no state `{name}`");
            return Err(EvaluationFailure::new("expr.missing", message));
        };
        let key = state_key(plan, view);
        let time = state_time(plan, self.now, view.time);
        Ok(self.state.borrow_mut().read(plan, &key, time))
    }

    fn write_state(
        &self,
        name: &str,
        entry: Option<MapKey<'static>>,
        mut value: FlowValue<'static>,
        view: RecordView<'_>,
    ) -> Result<(), Box<EvaluationFailure>> {
        let Some(plan) = state_plan(self.process, name) else {
            return Ok(());
        };
        let key = state_key(plan, view);
        let time = state_time(plan, self.now, view.time);
        let mut state = self.state.borrow_mut();
        if let Some(entry) = entry {
            let mut entries = ValueMap::new();
            if let FlowValue::Map(stored) = state.read(plan, &key, time) {
                entries = Arc::unwrap_or_clone(stored);
            }
            entries.insert(entry, value);
            value = FlowValue::Map(Arc::new(entries));
        }
        state.write(plan, &key, time, value);
        Ok(())
    }

    fn call(&self, name: &str, arguments: &[FlowValue<'_>]) -> Evaluated {
        let function = self.script.borrow().rules.get(name).copied();
        let Some(function) = function else {
            let message = format!("the script has no function `{name}`");
            return Err(EvaluationFailure::new("function.missing", message));
        };
        function(arguments)
    }

    fn transform(
        &self,
        name: &str,
        view: RecordView<'_>,
    ) -> Result<Vec<JsonRecord>, Box<EvaluationFailure>> {
        let function = self.script.borrow().transforms.get(name).copied();
        let Some(function) = function else {
            let message = format!("the script has no transform `{name}`");
            return Err(EvaluationFailure::new("function.missing", message));
        };
        function(view.record)
    }

    fn rule(&self, name: &str, record: &FlowValue<'_>) -> Evaluated {
        let function = self.script.borrow().rules.get(name).copied();
        let Some(function) = function else {
            let message = format!("the script has no rule `{name}`");
            return Err(EvaluationFailure::new("function.missing", message));
        };
        function(std::slice::from_ref(record))
    }

    fn waits(&self) -> bool {
        true
    }

    fn ask(&self, lookup: &str, key: &str) -> Result<Option<JsonRecord>, Box<EvaluationFailure>> {
        self.script.borrow_mut().ask(lookup, key)
    }
}

impl FlowModel<'_> {
    /// Does something to a record; a failure keeps the record as it came.
    pub(super) fn apply<T>(
        &self,
        moving: &Moving,
        work: impl FnOnce(&Apply<'_>, RecordView<'_>) -> StepResult<T>,
    ) -> Stepped<T> {
        let host = ModelHost {
            process: self.process,
            state: &self.memory.state,
            script: &self.script,
            now: self.now(),
        };
        let apply = Apply {
            plan: self.plan,
            process: self.process,
            host: &host,
        };
        work(&apply, moving.view()).map_err(|refusal| moving.refuses(refusal))
    }

    pub(super) fn evaluate(
        &self,
        of: &PlanExpression,
        moving: &Moving,
    ) -> Stepped<FlowValue<'static>> {
        self.apply(moving, |apply, view| apply.value(of, view))
    }

    pub(super) fn is_true(&self, condition: &PlanExpression, moving: &Moving) -> Stepped<bool> {
        self.apply(moving, |apply, view| apply.is_true(condition, view))
    }

    /// Sets fields and state.
    pub(super) fn assign(&self, assignments: &[AssignPlan], moving: &mut Moving) -> Stepped {
        let mut record = moving.record.clone();
        self.apply(moving, |apply, view| {
            apply.assign(assignments, &mut record, view.metadata, view.time)
        })?;
        moving.record = record;
        Ok(())
    }

    /// The records that a transform makes of one.
    pub(super) fn transform(
        &self,
        transform: &TransformPlan,
        moving: &Moving,
    ) -> Stepped<Vec<Moving>> {
        let records = self.apply(moving, |apply, view| apply.transform(transform, view))?;
        let results = records.into_iter().map(|record| moving.with(record));
        Ok(results.collect())
    }

    /// The answer of a rule.
    pub(super) fn rule(
        &self,
        rule: &TransformPlan,
        moving: &Moving,
    ) -> Stepped<FlowValue<'static>> {
        self.apply(moving, |apply, view| apply.rule(rule, view, None))
    }
}
