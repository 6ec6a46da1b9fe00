//! Writes of one record, which can be taken back.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::codec::behind;
use super::{TableId, TaskState};

/// The state of a task during one record or timer. Writes since a mark can be taken back.
pub(crate) struct StateJournal<'s> {
    state: &'s mut dyn TaskState,
    undo: Vec<(TableId, Box<[u8]>, Option<Bytes>)>,
}

impl std::fmt::Debug for StateJournal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let writes = self.undo.len();
        f.debug_struct("StateJournal")
            .field("writes", &writes)
            .finish()
    }
}

impl<'s> StateJournal<'s> {
    pub(crate) fn new(state: &'s mut dyn TaskState) -> Self {
        Self {
            state,
            undo: Vec::new(),
        }
    }

    pub(crate) fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> {
        self.state.get(table, key)
    }

    pub(crate) fn put(&mut self, table: TableId, key: &[u8], value: Vec<u8>) {
        let before = self.state.get(table, key);
        if before.as_deref() == Some(value.as_slice()) {
            return;
        }
        self.undo.push((table, key.into(), before));
        self.state.put(table, key, Bytes::from(value));
    }

    /// Removes what is under a key, and gives it.
    pub(crate) fn take(&mut self, table: TableId, key: &[u8]) -> Option<Bytes> {
        let before = self.state.get(table, key)?;
        self.undo.push((table, key.into(), Some(before.clone())));
        self.state.delete(table, key);
        Some(before)
    }

    /// The rows whose keys begin with these bytes, in order; at most so many.
    pub(crate) fn rows(
        &self,
        table: TableId,
        prefix: &[u8],
        limit: usize,
    ) -> Vec<(Vec<u8>, Bytes)> {
        rows(self.state, table, prefix, limit)
    }

    /// A place to which [`undo_to`](Self::undo_to) goes back.
    pub(crate) fn mark(&self) -> usize {
        self.undo.len()
    }

    pub(crate) fn undo_to(&mut self, mark: usize) {
        while self.undo.len() > mark {
            let Some((table, key, before)) = self.undo.pop() else {
                return;
            };
            match before {
                Some(value) => self.state.put(table, &key, value),
                None => self.state.delete(table, &key),
            }
        }
    }
}

/// The rows whose keys begin with these bytes, in order; at most so many.
pub(crate) fn rows(
    state: &dyn TaskState,
    table: TableId,
    prefix: &[u8],
    limit: usize,
) -> Vec<(Vec<u8>, Bytes)> {
    rows_from(state, table, prefix, behind(prefix).as_deref(), limit)
}

/// The rows from a key on and before another one, in order; at most so many.
pub(crate) fn rows_from(
    state: &dyn TaskState,
    table: TableId,
    from: &[u8],
    to: Option<&[u8]>,
    limit: usize,
) -> Vec<(Vec<u8>, Bytes)> {
    let mut found = Vec::new();
    if limit == 0 {
        return found;
    }
    state.scan(table, from, to, &mut |key, value| {
        found.push((key.to_vec(), Bytes::copy_from_slice(value)));
        if found.len() == limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    found
}
