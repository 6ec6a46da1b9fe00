//! Settling: where claimed events go.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::{Claim, Lane, LeaseId};
use crate::event::NewEvent;
use crate::limit;

/// The result of a handler for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum HandlerResult {
    /// It is done.
    Success,
    /// It may work next time.
    TransientError,
    /// It never will.
    UnrecoverableError,
}

impl HandlerResult {
    /// The word in the tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::TransientError => "TRANSIENT_ERROR",
            Self::UnrecoverableError => "UNRECOVERABLE_ERROR",
        }
    }

    /// The result with this word; a word from elsewhere counts as transient, so that the handler
    /// runs again.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "SUCCESS" => Self::Success,
            "UNRECOVERABLE_ERROR" => Self::UnrecoverableError,
            _ => Self::TransientError,
        }
    }
}

/// The last result of one handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerState {
    /// Which handler.
    pub handler: String,
    /// Its result.
    pub result: HandlerResult,
    /// How often it was called.
    pub attempts: u32,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HandlerState {
    /// The same with texts that every store takes.
    pub(crate) fn kept(mut self) -> Self {
        self.handler = limit::kept(&self.handler);
        self.error = self.error.map(|error| limit::kept(&error));
        self
    }
}

/// Where an event goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// Into the log.
    Finalize {
        /// The errors; none for COMPLETED.
        errors: Vec<HandlerState>,
        /// The handlers that all succeeded at once, where there is nothing else to remember.
        handlers: Option<String>,
    },
    /// Back, to be tried again after a while.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Who is still wanted.
        lane: Lane,
    },
    /// Back at once, for whoever serves its lane.
    Defer {
        /// Who is still wanted.
        lane: Lane,
    },
    /// Behind the earlier events of its key.
    Park {
        /// Who is still wanted.
        lane: Lane,
    },
}

impl Disposition {
    /// Where the event is in the books afterwards, coming from `place`.
    #[must_use]
    pub fn place(&self, from: &Place) -> Place {
        match self {
            Self::Finalize { errors, .. } if errors.is_empty() => Place::Delivered,
            Self::Finalize { .. } => Place::DeadLettered,
            Self::Retry { .. } => Place::Retrying,
            Self::Defer { .. } => from.clone(),
            Self::Park { .. } => Place::Parked,
        }
    }
}

/// One event on its way.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The right to move it.
    pub claim: Claim,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// Where it goes.
    pub to: Disposition,
    /// The results of its handlers, where they must be remembered.
    pub states: Vec<HandlerState>,
}

/// Several events on their way, in one transaction per lease.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    /// The version of the registry that the transitions were decided by. Where it is another by now, nothing
    /// happens: somebody may have registered who wants the events. None where it does not matter.
    pub registry: Option<u64>,
    /// The events.
    pub transitions: Vec<Transition>,
    /// Batches of which nothing is left to do after this. Should something be left after all, the
    /// batch stays, and comes back when its lease ends.
    pub finished: Vec<LeaseId>,
}

impl Settlement {
    /// The transitions, each claim once, and the events of those that are left out: what is said of a claim a
    /// second time comes when the event has moved on, and is stale.
    pub(crate) fn once_each(&self) -> (Vec<&Transition>, Vec<i64>) {
        let mut seen = BTreeSet::new();
        let is_first = |one: &&Transition| seen.insert((one.claim.lease, one.claim.id));
        let (first, again): (Vec<&Transition>, Vec<&Transition>) =
            self.transitions.iter().partition(is_first);
        (first, again.iter().map(|one| one.claim.id).collect())
    }
}

/// The commit of a handler: its result, the events it published, the side effects it did.
#[derive(Debug, Clone)]
pub struct HandlerCommit {
    /// The right to it.
    pub claim: Claim,
    /// The result of the handler.
    pub state: HandlerState,
    /// Events that follow from this one.
    pub follow_ups: Vec<NewEvent>,
    /// Side effects that are done now, of this handler for this event.
    pub done: Vec<String>,
    /// The id of the event, for the side effects.
    pub event_id: EventId,
}
