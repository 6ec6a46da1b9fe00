//! The desk under a lock, with who waits for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::LogError;
use crate::port::Happening;

use super::desk::Desk;

/// The desk under a lock.
#[derive(Debug)]
pub(super) struct Board {
    desk: Mutex<Desk>,
    /// Something can be handed out. One session polls at a time, so one permit is enough.
    happened: Notify,
    /// The driver has something to do.
    stirred: Condvar,
}

impl Board {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            desk: Mutex::new(desk),
            happened: Notify::new(),
            stirred: Condvar::new(),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the desk. It must not block.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Desk) -> T) -> T {
        work(&mut self.desk())
    }

    /// Completes when something may be handed out.
    pub(super) fn happened(&self) -> Notified<'_> {
        self.happened.notified()
    }

    /// Tells whoever polls.
    pub(super) fn tell(&self) {
        self.happened.notify_one();
    }

    /// Tells whoever polls, and the driver.
    pub(super) fn stir(&self) {
        self.happened.notify_one();
        self.stirred.notify_all();
    }

    /// The next thing to hand out.
    pub(super) fn next(&self, max_records: usize) -> Option<Result<Happening, LogError>> {
        let next = self.desk().next(max_records);
        if matches!(next, Some(Ok(Happening::Records { .. }))) {
            // There may be room again.
            self.stirred.notify_all();
        }
        next
    }

    /// Waits until somebody stirs, at most so long.
    pub(super) fn rest(&self, limit: Duration) {
        let desk = self.desk();
        drop(self.stirred.wait_timeout(desk, limit));
    }

    pub(super) fn is_over(&self) -> bool {
        self.desk().end.is_some()
    }
}
