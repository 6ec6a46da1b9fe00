#![doc = include_str!("../README.md")]

mod event_id;
mod names;

mod backoff;
pub mod breaker;
mod decide;
mod failure;
mod pause;
mod poison;

pub mod books;
pub mod dead_letter;

pub mod env;

#[cfg(feature = "conformance")]
#[expect(clippy::unwrap_used, reason = "these are the bodies of tests")]
pub mod conformance;

pub use backoff::{Backoff, Retry};
pub use breaker::Breaker;
pub use dead_letter::DeadLetter;
pub use decide::{Decision, Facts, decide};
pub use event_id::{EventId, EventIdMinter, EventIds, ParseEventIdError};
pub use failure::{Classify, Code, CodePattern, Failure, FailureClass, ParseCodeError};
pub use names::{BindingName, GroupName, NameError, Offset, Partition, TierIndex, Topic};
pub use pause::{PauseReason, PauseReasons};
pub use poison::PoisonWindow;
