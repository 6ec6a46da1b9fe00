//! Bodies that are longer than a route takes.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt as _;

/// The longest body that is read for nothing.
const MOST_DISCARDED: usize = 16 * 1024 * 1024;

/// Reads a body that will be refused for its length, if it says how long it is. A connection that is closed on a
/// client that still sends may take the answer with it.
pub(crate) async fn discard(
    State(max_body): State<usize>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    // A client that asks beforehand sends nothing.
    let is_sent = !headers.contains_key(EXPECT);
    let is_refused = length.is_some_and(|length| length > max_body && length <= MOST_DISCARDED);
    if !is_sent || !is_refused {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let mut chunks = body.into_data_stream();
    while let Some(Ok(_)) = chunks.next().await {}
    next.run(Request::from_parts(parts, Body::empty())).await
}
