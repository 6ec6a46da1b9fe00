//! The codes of problem bodies, and the HTTP status of each: the one place that maps them.

use axum::http::StatusCode;
use serde::{Serialize, Serializer};

// error-page: http
/// The kind of a problem, a stable string that clients may match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemCode {
    /// The request could not be understood: bad JSON, a bad query, a bad path.
    BadRequest,
    /// The bearer token is missing or wrong.
    Unauthorized,
    /// The request may not be made.
    Forbidden,
    /// The `Host` is not a loopback name while no token protects the server.
    ForeignHost,
    /// A page of another site made the request while no token protects the server.
    ForeignOrigin,
    /// The server changes nothing.
    ReadOnly,
    /// There is no such route.
    NotFound,
    /// The route does not take this method.
    MethodNotAllowed,
    /// The body is longer than `server.max-body`.
    BodyTooLarge,
    /// The body has a content type that the route does not take.
    UnsupportedMediaType,
    /// We made a mistake; the log has more under the id in the details.
    Internal,
    /// Something that the request needs does not answer now.
    Unavailable,
    /// The books of a component could not be read.
    LedgerUnavailable,
    /// The request took longer than it may; whether it did its work is unknown.
    Timeout,
    /// There is no such topic.
    LogUnknownTopic,
    /// The topic has no such partition.
    LogUnknownPartition,
    /// No topic has the event.
    WhereUnknown,
    /// A record is larger than its topic takes.
    LogRecordTooLarge,
    /// The records of a request are more than the log takes at once.
    LogCommitTooLarge,
    /// There is no such group.
    LogUnknownGroup,
    /// The topic cannot be set up like that.
    LogTopicConfig,
    /// Groups have still to read some of the topic.
    LogUnread,
    /// The group or topic is in use.
    LogInUse,
    /// The offset is not there: removed, or not written yet.
    LogOutOfRange,
    /// Records are damaged on disk; those around them can be read.
    LogDamaged,
    /// The log is full.
    LogFull,
    /// The log cannot do this now; the details name the cause.
    LogUnavailable,
    /// Nobody knows whether the records were added.
    LogOutcomeUnknown,
    /// The `Idempotency-Key` was used for another request.
    IdempotencyConflict,
    /// The first request with this `Idempotency-Key` has not answered yet.
    IdempotencyRunning,
    /// The database does not answer.
    StoreUnavailable,
}

impl ProblemCode {
    /// The string that stands in the body.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status of a response with this code.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        self.row().1
    }

    const fn row(self) -> (&'static str, StatusCode) {
        match self {
            Self::BadRequest => ("http.bad-request", StatusCode::BAD_REQUEST),
            Self::Unauthorized => ("http.unauthorized", StatusCode::UNAUTHORIZED),
            Self::Forbidden => ("http.forbidden", StatusCode::FORBIDDEN),
            Self::ForeignHost => ("http.foreign-host", StatusCode::FORBIDDEN),
            Self::ForeignOrigin => ("http.foreign-origin", StatusCode::FORBIDDEN),
            Self::ReadOnly => ("server.read-only", StatusCode::FORBIDDEN),
            Self::NotFound => ("http.not-found", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("http.method-not-allowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::BodyTooLarge => ("http.body-too-large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::UnsupportedMediaType => (
                "http.unsupported-media-type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
            Self::Unavailable => ("http.unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::LedgerUnavailable => ("ledger.unavailable", StatusCode::SERVICE_UNAVAILABLE),
            // Not 503: that would invite a retry of something that may have been done.
            Self::Timeout => ("http.timeout", StatusCode::GATEWAY_TIMEOUT),
            Self::LogUnknownTopic => ("log.unknown-topic", StatusCode::NOT_FOUND),
            Self::LogUnknownPartition => ("log.unknown-partition", StatusCode::NOT_FOUND),
            Self::WhereUnknown => ("where.unknown", StatusCode::NOT_FOUND),
            Self::LogRecordTooLarge => ("log.record-too-large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::LogCommitTooLarge => ("log.commit-too-large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::LogUnknownGroup => ("log.unknown-group", StatusCode::NOT_FOUND),
            Self::LogTopicConfig => ("log.topic-config", StatusCode::CONFLICT),
            Self::LogUnread => ("log.unread", StatusCode::CONFLICT),
            Self::LogInUse => ("log.in-use", StatusCode::CONFLICT),
            Self::LogOutOfRange => ("log.out-of-range", StatusCode::RANGE_NOT_SATISFIABLE),
            Self::LogDamaged => ("log.damaged", StatusCode::INTERNAL_SERVER_ERROR),
            Self::LogFull => ("log.full", StatusCode::INSUFFICIENT_STORAGE),
            Self::LogUnavailable => ("log.unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::LogOutcomeUnknown => ("log.outcome-unknown", StatusCode::GATEWAY_TIMEOUT),
            Self::IdempotencyConflict => ("idempotency.conflict", StatusCode::CONFLICT),
            // Not 409: the same request may be made again in a moment.
            Self::IdempotencyRunning => ("idempotency.running", StatusCode::SERVICE_UNAVAILABLE),
            Self::StoreUnavailable => ("store.unavailable", StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// The code for a failure that a library answered with nothing but this status, and its text.
    pub(crate) fn of_status(status: StatusCode) -> (Self, &'static str) {
        match status {
            StatusCode::UNAUTHORIZED => (Self::Unauthorized, "a bearer token is needed"),
            StatusCode::FORBIDDEN => (Self::Forbidden, "the request may not be made"),
            StatusCode::NOT_FOUND => (Self::NotFound, "there is nothing here"),
            StatusCode::METHOD_NOT_ALLOWED => (
                Self::MethodNotAllowed,
                "the route does not take this method; the header `allow` lists those it takes",
            ),
            StatusCode::PAYLOAD_TOO_LARGE => (
                Self::BodyTooLarge,
                "the body is longer than `server.max-body` allows",
            ),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => (
                Self::UnsupportedMediaType,
                "the content type of the body is not taken here",
            ),
            StatusCode::SERVICE_UNAVAILABLE => (
                Self::Unavailable,
                "what the request needs does not answer now",
            ),
            StatusCode::GATEWAY_TIMEOUT => (Self::Timeout, "the request took too long"),
            status if status.is_server_error() => (
                Self::Internal,
                "something went wrong here; the log has more under the id",
            ),
            _ => (Self::BadRequest, "the request could not be understood"),
        }
    }
}

impl Serialize for ProblemCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_their_status_are_stable() {
        let all = [
            ProblemCode::BadRequest,
            ProblemCode::Unauthorized,
            ProblemCode::Forbidden,
            ProblemCode::ForeignHost,
            ProblemCode::ForeignOrigin,
            ProblemCode::ReadOnly,
            ProblemCode::NotFound,
            ProblemCode::MethodNotAllowed,
            ProblemCode::BodyTooLarge,
            ProblemCode::UnsupportedMediaType,
            ProblemCode::Internal,
            ProblemCode::Unavailable,
            ProblemCode::LedgerUnavailable,
            ProblemCode::Timeout,
            ProblemCode::LogUnknownTopic,
            ProblemCode::LogUnknownPartition,
            ProblemCode::WhereUnknown,
            ProblemCode::LogRecordTooLarge,
            ProblemCode::LogCommitTooLarge,
            ProblemCode::LogOutOfRange,
            ProblemCode::LogDamaged,
            ProblemCode::LogFull,
            ProblemCode::LogUnavailable,
            ProblemCode::LogOutcomeUnknown,
            ProblemCode::IdempotencyConflict,
            ProblemCode::IdempotencyRunning,
            ProblemCode::StoreUnavailable,
        ];
        let table: Vec<String> = all
            .iter()
            .map(|code| format!("{} {}", code.status().as_u16(), code.as_str()))
            .collect();
        insta::assert_snapshot!(table.join("\n"), @"
        400 http.bad-request
        401 http.unauthorized
        403 http.forbidden
        403 http.foreign-host
        403 http.foreign-origin
        403 server.read-only
        404 http.not-found
        405 http.method-not-allowed
        413 http.body-too-large
        415 http.unsupported-media-type
        500 internal
        503 http.unavailable
        503 ledger.unavailable
        504 http.timeout
        404 log.unknown-topic
        404 log.unknown-partition
        404 where.unknown
        413 log.record-too-large
        413 log.commit-too-large
        416 log.out-of-range
        500 log.damaged
        507 log.full
        503 log.unavailable
        504 log.outcome-unknown
        409 idempotency.conflict
        503 idempotency.running
        503 store.unavailable
        ");
    }
}
