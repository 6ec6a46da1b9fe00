//! Runs a test program that may do anything: it has a mistake in it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// How a test program ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    /// With the first test that failed, or how the program died.
    Failed(String),
    TimedOut,
}

/// A mistake may allocate or write without end; 8 GiB of memory and 2 GiB in a file are more than
/// any test takes. The shell counts memory in KiB and files in blocks of 512 bytes or 1 KiB.
const LIMITS: &str = r#"ulimit -v 8388608 && ulimit -f 2097152 && ulimit -c 0 && exec "$0" "$@""#;

/// `program` within [`LIMITS`].
pub(crate) fn limited(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", LIMITS]).arg(program);
    command
}

/// Runs `command` until its end, its first failed test or `limit`.
///
/// Whatever it has started ends with it.
pub(crate) fn until_failure(command: &mut Command, limit: Duration) -> Result<End> {
    let end = Instant::now() + limit;
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("could not start a test program")?;
    let output = child.stdout.take().context("a program without output")?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let seen = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(test) = failed_test(&String::from_utf8_lossy(&line)) {
                    break Some(End::Failed(test));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(End::TimedOut),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if seen.is_some() {
        kill(&child)?;
    }
    let status = child.wait().context("could not wait for a test program")?;
    // A reader whose pipe some grandchild still holds would keep us for as long as that lives.
    drop(lines);
    if seen.is_none() {
        drop(reader.join());
    }
    Ok(match seen {
        Some(end) => end,
        None if status.success() => End::Passed,
        None => End::Failed(status.to_string()),
    })
}

fn kill(child: &Child) -> Result<()> {
    match kill_process_group(Pid::from_child(child), Signal::KILL) {
        // It ended by itself at the same moment.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        result => result.context("could not kill a test program"),
    }
}

/// The test in `test some::name ... FAILED`.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.trim_end_matches(" - should panic").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> End {
        let mut command = limited(Path::new("sh"));
        command.args(["-c", script]);
        until_failure(&mut command, limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_is_stopped_at_its_first_failed_test() {
        let begun = Instant::now();
        let end = run("echo 'test a::b ... FAILED'; sleep 600", LONG);
        assert_eq!(end, End::Failed("a::b".to_owned()));
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_program_that_ends_says_how() {
        assert_eq!(run("echo 'test a ... ok'", LONG), End::Passed);
        let End::Failed(how) = run("kill -ABRT $$", LONG) else {
            panic!("an abort is a failure");
        };
        assert!(how.contains("signal"), "{how}");
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_all_it_started() {
        assert_eq!(
            run("sleep 600 & sleep 600", Duration::from_millis(50)),
            End::TimedOut
        );
    }
}
