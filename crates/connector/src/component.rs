//! The connector as a part of its process.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Clock, Env};
use tidegate_core::{
    Backoff, Classify, Component, EventId, EventLocation, Failure, FailureClass, HealthFinding,
    Shutdown,
};

use crate::connector::Connector;
use crate::telemetry;

/// The connector as a component of its process: it starts its bindings, and ends them.
///
/// The books of a binding are those of its group on its topic, which the log keeps.
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

    /// Starts a binding, and tries again while the log does not answer.
    async fn start(&self, name: &str) {
        let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(30));
        let mut failures = 0;
        while let Err(error) = self.connector.start(name).await {
            tracing::error!(binding = name, %error, "a binding does not start");
            if error.class() == FailureClass::Permanent {
                return;
            }
            self.clock.sleep(backoff.wait_without_jitter(failures)).await;
            failures += 1;
        }
    }
}

impl Component for ConnectorComponent {
    fn name(&self) -> &str {
        "connector"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
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
                for view in self.connector.list() {
                    let options = self.connector.options(&view.name);
                    if options.is_ok_and(|options| options.auto_startup) {
                        self.start(&view.name).await;
                    }
                }
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
