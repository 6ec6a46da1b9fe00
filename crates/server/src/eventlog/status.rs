//! Whether the API is there, its version, and the debug endpoint.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EventLogApi;
use super::problem::EventLogProblem;
use super::reads::read;
use crate::problem::OwnBody;

type Api = State<Arc<EventLogApi>>;

/// Whether the API is there.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Healthcheck {
    /// `ok` or `not_ready`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// Whether the process answers.
#[utoipa::path(get, path = "/v1/healthcheck", tag = "eventlog", security(()), responses(
    (status = 200, description = "It does.", body = Healthcheck),
))]
pub(super) async fn healthcheck() -> Json<Healthcheck> {
    Json(Healthcheck { status: "ok" })
}

/// Whether the store answers within three seconds.
#[utoipa::path(get, path = "/v1/healthcheck/ready", tag = "eventlog", security(()), responses(
    (status = 200, description = "It does.", body = Healthcheck),
    (status = 503, description = "It does not.", body = Healthcheck),
))]
pub(super) async fn ready(State(api): Api) -> Response {
    if api.log.is_ready().await {
        return Json(Healthcheck { status: "ok" }).into_response();
    }
    let body = Json(Healthcheck {
        status: "not_ready",
    });
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    response.extensions_mut().insert(OwnBody);
    response
}

/// The version of the API.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VersionBody {
    /// The version.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The build.
    #[schema(example = "x86_64-linux")]
    build: String,
}

/// The version and the build.
#[utoipa::path(get, path = "/v1/version", tag = "eventlog", responses(
    (status = 200, description = "The version.", body = VersionBody),
))]
pub(super) async fn version(State(api): Api) -> Json<VersionBody> {
    Json(VersionBody {
        version: api.version,
        build: api.build.clone(),
    })
}

/// The word that everything may go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"confirm": true}))]
pub(super) struct ClearBody {
    /// Must be true.
    confirm: bool,
}

/// Removes all events, links and processes.
#[utoipa::path(post, path = "/v1/debug/events/clear", tag = "eventlog",
    params(("Idempotency-Key" = Option<String>, Header, description = "The key of the request.")),
    request_body = ClearBody,
    responses(
        (status = 204, description = "Everything is removed."),
        (status = 400, description = "It was not confirmed.", body = EventLogProblem),
        (status = 409, description = "The key was used before.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 503, description = "The store is away, or the first request with the key has not answered.", body = EventLogProblem),
))]
pub(super) async fn clear(
    State(api): Api,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, EventLogProblem> {
    let asked: ClearBody = read(&headers, &body)?;
    if !asked.confirm {
        let field = ("confirm".to_owned(), "must be true".to_owned());
        return Err(EventLogProblem::invalid([field]));
    }
    api.log.clear().await?;
    Ok(StatusCode::NO_CONTENT)
}
