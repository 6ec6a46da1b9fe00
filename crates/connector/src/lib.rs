#![doc = include_str!("../README.md")]

mod attempt;
mod binding;
mod books;
mod built_in;
mod classify;
mod commit;
mod component;
mod connector;
mod consumer;
mod decide;
mod dlt;
mod error;
#[cfg(feature = "config")]
mod from_config;
mod gate;
mod gauges;
mod handler;
mod hop;
#[cfg(feature = "http")]
mod http;
mod ladder;
mod lanes;
mod lifecycle;
mod marks;
mod options;
pub mod parked;
mod planted_bugs;
mod progress;
mod rules;
mod signal;
mod span;
mod status;
pub mod telemetry;
mod topics;
mod tracker;

pub use binding::Binding;
pub use books::{BindingBooks, CommitMarks};
pub use built_in::{ForwardHandler, LogHandler};
pub use classify::{ClassifierCodes, ClassifierFn, ExceptionRouting};
pub use component::ConnectorComponent;
pub use connector::{BindingView, Connector};
pub use dlt::DltRecord;
pub use error::ConnectorError;
pub use handler::{
    BatchRecordHandler, BoundHandler, ConsumedRecord, HandlerAnswer, HandlerFailure, RecordHandler,
};
#[cfg(feature = "http")]
pub use http::{HttpHandler, http_failure};
pub use lifecycle::{ContainerState, LifecycleCommand};
pub use options::{
    AckMode, BatchFailureStrategy, BindingOptions, BreakerOptions, ConcurrencyMode, DltOptions,
    DltStrategy, DltVerify, HandOff, KeyExhausted, KeyOrderedOptions, ListenerType, OrderingMode,
    PayloadFormat, RetryOptions, StrictExhausted, Tier0Options, TierOptions,
};
#[cfg(feature = "planted-bugs")]
pub use planted_bugs::{PlantedBug, plant};
