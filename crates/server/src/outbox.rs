//! The routes of the outbox relays of this process.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Classify, FailureClass, error_chain};
use tidegate_outbox::{Outbox, OutboxError, OutboxStatus};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as routed;

use crate::idempotency::IdempotencyKeys;
use crate::parameters::PathParameters;
use crate::{ApiProblem, ProblemCode, Routes};

/// The outboxes behind the routes, by the names of their relays.
#[derive(Debug, Clone)]
pub struct OutboxApi {
    /// The outboxes.
    pub outboxes: Vec<Outbox>,
    /// Where the answers to repeated requests are kept.
    pub keys: IdempotencyKeys,
}

/// The routes of the outboxes.
#[must_use]
pub fn outbox_routes(api: OutboxApi) -> Routes {
    let keys = api.keys.clone();
    let router = OpenApiRouter::new()
        .routes(routed!(purge))
        .with_state(Arc::new(api));
    Routes::from(router).idempotent(keys)
}

/// The rows to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"status": "SENT", "before": "2026-05-01T12:00:00Z"}))]
struct PurgeRows {
    /// `SENT`, or `DEAD`: their events count as lost then, with the reason `purged`.
    status: String,
    /// Only rows that were sent, or failed last, before this time.
    before: String,
}

/// The rows that were removed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"purged": 1042}))]
struct PurgedRows {
    /// How many.
    purged: u64,
}

/// Removes rows that are finished, for good.
///
/// With an `Idempotency-Key` a repeated request gets the first answer.
#[utoipa::path(post, path = "/tidegate/outbox/{name}/purge", tag = "outbox",
    params(
        ("name" = String, Path, description = "The relay, by its name in the configuration.", example = "loans"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    request_body = PurgeRows,
    responses(
        (status = 200, description = "How many rows were removed.", body = PurgedRows),
        (status = 400, description = "The status cannot be purged, or the time is none.", body = ApiProblem),
        (status = 404, description = "There is no such relay.", body = ApiProblem),
        (status = 409, description = "The key was used for another request.", body = ApiProblem),
        (status = 503, description = "The database does not answer.", body = ApiProblem),
))]
async fn purge(
    State(api): State<Arc<OutboxApi>>,
    PathParameters(name): PathParameters<String>,
    Json(rows): Json<PurgeRows>,
) -> Result<Json<PurgedRows>, ApiProblem> {
    let mut outboxes = api.outboxes.iter();
    let outbox = outboxes.find(|outbox| outbox.options().name == name);
    let outbox = outbox.ok_or_else(|| {
        let text = format!("this process has no relay `{name}`");
        ApiProblem::new(ProblemCode::NotFound, text).with("relay", name.as_str())
    })?;
    let (status, before_ms) = rows.checked()?;
    // The request may end at any time, and the work must not end half-way through a page.
    let purged = outbox.purge(status, before_ms).await?;
    tracing::info!(relay = name, %status, before = rows.before, purged, "rows were purged");
    Ok(Json(PurgedRows { purged }))
}

impl PurgeRows {
    fn checked(&self) -> Result<(OutboxStatus, i64), ApiProblem> {
        let mut problems = Vec::new();
        let status = OutboxStatus::parse(&self.status);
        if !matches!(status, Some(OutboxStatus::Sent | OutboxStatus::Dead)) {
            problems.push(json!({ "field": "status", "reason": "it must be SENT or DEAD" }));
        }
        let before = self.before.parse::<jiff::Timestamp>();
        if before.is_err() {
            let reason = "it must be a time such as 2026-05-01T12:00:00Z";
            problems.push(json!({ "field": "before", "reason": reason }));
        }
        match (status, before) {
            (Some(status), Ok(before)) if problems.is_empty() => {
                Ok((status, before.as_millisecond()))
            }
            _ => {
                let text = "the rows to purge are not named as they must be";
                let problem = ApiProblem::new(ProblemCode::BadRequest, text);
                Err(problem.with("problems", problems))
            }
        }
    }
}

impl From<OutboxError> for ApiProblem {
    fn from(error: OutboxError) -> Self {
        if let OutboxError::NotPurgeable { .. } = error {
            return Self::new(ProblemCode::BadRequest, error.to_string());
        }
        // The text of a database may tell about our insides.
        tracing::warn!(error = error_chain(&error), "an outbox did not do it");
        match error.class() {
            FailureClass::Transient | FailureClass::System => Self::new(
                ProblemCode::StoreUnavailable,
                "the database does not answer now; some rows may have been removed",
            ),
            FailureClass::Permanent => Self::new(
                ProblemCode::Internal,
                "something went wrong here; the log has more",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_to_purge_are_named_by_status_and_time() {
        let checked = |status: &str, before: &str| {
            let rows = PurgeRows {
                status: status.to_owned(),
                before: before.to_owned(),
            };
            rows.checked()
        };
        let time = "1970-01-01T00:00:01Z";
        assert_eq!(checked("SENT", time), Ok((OutboxStatus::Sent, 1_000)));
        assert_eq!(checked("dead", time), Ok((OutboxStatus::Dead, 1_000)));
        assert!(checked("PENDING", time).is_err());
        let both = checked("all", "soon").unwrap_err();
        let both = serde_json::to_value(&both).unwrap();
        assert_eq!(
            both["details"]["problems"].as_array().map(Vec::len),
            Some(2)
        );
    }
}
