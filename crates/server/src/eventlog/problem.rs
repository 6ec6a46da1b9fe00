//! Failures in the form of the Event Log API: `{"error", "code", "message", "details"}`.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_core::{Classify, FailureClass, error_chain};
use tidegate_eventlog::EventLogError;
use utoipa::ToSchema;

use crate::ApiProblem;
use crate::problem::OwnBody;

/// The body of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = EventLogProblem, example = json!({
    "error": "Validation Error", "code": "event.invalid", "message": "1 field",
    "details": [{"path": "processStatus", "message": "missing"}]
}))]
pub(crate) struct EventLogProblem {
    /// The kind of failure in words.
    error: &'static str,
    /// The stable code of the failure.
    code: String,
    /// The failure in words, for people.
    message: String,
    /// The fields that are wrong; with 400 alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<WrongField>,
    #[serde(skip)]
    status: u16,
    #[serde(skip)]
    retry_after: Option<u64>,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct WrongField {
    /// The field.
    path: String,
    /// The problem with it.
    message: String,
}

impl EventLogProblem {
    fn new(status: StatusCode, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            error: word(status),
            code: code.into(),
            message: message.into(),
            details: Vec::new(),
            status: status.as_u16(),
            retry_after: None,
        }
    }

    /// A request with wrong fields.
    pub(super) fn invalid(fields: impl IntoIterator<Item = (String, String)>) -> Self {
        let fields = fields.into_iter();
        let details: Vec<WrongField> = fields
            .map(|(path, message)| WrongField { path, message })
            .collect();
        let message = match details.len() {
            1 => "1 field".to_owned(),
            count => format!("{count} fields"),
        };
        Self {
            details,
            ..Self::new(StatusCode::BAD_REQUEST, "event.invalid", message)
        }
    }

    /// A body that is no JSON, or not of the form that the route takes.
    pub(super) fn unreadable(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let missing = text
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split_once('`'));
        Self::invalid([match missing {
            Some((field, _)) => (field.to_owned(), "missing".to_owned()),
            None => (String::new(), text),
        }])
    }

    /// A body of another type.
    pub(super) fn unsupported() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "body.unsupported",
            "the body must be `application/json`",
        )
    }
}

/// The word of the older service for a status.
fn word(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "Validation Error",
        StatusCode::NOT_FOUND => "NOT_FOUND",
        status => status.canonical_reason().unwrap_or("Error"),
    }
}

impl From<EventLogError> for EventLogProblem {
    fn from(error: EventLogError) -> Self {
        let message = error.to_string();
        let code = error.code().as_str().to_owned();
        let plain = |status| Self::new(status, code.clone(), message.clone());
        match &error {
            EventLogError::Store(beneath) => {
                let cause = error_chain(&**beneath);
                tracing::warn!(cause, "the store of the event log failed");
                // The text of a database may tell about our insides.
                match beneath.class() {
                    FailureClass::Permanent => Self::new(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "internal",
                        "the store refused the request",
                    ),
                    FailureClass::Transient | FailureClass::System => unavailable(),
                }
            }
            EventLogError::Closed => unavailable(),
            EventLogError::Invalid(invalid) => {
                let fields = invalid.problems.iter();
                Self::invalid(fields.map(|field| (field.path.clone(), field.message.clone())))
            }
            EventLogError::Request(field) => {
                Self::invalid([(field.path.clone(), field.message.clone())])
            }
            EventLogError::InvalidLogger { .. } => Self {
                code: code.clone(),
                ..Self::invalid([("x-tidegate-logger".to_owned(), message.clone())])
            },
            EventLogError::Conflict { .. } | EventLogError::NameTaken { .. } => {
                plain(StatusCode::CONFLICT)
            }
            EventLogError::BatchTooLarge { .. } => plain(StatusCode::PAYLOAD_TOO_LARGE),
            EventLogError::NotFound { .. } => plain(StatusCode::NOT_FOUND),
            EventLogError::RateLimited { retry_after, .. } => Self {
                retry_after: Some(whole_seconds(*retry_after)),
                ..plain(StatusCode::TOO_MANY_REQUESTS)
            },
        }
    }
}

fn unavailable() -> EventLogProblem {
    EventLogProblem {
        retry_after: Some(1),
        ..EventLogProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store.unavailable",
            "the store does not answer now; nothing of the request was answered as stored",
        )
    }
}

/// At least one, and rounded up: a client that waits as long is welcome.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0).max(u64::from(span.is_zero()))
}

impl IntoResponse for EventLogProblem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = (status, Json(&self)).into_response();
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response.extensions_mut().insert(OwnBody);
        response
    }
}

/// A response whose failure, if it is one of the server around the routes, has the form of this API.
pub(crate) fn in_its_form(response: Response) -> Response {
    let Some(problem) = response.extensions().get::<ApiProblem>() else {
        return response;
    };
    let status = response.status();
    let own = match status {
        StatusCode::BAD_REQUEST => {
            EventLogProblem::invalid([(String::new(), problem.message().to_owned())])
        }
        status => EventLogProblem::new(status, code(status, problem), problem.message()),
    };
    let mut replaced = own.into_response();
    for name in [RETRY_AFTER, WWW_AUTHENTICATE] {
        if let Some(value) = response.headers().get(&name) {
            replaced.headers_mut().insert(name, value.clone());
        }
    }
    replaced
}

/// The code of this API for a failure of the server.
fn code(status: StatusCode, problem: &ApiProblem) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "auth.denied",
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::METHOD_NOT_ALLOWED => "method.not_allowed",
        StatusCode::PAYLOAD_TOO_LARGE => "body.too_large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "body.unsupported",
        StatusCode::GATEWAY_TIMEOUT => "timeout.request",
        _ => problem.code().as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProblemCode;

    #[test]
    fn failures_of_the_server_get_the_form_of_the_api() {
        for (given, error, code) in [
            (ProblemCode::Unauthorized, "Unauthorized", "auth.denied"),
            (ProblemCode::ForeignHost, "Forbidden", "auth.denied"),
            (ProblemCode::NotFound, "NOT_FOUND", "not_found"),
            (
                ProblemCode::BodyTooLarge,
                "Payload Too Large",
                "body.too_large",
            ),
            (ProblemCode::Timeout, "Gateway Timeout", "timeout.request"),
            (
                ProblemCode::IdempotencyConflict,
                "Conflict",
                "idempotency.conflict",
            ),
        ] {
            let problem = ApiProblem::new(given, "no");
            assert_eq!(word(given.status()), error);
            assert_eq!(super::code(given.status(), &problem), code);
        }
    }

    #[test]
    fn a_wait_is_told_in_whole_seconds() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(2_100)), 3);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
    }
}
