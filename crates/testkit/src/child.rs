//! A process that a test kills: the test program itself, started again.
//!
//! The program has a test called `child::child_process_entry`, which does nothing unless the variables
//! of [`start`] are set. The reports of the child go to standard output, one line per write. So a line
//! is there whole or not at all when the process dies.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The mark before each line of ours: the test harness writes to the same pipe.
const MARK: char = '>';

/// Starts this test program once more, as a child with these environment variables, and gives what it
/// reports. Its standard input is open until the child is waited for, or its `stdin` is dropped.
///
/// # Errors
/// The process cannot be started.
pub fn start(variables: &[(&str, &OsStr)]) -> io::Result<(Child, ChildLines)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child::child_process_entry", "--exact"])
        .args(["--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, ChildLines(BufReader::new(output))))
}

/// The reports of a child. They end once the child is gone and everything it wrote was read.
#[derive(Debug)]
pub struct ChildLines(BufReader<ChildStdout>);

impl Iterator for ChildLines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line);
            if read.expect("the child's output is UTF-8") == 0 {
                return None;
            }
            // The test harness may leave its line unfinished, and a child that is killed its last one.
            if let Some(at) = line.find(MARK)
                && line.ends_with('\n')
            {
                return Some(line[at + MARK.len_utf8()..].trim_end().to_owned());
            }
        }
    }
}

/// Reports a line to the parent, in the child.
///
/// # Panics
/// The parent is gone.
pub fn say(text: &str) {
    let line = format!("{MARK}{text}\n");
    let mut output = io::stdout().lock();
    let written = output.write_all(line.as_bytes());
    let written = written.and_then(|()| output.flush());
    written.expect("the parent reads what is said");
}

/// Lets a child stand still.
///
/// # Errors
/// It is gone.
pub fn pause(child: &Child) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::STOP)?)
}

/// Lets a child that was paused go on.
///
/// # Errors
/// It is gone.
pub fn resume(child: &Child) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::CONT)?)
}
