#![doc = include_str!("../README.md")]

mod dead_letter;
mod decide;
mod event;
mod options;
mod outbox;
mod record;

mod relay;

pub mod port;
pub mod sql;
pub mod telemetry;

mod closure;
mod component;
mod error;
#[cfg(feature = "config")]
mod from_config;
mod recount;

#[cfg(feature = "model")]
#[expect(clippy::unwrap_used, reason = "these are the bodies of tests")]
pub mod conformance;
#[cfg(feature = "model")]
pub mod model;

pub use component::OutboxComponent;
pub use decide::{PublishFacts, PublishOutcome, RowFate, decide};
pub use error::OutboxError;
pub use event::NewOutboxEvent;
pub use options::{EventOrder, OnExhausted, OutboxOptions};
pub use outbox::Outbox;
pub use port::{
    OutboxFilter, OutboxRow, OutboxStats, OutboxStatus, OutboxStore, PurgeRequest, RowSelection,
};
pub use recount::OutboxRecount;
pub use relay::{Relay, RelayReport, RelayStatus};
pub use sql::{migrate, migration_sql, pending};
