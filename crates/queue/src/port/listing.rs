//! The queue as seen from outside.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::HandlerState;

/// The state of an event, as users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum QueueStatus {
    /// It waits.
    Pending,
    /// It is claimed.
    Processing,
    /// Every handler succeeded.
    Completed,
    /// It was given up on.
    CompletedWithErrors,
}

impl QueueStatus {
    /// The word in the tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Processing => "PROCESSING",
            Self::Completed => "COMPLETED",
            Self::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
        }
    }

    /// The status with this word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Pending,
            Self::Processing,
            Self::Completed,
            Self::CompletedWithErrors,
        ]
        .into_iter()
        .find(|status| status.as_str() == text)
    }
}

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Only those in this state; none for everything that is not finalized.
    pub status: Option<QueueStatus>,
    /// Only those of this type.
    pub type_name: Option<String>,
    /// Only those above this number.
    pub after: i64,
    /// At most this many.
    pub limit: u32,
}

/// One event, as it is listed.
#[derive(Debug, Clone, Serialize)]
pub struct ListedEvent {
    /// Its number.
    pub id: i64,
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// Its JSON.
    pub payload: Box<serde_json::value::RawValue>,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its state.
    pub status: QueueStatus,
    /// How often it was claimed.
    pub attempts: u32,
    /// When it was published, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it is tried again, in milliseconds since 1970.
    pub next_attempt_ms: Option<i64>,
    /// Who handles it.
    pub locked_by: Option<String>,
    /// Until when, in milliseconds since 1970.
    pub locked_until_ms: Option<i64>,
    /// When it was finalized, in milliseconds since 1970.
    pub finalized_ms: Option<i64>,
    /// Its place in the order of projections.
    pub position: Option<i64>,
    /// The error.
    pub errors: Vec<HandlerState>,
    /// The results of its handlers.
    pub states: Vec<HandlerState>,
}

/// Where an event was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueLocation {
    /// Its number.
    pub number: i64,
    /// Where it is.
    pub place: Place,
    /// Its state.
    pub status: QueueStatus,
    /// How often it was claimed.
    pub attempts: u32,
    /// Since when, as far as the tables tell, in milliseconds since 1970.
    pub at_ms: i64,
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// When it is tried again, in milliseconds since 1970.
    pub next_attempt_ms: Option<i64>,
    /// Who handles it.
    pub locked_by: Option<String>,
    /// Until when, in milliseconds since 1970.
    pub locked_until_ms: Option<i64>,
    /// Its place in the order of projections.
    pub position: Option<i64>,
    /// The results of its handlers, the errors of the log included.
    pub states: Vec<HandlerState>,
    /// The numbers of other events that were published with the same id.
    pub others: Vec<i64>,
}

impl QueueLocation {
    /// The sighting of an event that is listed.
    pub(crate) fn of(shown: ListedEvent, state: LocationState) -> Self {
        let (place, status) = state.place();
        let mut states = shown.states;
        for error in shown.errors {
            // An operator who ended it has no handler state, and stands in the log alone.
            if !states.iter().any(|state| state.handler == error.handler) {
                states.push(error);
            }
        }
        Self {
            number: shown.id,
            place,
            status,
            attempts: shown.attempts,
            at_ms: shown.finalized_ms.unwrap_or(shown.created_ms),
            type_name: shown.type_name,
            key: shown.key,
            next_attempt_ms: shown.next_attempt_ms,
            locked_by: shown.locked_by,
            locked_until_ms: shown.locked_until_ms,
            position: shown.position,
            states,
            others: Vec::new(),
        }
    }

    /// The same, when these are the numbers of all events with its id.
    pub(crate) fn among(mut self, numbers: &[i64]) -> Self {
        let others = numbers.iter().filter(|number| **number != self.number);
        self.others = others.copied().collect();
        self
    }

    /// Whether it is in the log.
    pub(crate) fn is_finalized(&self) -> bool {
        matches!(
            self.status,
            QueueStatus::Completed | QueueStatus::CompletedWithErrors
        )
    }
}

/// How an event's place is told from its status: see [`QueueLocation::place`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationState {
    /// It is not in the log.
    Unfinished {
        /// Whether somebody has it.
        is_claimed: bool,
        /// The place its row has, if it has one.
        row: Option<Place>,
    },
    /// It is in the log.
    Finished {
        /// Whether it was given up on.
        is_failed: bool,
    },
}

impl LocationState {
    /// The place of the event, and its status.
    #[must_use]
    pub fn place(self) -> (Place, QueueStatus) {
        match self {
            Self::Unfinished {
                is_claimed: true, ..
            } => (Place::InFlight, QueueStatus::Processing),
            Self::Unfinished { row, .. } => (row.unwrap_or(Place::Queued), QueueStatus::Pending),
            Self::Finished { is_failed: true } => {
                (Place::DeadLettered, QueueStatus::CompletedWithErrors)
            }
            Self::Finished { is_failed: false } => (Place::Delivered, QueueStatus::Completed),
        }
    }
}

/// An event of the log, as a projection reads it.
#[derive(Debug, Clone)]
pub struct LogEvent {
    /// Its place in the order.
    pub position: i64,
    /// Its number.
    pub id: i64,
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    pub type_name: String,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// Its JSON.
    pub payload: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// When it was published, in milliseconds since 1970.
    pub created_ms: i64,
}

/// A stretch of the log.
#[derive(Debug, Clone, Default)]
pub struct LogPage {
    /// The completed events in it; those with errors have a position and are left out.
    pub events: Vec<LogEvent>,
    /// The last position it covers.
    pub last: i64,
    /// The last position there is.
    pub head: i64,
}

/// The numbers of rows that a clean-up removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Handler states.
    pub states: u64,
    /// Finalized events.
    pub events: u64,
    /// Rows of postings that became part of others.
    pub postings: u64,
}

/// Numbers for gauges.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueueStats {
    /// Events that wait.
    pub pending: u64,
    /// Events that are claimed.
    pub processing: u64,
    /// Events that were tried and wait for another attempt.
    pub retrying: u64,
    /// Events that no handler wants, by type.
    pub unhandled: BTreeMap<String, u64>,
    /// Events that were claimed and wait behind one of those, because they have the same key.
    pub held_up: u64,
    /// Age of the oldest event that is not finalized, in seconds; that is the one with the lowest
    /// number.
    pub oldest_age_seconds: f64,
    /// How many of those were born in this minute or the one before, within an hour, and earlier, by
    /// the minute that their ids tell.
    pub ages: [u64; 3],
    /// Events in the log.
    pub finalized: u64,
    /// Handler states that are kept in rows of their own. An event that all handlers completed at
    /// once needs none.
    pub handler_states: u64,
    /// How many positions each projection is behind.
    pub lag: BTreeMap<String, i64>,
}
