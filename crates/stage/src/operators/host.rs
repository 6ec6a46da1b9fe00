//! State, functions and lookups, as steps without memory ask for them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::Timestamp;
use tidegate_flow::apply::{ApplyHost, RecordView};
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::value::{FlowValue, JsonRecord, MapKey};

use super::keyed_state::{KeyedState, StateWork};
use super::moving::timestamp;
use super::{RegisteredFunctions, evaluation};

type Answer<T> = Result<T, Box<EvaluationFailure>>;

/// The host of one call.
#[derive(Debug)]
pub(super) struct ChainHost<'w, 's> {
    pub(super) work: RefCell<StateWork<'w, 's>>,
    pub(super) functions: &'w RegisteredFunctions,
    pub(super) epoch_start: i64,
}

impl ApplyHost for ChainHost<'_, '_> {
    fn now(&self) -> Timestamp {
        timestamp(self.epoch_start)
    }

    fn read_state(&self, name: &str, view: RecordView<'_>) -> Answer<FlowValue<'static>> {
        let mut work = self.work.borrow_mut();
        let place = work.place(name, view)?;
        work.read(&place).map_err(evaluation)
    }

    fn write_state(
        &self,
        name: &str,
        entry: Option<MapKey<'static>>,
        value: FlowValue<'static>,
        view: RecordView<'_>,
    ) -> Answer<()> {
        let mut work = self.work.borrow_mut();
        let place = work.place(name, view)?;
        let written = match entry {
            Some(key) => work.put(&place, &key, &value),
            None => work.write(&place, value),
        };
        written.map_err(evaluation)
    }

    fn call(&self, name: &str, arguments: &[FlowValue<'_>]) -> Answer<FlowValue<'static>> {
        let Some(function) = self.functions.rules.get(name) else {
            return Err(missing("function", name));
        };
        guarded(name, || function(arguments))
    }

    fn transform(&self, name: &str, view: RecordView<'_>) -> Answer<Vec<JsonRecord>> {
        let Some(function) = self.functions.transforms.get(name) else {
            return Err(missing("transform", name));
        };
        let work = self.work.borrow_mut();
        let mut state = KeyedState { work, view };
        guarded(name, || function(view.record, &mut state))
    }

    fn rule(&self, name: &str, record: &FlowValue<'_>) -> Answer<FlowValue<'static>> {
        let Some(function) = self.functions.rules.get(name) else {
            return Err(missing("rule", name));
        };
        guarded(name, || function(std::slice::from_ref(record)))
    }

    fn ask(&self, lookup: &str, key: &str) -> Answer<Option<JsonRecord>> {
        let Some(function) = self.functions.lookups.get(lookup) else {
            return Err(missing("lookup", lookup));
        };
        guarded(lookup, || function(key))
    }
}

fn missing(kind: &str, name: &str) -> Box<EvaluationFailure> {
    let message = format!("no {kind} `{name}` is registered");
    EvaluationFailure::new("function.missing", message)
}

/// Runs a function of the application; a panic is a failure.
fn guarded<T>(name: &str, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    // State that it wrote is taken back with the record.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = format!("`{name}` panicked: {}", text.unwrap_or("no message"));
        Err(EvaluationFailure::new("function.panicked", message))
    })
}
