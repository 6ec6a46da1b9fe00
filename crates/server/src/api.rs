//! The routes of the server itself. Those of other parts are merged in by
//! [`ServerBuilder::routes`](crate::ServerBuilder::routes).

mod components;
mod document;
mod index;
mod metrics;
mod probes;
pub(crate) mod wire;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::Uri;
use tidegate_core::Component;
use tidegate_core::env::Clock;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{ApiProblem, Exporter, Health, ProblemCode};

/// The refusals of the guard, as far as the OpenAPI document tells them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusals {
    /// Requests without the token.
    pub(crate) has_token: bool,
    /// Requests that change something.
    pub(crate) is_read_only: bool,
}

/// The sources of the handlers.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) refusals: Refusals,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Health,
    pub(crate) exporter: Option<Exporter>,
    /// In the order in which events pass through them.
    pub(crate) components: Vec<Arc<dyn Component>>,
}

/// The state of the routes.
#[derive(Debug)]
struct Api {
    sources: Sources,
    /// The OpenAPI document, written out once: it does not change while the server runs.
    document: Bytes,
}

/// The router of all routes: ours, and `others`.
pub(crate) fn router(sources: Sources, others: Vec<OpenApiRouter>) -> Router {
    let ours = OpenApiRouter::with_openapi(document::base(sources.refusals))
        .routes(routes!(index::index))
        .routes(routes!(probes::livez))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::health))
        .routes(routes!(probes::actuator_health))
        .routes(routes!(probes::actuator_liveness))
        .routes(routes!(probes::actuator_readiness))
        .routes(routes!(metrics::metrics))
        .routes(routes!(components::ledger))
        .routes(routes!(components::audit))
        .routes(routes!(components::accepted))
        .routes(routes!(components::locate))
        .routes(routes!(document::openapi));
    let merged = others
        .into_iter()
        .fold(ours, |all, other| all.merge(other.with_state(())));
    let (router, openapi) = merged.split_for_parts();
    let document = document::write(openapi, sources.refusals);
    router
        .fallback(not_found)
        .with_state(Arc::new(Api { sources, document }))
}

async fn not_found(uri: Uri) -> ApiProblem {
    ApiProblem::new(ProblemCode::NotFound, "there is no such route").with("path", uri.path())
}
