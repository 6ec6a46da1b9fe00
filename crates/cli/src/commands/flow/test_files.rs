//! `tidegate flow test`: runs the test files of flows on the model, in virtual time.

use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
use tidegate_flow::scenario::{ScenarioOutcome, run_scenarios};

use super::unreadable;
use crate::args::Output;
use crate::report::{ErrorReport, Exit};
use crate::settings::{name_of, read_text};
use crate::table::counted;

/// The end of the names of test files.
const TEST_FILE: &str = ".test.yaml";

pub(super) fn run(paths: &[PathBuf], output: Output) -> Result<Exit, ErrorReport> {
    let mut tests = Vec::new();
    let mut lines = Vec::new();
    let mut failed = 0;
    for path in paths {
        for file in files_of(path)? {
            let name = name_of(&file);
            for outcome in outcomes(&file)? {
                if let Some(failure) = &outcome.failure {
                    failed += 1;
                    lines.push(format!("{name}: {}\n    {failure}", outcome.name));
                }
                tests.push(json!({
                    "file": name,
                    "name": outcome.name,
                    "passed": outcome.failure.is_none(),
                    "failure": outcome.failure,
                }));
            }
        }
    }
    let passed = tests.len() as u64 - failed;
    lines.push(format!(
        "{}: {passed} passed, {failed} failed",
        counted(tests.len() as u64, "test")
    ));
    output.print(
        &json!({ "passed": passed, "failed": failed, "tests": tests }),
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

/// The results of a file. One that cannot be run is a test that fails.
fn outcomes(file: &Path) -> Result<Vec<ScenarioOutcome>, ErrorReport> {
    let text = read_text(file).map_err(|error| unreadable(file, &error))?;
    let directory = file.parent().unwrap_or(Path::new(""));
    let read =
        &mut |flow: &str| read_text(&directory.join(flow)).map_err(|error| error.to_string());
    Ok(run_scenarios(&text, read).unwrap_or_else(|error| {
        let name = "the file as a whole".to_owned();
        vec![ScenarioOutcome {
            name,
            failure: Some(error.to_string()),
        }]
    }))
}
