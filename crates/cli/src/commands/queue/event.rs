//! An event as it is shown.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_core::{EventId, iso_time};
use tidegate_queue::port::{HandlerResult, HandlerState, ListedEvent, QueueStatus};

use crate::table;

/// An event, under the names of its columns.
#[derive(Debug, Serialize)]
pub(super) struct ShownEvent {
    id: i64,
    event_id: EventId,
    #[serde(rename = "type")]
    type_name: String,
    key: Option<String>,
    status: QueueStatus,
    attempts: u32,
    created_at: Option<String>,
    next_attempt_at: Option<String>,
    locked_by: Option<String>,
    locked_until: Option<String>,
    finalized_at: Option<String>,
    position: Option<i64>,
    headers: BTreeMap<String, String>,
    payload: Box<serde_json::value::RawValue>,
    errors: Vec<HandlerState>,
    /// The results of each handler; left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    handlers: Option<Vec<Answer>>,
}

/// How far one handler is with an event.
#[derive(Debug, Serialize)]
struct Answer {
    handler: String,
    /// None while it was not called, or nothing of it had to be remembered.
    result: Option<HandlerResult>,
    attempts: u32,
    error: Option<String>,
}

impl ShownEvent {
    /// An event of a listing.
    pub(super) fn of(listed: ListedEvent) -> Self {
        let time = |ms: Option<i64>| iso_time(u64::try_from(ms?).ok()?);
        Self {
            id: listed.id,
            event_id: listed.event_id,
            type_name: listed.type_name,
            key: listed.key,
            status: listed.status,
            attempts: listed.attempts,
            created_at: time(Some(listed.created_ms)),
            next_attempt_at: time(listed.next_attempt_ms),
            locked_by: listed.locked_by,
            locked_until: time(listed.locked_until_ms),
            finalized_at: time(listed.finalized_ms),
            position: listed.position,
            headers: listed.headers,
            payload: listed.payload,
            errors: listed.errors,
            handlers: None,
        }
    }

    /// One event with what its handlers said; those that are registered for its type have not
    /// spoken yet, unless it is finalized.
    pub(super) fn whole<'a>(
        listed: ListedEvent,
        registered: impl Iterator<Item = &'a str>,
    ) -> Self {
        let states = listed.states.clone();
        let known: BTreeSet<&str> = states.iter().map(|state| state.handler.as_str()).collect();
        let is_open = listed.finalized_ms.is_none();
        let waiting = registered.filter(|handler| is_open && !known.contains(handler));
        let waiting = waiting.map(|handler| Answer {
            handler: handler.to_owned(),
            result: None,
            attempts: 0,
            error: None,
        });
        let waiting: Vec<Answer> = waiting.collect();
        let mut shown = Self::of(listed);
        let spoken = states.into_iter().map(|state| Answer {
            handler: state.handler,
            result: Some(state.result),
            attempts: state.attempts,
            error: state.error,
        });
        shown.handlers = Some(spoken.chain(waiting).collect());
        shown
    }

    /// The number of the event.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// The header over [`row`](Self::row)s.
    pub(super) const HEADER: [&'static str; 7] = [
        "id", "event id", "type", "key", "status", "attempts", "when",
    ];

    /// The event as one row.
    pub(super) fn row(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.event_id.to_string(),
            self.type_name.clone(),
            self.key.clone().unwrap_or_default(),
            self.status.as_str().to_owned(),
            self.attempts.to_string(),
            self.when(),
        ]
    }

    /// The time that matters most, and what it is of.
    fn when(&self) -> String {
        let time = |time: &Option<String>| time.clone().unwrap_or_default();
        if let Some(owner) = &self.locked_by {
            return format!("{owner} until {}", time(&self.locked_until));
        }
        if self.finalized_at.is_some() {
            return format!("finalized {}", time(&self.finalized_at));
        }
        match &self.next_attempt_at {
            Some(next) if self.attempts > 0 => format!("next {next}"),
            Some(_) | None => format!("created {}", time(&self.created_at)),
        }
    }

    /// The event in full.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![format!(
            "event {}   {}   {}",
            self.id, self.event_id, self.type_name
        )];
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                lines.push(format!("  {name:<13} {value}"));
            }
        };
        let attempts = table::counted(u64::from(self.attempts), "attempt");
        add(
            "status",
            Some(format!("{}, {attempts}", self.status.as_str())),
        );
        add("key", self.key.clone());
        add("created", self.created_at.clone());
        add("next attempt", self.next_attempt_at.clone());
        let until = self.locked_until.as_deref().unwrap_or("-");
        let owner = self.locked_by.as_ref();
        add(
            "handled by",
            owner.map(|owner| format!("{owner} until {until}")),
        );
        add("finalized", self.finalized_at.clone());
        add("position", self.position.map(|at| at.to_string()));
        for (name, value) in &self.headers {
            add("header", Some(format!("{name}={value}")));
        }
        add("payload", Some(self.payload.get().to_owned()));
        // An error of an operator has no handler.
        let answers = self.handlers.as_deref().unwrap_or_default();
        for error in &self.errors {
            if !answers.iter().any(|answer| answer.handler == error.handler) {
                let why = error.error.as_deref().unwrap_or("-");
                add("error", Some(format!("{}: {why}", error.handler)));
            }
        }
        if !answers.is_empty() {
            let rows = answers.iter().map(|answer| {
                vec![
                    answer.handler.clone(),
                    answer
                        .result
                        .map_or("waiting", HandlerResult::as_str)
                        .to_owned(),
                    answer.attempts.to_string(),
                    answer.error.clone().unwrap_or_default(),
                ]
            });
            let header = ["handler", "result", "attempts", "error"];
            lines.push(table::grid(&header, rows.collect()));
        }
        lines.join("\n")
    }
}
