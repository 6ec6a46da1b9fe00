//! The books, the audit and the search, over all components.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tidegate_core::books::{AcceptedEvents, Audit, Ledger};
use tidegate_core::{Component, EventId, EventTrace, Failure, audit_components};
use utoipa::IntoParams;

use super::{Api, wire};
use crate::parameters::{PathParameters, QueryParameters};
use crate::{ApiProblem, ProblemCode, components, telemetry};

/// Where every event of every component is.
#[utoipa::path(get, path = "/tidegate/ledger", tag = "server", responses(
    (status = 200, description = "The accounts of all components.", body = wire::LedgerSchema),
    (status = 503, description = "The books of a component could not be read.", body = ApiProblem),
))]
pub(crate) async fn ledger(State(api): State<Arc<Api>>) -> Result<Json<Ledger>, ApiProblem> {
    let sources = &api.sources;
    let read = components::ledger(sources.clock.as_ref(), &sources.components).await;
    read.map(Json).map_err(|error| {
        telemetry::ledger_unavailable(&error);
        ApiProblem::new(ProblemCode::LedgerUnavailable, error.to_string())
    })
}

/// Which components are asked.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ComponentQuery {
    /// The one of this name; left out, all of them.
    component: Option<String>,
}

/// Counts the events of all components where they are, and compares that with the books. Events that one
/// component delivered are looked for in the books of the next.
#[utoipa::path(get, path = "/tidegate/audit", tag = "server", params(ComponentQuery), responses(
    (status = 200, description = "What was found.", body = wire::AuditSchema),
    (status = 404, description = "There is no such component.", body = ApiProblem),
    (status = 503, description = "A component cannot be counted now.", body = ApiProblem),
))]
pub(crate) async fn audit(
    State(api): State<Arc<Api>>,
    QueryParameters(asked): QueryParameters<ComponentQuery>,
) -> Result<Json<Audit>, ApiProblem> {
    let audit = audit_components(&api.asked(&asked)?, &api.sources.components).await;
    audit.map(Json).map_err(unavailable)
}

/// How many events all components have accepted, by bucket, for a witness that is kept elsewhere.
#[utoipa::path(get, path = "/tidegate/accepted", tag = "server", params(ComponentQuery), responses(
    (status = 200, description = "The numbers.", body = Vec<wire::AcceptedEventsSchema>),
    (status = 404, description = "There is no such component.", body = ApiProblem),
    (status = 503, description = "The books of a component cannot be read now.", body = ApiProblem),
))]
pub(crate) async fn accepted(
    State(api): State<Arc<Api>>,
    QueryParameters(asked): QueryParameters<ComponentQuery>,
) -> Result<Json<Vec<AcceptedEvents>>, ApiProblem> {
    let mut all = Vec::new();
    for component in api.asked(&asked)? {
        all.extend(component.accepted().await.map_err(unavailable)?);
    }
    Ok(Json(all))
}

/// Says where an event is.
#[utoipa::path(get, path = "/tidegate/where/{id}", tag = "server",
    params(
        ("id" = String, Path, description = "The id of the event.",
            pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", example = "019a8f3e-5c00-7abc-8def-0123456789ab"),
        ComponentQuery,
    ),
    responses(
        (status = 200, description = "Where it is.", body = wire::EventTraceSchema),
        (status = 404, description = "No component has it.", body = ApiProblem),
        (status = 503, description = "A component cannot be searched now.", body = ApiProblem),
))]
pub(crate) async fn locate(
    State(api): State<Arc<Api>>,
    PathParameters(id): PathParameters<String>,
    QueryParameters(asked): QueryParameters<ComponentQuery>,
) -> Result<Json<EventTrace>, ApiProblem> {
    let id: EventId = id
        .parse()
        .map_err(|error| ApiProblem::new(ProblemCode::BadRequest, format!("{error}")))?;
    let trace = components::locate(api.asked(&asked)?.into_iter(), id).await;
    trace.map_err(unavailable)?.map(Json).ok_or_else(|| {
        let message = format!("no component has event {id}");
        ApiProblem::new(ProblemCode::WhereUnknown, message)
    })
}

impl Api {
    fn asked(&self, asked: &ComponentQuery) -> Result<Vec<&Arc<dyn Component>>, ApiProblem> {
        let all = self.sources.components.iter();
        let Some(name) = &asked.component else {
            return Ok(all.collect());
        };
        let found: Vec<_> = all.filter(|component| component.name() == name).collect();
        match found.is_empty() {
            true => Err(ApiProblem::new(
                ProblemCode::NotFound,
                format!("there is no component `{name}`"),
            )),
            false => Ok(found),
        }
    }
}

fn unavailable(failure: Failure) -> ApiProblem {
    let problem = ApiProblem::new(ProblemCode::Unavailable, failure.message);
    problem.with("cause", failure.code.as_str())
}
