//! The event log as a component of a process.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{
    AcceptedEvents, Audited, Books, ComponentAccount, ComponentKind, DeliveredEvents, Place,
};
use tidegate_core::env::{BoxFuture, Clock, Env};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, Shutdown};

use crate::event::iso_ms;
use crate::sql::{COMPONENT, FoundEvent};
use crate::{EventLog, telemetry, upkeep};

/// The event log as a part of a process. Its background work is the clean-up.
///
/// Posts have a writer that lives as long as the log, so that requests are answered while the process stops.
#[derive(Debug)]
pub struct EventLogComponent {
    log: EventLog,
    clock: Arc<dyn Clock>,
}

impl EventLogComponent {
    /// The component of this event log.
    #[must_use]
    pub fn new(log: EventLog, env: &Env) -> Self {
        Self {
            log,
            clock: Arc::clone(&env.clock),
        }
    }
}

impl Component for EventLogComponent {
    fn name(&self) -> &str {
        COMPONENT
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            Ok(vec![ComponentAccount {
                name: COMPONENT.to_owned(),
                kind: ComponentKind::EventLog,
                account: self.log.account().await?,
            }])
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async {
            let books = self.log.books().await?;
            Ok(vec![AcceptedEvents::of(
                COMPONENT,
                ComponentKind::EventLog,
                &books,
            )])
        })
    }

    /// Counts the tables themselves, as of one moment, whoever posts meanwhile.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(vec![self.log.audit().await?]) })
    }

    /// The events of the logger with this id. A logger that nobody has heard of sent nothing.
    fn received<'a>(
        &'a self,
        delivered: &'a DeliveredEvents,
    ) -> BoxFuture<'a, Result<Option<Books>, Failure>> {
        Box::pin(async move {
            match (&delivered.origin, delivered.to) {
                (Some(logger), ComponentKind::EventLog) => {
                    Ok(Some(self.log.logger_books(logger).await?))
                }
                (
                    _,
                    ComponentKind::EventLog
                    | ComponentKind::Logger
                    | ComponentKind::Queue
                    | ComponentKind::Relay
                    | ComponentKind::Topic
                    | ComponentKind::Group
                    | ComponentKind::Demo,
                ) => Ok(None),
            }
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move { Ok(self.log.locate(id).await?.into_iter().collect()) })
    }

    /// The database has a check of its own, which only reads.
    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            match self.log.commit_failure() {
                Some(why) => HealthFinding::degraded(format!("events are refused: {why}")),
                None => HealthFinding::up(),
            }
        })
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            telemetry::describe();
            let clock = Arc::clone(&self.clock);
            upkeep::run(self.log.clone(), clock, stop.requested()).await;
        })
    }
}

pub(crate) fn location(found: FoundEvent) -> EventLocation {
    let details = json!({
        "eventLogId": found.id,
        "executionId": found.execution_id,
        "processName": found.process_name,
        "correlationId": found.correlation_id,
        "key": found.key,
        "logger": found.logger,
    });
    EventLocation {
        at: iso_ms(found.created_ms),
        ..EventLocation::new(COMPONENT, Place::Delivered, details)
    }
}
