//! Findings about a flow, and where they are.

mod codes;

use serde::Serialize;
use tidegate_config::{ConfigSource, Problem, Problems, Severity};

use crate::Span;
pub use codes::CODES;

/// One finding of the checker, at one place.
///
/// ```
/// use tidegate_flow::{Diagnostic, Span};
/// let wrong = Diagnostic::new("TG0301", Span::new(0, 7, 12), "there is no field `amont`")
///     .help("did you mean `amount`?");
/// assert_eq!(wrong.code, "TG0301");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The code, a row of the table of codes.
    pub code: &'static str,
    /// The place that the caret shows.
    pub span: Span,
    /// The mistake in words.
    pub message: String,
    /// Advice, if there is any.
    pub help: Option<String>,
    /// The second place of a contradiction.
    pub also: Option<Span>,
}

impl Diagnostic {
    /// A finding without advice.
    #[must_use]
    pub fn new(code: &'static str, span: Span, message: impl Into<String>) -> Self {
        Self {
            code,
            span,
            message: message.into(),
            help: None,
            also: None,
        }
    }

    /// The same finding with advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same finding with its second place.
    #[must_use]
    pub const fn also(mut self, span: Span) -> Self {
        self.also = Some(span);
        self
    }
}

impl Diagnostic {
    /// Whether it refuses the flow.
    #[must_use]
    pub fn severity(&self) -> Severity {
        explain(self.code).map_or(Severity::Problem, |row| row.severity)
    }

    /// Whether it refuses the flow.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity() == Severity::Problem
    }
}

/// The row of a code.
///
/// ```
/// assert_eq!(tidegate_flow::diagnostic::explain("TG0201").unwrap().text, "process without `receive`");
/// ```
#[must_use]
pub fn explain(code: &str) -> Option<&'static DiagnosticCode> {
    CODES.iter().find(|row| row.code == code)
}

/// The advice that a code has for all of its findings.
fn repair(code: &str) -> Option<String> {
    explain(code).map(|row| row.repair.to_owned())
}

/// The errors and the warnings among `diagnostics`, to be shown with the lines of `texts`. A finding without advice of
/// its own has that of its code.
#[must_use]
pub fn problems(diagnostics: &[Diagnostic], texts: &[ConfigSource]) -> (Problems, Problems) {
    let place = |span: Span| (span.source as usize, span.start as usize..span.end as usize);
    let of = |severity: Severity| {
        let list = diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.severity() == severity);
        let list = list.map(|diagnostic| {
            let also = diagnostic.also.map(place);
            Problem::in_text(
                texts,
                place(diagnostic.span),
                also,
                diagnostic.code,
                &diagnostic.message,
            )
            .hint(diagnostic.help.clone().or_else(|| repair(diagnostic.code)))
        });
        Problems::in_texts(list.collect(), texts.to_vec())
    };
    (of(Severity::Problem), of(Severity::Warning))
}

/// A finding as programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownDiagnostic {
    /// The code.
    pub code: String,
    /// `error` or `warning`.
    pub severity: &'static str,
    /// The name of the file.
    pub file: String,
    /// The line, counted from one.
    pub line: usize,
    /// The column in characters, counted from one.
    pub column: usize,
    /// The mistake in words.
    pub message: String,
    /// Advice, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The findings as programs read them, in the order of the files.
#[must_use]
pub fn shown(diagnostics: &[Diagnostic], texts: &[ConfigSource]) -> Vec<ShownDiagnostic> {
    let (errors, warnings) = problems(diagnostics, texts);
    let mut shown = Vec::new();
    for (severity, list) in [("error", errors), ("warning", warnings)] {
        shown.extend(list.iter().map(|problem| ShownDiagnostic {
            code: problem.path.clone(),
            severity,
            file: problem.file.clone(),
            line: problem.line,
            column: problem.column,
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        }));
    }
    shown
}

/// A row of the table of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagnosticCode {
    /// The code, for instance `TG0301`.
    pub code: &'static str,
    /// Whether it refuses the flow.
    pub severity: Severity,
    /// The check in a few words.
    pub text: &'static str,
    /// Why it is refused or warned about.
    pub cause: &'static str,
    /// A flow that gets it.
    pub example: &'static str,
    /// The text to write instead.
    pub repair: &'static str,
}
