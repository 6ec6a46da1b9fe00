//! The door to the Event Log API.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::env::{BoxFuture, CatchPanic};
use tidegate_core::{Code, EventId};

use crate::logger_id::LoggerId;

/// The future of an answer.
pub type Sending<'a> = BoxFuture<'a, ApiAnswer>;

/// Where events are sent.
///
/// An implementation must keep: one attempt per call, because all retrying is the logger's; an
/// event that is [`Stored`](EventOutcome::Stored) is durable on the other side; sending the same id
/// again stores nothing twice. A call that is dropped may or may not have stored anything. One that
/// panics is a request that failed.
pub trait Api: Send + Sync + fmt::Debug {
    /// Sends these events, in this order, for the logger with this id; none for a logger without a spill
    /// directory. The other side keeps the events of each logger apart, so that an audit can compare them.
    fn send_from<'a>(&'a self, logger: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a>;

    /// Sends these events, in this order, for a sender that keeps no books.
    fn send<'a>(&'a self, batch: &'a [Payload]) -> Sending<'a> {
        self.send_from(None, batch)
    }
}

/// An event on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Its id, which is also its idempotency key.
    pub id: EventId,
    /// One JSON object, with its id as the property `_id`.
    pub json: Bytes,
}

/// The result of a request.
#[derive(Debug)]
#[must_use = "events whose answer is not looked at are lost"]
pub enum ApiAnswer {
    /// The other side looked at each event: one outcome per payload, in their order.
    PerEvent(Vec<EventOutcome>),
    /// The request is too large as a whole; in halves it may not be.
    TooLarge,
    /// Nothing is known to be stored. Always worth another attempt: also a wrong token or address
    /// is an outage, because the fault is in the configuration and not in the events.
    Failed(ApiFailure),
}

/// The result for one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventOutcome {
    /// It is stored, now or by an earlier request.
    Stored,
    /// It will never be stored.
    Rejected {
        /// Why, as a stable code.
        code: Code,
        /// Why, for people.
        message: String,
        /// The HTTP status, where there was one for this event alone.
        status: Option<u16>,
    },
    /// It was not stored this time.
    Failed {
        /// Why, as a stable code.
        code: Code,
        /// Why, for people.
        message: String,
    },
}

/// Why a request failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiFailure {
    /// Why, as a stable code.
    pub code: Code,
    /// Why, for people.
    pub message: String,
    /// When the other side wants to be asked again.
    pub retry_after: Option<Duration>,
}

/// Sends these events; a panic of the API is an answer like any other failure.
pub(crate) async fn ask(api: &dyn Api, logger: Option<LoggerId>, batch: &[Payload]) -> ApiAnswer {
    // The call itself goes into the future too, so that a panic there is caught as well.
    let sending = CatchPanic(Box::pin(async { api.send_from(logger, batch).await }));
    sending.await.unwrap_or_else(|message| {
        tracing::error!(message, "the API implementation panicked");
        ApiAnswer::Failed(ApiFailure {
            code: Code::from_static("api.panicked"),
            message,
            retry_after: None,
        })
    })
}
