//! Asks a running process over HTTP.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::books::{AcceptedEvents, Audit, Ledger};
use tidegate_core::{Classify, Code, EventId, EventTrace, Failure, FailureClass};

/// How long a process on the same machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long counting everything, or searching it, may take.
const COUNTING: Duration = Duration::from_secs(600);

/// A running process: where to ask, and with which token.
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessClient {
    url: String,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request did not get through, or its answer could not be read.
    #[error("{doing} {shown}")]
    Unreachable {
        /// The operation that failed.
        doing: &'static str,
        /// The address.
        shown: String,
        /// The error of the HTTP client.
        #[source]
        source: reqwest::Error,
    },
    /// The process says no.
    #[error("{} answered {status}: {message}", .shown)]
    Refused {
        /// The address.
        shown: String,
        /// The HTTP status.
        status: u16,
        /// The code of its error; empty if it gave none.
        code: String,
        /// Its message.
        message: String,
        /// Further details of its answer.
        details: serde_json::Value,
    },
}

impl ClientError {
    /// The code by which people know it: that of the process, where it gave one.
    #[must_use]
    pub fn code(&self) -> Code {
        let unknown = Code::from_static("process.unreachable");
        match self {
            Self::Unreachable { .. } => unknown,
            Self::Refused { code, details, .. } => {
                // A few codes of the door stand for many; the cause is the component's own.
                let cause = details["cause"].as_str().unwrap_or(code);
                Code::new(cause).unwrap_or(unknown)
            }
        }
    }

    /// Advice for people.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "is `tidegate run` still running there?",
            Self::Refused { status: 401, .. } => "give its token by `--token` or `server.token`",
            Self::Refused { .. } => "that process tells more in its own log and under `/health`",
        }
    }
}

impl Classify for ClientError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Unreachable { .. } => FailureClass::Transient,
            Self::Refused { .. } => FailureClass::System,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::of(&error, error.code(), Some(error.hint().to_owned()))
    }
}

impl fmt::Debug for ProcessClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProcessClient").field(&self.shown()).finish()
    }
}

impl ProcessClient {
    /// The process that answers at `url`. An empty token is none.
    #[must_use]
    pub fn new(url: &str, token: Option<String>) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
        }
    }

    /// Where the events of all its components are.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn ledger(&self) -> Result<Ledger, ClientError> {
        self.get("/tidegate/ledger").await
    }

    /// Has it count the events of all its components, or of one.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn audit(&self, component: Option<&str>) -> Result<Audit, ClientError> {
        let path = format!("/tidegate/audit{}", query(component));
        self.get_within(&path, COUNTING).await
    }

    /// The events that all its components have accepted, or one of them, for a witness.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn accepted(
        &self,
        component: Option<&str>,
    ) -> Result<Vec<AcceptedEvents>, ClientError> {
        let path = format!("/tidegate/accepted{}", query(component));
        self.get_within(&path, COUNTING).await
    }

    /// Has it look for an event in all its components, or in one; none if no component has it.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn locate(
        &self,
        id: EventId,
        component: Option<&str>,
    ) -> Result<Option<EventTrace>, ClientError> {
        let path = format!("/tidegate/where/{id}{}", query(component));
        match self.get_within(&path, COUNTING).await {
            Ok(trace) => Ok(Some(trace)),
            Err(ClientError::Refused { code, .. }) if code == "where.unknown" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks for a document.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.get_within(path, TIMEOUT).await
    }

    /// Asks for a text.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let client = self.client(TIMEOUT)?;
        let response = self
            .answer(client.get(format!("{}{path}", self.url)))
            .await?;
        let read = response.text().await;
        read.map_err(|error| self.failed("cannot read the answer of", error))
    }

    async fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let client = self.client(limit)?;
        self.send(client.get(format!("{}{path}", self.url))).await
    }

    /// Hands a document over and reads the answer.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.post_within(path, body, TIMEOUT).await
    }

    /// The same, for a request that counts records.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn post_to_count<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.post_within(path, body, COUNTING).await
    }

    async fn post_within<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let client = self.client(limit)?;
        self.send(client.post(format!("{}{path}", self.url)).json(body))
            .await
    }

    /// Puts a document in its place and reads the answer.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let client = self.client(TIMEOUT)?;
        self.send(client.put(format!("{}{path}", self.url)).json(body))
            .await
    }

    /// Removes something and reads the answer.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let client = self.client(COUNTING)?;
        self.send(client.delete(format!("{}{path}", self.url)))
            .await
    }

    /// The address without any password in it.
    #[must_use]
    pub fn shown(&self) -> String {
        tidegate_config::shown_address(&self.url).into_owned()
    }

    fn client(&self, limit: Duration) -> Result<reqwest::Client, ClientError> {
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        // The token goes to the address that was named, and not to where that sends us, nor through
        // a proxy that happens to be set.
        reqwest::Client::builder()
            .timeout(limit)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| self.failed("cannot prepare a request to", error))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, ClientError> {
        let read = self.answer(request).await?.json().await;
        read.map_err(|error| self.failed("cannot read the answer of", error))
    }

    /// The answer of a process that does not say no.
    async fn answer(
        &self,
        mut request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await;
        let response = response.map_err(|error| self.failed("cannot reach", error))?;
        let status = response.status().as_u16();
        if status != 200 {
            let problem: serde_json::Value = response.json().await.unwrap_or_default();
            return Err(self.refused(status, problem));
        }
        Ok(response)
    }

    fn failed(&self, doing: &'static str, error: reqwest::Error) -> ClientError {
        ClientError::Unreachable {
            doing,
            shown: self.shown(),
            // The error would repeat the address, with any password in it.
            source: error.without_url(),
        }
    }

    fn refused(&self, status: u16, mut problem: serde_json::Value) -> ClientError {
        let said = problem["message"].as_str();
        let message = match (status, said) {
            (401, _) => "the token is missing or wrong".to_owned(),
            (300..=399, _) => "redirects are not followed".to_owned(),
            (_, Some(said)) => said.to_owned(),
            (_, None) => "its answer has no reason".to_owned(),
        };
        ClientError::Refused {
            shown: self.shown(),
            status,
            code: problem["code"].as_str().unwrap_or_default().to_owned(),
            message,
            details: problem["details"].take(),
        }
    }
}

/// The question about one component.
fn query(component: Option<&str>) -> String {
    component.map_or_else(String::new, |name| format!("?component={name}"))
}

/// The address under which a process on this machine that listens on `listen` is reached: one that
/// listens everywhere also listens on loopback.
#[must_use]
pub fn reachable(listen: &str) -> String {
    let Ok(mut address) = listen.parse::<SocketAddr>() else {
        // A name and a port.
        return listen.to_owned();
    };
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_loopback() {
        for (listen, expect) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("10.0.0.0:80", "10.0.0.0:80"),
            ("100.0.0.0:80", "100.0.0.0:80"),
            ("[fe80::]:80", "[fe80::]:80"),
            ("localhost:8080", "localhost:8080"),
        ] {
            assert_eq!(reachable(listen), expect, "{listen}");
        }
    }
}
