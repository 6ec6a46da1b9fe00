//! What the server is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::Token;

/// What the server is told: where it listens, who may ask, and how much.
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
