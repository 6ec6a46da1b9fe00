//! Runs the test programs of a package.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cargo_metadata::Package;

use crate::gate::build::{Binaries, expected};
use crate::gate::tally::Tally;
use crate::workspace::Workspace;

/// Test programs, by package and target, and how many of their tests run at once: those that wait for a
/// server or for a lease most of the time.
const WAITING: &[(&str, &str, u32)] = &[
    ("tidegate-log", "test/kafka", 16),
    ("tidegate-log", "test/conformance", 16),
    ("tidegate-queue", "test/it", 6),
    ("tidegate-outbox", "test/campaign", 4),
    ("tidegate-outbox", "test/it", 6),
    ("tidegate-connector", "test/it", 6),
    ("tidegate-stage", "test/it", 6),
];

/// The surroundings of the tests.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) variables: Vec<(String, String)>,
    /// Modules whose tests cannot run here, such as `needs_kafka`.
    pub(crate) left_out: Vec<String>,
    pub(crate) long: bool,
}

impl Surroundings {
    /// Longest run of one test program. A test that hangs must not hang the gate for good.
    fn limit(&self) -> Duration {
        Duration::from_secs(if self.long { 3 * 60 * 60 } else { 20 * 60 })
    }

    fn apply(&self, command: &mut Command) {
        // A seed that somebody has set to repeat one failure would make every run the same one.
        command.env_remove("TIDEGATE_SEED");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.long {
            command.env("TIDEGATE_LONG", "1");
        } else {
            command.env_remove("TIDEGATE_LONG");
        }
    }
}

/// Runs every test program of `package`, one after the other, with all output in `log`.
pub(crate) fn run_package(
    package: &Package,
    binaries: Option<&Binaries>,
    surroundings: &Surroundings,
    log: &Path,
) -> Result<Tally> {
    let mut tally = Tally::default();
    File::create(log).with_context(|| format!("could not create `{}`", log.display()))?;
    let mut targets: BTreeSet<String> = expected(package).into_iter().collect();
    targets.extend(
        binaries
            .into_iter()
            .flat_map(|binaries| binaries.tests.keys().cloned()),
    );
    for target in targets {
        let Some(program) = binaries.and_then(|binaries| binaries.tests.get(&target)) else {
            note(
                log,
                &format!("{target}: was not built; see build.log beside this file"),
            )?;
            tally += Tally::FAILED;
            continue;
        };
        note(log, &format!("{target}: {}", program.display()))?;
        let before = fs::metadata(log)?.len();
        let mut command = Command::new(program);
        command.arg("--include-ignored");
        let waiting = |(of, name, _): &&(&str, &str, u32)| package.name == *of && target == *name;
        if let Some((_, _, at_once)) = WAITING.iter().find(waiting) {
            command.arg(format!("--test-threads={at_once}"));
        }
        for module in &surroundings.left_out {
            command.arg("--skip").arg(format!("{module}::"));
        }
        let directory = package
            .manifest_path
            .parent()
            .context("a manifest without a directory")?;
        command
            .current_dir(directory)
            .env("CARGO_MANIFEST_DIR", directory);
        command.env("CARGO_PKG_NAME", package.name.as_str());
        for (name, program) in binaries.into_iter().flat_map(|binaries| &binaries.programs) {
            command.env(format!("CARGO_BIN_EXE_{name}"), program);
        }
        surroundings.apply(&mut command);
        let status = run_limited(&mut command, log, surroundings.limit())?;
        let went_well = status.is_some_and(|status| status.success());
        if !went_well {
            let how = status.map_or("too long, was killed".to_owned(), |status| {
                status.to_string()
            });
            note(log, &format!("{target}: ended with {how}"))?;
        }
        let output = fs::read(log)?;
        let from = usize::try_from(before)?.min(output.len());
        tally += Tally::of_run(&String::from_utf8_lossy(&output[from..]), went_well);
    }
    Ok(tally)
}

/// Runs the examples in the documentation of every library among `packages`.
///
/// `None` when there is no library. Examples marked `ignore` are not meant to compile, so they stay
/// ignored; a machine that wants no skips wants them marked otherwise.
pub(crate) fn run_doctests(
    workspace: &Workspace,
    packages: &[&Package],
    whole: bool,
    surroundings: &Surroundings,
    log: &Path,
) -> Result<Option<Tally>> {
    let has_doctests = |package: &&&Package| package.targets.iter().any(|target| target.doctest);
    let libraries: Vec<&&Package> = packages.iter().filter(has_doctests).collect();
    if libraries.is_empty() {
        return Ok(None);
    }
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--no-fail-fast"]);
    if whole {
        command.arg("--workspace");
    }
    for library in libraries.iter().filter(|_| !whole) {
        command.args(["-p", &library.name]);
    }
    surroundings.apply(&mut command);
    File::create(log).with_context(|| format!("could not create `{}`", log.display()))?;
    let status = run_limited(&mut command, log, surroundings.limit())?;
    let went_well = status.is_some_and(|status| status.success());
    Ok(Some(Tally::of_run(
        &String::from_utf8_lossy(&fs::read(log)?),
        went_well,
    )))
}

/// Runs `command` with its output appended to `log`; `None` when it had to be killed.
fn run_limited(command: &mut Command, log: &Path, limit: Duration) -> Result<Option<ExitStatus>> {
    let file = OpenOptions::new()
        .append(true)
        .open(log)
        .context("could not open a log")?;
    let copy = file.try_clone().context("could not share a log file")?;
    let child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .spawn();
    let mut child = child.context("could not start a test program")?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child
            .try_wait()
            .context("could not wait for a test program")?
        {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill().context("could not kill a test program")?;
            child
                .wait()
                .context("could not wait for a killed test program")?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn note(log: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut file = OpenOptions::new()
        .append(true)
        .open(log)
        .context("could not open a log")?;
    writeln!(file, "== {text}").context("could not write to a log")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Option<ExitStatus>, String) {
        let log = std::env::temp_dir().join(format!(
            "xtask-suite-{}-{}",
            std::process::id(),
            script.len()
        ));
        File::create(&log).unwrap();
        let status = run_limited(Command::new("sh").args(["-c", script]), &log, limit).unwrap();
        let output = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        (status, output)
    }

    #[test]
    fn a_program_killed_by_a_signal_is_a_failure() {
        let (status, output) = shell("echo running; kill -9 $$", Duration::from_secs(20));
        assert!(!status.unwrap().success());
        assert_eq!(Tally::of_run(&output, false), Tally::FAILED);
    }

    #[test]
    fn neither_seed_nor_length_come_from_outside() {
        let mut command = Command::new("sh");
        command
            .env("TIDEGATE_SEED", "0x5f3a")
            .env("TIDEGATE_LONG", "1");
        Surroundings::default().apply(&mut command);
        let left: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_some())
            .collect();
        assert_eq!(left, []);
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let (status, _) = shell("exec sleep 600", Duration::from_millis(50));
        assert!(status.is_none());
    }
}
