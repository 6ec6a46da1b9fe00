//! Signals that wake their waiters in the order in which they began to wait.
//!
//! A `watch` channel wakes them in an order that differs from run to run, and one seed must mean one history.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts changes of something.
#[derive(Debug, Default)]
pub(crate) struct ChangeSignal {
    version: AtomicU64,
    changed: Notify,
}

impl ChangeSignal {
    /// Something changed.
    pub(crate) fn touch(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// How often it changed so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Completes once it changed after `seen`.
    pub(crate) async fn after(&self, seen: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // A change after this look notifies.
            changed.as_mut().enable();
            if self.version() != seen {
                return;
            }
            changed.await;
        }
    }
}

/// Whether consumers are to stop.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    is_set: AtomicBool,
    changed: Notify,
}

impl StopSignal {
    /// Asks to stop, or takes that back for a new start.
    pub(crate) fn set(&self, stop: bool) {
        self.is_set.store(stop, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Completes once somebody asks to stop.
    pub(crate) async fn requested(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }
}
