//! What a check finds.

use serde::Serialize;
use utoipa::ToSchema;

/// How a part, or the whole, is doing. The order is from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It works.
    Up,
    /// It works, but something is wrong that should not stay so. It still counts as ready.
    Degraded,
    /// It does not work.
    Down,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    status: Status,
    message: Option<String>,
}

impl Finding {
    /// The part works.
    #[must_use]
    pub fn up() -> Self {
        Self {
            status: Status::Up,
            message: None,
        }
    }

    /// The part works, but not as it should.
    #[must_use]
    pub fn degraded(message: impl Into<String>) -> Self {
        Self {
            status: Status::Degraded,
            message: Some(message.into()),
        }
    }

    /// The part does not work.
    #[must_use]
    pub fn down(message: impl Into<String>) -> Self {
        Self {
            status: Status::Down,
            message: Some(message.into()),
        }
    }
}

/// A named part and how it is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Part {
    /// Its name.
    name: String,
    /// How it is doing.
    status: Status,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Part {
    pub(crate) fn new(name: String, finding: Finding) -> Self {
        Self {
            name,
            status: finding.status,
            message: finding.message,
        }
    }

    /// The status of the worst of `parts`; up when there are none.
    pub(crate) fn worst(parts: &[Self]) -> Status {
        parts
            .iter()
            .map(|part| part.status)
            .max()
            .unwrap_or(Status::Up)
    }
}
