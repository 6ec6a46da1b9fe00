//! One part of a process, and everything that the process asks of it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::books::{
    AcceptedEvents, Audit, Audited, AuditedPath, Books, ComponentAccount, DeliveredEvents,
};
use crate::env::BoxFuture;
use crate::{Code, EventId, EventLocation, Failure, HealthFinding};

/// One part of a process: `run`, `ledger`, `audit`, `where`, health and metrics ask each of them, and know
/// none by name.
///
/// An implementation must keep: questions change nothing and may be canceled at any await; an account is
/// one snapshot, so that it balances whenever the books do.
pub trait Component: Send + Sync + fmt::Debug {
    /// Its name, unique in the process: `log`, `queue`, `outbox.default`.
    fn name(&self) -> &str;

    /// Where its events are by the books; empty for a component that keeps none.
    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>>;

    /// The events that it has accepted, for a witness that is kept elsewhere; empty for a component whose events
    /// another one has. The numbers never fall, whatever crashes.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>>;

    /// Counts its events where they are, and compares that with the books.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>>;

    /// The events that it delivered to other components, by its books; empty for a component that is the
    /// end of their path.
    fn delivered(&self) -> BoxFuture<'_, Result<Vec<DeliveredEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Its books of the events that this sender delivered to it, removed ones included. None if it is not
    /// the component that they were delivered to.
    fn received<'a>(
        &'a self,
        _delivered: &'a DeliveredEvents,
    ) -> BoxFuture<'a, Result<Option<Books>, Failure>> {
        Box::pin(async { Ok(None) })
    }

    /// Where it has seen an event, in the order in which the event passed there: the last one is where it
    /// is now. Empty if it has never seen it, or does not know any more.
    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>>;

    /// How it is now.
    fn health(&self) -> BoxFuture<'_, HealthFinding>;

    /// A loop of it that stands still, by name; the process is alive only while there is none. A loop that
    /// waits for a database or a broker is not standing still.
    fn stalled(&self) -> Option<String> {
        None
    }

    /// Whether the process is ready only while [`health`](Self::health) does not say that this is down.
    fn gates_readiness(&self) -> bool {
        true
    }

    /// Does its work in the background until `stop`, and returns when nothing of it is in flight. It can
    /// still be asked everything then. A component without such work returns at once.
    fn run(self: Arc<Self>, _stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async {})
    }

    /// Frees what it holds, after [`run`](Self::run) has returned and the books were read for the last time.
    fn close(&self) -> BoxFuture<'_> {
        Box::pin(async {})
    }
}

/// Counts the events of these components, one component after the other, and follows those that they
/// delivered to the one of `receivers` that has them.
///
/// The delivered events are read before anything else. Their receivers are read later, so a sender that runs
/// meanwhile calls nothing delivered that is not there yet.
///
/// # Errors
/// A component cannot be counted now.
pub async fn audit_components(
    components: &[&Arc<dyn Component>],
    receivers: &[Arc<dyn Component>],
) -> Result<Audit, Failure> {
    let mut delivered = Vec::new();
    for component in components {
        delivered.extend(component.delivered().await?);
    }
    let mut audited = Vec::new();
    for component in components {
        audited.extend(component.audit().await?);
    }
    for events in &delivered {
        let sender = audited.iter_mut().find(|one| one.name == events.from);
        // A finding without a component to stand at must not get lost.
        let Some(sender) = sender else {
            let message = format!("`{}` delivered events and was not audited", events.from);
            let code = Code::from_static("internal");
            return Err(Failure::permanent(code, message));
        };
        sender.add_path(follow(events, receivers).await?);
    }
    Ok(Audit::new(audited))
}

async fn follow(
    events: &DeliveredEvents,
    receivers: &[Arc<dyn Component>],
) -> Result<AuditedPath, Failure> {
    for receiver in receivers {
        if let Some(books) = receiver.received(events).await? {
            return Ok(AuditedPath::new(events, Some((receiver.name(), &books))));
        }
    }
    Ok(AuditedPath::new(events, None))
}

/// When to stop. Clones wait for the same request.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A request that was not made yet, and the trigger that makes it.
    #[must_use]
    pub fn new() -> (ShutdownTrigger, Self) {
        let (trigger, request) = watch::channel(false);
        (ShutdownTrigger(trigger), Self(request))
    }

    /// Completes once somebody asks to stop, or nobody is left who could.
    pub async fn requested(mut self) {
        self.0.wait_for(|stop| *stop).await.ok();
    }
}

/// Asks everybody with the same [`Shutdown`] to stop. Dropping it asks as well.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

impl ShutdownTrigger {
    /// Asks to stop. Asking twice changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mutex;
    use crate::books::{ComponentKind, Place, difference};

    /// A sender of one event, or its receiver.
    #[derive(Debug)]
    struct Fake {
        name: &'static str,
        kind: ComponentKind,
        books: Books,
        calls: Arc<Mutex<Vec<String>>>,
    }

    impl Fake {
        fn note(&self, call: &str) {
            self.calls.lock().push(format!("{call} {}", self.name));
        }
    }

    impl Component for Fake {
        fn name(&self) -> &str {
            self.name
        }

        fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
            self.note("audit");
            let books = &self.books;
            let name = self.name.to_owned();
            let audited = Audited::new(name, self.kind, books, books, difference(books, books));
            Box::pin(async { Ok(vec![audited]) })
        }

        fn delivered(&self) -> BoxFuture<'_, Result<Vec<DeliveredEvents>, Failure>> {
            self.note("delivered");
            let delivered = DeliveredEvents {
                from: self.name.to_owned(),
                to: ComponentKind::EventLog,
                origin: Some("a".to_owned()),
                books: self.books.clone(),
            };
            let is_sender = self.kind == ComponentKind::Logger;
            Box::pin(async move { Ok(is_sender.then_some(delivered).into_iter().collect()) })
        }

        fn received<'a>(
            &'a self,
            delivered: &'a DeliveredEvents,
        ) -> BoxFuture<'a, Result<Option<Books>, Failure>> {
            self.note("received");
            let books = (self.kind == delivered.to).then(|| self.books.clone());
            Box::pin(async { Ok(books) })
        }

        fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn health(&self) -> BoxFuture<'_, HealthFinding> {
            Box::pin(async { HealthFinding::up() })
        }
    }

    #[tokio::test]
    async fn a_path_is_read_from_its_beginning_and_a_missing_receiver_is_said() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let id = EventId::from_u128((60_000 << 80) | (7 << 76) | (0b10 << 62) | 1);
        let mut sent = Books::default();
        sent.move_one(id, None, Some(Place::Delivered));
        let fake = |name, kind, books| -> Arc<dyn Component> {
            let calls = Arc::clone(&calls);
            Arc::new(Fake {
                name,
                kind,
                books,
                calls,
            })
        };
        let receiver = fake("api", ComponentKind::EventLog, Books::default());
        let sender = fake("app", ComponentKind::Logger, sent);
        let all = [receiver, sender];
        let audit = audit_components(&[&all[0], &all[1]], &all).await.unwrap();
        assert_eq!(audit.unaccounted, 1);
        let path = &audit.components[1].paths[0];
        assert_eq!(
            (path.to.as_deref(), path.missing[0].id),
            (Some("api"), Some(id))
        );
        let read = std::mem::take(&mut *calls.lock());
        let expect = [
            "delivered api",
            "delivered app",
            "audit api",
            "audit app",
            "received api",
        ];
        assert_eq!(read, expect);
        // Asked alone, it is still compared with its receiver.
        let audit = audit_components(&[&all[1]], &all).await.unwrap();
        assert_eq!((audit.components.len(), audit.unaccounted), (1, 1));
        let audit = audit_components(&[&all[1]], &all[1..]).await.unwrap();
        assert_eq!(
            (audit.unaccounted, audit.components[0].paths[0].not_compared),
            (0, 1)
        );
    }
}
