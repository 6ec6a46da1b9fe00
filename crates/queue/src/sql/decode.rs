//! Rows of either database as values.
//!
//! Columns go by number: the statements of both databases select the same ones in the same order.

use tidegate_core::EventId;
use tidegate_store::sql::OwnColumns;
use tidegate_store::sqlx;

use super::columns::{errors_of, place_of, shown_payload};
use crate::event::headers_of;
use crate::port::{
    HandlerResult, HandlerState, ListedEvent, LocationState, LogEvent, QueueLocation, QueueStatus,
};
use crate::recount::FoundRows;

/// The values that rows of the queue's statements hold.
pub(super) trait QueueRow: OwnColumns {
    /// One event as it is listed, without the states of its handlers.
    fn listed(&self) -> Result<ListedEvent, sqlx::Error>;

    /// The state of a handler, from this column on.
    fn handler_state(&self, first: usize) -> Result<HandlerState, sqlx::Error>;

    /// One event of the log.
    fn log_event(&self) -> Result<LogEvent, sqlx::Error>;

    /// One event of a recount, and where the tables have it.
    fn counted(&self) -> Result<(EventId, FoundRows), sqlx::Error>;
}

impl<R: OwnColumns> QueueRow for R {
    fn listed(&self) -> Result<ListedEvent, sqlx::Error> {
        Ok(ListedEvent {
            id: self.get(0)?,
            event_id: self.event_id(1)?,
            type_name: self.shown(2)?.unwrap_or_default(),
            key: self.shown(3)?,
            payload: shown_payload(self.shown(4)?.unwrap_or_default()),
            headers: headers_of(self.shown(5)?.as_deref()),
            status: QueueStatus::parse(&self.get::<String>(6)?).unwrap_or(QueueStatus::Pending),
            attempts: self.count(7)?,
            created_ms: self.get(8)?,
            next_attempt_ms: self.get(9)?,
            locked_by: self.get(10)?,
            locked_until_ms: self.get(11)?,
            finalized_ms: self.get(12)?,
            position: self.get(13)?,
            errors: errors_of(&self.get::<String>(14)?),
            states: Vec::new(),
        })
    }

    fn handler_state(&self, first: usize) -> Result<HandlerState, sqlx::Error> {
        Ok(HandlerState {
            handler: self.get(first)?,
            result: HandlerResult::parse(&self.get::<String>(first + 1)?),
            attempts: self.count(first + 2)?,
            error: self.get(first + 3)?,
        })
    }

    fn log_event(&self) -> Result<LogEvent, sqlx::Error> {
        Ok(LogEvent {
            position: self.get(0)?,
            id: self.get(1)?,
            event_id: self.event_id(2)?,
            type_name: self.get(3)?,
            key: self.get(4)?,
            payload: self.get(5)?,
            headers: headers_of(self.get::<Option<String>>(6)?.as_deref()),
            created_ms: self.get(7)?,
        })
    }

    fn counted(&self) -> Result<(EventId, FoundRows), sqlx::Error> {
        let place: Option<String> = self.get(2)?;
        let seen = FoundRows {
            logged: self.get(1)?,
            row: place.as_deref().map(place_of),
            is_row_claimed: self.get(3)?,
            // Without a cursor it is unknown what waits, and no claim comes upon it.
            is_waiting: self.get::<Option<bool>>(4)?.unwrap_or(false),
            batches: self.get(5)?,
            is_adrift: self.get(6)?,
        };
        Ok((self.event_id(0)?, seen))
    }
}

/// Where an event is that is shown as this, and whose row, if it has one, has this place.
pub(super) fn sighting(shown: ListedEvent, row: Option<&str>) -> QueueLocation {
    let state = match shown.finalized_ms {
        Some(_) => LocationState::Finished {
            is_failed: shown.status == QueueStatus::CompletedWithErrors,
        },
        None => LocationState::Unfinished {
            is_claimed: shown.status == QueueStatus::Processing,
            row: row.map(place_of),
        },
    };
    QueueLocation::of(shown, state)
}
