//! The errors of the queue as a whole.

use tidegate_core::{Classify, Code, EventId, Failure, FailureClass};
use tidegate_store::{OUTCOME_UNKNOWN, StoreError};

/// An operation of the queue that did not work.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The database beneath.
    #[error("the queue's store failed")]
    Store(#[from] StoreError),
    /// No answer came, and it may or may not have happened.
    #[error("no answer while trying to {doing}; the outcome is unknown")]
    OutcomeUnknown {
        /// The call that got no answer.
        doing: &'static str,
    },
    /// No event has this number.
    #[error("there is no event {id} in the queue or in its log")]
    UnknownEvent {
        /// The number.
        id: i64,
    },
    /// The event is being handled just now.
    #[error("event {id} is being handled by `{owner}`")]
    Busy {
        /// The number.
        id: i64,
        /// Who handles it.
        owner: String,
    },
    /// A side effect was done meanwhile for another event of the same id: nothing of this one happened, and
    /// the next attempt finds it done.
    #[error("another event with the id `{event_id}` has recorded the same side effect")]
    SideEffectExists {
        /// The id.
        event_id: EventId,
    },
    /// The event is not in a state in which this can be done.
    #[error("event {id} is {state} and cannot be {wanted}")]
    WrongState {
        /// The number.
        id: i64,
        /// Where it is.
        state: &'static str,
        /// The change that was asked for.
        wanted: &'static str,
    },
    /// A value has no JSON form.
    #[error("event of type `{type_name}` cannot be written as JSON")]
    Encode {
        /// The type.
        type_name: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// No projection of this name has begun.
    #[error("projection `{name}` does not exist")]
    UnknownProjection {
        /// The name.
        name: String,
    },
    /// The projection is being built by some process.
    #[error("projection `{name}` is running in a process")]
    ProjectionRuns {
        /// The name.
        name: String,
    },
    /// A name that cannot be used.
    #[error("{what} `{name}` cannot be used: {why}")]
    InvalidName {
        /// The thing that was being named.
        what: &'static str,
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Retention has removed events that a rebuild would need.
    #[error(
        "projection `{name}` cannot be rebuilt completely: retention has removed events from the log"
    )]
    EventsRemoved {
        /// The projection.
        name: String,
    },
    /// A text that is longer than its limit.
    #[error("{what} has {bytes} bytes; {limit} are allowed")]
    TooLong {
        /// The thing that is too long.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// Handlers came or went since it was decided where events go; nothing happened.
    #[error("the handler registry changed meanwhile")]
    RegistryChanged,
    /// The transaction is of another database than the queue.
    #[error("the transaction belongs to another database than the queue")]
    ForeignTransaction,
}

impl QueueError {
    /// Whether it may have been carried out all the same: the answer is what got lost.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        if let Self::Store(error) = self {
            return error.may_have_happened();
        }
        matches!(self, Self::OutcomeUnknown { .. })
    }

    /// The code by which people and metrics know it.
    #[must_use]
    pub fn code(&self) -> Code {
        self.facts().0
    }

    /// The way out of it, for people.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        self.facts().2
    }

    /// Its code, its class, and the way out of it.
    fn facts(&self) -> (Code, FailureClass, Option<&'static str>) {
        use FailureClass::{Permanent, Transient};
        let (code, class, hint) = match self {
            Self::Store(error) => return (error.code(), error.class(), error.hint()),
            Self::OutcomeUnknown { .. } => ("store.timeout", Transient, OUTCOME_UNKNOWN),
            Self::UnknownEvent { .. } => (
                "queue.unknown",
                Permanent,
                "`tidegate queue ls` lists what waits, `ls --status completed` the log; retention removes \
                 events for good, and `tidegate audit` names one that was lost",
            ),
            Self::Busy { .. } => (
                "queue.busy",
                Transient,
                "wait until its handlers have ended, or its lease has",
            ),
            Self::WrongState { .. } => ("queue.wrong-state", Permanent, ""),
            Self::Encode { .. } => ("queue.payload", Permanent, ""),
            Self::UnknownProjection { .. } => (
                "projection.unknown",
                Permanent,
                "`tidegate projection ls` lists all projections",
            ),
            Self::ProjectionRuns { .. } => (
                "projection.runs",
                Transient,
                "stop the process that runs it first; its leadership ends after `queue.projection.lease`",
            ),
            Self::EventsRemoved { .. } => (
                "projection.removed",
                Permanent,
                "`--partial` builds it from the events that are left",
            ),
            Self::InvalidName { .. } | Self::TooLong { .. } => ("usage.name", Permanent, ""),
            Self::SideEffectExists { .. } | Self::RegistryChanged => ("internal", Transient, ""),
            Self::ForeignTransaction => ("internal", Permanent, ""),
        };
        (
            Code::from_static(code),
            class,
            (!hint.is_empty()).then_some(hint),
        )
    }
}

impl From<&QueueError> for Failure {
    fn from(error: &QueueError) -> Self {
        let (code, hint) = (error.code(), error.hint().map(str::to_owned));
        if let QueueError::Store(error) = error {
            return Self::of(error, code, hint);
        }
        Self::of(error, code, hint)
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::from(&error)
    }
}

impl Classify for QueueError {
    fn class(&self) -> FailureClass {
        self.facts().1
    }
}
