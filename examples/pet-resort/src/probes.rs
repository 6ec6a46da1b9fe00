//! Whether the resort is alive and ready, for orchestrators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tidegate_logger::{Logger, LoggerHealth};

/// The facts that the probes tell.
#[derive(Debug, Clone)]
pub struct Probes {
    logger: Logger,
    is_stopping: Arc<AtomicBool>,
}

impl Probes {
    /// The probes of a service that logs with `logger`.
    #[must_use]
    pub fn new(logger: Logger) -> Self {
        Self {
            logger,
            is_stopping: Arc::default(),
        }
    }

    /// Says that the service is about to stop: it is not ready from now on.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// The routes: `/livez`, `/readyz`, `/health`, and the names that other tools know.
    pub fn router(self) -> Router {
        Router::new()
            .route("/livez", get(alive))
            .route("/actuator/health/liveness", get(alive))
            .route("/health", get(health))
            .route("/actuator/health", get(health))
            .route("/readyz", get(ready))
            .route("/actuator/health/readiness", get(ready))
            .with_state(self)
    }
}

/// A process that answers is alive.
async fn alive() -> Response {
    status("UP", None)
}

/// Without the Event Log API events wait on the disk, which is no reason to send guests away. Without the
/// disk new ones would be refused.
async fn ready(State(probes): State<Probes>) -> Response {
    if probes.is_stopping.load(Ordering::Relaxed) {
        return status("DOWN", Some("the service is stopping"));
    }
    health(State(probes)).await
}

/// How the logger is, also while the service stops.
async fn health(State(probes): State<Probes>) -> Response {
    match probes.logger.health() {
        LoggerHealth::Up => status("UP", None),
        LoggerHealth::Degraded(why) => status("DEGRADED", Some(&why)),
        LoggerHealth::System(why) => status("DOWN", Some(&why)),
    }
}

fn status(status: &str, why: Option<&str>) -> Response {
    let code = match status {
        "DOWN" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    (code, Json(json!({ "status": status, "why": why }))).into_response()
}
