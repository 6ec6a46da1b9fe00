//! The Event Log API over HTTP.
//!
//! One event is `POST {base}/v1/events`, several are `POST {base}/v1/events/batch`. The pure
//! function [`classify`] decides what an answer means, and [`failure`] what a broken connection means.
//! Everything else here only carries bytes.
//!
//! **Invariant:** an event is [`Stored`](crate::EventOutcome::Stored) only when a whole, readable
//! answer with a status of 2xx says so. A page of a proxy, half an answer and silence say nothing.

mod authentication;
mod builder;
mod classify;
mod codes;
mod failure;
mod retry_after;
mod token;

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Response, Url};
use tidegate_core::env::Clock;

use crate::api::{Api, ApiAnswer, ApiFailure, Payload, Sending};
use crate::logger_id::LoggerId;
use token::Bearer;

pub use authentication::{Authentication, ClientCredentials};
pub use builder::{HttpApiBuilder, HttpApiError};
pub use classify::{ResponseBody, classify};

/// Most bytes of a response that are read.
///
/// An answer about a batch is far smaller than the batch, and a batch is at most this large. A longer
/// response comes from something that is not the Event Log API.
pub const RESPONSE_LIMIT: usize = 1024 * 1024;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const EVENT_ID: &str = "x-tidegate-event-id";
const APPLICATION_ID: &str = "X-Application-Id";
const LOGGER: &str = "x-tidegate-logger";

/// The Event Log API over HTTP.
///
/// Each call is one request: redirects are not followed, and nothing is sent a second time. It
/// needs a tokio runtime with I/O and timers around it. A call takes at most the request timeout,
/// and as long again when a token has to be fetched first. If a call is dropped, its connection is
/// closed; the events may be stored, and sending them again stores nothing twice.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::env::system::SystemClock;
/// use tidegate_logger::{Authentication, HttpApi};
///
/// let api = HttpApi::builder("http://127.0.0.1:8080")
///     .application_id("pet-resort-api")
///     .authentication(Authentication::token("t0p-secret"))
///     .build(Arc::new(SystemClock::new()))?;
/// assert!(!format!("{api:?}").contains("t0p-secret"));
/// # Ok::<(), tidegate_logger::HttpApiError>(())
/// ```
pub struct HttpApi {
    client: reqwest::Client,
    one: Url,
    many: Url,
    application_id: Option<HeaderValue>,
    batch_limit: usize,
    bearer: Bearer,
    clock: Arc<dyn Clock>,
}

impl HttpApi {
    /// Starts the configuration of a client for the API at `base_url`, such as
    /// `http://127.0.0.1:8080` or `https://example.com/eventlog/`; `/v1/events` is added to it.
    #[must_use]
    pub fn builder(base_url: impl Into<String>) -> HttpApiBuilder {
        HttpApiBuilder::new(base_url.into())
    }

    async fn attempt(
        &self,
        logger: Option<LoggerId>,
        batch: &[Payload],
    ) -> Result<ApiAnswer, ApiFailure> {
        if batch.len() > 1 && envelope_len(batch) > self.batch_limit {
            return Ok(ApiAnswer::TooLarge);
        }
        let pass = self.bearer.pass().await?;
        let mut request = self.request(logger, batch);
        if let Some(pass) = &pass {
            request = request.header(AUTHORIZATION, pass.header.clone());
        }
        let mut response = request
            .send()
            .await
            .map_err(|error| failure::of_transport(&error, "the Event Log API"))?;
        let status = response.status().as_u16();
        if let Some(pass) = pass.filter(|_| status == 401) {
            self.bearer.refused(&pass).await;
        }
        let retry_after = retry_after::of(&response, &*self.clock);
        let (head, end) = read(&mut response).await;
        let cut = |reason| ResponseBody::Cut {
            head: &head,
            reason,
        };
        let body = match end {
            End::Whole => ResponseBody::Whole(&head),
            End::TooLong => cut("it is longer than any answer of the Event Log API"),
            // That the server was slow is worth more to an operator than that its answer was cut.
            End::Broken(error) if response.status().is_success() && error.is_timeout() => {
                return Err(failure::of_transport(&error, "the Event Log API"));
            }
            End::Broken(_) => cut("the connection ended in the middle of it"),
        };
        Ok(classify(status, retry_after, body, batch.len()))
    }

    fn request(&self, logger: Option<LoggerId>, batch: &[Payload]) -> RequestBuilder {
        let mut request = match batch {
            [one] => {
                let id = one.id.to_string();
                self.client
                    .post(self.one.clone())
                    .header(IDEMPOTENCY_KEY, &id)
                    .header(EVENT_ID, &id)
                    .body(one.json.clone())
            }
            several => self.client.post(self.many.clone()).body(envelope(several)),
        };
        if let Some(application_id) = &self.application_id {
            request = request.header(APPLICATION_ID, application_id);
        }
        if let Some(logger) = logger {
            request = request.header(LOGGER, logger.to_string());
        }
        request.header(CONTENT_TYPE, "application/json")
    }
}

impl Api for HttpApi {
    fn send_from<'a>(&'a self, logger: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            if batch.is_empty() {
                return ApiAnswer::PerEvent(Vec::new());
            }
            let answer = self.attempt(logger, batch).await;
            answer.unwrap_or_else(ApiAnswer::Failed)
        })
    }
}

impl fmt::Debug for HttpApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi")
            .field("address", &self.one.as_str())
            .field("bearer", &self.bearer)
            .finish_non_exhaustive()
    }
}

const OPEN: &[u8] = br#"{"events":["#;
const CLOSE: &[u8] = b"]}";

/// `{"events":[…]}` around the events as they are. They were JSON when they were accepted, and
/// parsing them again would cost time and could change a number.
fn envelope(batch: &[Payload]) -> Bytes {
    let mut body = BytesMut::with_capacity(envelope_len(batch));
    body.extend_from_slice(OPEN);
    for (i, payload) in batch.iter().enumerate() {
        if i > 0 {
            body.extend_from_slice(b",");
        }
        body.extend_from_slice(&payload.json);
    }
    body.extend_from_slice(CLOSE);
    body.freeze()
}

fn envelope_len(batch: &[Payload]) -> usize {
    let events: usize = batch.iter().map(|payload| payload.json.len()).sum();
    OPEN.len() + events + batch.len().saturating_sub(1) + CLOSE.len()
}

/// How reading a response body ended.
enum End {
    Whole,
    TooLong,
    Broken(reqwest::Error),
}

/// The part of a response body that was read.
async fn read(response: &mut Response) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let end = loop {
        match response.chunk().await {
            Ok(None) => break End::Whole,
            Ok(Some(chunk)) if bytes.len() + chunk.len() > RESPONSE_LIMIT => break End::TooLong,
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Err(error) => break End::Broken(error),
        }
    };
    (bytes, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::EventId;

    #[test]
    fn an_envelope_holds_the_events_byte_for_byte() {
        let payload = |n: u128, json: &'static str| Payload {
            id: EventId::from_u128(n),
            json: Bytes::from_static(json.as_bytes()),
        };
        let batch = [
            payload(1, r#"{"n":1.10}"#),
            payload(2, r#"{ "s": "ä" }"#),
            payload(3, "{}"),
        ];
        assert_eq!(
            envelope(&batch),
            r#"{"events":[{"n":1.10},{ "s": "ä" },{}]}"#.as_bytes()
        );
        for count in 0..=3 {
            let some = &batch[..count];
            assert_eq!(envelope(some).len(), envelope_len(some));
        }
    }
}
