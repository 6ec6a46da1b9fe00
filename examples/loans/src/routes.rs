//! The service over HTTP.

use std::error::Error;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::json;
use tidegate_core::error_chain;
use tidegate_logger::TraceContext;
use tidegate_server::OwnBody;
use tidegate_store::idempotency::{KeptAnswer, KeyClaim};

use crate::book::{Asker, BookError, LoanBook};
use crate::loan::{LoanCommand, LoanRefusal, LoanRequest};

type Book = State<Arc<LoanBook>>;

pub(crate) fn router(book: Arc<LoanBook>) -> Router {
    Router::new()
        .route("/api/loans/simulate", post(simulate))
        .route("/api/loans", post(create))
        .route("/api/loans/{id}", get(find))
        .route("/api/loans/{id}/approve", post(approve))
        .route("/api/loans/{id}/reject", post(reject))
        .route("/api/loans/{id}/contract", post(contract))
        .route("/api/loans/{id}/disburse", post(disburse))
        .route("/api/loans/{id}/pay", post(pay))
        .with_state(book)
}

impl FromRequestParts<Arc<LoanBook>> for Asker {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        book: &Arc<LoanBook>,
    ) -> Result<Self, Self::Rejection> {
        let headers = &parts.headers;
        let lookup = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Ok(Self {
            trace: book.trace(lookup),
            claim: parts.extensions.get::<KeyClaim>().cloned(),
        })
    }
}

async fn simulate(
    State(book): Book,
    asker: Asker,
    request: Result<Json<LoanRequest>, JsonRejection>,
) -> Response {
    let quoted = read(request).and_then(|request| Ok(book.terms.quote(&request)?));
    let answer = quoted.map(|quote| KeptAnswer {
        status: 200,
        body: json!(quote).to_string(),
    });
    respond(answer, &asker.trace)
}

async fn create(
    State(book): Book,
    asker: Asker,
    request: Result<Json<LoanRequest>, JsonRejection>,
) -> Response {
    let answer = match read(request) {
        Ok(request) => book.create(request, &asker).await,
        Err(error) => Err(error),
    };
    respond(answer, &asker.trace)
}

async fn find(State(book): Book, asker: Asker, Path(id): Path<String>) -> Response {
    let found = book.find(id).await;
    let answer = found.map(|loan| KeptAnswer {
        status: 200,
        body: json!(loan).to_string(),
    });
    respond(answer, &asker.trace)
}

async fn approve(book: Book, asker: Asker, id: Path<String>) -> Response {
    change(book, asker, id, LoanCommand::Approve).await
}

async fn reject(book: Book, asker: Asker, id: Path<String>) -> Response {
    change(book, asker, id, LoanCommand::Reject).await
}

async fn contract(book: Book, asker: Asker, id: Path<String>) -> Response {
    change(book, asker, id, LoanCommand::Contract).await
}

async fn disburse(book: Book, asker: Asker, id: Path<String>) -> Response {
    change(book, asker, id, LoanCommand::Disburse).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payment {
    amount_cents: i64,
}

async fn pay(
    book: Book,
    asker: Asker,
    id: Path<String>,
    payment: Result<Json<Payment>, JsonRejection>,
) -> Response {
    match read(payment) {
        Ok(payment) => change(book, asker, id, LoanCommand::Pay(payment.amount_cents)).await,
        Err(error) => respond(Err(error), &asker.trace),
    }
}

async fn change(
    State(book): Book,
    asker: Asker,
    Path(id): Path<String>,
    command: LoanCommand,
) -> Response {
    let answer = book.change(&id, command, &asker).await;
    respond(answer, &asker.trace)
}

fn read<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, BookError> {
    match body {
        Ok(Json(body)) => Ok(body),
        Err(rejection) => Err(LoanRefusal::Invalid(rejection.body_text()).into()),
    }
}

/// The answer, with the trace that it belongs to.
fn respond(answer: Result<KeptAnswer, BookError>, trace: &TraceContext) -> Response {
    let mut response = match answer {
        Ok(answer) => {
            let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
            let mut response = (status, Body::from(answer.body)).into_response();
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(error) => problem(&error, trace),
    };
    for (name, value) in trace.echo() {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Tells the log why, and the caller only what to do.
fn undone(error: &dyn Error, may_have_happened: bool, trace: &TraceContext) -> String {
    let (trace_id, why) = (trace.trace_id, error_chain(error));
    tracing::warn!(%trace_id, why, "the database did not do it");
    match may_have_happened {
        true => "nobody knows whether it was done; repeat it with its `Idempotency-Key`",
        false => "the database does not answer now; nothing was done",
    }
    .to_owned()
}

fn problem(error: &BookError, trace: &TraceContext) -> Response {
    let (status, code) = match error {
        BookError::Refused(LoanRefusal::Invalid(_)) => (StatusCode::BAD_REQUEST, "loan.invalid"),
        BookError::Refused(LoanRefusal::Status { .. }) => (StatusCode::CONFLICT, "loan.status"),
        BookError::Refused(LoanRefusal::Unknown(_)) => (StatusCode::NOT_FOUND, "loan.unknown"),
        BookError::Store(_) | BookError::Outbox(_) | BookError::TakenOver => {
            (StatusCode::SERVICE_UNAVAILABLE, "loan.unavailable")
        }
    };
    let message = match error {
        BookError::Refused(_) | BookError::TakenOver => error.to_string(),
        BookError::Store(error) => undone(error, error.may_have_happened(), trace),
        BookError::Outbox(error) => undone(error, error.may_have_happened(), trace),
    };
    let body = json!({ "code": code, "message": message, "details": {} });
    let mut response = (status, Extension(OwnBody), Json(body)).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let second = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, second);
    }
    response
}
