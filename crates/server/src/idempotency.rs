//! `Idempotency-Key`: a request that is made twice is done once.
//!
//! The layer stands around the routes that change something. A request without the header passes through.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_core::env::Clock;
use tidegate_store::idempotency::{
    self, KeptAnswer, KeyClaim, KeyState, KeyedRequest, MAX_KEY, fingerprint,
};
use tidegate_store::{Store, StoreError};

use crate::problem::OwnBody;
use crate::{ApiProblem, ProblemCode};

/// The header of the key.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Where the answers to requests with an `Idempotency-Key` are kept, and how long.
#[derive(Debug, Clone)]
pub struct IdempotencyKeys {
    /// The database, with the tables of `tidegate_store`.
    pub store: Store,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// How long an answer is kept (`idempotency-ttl`).
    pub ttl: Duration,
}

/// Answers a request with a key once, and its repeats with the same answer.
pub(crate) async fn pass(
    State(keys): State<Arc<IdempotencyKeys>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = key_of(&request) else {
        return next.run(request).await;
    };
    let key = match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= MAX_KEY => key.to_owned(),
        Ok(_) | Err(_) => {
            let text = format!("`Idempotency-Key` must be 1 to {MAX_KEY} visible characters");
            return ApiProblem::new(ProblemCode::BadRequest, text).into_response();
        }
    };
    match keys.answer(key, request, next).await {
        Ok(response) => response,
        Err(error) => unavailable(&error),
    }
}

/// Refuses a request with a key in a process that has nowhere to keep its answer: done without the key, a repeat
/// of it would be done again.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
    if key_of(&request).is_none() {
        return next.run(request).await;
    }
    let text = "this process keeps no answers for an `Idempotency-Key`: set `store.url`, or leave the header out";
    ApiProblem::new(ProblemCode::BadRequest, text).into_response()
}

/// The key of a request that changes something.
fn key_of(request: &Request) -> Option<&HeaderValue> {
    let changes_nothing = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    let key = request.headers().get(IDEMPOTENCY_KEY);
    key.filter(|_| !changes_nothing)
}

impl IdempotencyKeys {
    async fn answer(
        &self,
        key: String,
        request: Request,
        next: Next,
    ) -> Result<Response, StoreError> {
        let scope = format!("{} {}", request.method(), request.uri());
        let (parts, body) = request.into_parts();
        // The layer that limits bodies cuts the reading short.
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            let (code, text) = ProblemCode::of_status(StatusCode::PAYLOAD_TOO_LARGE);
            return Ok(ApiProblem::new(code, text).into_response());
        };
        let keyed = KeyedRequest {
            scope,
            key,
            fingerprint: fingerprint(&body),
        };
        match idempotency::begin(&self.store, keyed, self.clock.now_ms(), self.ttl).await? {
            KeyState::New(claim) => {
                let mut request = Request::from_parts(parts, Body::from(body));
                // A handler that must not repeat its work keeps the answer in its own transaction.
                request.extensions_mut().insert(claim.clone());
                let response = next.run(request).await;
                Ok(self.keep(claim, response).await)
            }
            KeyState::Answered(answer) => Ok(repeated(answer)),
            KeyState::Running => {
                let text = "the first request with this `Idempotency-Key` is still running";
                let problem = ApiProblem::new(ProblemCode::IdempotencyRunning, text);
                Ok(later(problem.into_response()))
            }
            KeyState::Conflict => {
                let text = "the `Idempotency-Key` was used for another request";
                Ok(ApiProblem::new(ProblemCode::IdempotencyConflict, text).into_response())
            }
        }
    }

    /// Keeps an answer that stands, and gives the key back after one that may change.
    async fn keep(&self, claim: KeyClaim, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let kept = match stands(parts.status) {
            true => {
                let answer = KeptAnswer {
                    status: parts.status.as_u16(),
                    body: String::from_utf8_lossy(&body).into_owned(),
                };
                idempotency::finish(&self.store, claim, answer)
                    .await
                    .map(drop)
            }
            false => idempotency::release(&self.store, claim).await,
        };
        if let Err(error) = kept {
            // The work is done, and its answer is right. A repeat does it again once the lock has run out.
            tracing::warn!(%error, "could not keep the answer to an idempotency key");
        }
        Response::from_parts(parts, Body::from(body))
    }
}

/// Whether asking again would give the same answer. A request that could not be understood has changed nothing,
/// and may come again corrected, under its key.
fn stands(status: StatusCode) -> bool {
    let may_pass = [
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    !status.is_server_error() && !may_pass.contains(&status)
}

fn repeated(answer: KeptAnswer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut response = Response::new(Body::from(Bytes::from(answer.body)));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response.extensions_mut().insert(OwnBody);
    response
}

fn later(mut response: Response) -> Response {
    let second = HeaderValue::from_static("1");
    response.headers_mut().insert(RETRY_AFTER, second);
    response
}

fn unavailable(error: &StoreError) -> Response {
    tracing::warn!(%error, "could not take an idempotency key");
    let text = "the database does not answer now";
    later(ApiProblem::new(ProblemCode::StoreUnavailable, text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_when_it_would_be_the_same_again() {
        for (status, expect) in [
            (201, true),
            (204, true),
            (400, false),
            (422, false),
            (404, true),
            (409, true),
            (401, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let code = StatusCode::from_u16(status).unwrap();
            assert_eq!(stands(code), expect, "{status}");
        }
    }
}
