//! The configuration of the server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::Token;

/// The configuration of the server: where it listens, who may ask, and how much.
///
/// ```
/// use tidegate_server::ServerConfig;
/// let config = ServerConfig::default();
/// assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
/// assert!(config.token.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address to listen on (`server.listen`). Port 0 takes any free port.
    pub listen: SocketAddr,
    /// The bearer token (`server.token`); required to listen anywhere but on loopback.
    pub token: Option<Token>,
    /// Refuse every request that is neither GET nor HEAD (`server.read-only`).
    pub read_only: bool,
    /// How much of anything is taken.
    pub limits: Limits,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            token: None,
            read_only: false,
            limits: Limits::default(),
        }
    }
}

/// The limits of the server. Each one that is hit is counted in `tidegate_http_limit_hits_total`
/// under the name given here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `max-body`: the bytes of one request body (`server.max-body`), 1 MiB. A longer one is
    /// answered with 413.
    pub max_body: usize,
    /// `request-timeout`: how long a request may take until its response begins
    /// (`server.request-timeout`), 30 seconds. The handler is dropped at its next await, and the answer is 504: what it did until then stays.
    pub request_timeout: Duration,
    /// `header-timeout`: how long a connection may take to send the head of its first request
    /// (`server.header-timeout`), 10 seconds; then it is closed. A kept-alive connection that stays idle or dawdles over a
    /// later head for as long is closed too, and counted as `idle`.
    pub header_timeout: Duration,
    /// `connections`: how many connections are open at once (`server.max-connections`), 1,024. The
    /// next one takes the place of the one that has been idle the longest. While all of them have
    /// a request in flight, it waits, and those after it in the accept queue of the operating
    /// system.
    pub max_connections: NonZeroUsize,
    /// `max-header`: the bytes of one request head, start line included (`server.max-header`),
    /// 32 KiB. A longer one is answered with a bare 431 and the connection is closed.
    pub max_header: usize,
    /// How long requests in flight may go on after shutdown began, 10 seconds; then they are cut.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body: 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            max_connections: NonZeroUsize::MIN.saturating_add(1023),
            max_header: 32 * 1024,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

#[cfg(feature = "config")]
mod from_config {
    use std::net::ToSocketAddrs;

    use serde::Deserialize;
    use tidegate_config::{Config, Problem, Secret, millis};

    use super::*;

    /// Share of `shutdown-timeout` that requests in flight get; the rest is for closing.
    const DRAIN_SHARE: f64 = 0.9;

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct RawServer {
        listen: String,
        token: Option<Secret>,
        read_only: bool,
        max_body: usize,
        max_header: usize,
        max_connections: NonZeroUsize,
        #[serde(with = "millis")]
        header_timeout: Duration,
        #[serde(with = "millis")]
        request_timeout: Duration,
    }

    impl ServerConfig {
        /// The section `server`. Requests in flight get most of `shutdown-timeout`.
        ///
        /// # Errors
        /// An address that cannot be found, or a token that cannot be used.
        pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
            let raw: RawServer = config.section("server")?;
            let unknown = |why: String| {
                let why = format!("{why}; write an address and a port, such as 127.0.0.1:8080");
                config.problem("server.listen", &why)
            };
            // The first address that a name such as `localhost:8080` stands for.
            let found = raw.listen.to_socket_addrs();
            let found = found.map_err(|error| unknown(error.to_string()))?.next();
            let token = raw.token.map(|secret| Token::new(secret.expose()));
            let token = token.transpose();
            let shutdown = config.duration("shutdown-timeout").unwrap_or_default();
            Ok(Self {
                listen: found.ok_or_else(|| unknown("the name has no address".to_owned()))?,
                token: token.map_err(|error| config.problem("server.token", &error))?,
                read_only: raw.read_only,
                limits: Limits {
                    max_body: raw.max_body,
                    max_header: raw.max_header,
                    max_connections: raw.max_connections,
                    header_timeout: raw.header_timeout,
                    request_timeout: raw.request_timeout,
                    drain_timeout: shutdown.mul_f64(DRAIN_SHARE),
                },
            })
        }
    }
}
