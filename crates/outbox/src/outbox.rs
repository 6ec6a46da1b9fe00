//! The handle on one outbox.

use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_store::{Store, StoreTx};

use crate::port::{
    OutboxFilter, OutboxRow, OutboxStats, OutboxStatus, OutboxStore, PurgeRequest, RowSelection,
};
use crate::{NewOutboxEvent, OutboxError, OutboxOptions, sql};

/// Rows that one transaction of a purge removes.
const PURGE_BATCH: u32 = 5_000;

/// One outbox: a table, and the settings of its relay. Clones are the same outbox.
#[derive(Debug, Clone)]
pub struct Outbox {
    store: Arc<dyn OutboxStore>,
    inserts: Option<Arc<sql::Inserter>>,
    options: Arc<OutboxOptions>,
}

impl Outbox {
    /// The outbox in this database, whose tables are [up to date](crate::migrate).
    ///
    /// # Errors
    /// The settings cannot be used, or are not those that the table was made with; the database is away.
    pub async fn open(
        store: &Store,
        options: OutboxOptions,
        env: &Env,
    ) -> Result<Self, OutboxError> {
        let inserts = Arc::new(sql::Inserter::new(&options, env)?);
        let opened = sql::outbox_store(store.clone(), &options, Arc::clone(&inserts)).await?;
        Ok(Self {
            store: opened,
            inserts: Some(inserts),
            options: Arc::new(options),
        })
    }

    /// The outbox of another store, such as the model.
    #[must_use]
    pub fn of_store(store: Arc<dyn OutboxStore>, options: OutboxOptions) -> Self {
        Self {
            store,
            inserts: None,
            options: Arc::new(options),
        }
    }

    /// Its settings.
    #[must_use]
    pub fn options(&self) -> &OutboxOptions {
        &self.options
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn OutboxStore> {
        &self.store
    }

    /// Adds events in your transaction, with ids of their own and their posting. They are published once
    /// that commits, and never if it does not.
    ///
    /// # Errors
    /// The database refused; the transaction is then yours to take back.
    pub async fn insert_in(
        &self,
        tx: &mut StoreTx,
        events: &[NewOutboxEvent],
    ) -> Result<Vec<EventId>, OutboxError> {
        let inserts = self.inserts.as_ref();
        let inserts = inserts.ok_or(OutboxError::ForeignTransaction)?;
        match tx {
            StoreTx::Postgres(tx) => inserts.insert_on_postgres(tx.connection(), events).await,
            StoreTx::Sqlite(tx) => inserts.insert_on_sqlite(tx.connection(), events).await,
        }
    }

    /// Adds events in a transaction of their own.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn insert(&self, events: &[NewOutboxEvent]) -> Result<Vec<EventId>, OutboxError> {
        self.store.insert(events).await
    }

    /// Lists rows, without their payload.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn list(&self, filter: &OutboxFilter) -> Result<Vec<OutboxRow>, OutboxError> {
        self.store.list(filter).await
    }

    /// One row, with its payload.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn show(&self, which: &RowSelection) -> Result<Option<OutboxRow>, OutboxError> {
        self.store.show(which).await
    }

    /// Makes DEAD rows PENDING again, and rows that wait due at once. Gives how many.
    ///
    /// # Errors
    /// The database is away or refused, or the one row that was meant is not there.
    pub async fn retry(&self, which: &RowSelection) -> Result<u64, OutboxError> {
        let changed = self.store.retry(which).await?;
        if changed == 0 && *which != RowSelection::All && self.show(which).await?.is_none() {
            let id = match which {
                RowSelection::Id(id) => id.to_string(),
                RowSelection::Event(id) => id.to_string(),
                RowSelection::All => String::new(),
            };
            let table = self.options.table.clone();
            return Err(OutboxError::UnknownRow { id, table });
        }
        Ok(changed)
    }

    /// Removes the rows of a status that were finished before this time, in milliseconds since 1970, for
    /// good. Gives how many. Only [`OutboxStatus::Sent`] and [`OutboxStatus::Dead`] rows can be.
    ///
    /// Purging twice removes what is left. If it fails in the middle, what was removed stays removed.
    ///
    /// # Errors
    /// The status cannot be purged; the database is away or refused.
    pub async fn purge(&self, status: OutboxStatus, before_ms: i64) -> Result<u64, OutboxError> {
        if !matches!(status, OutboxStatus::Sent | OutboxStatus::Dead) {
            let status = status.as_str();
            return Err(OutboxError::NotPurgeable { status });
        }
        let mut purged = 0;
        loop {
            let request = PurgeRequest {
                status,
                before_ms,
                limit: PURGE_BATCH,
            };
            let removed = self.store.purge(request).await?;
            purged += removed;
            if removed < u64::from(PURGE_BATCH) {
                return Ok(purged);
            }
        }
    }

    /// The numbers of the table.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn stats(&self) -> Result<OutboxStats, OutboxError> {
        self.store.stats().await
    }
}
