//! The answers when something does not work.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::resort::BookingState;

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request.invalid", message)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        let message = format!("there is no {what} {id}");
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn conflict(id: &str, state: BookingState) -> Self {
        let message = format!("booking {id} is {state:?}");
        Self::new(StatusCode::CONFLICT, "booking.state", message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message });
        (self.status, Json(body)).into_response()
    }
}

/// A JSON body. One that cannot be read is answered as every other invalid request.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let read: Result<Json<T>, JsonRejection> = Json::from_request(request, state).await;
        match read {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}
