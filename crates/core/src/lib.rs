#![doc = include_str!("../README.md")]

mod event_id;
mod location;
mod mutex;
mod names;

mod backoff;
pub mod breaker;
mod decide;
mod failure;
mod pause;
mod poison;
mod trace;

pub mod books;
pub mod dead_letter;

mod component;
mod health;

pub mod env;

#[cfg(feature = "conformance")]
#[expect(clippy::unwrap_used, reason = "these are the bodies of tests")]
pub mod conformance;

pub use backoff::{Backoff, Retry};
pub use breaker::Breaker;
pub use component::{Component, Shutdown, ShutdownTrigger, audit_components};
pub use dead_letter::DeadLetter;
pub use decide::{AttemptFacts, Decision, decide};
pub use event_id::{EventId, EventIdMinter, EventIds, ForeignIds, ParseEventIdError};
pub use failure::{
    Classify, Code, CodePattern, Failure, FailureClass, ParseCodeError, error_chain,
};
pub use health::{HealthFinding, HealthStatus};
pub use location::{EventLocation, EventTrace, iso_time};
pub use mutex::Mutex;
pub use names::{GroupName, NameError, Offset, Partition, TierIndex, Topic};
pub use pause::{PauseReason, PauseReasons};
pub use poison::PoisonWindow;
pub use trace::{HexId, ParseTraceError, SpanId, TRACEPARENT, TraceId, Traceparent};
