//! A stage as a part of its process.

use std::sync::Arc;

use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::BoxFuture;
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, Shutdown};

use crate::lifecycle::StageState;
use crate::stage::Stage;

/// A stage as a component of its process: it runs from the start of the process to its end.
#[derive(Debug)]
pub struct StageComponent {
    name: String,
    stage: Stage,
}

impl StageComponent {
    /// The component of this stage, `stage.<process>`.
    #[must_use]
    pub fn new(stage: Stage) -> Self {
        let name = format!("stage.{}", stage.name());
        Self { name, stage }
    }
}

impl Component for StageComponent {
    fn name(&self) -> &str {
        &self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { self.stage.books()?.accounts().await })
    }

    /// Its events are those of topics.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { self.stage.books()?.audit().await })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move { self.stage.books()?.locate(id).await })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            let status = self.stage.status();
            let failure = status.failure.map(|failure| {
                let hint = failure
                    .hint
                    .map_or(String::new(), |hint| format!(" ({hint})"));
                format!("{}: {}{hint}", failure.code, failure.message)
            });
            let alert = status.alert;
            match (status.state, failure.or(alert)) {
                (StageState::Failed, failure) => HealthFinding {
                    message: failure,
                    ..HealthFinding::down("")
                },
                (_, Some(failure)) => HealthFinding::degraded(failure),
                (_, None) => HealthFinding::up(),
            }
        })
    }

    /// A failed stage must not take its process out of service: others run on.
    fn gates_readiness(&self) -> bool {
        false
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            // Status and health say why; whoever runs the process has nothing to add.
            self.stage.run(stop).await.ok();
        })
    }
}
