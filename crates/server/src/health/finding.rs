//! A part, as the probes show it.

use serde::Serialize;
use tidegate_core::{HealthFinding, HealthStatus};
use utoipa::ToSchema;

use crate::api::wire;

/// A named part and how it is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Part)]
pub(crate) struct HealthPart {
    /// Its name.
    name: String,
    /// How it is doing.
    #[schema(value_type = wire::HealthStatusSchema)]
    status: HealthStatus,
    /// The problem with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Whether the process is ready only while it works; left out where it is.
    #[serde(rename = "required", skip_serializing_if = "is_true")]
    is_required: bool,
}

impl HealthPart {
    pub(crate) fn new(name: String, is_required: bool, finding: HealthFinding) -> Self {
        Self {
            name,
            status: finding.status,
            message: finding.message,
            is_required,
        }
    }

    /// The status of the worst of `parts`; up when there are none.
    pub(crate) fn worst<'a>(parts: impl IntoIterator<Item = &'a Self>) -> HealthStatus {
        let statuses = parts.into_iter().map(|part| part.status);
        statuses.max().unwrap_or(HealthStatus::Up)
    }

    /// The same of those without which we are not ready.
    pub(crate) fn worst_required(parts: &[Self]) -> HealthStatus {
        Self::worst(parts.iter().filter(|part| part.is_required))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_true(flag: &bool) -> bool {
    *flag
}
