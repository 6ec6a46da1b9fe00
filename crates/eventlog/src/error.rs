//! The errors of the Event Log API.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Classify, Code, Failure, FailureClass};
use tidegate_logger::FieldProblem;
use tidegate_store::StoreError;

use crate::event::InvalidEvent;

/// A call of the Event Log API that did not work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EventLogError {
    /// The database beneath. Posts that were committed together share its answer.
    #[error("the store of the event log failed")]
    Store(#[source] Arc<StoreError>),
    /// The writer has ended, with its process.
    #[error("the event log does not take events any more")]
    Closed,
    /// An event that is not what the API takes.
    #[error("the event is invalid: {0}")]
    Invalid(InvalidEvent),
    /// A request that is not what the API takes.
    #[error("the request is invalid: {}: {}", .0.path, .0.message)]
    Request(FieldProblem),
    /// The id of a logger that is none. The events beside it may be good.
    #[error(
        "`{name}` is no id of a logger: it must have 1 to {limit} letters, digits, `-`, `_` or `.`"
    )]
    InvalidLogger {
        /// The id.
        name: String,
        /// The characters that it may have.
        limit: usize,
    },
    /// The key belongs to another event, or to another request.
    #[error("key `{key}` was used with another content")]
    Conflict {
        /// The key.
        key: String,
    },
    /// A batch has more events than it may.
    #[error("the batch has {events} events; at most {limit} are taken (`eventlog.api.max-batch`)")]
    BatchTooLarge {
        /// How many it has.
        events: usize,
        /// How many it may have.
        limit: usize,
    },
    /// An application sends more than it may.
    #[error(
        "application `{application}` sends more than {limit} events per second (`eventlog.api.rate-limit`)"
    )]
    RateLimited {
        /// The application.
        application: String,
        /// Events per second.
        limit: u32,
        /// When to try again.
        retry_after: Duration,
    },
    /// Nothing has this name.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// The kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A process of this name is defined already.
    #[error("a process `{name}` is defined already")]
    NameTaken {
        /// The name.
        name: String,
    },
}

impl EventLogError {
    /// A value of a request that cannot be used.
    pub(crate) fn request(path: &str, message: impl Into<String>) -> Self {
        Self::Request(FieldProblem {
            path: path.to_owned(),
            message: message.into(),
        })
    }

    /// The code by which people and programs know it.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::from_static(match self {
            Self::Store(error) => return error.code(),
            Self::Closed => "store.unavailable",
            Self::Invalid(_) | Self::Request(_) => "event.invalid",
            Self::InvalidLogger { .. } => "logger.invalid",
            Self::Conflict { .. } => "idempotency.conflict",
            Self::BatchTooLarge { .. } => "body.too_large",
            Self::RateLimited { .. } => "rate.limited",
            Self::NotFound { .. } => "not_found",
            Self::NameTaken { .. } => "name.taken",
        })
    }

    /// Advice for people.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Closed => Some("the process is stopping; send the events again"),
            Self::Conflict { .. } => {
                Some("give an event with another content a key or an id of its own")
            }
            Self::BatchTooLarge { .. } => Some("send the batch in parts"),
            Self::RateLimited { .. } => Some("wait as long as `Retry-After` says"),
            Self::NameTaken { .. } => Some("choose another `processName`"),
            Self::InvalidLogger { .. } => Some(
                "send `x-tidegate-logger` once, as the spill directory has it, or leave it out",
            ),
            Self::Invalid(_) | Self::Request(_) | Self::NotFound { .. } => None,
        }
    }
}

impl From<StoreError> for EventLogError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<InvalidEvent> for EventLogError {
    fn from(error: InvalidEvent) -> Self {
        Self::Invalid(error)
    }
}

impl Classify for EventLogError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Store(error) => error.class(),
            Self::Closed | Self::RateLimited { .. } => FailureClass::Transient,
            Self::Invalid(_)
            | Self::Request(_)
            | Self::InvalidLogger { .. }
            | Self::Conflict { .. }
            | Self::BatchTooLarge { .. }
            | Self::NotFound { .. }
            | Self::NameTaken { .. } => FailureClass::Permanent,
        }
    }
}

impl From<EventLogError> for Failure {
    fn from(error: EventLogError) -> Self {
        let (code, hint) = (error.code(), error.hint().map(str::to_owned));
        if let EventLogError::Store(beneath) = &error {
            return Self::of(&**beneath, code, hint);
        }
        Self::of(&error, code, hint)
    }
}
