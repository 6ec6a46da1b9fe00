//! The metrics, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use tidegate_core::HealthStatus;

use super::{Api, probes};
use crate::{Exporter, components, telemetry};

/// The version of the text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Whether `/readyz` answers 200, so that dashboards need no probe of their own.
const READY: &str = "tidegate_ready";

/// All metrics in the text format of Prometheus.
///
/// When the books cannot be read, the families of the ledger are left out: old numbers would look
/// like new ones.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "The metrics.", body = String, content_type = "text/plain"),
))]
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let sources = &api.sources;
    let ledger = components::ledger(sources.clock.as_ref(), &sources.components);
    let (ledger, (status, _)) = tokio::join!(ledger, probes::readiness(&sources.health));
    let books = match ledger {
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
    ([(CONTENT_TYPE, TEXT)], books + &ready(status) + &recorded)
}

fn ready(status: HealthStatus) -> String {
    let value = match status {
        HealthStatus::Up | HealthStatus::Degraded => 1,
        HealthStatus::Down => 0,
    };
    let help = "Whether requests should be sent here: 1 while /readyz answers 200.";
    format!("# HELP {READY} {help}\n# TYPE {READY} gauge\n{READY} {value}\n\n")
}
