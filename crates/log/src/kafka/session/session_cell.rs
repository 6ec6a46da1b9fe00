//! The state under a lock, with who waits for it.

use std::time::Duration;

use crate::error::LogError;
use crate::port::SessionEvent;

use super::session_state::{ConsumerCommands, SessionState};
use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Notify, Ordering, PoisonError};

/// The state under a lock.
#[derive(Debug)]
pub(super) struct SessionCell {
    state: Mutex<SessionState>,
    /// Something can be handed out. One session polls at a time, so one permit is enough.
    happened: Notify,
    /// The poll thread has something to do.
    woken: Condvar,
    /// How often it had, so that it does not rest after a time that it missed. Changes under the lock.
    wakes: AtomicU64,
}

impl SessionCell {
    pub(super) fn new(state: SessionState) -> Self {
        Self {
            state: Mutex::new(state),
            happened: Notify::new(),
            woken: Condvar::new(),
            wakes: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the state. It must not block.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut SessionState) -> T) -> T {
        work(&mut self.state())
    }

    /// The commands for the client now, and how often the poll thread was woken until then.
    pub(super) fn orders(&self, now: Duration) -> (ConsumerCommands, u64) {
        let mut state = self.state();
        (state.orders(now), self.wakes.load(Ordering::Relaxed))
    }

    /// Wakes the caller that polls.
    pub(super) fn tell(&self) {
        self.happened.notify_one();
    }

    /// Wakes the caller that polls, and the poll thread.
    pub(super) fn wake_threads(&self) {
        self.happened.notify_one();
        self.wake_poll_thread(self.state());
    }

    fn wake_poll_thread(&self, state: MutexGuard<'_, SessionState>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.woken.notify_all();
    }

    /// Waits for the next thing to hand out. If canceled, it is handed out to the next one who asks.
    pub(super) async fn handed_out(&self, max_records: usize) -> Result<SessionEvent, LogError> {
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
    fn next(&self, max_records: usize) -> Option<Result<SessionEvent, LogError>> {
        let mut state = self.state();
        let next = state.next(max_records);
        if matches!(next, Some(Ok(SessionEvent::Records { .. }))) {
            // There may be room again.
            self.wake_poll_thread(state);
        }
        next
    }

    /// Waits until somebody wakes it, at most so long.
    pub(super) fn rest(&self, limit: Duration) {
        let state = self.state();
        drop(self.woken.wait_timeout(state, limit));
    }

    /// Waits until the poll thread was woken more often than `seen` times, at most so long.
    pub(super) fn wait_since(&self, seen: u64, limit: Duration) {
        let is_quiet = |_: &mut SessionState| self.wakes.load(Ordering::Relaxed) == seen;
        let state = self.state();
        drop(self.woken.wait_timeout_while(state, limit, is_quiet));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().end.is_some()
    }
}
