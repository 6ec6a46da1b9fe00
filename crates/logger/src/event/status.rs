//! The two closed sets of words in an event.

use serde::Deserialize;

/// The kind of an event (`processStatus`).
///
/// ```
/// use tidegate_logger::ProcessStatus;
/// assert_eq!(ProcessStatus::ProcessStart.as_str(), "PROCESS_START");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
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
}

/// How it went (`eventStatus`).
///
/// ```
/// use tidegate_logger::StepStatus;
/// assert_eq!(StepStatus::InProgress.as_str(), "IN_PROGRESS");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
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
}
