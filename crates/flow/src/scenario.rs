//! Test files of flows: records that are sent, time that passes, and what is expected.
//!
//! The model runs them in virtual time. A file is YAML beside its flow; numbers keep their digits.

mod compare;
mod file;

use std::collections::BTreeMap;

use jiff::Timestamp;
use tidegate_config::{Severity, parse_duration};
use tidegate_core::EventId;

use self::compare::difference;
use self::file::{RawExpect, RawSend, RawStep, RawTestFile};
use crate::check::{Registered, check_flows};
use crate::model::{FlowModel, ModelInput};
use crate::plan::FlowPlan;

/// Why a test file cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// It is not YAML of the documented form.
    #[error("the test file cannot be read: {0}")]
    Form(String),
    /// The flow that it names cannot be read.
    #[error("could not read the flow `{path}`: {message}")]
    Flow {
        /// The path as the file names it.
        path: String,
        /// Why not.
        message: String,
    },
    /// The flow has mistakes.
    #[error("the flow `{path}` has mistakes; `tidegate flow check` shows them: {codes}")]
    Mistakes {
        /// The path as the file names it.
        path: String,
        /// The codes.
        codes: String,
    },
    /// The flow has no such process.
    #[error("there is no process `{0}` in the flow")]
    Process(String),
}

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ScenarioOutcome {
    /// Its name.
    pub name: String,
    /// The difference from what was expected; none where the test passes.
    pub failure: Option<String>,
}

/// Runs the tests of a file; `read` gives the text of a flow that it names.
///
/// ```
/// use tidegate_flow::scenario::run_scenarios;
/// let flow = "process big receive orders filter amount > 10 emit to large end";
/// let tests = "
/// flow: big.flow
/// process: big
/// tests:
///   - name: small orders stay behind
///     steps:
///       - send: { stream: orders, value: { amount: 5 } }
///       - send: { stream: orders, value: { amount: 12.50 } }
///       - expect: { stream: large, values: [ { amount: 12.50 } ] }
/// ";
/// let outcomes = run_scenarios(tests, &mut |_| Ok(flow.to_owned()))?;
/// assert_eq!(outcomes[0].failure, None);
/// # Ok::<(), tidegate_flow::scenario::ScenarioError>(())
/// ```
///
/// # Errors
/// The file, its flow or its process cannot be used.
pub fn run_scenarios(
    text: &str,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Vec<ScenarioOutcome>, ScenarioError> {
    let file = RawTestFile::parse(text).map_err(ScenarioError::Form)?;
    let mut texts = Vec::new();
    for path in std::iter::once(&file.flow).chain(&file.with) {
        let flow = read(path).map_err(|message| ScenarioError::Flow {
            path: path.clone(),
            message,
        })?;
        texts.push(flow);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let checked = check_flows(&texts, &Registered::default());
    let Some(plan) = checked.plan else {
        let errors = checked
            .diagnostics
            .iter()
            .filter(|found| found.severity() == Severity::Problem);
        let codes: Vec<&str> = errors.map(|found| found.code).collect();
        return Err(ScenarioError::Mistakes {
            path: file.flow,
            codes: codes.join(", "),
        });
    };
    if !plan.processes.contains_key(&file.process) {
        return Err(ScenarioError::Process(file.process));
    }
    if let Some(unknown) = file.unknown_name(&plan) {
        return Err(ScenarioError::Form(unknown));
    }
    let outcomes = file.tests.iter().map(|test| ScenarioOutcome {
        name: test.name.clone(),
        failure: run(&plan, &file, &test.steps).err(),
    });
    Ok(outcomes.collect())
}

fn run(plan: &FlowPlan, file: &RawTestFile, steps: &[RawStep]) -> Result<(), String> {
    let script = file.script()?;
    let Some(mut model) = FlowModel::new(plan, &file.process, script) else {
        return Err(format!("there is no process `{}`", file.process));
    };
    // How many records of a stream were expected already.
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        let fails = |message: String| format!("step {}: {message}", at + 1);
        match step {
            RawStep::Send(send) => model.send(input(send).map_err(fails)?),
            // The model keeps everything in memory and goes on; the runtime restarts here.
            RawStep::Crash => {}
            RawStep::End => model.finish(),
            RawStep::Slow(is_slow) => model.set_slow(*is_slow),
            RawStep::Advance(by) => {
                let wrong = || format!("`{by}` is not a duration; one is `30s` or `7d`");
                model.advance(parse_duration(by).ok_or_else(wrong).map_err(fails)?);
            }
            RawStep::Expect(expect) => check(&model, expect, &mut expected).map_err(fails)?,
        }
        if !model.is_balanced() {
            return Err(format!("step {}: the books do not balance", at + 1));
        }
    }
    Ok(())
}

fn input(send: &RawSend) -> Result<ModelInput, String> {
    let at = send.at.as_ref().map(|text| {
        let at = text.parse::<Timestamp>();
        at.map_err(|_| format!("`{text}` is not a time; one is `2026-01-05T10:00:00Z`"))
    });
    let id = send.id.as_ref().map(|text| {
        let id = text.parse::<EventId>();
        id.map_err(|error| error.to_string())
    });
    let value = match (&send.value, &send.text) {
        (Some(value), None) => value.get().as_bytes().to_vec(),
        (None, Some(text)) => text.clone().into_bytes(),
        (Some(_), Some(_)) | (None, None) => {
            return Err("`send` needs a `value` or a `text`".to_owned());
        }
    };
    let key = send.key.as_deref().map(file::plain);
    Ok(ModelInput {
        stream: send.stream.clone(),
        key,
        at: at.transpose()?,
        id: id.transpose()?,
        value,
        headers: send.headers.clone(),
    })
}

fn check(
    model: &FlowModel<'_>,
    expect: &RawExpect,
    expected: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let mut wrong = Vec::new();
    if let Some(stream) = &expect.stream {
        let seen = expected.entry(stream.clone()).or_default();
        let outputs: Vec<_> = model.outputs(stream).skip(*seen).collect();
        *seen += outputs.len();
        let values: Vec<&str> = outputs.iter().map(|output| output.value.as_str()).collect();
        if let Some(wanted) = &expect.values {
            wrong.extend(expect.difference_of_all(wanted, &values, expect.is_partial()));
        }
        if let Some(keys) = &expect.keys {
            let found = outputs.iter();
            let found: Vec<&str> = found.map(|o| o.key.as_deref().unwrap_or("")).collect();
            let keys: Vec<String> = keys.iter().map(|key| file::plain(key)).collect();
            if keys != found {
                wrong.push(format!("expected keys {keys:?}, found {found:?}"));
            }
        }
        if let Some(count) = expect.count.filter(|count| *count != outputs.len()) {
            let (found, values) = (outputs.len(), values.join(" "));
            wrong.push(format!("expected {count} records, found {found}: {values}"));
        }
    }
    let account = model.account();
    for (place, count) in expect.ledger.iter().flatten() {
        let mut places = account.places().into_iter();
        let found = places.find(|(name, _)| name == place);
        let lost = place.strip_prefix("lost.").map(|reason| {
            let reasons = account.lost.reasons().filter(|(name, _)| *name == reason);
            reasons.map(|(_, count)| count).sum::<i64>()
        });
        let accepted = (place == "accepted").then_some(account.accepted);
        match found.map(|(_, count)| count).or(lost).or(accepted) {
            Some(found) if found == *count => {}
            Some(found) => wrong.push(format!("expected {count} {place}, found {found}")),
            None => wrong.push(format!("`{place}` is not a place of the books")),
        }
    }
    let pending = model.pending();
    if let Some(wanted) = expect.pending.filter(|wanted| *wanted != pending) {
        wrong.push(format!("expected {wanted} pending, found {pending}"));
    }
    for (name, entries) in &expect.state {
        let found = model.state(name);
        for (key, value) in entries {
            match found.get(key) {
                None if value.get() == "null" => {}
                None => wrong.push(format!("the state `{name}` has nothing for `{key}`")),
                Some(found) => {
                    let different = difference(value.get(), found, expect.is_partial());
                    let shown = |text| format!("the state `{name}` of `{key}`: {text}");
                    wrong.extend(different.map(shown));
                }
            }
        }
    }
    if let Some(letters) = &expect.dead_letters {
        let found: Vec<String> = model.dead_letters().iter().map(file::shown).collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        wrong.extend(expect.difference_of_all(letters, &found, true));
    }
    for (name, count) in &expect.metrics {
        let found = model.metric(name).len();
        if found != *count {
            let message = format!("expected the metric `{name}` {count} times, found {found}");
            wrong.push(message);
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}
