//! Builds every test binary in one go.
//!
//! The binaries are then run directly instead of by `cargo test -p`. Cargo unites the features of the
//! packages it is asked for. Asking for one package at a time would build most dependencies once more
//! for each of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use cargo_metadata::{Artifact, Message, Package, Target};

use crate::workspace::Workspace;

/// The programs of a package's tests.
#[derive(Debug, Default)]
pub(crate) struct Binaries {
    /// Test programs by the name of their target, in a stable order.
    pub(crate) tests: BTreeMap<String, PathBuf>,
    /// The package's own programs; tests find them by `CARGO_BIN_EXE_<name>`.
    pub(crate) programs: BTreeMap<String, PathBuf>,
}

/// Builds the tests of `packages` and returns what came out, by package.
///
/// A package that does not compile lacks tests in the result; its messages are in `log`.
pub(crate) fn build(
    workspace: &Workspace,
    packages: &[&Package],
    whole: bool,
    log: &Path,
) -> Result<BTreeMap<String, Binaries>> {
    let mut built = BTreeMap::new();
    let mut command = workspace.cargo();
    command.arg("test");
    if whole {
        command.arg("--workspace");
    }
    for package in packages.iter().filter(|_| !whole) {
        command.args(["-p", &package.name]);
    }
    if cargo(command, log, packages, &mut built)? {
        return Ok(built);
    }
    // Cargo stops at the first package that does not compile. Asked one by one, the others still
    // get their tests.
    for package in packages {
        if !is_complete(package, built.get(package.name.as_str())) {
            let mut command = workspace.cargo();
            command.args(["test", "-p", &package.name]);
            cargo(command, log, packages, &mut built)?;
        }
    }
    Ok(built)
}

/// Whether every test program that must be there is there.
pub(crate) fn is_complete(package: &Package, binaries: Option<&Binaries>) -> bool {
    let is_built =
        |target: &String| binaries.is_some_and(|binaries| binaries.tests.contains_key(target));
    expected(package).iter().all(is_built)
}

/// The targets of a package that must have a test program.
///
/// Cargo leaves a target out while a feature it requires is off, so such a target may be missing.
pub(crate) fn expected(package: &Package) -> Vec<String> {
    let is_tested = |target: &&Target| target.test && target.required_features.is_empty();
    let tested = package.targets.iter().filter(is_tested);
    tested.map(label).collect()
}

fn cargo(
    mut command: Command,
    log: &Path,
    packages: &[&Package],
    built: &mut BTreeMap<String, Binaries>,
) -> Result<bool> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .context("could not open a log")?;
    let mut child = command
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("could not start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("could not read from cargo")? {
            keep(&artifact, packages, built);
        }
    }
    Ok(child.wait().context("could not wait for cargo")?.success())
}

fn keep(artifact: &Artifact, packages: &[&Package], built: &mut BTreeMap<String, Binaries>) {
    let Some(executable) = &artifact.executable else {
        return;
    };
    let Some(package) = packages
        .iter()
        .find(|package| package.id == artifact.package_id)
    else {
        return;
    };
    let binaries = built.entry(package.name.to_string()).or_default();
    let executable = executable.clone().into_std_path_buf();
    if artifact.profile.test {
        binaries.tests.insert(label(&artifact.target), executable);
    } else if artifact.target.is_bin() {
        binaries
            .programs
            .insert(artifact.target.name.clone(), executable);
    }
}

/// The kind comes first because a library and a program of one package may share their name.
fn label(target: &Target) -> String {
    let kind = target
        .kind
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!("{kind}/{}", target.name)
}
