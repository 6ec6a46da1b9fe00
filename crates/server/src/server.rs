//! How a server is put together.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use tidegate_core::env::{Clock, Env, Spawn};
use tokio::net::TcpListener;
use tower_http::limit::RequestBodyLimitLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::api::{self, Sources};
use crate::guard::Guard;
use crate::in_flight::InFlight;
use crate::request::{self, Gate, RequestIds};
use crate::{Accounts, Exporter, Health, Limits, ServerConfig, telemetry};

/// A server that listens and does not answer yet: connections wait until [`run`](Self::run).
///
/// Dropping it closes the address.
#[derive(Debug)]
pub struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) health: Health,
    pub(crate) exporter: Option<Exporter>,
    pub(crate) in_flight: InFlight,
    address: SocketAddr,
}

/// The address could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Anybody who reaches the address could ask anything.
    #[error(
        "`server.listen` is {listen}, which is not a loopback address, and `server.token` is not \
         set: set a token, or listen on 127.0.0.1"
    )]
    TokenMissing {
        /// The address.
        listen: SocketAddr,
    },
    /// The operating system refused.
    #[error("could not listen on {listen} (`server.listen`)")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Server {
    /// A server with the routes of its own; parts are added to the builder.
    #[must_use]
    pub fn builder(config: ServerConfig) -> ServerBuilder {
        ServerBuilder {
            config,
            taken: None,
            health: None,
            exporter: None,
            accounts: Vec::new(),
            routers: Vec::new(),
        }
    }

    /// The address that was taken; with port 0 configured, the port that was given.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

/// Puts a [`Server`] together.
pub struct ServerBuilder {
    config: ServerConfig,
    /// The address, if it was taken before the rest was known.
    taken: Option<(TcpListener, SocketAddr)>,
    health: Option<Health>,
    exporter: Option<Exporter>,
    accounts: Vec<Arc<dyn Accounts>>,
    routers: Vec<(OpenApiRouter, Option<usize>)>,
}

impl ServerBuilder {
    /// The registry behind `/livez`, `/readyz` and `/health`. Without it the server makes an empty
    /// one; a second call takes the place of the first.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// What `/metrics` shows beside the ledger, and what the server keeps up while it runs. A
    /// second call takes the place of the first.
    #[must_use]
    pub fn metrics(mut self, exporter: Exporter) -> Self {
        self.exporter = Some(exporter);
        self
    }

    /// Adds a source of books to the ledger. The names of components must be unique over all
    /// sources; adding a source twice shows its components twice.
    #[must_use]
    pub fn accounts(mut self, source: Arc<dyn Accounts>) -> Self {
        self.accounts.push(source);
        self
    }

    /// Adds the routes of a part, and what they say of themselves to the OpenAPI document.
    ///
    /// They get what every route gets: the guard, the limits, request ids, problem bodies for
    /// whatever fails, metrics. A handler that takes longer than the request timeout is dropped at
    /// its next await, so one that changes something must be safe to cancel, or do its work in a
    /// task of its own.
    #[must_use]
    pub fn routes(mut self, router: OpenApiRouter) -> Self {
        self.routers.push((router, None));
        self
    }

    /// The same, for routes that take bodies of another size than
    /// [`Limits::max_body`](crate::Limits::max_body).
    #[must_use]
    pub fn routes_with_bodies(mut self, router: OpenApiRouter, max_body: usize) -> Self {
        self.routers.push((router, Some(max_body)));
        self
    }

    /// Takes the address now and says which one it is, for parts that have to know it before they
    /// can be added. [`bind`](Self::bind) then keeps it. Dropping the builder frees it again.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub async fn listen(mut self) -> Result<(Self, SocketAddr), BindError> {
        let ServerConfig { listen, token, .. } = &self.config;
        let listen = *listen;
        if token.is_none() && !listen.ip().to_canonical().is_loopback() {
            return Err(BindError::TokenMissing { listen });
        }
        let listening = TcpListener::bind(listen).await;
        let (listener, address) = listening
            .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
            .map_err(|source| BindError::Listen { listen, source })?;
        self.taken = Some((listener, address));
        Ok((self, address))
    }

    /// Takes the address, unless [`listen`](Self::listen) did. Returns once the operating system
    /// queues connections; nobody answers them before [`Server::run`], and nothing is spawned. If
    /// canceled, the address is free again.
    ///
    /// # Errors
    /// When the address is not a loopback address and no token is set, and when the address cannot
    /// be taken: another process has it, or it is not one of this machine.
    ///
    /// # Panics
    /// When two routers have the same route, which is a mistake in the program.
    pub async fn bind(mut self, env: &Env) -> Result<Server, BindError> {
        if self.taken.is_none() {
            self = self.listen().await?.0;
        }
        Ok(self.build(env))
    }

    fn build(self, env: &Env) -> Server {
        let (listener, address) = self.taken.expect("`bind` has taken the address");
        let ServerConfig {
            token,
            read_only,
            limits,
            ..
        } = self.config;

        let health = self
            .health
            .unwrap_or_else(|| Health::new(Arc::clone(&env.clock)));
        let in_flight = InFlight::new();
        let sources = Sources {
            clock: Arc::clone(&env.clock),
            health: health.clone(),
            exporter: self.exporter.clone(),
            accounts: self.accounts,
        };
        let gate = Gate {
            clock: Arc::clone(&env.clock),
            ids: RequestIds::new(Arc::clone(&env.clock), env.entropy.fork("server")),
            guard: Guard { token, read_only },
            health: health.clone(),
            in_flight: in_flight.clone(),
            timeout: limits.request_timeout,
        };
        telemetry::describe();
        // A layer limits every body, not only those that extractors read.
        let own = self.routers.iter().filter_map(|(_, max_body)| *max_body);
        let longest = own.fold(limits.max_body, usize::max);
        let limited = self.routers.into_iter().map(|(router, max_body)| {
            router.layer(RequestBodyLimitLayer::new(
                max_body.unwrap_or(limits.max_body),
            ))
        });
        let router = api::router(sources, limited.collect())
            .layer(DefaultBodyLimit::disable())
            .layer(RequestBodyLimitLayer::new(longest))
            .layer(from_fn_with_state(Arc::new(gate), request::pass));
        Server {
            listener,
            router,
            limits,
            clock: Arc::clone(&env.clock),
            spawn: Arc::clone(&env.spawn),
            health,
            exporter: self.exporter,
            in_flight,
            address,
        }
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("health", &self.health)
            .field("accounts", &self.accounts)
            .field("routers", &self.routers.len())
            .finish_non_exhaustive()
    }
}
