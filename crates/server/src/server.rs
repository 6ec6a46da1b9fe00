//! How a server is put together.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use tidegate_core::env::{Clock, Env, Spawn};
use tidegate_core::{Classify, Code, Component, Failure, FailureClass};
use tokio::net::TcpListener;
use tower_http::limit::RequestBodyLimitLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::api::{self, Refusals, Sources};
use crate::guard::Guard;
use crate::idempotency::{self, IdempotencyKeys};
use crate::in_flight::InFlight;
use crate::long_body;
use crate::request::{self, Gate, RequestIds};
use crate::{Exporter, Health, Limits, ServerConfig, telemetry};

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
            components: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// The address that was taken; with port 0 configured, the port that was given.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl BindError {
    /// The code by which people know it.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::from_static(match self {
            // error-page: server.exposed
            Self::TokenMissing { .. } => "server.exposed",
            // error-page: server.busy-address
            Self::Listen { .. } => "server.busy-address",
        })
    }

    /// Advice for people.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TokenMissing { .. } => "see `tidegate explain server.exposed`",
            Self::Listen { .. } => "stop whoever listens there, or set another `server.listen`",
        }
    }
}

impl Classify for BindError {
    fn class(&self) -> FailureClass {
        FailureClass::System
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        Self::of(&error, error.code(), Some(error.hint().to_owned()))
    }
}

/// The routes of a part, which take bodies of at most [`Limits::max_body`](crate::Limits::max_body).
pub struct Routes {
    router: OpenApiRouter,
    max_body: Option<usize>,
}

impl From<OpenApiRouter> for Routes {
    fn from(router: OpenApiRouter) -> Self {
        Self {
            router,
            max_body: None,
        }
    }
}

/// Routes of an application, which are not in the OpenAPI document.
impl From<Router> for Routes {
    fn from(router: Router) -> Self {
        Self::from(OpenApiRouter::from(router))
    }
}

impl Routes {
    /// The same; those that change something answer a repeated `Idempotency-Key` with the first answer.
    ///
    /// A handler finds the claim of its key as `Extension<KeyClaim>`. With
    /// [`finish_in`](tidegate_store::idempotency::finish_in) its work and its answer are one commit. A process
    /// without a database keeps no answers: there a request with a key is refused.
    #[must_use]
    pub fn idempotent(mut self, keys: impl Into<Option<IdempotencyKeys>>) -> Self {
        self.router = match keys.into() {
            Some(keys) => {
                let layer = from_fn_with_state(Arc::new(keys), idempotency::pass);
                self.router.layer(layer)
            }
            None => self.router.layer(from_fn(idempotency::refuse)),
        };
        self
    }

    /// The same, for longer bodies.
    #[must_use]
    pub fn with_max_body(mut self, max_body: usize) -> Self {
        self.max_body = Some(max_body);
        self
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<&String> = self.router.get_openapi().paths.paths.keys().collect();
        f.debug_tuple("Routes").field(&paths).finish()
    }
}

/// Puts a [`Server`] together.
pub struct ServerBuilder {
    config: ServerConfig,
    /// The address, if it was taken before the rest was known.
    taken: Option<(TcpListener, SocketAddr)>,
    health: Option<Health>,
    exporter: Option<Exporter>,
    components: Vec<Arc<dyn Component>>,
    routes: Vec<Routes>,
}

impl ServerBuilder {
    /// The registry behind `/livez`, `/readyz` and `/health`. Without it the server makes an empty
    /// one; a second call takes the place of the first.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// The recorder that `/metrics` shows beside the ledger; the server does its upkeep while it runs. A
    /// second call takes the place of the first.
    #[must_use]
    pub fn metrics(mut self, exporter: Exporter) -> Self {
        self.exporter = Some(exporter);
        self
    }

    /// Adds a component: its health, its books, its audit and its search are shown from now on. Names must
    /// be unique. Components come in the order in which events pass through them.
    #[must_use]
    pub fn component(mut self, component: Arc<dyn Component>) -> Self {
        self.components.push(component);
        self
    }

    /// Adds the routes of a part, and what they say of themselves to the OpenAPI document.
    ///
    /// They get what every route gets: the guard, the limits, request ids, problem bodies for whatever
    /// fails, metrics. A handler that takes longer than the request timeout is dropped at its next
    /// await. So one that changes something must be safe to cancel, or do its work in a task of its
    /// own.
    #[must_use]
    pub fn routes(mut self, routes: impl Into<Routes>) -> Self {
        self.routes.push(routes.into());
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
        for component in &self.components {
            health.watch(component);
        }
        let in_flight = InFlight::new();
        let sources = Sources {
            refusals: Refusals {
                has_token: token.is_some(),
                is_read_only: read_only,
            },
            clock: Arc::clone(&env.clock),
            health: health.clone(),
            exporter: self.exporter.clone(),
            components: self.components,
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
        let own = self.routes.iter().filter_map(|routes| routes.max_body);
        let longest = own.fold(limits.max_body, |a, b| a.max(b));
        let limited = self.routes.into_iter().map(|routes| {
            let max_body = routes.max_body.unwrap_or(0).max(limits.max_body);
            let limited = routes.router.layer(RequestBodyLimitLayer::new(max_body));
            limited.layer(from_fn_with_state(max_body, long_body::discard))
        });
        let router = api::router(sources, limited.collect())
            .layer(DefaultBodyLimit::disable())
            .layer(RequestBodyLimitLayer::new(longest))
            .layer(from_fn_with_state(longest, long_body::discard))
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

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("health", &self.health)
            .field("components", &self.components)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}
