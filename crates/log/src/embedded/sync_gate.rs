//! Whether the journal is being synced: commits wait for those syncs only, so other users of the disk
//! wait until they end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether the journal is being synced.
#[derive(Debug, Default)]
pub(super) struct SyncGate {
    state: Mutex<SyncState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    is_under_way: bool,
    /// How many have ended.
    ended: u64,
}

/// A sync of the journal that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct SyncInProgress<'a>(&'a SyncGate);

impl SyncGate {
    /// Says that a sync begins.
    pub(super) fn begin(&self) -> SyncInProgress<'_> {
        self.state().is_under_way = true;
        SyncInProgress(self)
    }

    /// Waits until the sync that is under way has ended. It does not wait for the next one as well, which
    /// may follow at once: under a load of commits it would wait for ever.
    pub(super) fn wait_for_current_sync(&self) {
        let state = self.state();
        let ended = state.ended;
        let passed = self
            .ended
            .wait_while(state, |state| state.is_under_way && state.ended == ended);
        drop(passed.unwrap_or_else(PoisonError::into_inner));
    }

    fn state(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SyncInProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_under_way = false;
        state.ended = state.ended.wrapping_add(1);
        drop(state);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_waiter_waits_for_one_sync_and_not_for_the_next() {
        let sync_gate = SyncGate::default();
        sync_gate.wait_for_current_sync();
        std::thread::scope(|threads| {
            let (passed, has_passed) = mpsc::channel();
            let first = sync_gate.begin();
            let waiting = &sync_gate;
            threads.spawn(move || {
                waiting.wait_for_current_sync();
                passed.send(()).ok();
            });
            // Long enough for the thread to begin; it must wait however long this is.
            let waited = has_passed.recv_timeout(std::time::Duration::from_millis(50));
            assert!(waited.is_err(), "a sync is under way");
            // The next one begins before the thread can have seen that the first one has ended.
            let mut state = sync_gate.state();
            state.ended += 1;
            drop(state);
            sync_gate.ended.notify_all();
            has_passed.recv().unwrap();
            drop(first);
        });
    }
}
