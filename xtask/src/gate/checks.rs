//! The checks before the tests: format, lints, tidy, documentation.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::command::{complaints, run_logged};
use crate::gate::tally::Tally;
use crate::tidy;
use crate::workspace::Workspace;

/// Runs all four and prints a line for each. `only` limits cargo's part to some packages.
pub(crate) fn run(workspace: &Workspace, only: &[String]) -> Result<Tally> {
    let mut total = Tally::default();
    let packages: Vec<&str> = only.iter().flat_map(|name| ["-p", name.as_str()]).collect();

    let mut fmt = workspace.cargo();
    fmt.arg("fmt").args(if only.is_empty() {
        vec!["--all"]
    } else {
        packages.clone()
    });
    fmt.args(["--check", "--", "--color=never"]);
    total += step(workspace, "fmt", &mut fmt)?;

    let selection = if only.is_empty() {
        vec!["--workspace"]
    } else {
        packages
    };
    let mut clippy = workspace.cargo();
    clippy
        .arg("clippy")
        .args(&selection)
        .args(["--all-targets", "--", "-D", "warnings"]);
    total += step(workspace, "clippy", &mut clippy)?;

    total += tidy_step(workspace)?;

    let mut doc = workspace.cargo();
    doc.arg("doc")
        .args(&selection)
        .arg("--no-deps")
        .env("RUSTDOCFLAGS", "-D warnings");
    total += step(workspace, "doc", &mut doc)?;
    Ok(total)
}

/// Prints the start of a line that [`finish`] ends.
pub(crate) fn begin(name: &str) -> Result<Instant> {
    print!("{name:<20} ");
    std::io::stdout().flush().context("could not print")?;
    Ok(Instant::now())
}

/// Ends the line with what came out and how long it took.
pub(crate) fn finish(begin: Instant, outcome: &str) {
    println!("{outcome:<40} {:>7.1} s", begin.elapsed().as_secs_f64());
}

/// Ends the line of something that may take no longer than `budget`.
pub(crate) fn finish_within(took: Duration, outcome: &str, budget: Duration) {
    println!(
        "{outcome:<40} {:>7.1} s of {}",
        took.as_secs_f64(),
        budget.as_secs()
    );
}

fn step(workspace: &Workspace, name: &str, command: &mut Command) -> Result<Tally> {
    let started = begin(name)?;
    let log = workspace.gate_logs().join(format!("{name}.log"));
    let well = run_logged(command, &log)?.success();
    finish(started, word(well));
    if !well {
        println!("{}", complaints(&log, 200));
    }
    Ok(Tally::of_check(well))
}

fn tidy_step(workspace: &Workspace) -> Result<Tally> {
    let started = begin("tidy")?;
    let report = tidy::check(workspace)?;
    let well = report.findings.is_empty();
    finish(started, word(well));
    if !well {
        print!("{report}");
    }
    Ok(Tally::of_check(well))
}

fn word(well: bool) -> &'static str {
    if well { "ok" } else { "FAILED" }
}
