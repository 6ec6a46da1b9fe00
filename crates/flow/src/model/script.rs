//! The world outside of the process: answers of lookups, functions and sinks, as a test writes them down.

use std::collections::BTreeMap;
use std::fmt;

use tidegate_core::{Code, FailureClass};

use crate::expression::EvaluationFailure;
use crate::value::{FlowValue, JsonRecord};

/// A failure that is written in a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptedFailure {
    /// Its code.
    pub code: Code,
    /// Whether another attempt makes sense.
    pub class: FailureClass,
    /// How often it happens; for ever without a number.
    pub times: Option<u32>,
}

impl ScriptedFailure {
    /// The next failure; none once it has happened as often as it should.
    pub(super) fn happen(&mut self) -> Option<Box<EvaluationFailure>> {
        if self.times == Some(0) {
            return None;
        }
        self.times = self.times.map(|times| times - 1);
        Some(Box::new(EvaluationFailure {
            class: self.class,
            code: self.code.clone(),
            message: "the script lets it fail".to_owned(),
        }))
    }
}

/// The answer of a lookup for one key.
#[derive(Debug, Clone, Default)]
pub struct ScriptedAnswer {
    /// The fields of the answer, as a JSON object; none where the key is not found.
    pub value: Option<JsonRecord>,
    /// A failure before or in place of the answer.
    pub failure: Option<ScriptedFailure>,
}

/// A transform that is registered in Rust: one record becomes none, one or several.
pub type ScriptedTransform = fn(&JsonRecord) -> Result<Vec<JsonRecord>, Box<EvaluationFailure>>;
/// A rule that is registered in Rust, or a function of expressions.
pub type ScriptedRule = fn(&[FlowValue<'_>]) -> Result<FlowValue<'static>, Box<EvaluationFailure>>;

/// Everything that stands outside of the process.
#[derive(Clone, Default)]
pub struct ModelScript {
    /// Answers by lookup and key; the values of several key fields are joined by commas.
    pub lookups: BTreeMap<String, BTreeMap<String, ScriptedAnswer>>,
    /// Streams that refuse what is written to them.
    pub sinks: BTreeMap<String, ScriptedFailure>,
    /// Transforms in Rust.
    pub transforms: BTreeMap<String, ScriptedTransform>,
    /// Rules and functions in Rust. A rule gets the record as a map.
    pub rules: BTreeMap<String, ScriptedRule>,
}

impl fmt::Debug for ModelScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelScript")
            .field("lookups", &self.lookups)
            .field("sinks", &self.sinks)
            .finish_non_exhaustive()
    }
}

impl ModelScript {
    /// Whether something fails so many times and then not any more.
    #[must_use]
    pub fn heals(&self) -> bool {
        let answers = self.lookups.values().flat_map(BTreeMap::values);
        let failures = answers.filter_map(|answer| answer.failure.as_ref());
        let mut failures = failures.chain(self.sinks.values());
        failures.any(|failure| failure.times.is_some())
    }

    /// One attempt at a lookup.
    ///
    /// # Errors
    /// The script says so.
    pub fn ask(
        &mut self,
        lookup: &str,
        key: &str,
    ) -> Result<Option<JsonRecord>, Box<EvaluationFailure>> {
        let answers = self.lookups.get_mut(lookup);
        let Some(answer) = answers.and_then(|keys| keys.get_mut(key)) else {
            return Ok(None);
        };
        let failure = answer.failure.as_mut().and_then(ScriptedFailure::happen);
        failure.map_or_else(|| Ok(answer.value.clone()), Err)
    }
}
