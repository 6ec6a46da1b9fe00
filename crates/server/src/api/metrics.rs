//! The metrics, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::Api;
use crate::{Exporter, components, telemetry};

/// The version of the text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics in the text format of Prometheus.
///
/// When the books cannot be read, the families of the ledger are left out: old numbers would look
/// like new ones.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "The metrics.", body = String, content_type = "text/plain"),
))]
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let sources = &api.sources;
    let books = match components::ledger(sources.clock.as_ref(), &sources.components).await {
        Ok(ledger) => components::render(&ledger),
        Err(error) => {
            telemetry::ledger_unavailable(&error);
            String::new()
        }
    };
    let recorded = sources
        .exporter
        .as_ref()
        .map(Exporter::render)
        .unwrap_or_default();
    ([(CONTENT_TYPE, TEXT)], books + &recorded)
}
