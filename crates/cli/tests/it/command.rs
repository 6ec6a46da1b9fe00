//! Runs the binary.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The commands that open a log.
const LOG_COMMANDS: [&str; 10] = [
    "run", "send", "tail", "audit", "where", "topic", "group", "bench", "log", "stage",
];

/// The binary in a directory of its own, with an environment of its own. The files of a log are small, where no
/// configuration is tested: most of the time went into zeros.
pub(crate) fn tidegate(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).current_dir(dir).env_clear();
    if arguments
        .first()
        .is_some_and(|first| LOG_COMMANDS.contains(first))
    {
        command.env("LOG_EMBEDDED_JOURNAL_SIZE", "1MiB");
    }
    command
}

/// The output of a run.
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

/// Runs it to its end with this on standard input, which is a pipe.
pub(crate) fn run_with_input(dir: &Path, arguments: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut child = tidegate(dir, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that has failed by then does not read the rest.
    match stdin.write_all(input.as_ref()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => panic!("{error}"),
        Ok(()) | Err(_) => {}
    }
    drop(stdin);
    child.wait_with_output().unwrap().into()
}
