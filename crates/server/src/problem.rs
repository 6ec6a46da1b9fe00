//! The body of every failure: `{"code", "message", "details"}`.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
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
    /// The code of the problem, a stable dotted string.
    #[schema(value_type = String, example = "http.not-found")]
    code: ProblemCode,
    /// The problem in words, for people.
    message: String,
    /// Details for programs.
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

    /// The problem in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Marks a response whose body is as its handler wants it, whatever its status. The body of any other failure
/// is replaced by an [`ApiProblem`]. A handler adds it as `Extension(OwnBody)`.
#[derive(Debug, Clone, Copy)]
pub struct OwnBody;

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(&self)).into_response();
        if code == ProblemCode::Unauthorized {
            let challenge = HeaderValue::from_static("Bearer realm=\"tidegate\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response.extensions_mut().insert(OwnBody);
        // For routes that write the bodies of their failures in another form.
        response.extensions_mut().insert(self);
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
    let (code, message) = ProblemCode::of_status(status);
    if code == ProblemCode::BodyTooLarge {
        telemetry::limit_hit(telemetry::Limit::MaxBody);
    }
    let (parts, body) = response.into_parts();
    let text = text_of(body).await;
    let problem = if status.is_server_error() {
        // The text of a library about its own failure may tell about our insides.
        telemetry::failed(request_id, status.as_u16(), &text);
        ApiProblem::new(code, message).with("id", request_id)
    } else if text.is_empty() || code == ProblemCode::BodyTooLarge {
        // The text of a library about a long body does not name the limit.
        ApiProblem::new(code, message)
    } else {
        ApiProblem::new(code, text)
    };
    let mut replaced = problem.into_response();
    if let Some(value) = parts.headers.get(RETRY_AFTER) {
        replaced.headers_mut().insert(RETRY_AFTER, value.clone());
    }
    replaced
}

/// The problem of a failure of ours, which says nothing but where to look.
pub(crate) fn internal(request_id: &str) -> ApiProblem {
    let (code, message) = ProblemCode::of_status(StatusCode::INTERNAL_SERVER_ERROR);
    ApiProblem::new(code, message).with("id", request_id)
}

async fn text_of(body: Body) -> String {
    let bytes = to_bytes(body, MAX_FOREIGN_TEXT).await.unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
