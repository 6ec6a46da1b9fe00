//! One part of a process, and everything that the process asks of it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::books::{Audited, ComponentAccount};
use crate::env::BoxFuture;
use crate::{EventId, EventLocation, Failure, HealthFinding};

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

    /// Counts its events where they are, and compares that with the books.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>>;

    /// Where it has seen an event, in the order in which the event passed there: the last one is where it
    /// is now. Empty if it has never seen it, or does not know any more.
    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>>;

    /// How it is now.
    fn health(&self) -> BoxFuture<'_, HealthFinding>;

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
