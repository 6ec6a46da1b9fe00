//! The base of a changelog, rolled on: the whole state is written again, piece by piece, beside the deltas.
//!
//! A piece holds the state before the epoch that it is written with. It lies before the delta of that epoch, and
//! replaces its range of keys. So the order of the log alone decides. Once the last piece is committed, the commit
//! after it names the new base. Once that commit is known, what lies before the base can go.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::changelog::{Frame, MAX_FRAME_BYTES, PieceFrame, entry_bytes};
use crate::state::LayeredState;
use crate::state::backend::EntryKey;

/// A changelog is rolled once it holds this many bytes and twice the state.
const LEAST_TO_ROLL: u64 = 1024 * 1024;

/// How far the base of one task is. It is taken back with the epoch that moved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseRoll {
    /// The base that commits name.
    base: i64,
    /// Bytes of the changelog behind the base.
    bytes: u64,
    /// The base that is being written.
    next: Option<NextBase>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NextBase {
    /// Where its first piece lies; none before that is known.
    first: Option<i64>,
    /// Where the next piece begins; none once the last one is written.
    cursor: Option<EntryKey>,
    /// Bytes of the changelog behind its first piece.
    bytes: u64,
}

impl BaseRoll {
    /// A base that begins here, with so many bytes behind it.
    #[must_use]
    pub(crate) fn new(base: i64, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            next: None,
        }
    }

    /// The base that a commit names.
    #[must_use]
    pub(crate) fn base(&self) -> i64 {
        self.base
    }

    /// Bytes of the changelog behind the base.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pieces that go with an epoch whose delta has so many bytes. Called before the open layer is sealed.
    pub(crate) fn pieces(
        &mut self,
        state: &LayeredState,
        epoch: u64,
        delta: usize,
    ) -> Vec<Vec<u8>> {
        // A base whose last piece is committed becomes the one that commits name.
        if let Some(next) = &self.next
            && let (Some(first), None) = (next.first, &next.cursor)
        {
            (self.base, self.bytes) = (first, next.bytes);
            self.next = None;
        }
        let (_, size) = state.backend().size();
        if self.next.is_none() {
            if self.bytes < LEAST_TO_ROLL.max(2 * size) {
                return Vec::new();
            }
            self.next = Some(NextBase {
                first: None,
                cursor: Some(EntryKey::first()),
                bytes: 0,
            });
        }
        let Some(next) = &mut self.next else {
            return Vec::new();
        };
        // At most as much as the delta, and always some of it: a quiet stage gets on, too.
        let mut room = delta.max(MAX_FRAME_BYTES / 8);
        let mut pieces = Vec::new();
        while let Some(from) = next.cursor.take() {
            let limit = room.min(MAX_FRAME_BYTES - 256);
            let (entries, to) = range(state, &from, limit);
            let frame = Frame::Piece(PieceFrame {
                epoch,
                from,
                to: to.clone(),
                entries,
            });
            next.cursor = to;
            let encoded = frame.encode();
            room = room.saturating_sub(encoded.len());
            pieces.push(encoded);
            if room == 0 {
                break;
            }
        }
        pieces
    }

    /// So many bytes go into the changelog with an epoch.
    pub(crate) fn written(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(next) = &mut self.next {
            next.bytes += bytes;
        }
    }

    /// An epoch with pieces was committed; its first piece lies here, if anybody knows where.
    pub(crate) fn placed(&mut self, first: Option<i64>) {
        let Some(next) = &mut self.next else {
            return;
        };
        if next.first.is_none() {
            match first {
                Some(_) => next.first = first,
                // Nobody knows where it begins, so it is begun again.
                None => self.next = None,
            }
        }
    }
}

/// The whole state as pieces of an epoch, one behind the other.
pub(crate) fn whole(state: &LayeredState, epoch: u64) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut cursor = Some(EntryKey::first());
    while let Some(from) = cursor {
        let (encoded, to) = piece(state, epoch, from);
        pieces.push(encoded);
        cursor = to;
    }
    pieces
}

/// A piece of the state from a place on, and the place behind it; none at the end.
pub(crate) fn piece(
    state: &LayeredState,
    epoch: u64,
    from: EntryKey,
) -> (Vec<u8>, Option<EntryKey>) {
    let (entries, to) = range(state, &from, MAX_FRAME_BYTES - 256);
    let piece = PieceFrame {
        epoch,
        from,
        to: to.clone(),
        entries,
    };
    (Frame::Piece(piece).encode(), to)
}

/// The entries from a place on that fit, and the place where the rest begins.
fn range(
    state: &LayeredState,
    from: &EntryKey,
    limit: usize,
) -> (Vec<(EntryKey, Bytes)>, Option<EntryKey>) {
    let mut entries: Vec<(EntryKey, Bytes)> = Vec::new();
    let mut size = 0;
    let mut rest = None;
    state.scan_sealed(from, &mut |key: &EntryKey, value: &Bytes| {
        size += entry_bytes(key, Some(value));
        if size > limit && !entries.is_empty() {
            rest = Some(key.clone());
            return ControlFlow::Break(());
        }
        entries.push((key.clone(), value.clone()));
        ControlFlow::Continue(())
    });
    (entries, rest)
}
