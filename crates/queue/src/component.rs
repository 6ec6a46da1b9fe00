//! The queue as a component of a process that has no handlers.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount, ComponentKind};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{
    Component, EventId, EventLocation, Failure, HealthFinding, Shutdown, iso_time,
};

use crate::port::QueueLocation;
use crate::sql::COMPONENT;
use crate::{Projector, ProjectorOptions, Queue, Upkeep, UpkeepOptions, telemetry};

/// A queue in a process that has no handlers. Its background work is the clean-up, the gauges and the
/// order of the log. Claiming here would only take events from the applications that have handlers.
#[derive(Debug)]
pub struct QueueComponent {
    queue: Queue,
    upkeep: UpkeepOptions,
    order: ProjectorOptions,
    env: Env,
}

impl QueueComponent {
    /// The component of this queue.
    #[must_use]
    pub fn new(queue: Queue, upkeep: UpkeepOptions, order: ProjectorOptions, env: &Env) -> Self {
        Self {
            queue,
            upkeep,
            order,
            env: env.fork("queue"),
        }
    }
}

impl Component for QueueComponent {
    fn name(&self) -> &str {
        COMPONENT
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            Ok(vec![ComponentAccount {
                name: COMPONENT.to_owned(),
                kind: ComponentKind::Queue,
                account: self.queue.account().await?,
            }])
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async {
            let books = self.queue.store().books().await?;
            Ok(vec![AcceptedEvents::of(
                COMPONENT,
                ComponentKind::Queue,
                &books,
            )])
        })
    }

    /// Counts the tables themselves, as of one moment, whoever works on them meanwhile.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(vec![self.queue.store().recount().await?.audited()]) })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let found = self.queue.store().find(id).await?;
            Ok(found.map(location).into_iter().collect())
        })
    }

    /// The database has a check of its own.
    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            telemetry::describe();
            let upkeep = Upkeep::new(&self.queue, self.upkeep.clone(), &self.env);
            // Without projections it only gives positions, which retention waits for.
            let order = self.order.clone();
            let order = Projector::new(&self.queue, Vec::new(), order, &self.env);
            tokio::join!(
                upkeep.run(stop.clone().requested()),
                order.run(stop.requested())
            );
        })
    }
}

fn location(seen: QueueLocation) -> EventLocation {
    let time = |ms: i64| iso_time(u64::try_from(ms).ok()?);
    let details = json!({
        "number": seen.number,
        "status": seen.status,
        "type": seen.type_name,
        "key": seen.key,
        "next_attempt_at": seen.next_attempt_ms.and_then(time),
        "locked_by": seen.locked_by,
        "locked_until": seen.locked_until_ms.and_then(time),
        "position": seen.position,
        "handlers": seen.states,
        "others": seen.others,
    });
    EventLocation {
        at: time(seen.at_ms),
        attempts: Some(seen.attempts),
        ..EventLocation::new(COMPONENT, seen.place, details)
    }
}
