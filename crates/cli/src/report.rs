//! How a command ends: what it prints and with which code it exits.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use tidegate_config::{Loaded, Problem};
use tidegate_core::books::Ledger;
use tidegate_core::{Failure, error_chain};
use tidegate_log::LogError;
use tidegate_server::BindError;

use crate::args::{LogFormat, Output};
use crate::{settings, table};

/// The exit codes, which scripts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Ok,
    /// The command could not do what it was asked to.
    Failed,
    /// The command was not asked in a way that it understands.
    Usage,
    /// The command found something wrong in what it was asked to look at.
    Findings,
    /// Events are lost or unaccounted for.
    Loss,
}

impl Exit {
    /// `Ok` where all is well, else this.
    pub(crate) fn unless(self, is_well: bool) -> Self {
        if is_well { Self::Ok } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Ok => 0,
            Exit::Failed => 1,
            // The parser of the command line ends with the same.
            Exit::Usage => 2,
            Exit::Findings => 3,
            Exit::Loss => 4,
        })
    }
}

/// Says why a command line is not understood, or prints the help that it asks for. A program that wants JSON
/// gets it here too.
pub(crate) fn refuse_usage(refused: &clap::Error) -> Exit {
    if !refused.use_stderr() || !is_json_asked(std::env::args_os().skip(1)) {
        refused.print().ok();
        return if refused.use_stderr() {
            Exit::Usage
        } else {
            Exit::Ok
        };
    }
    let text = refused.render().to_string();
    let mut parts = text.trim_end().splitn(2, "\n\n");
    let message = parts.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let report = ErrorReport {
        hint: parts.next().map(str::to_owned),
        ..ErrorReport::new("usage.arguments", message)
    };
    report
        .with_exit(Exit::Usage)
        .print(Output::Json, MessageFormat::Text)
}

/// Whether arguments that could not be read as a whole ask for JSON.
fn is_json_asked(arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let mut is_value = false;
    for argument in arguments {
        let argument = argument.to_string_lossy();
        if is_value || argument == "-o" || argument == "--output" {
            if is_value && argument == "json" {
                return true;
            }
            is_value = !is_value;
            continue;
        }
        if ["-ojson", "-o=json", "--output=json", "--json"].contains(&&*argument) {
            return true;
        }
    }
    false
}

/// How standard error is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageFormat {
    /// As text, beside log lines of text.
    Text,
    /// As events of the log: every line of standard error is a JSON object.
    Events,
}

impl MessageFormat {
    /// The format that fits the log. Before the log has been started there are no lines to fit.
    pub(crate) fn of(format: LogFormat) -> Self {
        if format == LogFormat::Json && tracing::dispatcher::has_been_set() {
            Self::Events
        } else {
            Self::Text
        }
    }
}

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub(crate) struct ErrorReport {
    code: Cow<'static, str>,
    message: String,
    hint: Option<String>,
    exit: Exit,
    /// The problems of the configuration, if that is why.
    findings: Option<Box<Loaded>>,
}

impl ErrorReport {
    /// A failure with its stable code.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed(code),
            message: message.into(),
            hint: None,
            exit: Exit::Failed,
            findings: None,
        }
    }

    /// A failure with everything that was beneath it.
    pub(crate) fn of(code: &'static str, doing: &str, error: &dyn Error) -> Self {
        Self::new(code, format!("{doing}: {}", error_chain(error)))
    }

    /// Its code.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Its code and message in one line.
    pub(crate) fn summary(&self) -> String {
        format!("{}: {}", self.code, self.message)
    }

    /// Whether it has this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// The same with what to do about it.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with more to do about it.
    pub(crate) fn with_further_hint(self, more: &str) -> Self {
        let hint = match &self.hint {
            Some(hint) => format!("{hint}; {more}"),
            None => more.to_owned(),
        };
        self.with_hint(hint)
    }

    /// The same with another exit code.
    pub(crate) fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The same with the problems of the configuration.
    pub(crate) fn with_findings(mut self, loaded: Loaded) -> Self {
        self.findings = Some(Box::new(loaded));
        self
    }

    /// Prints it: for people to standard error, for programs as the one JSON document.
    pub(crate) fn print(&self, output: Output, format: MessageFormat) -> Exit {
        if output == Output::Json
            && let Err(unwritten) = print_json(&self.to_json())
            && unwritten.code != self.code
        {
            unwritten.tell(format);
        }
        self.tell(format);
        self.exit
    }

    /// The same for programs.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let error = json!({ "code": self.code, "message": self.message, "hint": self.hint });
        match &self.findings {
            None => json!({ "error": error }),
            Some(findings) => json!({
                "error": error, "problems": findings.problems, "warnings": findings.warnings,
            }),
        }
    }

    /// Says it on standard error.
    pub(crate) fn tell(&self, format: MessageFormat) {
        match format {
            MessageFormat::Text => {
                say(&format!("error[{}]: {}", self.code, self.message));
                if let Some(hint) = &self.hint {
                    say(&format!("  hint: {hint}"));
                }
            }
            MessageFormat::Events => {
                let hint = self.hint.as_deref();
                tracing::error!(code = %self.code, hint, "{}", self.message);
            }
        }
    }
}

impl From<Failure> for ErrorReport {
    fn from(failure: Failure) -> Self {
        Self {
            exit: match failure.code.as_str() {
                "server.exposed" | "store.address" => Exit::Findings,
                code if code.starts_with("usage.") => Exit::Usage,
                _ => Exit::Failed,
            },
            code: Cow::Owned(failure.code.as_str().to_owned()),
            message: failure.message,
            hint: failure.hint,
            findings: None,
        }
    }
}

impl From<LogError> for ErrorReport {
    fn from(error: LogError) -> Self {
        Failure::from(error).into()
    }
}

impl From<BindError> for ErrorReport {
    fn from(error: BindError) -> Self {
        Failure::from(error).into()
    }
}

impl From<Box<Problem>> for ErrorReport {
    fn from(problem: Box<Problem>) -> Self {
        settings::invalid(problem.to_string())
    }
}

impl Output {
    /// Prints a result: for programs as the one JSON document, for people as text.
    pub(crate) fn print(
        self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), ErrorReport> {
        let mut line = Vec::new();
        self.add_line(&mut line, document, text)?;
        print_bytes(&line)
    }

    /// Adds one of many results to `lines`.
    pub(crate) fn add_line(
        self,
        lines: &mut Vec<u8>,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), ErrorReport> {
        match self {
            Self::Json => serde_json::to_writer(&mut *lines, document)
                .map_err(|error| ErrorReport::of("internal", "cannot write JSON", &error))?,
            Self::Table => lines.extend(colored(text()).into_bytes()),
        }
        lines.push(b'\n');
        Ok(())
    }
}

/// The same text with the marks that begin its lines in color, where standard output takes colors. The mark
/// itself says as much.
fn colored(text: String) -> String {
    if !is_terminal() || is_colorless() {
        return text;
    }
    let lines = text.split('\n').map(|line| {
        let (mark, color) = match line.chars().next() {
            Some(mark @ '✓') => (mark, 32),
            Some(mark @ '✗') => (mark, 31),
            Some(mark @ '!') => (mark, 33),
            Some(_) | None => return line.to_owned(),
        };
        format!("\u{1b}[{color}m{mark}\u{1b}[0m{}", &line[mark.len_utf8()..])
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes a JSON document to standard output.
pub(crate) fn print_json(document: &impl Serialize) -> Result<(), ErrorReport> {
    Output::Json.print(document, String::new)
}

/// Prints the books. The exit code says whether they balance.
pub(crate) fn print_ledger(ledger: &Ledger, output: Output) -> Result<Exit, ErrorReport> {
    output.print(ledger, || table::ledger(ledger))?;
    Ok(Exit::Loss.unless(ledger.balanced))
}

/// Writes a line of data to standard output.
pub(crate) fn print(text: &str) -> Result<(), ErrorReport> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Writes data to standard output and returns once the operating system has taken it.
///
/// A reader that has gone away, as `head` does, is no error of ours: what follows goes nowhere.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), ErrorReport> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ErrorReport::of(
            "output.failed",
            "cannot write to standard output",
            &error,
        )),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line for people to standard error. One that cannot be written has nobody to read it.
pub(crate) fn say(text: &str) {
    io::stderr()
        .lock()
        .write_all(format!("{text}\n").as_bytes())
        .ok();
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal that can be drawn on.
pub(crate) fn is_drawable() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard error takes colors: a terminal does, unless its user wants none.
pub(crate) fn is_colorful() -> bool {
    is_drawable() && !is_colorless()
}

/// Whether the user wants no colors.
fn is_colorless() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
