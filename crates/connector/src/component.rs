//! The connector as a part of its process.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Clock, Env};
use tidegate_core::{
    Backoff, Classify, Component, EventId, EventLocation, Failure, FailureClass, HealthFinding,
    Shutdown,
};

use crate::connector::Connector;
use crate::telemetry;

/// The connector as a component of its process: it starts its bindings, and ends them.
///
/// A binding is one component of the books, `group@topic`: over its topic, its tiers and its dead letters.
#[derive(Debug)]
pub struct ConnectorComponent {
    connector: Connector,
    clock: Arc<dyn Clock>,
}

impl ConnectorComponent {
    /// The component of this connector.
    #[must_use]
    pub fn new(connector: Connector, env: &Env) -> Self {
        let clock = Arc::clone(&env.clock);
        Self { connector, clock }
    }

    /// Starts the bindings that start with the process, and tries again while the log does not answer.
    async fn start_all(&self) {
        let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(30));
        let starts = |name: &String| {
            self.connector
                .options(name)
                .is_ok_and(|options| options.auto_startup)
        };
        let names = self.connector.list().into_iter().map(|view| view.name);
        let mut waiting: Vec<String> = names.filter(starts).collect();
        let mut rounds = 0;
        while !waiting.is_empty() {
            let mut failed = Vec::new();
            for name in waiting {
                if let Err(error) = self.connector.start(&name).await {
                    tracing::error!(binding = name, %error, "a binding does not start");
                    if error.class() != FailureClass::Permanent {
                        failed.push(name);
                    }
                }
            }
            waiting = failed;
            self.clock.sleep(backoff.wait_without_jitter(rounds)).await;
            rounds += 1;
        }
    }
}

impl Component for ConnectorComponent {
    fn name(&self) -> &str {
        "connector"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { self.connector.books().accounts().await })
    }

    /// Its events are those of topics.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { self.connector.books().audit().await })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move { self.connector.books().locate(id).await })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { self.connector.health() })
    }

    /// A paused binding must not take its process out of service.
    fn gates_readiness(&self) -> bool {
        false
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            telemetry::describe();
            let starting = async {
                self.start_all().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = stop.requested() => {}
                () = starting => {}
            }
            self.connector.shutdown().await;
        })
    }
}
