#![doc = include_str!("../README.md")]

mod event;
mod handler;
mod tx;

mod decide;
mod dispatch;
mod projection;
mod queue;
mod upkeep;

pub mod limit;
pub mod port;
pub mod sql;
pub mod telemetry;

mod account;
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

pub use component::QueueComponent;
pub use decide::{EventFacts, OnFatal, Policy, Unhandled, decide, to_call};
pub use dispatch::{
    AlreadyRegistered, DispatchReport, Dispatcher, DispatcherBuilder, DispatcherHandle,
    DispatcherHealth, DispatcherOptions, RegisterError,
};
pub use error::QueueError;
pub use event::{NewEvent, QueueEvent};
pub use handler::{Context, Delivery, Handled, Handler, RawEvent};
pub use projection::{
    Projection, ProjectionBuilder, ProjectionFuture, ProjectionState, Projector, ProjectorOptions,
    Rebuild, RebuildError, Target,
};
pub use queue::{Queue, Wake};
pub use tx::Tx;
pub use upkeep::{Upkeep, UpkeepOptions};
