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

mod batch_guard;
mod engine;
#[cfg(feature = "http")]
mod http;
#[cfg(test)]
mod interleavings;
mod logger;
mod logger_id;
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
mod timers;
mod trace_context;
mod writer;

pub use api::{Api, ApiAnswer, ApiFailure, EventOutcome, Payload, Sending};
pub use config::{ConfigError, LoggerConfig, LoggerConfigBuilder, OnFull, SyncMode};
pub use engine::LossCallback;
pub use event::{
    DecodeError, Decoded, Defaults, Event, Extras, FieldProblem, Json, ParseJsonError,
    ProcessStatus, Properties, StepStatus, Text,
};
#[cfg(feature = "http")]
pub use http::{
    Authentication, ClientCredentials, HttpApi, HttpApiBuilder, HttpApiError, RESPONSE_LIMIT,
    ResponseBody, classify,
};
pub use logger::{Logger, LoggerHealth};
pub use logger_id::LoggerId;
pub use loss::{Loss, reason};
pub use process::{Called, EventSink, ProcessLogger, ProcessTemplate, Refused};
pub use running::{RunningLogger, StartError};
pub use task::{LoggerReport, LoggerTask};
pub use telemetry::Metrics;
pub use tidegate_core::{HexId, ParseTraceError, SpanId, TraceId, Traceparent};
pub use trace_context::TraceContext;

/// The guide, whose example must compile; it is not run, because it needs an API.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../../../docs/guides/logger.md")]
struct Guide;
