//! Whether we are alive, ready and well.
//!
//! These routes answer 503 with the same body as 200: who asks why they are not ready wants to see
//! the parts, and a probe reads the status alone.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tidegate_core::HealthStatus;
use utoipa::ToSchema;

use super::{Api, wire};
use crate::Health;
use crate::guard::Access;
use crate::health::HealthPart;
use crate::problem::OwnBody;

/// How we are doing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    /// The status of the worst part.
    #[schema(value_type = wire::HealthStatusSchema)]
    status: HealthStatus,
    /// Whether the process is about to stop. Left out without authorization.
    #[serde(skip_serializing_if = "Option::is_none")]
    draining: Option<bool>,
    /// The parts that were asked. Left out without authorization.
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Vec<HealthPart>>,
}

/// Whether the process makes progress.
#[utoipa::path(get, path = "/livez", tag = "health", security(()), responses(
    (status = 200, description = "Every loop goes on.", body = HealthBody),
    (status = 503, description = "A loop stands still.", body = HealthBody),
))]
pub(crate) async fn livez(
    State(api): State<Arc<Api>>,
    Extension(access): Extension<Access>,
) -> Response {
    let health = &api.sources.health;
    let stalled = health.stalled();
    let status = HealthPart::worst(&stalled);
    answer(health, access, status, stalled)
}

/// Whether requests should be sent here.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, description = "Every required part answers.", body = HealthBody),
    (status = 503, description = "A required part is down, or the process is stopping.", body = HealthBody),
))]
pub(crate) async fn readyz(
    State(api): State<Arc<Api>>,
    Extension(access): Extension<Access>,
) -> Response {
    let health = &api.sources.health;
    let (status, parts) = readiness(health).await;
    answer(health, access, status, parts)
}

/// Whether we are ready, and the parts that decide it.
pub(super) async fn readiness(health: &Health) -> (HealthStatus, Vec<HealthPart>) {
    let parts = health.parts().await;
    match health.is_draining() {
        true => (HealthStatus::Down, parts),
        false => (HealthPart::worst_required(&parts), parts),
    }
}

/// How every part is doing.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses(
    (status = 200, description = "Up, or degraded.", body = HealthBody),
    (status = 503, description = "A part is down or a loop stands still.", body = HealthBody),
))]
pub(crate) async fn health(
    State(api): State<Arc<Api>>,
    Extension(access): Extension<Access>,
) -> Response {
    let health = &api.sources.health;
    let mut parts = health.parts().await;
    parts.extend(health.stalled());
    let status = HealthPart::worst(&parts);
    answer(health, access, status, parts)
}

/// The same as `/health`.
#[utoipa::path(get, path = "/actuator/health", tag = "health", security(()), responses(
    (status = 200, description = "Up, or degraded.", body = HealthBody),
    (status = 503, description = "A part is down or a loop stands still.", body = HealthBody),
))]
pub(crate) async fn actuator_health(state: State<Arc<Api>>, access: Extension<Access>) -> Response {
    health(state, access).await
}

/// The same as `/livez`.
#[utoipa::path(get, path = "/actuator/health/liveness", tag = "health", security(()), responses(
    (status = 200, description = "Every loop goes on.", body = HealthBody),
    (status = 503, description = "A loop stands still.", body = HealthBody),
))]
pub(crate) async fn actuator_liveness(
    state: State<Arc<Api>>,
    access: Extension<Access>,
) -> Response {
    livez(state, access).await
}

/// The same as `/readyz`.
#[utoipa::path(get, path = "/actuator/health/readiness", tag = "health", security(()), responses(
    (status = 200, description = "Every required part answers.", body = HealthBody),
    (status = 503, description = "A required part is down, or the process is stopping.", body = HealthBody),
))]
pub(crate) async fn actuator_readiness(
    state: State<Arc<Api>>,
    access: Extension<Access>,
) -> Response {
    readyz(state, access).await
}

fn answer(
    health: &Health,
    access: Access,
    status: HealthStatus,
    parts: Vec<HealthPart>,
) -> Response {
    let body = match access {
        Access::Full => HealthBody {
            status,
            draining: Some(health.is_draining()),
            parts: Some(parts),
        },
        Access::StatusOnly => HealthBody {
            status,
            draining: None,
            parts: None,
        },
    };
    let code = match status {
        HealthStatus::Up | HealthStatus::Degraded => StatusCode::OK,
        HealthStatus::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Extension(OwnBody), Json(body)).into_response()
}
