//! The books.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tidegate_core::books::Ledger;

use super::{Api, wire};
use crate::{Problem, ProblemCode, ledger, telemetry};

/// Where every event of every component is.
#[utoipa::path(get, path = "/tidegate/ledger", tag = "server", responses(
    (status = 200, description = "The accounts of all components.", body = wire::Ledger),
    (status = 503, description = "The books of a component could not be read.", body = Problem),
))]
pub(crate) async fn ledger(State(api): State<Arc<Api>>) -> Result<Json<Ledger>, Problem> {
    let sources = &api.sources;
    let read = ledger::read(sources.clock.as_ref(), &sources.accounts).await;
    read.map(Json).map_err(|error| {
        telemetry::ledger_unavailable(&error);
        Problem::new(ProblemCode::LedgerUnavailable, error.to_string())
    })
}
