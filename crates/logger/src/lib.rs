#![doc = include_str!("../README.md")]
#![cfg_attr(
    test,
    allow(
        clippy::duplicate_mod,
        reason = "`interleavings` plays the same files with other locks"
    )
)]

mod api;
mod config;
mod event;
mod hand;
mod held;
#[cfg(feature = "http")]
mod http;
mod hub;
#[cfg(test)]
mod interleavings;
mod keeper;
mod logger;
mod loss;
mod process;
mod replayer;
mod running;
mod sender;
mod setters;
pub mod spill;
mod spilling;
mod state;
mod sync;
mod task;
mod telemetry;
mod trace_context;
mod writer;

pub use api::{Answer, Api, ApiFailure, Judgment, Payload, Sending};
pub use config::{ConfigError, LoggerConfig, LoggerConfigBuilder, OnFull, SyncMode};
pub use event::{
    DecodeError, Decoded, Defaults, Event, EventStatus, Extras, FieldProblem, Json, ParseJsonError,
    ProcessStatus, Properties, Text,
};
#[cfg(feature = "http")]
pub use http::{
    Authentication, ClientCredentials, HttpApi, HttpApiBuilder, HttpApiError, RESPONSE_LIMIT,
    ResponseBody, classify,
};
pub use hub::LossCallback;
pub use logger::{Logger, LoggerHealth, Metrics};
pub use loss::{Loss, reason};
pub use process::{Called, EventSink, ProcessLogger, ProcessTemplate, Refused};
pub use running::{RunningLogger, StartError};
pub use task::{LoggerTask, Report};
pub use trace_context::{ParseTraceError, SpanId, TraceContext, TraceId, Traceparent};

/// The guide, whose example must compile; it is not run, because it needs an API.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../../../docs/guides/logger.md")]
struct Guide;
