//! A batch of lines on its way to the active file.
//!
//! It is prepared, written, synced and noted in four steps. So the next one can be prepared and
//! written while this one is being synced on another thread.

use std::io;

use tidegate_core::EventId;
use tidegate_core::books::LossReason;
use tidegate_core::env::DiskFile;

use super::spool::Caps;
use super::{MAX_LINE, line};
use crate::loss::reason;

/// Bytes after which a batch takes no more events.
const BATCH_BYTES: usize = 256 * 1024;

/// Where the active file ends, and what its next line carries on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AppendPosition {
    pub(super) len: u64,
    pub(super) lines: u64,
    pub(super) seq: u64,
    pub(super) sum: u128,
}

/// Lines that are ready to be written behind a position, and only there.
pub(crate) struct Prepared {
    pub(super) bytes: Vec<u8>,
    /// The events of these lines.
    pub(crate) written: BatchWritten,
    /// Where the file ends once it is written.
    pub(crate) ends: AppendPosition,
}

/// The events of a batch.
#[derive(Debug)]
pub(crate) struct BatchWritten {
    /// How many events were taken from the front of what was offered.
    pub(crate) taken: usize,
    /// Those of them that have a line.
    pub(crate) ids: Vec<EventId>,
    /// Which ones did not fit, and why.
    pub(crate) refused: Vec<(usize, LossReason)>,
}

impl Prepared {
    /// Makes lines of what fits under the caps.
    pub(super) fn new(
        mut bytes: Vec<u8>,
        position: AppendPosition,
        caps: Caps,
        count: usize,
        encode: &mut dyn FnMut(usize, &mut Vec<u8>) -> EventId,
    ) -> Self {
        /// The most that closing a line adds.
        const CLOSING: usize = 96;
        bytes.clear();
        let mut ids = Vec::with_capacity(count);
        let mut refused = Vec::new();
        let mut taken = 0;
        let (mut seq, mut sum) = (position.seq, position.sum);
        // A line is closed when its successor is known, because only the last one carries the sum.
        let mut open_from = 0;
        for index in 0..count {
            if bytes.len() >= BATCH_BYTES {
                break;
            }
            taken += 1;
            // Closed before it is known whether a successor fits; taken back if none does.
            let closed_from = bytes.len();
            if !ids.is_empty() {
                line::close(&mut bytes, open_from, seq, None);
            }
            let start = bytes.len();
            let id = encode(index, &mut bytes);
            let line = bytes.len() - start + CLOSING;
            let over = if position.lines + ids.len() as u64 >= caps.events {
                Some(reason::SPILLOVER_MAX_EVENTS)
            } else if position.len + (start + line) as u64 > caps.bytes || line > MAX_LINE {
                Some(reason::SPILLOVER_MAX_SIZE)
            } else {
                None
            };
            if let Some(reason) = over {
                bytes.truncate(closed_from);
                refused.push((index, reason));
                continue;
            }
            open_from = start;
            seq += 1;
            sum = sum.wrapping_add(id.as_u128());
            ids.push(id);
        }
        if !ids.is_empty() {
            line::close(&mut bytes, open_from, seq, Some(sum));
        }
        let ends = AppendPosition {
            len: position.len + bytes.len() as u64,
            lines: position.lines + ids.len() as u64,
            seq,
            sum,
        };
        Self {
            bytes,
            written: BatchWritten {
                taken,
                ids,
                refused,
            },
            ends,
        }
    }

    /// Whether there is nothing to write: every event that was offered was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.written.ids.is_empty()
    }

    /// Whether a cap refused any of them.
    pub(crate) fn is_capped(&self) -> bool {
        !self.written.refused.is_empty()
    }
}

/// The active file, for the thread that syncs it.
pub(crate) struct SyncHandle {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) is_synced: bool,
}

/// How writing and syncing a batch went.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// All of it would survive a power cut.
    Durable,
    /// It counts for nothing, because a batch before it failed.
    Skipped,
    /// The write failed; a part of it may be there.
    Refused(io::Error),
    /// The sync failed.
    Unsynced,
}

impl SyncHandle {
    /// Asks the disk to keep all that was written so far.
    pub(crate) fn sync(&mut self) -> WriteOutcome {
        if self.is_synced && self.file.sync().is_err() {
            WriteOutcome::Unsynced
        } else {
            WriteOutcome::Durable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_refuses_events_that_do_not_fit() {
        for (events, fitting) in [(2, 2), (3, 3), (4, 3)] {
            let caps = Caps {
                events,
                bytes: u64::MAX,
            };
            let mut encode = |index: usize, bytes: &mut Vec<u8>| {
                bytes.extend_from_slice(b"{\"details\":\"x\"");
                EventId::from_u128(index as u128)
            };
            let prepared =
                Prepared::new(Vec::new(), AppendPosition::default(), caps, 3, &mut encode);
            let written = &prepared.written;
            assert_eq!((written.taken, written.ids.len()), (3, fitting));
            assert_eq!(prepared.is_capped(), fitting < 3);
            assert_eq!(written.refused.len(), 3 - fitting);
        }
    }
}
