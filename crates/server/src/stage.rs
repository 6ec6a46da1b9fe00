//! The routes of the stages of this process.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_stage::Stage;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as routed;

use crate::parameters::{PathParameters, QueryParameters};
use crate::{ApiProblem, IdempotencyKeys, ProblemCode, Routes};

/// The stages behind the routes.
#[derive(Debug, Clone)]
pub struct StageApi {
    /// The stages.
    pub stages: Vec<Stage>,
    /// Where the answers to repeated requests are kept. Without it a request with an `Idempotency-Key` is
    /// refused.
    pub keys: Option<IdempotencyKeys>,
}

/// The routes of the stages.
#[must_use]
pub fn stage_routes(api: StageApi) -> Routes {
    let keys = api.keys.clone();
    let router = OpenApiRouter::new()
        .routes(routed!(list))
        .routes(routed!(show))
        .routes(routed!(pending))
        .routes(routed!(checkpoint))
        .routes(routed!(drain))
        .routes(routed!(state))
        .with_state(Arc::new(api));
    Routes::from(router).idempotent(keys)
}

impl StageApi {
    fn stage(&self, name: &str) -> Result<&Stage, ApiProblem> {
        let found = self.stages.iter().find(|stage| stage.name() == name);
        found.ok_or_else(|| {
            let text = format!("this process has no stage `{name}`");
            ApiProblem::new(ProblemCode::NotFound, text).with("stage", name)
        })
    }
}

/// The stages with their states and counts.
#[utoipa::path(get, path = "/tidegate/stages", tag = "stages",
    responses((status = 200, description = "Every stage of this process.", body = Value)))]
async fn list(State(api): State<Arc<StageApi>>) -> Json<Value> {
    let stages: Vec<_> = api.stages.iter().map(Stage::status).collect();
    Json(json!({ "stages": stages }))
}

/// One stage with its tasks.
#[utoipa::path(get, path = "/tidegate/stages/{process}", tag = "stages",
    params(("process" = String, Path, description = "The process.", example = "loan_enrich")),
    responses(
        (status = 200, description = "The stage.", body = Value),
        (status = 404, description = "There is no such stage.", body = ApiProblem),
))]
async fn show(
    State(api): State<Arc<StageApi>>,
    PathParameters(process): PathParameters<String>,
) -> Result<Json<Value>, ApiProblem> {
    Ok(Json(json!(api.stage(&process)?.status())))
}

/// The records that wait in the tasks that run here, the soonest first.
#[utoipa::path(get, path = "/tidegate/stages/{process}/pending", tag = "stages",
    params(("process" = String, Path, description = "The process.", example = "auth_match")),
    responses(
        (status = 200, description = "The first 1,000 of them, and how many there are.", body = Value),
        (status = 404, description = "There is no such stage.", body = ApiProblem),
))]
async fn pending(
    State(api): State<Arc<StageApi>>,
    PathParameters(process): PathParameters<String>,
) -> Result<Json<Value>, ApiProblem> {
    let pending = api.stage(&process)?.pending().await;
    let time = |ms: i64| tidegate_core::iso_time(u64::try_from(ms).unwrap_or(0));
    let shown = pending.iter().take(1_000).map(|record| {
        json!({
            "id": record.id, "step": record.step, "key": record.key, "since": time(record.since_ms),
            "due": time(record.due_ms),
        })
    });
    Ok(Json(
        json!({ "count": pending.len(), "pending": shown.collect::<Vec<Value>>() }),
    ))
}

/// Takes a checkpoint of a stage now. Records flow meanwhile.
#[utoipa::path(post, path = "/tidegate/stages/{process}/checkpoint", tag = "stages",
    params(
        ("process" = String, Path, description = "The process.", example = "loan_enrich"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    responses(
        (status = 200, description = "The checkpoint that was taken.", body = Value),
        (status = 400, description = "The key is invalid, or no database is there for keys.", body = ApiProblem),
        (status = 404, description = "There is no such stage.", body = ApiProblem),
        (status = 409, description = "The key was used for another request.", body = ApiProblem),
        (status = 503, description = "It was not taken, or the first request with the key has not answered.", body = ApiProblem),
))]
async fn checkpoint(
    State(api): State<Arc<StageApi>>,
    PathParameters(process): PathParameters<String>,
) -> Result<Json<Value>, ApiProblem> {
    let taken = api.stage(&process)?.checkpoint().await;
    let manifest = taken.map_err(|failure| {
        ApiProblem::new(ProblemCode::Unavailable, failure.to_string())
            .with("code", failure.code.as_str())
    })?;
    Ok(Json(json!(manifest)))
}

/// Lets a stage finish what it has, and end. It starts again with its process.
#[utoipa::path(post, path = "/tidegate/stages/{process}/drain", tag = "stages",
    params(
        ("process" = String, Path, description = "The process.", example = "loan_enrich"),
        ("Idempotency-Key" = Option<String>, Header, description = "The name of this request, for repeats."),
    ),
    responses(
        (status = 200, description = "The stage, which ends now.", body = Value),
        (status = 400, description = "The key is invalid, or no database is there for keys.", body = ApiProblem),
        (status = 404, description = "There is no such stage.", body = ApiProblem),
        (status = 409, description = "The key was used for another request.", body = ApiProblem),
        (status = 503, description = "The first request with the key has not answered.", body = ApiProblem),
))]
async fn drain(
    State(api): State<Arc<StageApi>>,
    PathParameters(process): PathParameters<String>,
) -> Result<Json<Value>, ApiProblem> {
    let stage = api.stage(&process)?;
    stage.drain();
    Ok(Json(json!(stage.status())))
}

/// The part of a state that is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StateQuery {
    /// One key; without it, the first 1,000.
    key: Option<String>,
}

/// The values of a declared state in the tasks that run here.
#[utoipa::path(get, path = "/tidegate/stages/{process}/state/{name}", tag = "stages",
    params(
        ("process" = String, Path, description = "The process.", example = "order_totals"),
        ("name" = String, Path, description = "The state.", example = "total"),
        StateQuery,
    ),
    responses(
        (status = 200, description = "The values by key, and how many there are.", body = Value),
        (status = 404, description = "There is no such stage.", body = ApiProblem),
))]
async fn state(
    State(api): State<Arc<StageApi>>,
    PathParameters((process, name)): PathParameters<(String, String)>,
    QueryParameters(query): QueryParameters<StateQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let mut values = api.stage(&process)?.values(&name).await;
    if let Some(key) = &query.key {
        values.retain(|found, _| found == key);
    }
    let shown = values.iter().take(1_000).map(|(key, value)| {
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        (key.clone(), value)
    });
    let shown: serde_json::Map<String, Value> = shown.collect();
    Ok(Json(json!({ "count": values.len(), "values": shown })))
}
