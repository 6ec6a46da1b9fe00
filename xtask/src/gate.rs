//! `cargo xtask test`: the one gate.
//!
//! Nothing stops it early: every check and every test runs, and the last line says
//! `N passed, N failed, N skipped`. Tests that need a server, Java or a tool live in modules named
//! after the need (`needs_kafka`, …). They are marked `#[ignore]`, so that a plain `cargo test` leaves
//! them out. The gate includes them wherever the machine has what they need.

mod budget;
mod build;
mod checks;
mod needs;
mod schemathesis;
mod suite;
mod tally;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cargo_metadata::{MetadataCommand, Package};

use crate::arguments::TestOptions;
use crate::command::{complaints, tail};
use crate::gate::checks::{begin, finish, finish_within};
use crate::gate::suite::Surroundings;
use crate::gate::tally::Tally;
use crate::services;
use crate::workspace::Workspace;

/// Runs the gate and says whether it is passed.
pub(crate) fn run(workspace: &Workspace, options: &TestOptions) -> Result<bool> {
    let logs = workspace.gate_logs();
    fs::create_dir_all(&logs).with_context(|| format!("could not create `{}`", logs.display()))?;
    let in_ci = std::env::var("CI").is_ok_and(|value| matches!(value.as_str(), "true" | "1"));
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("could not read the workspace")?;
    let packages = select(&metadata.packages, &options.only)?;

    let mut total = checks::run(workspace, &options.only)?;

    let needs = needs::meet(workspace)?;
    total += needs.tally;
    let surroundings = Surroundings {
        variables: needs.variables,
        left_out: needs.left_out,
        long: options.long,
    };
    total += tests(workspace, &packages, options.only.is_empty(), &surroundings)?;
    total += needs::still_met(workspace, &needs.used)?;

    if in_ci && !needs.started.is_empty() {
        // A developer's next run is faster when they stay; a build machine is left as it was found.
        let stopped = services::down(workspace, &needs.started)?;
        println!("stopped {}", stopped.join(", "));
    }
    let skips_count = in_ci && total.skipped > 0;
    if skips_count {
        println!(
            "with CI=true nothing may be skipped, and {} tests were",
            total.skipped
        );
    }
    println!("{total}");
    Ok(total.failed == 0 && !skips_count)
}

fn tests(
    workspace: &Workspace,
    packages: &[&Package],
    whole: bool,
    surroundings: &Surroundings,
) -> Result<Tally> {
    let mut total = Tally::default();
    let build_log = workspace.gate_logs().join("build.log");
    fs::write(&build_log, "").context("could not create the build log")?;
    let started = begin("build")?;
    let built = build::build(workspace, packages, whole, &build_log)?;
    let is_whole = packages
        .iter()
        .all(|package| build::is_complete(package, built.get(package.name.as_str())));
    finish(started, if is_whole { "ok" } else { "FAILED" });
    if !is_whole {
        println!("{}", complaints(&build_log, 200));
    }
    let begun = Instant::now();
    for package in packages {
        let log = workspace.gate_logs().join(format!("{}.log", package.name));
        let started = begin(&package.name)?;
        let binaries = built.get(package.name.as_str());
        let tally = suite::run_package(package, binaries, surroundings, &log)?;
        report(&package.name, started, tally, surroundings.long, &log);
        total += tally;
    }
    let programs = built.values().flat_map(|binaries| &binaries.programs);
    if surroundings.long
        && let Some((_, tidegate)) = programs.into_iter().find(|(name, _)| *name == "tidegate")
    {
        total += schemathesis::run(workspace, tidegate)?;
    }
    let log = workspace.gate_logs().join("doctests.log");
    let started = begin("doctests")?;
    let tally = suite::run_doctests(workspace, packages, whole, surroundings, &log)?;
    let tally = tally.unwrap_or_default();
    report("doctests", started, tally, surroundings.long, &log);
    total += tally;
    if whole {
        begin(budget::TOGETHER)?;
        finish_tests(budget::TOGETHER, begun, total, surroundings.long);
    }
    Ok(total)
}

fn report(name: &str, started: Instant, tally: Tally, long: bool, log: &Path) {
    finish_tests(name, started, tally, long);
    if tally.failed > 0 {
        println!("{}\n({} has it all)", tail(log, 200), log.display());
    }
}

fn finish_tests(name: &str, started: Instant, tally: Tally, long: bool) {
    // The full counts take what they take.
    if long {
        finish(started, &tally.to_string());
        return;
    }
    let (took, budget) = (started.elapsed(), budget::of(name));
    finish_within(took, &tally.to_string(), budget);
    if let Some(warning) = budget::warning(name, took, budget) {
        println!("{warning}");
    }
}

fn select<'a>(packages: &'a [Package], only: &[String]) -> Result<Vec<&'a Package>> {
    for name in only {
        if !packages.iter().any(|package| package.name == name.as_str()) {
            bail!("`{name}` is no package of this workspace");
        }
    }
    let wanted = |package: &&Package| {
        only.is_empty() || only.iter().any(|name| package.name == name.as_str())
    };
    Ok(packages.iter().filter(wanted).collect())
}
