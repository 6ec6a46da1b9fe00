//! The answers of the Event Log API, which the stub and the script share.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate_core::EventId;
use tidegate_logger::LoggerId;

use crate::stored::{Outcome, Stored};

/// A status and a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Reply {
    fn new(status: u16, body: &Value) -> Self {
        let body = Bytes::from(body.to_string());
        Self { status, body }
    }

    /// An error body in the form of the API.
    pub(crate) fn error(status: u16, error: &str, code: &str, message: &str) -> Self {
        let body = json!({ "error": error, "code": code, "message": message });
        Self::new(status, &body)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    batch_id: Option<String>,
}

/// `POST /v1/events`.
pub(crate) fn post_one(
    stored: &Stored,
    json: &[u8],
    id: Option<EventId>,
    logger: Option<LoggerId>,
) -> Reply {
    match stored.put(json, id, logger) {
        Outcome::Stored { number, .. } => {
            let body = json!({
                "success": true,
                "executionIds": [execution_id(number)],
                "correlationId": correlation_id(json),
            });
            Reply::new(201, &body)
        }
        Outcome::Invalid { path, message } => {
            let body = json!({
                "error": "Validation Error",
                "code": "event.invalid",
                "message": "1 field",
                "details": [{ "path": path, "message": message }],
            });
            Reply::new(400, &body)
        }
        Outcome::Conflict => Reply::error(409, "Conflict", "idempotency.conflict", CONFLICT),
    }
}

const CONFLICT: &str = "the id belongs to an event with another content";

/// `POST /v1/events/batch` with a body as it comes over the wire.
pub(crate) fn post_envelope(
    stored: &Stored,
    body: &[u8],
    failing: &[usize],
    max_batch: usize,
    logger: Option<LoggerId>,
) -> Reply {
    let envelope: Envelope<'_> = match serde_json::from_slice(body) {
        Ok(envelope) => envelope,
        Err(error) => {
            return Reply::error(400, "Validation Error", "event.invalid", &error.to_string());
        }
    };
    if envelope.events.is_empty() {
        return Reply::error(400, "Validation Error", "event.invalid", "no events");
    }
    if envelope.events.len() > max_batch {
        let message = format!("at most {max_batch} events");
        return Reply::error(413, "Payload Too Large", "body.too_large", &message);
    }
    let events = envelope.events.iter().map(|event| event.get().as_bytes());
    post_many(
        stored,
        events,
        failing,
        envelope.batch_id.as_deref(),
        logger,
    )
}

/// `POST /v1/events/batch`. The events at the places `failing` fail for now.
pub(crate) fn post_many<'a>(
    stored: &Stored,
    events: impl Iterator<Item = &'a [u8]>,
    failing: &[usize],
    batch_id: Option<&str>,
    logger: Option<LoggerId>,
) -> Reply {
    let (mut received, mut inserted, mut duplicates) = (0, 0, 0);
    let mut executions = Vec::new();
    let mut correlations: Vec<Value> = Vec::new();
    let mut errors = Vec::new();
    for (index, json) in events.enumerate() {
        received += 1;
        if failing.contains(&index) {
            errors.push(problem(
                index,
                "the store is busy",
                "store.unavailable",
                "Transient",
            ));
            continue;
        }
        match stored.put(json, None, logger) {
            Outcome::Stored { number, is_new } => {
                *(if is_new {
                    &mut inserted
                } else {
                    &mut duplicates
                }) += 1;
                executions.push(execution_id(number));
                let correlation = correlation_id(json);
                if !correlations.contains(&correlation) {
                    correlations.push(correlation);
                }
            }
            Outcome::Invalid { path, message } => {
                let message = format!("{message} {path}");
                errors.push(problem(index, message.trim(), "event.invalid", "Permanent"));
            }
            Outcome::Conflict => {
                errors.push(problem(
                    index,
                    CONFLICT,
                    "idempotency.conflict",
                    "Permanent",
                ));
            }
        }
    }
    let mut body = json!({
        "success": errors.is_empty(),
        "totalReceived": received,
        "totalInserted": inserted,
        "totalDuplicates": duplicates,
        "executionIds": executions,
        "correlationIds": correlations,
        "errors": errors,
    });
    if let (Some(batch_id), Some(body)) = (batch_id, body.as_object_mut()) {
        body.insert("batchId".to_owned(), Value::from(batch_id));
    }
    Reply::new(201, &body)
}

fn problem(index: usize, error: &str, code: &str, class: &str) -> Value {
    json!({ "index": index, "error": error, "code": code, "class": class })
}

/// The same for the same event, so that a repeat gets the first answer.
fn execution_id(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn correlation_id(json: &[u8]) -> Value {
    let event: Value = serde_json::from_slice(json).unwrap_or_default();
    event.get("correlationId").cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: u32, details: &str) -> String {
        format!(
            r#"{{"_id":"019a8f3e-5c00-7abc-8def-0000000000{n:02}","correlationId":"c","details":"{details}"}}"#
        )
    }

    fn batch(stored: &Stored, events: &[String], failing: &[usize]) -> Value {
        let body = format!(r#"{{"events":[{}],"batchId":"b"}}"#, events.join(","));
        let reply = post_envelope(stored, body.as_bytes(), failing, 100, None);
        assert_eq!(reply.status, 201);
        serde_json::from_slice(&reply.body).unwrap()
    }

    #[test]
    fn a_repeat_gets_the_first_answer_and_another_content_a_conflict() {
        let stored = Stored::new();
        let first = post_one(&stored, event(1, "a").as_bytes(), None, None);
        assert_eq!(first.status, 201);
        assert_eq!(
            post_one(&stored, event(1, "a").as_bytes(), None, None),
            first
        );
        assert_eq!(
            post_one(&stored, event(1, "b").as_bytes(), None, None).status,
            409
        );
        assert_eq!(stored.count(), 1);
    }

    #[test]
    fn a_batch_is_judged_event_by_event() {
        let stored = Stored::new();
        let good = event(1, "a");
        let events = [
            good.clone(),
            good,
            event(2, "REJECT"),
            event(1, "b"),
            event(3, "a"),
            event(4, "a"),
        ];
        let reply = batch(&stored, &events, &[4]);
        assert_eq!(reply["success"], false);
        assert_eq!(reply["totalReceived"], 6);
        assert_eq!(reply["totalInserted"], 2);
        assert_eq!(reply["totalDuplicates"], 1);
        assert_eq!(reply["batchId"], "b");
        assert_eq!(reply["correlationIds"], json!(["c"]));
        let errors: Vec<(u64, &str, &str)> = reply["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|error| {
                let text = |name: &str| error[name].as_str().unwrap();
                (
                    error["index"].as_u64().unwrap(),
                    text("code"),
                    text("class"),
                )
            })
            .collect();
        assert_eq!(
            errors,
            [
                (2, "event.invalid", "Permanent"),
                (3, "idempotency.conflict", "Permanent"),
                (4, "store.unavailable", "Transient"),
            ]
        );
        assert_eq!(stored.count(), 2);
    }

    #[test]
    fn an_envelope_must_hold_events_and_not_too_many() {
        let check = |body: &str, status: u16| {
            let reply = post_envelope(&Stored::new(), body.as_bytes(), &[], 2, None);
            assert_eq!(reply.status, status, "{body}");
        };
        check("", 400);
        check("{}", 400);
        check(r#"{"events":[]}"#, 400);
        check(r#"{"events":[{},{}]}"#, 201);
        check(r#"{"events":[{},{},{}]}"#, 413);
    }
}
