//! The meaning of an answer of the Event Log API for the events that were sent.
//!
//! | Status | One event | Several |
//! |---|---|---|
//! | 2xx, readable | stored | one outcome per event |
//! | 2xx, unreadable | failed, `answer.unreadable` | the same |
//! | 400 with `logger.invalid` | failed | failed |
//! | 400, 409, 415, 422 | rejected | split |
//! | 413 | rejected, `body.too_large` | split |
//! | any other | failed | failed |
//!
//! **Invariant:** only a readable 2xx stores, and only an answer about one event rejects it. A
//! status that condemns a batch as a whole names no culprit, so the batch is split until the bad
//! event stands alone. Its good neighbors are never rejected with it.
//!
//! A wrong token or address (401, 403, 404) is a failure like an outage: the fault is in the
//! configuration. So is a refused id of the logger (400 with `logger.invalid`), which something in
//! between has changed: the events are good. So is any status that the API does not use, because it
//! then comes from something in between.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tidegate_core::{Code, FailureClass};

use super::codes;
use crate::api::{ApiAnswer, ApiFailure, EventOutcome};

/// Longest message that is taken over from an answer, in characters.
const MESSAGE_LIMIT: usize = 500;

/// The part of a response body that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseBody<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Only its beginning.
    Cut {
        /// The beginning.
        head: &'a [u8],
        /// Why there is no more, for people.
        reason: &'a str,
    },
}

/// Decides what an answer means for the `batch_len` events of its request.
///
/// An implementation of [`Api`](crate::Api) over another HTTP client can use it as it is.
///
/// ```
/// use tidegate_logger::{ApiAnswer, EventOutcome, ResponseBody, classify};
/// let body = ResponseBody::Whole(br#"{"success":true}"#);
/// match classify(201, None, body, 1) {
///     ApiAnswer::PerEvent(outcomes) => assert_eq!(outcomes, [EventOutcome::Stored]),
///     other => panic!("{other:?}"),
/// }
/// assert!(matches!(classify(503, None, body, 1), ApiAnswer::Failed(_)));
/// ```
pub fn classify(
    status: u16,
    retry_after: Option<Duration>,
    body: ResponseBody<'_>,
    batch_len: usize,
) -> ApiAnswer {
    match (status, batch_len) {
        (200..=299, _) => match per_event(body, batch_len) {
            Ok(outcomes) => ApiAnswer::PerEvent(outcomes),
            Err(reason) => ApiAnswer::Failed(ApiFailure {
                code: codes::ANSWER_UNREADABLE,
                message: format!("the answer with status {status} is unreadable: {reason}"),
                retry_after,
            }),
        },
        (400, _) if Complaint::read(body).code == Some(codes::LOGGER_INVALID) => {
            ApiAnswer::Failed(ApiFailure {
                code: codes::LOGGER_INVALID,
                message: describe(status, &Complaint::read(body)),
                retry_after,
            })
        }
        (400 | 409 | 413 | 415 | 422, 1) => ApiAnswer::PerEvent(vec![reject(status, body)]),
        (400 | 409 | 413 | 415 | 422, _) => ApiAnswer::TooLarge,
        (_, _) => ApiAnswer::Failed(ApiFailure {
            code: codes::of_status(status),
            message: describe(status, &Complaint::read(body)),
            retry_after,
        }),
    }
}

/// The body of 2xx to one event.
#[derive(Deserialize)]
struct OneReply {
    success: bool,
}

/// The body of 2xx to several.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BatchReply {
    success: bool,
    total_received: Option<usize>,
    total_inserted: Option<usize>,
    total_duplicates: Option<usize>,
    errors: Option<Vec<BatchError>>,
}

#[derive(Deserialize)]
struct BatchError {
    index: usize,
    error: Option<String>,
    code: Option<String>,
    class: Option<String>,
}

/// Nothing is assumed: where the answer contradicts itself or the request, no event of it counts as
/// stored.
fn per_event(body: ResponseBody<'_>, batch_len: usize) -> Result<Vec<EventOutcome>, String> {
    let text = match body {
        ResponseBody::Whole(text) => text,
        ResponseBody::Cut { reason, .. } => return Err(reason.to_owned()),
    };
    if batch_len == 1 {
        let reply: OneReply = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        return if reply.success {
            Ok(vec![EventOutcome::Stored])
        } else {
            Err("it says that nothing was stored".to_owned())
        };
    }
    let reply: BatchReply = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    reply.per_event(batch_len)
}

impl BatchReply {
    fn per_event(self, batch_len: usize) -> Result<Vec<EventOutcome>, String> {
        let errors = self.errors.unwrap_or_default();
        if !self.success && errors.is_empty() {
            return Err("it says that something is wrong, but not what".to_owned());
        }
        if let Some(received) = self.total_received
            && received != batch_len
        {
            return Err(format!("it is about {received} events, not {batch_len}"));
        }
        let mut outcomes = vec![EventOutcome::Stored; batch_len];
        for error in errors {
            let index = error.index;
            let Some(outcome) = outcomes.get_mut(index) else {
                return Err(format!("it names event {index} of {batch_len}"));
            };
            // Of two verdicts on one event the milder one holds: it can still be rejected later.
            if !matches!(outcome, EventOutcome::Failed { .. }) {
                *outcome = error.outcome();
            }
        }
        let stored = outcomes
            .iter()
            .filter(|outcome| **outcome == EventOutcome::Stored)
            .count();
        if let (Some(inserted), Some(duplicates)) = (self.total_inserted, self.total_duplicates)
            && inserted.checked_add(duplicates) != Some(stored)
        {
            return Err(format!(
                "it counts {inserted} new and {duplicates} known events where {stored} are not \
                 listed as errors"
            ));
        }
        Ok(outcomes)
    }
}

impl BatchError {
    fn outcome(self) -> EventOutcome {
        let permanent = FailureClass::Permanent.to_string();
        let is_permanent = self
            .class
            .is_some_and(|class| class.eq_ignore_ascii_case(&permanent));
        let code = self.code.and_then(|code| Code::new(code).ok());
        let message = shorten(&self.error.unwrap_or_default());
        if is_permanent {
            EventOutcome::Rejected {
                code: code.unwrap_or(codes::EVENT_INVALID),
                message,
                status: None,
            }
        } else {
            EventOutcome::Failed {
                code: code.unwrap_or(codes::STORE_UNAVAILABLE),
                message,
            }
        }
    }
}

fn reject(status: u16, body: ResponseBody<'_>) -> EventOutcome {
    let complaint = Complaint::read(body);
    let by_status = match status {
        409 => codes::IDEMPOTENCY_CONFLICT,
        413 => codes::BODY_TOO_LARGE,
        415 => codes::BODY_UNSUPPORTED,
        _ => codes::EVENT_INVALID,
    };
    EventOutcome::Rejected {
        message: describe(status, &complaint),
        code: complaint.code.unwrap_or(by_status),
        status: Some(status),
    }
}

/// The content of an error body, as far as it is known.
#[derive(Debug)]
struct Complaint {
    code: Option<Code>,
    message: String,
}

impl Complaint {
    fn read(body: ResponseBody<'_>) -> Self {
        let value: Value = match body {
            ResponseBody::Whole(text) => serde_json::from_slice(text).unwrap_or_default(),
            ResponseBody::Cut { .. } => Value::Null,
        };
        let field = |name: &str| value[name].as_str();
        let mut message = field("message")
            .or_else(|| field("error"))
            .unwrap_or_default()
            .to_owned();
        for detail in value["details"].as_array().into_iter().flatten() {
            let part = |name: &str| detail[name].as_str().unwrap_or_default();
            message.push_str(&format!("; {}: {}", part("path"), part("message")));
            if message.len() > MESSAGE_LIMIT {
                break;
            }
        }
        Self {
            code: field("code").and_then(|code| Code::new(code).ok()),
            message: shorten(&message),
        }
    }
}

fn describe(status: u16, complaint: &Complaint) -> String {
    if complaint.message.is_empty() {
        format!("the Event Log API answered {status}")
    } else {
        format!("the Event Log API answered {status}: {}", complaint.message)
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(MESSAGE_LIMIT).collect()
}
