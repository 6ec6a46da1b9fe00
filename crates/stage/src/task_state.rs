//! The state of one task, as the operators see it.

pub(crate) mod codec;
pub(crate) mod journal;

use std::ops::ControlFlow;

use bytes::Bytes;

/// A table of a task: one state of the plan, the timers, or the runtime's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// Takes the key and the value of a row, and says whether to go on.
pub type RowVisit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Ordered tables of bytes that belong to one task. Reads see the writes of the epoch in progress.
///
/// Nothing here is durable by itself: what was written becomes part of the epoch, and an aborted epoch takes it
/// back.
pub trait TaskState {
    /// The value under a key.
    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes>;

    /// Sets the value under a key.
    fn put(&mut self, table: TableId, key: &[u8], value: Bytes);

    /// Removes the value under a key. Removing what is not there changes nothing.
    fn delete(&mut self, table: TableId, key: &[u8]);

    /// Visits the entries from a key (inclusive) up to another (exclusive; none for the end), in order, until told
    /// to stop.
    fn scan(&self, table: TableId, from: &[u8], to: Option<&[u8]>, visit: &mut RowVisit<'_>);
}
