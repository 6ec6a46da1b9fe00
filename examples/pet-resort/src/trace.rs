//! Which trace a request belongs to, and what may go wrong with it on purpose.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::resort::Resort;

/// Reads the trace of a request for its handler, and echoes it in the answer.
pub(crate) async fn follow(
    State(resort): State<Arc<Resort>>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let lookup = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let trace = resort.trace(lookup);
    let echo = trace.echo();
    // Every line of the log that the request causes carries its trace.
    let span = tracing::info_span!("request", trace_id = %trace.trace_id);
    request.extensions_mut().insert(trace);
    let mut response = next.run(request).instrument(span).await;
    for (name, value) in echo {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Whether this trouble is asked for.
pub(crate) fn simulates(headers: &HeaderMap, trouble: &str) -> bool {
    headers
        .get("x-simulate")
        .is_some_and(|value| value == trouble)
}
