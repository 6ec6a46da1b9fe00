//! Logging a process: what its events have in common is said once.
//!
//! | Kind of context | Set by | Life |
//! |---|---|---|
//! | fixed | `with_…` | every event of the process |
//! | additive | `add_…` | every later event of the process |
//! | one-shot | the bare names | the next event only |
//!
//! **Invariant:** one-shot context is gone after the next event, also when that event was refused.
//! The status code of one call must never stand on another.

mod call;
mod context;
mod logger;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::env::{Clock, Entropy};

use crate::event::{Event, Text};
use crate::setters::setters;
use crate::{SpanId, TraceId};

pub use call::Called;
pub use logger::ProcessLogger;

/// Where events are handed to.
pub trait EventSink: Send + Sync + fmt::Debug {
    /// Takes responsibility for `event`, or gives it back.
    ///
    /// # Errors
    /// The event was not accepted; it is in the error.
    fn log(&self, event: Event) -> Result<(), Refused>;
}

/// An event that was not accepted, given back.
#[derive(Debug, thiserror::Error)]
#[error("the event was refused: {reason}")]
pub struct Refused {
    /// The event as it was. It is boxed so that the answer to an accepted one stays small.
    pub event: Box<Event>,
    /// Why, as a stable word.
    pub reason: &'static str,
}

impl Refused {
    /// Gives `event` back.
    #[must_use]
    pub fn new(event: Event, reason: &'static str) -> Self {
        Self {
            event: Box::new(event),
            reason,
        }
    }
}

/// The fields that all processes of an application have in common.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::env::Env;
/// use tidegate_logger::{Event, EventSink, StepStatus, ProcessTemplate, Refused};
///
/// #[derive(Debug)]
/// struct Print;
/// impl EventSink for Print {
///     fn log(&self, event: Event) -> Result<(), Refused> {
///         println!("{:?}", event.details);
///         Ok(())
///     }
/// }
///
/// let env = Env::system();
/// let template = ProcessTemplate::new(Arc::new(Print), env.clock.clone(), env.entropy.fork("processes"))
///     .with_application_id("pet-resort-api")
///     .with_originating_system("PET_RESORT")
///     .with_target_system("PET_RESORT");
///
/// let mut booking = template.for_process("CreateBooking").with_account_id("OWN-001");
/// booking.process_start("Booking asked for")?;
/// booking.add_identifier("bookingId", "BK-1");
/// booking
///     .target_system("KENNEL")
///     .http_status_code(200)
///     .log_step(1, "KennelChecked", StepStatus::Success, "A kennel is free", None)?;
/// booking.process_end(StepStatus::Success, "Booking BK-1 created", Some("CONFIRMED"))?;
/// # Ok::<(), Refused>(())
/// ```
#[derive(Debug, Clone)]
pub struct ProcessTemplate {
    sink: Arc<dyn EventSink>,
    clock: Arc<dyn Clock>,
    ids: Ids,
    /// An event of which only the fields are set that all events have in common.
    common: Event,
}

impl ProcessTemplate {
    /// Processes whose events go to `sink`, timed by `clock`, with ids drawn from `entropy`.
    ///
    /// The logger behind `sink` fills in from its own defaults the fields that the template leaves out.
    #[must_use]
    pub fn new(sink: Arc<dyn EventSink>, clock: Arc<dyn Clock>, entropy: Box<dyn Entropy>) -> Self {
        Self {
            sink,
            clock,
            ids: Ids(Arc::new(Mutex::new(entropy))),
            common: Event::default(),
        }
    }

    setters! {
        /// The application that speaks.
        with_application_id(id: impl Into<Text>) |it| it.common.application_id = Some(id.into());
        /// The system that acts.
        with_originating_system(system: impl Into<Text>)
            |it| it.common.originating_system = Some(system.into());
        /// The system that is acted on, where an event names no other.
        with_target_system(system: impl Into<Text>)
            |it| it.common.target_system = Some(system.into());
    }

    /// One run of the process `name`, with a trace and a correlation id of its own unless it is
    /// given others.
    #[must_use]
    pub fn for_process(&self, name: impl Into<Text>) -> ProcessLogger {
        ProcessLogger::new(self, name.into())
    }
}

/// Draws ids. Clones draw from the same stream: a fork by name would give two runs of one process
/// the same ids.
#[derive(Debug, Clone)]
struct Ids(Arc<Mutex<Box<dyn Entropy>>>);

impl Ids {
    fn trace_id(&self) -> TraceId {
        TraceId::draw(&mut **self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn span_id(&self) -> SpanId {
        SpanId::draw(&mut **self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
