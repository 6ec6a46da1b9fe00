//! Operations that fail.

use std::io;
use std::path::Path;

use tidegate_core::env::Stream;

use super::Operation;

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The device answers with an error; nothing was done.
    IoError,
    /// The disk is full; nothing was done.
    Full,
    /// A write stops in the middle because the disk is full.
    ShortWrite,
    /// A sync fails, and the bytes it should have written are thrown away, or a part of them. Reads
    /// still show them, and the next sync says that all is well.
    SyncDropsDirty,
}

impl FaultKind {
    pub(super) fn error(self) -> io::Error {
        match self {
            Self::IoError => io::Error::other("simulated I/O error"),
            Self::SyncDropsDirty => io::Error::other("simulated I/O error at sync"),
            Self::Full | Self::ShortWrite => io::Error::from(io::ErrorKind::StorageFull),
        }
    }
}

/// One operation that fails: the `nth` from now of its kind, counted from 1, on a file whose path
/// ends with `path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which kind of operation.
    pub operation: Operation,
    /// The end of the path; empty for any.
    pub path: String,
    /// Which of them.
    pub nth: u64,
    /// How it fails.
    pub kind: FaultKind,
}

#[derive(Debug, Clone, Default)]
pub(super) struct DiskFaults {
    scripted: Vec<Fault>,
    chances: Vec<(Operation, FaultKind, f64)>,
}

impl DiskFaults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.scripted.push(fault);
    }

    pub(super) fn set_chance(&mut self, operation: Operation, kind: FaultKind, chance: f64) {
        self.chances
            .retain(|(o, k, _)| (*o, *k) != (operation, kind));
        if chance > 0.0 {
            self.chances.push((operation, kind, chance));
        }
    }

    /// The fault of this operation, if it has one.
    pub(super) fn next(
        &mut self,
        operation: Operation,
        path: &Path,
        entropy: &mut Stream,
    ) -> Option<FaultKind> {
        let mut found = None;
        let path = path.to_string_lossy();
        self.scripted.retain_mut(|fault| {
            if fault.operation != operation || !path.ends_with(&fault.path) {
                return true;
            }
            fault.nth = fault.nth.saturating_sub(1);
            if fault.nth == 0 {
                found = found.or(Some(fault.kind));
            }
            fault.nth > 0
        });
        let mut by_chance = self.chances.iter().filter(|(o, ..)| *o == operation);
        found.or_else(|| {
            by_chance
                .find(|(_, _, chance)| super::unit(entropy) < *chance)
                .map(|(_, kind, _)| *kind)
        })
    }
}
