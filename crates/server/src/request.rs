//! The way of every request: an id, a span, the guard, the time limit, the handler, and a body
//! that is a problem whenever the answer is no.

mod id;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{CONNECTION, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_core::env::{CatchPanic, Clock};
use tidegate_core::{TRACEPARENT, Traceparent};
use tracing::Instrument;

use crate::eventlog;
use crate::guard::Guard;
use crate::in_flight::InFlight;
use crate::telemetry::{self, Limit};
use crate::{ApiProblem, Health, ProblemCode, problem};
pub(crate) use id::RequestIds;

/// The header that names a request, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The label `route` of requests that match none: their paths are endless.
const NO_ROUTE: &str = "none";

/// The checks that every request goes through.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: RequestIds,
    pub(crate) guard: Guard,
    pub(crate) health: Health,
    pub(crate) in_flight: InFlight,
    pub(crate) timeout: Duration,
}

/// Answers one request; the outermost layer of the router.
pub(crate) async fn pass(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let ticket = gate.in_flight.enter();
    let started = gate.clock.elapsed();
    let id = gate.ids.of(text(request.headers(), REQUEST_ID.as_str()));
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or(NO_ROUTE, MatchedPath::as_str)
        .to_owned();
    let is_event_log = eventlog::is_path(request.uri().path());
    let parent = text(request.headers(), TRACEPARENT).map(str::trim);
    let parent = parent.and_then(|text| text.parse::<Traceparent>().ok());
    let trace_id = parent.map(|parent| parent.trace_id.to_string());
    let span = telemetry::span(&id, &method, &route, trace_id.as_deref());

    let answering = async {
        let answer = CatchPanic(Box::pin(gate.answer(request, next, &id))).await;
        let response = answer.unwrap_or_else(|panic| {
            telemetry::panicked(&id, &panic);
            problem::internal(&id).into_response()
        });
        let took = gate.clock.elapsed().saturating_sub(started);
        telemetry::answered(&method, &route, response.status(), took);
        response
    };
    let mut response = answering.instrument(span).await;
    if is_event_log {
        response = eventlog::in_its_form(response);
    }

    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if gate.health.is_draining() {
        // Idle connections stay open until all work is done, so that a probe on one of them hears
        // that we are not ready; but none of them may bring more than one request.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    ticket.attach_to(response)
}

impl Gate {
    async fn answer(&self, mut request: Request, next: Next, id: &str) -> Response {
        match self.guard.admit(&request) {
            Ok(access) => request.extensions_mut().insert(access),
            Err(problem) => return problem.into_response(),
        };
        let handled = async { problem::replace_foreign(next.run(request).await, id).await };
        let handled = self.clock.within(self.timeout, handled).await;
        handled.unwrap_or_else(|| {
            telemetry::limit_hit(Limit::RequestTimeout);
            let message = format!("no answer within {:?}", self.timeout);
            ApiProblem::new(ProblemCode::Timeout, message).into_response()
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
