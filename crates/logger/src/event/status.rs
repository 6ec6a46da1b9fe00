//! The two closed sets of words in an event.

use std::fmt;

/// The kind of an event (`processStatus`).
///
/// ```
/// use tidegate_logger::ProcessStatus;
/// assert_eq!(ProcessStatus::ProcessStart.as_str(), "PROCESS_START");
/// assert_eq!(ProcessStatus::from_wire("STEP"), Some(ProcessStatus::Step));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessStatus {
    /// `PROCESS_START`: a process begins.
    ProcessStart,
    /// `STEP`: it took a step.
    Step,
    /// `PROCESS_END`: it is over.
    ProcessEnd,
    /// `ERROR`: something broke that nobody foresaw.
    Error,
}

impl ProcessStatus {
    /// All of them, in the order of a process.
    pub const ALL: [Self; 4] = [
        Self::ProcessStart,
        Self::Step,
        Self::ProcessEnd,
        Self::Error,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProcessStart => "PROCESS_START",
            Self::Step => "STEP",
            Self::ProcessEnd => "PROCESS_END",
            Self::Error => "ERROR",
        }
    }

    /// The status of this word, if it is one.
    #[must_use]
    pub fn from_wire(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for ProcessStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How it went (`eventStatus`).
///
/// ```
/// use tidegate_logger::StepStatus;
/// assert_eq!(StepStatus::InProgress.as_str(), "IN_PROGRESS");
/// assert_eq!(StepStatus::from_wire("DONE"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepStatus {
    /// `SUCCESS`: it worked.
    Success,
    /// `FAILURE`: it did not.
    Failure,
    /// `IN_PROGRESS`: it is not over, and somebody else may have to end it.
    InProgress,
    /// `SKIPPED`: it was not needed.
    Skipped,
    /// `WARNING`: it worked, and somebody should look at it.
    Warning,
}

impl StepStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::Failure,
        Self::InProgress,
        Self::Skipped,
        Self::Warning,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
            Self::InProgress => "IN_PROGRESS",
            Self::Skipped => "SKIPPED",
            Self::Warning => "WARNING",
        }
    }

    /// The status of this word, if it is one.
    #[must_use]
    pub fn from_wire(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for StepStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
