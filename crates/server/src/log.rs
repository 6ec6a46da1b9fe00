//! The routes of a log: for the commands that find its directory held by this process, and for
//! whoever wants to look without a client of its own.

mod routes;
mod wire;

use std::fmt;
use std::sync::Arc;

use tidegate_core::books::Audit;
use tidegate_core::{EventId, EventIds};
use tidegate_log::{Call, Log};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as routed;

pub use wire::{
    Header, Located, NewRecord, NewRecords, Octets, PartitionRange, Placed, PlacedRecords,
    ReadRecord, ReadRecords, Sighting, TopicNames, TopicShown,
};

/// Whoever can count the events of a log, and find one.
pub trait Witness: Send + Sync + fmt::Debug {
    /// Counts every topic and compares that with the books, at one cut where the log can. It
    /// changes nothing, and may be canceled.
    fn audit(&self) -> Call<'_, Audit>;

    /// Where an event is; none if no topic has it. It changes nothing, and may be canceled.
    fn find(&self, id: EventId) -> Call<'_, Option<Located>>;
}

/// What the routes of a log need.
#[derive(Debug, Clone)]
pub struct LogDesk {
    /// The log.
    pub log: Arc<dyn Log>,
    /// Where events that come without an id get theirs.
    pub ids: EventIds,
    /// Who counts.
    pub witness: Arc<dyn Witness>,
}

/// The routes of a log, for [`ServerBuilder::routes`](crate::ServerBuilder::routes).
#[must_use]
pub fn log_routes(desk: LogDesk) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routed!(routes::list_topics))
        .routes(routed!(routes::describe_topic, routes::append_records))
        .routes(routed!(routes::read_records))
        .routes(routed!(routes::audit))
        .routes(routed!(routes::locate))
        .with_state(Arc::new(desk))
}
