//! The business event that is handed to the logger.
//!
//! On the wire an event is one JSON object on one line. The ten fields of the documented line come
//! first and in its order. The optional ones follow, then every property this version does not know,
//! and last the transport's own. `encode` writes that line, `decode` reads it, also from other writers,
//! and `validate` says what the Event Log API would refuse.
//!
//! **Invariant:** what is decoded and encoded again holds the same JSON values; numbers and texts
//! of unknown properties keep their very bytes.

mod decode;
mod encode;
mod json;
mod setters;
mod status;
#[cfg(test)]
mod tests;
mod validate;
pub(crate) mod write;

use std::borrow::Cow;
use std::sync::LazyLock;

use jiff::Timestamp;

pub use decode::{DecodeError, Decoded};
pub(crate) use encode::Encoder;
pub use json::{Json, ParseJsonError, Properties};
pub use status::{ProcessStatus, StepStatus};
pub use validate::FieldProblem;

/// A text of an event: a literal costs nothing, anything else is owned.
pub type Text = Cow<'static, str>;

/// A business fact: that a process started, took a step, ended or broke.
///
/// The fields of the documented line stand in the event itself; the optional ones are in
/// [`extras`](Event::extras), which take no room until one of them is set. An absent field
/// that has a default is filled in when the event is written, see [`Defaults`].
///
/// ```
/// use tidegate_logger::{Defaults, Event, StepStatus};
///
/// let event = Event::step("CreateBooking", "BookingCreated", "Booking BK-1 created for PET-001")
///     .correlation_id("a1b2c3d4")
///     .event_status(StepStatus::Success)
///     .identifier("bookingId", "BK-1")
///     .property("nights", 3);
///
/// let defaults = Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT");
/// assert!(event.validate(&defaults).is_empty());
/// assert_eq!(event.extras().properties.get("nights").map(|n| n.as_str()), Some("3"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    /// Which application speaks (`applicationId`).
    pub application_id: Option<Text>,
    /// The id that all events of one business case share (`correlationId`).
    pub correlation_id: Option<Text>,
    /// The process that the event belongs to (`processName`).
    pub process_name: Option<Text>,
    /// The kind of event (`processStatus`).
    pub process_status: Option<ProcessStatus>,
    /// The step of the process (`step`).
    pub step: Option<Text>,
    /// The description in words (`details`). Text search looks through it.
    pub details: Option<Text>,
    /// The system that was acted on (`targetSystem`).
    pub target_system: Option<Text>,
    /// The system that acted (`originatingSystem`).
    pub originating_system: Option<Text>,
    /// When it happened (`timestamp`).
    pub timestamp: Option<Timestamp>,
    /// Who caused it (`userId`).
    pub user_id: Option<Text>,
    /// How it went (`eventStatus`). Without it, the API derives it from the other fields.
    pub event_status: Option<StepStatus>,
    /// One pointer, because an event is moved by value through the queue and most have no extras.
    extras: LazyExtras,
}

/// Extras that are made when the first of them is set. Extras of which none is set are as good as
/// none.
#[derive(Debug, Clone, Default)]
struct LazyExtras(Option<Box<Extras>>);

impl LazyExtras {
    fn get(&self) -> &Extras {
        self.0.as_deref().unwrap_or(&NO_EXTRAS)
    }
}

impl PartialEq for LazyExtras {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// The optional fields of an [`Event`], and every property this version does not know.
///
/// ```
/// use tidegate_logger::Event;
/// let event = Event::end("CreateBooking", "Booking completed").execution_time_ms(42);
/// assert_eq!(event.extras().execution_time_ms, Some(42));
/// assert_eq!(event.extras().trace_id, None);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extras {
    /// The trace, as 32 lowercase hex digits (`traceId`).
    pub trace_id: Option<Text>,
    /// The span of this event, as 16 lowercase hex digits (`spanId`).
    pub span_id: Option<Text>,
    /// The span that this one is part of (`parentSpanId`).
    pub parent_span_id: Option<Text>,
    /// The account that the event is about (`accountId`).
    pub account_id: Option<Text>,
    /// Business keys to find the event by (`identifiers`).
    pub identifiers: Option<Properties>,
    /// Further facts (`metadata`).
    pub metadata: Option<Properties>,
    /// The result in words (`result`).
    pub result: Option<Text>,
    /// How long it took (`executionTimeMs`).
    pub execution_time_ms: Option<u64>,
    /// Why it failed, as a code (`errorCode`).
    pub error_code: Option<Text>,
    /// Why it failed, in words (`errorMessage`).
    pub error_message: Option<Text>,
    /// The key by which repeats are recognized (`idempotencyKey`); without it, the event id.
    pub idempotency_key: Option<Text>,
    /// The place of the step in its process (`stepSequence`).
    pub step_sequence: Option<u64>,
    /// The batch that the event is part of (`batchId`).
    pub batch_id: Option<Text>,
    /// Spans elsewhere that belong to this one (`spanLinks`).
    pub span_links: Option<Vec<Text>>,
    /// The address that was called (`endpoint`).
    pub endpoint: Option<Text>,
    /// The method of that call (`httpMethod`).
    pub http_method: Option<Text>,
    /// The status of its answer (`httpStatusCode`).
    pub http_status_code: Option<u16>,
    /// The request (`requestPayload`).
    pub request_payload: Option<Json>,
    /// The response (`responsePayload`).
    pub response_payload: Option<Json>,
    /// Properties that are none of the documented fields, in their order.
    pub properties: Properties,
}

/// The extras of every event without any.
static NO_EXTRAS: LazyLock<Extras> = LazyLock::new(Extras::default);

impl Event {
    /// A process begins.
    #[must_use]
    pub fn start(process: impl Into<Text>, details: impl Into<Text>) -> Self {
        Self::of(ProcessStatus::ProcessStart, process, details)
    }

    /// A process took a step.
    #[must_use]
    pub fn step(process: impl Into<Text>, step: impl Into<Text>, details: impl Into<Text>) -> Self {
        Self::of(ProcessStatus::Step, process, details).at_step(step)
    }

    /// A process is over, well or badly.
    #[must_use]
    pub fn end(process: impl Into<Text>, details: impl Into<Text>) -> Self {
        Self::of(ProcessStatus::ProcessEnd, process, details)
    }

    /// Something broke that nobody foresaw. A failure that is part of the business is a step with
    /// [`StepStatus::Failure`].
    #[must_use]
    pub fn error(process: impl Into<Text>, details: impl Into<Text>) -> Self {
        Self::of(ProcessStatus::Error, process, details)
    }

    /// The optional fields and the unknown properties.
    #[must_use]
    pub fn extras(&self) -> &Extras {
        self.extras.get()
    }

    /// The same, to be changed.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.0.get_or_insert_default()
    }

    fn of(status: ProcessStatus, process: impl Into<Text>, details: impl Into<Text>) -> Self {
        Self {
            process_name: Some(process.into()),
            process_status: Some(status),
            details: Some(details.into()),
            ..Self::default()
        }
    }
}

/// Values for the fields that an event leaves out. An empty text fills in nothing.
///
/// ```
/// use tidegate_logger::Defaults;
/// let defaults = Defaults::new("pet-resort-api", "PET_RESORT", "KENNEL");
/// assert_eq!(defaults.user_id, "system");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// For `applicationId`.
    pub application_id: Text,
    /// For `originatingSystem`.
    pub originating_system: Text,
    /// For `targetSystem`.
    pub target_system: Text,
    /// For `userId`: `system` unless it is set.
    pub user_id: Text,
}

impl Defaults {
    /// These defaults, and the user `system`.
    #[must_use]
    pub fn new(
        application_id: impl Into<Text>,
        originating_system: impl Into<Text>,
        target_system: impl Into<Text>,
    ) -> Self {
        Self {
            application_id: application_id.into(),
            originating_system: originating_system.into(),
            target_system: target_system.into(),
            user_id: Text::Borrowed("system"),
        }
    }
}

impl Default for Defaults {
    /// Fills in the user `system` and nothing else.
    fn default() -> Self {
        Self::new("", "", "")
    }
}

/// `given`, else the default unless that is empty.
fn or_default<'a>(given: Option<&'a Text>, default: &'a Text) -> Option<&'a str> {
    match given {
        Some(text) => Some(text),
        None if default.is_empty() => None,
        None => Some(default),
    }
}

/// Whether a property of this name has to be set in another way, or belongs to the transport: the id,
/// the place in a spill file and its check sums.
fn is_taken(name: &str) -> bool {
    matches!(name, "_id" | "_seq" | "_sum" | "_crc") || decode::is_field(name)
}
