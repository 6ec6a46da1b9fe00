//! The names of what goes wrong between the logger and the Event Log API. They stand in metrics,
//! logs and files, so they never change.

use tidegate_core::Code;

pub(super) const ANSWER_UNREADABLE: Code = Code::from_static("answer.unreadable");
pub(super) const AUTH_DENIED: Code = Code::from_static("auth.denied");
pub(super) const AUTH_UNAVAILABLE: Code = Code::from_static("auth.unavailable");
pub(super) const BODY_TOO_LARGE: Code = Code::from_static("body.too_large");
pub(super) const BODY_UNSUPPORTED: Code = Code::from_static("body.unsupported");
pub(super) const CONNECTION_DNS: Code = Code::from_static("connection.dns");
pub(super) const CONNECTION_FAILED: Code = Code::from_static("connection.failed");
pub(super) const CONNECTION_LOST: Code = Code::from_static("connection.lost");
pub(super) const CONNECTION_REFUSED: Code = Code::from_static("connection.refused");
pub(super) const EVENT_INVALID: Code = Code::from_static("event.invalid");
pub(super) const HTTP: Code = Code::from_static("http");
pub(super) const IDEMPOTENCY_CONFLICT: Code = Code::from_static("idempotency.conflict");
pub(super) const LOGGER_INVALID: Code = Code::from_static("logger.invalid");
pub(super) const NOT_FOUND: Code = Code::from_static("not_found");
pub(super) const RATE_LIMITED: Code = Code::from_static("rate.limited");
pub(super) const REQUEST_INVALID: Code = Code::from_static("request.invalid");
pub(super) const STORE_UNAVAILABLE: Code = Code::from_static("store.unavailable");
pub(super) const TIMEOUT_CONNECT: Code = Code::from_static("timeout.connect");
pub(super) const TIMEOUT_READ: Code = Code::from_static("timeout.read");
pub(super) const TIMEOUT_REQUEST: Code = Code::from_static("timeout.request");
pub(super) const TLS_FAILED: Code = Code::from_static("tls.failed");

/// The code of a status that says nothing about an event.
pub(super) fn of_status(status: u16) -> Code {
    match status {
        401 | 403 => AUTH_DENIED,
        404 => NOT_FOUND,
        408 => TIMEOUT_REQUEST,
        429 => RATE_LIMITED,
        503 => STORE_UNAVAILABLE,
        other => Code::new(format!("http.{other}")).unwrap_or(HTTP),
    }
}
