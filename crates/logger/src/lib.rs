//! Tidegate's event client.

mod api;
mod event;
mod loss;
pub mod spill;
#[cfg(feature = "http")]
mod http;
mod process;
mod trace_context;

pub use loss::{Loss, reason};
pub use api::{Answer, Api, ApiFailure, Judgment, Payload, Sending};
pub use event::{
    DecodeError, Decoded, Defaults, Event, EventStatus, Extras, FieldProblem, Json, ParseJsonError,
    ProcessStatus, Properties, Text,
};
#[cfg(feature = "http")]
pub use http::{
    Authentication, ClientCredentials, HttpApi, HttpApiBuilder, HttpApiError, RESPONSE_LIMIT,
    ResponseBody, classify,
};
pub use process::{Called, EventSink, ProcessLogger, ProcessTemplate, Refused};
pub use trace_context::{ParseTraceError, SpanId, TraceContext, TraceId, Traceparent};
