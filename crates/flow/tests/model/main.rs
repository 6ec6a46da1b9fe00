//! Promises of the model: the examples, the ledger table, the failure table, and time.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the examples are read from their directory"
)]

mod late;
mod ledger;
mod steps;

use std::path::Path;

use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::plan::FlowPlan;
use tidegate_flow::scenario::run_scenarios;

/// The plan of a flow that is right.
fn plan(text: &str, registered: &Registered) -> FlowPlan {
    let checked = check_flows(&[text], registered);
    checked
        .plan
        .unwrap_or_else(|| panic!("{text}\n{:#?}", checked.diagnostics))
}

/// Runs test steps on a flow with a process `p`, and fails with the first difference.
fn passes(flow: &str, steps: &str) {
    passes_with("", flow, steps);
}

/// The same with a world outside: a line of YAML.
fn passes_with(outside: &str, flow: &str, steps: &str) {
    let failure = difference(outside, flow, steps);
    assert_eq!(failure, None, "{flow}\n{steps}");
}

fn difference(outside: &str, flow: &str, steps: &str) -> Option<String> {
    let steps: Vec<String> = steps
        .lines()
        .map(|line| format!("      {}", line.trim()))
        .collect();
    let file = format!(
        "flow: f\nprocess: p\n{outside}\ntests:\n  - name: n\n    steps:\n{}\n",
        steps.join("\n")
    );
    let outcomes = run_scenarios(&file, &mut |_| Ok(flow.to_owned()))
        .unwrap_or_else(|error| panic!("{flow}\n{error}"));
    outcomes.into_iter().find_map(|outcome| outcome.failure)
}

fn examples() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".test.yaml") {
            files.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort();
    files
}

fn run_example(text: &str) -> Vec<(String, Option<String>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows");
    let read = &mut |path: &str| {
        std::fs::read_to_string(directory.join(path)).map_err(|error| error.to_string())
    };
    let outcomes = run_scenarios(text, read).unwrap_or_else(|error| panic!("{error}"));
    outcomes
        .into_iter()
        .map(|outcome| (outcome.name, outcome.failure))
        .collect()
}

#[test]
fn r25_the_tests_of_the_six_examples_pass() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, text) in examples() {
        for (name, failure) in run_example(&text) {
            count += 1;
            wrong.extend(failure.map(|failure| format!("{file}: {name}: {failure}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 20, "{count} tests");
}

#[test]
fn a_changed_expectation_fails_with_the_difference() {
    let (_, text) = examples()
        .into_iter()
        .find(|(name, _)| name == "auth.test.yaml")
        .unwrap();
    let changed = text.replacen("captured: 12.00", "captured: 12.01", 1);
    let failures: Vec<String> = run_example(&changed)
        .into_iter()
        .filter_map(|(_, failure)| failure)
        .collect();
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0].contains("captured\":12.01") && failures[0].contains("captured\":12.00"),
        "{failures:?}"
    );
}

#[test]
fn a_test_file_that_cannot_be_run_says_why() {
    let flow = "process p receive a emit to b end";
    let run = |text: &str| {
        let result = run_scenarios(text, &mut |path| match path {
            "f" => Ok(flow.to_owned()),
            "bad" => Ok("process p receive a end".to_owned()),
            _ => Err("there is no such file".to_owned()),
        });
        result
            .map(|outcomes| format!("{outcomes:?}"))
            .unwrap_or_else(|error| error.to_string())
    };
    for (text, expect) in [
        (
            "flow: f\nprocess: q\ntests: []",
            "there is no process `q` in the flow",
        ),
        (
            "flow: g\nprocess: p\ntests: []",
            "could not read the flow `g`: there is no such file",
        ),
        (
            "flow: bad\nprocess: p\ntests: []",
            "the flow `bad` has mistakes; `tidegate flow check` shows them: TG0202",
        ),
        (
            "flow: f\nprocess: p\ntest: []",
            "the test file cannot be read: unknown field `test`",
        ),
        ("flow: [", "the test file cannot be read: line 1"),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{advance: soon}]}]",
            "step 1: `soon` is not a duration",
        ),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{send: {stream: x, value: {}}}]}]",
            "the process does not receive `x`",
        ),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{expect: {stream: c, count: 0}}]}]",
            "the process does not write to `c`",
        ),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{expect: {state: {s: {}}}}]}]",
            "the process has no state `s`",
        ),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{expect: {metrics: {m: 0}}}]}]",
            "the process has no metric `m`",
        ),
        (
            "flow: f\nprocess: p\nlookups: {l: {}}\ntests: []",
            "the process asks no lookup `l`",
        ),
        (
            "flow: f\nprocess: p\nsinks: {c: {fail: x.y}}\ntests: []",
            "the process does not write to `c`",
        ),
        (
            "flow: f\nprocess: p\ntests: [{name: n, steps: [{expect: {ledger: {gone: 1}}}]}]",
            "step 1: `gone` is not a place",
        ),
    ] {
        let got = run(text);
        assert!(got.contains(expect), "{text}\ngot {got}");
    }
}
