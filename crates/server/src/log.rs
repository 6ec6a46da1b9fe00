//! The routes of a log, for commands that find its directory held by this process.

mod administration;
mod routes;

use std::sync::Arc;

use tidegate_core::EventIds;
use tidegate_log::{Log, LogAdmin};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as routed;

use crate::{IdempotencyKeys, Routes};

/// The log behind the routes.
#[derive(Debug, Clone)]
pub struct LogApi {
    /// The log.
    pub log: Arc<dyn Log>,
    /// The same log, for what operators do.
    pub admin: Arc<dyn LogAdmin>,
    /// Where events that come without an id get theirs.
    pub ids: EventIds,
    /// The largest record that any topic takes.
    pub max_record_size: u64,
    /// Where the answers to repeated requests are kept. Without it a request with an `Idempotency-Key` is
    /// refused.
    pub keys: Option<IdempotencyKeys>,
}

/// The routes of a log.
#[must_use]
pub fn log_routes(api: LogApi) -> Routes {
    /// The bytes around a record in a body.
    const AROUND: u64 = 64 * 1024;
    // Each byte of a record is written as six at most.
    let longest = api.max_record_size.saturating_mul(6).saturating_add(AROUND);
    let keys = api.keys.clone();
    let router = OpenApiRouter::new()
        .routes(routed!(routes::list_topics))
        .routes(routed!(administration::list_groups))
        .routes(routed!(
            routes::describe_topic,
            routes::append_records,
            administration::create_topic,
            administration::remove_topic
        ))
        .routes(routed!(
            administration::describe_group,
            administration::forget_group
        ))
        .routes(routed!(administration::seek_group))
        .routes(routed!(routes::read_records))
        .with_state(Arc::new(api));
    let routes = Routes::from(router).idempotent(keys);
    routes.with_max_body(usize::try_from(longest).unwrap_or(usize::MAX))
}
