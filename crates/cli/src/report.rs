//! How a command ends: what it prints and with which code it exits.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::args::Output;

/// The exit codes, which scripts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Ok,
    /// The command could not do what it was asked to.
    Failed,
    /// The command found something wrong in what it was asked to look at.
    Findings,
    /// Events are lost or unaccounted for.
    Loss,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // 2 is for wrong usage and is given by the parser of the command line.
        Self::from(match exit {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Findings => 3,
            Exit::Loss => 4,
        })
    }
}

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Report {
    code: &'static str,
    message: String,
    hint: Option<String>,
    exit: Exit,
}

impl Report {
    /// A failure with its stable code.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            exit: Exit::Failed,
        }
    }

    /// A failure with everything that was beneath it.
    pub(crate) fn of(code: &'static str, doing: &str, error: &dyn Error) -> Self {
        let mut message = format!("{doing}: {error}");
        let mut beneath = error.source();
        while let Some(source) = beneath {
            message.push_str(&format!(": {source}"));
            beneath = source.source();
        }
        Self::new(code, message)
    }

    /// The same with what to do about it.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another exit code.
    pub(crate) fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Prints it: for people to standard error, for programs as the one JSON document.
    pub(crate) fn print(&self, output: Output) -> Exit {
        if output == Output::Json {
            let error = serde_json::json!({
                "error": { "code": self.code, "message": self.message, "hint": self.hint },
            });
            print_json(&error);
        }
        say(&format!("error[{}]: {}", self.code, self.message));
        if let Some(hint) = &self.hint {
            say(&format!("  hint: {hint}"));
        }
        self.exit
    }
}

/// Writes a JSON document to standard output.
pub(crate) fn print_json(document: &impl Serialize) {
    match serde_json::to_string(document) {
        Ok(text) => print(&text),
        Err(error) => say(&format!("error[internal]: {error}")),
    }
}

/// Writes a line of data to standard output.
///
/// A reader that has gone away, as `head` does, is no error of ours: what follows goes nowhere.
pub(crate) fn print(text: &str) {
    writeln!(std::io::stdout().lock(), "{text}").ok();
}

/// Writes a line for people to standard error.
pub(crate) fn say(text: &str) {
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

/// Whether standard error is a terminal that can be drawn on.
pub(crate) fn is_drawable() -> bool {
    std::io::stderr().is_terminal()
}
