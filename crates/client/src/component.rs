//! A component of a running process, asked over HTTP.

use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::BoxFuture;
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding};

use crate::process::ProcessClient;

/// A component of a running process, or all of them.
#[derive(Debug)]
pub struct RemoteComponent {
    client: ProcessClient,
    component: Option<String>,
    name: String,
}

impl RemoteComponent {
    /// The component of this name there; without a name, all of them.
    #[must_use]
    pub fn new(client: ProcessClient, component: Option<&str>) -> Self {
        let name = format!(
            "{} of {}",
            component.unwrap_or("everything"),
            client.shown()
        );
        Self {
            client,
            component: component.map(str::to_owned),
            name,
        }
    }
}

impl Component for RemoteComponent {
    fn name(&self) -> &str {
        &self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(self.client.ledger().await?.components) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(self.client.accepted(self.component.as_deref()).await?) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            Ok(self
                .client
                .audit(self.component.as_deref())
                .await?
                .components)
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let trace = self.client.locate(id, self.component.as_deref()).await?;
            Ok(trace.map(|trace| trace.history).unwrap_or_default())
        })
    }

    /// Its own process says how it is.
    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}
