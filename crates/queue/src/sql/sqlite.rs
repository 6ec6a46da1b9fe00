//! The queue on SQLite: the same tables, one writer, the clock of this host.

mod claim;
mod inspect;
mod maintain;
mod projection;
mod publish;
mod settle;
mod unreadable;

use sqlx::SqliteConnection;
use tidegate_store::sql::{SqlAccess, SqlDatabase, SqlFuture};
use tidegate_store::{Sqlite, StoreError, StoreTx, sqlx};
use tokio::sync::Notify;

use super::backend::SqlBackend;
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::Settlement;

/// The queue's tables on SQLite.
#[derive(Debug)]
pub(super) struct SqliteBackend {
    sqlite: Sqlite,
    /// Only this process hears it; others find their work by polling.
    wakes: Notify,
}

impl SqliteBackend {
    /// The queue in this file, whose tables are up to date.
    pub(super) fn new(sqlite: Sqlite) -> Self {
        Self {
            sqlite,
            wakes: Notify::new(),
        }
    }
}

impl SqlBackend for SqliteBackend {
    type Connection = SqliteConnection;

    const OUR_TABLES: Option<&'static str> = None;
    const RECORDS_IN_TRANSACTION: bool = false;

    async fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> SqlFuture<'c, T> + Send + 'static,
    {
        self.sqlite.call(access, doing, call).await
    }

    fn connection(tx: &mut StoreTx) -> Option<&mut SqliteConnection> {
        tx.sqlite()
    }

    fn inbox(&self) -> &str {
        "event_inbox"
    }

    fn publish_access(&self, _events: &[NewEvent]) -> SqlAccess {
        SqlAccess::Write
    }

    async fn settle(&self, settlement: &Settlement, now: i64) -> Result<Vec<i64>, QueueError> {
        self.settle_transitions(settlement, now).await
    }

    async fn sequence(&self, limit: u32) -> Result<u64, QueueError> {
        let sequence = self.sqlite.write("give positions", move |db| {
            Box::pin(projection::sequence(db, i64::from(limit)))
        });
        Ok(sequence.await?)
    }

    async fn after_clean(&self) {
        // So that the file itself is never far behind its journal. The next time will do as well.
        if let Err(error) = self.sqlite.checkpoint().await {
            tracing::debug!(%error, "could not checkpoint; the journal stays");
        }
    }

    fn wake(&self) {
        self.wakes.notify_waiters();
        self.wakes.notify_one();
    }

    fn wakes_sent(&self) -> impl Future<Output = ()> + Send {
        // Where processes do not tell each other there is nothing to wait for.
        std::future::ready(())
    }

    fn woken(&self) -> impl Future<Output = ()> + Send {
        self.wakes.notified()
    }
}

/// A list as a statement takes it.
fn json<T: serde::Serialize>(list: &T) -> String {
    // Numbers and texts always have a JSON form.
    serde_json::to_string(list).unwrap_or_default()
}
