//! Runs the binary.

use std::path::Path;
use std::process::{Command, Output};

/// The binary in a directory of its own, with an environment of its own.
pub(crate) fn tidegate(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).current_dir(dir).env_clear();
    command
}

/// What a run left behind.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output as the one JSON document that it must be.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}; {}", self.stdout, self.stderr))
    }
}

/// Runs it to its end in an empty directory.
pub(crate) fn run(arguments: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), arguments)
}

/// Runs it to its end.
pub(crate) fn run_in(dir: &Path, arguments: &[&str]) -> Ran {
    tidegate(dir, arguments).output().unwrap().into()
}
