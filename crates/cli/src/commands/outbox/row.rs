//! A row as it is shown.

use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_core::{EventId, iso_time};
use tidegate_outbox::{OutboxRow, OutboxStatus};

use crate::table;

/// A row, under the names of its columns.
#[derive(Debug, Serialize)]
pub(super) struct ShownRow {
    id: i64,
    event_id: EventId,
    aggregate_type: Option<String>,
    aggregate_id: String,
    #[serde(rename = "type")]
    type_name: String,
    topic: Option<String>,
    status: OutboxStatus,
    sent: bool,
    attempts: u32,
    created_at: Option<String>,
    sent_at: Option<String>,
    next_attempt_at: Option<String>,
    locked_by: Option<String>,
    locked_at: Option<String>,
    last_error_at: Option<String>,
    last_error: Option<String>,
    /// As JSON, or as the text that stands in the table where that is none.
    headers: Option<Box<RawValue>>,
    payload_bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

impl ShownRow {
    pub(super) fn of(row: OutboxRow) -> Self {
        let time = |ms: Option<i64>| iso_time(u64::try_from(ms?).ok()?);
        Self {
            id: row.id,
            event_id: row.event_id,
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            type_name: row.type_name,
            topic: row.topic,
            status: row.status,
            sent: row.sent,
            attempts: row.attempts,
            created_at: time(Some(row.created_at)),
            sent_at: time(row.sent_at),
            next_attempt_at: time(row.next_attempt_at),
            locked_by: row.locked_by,
            locked_at: time(row.locked_at),
            last_error_at: time(row.last_error_at),
            last_error: row.last_error,
            headers: row.headers.and_then(raw),
            payload_bytes: row.payload_bytes,
            payload: row.payload,
        }
    }

    /// The number of the row.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// The header over [`cells`](Self::cells).
    pub(super) const HEADER: [&'static str; 7] = [
        "id", "event id", "key", "type", "status", "attempts", "when",
    ];

    /// The row as cells of a table.
    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.event_id.to_string(),
            self.aggregate_id.clone(),
            self.type_name.clone(),
            self.status.as_str().to_owned(),
            self.attempts.to_string(),
            self.when(),
        ]
    }

    /// The time that matters most, and what it is of; with the error, where there is one.
    fn when(&self) -> String {
        let time = |time: &Option<String>| time.clone().unwrap_or_default();
        let error = self.last_error.as_deref().unwrap_or_default();
        match self.status {
            OutboxStatus::Sent => format!("sent {}", time(&self.sent_at)),
            OutboxStatus::Dead => format!("dead {}: {error}", time(&self.last_error_at)),
            OutboxStatus::Claimed => {
                let owner = self.locked_by.as_deref().unwrap_or("-");
                format!("claimed {} by {owner}", time(&self.locked_at))
            }
            OutboxStatus::Pending if self.attempts > 0 => {
                format!("next {}: {error}", time(&self.next_attempt_at))
            }
            OutboxStatus::Pending => format!("created {}", time(&self.created_at)),
        }
    }

    /// The row in full.
    pub(super) fn text(&self) -> String {
        let (id, event_id, type_name) = (self.id, self.event_id, &self.type_name);
        let mut lines = vec![format!("row {id}   {event_id}   {type_name}")];
        let mut add = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                lines.push(format!("  {name:<13} {}", table::plain(value)));
            }
        };
        let attempts = table::counted(u64::from(self.attempts), "failed attempt");
        let status = format!("{}, {attempts}", self.status);
        add("status", Some(&status));
        add("key", Some(&self.aggregate_id));
        add("aggregate", self.aggregate_type.as_deref());
        add("topic", self.topic.as_deref());
        add("created", self.created_at.as_deref());
        add("sent", self.sent_at.as_deref());
        add("next attempt", self.next_attempt_at.as_deref());
        add("relay", self.locked_by.as_deref());
        add("claimed", self.locked_at.as_deref());
        add("failed", self.last_error_at.as_deref());
        add("error", self.last_error.as_deref());
        add("headers", self.headers.as_deref().map(RawValue::get));
        let payload = match &self.payload {
            Some(payload) => payload.clone(),
            None => "none: a tombstone".to_owned(),
        };
        add("payload", Some(&payload));
        if self.status == OutboxStatus::Dead {
            // error-page: outbox.dead
            let hint = "fix the cause, then `tidegate outbox retry`: docs/errors/outbox.dead.md";
            add("what to do", Some(hint));
        }
        lines.join("\n")
    }
}

/// Headers as they stand in the table; a text that is no JSON becomes one.
fn raw(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text.clone())
        .or_else(|_| serde_json::value::to_raw_value(&text))
        .ok()
}
