//! Correlation links and process definitions.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tidegate_eventlog::{CorrelationLink, EventLogError, NewProcess, ProcessDefinition};
use tidegate_store::idempotency::KeyClaim;
use utoipa::IntoParams;

use super::EventLogApi;
use super::problem::EventLogProblem;
use super::reads::read;
use super::schema::{
    CorrelationLinkSchema, NewProcessSchema, ProcessDefinitionSchema, ProcessListSchema,
};
use crate::parameters::{PathParameters, QueryParameters};

type Api = State<Arc<EventLogApi>>;

/// Links a correlation to an account, or changes its link.
#[utoipa::path(post, path = "/v1/correlation-links", tag = "eventlog",
    params(("Idempotency-Key" = Option<String>, Header, description = "The key of the request.")),
    request_body = CorrelationLinkSchema,
    responses(
        (status = 201, description = "The link.", body = CorrelationLinkSchema),
        (status = 400, description = "The link is invalid.", body = EventLogProblem),
        (status = 409, description = "The key was used before.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 503, description = "The store is away, or the first request with the key has not answered.", body = EventLogProblem),
))]
pub(super) async fn upsert_link(
    State(api): Api,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<CorrelationLink>), EventLogProblem> {
    let link: CorrelationLink = read(&headers, &body)?;
    Ok((StatusCode::CREATED, Json(api.log.link(link).await?)))
}

/// The link of a correlation.
#[utoipa::path(get, path = "/v1/correlation-links/{id}", tag = "eventlog",
    params(("id" = String, Path, description = "The correlation.")),
    responses(
        (status = 200, description = "The link.", body = CorrelationLinkSchema),
        (status = 404, description = "It is not linked.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn find_link(
    State(api): Api,
    PathParameters(id): PathParameters<String>,
) -> Result<Json<CorrelationLink>, EventLogProblem> {
    Ok(Json(api.log.find_link(&id).await?))
}

/// Defines a process.
#[utoipa::path(post, path = "/v1/processes", tag = "eventlog",
    params(("Idempotency-Key" = Option<String>, Header, description = "The key of the request.")),
    request_body = NewProcessSchema,
    responses(
        (status = 201, description = "The process.", body = ProcessDefinitionSchema),
        (status = 400, description = "The definition is invalid.", body = EventLogProblem),
        (status = 409, description = "The name is taken.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 503, description = "The store is away, or the first request with the key has not answered.", body = EventLogProblem),
))]
pub(super) async fn define_process(
    State(api): Api,
    claim: Option<Extension<KeyClaim>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<ProcessDefinition>), EventLogProblem> {
    let process: NewProcess = read(&headers, &body)?;
    let is_retry = claim.is_some_and(|Extension(claim)| claim.is_retry());
    let made = match api.log.define_process(process.clone()).await {
        // The request died between its work and its answer, so its own process has the name.
        Err(EventLogError::NameTaken { name }) if is_retry => {
            let defined = api.log.processes(None).await?;
            let own = defined.into_iter().find(|made| made.process == process);
            own.ok_or(EventLogError::NameTaken { name })?
        }
        made => made?,
    };
    Ok((StatusCode::CREATED, Json(made)))
}

/// Which processes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ProcessParams {
    /// Only those that are in use, or only the others.
    is_active: Option<bool>,
}

/// The processes that are defined.
#[derive(Debug, Serialize)]
pub(super) struct ProcessList {
    processes: Vec<ProcessDefinition>,
}

/// The processes that are defined, by name.
#[utoipa::path(get, path = "/v1/processes", tag = "eventlog", params(ProcessParams), responses(
    (status = 200, description = "The processes.", body = ProcessListSchema),
    (status = 400, description = "The request is invalid.", body = EventLogProblem),
    (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn list_processes(
    State(api): Api,
    QueryParameters(asked): QueryParameters<ProcessParams>,
) -> Result<Json<ProcessList>, EventLogProblem> {
    let processes = api.log.processes(asked.is_active).await?;
    Ok(Json(ProcessList { processes }))
}
