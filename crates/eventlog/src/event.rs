//! Events: as they are posted, and as they are stored.
//!
//! The body of an event is kept as it was written, so that unknown properties come back unchanged. A few
//! of its fields stand beside it in columns of their own, for the queries.

mod content;
mod words;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tidegate_core::{EventId, EventIds, iso_time};
use tidegate_logger::{
    DecodeError, Defaults, Event, FieldProblem, ProcessStatus, StepStatus, Text,
};

pub(crate) use content::is_same_content;
pub use words::words;

/// The properties that came with a post rather than in the event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PostOrigin {
    /// The header `Idempotency-Key`. Of a batch it is the key of the request.
    pub key: Option<String>,
    /// The key of an event that comes without a key and without an id.
    pub last_key: Option<String>,
    /// The header `x-tidegate-event-id` of a single post.
    pub event_id: Option<EventId>,
    /// The `batchId` of the envelope, for events without their own.
    pub batch_id: Option<String>,
    /// The header `x-tidegate-logger`: the spill directory that the events went through.
    pub logger: Option<String>,
}

/// An event that may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedEvent {
    /// Its id.
    pub event_id: EventId,
    /// Whether the id came with it; otherwise it was minted here.
    pub has_own_id: bool,
    /// The key by which a repeat is recognized.
    pub key: String,
    /// The event as JSON, without the properties of the transport.
    pub body: String,
    /// The kind of event.
    pub kind: ProcessStatus,
    /// How it went, given or derived.
    pub outcome: StepStatus,
    /// The application that speaks.
    pub application_id: String,
    /// The business case.
    pub correlation_id: String,
    /// The process.
    pub process_name: String,
    /// The system that was acted on.
    pub target_system: String,
    /// The system that acted.
    pub originating_system: String,
    /// The batch, if any.
    pub batch_id: Option<String>,
    /// The account, if any.
    pub account_id: Option<String>,
    /// The trace, if any.
    pub trace_id: Option<String>,
    /// The place of the step in its process, if any.
    pub step_sequence: Option<i64>,
    /// When it happened, in microseconds since 1970.
    pub at_us: i64,
    /// The words of its details, for the text search.
    pub words: Vec<String>,
}

/// Everything that the API refuses about an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", summary(.problems))]
pub struct InvalidEvent {
    /// The problems, one for each field.
    pub problems: Vec<FieldProblem>,
}

impl InvalidEvent {
    pub(crate) fn one(path: &str, message: impl Into<String>) -> Self {
        Self {
            problems: vec![problem(path, message)],
        }
    }
}

impl PostedEvent {
    /// Reads and checks one event. Ids for events without one come from `ids`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(json: &str, origin: &PostOrigin, ids: &EventIds) -> Result<Self, InvalidEvent> {
        let decoded = Event::decode(json.as_bytes()).map_err(undecodable)?;
        let event = decoded.event;
        let own_id = decoded.id.or(origin.event_id);
        let mut problems = event.validate(&Defaults::new("", "", ""));
        problems.extend(missing_time(&event));
        let extras = event.extras();
        let step_sequence = extras.step_sequence.map(i64::try_from).transpose();
        if step_sequence.is_err() {
            problems.push(problem("stepSequence", "is too large"));
        }
        let key = extras.idempotency_key.as_deref().or(origin.key.as_deref());
        if key == Some("") {
            problems.push(problem("idempotencyKey", "must not be empty"));
        }
        for (path, text) in columns(&event) {
            // PostgreSQL takes a zero character in no text.
            if text.is_some_and(|text| text.contains('\0')) {
                problems.push(problem(path, "must not hold a zero character"));
            }
        }
        let (Some(kind), Some(at), Ok(step_sequence), true) = (
            event.process_status,
            event.timestamp,
            step_sequence,
            problems.is_empty(),
        ) else {
            return Err(InvalidEvent { problems });
        };
        let event_id = own_id.unwrap_or_else(|| ids.mint());
        let outcome = outcome(&event, kind);
        let batch_id = owned(extras.batch_id.as_ref()).or_else(|| origin.batch_id.clone());
        let details = event.details.as_deref().unwrap_or_default();
        let required = |text: &Option<Text>| text.as_deref().unwrap_or_default().to_owned();
        Ok(Self {
            event_id,
            has_own_id: own_id.is_some(),
            key: match (key, own_id, &origin.last_key) {
                (Some(key), _, _) => key.to_owned(),
                (None, None, Some(key)) => key.clone(),
                (None, _, _) => event_id.to_string(),
            },
            body: content::body(json, batch_id.as_deref(), outcome)?,
            kind,
            outcome,
            application_id: required(&event.application_id),
            correlation_id: required(&event.correlation_id),
            process_name: required(&event.process_name),
            target_system: required(&event.target_system),
            originating_system: required(&event.originating_system),
            account_id: owned(extras.account_id.as_ref()),
            trace_id: owned(extras.trace_id.as_ref()),
            batch_id,
            step_sequence,
            at_us: at.as_microsecond(),
            words: words(details),
        })
    }
}

/// The fields that become columns, with their texts.
fn columns(event: &Event) -> [(&'static str, Option<&str>); 8] {
    let extras = event.extras();
    [
        ("applicationId", event.application_id.as_deref()),
        ("correlationId", event.correlation_id.as_deref()),
        ("processName", event.process_name.as_deref()),
        ("targetSystem", event.target_system.as_deref()),
        ("originatingSystem", event.originating_system.as_deref()),
        ("batchId", extras.batch_id.as_deref()),
        ("accountId", extras.account_id.as_deref()),
        ("idempotencyKey", extras.idempotency_key.as_deref()),
    ]
}

fn owned(text: Option<&Text>) -> Option<String> {
    text.map(|text| text.clone().into_owned())
}

fn problem(path: &str, message: impl Into<String>) -> FieldProblem {
    FieldProblem {
        path: path.to_owned(),
        message: message.into(),
    }
}

fn missing_time(event: &Event) -> Option<FieldProblem> {
    if event.timestamp.is_some() {
        return None;
    }
    let older = event.extras().properties.get("eventTimestamp");
    Some(match older {
        Some(_) => problem("timestamp", "missing; eventTimestamp was given"),
        None => problem("timestamp", "missing"),
    })
}

fn undecodable(error: DecodeError) -> InvalidEvent {
    match error {
        DecodeError::Field {
            field,
            found,
            expected,
        } => InvalidEvent::one(&field, format!("is {found}, and must be {expected}")),
        error @ (DecodeError::NotUtf8 { .. } | DecodeError::NotAnObject { .. }) => {
            InvalidEvent::one("", error.to_string())
        }
    }
}

/// How an event went. Without `eventStatus` its kind and its error code tell.
fn outcome(event: &Event, kind: ProcessStatus) -> StepStatus {
    if let Some(given) = event.event_status {
        return given;
    }
    match kind {
        ProcessStatus::ProcessStart => StepStatus::InProgress,
        ProcessStatus::Error => StepStatus::Failure,
        ProcessStatus::Step | ProcessStatus::ProcessEnd => match event.extras().error_code {
            Some(_) => StepStatus::Failure,
            None => StepStatus::Success,
        },
    }
}

/// All problems in one line: `missing processStatus; eventType was given, details: must not be empty`.
fn summary(problems: &[FieldProblem]) -> String {
    let each = problems.iter().map(|problem| {
        let FieldProblem { path, message } = problem;
        match message.strip_prefix("missing") {
            Some(rest) => format!("missing {path}{rest}"),
            None if path.is_empty() => message.clone(),
            None => format!("{path}: {message}"),
        }
    });
    each.collect::<Vec<_>>().join(", ")
}

/// An event as it is stored. As JSON it is the event that was posted, with the fields of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number (`eventLogId`).
    pub id: i64,
    /// Its id (`eventId`).
    pub event_id: EventId,
    /// The id that the first post was answered with (`executionId`).
    pub execution_id: EventId,
    /// When it was stored, in milliseconds since 1970 (`createdAt`).
    pub created_ms: i64,
    /// The event.
    pub body: String,
}

impl StoredEvent {
    /// The event with the fields of the server, as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let created = iso_ms(self.created_ms).unwrap_or_default();
        let own = format!(
            r#"{{"eventLogId":{},"executionId":"{}","eventId":"{}","createdAt":"{created}","isDeleted":false"#,
            self.id, self.execution_id, self.event_id
        );
        // The body is an object with at least the required fields.
        match self.body.strip_prefix('{') {
            Some(members) => format!("{own},{members}"),
            None => format!("{own}}}"),
        }
    }
}

impl Serialize for StoredEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.to_json()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// A time in milliseconds since 1970 as text.
pub(crate) fn iso_ms(ms: i64) -> Option<String> {
    iso_time(u64::try_from(ms).ok()?)
}

/// A time in microseconds since 1970 as text.
pub(crate) fn iso_us(us: i64) -> Option<String> {
    let at = Timestamp::from_microsecond(us).ok()?;
    Some(at.to_string())
}

#[cfg(test)]
mod tests;
