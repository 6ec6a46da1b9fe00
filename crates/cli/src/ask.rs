//! Asks a running process over HTTP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a process on the same machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where to ask, and with which token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The request did not get through, or its answer could not be read.
    #[error("{doing} {shown}")]
    Unreachable {
        doing: &'static str,
        shown: String,
        #[source]
        source: reqwest::Error,
    },
    /// The process says no.
    #[error("{} answered {status}: {message}", .shown)]
    Refused {
        shown: String,
        status: u16,
        code: String,
        message: String,
        details: serde_json::Value,
    },
}

impl Target {
    /// Asks for a document.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.get_within(path, TIMEOUT).await
    }

    /// The same, for an answer that may take so long.
    pub(crate) async fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<T, AskError> {
        let client = self.client(limit)?;
        self.send(client.get(format!("{}{path}", self.url))).await
    }

    /// Hands a document over and reads the answer.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, AskError> {
        let client = self.client(TIMEOUT)?;
        self.send(client.post(format!("{}{path}", self.url)).json(body))
            .await
    }

    /// The address without any password in it.
    pub(crate) fn shown(&self) -> String {
        tidegate_config::shown_address(&self.url).into_owned()
    }

    fn client(&self, limit: Duration) -> Result<reqwest::Client, AskError> {
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
        mut request: reqwest::RequestBuilder,
    ) -> Result<T, AskError> {
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
        let read = response.json().await;
        read.map_err(|error| self.failed("cannot read the answer of", error))
    }

    fn failed(&self, doing: &'static str, error: reqwest::Error) -> AskError {
        AskError::Unreachable {
            doing,
            shown: self.shown(),
            // The error would repeat the address, with any password in it.
            source: error.without_url(),
        }
    }

    fn refused(&self, status: u16, mut problem: serde_json::Value) -> AskError {
        let said = problem["message"].as_str();
        let message = match (status, said) {
            (401, _) => "the token is missing or wrong".to_owned(),
            (300..=399, _) => "redirects are not followed".to_owned(),
            (_, Some(said)) => said.to_owned(),
            (_, None) => "without saying why".to_owned(),
        };
        AskError::Refused {
            shown: self.shown(),
            status,
            code: problem["code"].as_str().unwrap_or_default().to_owned(),
            message,
            details: problem["details"].take(),
        }
    }
}

/// The address under which a process on this machine that listens on `listen` is reached: one that
/// listens everywhere also listens on loopback.
pub(crate) fn reachable(listen: &str) -> String {
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
    fn whoever_listens_everywhere_is_reached_on_loopback() {
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
