//! Transactions of the model.

use std::collections::BTreeMap;

use super::QueueModel;
use super::state::ModelState;
use crate::QueueError;
use crate::event::NewEvent;

/// The writes that a transaction does when it commits.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    published: Vec<(i64, NewEvent)>,
    written: BTreeMap<(String, String), Option<String>>,
}

/// A transaction of the [`QueueModel`]: events, and tables of keys and values for read models.
#[must_use = "a transaction that is dropped changes nothing"]
pub struct ModelTx {
    model: QueueModel,
    pending: PendingWrites,
}

impl ModelTx {
    pub(super) fn new(model: QueueModel) -> Self {
        Self {
            model,
            pending: PendingWrites::default(),
        }
    }

    /// Sets the value of `key` in a table.
    pub fn put(&mut self, table: &str, key: &str, value: impl Into<String>) {
        let place = (table.to_owned(), key.to_owned());
        self.pending.written.insert(place, Some(value.into()));
    }

    /// The value of `key` in a table, as this transaction sees it.
    #[must_use]
    pub fn get(&self, table: &str, key: &str) -> Option<String> {
        let place = (table.to_owned(), key.to_owned());
        match self.pending.written.get(&place) {
            Some(written) => written.clone(),
            None => self.model.value(table, key),
        }
    }

    /// Numbers are taken now, and the events are there when it commits: others may be there before.
    pub(super) fn publish(&mut self, events: &[NewEvent]) -> Vec<i64> {
        let ids = self.model.lock().reserve(events.len());
        let numbered = ids.iter().copied().zip(events.iter().cloned());
        self.pending.published.extend(numbered);
        ids
    }

    pub(super) fn take(&mut self) -> PendingWrites {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn commit(mut self) -> Result<(), QueueError> {
        let now = self.model.now_ms();
        let pending = self.take();
        self.model.lock().apply_pending(pending, now);
        Ok(())
    }
}

impl std::fmt::Debug for ModelTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModelTx")
    }
}

impl ModelState {
    pub(super) fn apply_pending(&mut self, pending: PendingWrites, now: i64) {
        for (id, event) in pending.published {
            self.add(id, event, now);
        }
        for ((table, key), value) in pending.written {
            let rows = self.tables.entry(table).or_default();
            match value {
                Some(value) => rows.insert(key, value),
                None => rows.remove(&key),
            };
        }
    }
}
