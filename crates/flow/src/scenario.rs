//! Test files of flows: records that are sent, time that passes, and what is expected.
//!
//! The model runs them in virtual time, and so does the runtime, behind [`ScenarioProcess`]. A file is YAML beside its
//! flow; numbers keep their digits.

mod compare;
mod file;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::{Severity, parse_duration};
use tidegate_core::EventId;
use tidegate_core::books::Account;

use self::compare::difference;
use self::file::{RawExpect, RawSend, RawStep, RawTestFile};
use crate::check::{Registered, check_flows};
use crate::model::{FlowModel, ModelDeadLetter, ModelInput, ModelScript};
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
    /// Why it was not played.
    pub skipped: Option<String>,
}

/// Why a test does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScenarioStop {
    /// Something is not as it should be, in words.
    Failure(String),
    /// The process cannot play this test; why not.
    Skipped(String),
}

impl From<String> for ScenarioStop {
    fn from(message: String) -> Self {
        Self::Failure(message)
    }
}

/// A step of a test, done or not.
pub type ScenarioStep<T = ()> = Result<T, ScenarioStop>;

/// A process of a flow on which tests are played.
///
/// After each call that changes something, everything has happened that the change leads to.
pub trait ScenarioProcess {
    /// Sends a record.
    ///
    /// # Errors
    /// It cannot be sent, in words.
    fn send(&mut self, input: ModelInput) -> ScenarioStep;

    /// Lets time pass.
    ///
    /// # Errors
    /// The process does not get on.
    fn advance(&mut self, by: Duration) -> ScenarioStep;

    /// The program dies, and starts again.
    ///
    /// # Errors
    /// The process does not get on.
    fn crash(&mut self) -> ScenarioStep;

    /// The end of all inputs.
    ///
    /// # Errors
    /// The process does not get on.
    fn finish(&mut self) -> ScenarioStep;

    /// Records come faster than they leave, or no longer.
    ///
    /// # Errors
    /// The process cannot be made slow.
    fn set_slow(&mut self, is_slow: bool) -> ScenarioStep;

    /// The process as it is now.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn look(&mut self) -> ScenarioStep<ScenarioLook>;

    /// Whether it is worth another look where an expectation is not met: some results become readable a moment later.
    fn looks_again(&mut self) -> bool {
        false
    }
}

/// A process in the middle of a test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScenarioLook {
    /// Keys and values of the records of each stream, in their order.
    pub outputs: BTreeMap<String, Vec<(Option<String>, String)>>,
    /// The records that were given up, in their order.
    pub dead_letters: Vec<ModelDeadLetter>,
    /// The books of all inputs together.
    pub account: Account,
    /// Records that wait in `await` and `hold`.
    pub pending: usize,
    /// The values of each declared state, as JSON by key.
    pub state: BTreeMap<String, BTreeMap<String, String>>,
    /// How many values each metric saw; none where nobody counts them.
    pub metrics: Option<BTreeMap<String, usize>>,
}

impl ScenarioProcess for FlowModel<'_> {
    fn send(&mut self, input: ModelInput) -> ScenarioStep {
        Self::send(self, input);
        Ok(())
    }

    fn advance(&mut self, by: Duration) -> ScenarioStep {
        Self::advance(self, by);
        Ok(())
    }

    /// The model keeps everything in memory and goes on; the runtime restarts here.
    fn crash(&mut self) -> ScenarioStep {
        Ok(())
    }

    fn finish(&mut self) -> ScenarioStep {
        Self::finish(self);
        Ok(())
    }

    fn set_slow(&mut self, is_slow: bool) -> ScenarioStep {
        Self::set_slow(self, is_slow);
        Ok(())
    }

    fn look(&mut self) -> ScenarioStep<ScenarioLook> {
        if !self.is_balanced() {
            return Err("the books do not balance".to_owned().into());
        }
        let mut outputs: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for output in self.all_outputs() {
            let written = (output.key.clone(), output.value.clone());
            outputs
                .entry(output.stream.clone())
                .or_default()
                .push(written);
        }
        Ok(ScenarioLook {
            outputs,
            dead_letters: self.dead_letters().to_vec(),
            account: self.account(),
            pending: self.pending(),
            state: self.states(),
            metrics: Some(self.metric_counts()),
        })
    }
}

/// Runs the tests of a file on the model; `read` gives the text of a flow that it names.
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
    let file = ScenarioFile::parse(text, read)?;
    let outcomes = (0..file.len()).map(|number| {
        let played = file.script().and_then(|script| {
            let model = FlowModel::new(file.plan(), file.process(), script);
            let mut model = model.ok_or_else(|| "the plan has no such process".to_owned())?;
            file.play(number, &mut model)
        });
        file.outcome(number, played)
    });
    Ok(outcomes.collect())
}

/// A test file with the plan of its flow.
#[derive(Debug)]
pub struct ScenarioFile {
    file: RawTestFile,
    plan: FlowPlan,
}

impl ScenarioFile {
    /// Reads a test file; `read` gives the text of a flow that it names.
    ///
    /// # Errors
    /// The file, its flow or its process cannot be used.
    pub fn parse(
        text: &str,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, ScenarioError> {
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
        Ok(Self { file, plan })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &FlowPlan {
        &self.plan
    }

    /// The process that is tested.
    #[must_use]
    pub fn process(&self) -> &str {
        &self.file.process
    }

    /// How many tests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.file.tests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.tests.is_empty()
    }

    /// The world outside of the process.
    ///
    /// # Errors
    /// The file describes it wrongly.
    pub fn script(&self) -> ScenarioStep<ModelScript> {
        Ok(self.file.script()?)
    }

    /// Plays one test.
    ///
    /// # Errors
    /// Something is not as expected, or the process cannot play it.
    pub fn play(&self, number: usize, process: &mut dyn ScenarioProcess) -> ScenarioStep {
        let test = self.file.tests.get(number);
        let test = test.ok_or_else(|| format!("there is no test {number}"))?;
        run(process, &test.steps)
    }

    /// The result of one test that was played.
    #[must_use]
    pub fn outcome(&self, number: usize, played: ScenarioStep) -> ScenarioOutcome {
        let (failure, skipped) = match played {
            Ok(()) => (None, None),
            Err(ScenarioStop::Failure(failure)) => (Some(failure), None),
            Err(ScenarioStop::Skipped(why)) => (None, Some(why)),
        };
        let test = self.file.tests.get(number);
        ScenarioOutcome {
            name: test.map_or(String::new(), |test| test.name.clone()),
            failure,
            skipped,
        }
    }
}

fn run(process: &mut dyn ScenarioProcess, steps: &[RawStep]) -> ScenarioStep {
    // How many records of a stream were expected already.
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        play_step(process, step, &mut expected).map_err(|stop| match stop {
            ScenarioStop::Failure(message) => {
                ScenarioStop::Failure(format!("step {}: {message}", at + 1))
            }
            ScenarioStop::Skipped(_) => stop,
        })?;
    }
    // The books balance at the end, also where nothing more is expected.
    loop {
        match process.look() {
            Err(ScenarioStop::Failure(_)) if process.looks_again() => {}
            looked => return looked.map(drop),
        }
    }
}

fn play_step(
    process: &mut dyn ScenarioProcess,
    step: &RawStep,
    expected: &mut BTreeMap<String, usize>,
) -> ScenarioStep {
    match step {
        RawStep::Send(send) => process.send(input(send)?),
        RawStep::Crash => process.crash(),
        RawStep::End => process.finish(),
        RawStep::Slow(is_slow) => process.set_slow(*is_slow),
        RawStep::Advance(by) => {
            let wrong = || format!("`{by}` is not a duration; one is `30s` or `7d`");
            process.advance(parse_duration(by).ok_or_else(wrong)?)
        }
        RawStep::Expect(expect) => loop {
            let mut met = expected.clone();
            let looked = process.look();
            match looked.and_then(|look| Ok(check(&look, expect, &mut met)?)) {
                Err(ScenarioStop::Failure(_)) if process.looks_again() => {}
                checked => {
                    *expected = met;
                    return checked;
                }
            }
        },
    }
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
    look: &ScenarioLook,
    expect: &RawExpect,
    expected: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let mut wrong = Vec::new();
    if let Some(stream) = &expect.stream {
        let seen = expected.entry(stream.clone()).or_default();
        let outputs = look.outputs.get(stream).map_or(&[][..], Vec::as_slice);
        let outputs = outputs.get(*seen..).unwrap_or_default();
        *seen += outputs.len();
        let values: Vec<&str> = outputs.iter().map(|(_, value)| value.as_str()).collect();
        if let Some(wanted) = &expect.values {
            wrong.extend(expect.difference_of_all(wanted, &values, expect.is_partial()));
        }
        if let Some(keys) = &expect.keys {
            let found = outputs.iter();
            let found: Vec<&str> = found.map(|(key, _)| key.as_deref().unwrap_or("")).collect();
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
    let account = &look.account;
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
    let pending = look.pending;
    if let Some(wanted) = expect.pending.filter(|wanted| *wanted != pending) {
        wrong.push(format!("expected {wanted} pending, found {pending}"));
    }
    for (name, entries) in &expect.state {
        let none = BTreeMap::new();
        let found = look.state.get(name).unwrap_or(&none);
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
        let found: Vec<String> = look.dead_letters.iter().map(file::shown).collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        wrong.extend(expect.difference_of_all(letters, &found, true));
    }
    for (name, count) in expect.metrics.iter().filter(|_| look.metrics.is_some()) {
        let counts = look.metrics.iter();
        let found = counts.filter_map(|counts| counts.get(name)).sum::<usize>();
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
