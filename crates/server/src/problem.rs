//! The body of every failure: `{"code", "message", "details"}`.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{ProblemCode, telemetry};

/// The bytes that are read of what a library says about a failure; a longer text is left out.
const MAX_FOREIGN_TEXT: usize = 1024;

/// The body of a response that says no.
///
/// ```
/// use tidegate_server::{ApiProblem, ProblemCode};
/// let problem = ApiProblem::new(ProblemCode::NotFound, "there is no binding `orders`")
///     .with("binding", "orders");
/// assert_eq!(
///     serde_json::to_string(&problem)?,
///     r#"{"code":"http.not-found","message":"there is no binding `orders`","details":{"binding":"orders"}}"#,
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ApiProblem {
    /// What went wrong, as a stable dotted string.
    #[schema(value_type = String, example = "http.not-found")]
    code: ProblemCode,
    /// What went wrong, for people.
    message: String,
    /// What a program may want to know about it.
    #[schema(value_type = Object)]
    details: Map<String, Value>,
}

impl ApiProblem {
    /// A problem without details.
    #[must_use]
    pub fn new(code: ProblemCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Map::new(),
        }
    }

    /// The same problem with one more detail; a detail of that name is replaced.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> ProblemCode {
        self.code
    }
}

/// Marks a response whose body is as we want it, whatever its status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBody;

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(self)).into_response();
        if code == ProblemCode::Unauthorized {
            let challenge = HeaderValue::from_static("Bearer realm=\"tidegate\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response.extensions_mut().insert(OwnBody);
        response
    }
}

/// Puts a problem in place of a failure that did not come from us: what extractors, routers and
/// layers of libraries answer is text, or nothing.
pub(crate) async fn replace_foreign(response: Response, request_id: &str) -> Response {
    let status = response.status();
    let is_failure = status.is_client_error() || status.is_server_error();
    if !is_failure || response.extensions().get::<OwnBody>().is_some() {
        return response;
    }
    let code = ProblemCode::of_status(status);
    if code == ProblemCode::BodyTooLarge {
        telemetry::limit_hit(telemetry::Limit::MaxBody);
    }
    let (parts, body) = response.into_parts();
    let text = text_of(body).await;
    let problem = if status.is_server_error() {
        // What a library says about its own failure may tell about our insides.
        telemetry::failed(request_id, status.as_u16(), &text);
        internal_or(code, request_id)
    } else {
        foreign_problem(code, text)
    };
    let mut replaced = problem.into_response();
    if let Some(value) = parts.headers.get(RETRY_AFTER) {
        replaced.headers_mut().insert(RETRY_AFTER, value.clone());
    }
    replaced
}

/// The problem of a failure of ours, which says nothing but where to look.
pub(crate) fn internal(request_id: &str) -> ApiProblem {
    ApiProblem::new(
        ProblemCode::Internal,
        "something went wrong here; the log has more under the id",
    )
    .with("id", request_id)
}

fn internal_or(code: ProblemCode, request_id: &str) -> ApiProblem {
    if code == ProblemCode::Internal {
        internal(request_id)
    } else {
        ApiProblem::new(code, default_message(code)).with("id", request_id)
    }
}

fn foreign_problem(code: ProblemCode, text: String) -> ApiProblem {
    // What a library says about a long body does not name the limit.
    if text.is_empty() || code == ProblemCode::BodyTooLarge {
        ApiProblem::new(code, default_message(code))
    } else {
        ApiProblem::new(code, text)
    }
}

async fn text_of(body: Body) -> String {
    let bytes = to_bytes(body, MAX_FOREIGN_TEXT).await.unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn default_message(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::BadRequest => "the request could not be understood",
        ProblemCode::Unauthorized => "a bearer token is needed",
        ProblemCode::Forbidden | ProblemCode::ForeignHost | ProblemCode::ForeignOrigin => {
            "the request may not be made"
        }
        ProblemCode::ReadOnly => "the server is read-only",
        ProblemCode::NotFound => "there is nothing here",
        ProblemCode::MethodNotAllowed => {
            "the route does not take this method; the header `allow` lists those it takes"
        }
        ProblemCode::BodyTooLarge => "the body is longer than `server.max-body` allows",
        ProblemCode::UnsupportedMediaType => "the content type of the body is not taken here",
        ProblemCode::Internal => "something went wrong here",
        ProblemCode::Unavailable | ProblemCode::LedgerUnavailable => {
            "what the request needs does not answer now"
        }
        ProblemCode::Timeout => "the request took too long",
        ProblemCode::LogUnknownTopic
        | ProblemCode::LogUnknownPartition
        | ProblemCode::WhereUnknown
        | ProblemCode::LogOutOfRange => "the log does not have it",
        ProblemCode::LogRecordTooLarge | ProblemCode::LogCommitTooLarge => {
            "the log does not take as much at once"
        }
        ProblemCode::LogDamaged => "what the log has there is damaged",
        ProblemCode::LogFull | ProblemCode::LogUnavailable => "the log cannot do this now",
        ProblemCode::LogOutcomeUnknown => "the outcome is unknown",
    }
}
