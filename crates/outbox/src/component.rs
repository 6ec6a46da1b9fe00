//! An outbox and its relay as a component of a process.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{
    AcceptedEvents, Audited, ComponentAccount, ComponentKind, DeliveredEvents,
};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{
    Component, EventId, EventLocation, Failure, HealthFinding, Shutdown, iso_time,
};
use tidegate_log::{Log, LogDirectory};

use crate::closure::{self, ClosingLog, Closure};
use crate::error::with_code;
use crate::port::{OutboxRow, RowSelection};
use crate::{Outbox, Relay};

/// The command that shows rows that were given up on.
const LIST_DEAD: &str = "`tidegate outbox ls --status dead`";

/// An outbox in a process, with its relay. Without a log it only answers questions.
#[derive(Debug)]
pub struct OutboxComponent {
    name: String,
    outbox: Outbox,
    relay: Option<Relay>,
    log: Option<ClosingLog>,
}

impl OutboxComponent {
    /// An outbox whose relay runs in this process, if it is enabled.
    #[must_use]
    pub fn new(outbox: Outbox, log: Arc<dyn Log>, env: &Env) -> Self {
        let relay = Relay::new(outbox.clone(), Arc::clone(&log), env);
        Self {
            name: outbox.options().component(),
            relay: outbox.options().enabled.then_some(relay),
            outbox,
            log: Some(ClosingLog::Open(log)),
        }
    }

    /// An outbox that is only looked at. Without its log an audit does not follow rows into their topics.
    #[must_use]
    pub fn inspected(outbox: Outbox, log: Option<Arc<dyn Log>>) -> Self {
        Self {
            name: outbox.options().component(),
            outbox,
            relay: None,
            log: log.map(ClosingLog::Open),
        }
    }

    /// An outbox that is only looked at, beside the directory of a log that no process has open.
    #[must_use]
    pub fn beside(outbox: Outbox, log: LogDirectory) -> Self {
        Self {
            log: Some(ClosingLog::Directory(Arc::new(log))),
            ..Self::inspected(outbox, None)
        }
    }

    /// The outbox.
    #[must_use]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    async fn audited(&self) -> Result<Audited, Failure> {
        let mut recount = self.outbox.store().recount().await?;
        let mut missing = recount.missing.clone();
        let mut closed = Closure::default();
        if let Some(log) = &self.log {
            closed = closure::close(log, self.outbox.options(), &mut recount).await?;
            missing.append(&mut closed.missing);
        }
        let mut audited = recount.audited(&self.name, missing);
        for path in closed.gone {
            audited.add_path(path);
        }
        Ok(audited
            .unverifiable(closed.unverifiable)
            .with_findings(closed.findings))
    }
}

impl Component for OutboxComponent {
    fn name(&self) -> &str {
        &self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            Ok(vec![ComponentAccount {
                name: self.name.clone(),
                kind: ComponentKind::Relay,
                account: self.outbox.store().account().await?,
            }])
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async {
            let books = self.outbox.store().books().await?;
            Ok(vec![AcceptedEvents::of(
                &self.name,
                ComponentKind::Relay,
                &books,
            )])
        })
    }

    /// Counts the table as of one moment, and looks for each finished row in its topic.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(vec![self.audited().await?]) })
    }

    /// With a log at hand the audit itself follows the rows into their topics.
    fn delivered(&self) -> BoxFuture<'_, Result<Vec<DeliveredEvents>, Failure>> {
        Box::pin(async {
            if self.log.is_some() {
                return Ok(Vec::new());
            }
            Ok(vec![DeliveredEvents {
                from: self.name.clone(),
                to: ComponentKind::Topic,
                origin: Some(self.name.clone()),
                books: self.outbox.store().recount().await?.books,
            }])
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let found = self.outbox.show(&RowSelection::Event(id)).await?;
            Ok(found.map(|row| self.location(row)).into_iter().collect())
        })
    }

    /// Down while database or log do not answer. A log that takes nothing, topics that take nothing and rows that
    /// were given up on are named.
    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            if let Err(error) = self.outbox.store().ping().await {
                return HealthFinding::down(with_code(&error.code(), &error));
            }
            let Some(relay) = &self.relay else {
                return HealthFinding::up();
            };
            if let Some(ClosingLog::Open(log)) = &self.log
                && let Err(error) = log.topics().await
            {
                return HealthFinding::down(with_code(&error.code(), &error));
            }
            if let Some(name) = relay.stuck() {
                return HealthFinding::down(format!("loop `{name}` stands still"));
            }
            let status = relay.status();
            if let Some(why) = status.log_trouble.or(status.store_trouble) {
                return HealthFinding::degraded(format!("rows are not published: {why}"));
            }
            let troubles = status.topic_troubles.values();
            let mut findings: Vec<String> =
                troubles.map(|why| format!("rows wait: {why}")).collect();
            match status.dead_rows {
                0 => {}
                1 => findings.push(format!("1 row is DEAD: {LIST_DEAD}")),
                count => findings.push(format!("{count} rows are DEAD: {LIST_DEAD}")),
            }
            match findings.is_empty() {
                true => HealthFinding::up(),
                false => HealthFinding::degraded(findings.join("; ")),
            }
        })
    }

    fn stalled(&self) -> Option<String> {
        self.relay.as_ref().and_then(Relay::stuck)
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            if let Some(relay) = &self.relay {
                let report = relay.run(stop).await;
                tracing::info!(?report, "the relay has stopped");
            }
        })
    }
}

impl OutboxComponent {
    fn location(&self, row: OutboxRow) -> EventLocation {
        let time = |ms: Option<i64>| iso_time(u64::try_from(ms?).ok()?);
        let details = json!({
            "table": self.outbox.options().table,
            "row": row.id,
            "status": row.status,
            "type": row.type_name,
            "aggregate_id": row.aggregate_id,
            "topic": row.topic,
            "locked_by": row.locked_by,
            "next_attempt_at": time(row.next_attempt_at),
            "last_error": row.last_error,
        });
        let at = row.sent_at.or(row.last_error_at).unwrap_or(row.created_at);
        EventLocation {
            at: time(Some(at)),
            attempts: Some(row.attempts),
            ..EventLocation::new(&self.name, row.place(), details)
        }
    }
}
