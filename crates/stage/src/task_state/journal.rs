//! Writes of one record, which can be taken back.

use std::ops::ControlFlow;

use bytes::Bytes;

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
    pub(crate) fn rows(&self, table: TableId, start: &[u8], limit: usize) -> Vec<(Vec<u8>, Bytes)> {
        rows(self.state, table, start, limit)
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
    start: &[u8],
    limit: usize,
) -> Vec<(Vec<u8>, Bytes)> {
    let mut found = FoundRows::new(limit);
    if limit > 0 {
        state.rows(table, start, &mut |key, value| found.take(key, value));
    }
    found.rows
}

/// The rows of a table behind a key, or all, in order; at most so many.
pub(crate) fn rows_behind(
    state: &dyn TaskState,
    table: TableId,
    key: Option<&[u8]>,
    limit: usize,
) -> Vec<(Vec<u8>, Bytes)> {
    let mut found = FoundRows::new(limit);
    if limit > 0 {
        state.rows_behind(table, key, &mut |key, value| found.take(key, value));
    }
    found.rows
}

struct FoundRows {
    rows: Vec<(Vec<u8>, Bytes)>,
    limit: usize,
}

impl FoundRows {
    fn new(limit: usize) -> Self {
        Self {
            rows: Vec::new(),
            limit,
        }
    }

    fn take(&mut self, key: &[u8], value: &Bytes) -> ControlFlow<()> {
        self.rows.push((key.to_vec(), value.clone()));
        match self.rows.len() == self.limit {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
