//! How a client is configured.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Proxy, Url, redirect, retry};
use tidegate_core::env::Clock;
use tidegate_core::{Classify, FailureClass};

use super::HttpApi;
use super::authentication::{Authentication, AuthenticationKind, HiddenText};
use super::token::{self, Bearer, BearerToken, TokenSource};
use crate::setters::setters;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest batch, in bytes of its body, unless told otherwise: what the API takes.
const BATCH_LIMIT: usize = 1024 * 1024;

const USER_AGENT: &str = concat!("tidegate-logger/", env!("CARGO_PKG_VERSION"));

/// The configuration of an [`HttpApi`], from [`HttpApi::builder`].
#[derive(Debug, Clone)]
pub struct HttpApiBuilder {
    base_url: String,
    application_id: Option<String>,
    authentication: Authentication,
    connect_timeout: Duration,
    request_timeout: Duration,
    batch_limit: usize,
    /// It may hold a password.
    proxy: Option<HiddenText>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum HttpApiError {
    /// Settings that cannot work, all of them at once.
    #[error("the Event Log API client is misconfigured: {}", .problems.join("; "))]
    Invalid {
        /// One sentence each, that begins with the setting.
        problems: Vec<String>,
    },
    /// The settings are right, but the HTTP client did not start, for example because this machine
    /// has no certificates.
    #[error("could not start the HTTP client for `{base_url}`")]
    Start {
        /// The address it was for.
        base_url: String,
        /// The error of the HTTP client.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl Classify for HttpApiError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Invalid { .. } | Self::Start { .. } => FailureClass::System,
        }
    }
}

impl HttpApiBuilder {
    pub(super) fn new(base_url: String) -> Self {
        Self {
            base_url,
            application_id: None,
            authentication: Authentication::none(),
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            batch_limit: BATCH_LIMIT,
            proxy: None,
        }
    }

    setters! {
        /// Names this application in each request, as header `X-Application-Id`.
        application_id(application_id: impl Into<String>)
            |it| it.application_id = Some(application_id.into());
        /// Proves to the API who is asking; nothing is shown without it.
        authentication(authentication: impl Into<Authentication>)
            |it| it.authentication = authentication.into();
        /// How long a connection may take to open; 10 s without it.
        connect_timeout(timeout: Duration) |it| it.connect_timeout = timeout;
        /// How long a request may take, from its first byte to the last of its answer; 30 s without
        /// it.
        request_timeout(timeout: Duration) |it| it.request_timeout = timeout;
        /// How many bytes the body of a batch may have; 1 MiB without it, which is the limit of the
        /// API.
        ///
        /// A larger batch is answered with [`TooLarge`](crate::ApiAnswer::TooLarge) and not sent: a
        /// server that refuses a large body often closes the connection before its answer can be
        /// read. Nobody would know then that the batch must be split. One event alone is always
        /// sent.
        batch_limit(bytes: usize) |it| it.batch_limit = bytes;
        /// Sends every request through this proxy. Proxies in the environment are not used: only the
        /// configuration decides where events go.
        proxy(url: impl Into<String>) |it| it.proxy = Some(HiddenText(url.into()));
    }

    /// The client. It connects with its first request, not before.
    ///
    /// `clock` tells when a token expires and how far away a date in `Retry-After` is. The process
    /// gets a crypto provider if it has none yet.
    ///
    /// # Errors
    /// A setting cannot work, or the HTTP client did not start.
    pub fn build(self, clock: Arc<dyn Clock>) -> Result<HttpApi, HttpApiError> {
        let mut problems = Vec::new();
        let base = address("base-url", &self.base_url, &mut problems);
        let application_id = self.application_id.as_deref().and_then(|id| {
            let problem = "application-id holds characters that no header can carry";
            note(HeaderValue::from_str(id).ok(), problem, &mut problems)
        });
        let (mut token_address, mut fixed) = (None, None);
        match &self.authentication.0 {
            AuthenticationKind::None => {}
            AuthenticationKind::Token(token) => {
                let problem = "token is empty or holds characters that no header can carry";
                fixed = note(token::header(&token.0), problem, &mut problems);
            }
            AuthenticationKind::ClientCredentials(login) => {
                token_address = address("token-url", &login.token_url, &mut problems);
            }
        }
        for (name, timeout) in [
            ("connect-timeout", self.connect_timeout),
            ("request-timeout", self.request_timeout),
        ] {
            if timeout.is_zero() {
                problems.push(format!("{name} is 0, and nothing can be done in no time"));
            }
        }
        let proxy = self.proxy.as_ref().and_then(|proxy| {
            let checked = Proxy::all(proxy.0.as_str()).ok();
            note(checked, "proxy is not an address", &mut problems)
        });
        let Some(base) = base.filter(|_| problems.is_empty()) else {
            return Err(HttpApiError::Invalid { problems });
        };

        let is_secure = |url: &Url| url.scheme() == "https";
        let with_tls = is_secure(&base) || token_address.as_ref().is_some_and(is_secure);
        let client = self
            .client(proxy, with_tls)
            .map_err(|source| HttpApiError::Start {
                base_url: self.base_url.clone(),
                source: source.into(),
            })?;
        let bearer = match (self.authentication.0, token_address, fixed) {
            (AuthenticationKind::ClientCredentials(login), Some(address), _) => {
                let source = TokenSource::new(client.clone(), address, login, Arc::clone(&clock));
                Bearer::Fetched(Box::new(source))
            }
            (_, _, Some(header)) => Bearer::Fixed(BearerToken::fixed(header)),
            (_, _, None) => Bearer::None,
        };
        Ok(HttpApi {
            client,
            one: below(&base, "/v1/events"),
            many: below(&base, "/v1/events/batch"),
            application_id,
            batch_limit: self.batch_limit,
            bearer,
            clock,
        })
    }

    fn client(&self, proxy: Option<Proxy>, with_tls: bool) -> reqwest::Result<reqwest::Client> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that another thread was faster, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut client = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(self.connect_timeout)
            .timeout(self.request_timeout)
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .no_proxy();
        if let Some(proxy) = proxy {
            client = client.proxy(proxy);
        }
        if !with_tls {
            // Plain HTTP must also work on a machine without certificates.
            client = client.tls_certs_only([]);
        }
        client.build()
    }
}

/// Notes that a setting cannot work, where it has no value.
fn note<T>(checked: Option<T>, problem: &str, problems: &mut Vec<String>) -> Option<T> {
    if checked.is_none() {
        problems.push(problem.to_owned());
    }
    checked
}

fn address(name: &str, text: &str, problems: &mut Vec<String>) -> Option<Url> {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            problems.push(format!("{name} is not an address: {error}"));
            return None;
        }
    };
    let wrong = if !matches!(url.scheme(), "http" | "https") {
        "must begin with http:// or https://"
    } else if !url.username().is_empty() || url.password().is_some() {
        // It would stand in every log line.
        "must not hold a user name or password"
    } else if url.fragment().is_some() || (name == "base-url" && url.query().is_some()) {
        "must end with its path"
    } else {
        return Some(url);
    };
    problems.push(format!("{name} {wrong}"));
    None
}

fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientCredentials;
    use tidegate_core::env::system::SystemClock;

    fn build(builder: HttpApiBuilder) -> Result<HttpApi, String> {
        builder
            .build(Arc::new(SystemClock::new()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_base_url_may_have_a_path_and_a_slash_at_its_end() {
        let check = |base: &str, one: &str| {
            let api = build(HttpApi::builder(base)).unwrap();
            assert_eq!(api.one.as_str(), one, "{base}");
            assert_eq!(api.many.as_str(), format!("{one}/batch"), "{base}");
        };
        check("http://127.0.0.1:3000", "http://127.0.0.1:3000/v1/events");
        check("http://127.0.0.1:3000/", "http://127.0.0.1:3000/v1/events");
        check("http://[::1]:3000/a/b", "http://[::1]:3000/a/b/v1/events");
        check("http://example.com/a//", "http://example.com/a/v1/events");
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let builder = HttpApi::builder("ftp://example.com")
            .application_id("a\nb")
            .authentication(ClientCredentials::new("nowhere", "id", "s3cret"))
            .connect_timeout(Duration::ZERO)
            .request_timeout(Duration::ZERO)
            .proxy("http://");
        let error = build(builder).unwrap_err();
        for name in [
            "base-url",
            "application-id",
            "token-url",
            "connect-timeout",
            "request-timeout",
            "proxy",
        ] {
            assert!(error.contains(&format!("{name} ")), "{name} in {error}");
        }
        for base in [
            "",
            "example.com",
            "http://",
            "http://u:p@h",
            "http://h?q=1",
            "http://h#f",
        ] {
            let error = build(HttpApi::builder(base)).unwrap_err();
            assert!(error.contains("base-url"), "{base}: {error}");
        }
        let error =
            build(HttpApi::builder("http://h").authentication(Authentication::token("ü\n")));
        assert!(error.unwrap_err().contains("token is empty or holds"));
    }

    #[test]
    fn secrets_are_never_printed() {
        let login = ClientCredentials::new("http://h/token", "id", "s3cret").scope("a b");
        for authentication in [Authentication::token("s3cret"), login.into()] {
            let builder = HttpApi::builder("http://h").authentication(authentication);
            let text = format!("{builder:?}");
            assert!(text.contains("***") && !text.contains("s3cret"), "{text}");
            let text = format!("{:?}", build(builder).unwrap());
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
