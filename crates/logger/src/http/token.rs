//! The bearer token of a request: a fixed one, or one that is fetched and kept.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tidegate_core::env::Clock;
use tokio::sync::Mutex;

use super::authentication::ClientCredentials;
use super::{codes, failure, read, retry_after};
use crate::api::ApiFailure;

/// How long before its end a token is replaced, so that none expires on its way.
const REFRESH_AHEAD: Duration = Duration::from_secs(60);

/// How long a token is assumed to live when its answer does not say.
const ASSUMED_LIFE: Duration = Duration::from_secs(3600);

/// Longest life that is believed. It only keeps the arithmetic of clocks in its range.
const LIFE_LIMIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Where the bearer token of a request comes from.
pub(super) enum Bearer {
    None,
    Fixed(BearerToken),
    Fetched(Box<TokenSource>),
}

impl Bearer {
    /// The token of the next request. Nothing was sent to the API when it fails.
    pub(super) async fn pass(&self) -> Result<Option<BearerToken>, ApiFailure> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(token) => Ok(Some(token.clone())),
            Self::Fetched(source) => source.pass().await.map(Some),
        }
    }

    /// The API does not accept `token`.
    pub(super) async fn refused(&self, token: &BearerToken) {
        match self {
            Self::None | Self::Fixed(_) => {}
            Self::Fetched(source) => source.forget(token.number).await,
        }
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Fixed(_) => f.write_str("***"),
            Self::Fetched(source) => write!(f, "tokens from {}", source.address),
        }
    }
}

/// The header that carries `token`, unless a header cannot.
pub(super) fn header(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    (!token.is_empty()).then_some(header)
}

/// Fetches tokens, one request at a time, and keeps the newest.
pub(super) struct TokenSource {
    client: reqwest::Client,
    address: Url,
    credentials: ClientCredentials,
    clock: Arc<dyn Clock>,
    /// How many requests for a token have ended.
    asked: AtomicU64,
    /// Locked while a token is fetched, so that all requests wait for the same one.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    token: Option<BearerToken>,
    /// How the newest request for a token failed.
    failure: Option<ApiFailure>,
}

/// The token of a request.
#[derive(Clone)]
pub(super) struct BearerToken {
    pub(super) header: HeaderValue,
    /// Which token of its source it is; 0 is a fixed one.
    number: u64,
    /// Both on the clock's elapsed time: a jump of the wall clock must not revive a dead token.
    refresh_at: Duration,
    expires_at: Duration,
}

impl BearerToken {
    /// A token that stays the same.
    pub(super) fn fixed(header: HeaderValue) -> Self {
        Self {
            header,
            number: 0,
            refresh_at: Duration::MAX,
            expires_at: Duration::MAX,
        }
    }
}

impl TokenSource {
    pub(super) fn new(
        client: reqwest::Client,
        address: Url,
        credentials: ClientCredentials,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            client,
            address,
            credentials,
            clock,
            asked: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    async fn pass(&self) -> Result<BearerToken, ApiFailure> {
        let asked_before = self.asked.load(Ordering::Acquire);
        let mut kept = self.kept.lock().await;
        let now = self.clock.elapsed();
        if let Some(token) = &kept.token
            && now < token.refresh_at
        {
            return Ok(token.clone());
        }
        // Somebody asked while we waited. Asking again at once would line up one timeout behind
        // the other, so that failure is ours too.
        if self.asked.load(Ordering::Acquire) != asked_before
            && let Some(failure) = &kept.failure
        {
            return Err(failure.clone());
        }
        let fetched = self.fetch(now).await;
        self.asked.fetch_add(1, Ordering::AcqRel);
        match fetched {
            Ok(token) => {
                *kept = Kept {
                    token: Some(token.clone()),
                    failure: None,
                };
                Ok(token)
            }
            Err(failure) => {
                // The old token may have some seconds left.
                if let Some(token) = &kept.token
                    && self.clock.elapsed() < token.expires_at
                {
                    return Ok(token.clone());
                }
                kept.token = None;
                kept.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Forgets the token with this number. A newer one stays: the refusal was for its predecessor.
    async fn forget(&self, number: u64) {
        let mut kept = self.kept.lock().await;
        if kept
            .token
            .as_ref()
            .is_some_and(|token| token.number == number)
        {
            kept.token = None;
        }
    }

    async fn fetch(&self, now: Duration) -> Result<BearerToken, ApiFailure> {
        let login = &self.credentials;
        let mut form = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &login.scope {
            form.push_str("&scope=");
            form.push_str(&encode(scope));
        }
        let mut response = self
            .client
            .post(self.address.clone())
            .basic_auth(
                encode(&login.client_id),
                Some(encode(&login.client_secret.0)),
            )
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(form)
            .send()
            .await
            .map_err(|error| failure::of_transport(&error, "the token address"))?;
        let status = response.status();
        let retry_after = retry_after::of(&response, &*self.clock);
        let (body, _) = read(&mut response).await;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = body
            .get("access_token")
            .and_then(Value::as_str)
            .and_then(header);
        match token {
            Some(header) if status.is_success() => {
                let life = life(body.get("expires_in"));
                let ahead = REFRESH_AHEAD.min(life / 2);
                Ok(BearerToken {
                    header,
                    number: self.asked.load(Ordering::Acquire) + 1,
                    refresh_at: now + (life - ahead),
                    expires_at: now + life,
                })
            }
            Some(_) | None => Err(refusal(status.as_u16(), &body, retry_after)),
        }
    }
}

/// A token address that gives no token is an outage like any other: no event is at fault.
fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> ApiFailure {
    let code = match status {
        400 | 401 | 403 => codes::AUTH_DENIED,
        _ => codes::AUTH_UNAVAILABLE,
    };
    // The error word of OAuth is short and holds no secret; its description could be anything.
    let word = body
        .get("error")
        .and_then(Value::as_str)
        .unwrap_or("no token in the answer");
    let word: String = word.chars().take(100).collect();
    ApiFailure {
        code,
        message: format!("the token address answered {status}: {word}"),
        retry_after,
    }
}

/// How long a token lives. Some servers write the seconds as text.
fn life(expires_in: Option<&Value>) -> Duration {
    let seconds = expires_in.and_then(|value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    });
    let life = seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
    match life {
        Some(Ok(life)) => life.min(LIFE_LIMIT),
        Some(Err(_)) | None => ASSUMED_LIFE,
    }
}

/// Percent-encodes everything but letters, digits and `-._~`, as OAuth wants it in its form and in
/// both halves of its Basic header.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_life_of_a_token_is_read_in_every_spelling() {
        let check = |value: Value, expect: u64| {
            assert_eq!(life(Some(&value)), Duration::from_secs(expect), "{value}");
        };
        check(json!(300), 300);
        check(json!("300"), 300);
        check(json!(300.0), 300);
        check(json!(0), 0);
        check(json!(-5), 0);
        check(json!("soon"), 3600);
        check(json!(null), 3600);
        check(json!(1e300), 3600);
        check(json!(1e12), 366 * 24 * 3600);
        assert_eq!(life(None), ASSUMED_LIFE);
    }

    #[test]
    fn credentials_are_percent_encoded() {
        assert_eq!(encode("aZ9-._~"), "aZ9-._~");
        assert_eq!(encode("a b:c/+ä"), "a%20b%3Ac%2F%2B%C3%A4");
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_none() {
        assert!(header("").is_none());
        assert!(header("a\nb").is_none());
        let header = header("abc").unwrap();
        assert_eq!(format!("{header:?}"), "Sensitive");
    }
}
