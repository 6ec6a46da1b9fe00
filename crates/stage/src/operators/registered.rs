//! Everything that Rust brings to a process: transforms, rules, functions and lookups by their names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::plan::LookupPlan;
use tidegate_flow::value::paths::topic_key_of;
use tidegate_flow::value::{FlowValue, JsonRecord};

use super::KeyedState;

type Answer<T> = Result<T, Box<EvaluationFailure>>;

/// A transform: one record becomes none, one or several.
pub type TransformFunction =
    dyn Fn(&JsonRecord, &mut KeyedState<'_, '_, '_>) -> Answer<Vec<JsonRecord>> + Send + Sync;
/// A rule, which gets the record as a map, or a function of expressions.
pub type RuleFunction = dyn Fn(&[FlowValue<'_>]) -> Answer<FlowValue<'static>> + Send + Sync;
/// A lookup, which gets the values of its key joined by commas.
pub type LookupFunction = dyn Fn(&str) -> Answer<Option<JsonRecord>> + Send + Sync;

/// The functions of a process by their names.
///
/// A panic in one of them is a permanent failure of the record, with the code `function.panicked`.
///
/// ```
/// use tidegate_flow::value::FlowValue;
/// use tidegate_stage::operators::RegisteredFunctions;
/// let functions = RegisteredFunctions::default()
///     .rule("always", |_| Ok(FlowValue::Boolean(true)))
///     .transform("count", |record, state| {
///         let seen = state.reduce("seen", |before| {
///             let FlowValue::Integer(n) = before.unwrap_or(FlowValue::Integer(0)) else {
///                 return Ok(FlowValue::Integer(1));
///             };
///             Ok(FlowValue::Integer(n + 1))
///         })?;
///         let mut record = record.clone();
///         record.set("seen", &seen)?;
///         Ok(vec![record])
///     });
/// assert!(format!("{functions:?}").contains("always"));
/// ```
#[derive(Clone, Default)]
pub struct RegisteredFunctions {
    pub(super) transforms: BTreeMap<String, Arc<TransformFunction>>,
    pub(super) rules: BTreeMap<String, Arc<RuleFunction>>,
    pub(super) lookups: BTreeMap<String, Arc<LookupFunction>>,
}

impl fmt::Debug for RegisteredFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredFunctions")
            .field("transforms", &self.transforms.keys())
            .field("rules", &self.rules.keys())
            .field("lookups", &self.lookups.keys())
            .finish()
    }
}

impl RegisteredFunctions {
    /// Adds a transform.
    #[must_use]
    pub fn transform(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&JsonRecord, &mut KeyedState<'_, '_, '_>) -> Answer<Vec<JsonRecord>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.transforms.insert(name.into(), Arc::new(function));
        self
    }

    /// Adds a rule, or a function of expressions.
    #[must_use]
    pub fn rule(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&[FlowValue<'_>]) -> Answer<FlowValue<'static>> + Send + Sync + 'static,
    ) -> Self {
        self.rules.insert(name.into(), Arc::new(function));
        self
    }

    /// Adds a lookup.
    #[must_use]
    pub fn lookup(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&str) -> Answer<Option<JsonRecord>> + Send + Sync + 'static,
    ) -> Self {
        self.lookups.insert(name.into(), Arc::new(function));
        self
    }

    /// Adds a lookup whose answers stand in a text: a JSON list of objects, or one object a line. A later one
    /// replaces an earlier one of the same key.
    ///
    /// # Errors
    /// The text is not of this form; the message names the row.
    pub fn lookup_of_text(self, name: &str, plan: &LookupPlan, text: &str) -> Result<Self, String> {
        let text = text.trim();
        let rows: Vec<String> = if text.starts_with('[') {
            let rows: Vec<Box<serde_json::value::RawValue>> =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            rows.iter().map(|row| row.get().to_owned()).collect()
        } else {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.map(str::to_owned).collect()
        };
        let mut answers = BTreeMap::new();
        for (at, row) in rows.iter().enumerate() {
            let record = JsonRecord::of_text(row);
            let record = record.map_err(|error| format!("row {}: {error}", at + 1))?;
            answers.insert(topic_key_of(&record, &plan.key), record);
        }
        Ok(self.lookup(name, move |key| Ok(answers.get(key).cloned())))
    }
}
