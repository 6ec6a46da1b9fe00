#![doc = include_str!("../README.md")]

mod event;

mod error;
mod options;
mod page;
mod query;

mod event_log;
mod ingest;
mod rate;
mod recount;
mod summary;
mod upkeep;

mod catalog;
pub mod limit;
pub mod sql;
pub mod telemetry;

mod component;
#[cfg(feature = "config")]
mod from_config;

pub use catalog::{CorrelationLink, NewProcess, ProcessDefinition};
pub use component::EventLogComponent;
pub use error::EventLogError;
pub use event::{InvalidEvent, PostOrigin, PostedEvent, StoredEvent, words};
pub use event_log::EventLog;
pub use ingest::{BatchAnswer, BatchProblem, PostAnswer};
pub use options::EventLogOptions;
pub use page::{EventPage, PageCursor, PageRequest};
pub use query::{AccountQuery, LookupQuery, TextQuery, TimeWindow, TraceQuery};
pub use summary::{
    AccountSummary, BatchEvents, BatchSummary, CorrelationEvents, DashboardStats, TraceEvents,
    TracePage, TraceRow,
};
