//! The desk under a lock, with who waits for it.

use std::time::Duration;

use crate::error::LogError;
use crate::port::Happening;

use super::desk::{Desk, Orders};
use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Notify, Ordering, PoisonError};

/// The desk under a lock.
#[derive(Debug)]
pub(super) struct Board {
    desk: Mutex<Desk>,
    /// Something can be handed out. One session polls at a time, so one permit is enough.
    happened: Notify,
    /// The driver has something to do.
    stirred: Condvar,
    /// How often it had, so that it does not rest after a time that it missed. Changes under the lock.
    stirs: AtomicU64,
}

impl Board {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            desk: Mutex::new(desk),
            happened: Notify::new(),
            stirred: Condvar::new(),
            stirs: AtomicU64::new(0),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the desk. It must not block.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Desk) -> T) -> T {
        work(&mut self.desk())
    }

    /// What the client is to be told now, and how often the driver was stirred until then.
    pub(super) fn orders(&self, now: Duration) -> (Orders, u64) {
        let mut desk = self.desk();
        (desk.orders(now), self.stirs.load(Ordering::Relaxed))
    }

    /// Tells whoever polls.
    pub(super) fn tell(&self) {
        self.happened.notify_one();
    }

    /// Tells whoever polls, and the driver.
    pub(super) fn stir(&self) {
        self.happened.notify_one();
        self.stir_driver(self.desk());
    }

    fn stir_driver(&self, desk: MutexGuard<'_, Desk>) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
        drop(desk);
        self.stirred.notify_all();
    }

    /// Waits for the next thing to hand out. If canceled, it is handed out to the next one who asks.
    pub(super) async fn handed_out(&self, max_records: usize) -> Result<Happening, LogError> {
        loop {
            // Asked for before the look, so that what happens in between is not missed.
            let happened = self.happened.notified();
            if let Some(next) = self.next(max_records) {
                return next;
            }
            happened.await;
        }
    }

    /// The next thing to hand out.
    fn next(&self, max_records: usize) -> Option<Result<Happening, LogError>> {
        let mut desk = self.desk();
        let next = desk.next(max_records);
        if matches!(next, Some(Ok(Happening::Records { .. }))) {
            // There may be room again.
            self.stir_driver(desk);
        }
        next
    }

    /// Waits until somebody stirs, at most so long.
    pub(super) fn rest(&self, limit: Duration) {
        let desk = self.desk();
        drop(self.stirred.wait_timeout(desk, limit));
    }

    /// Waits until the driver was stirred more often than `seen` times, at most so long.
    pub(super) fn rest_since(&self, seen: u64, limit: Duration) {
        let is_quiet = |_: &mut Desk| self.stirs.load(Ordering::Relaxed) == seen;
        let desk = self.desk();
        drop(self.stirred.wait_timeout_while(desk, limit, is_quiet));
    }

    pub(super) fn is_over(&self) -> bool {
        self.desk().end.is_some()
    }
}
