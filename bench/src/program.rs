//! Programs that are measured, peers and ours alike: they get commands and answer with lines of JSON.
//!
//! The commands of the queue are described in `bench/peers/README.md`.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a program may take for its next line.
const LIMIT: Duration = Duration::from_secs(240);

/// Why something could not be measured, in words for whoever reads the figures.
pub(crate) type Why = String;

/// A program and what always comes before its command.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) command: Vec<OsString>,
}

/// A program at work. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    doing: String,
}

impl Program {
    /// Runs a command to its end and gives its last answer.
    pub(crate) fn call(&self, url: &str, arguments: &[&OsStr]) -> Result<Value, Why> {
        self.start(url, arguments)?.finish()
    }

    /// Its description in words, from its answer to `prepare`.
    pub(crate) fn words(&self, prepared: &Value) -> String {
        prepared["is"].as_str().unwrap_or(self.name).to_owned()
    }

    pub(crate) fn start(&self, url: &str, arguments: &[&OsStr]) -> Result<Running, Why> {
        let [program, before @ ..] = self.command.as_slice() else {
            return Err(format!("{} has no program", self.name));
        };
        let words: Vec<_> = arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        let doing = format!("{} {}", self.name, words.join(" "));
        let mut child = Command::new(program)
            .args(before)
            .args(arguments)
            .env("DATABASE_URL", url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("`{doing}` does not start: {error}"))?;
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take().ok_or("a program without output")?;
        // The thread ends with the program's output.
        std::thread::spawn(move || {
            let read = BufReader::new(output).lines().map_while(Result::ok);
            let _unheard = read.map(|line| sender.send(line)).find(Result::is_err);
        });
        Ok(Running {
            child,
            lines,
            doing,
        })
    }
}

impl Running {
    /// The next answer.
    pub(crate) fn answer(&self) -> Result<Value, Why> {
        let line = self.lines.recv_timeout(LIMIT);
        let line = line.map_err(|error| format!("`{}` says nothing: {error}", self.doing))?;
        serde_json::from_str(&line).map_err(|_| format!("`{}` says {line}", self.doing))
    }

    /// Waits for the end, and gives the last answer that was not given yet.
    pub(crate) fn finish(mut self) -> Result<Value, Why> {
        let mut last = None;
        let began = Instant::now();
        loop {
            match self
                .lines
                .recv_timeout(LIMIT.saturating_sub(began.elapsed()))
            {
                Ok(line) => last = Some(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("`{}` is not done after {LIMIT:?}", self.doing));
                }
            }
        }
        let status = self.child.wait();
        let status = status.map_err(|error| format!("`{}` is lost: {error}", self.doing))?;
        match last {
            Some(line) if status.success() => {
                serde_json::from_str(&line).map_err(|_| format!("`{}` says {line}", self.doing))
            }
            Some(_) | None => Err(format!("`{}` ended with {status}", self.doing)),
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL, as a crash would.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A number in an answer.
pub(crate) fn number(answer: &Value, key: &str) -> Result<f64, Why> {
    let found = answer.get(key).and_then(Value::as_f64);
    found.ok_or_else(|| format!("no `{key}` in {answer}"))
}

/// The seconds between two answers' times.
pub(crate) fn seconds(began: &Value, ended: &Value) -> Result<f64, Why> {
    Ok((number(ended, "ended_us")? - number(began, "began_us")?) / 1e6)
}
