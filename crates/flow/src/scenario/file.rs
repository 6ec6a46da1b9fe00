//! The form of test files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_config::yaml_to_json;
use tidegate_core::{Code, FailureClass};

use super::compare::difference_of_all;
use crate::model::{ModelDeadLetter, ModelScript, ScriptedAnswer, ScriptedFailure};
use crate::plan::{FlowPlan, OperatorPlan, SelectorPlan, StepPlan};
use crate::value::{FlowValue, JsonRecord};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawTestFile {
    /// The flow, by its path from the test file.
    pub(super) flow: String,
    /// More files of the same namespace.
    #[serde(default)]
    pub(super) with: Vec<String>,
    pub(super) process: String,
    #[serde(default)]
    lookups: BTreeMap<String, BTreeMap<String, Box<RawValue>>>,
    #[serde(default)]
    sinks: BTreeMap<String, RawFailure>,
    pub(super) tests: Vec<RawTest>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTest {
    pub(super) name: String,
    pub(super) steps: Vec<RawStep>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawStep {
    Send(RawSend),
    Advance(String),
    Expect(Box<RawExpect>),
    Crash,
    End,
    Slow(bool),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSend {
    pub(super) stream: String,
    pub(super) key: Option<Box<RawValue>>,
    pub(super) at: Option<String>,
    pub(super) id: Option<String>,
    pub(super) value: Option<Box<RawValue>>,
    /// Bytes that need not be JSON.
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawMatch {
    #[default]
    Exact,
    Partial,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawOrder {
    #[default]
    Given,
    Any,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExpect {
    pub(super) stream: Option<String>,
    pub(super) values: Option<Vec<Box<RawValue>>>,
    pub(super) keys: Option<Vec<Box<RawValue>>>,
    pub(super) count: Option<usize>,
    #[serde(default)]
    r#match: RawMatch,
    #[serde(default)]
    order: RawOrder,
    pub(super) ledger: Option<BTreeMap<String, i64>>,
    pub(super) pending: Option<usize>,
    #[serde(default)]
    pub(super) state: BTreeMap<String, BTreeMap<String, Box<RawValue>>>,
    pub(super) dead_letters: Option<Vec<Box<RawValue>>>,
    #[serde(default)]
    pub(super) metrics: BTreeMap<String, usize>,
}

impl RawTestFile {
    /// A name of the test file that the process does not have, in words.
    pub(super) fn unknown_name(&self, plan: &FlowPlan) -> Option<String> {
        let process = plan.processes.get(&self.process)?;
        let is_target = |step: &StepPlan| {
            let OperatorPlan::Route { selector, .. } = &step.operator else {
                return false;
            };
            matches!(selector, SelectorPlan::Target(_))
        };
        // A route by a rule or a table may write to any stream.
        let is_open = process.steps.iter().any(is_target);
        let sinks = process.sinks.iter().map(|sink| sink.stream.clone());
        let dead = process.ways_out.iter().filter_map(|way| way.stream.clone());
        let written: BTreeSet<String> = sinks.chain(dead).collect();
        let receives = |name: &str| process.sources.iter().any(|source| source.stream == name);
        let writes = |name: &str| is_open || written.contains(name);
        let has_state = |name: &str| {
            let mut ids = process.state.iter().map(|state| state.id.as_str());
            ids.any(|id| {
                id.strip_prefix("state/") == Some(name) || id.strip_prefix("uses/") == Some(name)
            })
        };
        let has_metric = |name: &str| process.metrics.iter().any(|metric| metric.name == name);
        let asks = |name: &str| {
            let mut steps = process.steps.iter();
            steps.any(|step| matches!(&step.operator, OperatorPlan::Enrich { lookup, .. } if lookup == name))
        };
        let wrong = |what: &str, name: &str| Some(format!("the process {what} `{name}`"));
        for name in self.lookups.keys() {
            if !asks(name) {
                return wrong("asks no lookup", name);
            }
        }
        if let Some(name) = self.sinks.keys().find(|name| !writes(name)) {
            return wrong("does not write to", name);
        }
        for step in self.tests.iter().flat_map(|test| &test.steps) {
            match step {
                RawStep::Send(send) if !receives(&send.stream) => {
                    return wrong("does not receive", &send.stream);
                }
                RawStep::Expect(expect) => {
                    if let Some(name) = expect.stream.iter().find(|name| !writes(name)) {
                        return wrong("does not write to", name);
                    }
                    if let Some(name) = expect.state.keys().find(|name| !has_state(name)) {
                        return wrong("has no state", name);
                    }
                    if let Some(name) = expect.metrics.keys().find(|name| !has_metric(name)) {
                        return wrong("has no metric", name);
                    }
                }
                RawStep::Send(_)
                | RawStep::Advance(_)
                | RawStep::Crash
                | RawStep::End
                | RawStep::Slow(_) => {}
            }
        }
        None
    }
}

impl RawExpect {
    pub(super) fn is_partial(&self) -> bool {
        self.r#match == RawMatch::Partial
    }

    /// The difference between the records that are expected and those that were found.
    pub(super) fn difference_of_all(
        &self,
        wanted: &[Box<RawValue>],
        found: &[&str],
        is_partial: bool,
    ) -> Option<String> {
        let wanted: Vec<&str> = wanted.iter().map(|value| value.get()).collect();
        difference_of_all(&wanted, found, is_partial, self.order == RawOrder::Any)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFailure {
    /// The code.
    fail: String,
    /// Lookups fail for a while and sinks for good, unless this says otherwise.
    class: Option<FailureClass>,
    times: Option<u32>,
    then: Option<Box<RawValue>>,
}

impl RawFailure {
    fn to_failure(&self, class: FailureClass) -> Result<ScriptedFailure, String> {
        let code = Code::new(self.fail.as_str()).map_err(|error| error.to_string())?;
        Ok(ScriptedFailure {
            code,
            class: self.class.unwrap_or(class),
            times: self.times,
        })
    }
}

impl RawTestFile {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let json = yaml_to_json(text).map_err(|error| error.to_string())?;
        serde_json::from_str(&json).map_err(|error| {
            // The place is one of the JSON text, which nobody sees.
            let message = error.to_string();
            message
                .split(" at line ")
                .next()
                .unwrap_or(&message)
                .to_owned()
        })
    }

    /// The world outside of the process.
    pub(super) fn script(&self) -> Result<ModelScript, String> {
        let mut script = ModelScript::default();
        for (lookup, keys) in &self.lookups {
            let answers = script.lookups.entry(lookup.clone()).or_default();
            for (key, raw) in keys {
                answers.insert(key.clone(), answer(lookup, key, raw)?);
            }
        }
        for (stream, failure) in &self.sinks {
            script
                .sinks
                .insert(stream.clone(), failure.to_failure(FailureClass::Permanent)?);
        }
        Ok(script)
    }
}

fn answer(lookup: &str, key: &str, raw: &RawValue) -> Result<ScriptedAnswer, String> {
    let object = |raw: &RawValue| {
        let parsed = JsonRecord::of_text(raw.get());
        parsed.map_err(|error| format!("the answer of `{lookup}` for `{key}`: {error}"))
    };
    if raw.get() == "null" {
        return Ok(ScriptedAnswer::default());
    }
    let record = object(raw)?;
    if record.raw("fail").is_none() {
        return Ok(ScriptedAnswer {
            value: Some(record),
            failure: None,
        });
    }
    let failure: RawFailure = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
    let value = failure.then.as_deref().map(object).transpose()?;
    Ok(ScriptedAnswer {
        value,
        failure: Some(failure.to_failure(FailureClass::Transient)?),
    })
}

/// A scalar as text: without quotes if it is a string.
pub(super) fn plain(raw: &RawValue) -> String {
    serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
}

/// A dead letter as JSON, for comparison.
pub(super) fn shown(letter: &ModelDeadLetter) -> String {
    let mut record = JsonRecord::default();
    let texts = [
        ("stream", &letter.stream),
        ("code", &letter.code),
        ("message", &letter.message),
    ];
    for (name, text) in texts {
        record.set_raw(name, FlowValue::text(text).to_json().unwrap_or_default());
    }
    record.set_raw("attempts", letter.attempts.to_string());
    let is_json = FlowValue::parse_json(&letter.value, &crate::value::FlowType::Dynamic).is_ok();
    let text = FlowValue::text(&letter.value).to_json().unwrap_or_default();
    record.set_raw("value", if is_json { letter.value.clone() } else { text });
    record.to_string()
}
