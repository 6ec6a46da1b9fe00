//! `tidegate flow test`: runs the test files of flows on the model or on the runtime, in virtual time.

use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
#[cfg(feature = "simulation")]
use tidegate_flow::scenario::ScenarioFile;
use tidegate_flow::scenario::{ScenarioError, ScenarioOutcome, run_scenarios};

#[cfg(feature = "simulation")]
use super::runtime;
use super::unreadable;
use crate::args::Output;
use crate::report::{ErrorReport, Exit};
use crate::settings::{name_of, read_text};
use crate::table::counted;

/// The end of the names of test files.
const TEST_FILE: &str = ".test.yaml";

/// The process on which tests are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestedOn {
    Model,
    #[cfg(feature = "simulation")]
    Runtime,
    /// The runtime, with a death at every call of the log.
    #[cfg(feature = "simulation")]
    DyingRuntime,
}

#[cfg(feature = "simulation")]
impl TestedOn {
    pub(super) fn of(is_runtime: bool, crashes: bool) -> Self {
        match (is_runtime, crashes) {
            (_, true) => Self::DyingRuntime,
            (true, false) => Self::Runtime,
            (false, false) => Self::Model,
        }
    }
}

pub(super) fn run(paths: &[PathBuf], on: TestedOn, output: Output) -> Result<Exit, ErrorReport> {
    let mut tests = Vec::new();
    let mut lines = Vec::new();
    let (mut failed, mut skipped, mut deaths) = (0, 0, 0);
    for path in paths {
        for file in files_of(path)? {
            let name = name_of(&file);
            for (outcome, died) in outcomes(&file, on)? {
                deaths += died;
                if let Some(why) = &outcome.skipped {
                    skipped += 1;
                    lines.push(format!("{name}: {}\n    skipped: {why}", outcome.name));
                }
                if let Some(failure) = &outcome.failure {
                    failed += 1;
                    lines.push(format!("{name}: {}\n    {failure}", outcome.name));
                }
                tests.push(json!({
                    "file": name,
                    "name": outcome.name,
                    "passed": outcome.failure.is_none() && outcome.skipped.is_none(),
                    "failure": outcome.failure,
                    "skipped": outcome.skipped,
                    "deaths": died,
                }));
            }
        }
    }
    let passed = tests.len() as u64 - failed - skipped;
    let mut last = format!(
        "{}: {passed} passed, {failed} failed",
        counted(tests.len() as u64, "test")
    );
    if skipped > 0 {
        last.push_str(&format!(", {skipped} skipped"));
    }
    if deaths > 0 {
        last.push_str(&format!("; {}", counted(deaths, "death")));
    }
    lines.push(last);
    output.print(
        &json!({
            "passed": passed, "failed": failed, "skipped": skipped, "deaths": deaths, "tests": tests,
        }),
        || lines.join("\n"),
    )?;
    Ok(Exit::Findings.unless(failed == 0))
}

/// The file, or the test files of the directory.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, ErrorReport> {
    let Ok(entries) = SystemDisk.list(path) else {
        // A path that is no directory is read, and says itself what is wrong with it.
        return Ok(vec![path.to_owned()]);
    };
    let tests = entries
        .iter()
        .filter(|entry| !entry.is_dir && entry.name.ends_with(TEST_FILE));
    let mut files: Vec<PathBuf> = tests.map(|entry| path.join(&entry.name)).collect();
    files.sort();
    if files.is_empty() {
        let message = format!("there is no test file in `{}`", path.display());
        let hint = format!("test files end with `{TEST_FILE}`");
        return Err(ErrorReport::new("flow.unreadable", message).with_hint(hint));
    }
    Ok(files)
}

/// The results of a file, each with the deaths that it survived. One that cannot be run is a test that fails.
fn outcomes(file: &Path, on: TestedOn) -> Result<Vec<(ScenarioOutcome, u64)>, ErrorReport> {
    let text = read_text(file).map_err(|error| unreadable(file, &error))?;
    let directory = file.parent().unwrap_or(Path::new(""));
    let read =
        &mut |flow: &str| read_text(&directory.join(flow)).map_err(|error| error.to_string());
    let played: Result<Vec<(ScenarioOutcome, u64)>, ScenarioError> = match on {
        TestedOn::Model => run_scenarios(&text, read)
            .map(|outcomes| outcomes.into_iter().map(|one| (one, 0)).collect()),
        #[cfg(feature = "simulation")]
        TestedOn::Runtime | TestedOn::DyingRuntime => {
            ScenarioFile::parse(&text, read).map(|file| {
                let outcomes = (0..file.len()).map(|number| {
                    let played = runtime::play(&file, number, on == TestedOn::DyingRuntime);
                    let died = played.as_ref().map_or(0, |died| *died);
                    (file.outcome(number, played.map(drop)), died)
                });
                outcomes.collect()
            })
        }
    };
    Ok(played.unwrap_or_else(|error| {
        let outcome = ScenarioOutcome {
            name: "the file as a whole".to_owned(),
            failure: Some(error.to_string()),
            skipped: None,
        };
        vec![(outcome, 0)]
    }))
}
