//! How a component is.

use serde::{Deserialize, Serialize};

/// How a component, or the whole process, is. The order is from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum HealthStatus {
    /// It works.
    Up,
    /// It works, but something is wrong that should not stay so. It still counts as ready.
    Degraded,
    /// It does not work.
    Down,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthFinding {
    /// How the component is.
    pub status: HealthStatus,
    /// The problem with it.
    pub message: Option<String>,
}

impl HealthFinding {
    /// The component works.
    #[must_use]
    pub fn up() -> Self {
        Self {
            status: HealthStatus::Up,
            message: None,
        }
    }

    /// The component works, but not as it should.
    #[must_use]
    pub fn degraded(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Degraded,
            message: Some(message.into()),
        }
    }

    /// The component does not work.
    #[must_use]
    pub fn down(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Down,
            message: Some(message.into()),
        }
    }
}
