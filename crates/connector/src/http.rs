//! The built-in handler `http`: each record is one POST, and the status decides.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tidegate_core::{Code, DeadLetter, Failure, FailureClass, TRACEPARENT};

use crate::handler::{ConsumedRecord, HandlerAnswer, HandlerFailure, RecordHandler};

/// The header of a record whose value is absent, which is not the same as empty.
const TOMBSTONE: &str = "x-tidegate-tombstone";

/// Posts each record to an address.
#[derive(Debug, Clone)]
pub struct HttpHandler {
    url: String,
    client: reqwest::Client,
}

/// The meaning of a status: nothing for a record that was taken.
///
/// A wrong token or address is not about the record, so it is of class System: it must not send a topic to
/// the dead letters.
#[must_use]
pub fn http_failure(status: u16, retry_after: Option<Duration>) -> Option<HandlerFailure> {
    use FailureClass::{Permanent, System, Transient};
    let (class, code) = match status {
        200..=299 => return None,
        408 => (Transient, "timeout.request"),
        425 | 429 => (Transient, "service.rate-limited"),
        503 => (Transient, "service.unavailable"),
        504 => (Transient, "timeout.gateway"),
        500..=599 => (Transient, "service.failed"),
        401 | 403 => (System, "access.denied"),
        404 | 405 => (System, "service.not-found"),
        300..=399 => (System, "service.moved"),
        400..=499 => (Permanent, "request.rejected"),
        _ => (Transient, "service.failed"),
    };
    let failure = Failure::new(
        class,
        Code::from_static(code),
        format!("the service answered {status}"),
    );
    let failure = HandlerFailure::from(failure);
    Some(match retry_after {
        Some(wait) => failure.retry_after(wait),
        None => failure,
    })
}

impl HttpHandler {
    /// Posts to this address. Redirects are not followed, and no proxy is asked.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(url: impl Into<String>) -> Result<Self, Failure> {
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build();
        let client = client.map_err(|error| {
            let code = Code::from_static("handler.http");
            Failure::new(FailureClass::System, code, "no HTTP client can be made")
                .with_source(error)
        })?;
        Ok(Self {
            url: url.into(),
            client,
        })
    }

    /// Posts a dead letter, with its history as headers.
    ///
    /// # Errors
    /// The service did not take it.
    pub async fn post_letter(&self, letter: &DeadLetter) -> Result<(), Failure> {
        let mut headers = Vec::new();
        for header in letter.to_headers() {
            let value = header
                .value
                .as_deref()
                .and_then(|value| std::str::from_utf8(value).ok());
            headers.extend(value.map(|value| (header.name.clone(), value.to_owned())));
        }
        let answer = self.post(letter.value.clone(), headers).await;
        answer.map_err(|failed| failed.failure)
    }

    async fn post(&self, value: Option<Bytes>, headers: Vec<(String, String)>) -> HandlerAnswer {
        let mut request = self.client.post(&self.url);
        let mut has_type = false;
        for (name, value) in headers {
            let name = reqwest::header::HeaderName::try_from(name);
            let value = reqwest::header::HeaderValue::try_from(value);
            if let (Ok(name), Ok(value)) = (name, value) {
                has_type |= name == reqwest::header::CONTENT_TYPE;
                request = request.header(name, value);
            }
        }
        if !has_type {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/octet-stream");
        }
        request = match value {
            Some(value) => request.body(value),
            None => request.header(TOMBSTONE, "true"),
        };
        match request.send().await {
            Ok(response) => {
                let after = response.headers().get(reqwest::header::RETRY_AFTER);
                let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok());
                let failed =
                    http_failure(response.status().as_u16(), after.map(Duration::from_secs));
                failed.map_or(Ok(()), Err)
            }
            Err(error) => Err(broken(&error).into()),
        }
    }
}

fn broken(error: &reqwest::Error) -> Failure {
    let code = match (error.is_timeout(), error.is_connect()) {
        (true, true) => "timeout.connect",
        (true, false) => "timeout.read",
        (false, true) => "connection.refused",
        (false, false) => "connection.broken",
    };
    Failure::transient(Code::from_static(code), tidegate_core::error_chain(error))
}

impl RecordHandler for HttpHandler {
    async fn handle(&self, record: &ConsumedRecord) -> HandlerAnswer {
        let id = record.event_id().to_string();
        let mut headers = vec![
            ("x-tidegate-event-id".to_owned(), id.clone()),
            ("idempotency-key".to_owned(), id),
            ("x-tidegate-topic".to_owned(), record.topic().to_string()),
            (
                "x-tidegate-partition".to_owned(),
                record.partition().to_string(),
            ),
            ("x-tidegate-offset".to_owned(), record.offset().to_string()),
            (
                "x-tidegate-attempt".to_owned(),
                record.attempt().to_string(),
            ),
            ("x-tidegate-tier".to_owned(), record.tier().to_string()),
        ];
        if let Some(key) = record.key() {
            headers.push(match std::str::from_utf8(key) {
                Ok(key)
                    if key
                        .bytes()
                        .all(|byte| byte.is_ascii_graphic() || byte == b' ') =>
                {
                    ("x-tidegate-key".to_owned(), key.to_owned())
                }
                Ok(_) | Err(_) => ("x-tidegate-key-base64".to_owned(), STANDARD.encode(key)),
            });
        }
        let inbound = record.inbound_headers().into_iter();
        headers.extend(inbound.map(|(name, value)| (name.to_owned(), value)));
        for name in [TRACEPARENT, "tracestate", "event-type", "content-type"] {
            let value = record
                .headers()
                .get(name)
                .and_then(|value| std::str::from_utf8(value).ok());
            headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        }
        self.post(record.value().cloned(), headers).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_decides_about_the_class() {
        use FailureClass::{Permanent, System, Transient};
        for (statuses, class) in [
            (
                &[408, 425, 429, 500, 502, 503, 504, 599, 700][..],
                Transient,
            ),
            (&[401, 403, 404, 405, 301, 307][..], System),
            (&[400, 409, 410, 415, 422][..], Permanent),
        ] {
            for status in statuses {
                let failure = http_failure(*status, None).unwrap();
                assert_eq!(failure.failure.class, class, "{status}");
            }
        }
        assert!(http_failure(200, None).is_none() && http_failure(204, None).is_none());
        let later = http_failure(503, Some(Duration::from_secs(7))).unwrap();
        assert_eq!(later.retry_after, Some(Duration::from_secs(7)));
    }
}
