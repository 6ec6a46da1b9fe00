//! The routes of the Event Log API, under `/v1`.

mod catalog;
mod posts;
mod problem;
mod reads;
mod schema;
mod status;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use tidegate_core::env::Clock;
use tidegate_eventlog::EventLog;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as routed;

use crate::Routes;
use crate::idempotency::{self, IdempotencyKeys};
pub(crate) use problem::in_its_form;

/// The event log behind the routes.
#[derive(Debug, Clone)]
pub struct EventLogApi {
    /// The event log.
    pub log: EventLog,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// The version that `/v1/version` tells.
    pub version: &'static str,
    /// The build that it tells: target and profile.
    pub build: String,
}

/// Whether a path belongs to the Event Log API, whose failures have a form of their own.
pub(crate) fn is_path(path: &str) -> bool {
    path.starts_with("/v1/")
}

/// The routes of the Event Log API.
#[must_use]
pub fn event_log_routes(api: EventLogApi) -> Routes {
    let options = api.log.options();
    let keys = Arc::new(IdempotencyKeys {
        store: api.log.store().clone(),
        clock: Arc::clone(&api.clock),
        ttl: options.idempotency_ttl,
    });
    let has_debug = options.debug;
    let api = Arc::new(api);
    // A single event has its own key, which lives as long as the event.
    let mut keyed = OpenApiRouter::new()
        .routes(routed!(posts::post_batch))
        .routes(routed!(catalog::upsert_link))
        .routes(routed!(catalog::define_process, catalog::list_processes));
    if has_debug {
        keyed = keyed.routes(routed!(status::clear));
    }
    let keyed = keyed.layer(from_fn_with_state(keys, idempotency::pass));
    let router = OpenApiRouter::new()
        .routes(routed!(posts::post_event))
        .routes(routed!(reads::batch))
        .routes(routed!(reads::batch_summary))
        .routes(routed!(reads::account))
        .routes(routed!(reads::account_summary))
        .routes(routed!(reads::correlation))
        .routes(routed!(reads::trace))
        .routes(routed!(reads::lookup))
        .routes(routed!(reads::search))
        .routes(routed!(reads::traces))
        .routes(routed!(reads::stats))
        .routes(routed!(catalog::find_link))
        .routes(routed!(status::healthcheck))
        .routes(routed!(status::ready))
        .routes(routed!(status::version))
        .merge(keyed)
        .with_state(api);
    Routes::from(router)
}
