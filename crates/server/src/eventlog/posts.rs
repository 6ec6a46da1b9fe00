//! Posting events.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use tidegate_core::EventId;
use tidegate_eventlog::{BatchAnswer, PostAnswer, PostOrigin};

use super::EventLogApi;
use super::problem::EventLogProblem;
use super::schema::{BatchAnswerSchema, EventBatchSchema, EventSchema, PostAnswerSchema};
use crate::idempotency::IDEMPOTENCY_KEY;

type Api = State<Arc<EventLogApi>>;
type Created<T> = Result<(StatusCode, Json<T>), EventLogProblem>;

/// The header with the id of a single event.
const EVENT_ID: &str = "x-tidegate-event-id";
/// The header with the spill directory that events went through.
const LOGGER: &str = "x-tidegate-logger";

/// Stores one event, and answers when it is durable.
///
/// The key of an event is its `idempotencyKey`, else the header `Idempotency-Key`, else its id. A repeat gets
/// the first answer.
#[utoipa::path(post, path = "/v1/events", tag = "eventlog",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The key of the event."),
        ("x-tidegate-event-id" = Option<String>, Header, description = "The id of the event."),
        ("x-tidegate-logger" = Option<String>, Header, description = "The spill directory it went through."),
    ),
    request_body = EventSchema,
    responses(
        (status = 201, description = "The event is stored.", body = PostAnswerSchema),
        (status = 400, description = "The event or a header is invalid.", body = EventLogProblem),
        (status = 409, description = "The key has another content.", body = EventLogProblem),
        (status = 413, description = "The body is too large.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 429, description = "The application sends too much.", body = EventLogProblem),
        (status = 503, description = "The store is away.", body = EventLogProblem),
))]
pub(super) async fn post_event(
    State(api): Api,
    headers: HeaderMap,
    body: Bytes,
) -> Created<PostAnswer> {
    let json = json_text(&headers, &body)?;
    let origin = PostOrigin {
        key: header(&headers, IDEMPOTENCY_KEY.as_str())?,
        event_id: event_id(&headers)?,
        logger: logger(&headers),
        ..PostOrigin::default()
    };
    check_key(origin.key.as_deref())?;
    let answer = api.log.post_one(json, origin).await?;
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Stores many events, each judged for itself, and answers when the good ones are durable.
#[utoipa::path(post, path = "/v1/events/batch", tag = "eventlog",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The key of the request."),
        ("x-tidegate-logger" = Option<String>, Header, description = "The spill directory they went through."),
    ),
    request_body = EventBatchSchema,
    responses(
        (status = 201, description = "The outcome of each event.", body = BatchAnswerSchema),
        (status = 400, description = "The envelope or a header is invalid.", body = EventLogProblem),
        (status = 409, description = "The key was used before.", body = EventLogProblem),
        (status = 413, description = "The batch is too large.", body = EventLogProblem),
        (status = 415, description = "The body is not JSON.", body = EventLogProblem),
        (status = 429, description = "An application sends too much.", body = EventLogProblem),
        (status = 503, description = "The store is away; nothing is stored.", body = EventLogProblem),
))]
pub(super) async fn post_batch(
    State(api): Api,
    headers: HeaderMap,
    body: Bytes,
) -> Created<BatchAnswer> {
    let json = json_text(&headers, &body)?;
    let origin = PostOrigin {
        key: header(&headers, IDEMPOTENCY_KEY.as_str())?,
        logger: logger(&headers),
        ..PostOrigin::default()
    };
    let answer = api.log.post_batch(json, origin).await?;
    Ok((StatusCode::CREATED, Json(answer)))
}

/// The text of a JSON body.
pub(super) fn json_text<'a>(
    headers: &HeaderMap,
    body: &'a Bytes,
) -> Result<&'a str, EventLogProblem> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(is_json) {
        return Err(EventLogProblem::unsupported());
    }
    std::str::from_utf8(body).map_err(|error| {
        let message = format!("is not UTF-8 from byte {} on", error.valid_up_to());
        EventLogProblem::invalid([(String::new(), message)])
    })
}

/// Whether a content type is JSON, with or without parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn header(headers: &HeaderMap, name: &str) -> Result<Option<String>, EventLogProblem> {
    let text = headers.get(name).map(|value| value.to_str());
    match text.transpose() {
        Ok(text) => Ok(text.map(str::to_owned)),
        Err(_) => {
            let message = "must be visible ASCII characters".to_owned();
            Err(EventLogProblem::invalid([(name.to_owned(), message)]))
        }
    }
}

/// The id of the logger as it came; the event log says what is wrong with it.
fn logger(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(LOGGER)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn event_id(headers: &HeaderMap) -> Result<Option<EventId>, EventLogProblem> {
    let id = header(headers, EVENT_ID)?.map(|text| text.parse());
    id.transpose()
        .map_err(|_| EventLogProblem::invalid([(EVENT_ID.to_owned(), "must be a UUID".to_owned())]))
}

/// The limit of the field that the header stands for.
fn check_key(key: Option<&str>) -> Result<(), EventLogProblem> {
    const LIMIT: usize = 128;
    if key.is_some_and(|key| key.is_empty() || key.len() > LIMIT) {
        let message = format!("must have 1 to {LIMIT} characters");
        let name = IDEMPOTENCY_KEY.as_str().to_owned();
        return Err(EventLogProblem::invalid([(name, message)]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_under_several_types() {
        for (kind, expect) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/cloudevents+json", true),
            ("text/plain", false),
            ("application/xml", false),
            ("", false),
        ] {
            assert_eq!(is_json(kind), expect, "{kind}");
        }
    }
}
