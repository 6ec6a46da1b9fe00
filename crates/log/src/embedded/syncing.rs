//! Whether the journal is being synced: commits wait for those syncs only, so others who use the disk
//! give way to them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether the journal is being synced.
#[derive(Debug, Default)]
pub(super) struct Syncing {
    turn: Mutex<Turn>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Turn {
    is_under_way: bool,
    /// How many have ended.
    ended: u64,
}

/// A sync of the journal that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a>(&'a Syncing);

impl Syncing {
    /// Says that a sync begins.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.turn().is_under_way = true;
        UnderWay(self)
    }

    /// Waits until the sync that is under way has ended. It does not wait for the next one as well, which
    /// may follow at once: under a load of commits it would wait for ever.
    pub(super) fn let_pass(&self) {
        let turn = self.turn();
        let ended = turn.ended;
        let passed = self
            .ended
            .wait_while(turn, |turn| turn.is_under_way && turn.ended == ended);
        drop(passed.unwrap_or_else(PoisonError::into_inner));
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut turn = self.0.turn();
        turn.is_under_way = false;
        turn.ended = turn.ended.wrapping_add(1);
        drop(turn);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_gives_way_waits_for_one_sync_and_not_for_the_next() {
        let syncing = Syncing::default();
        syncing.let_pass();
        std::thread::scope(|threads| {
            let (passed, has_passed) = mpsc::channel();
            let first = syncing.begin();
            let waiting = &syncing;
            threads.spawn(move || {
                waiting.let_pass();
                passed.send(()).ok();
            });
            // Long enough for the thread to begin; it must wait however long this is.
            let waited = has_passed.recv_timeout(std::time::Duration::from_millis(50));
            assert!(waited.is_err(), "a sync is under way");
            // The next one begins before the thread can have seen that the first one has ended.
            let mut turn = syncing.turn();
            turn.ended += 1;
            drop(turn);
            syncing.ended.notify_all();
            has_passed.recv().unwrap();
            drop(first);
        });
    }
}
