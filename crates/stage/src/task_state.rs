//! The state of one task, as the operators see it.

pub(crate) mod codec;
pub(crate) mod journal;

use std::ops::ControlFlow;

use bytes::Bytes;

/// A table of a task: one state of the plan, the timers, or the runtime's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

impl TableId {
    /// The table of the chain itself. Its keys are no texts, so its rows are in the order of their bytes.
    pub const CHAIN: Self = Self(0);
}

/// Takes the key and the value of a row, and says whether to go on.
pub type RowVisit<'v> = dyn FnMut(&[u8], &Bytes) -> ControlFlow<()> + 'v;

/// Tables of bytes that belong to one task. Reads see the writes of the epoch in progress.
///
/// A key begins with a text, as the format says. The rows of one text stand together, in the order of their bytes. The
/// texts of a table are in the order of their [hashes](crate::state::backend::text_hash).
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

    /// Visits the rows whose keys begin with a whole text and these bytes behind it, in order, until told to stop. In the
    /// table of the chain itself, any bytes will do.
    fn rows(&self, table: TableId, start: &[u8], visit: &mut RowVisit<'_>);

    /// Visits the rows of a table behind a key, or all, in order, until told to stop.
    fn rows_behind(&self, table: TableId, key: Option<&[u8]>, visit: &mut RowVisit<'_>);

    /// Visits the rows of all texts that have this hash, in order, until told to stop.
    fn rows_of_hash(&self, table: TableId, hash: u32, visit: &mut RowVisit<'_>);
}
