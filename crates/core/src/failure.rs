//! Failures: what class they are of, and what they are called.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a failed attempt is worth another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// It may work next time: retried, and counted by breakers.
    Transient,
    /// It will never work: not retried, not counted by breakers, dead-lettered.
    Permanent,
    /// It is not about this record: the component stops taking new work and says so in health.
    System,
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::System => "system",
        })
    }
}

/// Errors that know their class.
///
/// Write it as a match without a wildcard, so that a new variant needs somebody to decide whether
/// it is retried.
pub trait Classify {
    /// The class of this failure.
    fn class(&self) -> FailureClass;
}

/// The stable name of a failure: dotted, such as `timeout.connect` or `schema.invalid`.
///
/// ```
/// use tidegate_core::Code;
/// assert_eq!(Code::new("timeout.connect")?.as_str(), "timeout.connect");
/// assert!(Code::new("Timeout connect").is_err());
/// # Ok::<(), tidegate_core::ParseCodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Code(Cow<'static, str>);

/// Longest code; it stands in headers and metric labels.
const CODE_LIMIT: usize = 128;

impl Code {
    /// A code that stands in the source.
    ///
    /// # Panics
    /// When the text is not a code; in a constant, the build fails.
    #[must_use]
    pub const fn from_static(code: &'static str) -> Self {
        assert!(
            is_code(code.as_bytes()),
            "a code is dotted lowercase: `timeout.connect`"
        );
        Self(Cow::Borrowed(code))
    }

    /// A code that came from elsewhere.
    ///
    /// # Errors
    /// The text is empty, too long, or not lowercase words joined by dots.
    pub fn new(code: impl Into<String>) -> Result<Self, ParseCodeError> {
        let code = code.into();
        if is_code(code.as_bytes()) {
            Ok(Self(Cow::Owned(code)))
        } else {
            Err(ParseCodeError(code.chars().take(CODE_LIMIT).collect()))
        }
    }

    /// A code exactly as a header or a table holds it, also one that was written by others.
    #[must_use]
    pub(crate) fn verbatim(code: String) -> Self {
        Self(Cow::Owned(code))
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not a failure code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a failure code; one is lowercase words joined by dots, like timeout.connect")]
pub struct ParseCodeError(String);

const fn is_code(text: &[u8]) -> bool {
    if text.is_empty() || text.len() > CODE_LIMIT {
        return false;
    }
    let mut i = 0;
    let mut at_word_start = true;
    while i < text.len() {
        match text[i] {
            b'a'..=b'z' | b'0'..=b'9' => at_word_start = false,
            b'.' | b'-' | b'_' if !at_word_start => at_word_start = text[i] == b'.',
            _ => return false,
        }
        i += 1;
    }
    !at_word_start
}

/// Which codes a configuration means: `timeout.connect`, or `timeout.*` for all below `timeout`.
///
/// Any other text, such as a Java class name in a configuration from elsewhere, matches only
/// itself.
///
/// ```
/// use tidegate_core::{Code, CodePattern};
/// let pattern = CodePattern::new("timeout.*");
/// assert!(pattern.matches(&Code::from_static("timeout.connect")));
/// assert!(!pattern.matches(&Code::from_static("timeouts.connect")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodePattern(String);

impl CodePattern {
    /// The pattern written as `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether `code` is meant.
    #[must_use]
    pub fn matches(&self, code: &Code) -> bool {
        match self.0.strip_suffix('*') {
            // `timeout.*` keeps its dot, so that `timeouts` is not below `timeout`; `*` is all.
            Some(prefix) if prefix.is_empty() || prefix.ends_with('.') => {
                code.as_str().starts_with(prefix)
            }
            Some(_) | None => code.as_str() == self.0,
        }
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One failure of one attempt.
///
/// ```
/// use tidegate_core::{Code, Failure, FailureClass};
/// let failure = Failure::transient(Code::from_static("timeout.connect"), "no answer in 5 s");
/// assert_eq!(failure.class, FailureClass::Transient);
/// assert_eq!(failure.to_string(), "timeout.connect: no answer in 5 s");
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// Whether trying again makes sense.
    pub class: FailureClass,
    /// Its code.
    pub code: Code,
    /// The message, for people.
    pub message: String,
    /// Advice for people.
    pub hint: Option<String>,
    /// The error beneath it.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure that may work next time.
    pub fn transient(code: Code, message: impl Into<String>) -> Self {
        Self::new(FailureClass::Transient, code, message)
    }

    /// A failure that never will.
    pub fn permanent(code: Code, message: impl Into<String>) -> Self {
        Self::new(FailureClass::Permanent, code, message)
    }

    /// A failure of this class.
    pub fn new(class: FailureClass, code: Code, message: impl Into<String>) -> Self {
        Self {
            class,
            code,
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    /// A failure by the name, the words and the advice of an error; the words are those of everything
    /// beneath it as well.
    pub fn of<E: Error + Classify>(error: &E, code: Code, hint: Option<String>) -> Self {
        Self {
            hint,
            ..Self::new(error.class(), code, error_chain(error))
        }
    }

    /// The same failure with what was beneath it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl Classify for Failure {
    fn class(&self) -> FailureClass {
        self.class
    }
}

/// The text of an error, and of everything beneath it. An error that repeats what is beneath it is not repeated.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut beneath = error.source();
    while let Some(source) = beneath {
        let said = source.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        beneath = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_itself_or_what_is_below_it() {
        let check = |pattern: &str, code: &'static str, expect: bool| {
            let got = CodePattern::new(pattern).matches(&Code::from_static(code));
            assert_eq!(got, expect, "{pattern} {code}");
        };
        check("timeout.connect", "timeout.connect", true);
        check("timeout.connect", "timeout.read", false);
        check("timeout.*", "timeout.read", true);
        check("timeout.*", "timeout", false);
        check("timeout*", "timeout.read", false);
        check("*", "schema.invalid", true);
        check("java.net.SocketTimeoutException", "timeout.read", false);
    }

    #[test]
    fn a_code_is_lowercase_words_joined_by_dots() {
        for good in [
            "timeout",
            "timeout.connect",
            "http.503",
            "conflict.optimistic-lock",
            "a_b",
        ] {
            assert!(Code::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(129);
        for bad in [
            "", ".", "a.", ".a", "a..b", "Timeout", "a b", "-a", "a.-b", &long,
        ] {
            assert!(Code::new(bad).is_err(), "{bad}");
        }
    }
}
