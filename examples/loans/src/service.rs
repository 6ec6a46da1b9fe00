//! Wiring: the database, the log, the relay between them, the consumer and the HTTP server.

use std::path::Path;
use std::sync::Arc;

use tidegate_config::{Config, Problem};
use tidegate_core::env::{Env, Task};
use tidegate_core::{Component, EventIds, Shutdown, Topic};
use tidegate_log::{Log, LogComponent, LogOptions, OpenLog, TopicConfig};
use tidegate_outbox::{Outbox, OutboxComponent, OutboxOptions};
use tidegate_server::log::{LogApi, log_routes};
use tidegate_server::outbox::{OutboxApi, outbox_routes};
use tidegate_server::{Exporter, Health, IdempotencyKeys, Routes, Server, ServerConfig};
use tidegate_store::{Store, StoreComponent, StoreOptions};

use crate::book::LoanBook;
use crate::loan::Terms;
use crate::{notify, routes};

/// The name of the relay in the configuration.
const RELAY: &str = "loans";

/// Why the service did not start.
pub type ServiceError = Box<dyn std::error::Error + Send + Sync>;

/// A value of the configuration that cannot be used.
fn told(problem: Box<Problem>) -> ServiceError {
    format!("{}: {}", problem.path, problem.message).into()
}

/// The service, ready to run.
#[derive(Debug)]
pub struct LoanService {
    server: Server,
    health: Health,
    store: Store,
    log: Arc<dyn Log>,
    topic: Topic,
    /// In the order in which events pass through them.
    components: Vec<Arc<dyn Component>>,
    env: Env,
}

impl LoanService {
    /// Opens everything that `config` names, and takes the address. Nothing runs yet.
    ///
    /// # Errors
    /// The configuration cannot be used, or the database, the log or the address is not to be had.
    pub async fn open(
        config: &Config,
        terms: Terms,
        exporter: Option<Exporter>,
        env: Env,
    ) -> Result<Self, ServiceError> {
        let server = ServerConfig::from_config(config).map_err(told)?;
        let (builder, address) = Server::builder(server).listen().await?;
        let options = StoreOptions::from_config(config).map_err(told)?;
        if let Some(dir) = options.file().and_then(Path::parent) {
            env.disk.create_dir_all(dir)?;
        }
        let store = Store::open(&options, &env).await?;
        let log = LogOptions::from_config(config).map_err(told)?;
        let log = OpenLog::open_with_topics(&log, &env, Some(format!("http://{address}"))).await?;
        let mut relays = OutboxOptions::from_config(config).map_err(told)?;
        relays.retain(|relay| relay.name == RELAY);
        let relay = relays
            .pop()
            .ok_or("the configuration has no `outbox.loans`")?;
        let topic = relay
            .topic
            .clone()
            .ok_or("`outbox.loans.topic` is not set")?;
        tidegate_outbox::migrate(&store, &relay).await?;
        let outbox = Outbox::open(&store, relay, &env).await?;
        let ids = EventIds::new(Arc::clone(&env.clock), env.entropy.fork("loans"));
        let traces = env.entropy.fork("traces");
        let book = LoanBook::open(store.clone(), outbox.clone(), ids, traces, terms).await?;

        let components: Vec<Arc<dyn Component>> = vec![
            Arc::new(StoreComponent::new(store.clone(), &options, &env)),
            Arc::new(OutboxComponent::new(outbox.clone(), log.log(), &env)),
            Arc::new(LogComponent::new(log.clone(), &env)),
        ];
        let keys = IdempotencyKeys {
            store: store.clone(),
            clock: Arc::clone(&env.clock),
            ttl: config.duration("idempotency-ttl").unwrap_or_default(),
        };
        let health = Health::new(Arc::clone(&env.clock));
        let routes = Routes::from(routes::router(Arc::new(book))).idempotent(keys.clone());
        // With these, commands and operators reach the log and the outbox that this process holds.
        let log_api = LogApi {
            log: log.log(),
            admin: Arc::new(log.clone()),
            ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids")),
            max_record_size: TopicConfig::MAX_RECORD_SIZE,
            keys: Some(keys.clone()),
        };
        let mut builder = builder
            .health(health.clone())
            .routes(routes)
            .routes(log_routes(log_api))
            .routes(outbox_routes(OutboxApi {
                outboxes: vec![outbox.clone()],
                keys: keys.clone(),
            }));
        for component in &components {
            builder = builder.component(Arc::clone(component));
        }
        if let Some(exporter) = exporter {
            builder = builder.metrics(exporter);
        }
        Ok(Self {
            server: builder.bind(&env).await?,
            health,
            store,
            log: log.log(),
            topic,
            components,
            env,
        })
    }

    /// Where it answers.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.server.local_addr())
    }

    /// The database, for whoever wants to look.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// The log, for whoever wants to look.
    #[must_use]
    pub fn log(&self) -> Arc<dyn Log> {
        Arc::clone(&self.log)
    }

    /// Serves, relays and notifies until `stop` completes. Then requests are answered to their end, claims
    /// are given back, and everything is closed.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let (trigger, shutdown) = Shutdown::new();
        let spawn = |name: &str, work| self.env.spawn.spawn(name, work);
        let running = self.components.iter().map(|component| {
            let work = Arc::clone(component).run(shutdown.clone());
            spawn(component.name(), work)
        });
        let mut tasks: Vec<Task> = running.collect();
        let (log, topic) = (Arc::clone(&self.log), self.topic.clone());
        let clock = Arc::clone(&self.env.clock);
        let notifying = notify::run(log, topic, clock, shutdown);
        tasks.push(spawn("notifications", Box::pin(notifying)));

        let health = self.health.clone();
        let stopped = async move {
            stop.await;
            health.drain();
            trigger.stop();
        };
        let report = self.server.run(stopped).await;
        tracing::info!(requests = report.requests, cut = report.cut, "answered");
        for task in tasks {
            task.join().await;
        }
        for component in self.components.iter().rev() {
            component.close().await;
        }
    }
}
