//! Timers of a task: rows under their due time, cancelled by the entry they belong to.
//!
//! A row is `due time | number` and names the table, the row and the entry that it belongs to. The order of due
//! times is also that of any bucket of them, so a bucket is a range of keys. Cancelling is lazy: a timer whose entry
//! is gone does nothing when it fires. Timers that are due together fire in the order in which they were set.

use tidegate_core::Failure;

use crate::operators::damaged;
use crate::task_state::codec::{Reader, Writer, from_ordered, key_number, ordered};
use crate::task_state::journal::{StateJournal, rows_from};
use crate::task_state::{TableId, TaskState};

/// The table of the timers.
pub(crate) const TIMERS: TableId = TableId(1);

/// The work of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerKind {
    /// An entry has waited long enough, or a window ends.
    Due,
    /// A window takes no more corrections.
    Gone,
    /// A key that was seen is forgotten.
    Forget,
}

/// A timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) kind: TimerKind,
    /// The table of the entry.
    pub(crate) table: TableId,
    /// The entry by its number.
    pub(crate) entry: u64,
    /// The row of the entry.
    pub(crate) row: Vec<u8>,
}

/// Sets a timer; `number` is larger than that of every timer before.
pub(crate) fn set(journal: &mut StateJournal<'_>, due: i64, number: u64, timer: &Timer) {
    let mut key = ordered(due).to_vec();
    key.extend_from_slice(&number.to_be_bytes());
    let mut value = Writer::default();
    let kind = match timer.kind {
        TimerKind::Due => 0,
        TimerKind::Gone => 1,
        TimerKind::Forget => 2,
    };
    value.byte(kind).number(u64::from(timer.table.0));
    value.number(timer.entry);
    value.0.extend_from_slice(&timer.row);
    journal.put(TIMERS, &key, value.0);
}

/// When the first timer is due, of those that are not due before a time.
pub(crate) fn first_due(state: &dyn TaskState, from: i64) -> Option<i64> {
    let first = rows_from(state, TIMERS, &ordered(from), None, 1);
    from_ordered(first.first()?.0.get(..8)?)
}

/// The timers that are due from a time on until another, in their order, with their keys; at most so many.
pub(crate) fn due(
    state: &dyn TaskState,
    (from, until): (i64, i64),
    limit: usize,
) -> Result<Vec<(i64, Vec<u8>, Timer)>, Failure> {
    let to = until.checked_add(1).map(ordered);
    let to = to.as_ref().map(<[u8; 8]>::as_slice);
    let found = rows_from(state, TIMERS, &ordered(from), to, limit);
    let read = found.into_iter().map(|(key, value)| {
        let (due, timer) = read(&key, &value).ok_or_else(|| damaged(TIMERS))?;
        Ok((due, key, timer))
    });
    read.collect()
}

fn read(key: &[u8], value: &[u8]) -> Option<(i64, Timer)> {
    let due = from_ordered(key.get(..8)?)?;
    key_number(key.get(8..)?)?;
    let mut reader = Reader(value);
    let kind = match reader.byte()? {
        0 => TimerKind::Due,
        1 => TimerKind::Gone,
        2 => TimerKind::Forget,
        _ => return None,
    };
    let timer = Timer {
        kind,
        table: TableId(u16::try_from(reader.number()?).ok()?),
        entry: reader.number()?,
        row: reader.0.to_vec(),
    };
    Some((due, timer))
}
