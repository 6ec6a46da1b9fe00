//! A gate at which a disk or a callback hangs, on real threads.

use std::sync::{Condvar, Mutex};

use crate::real::wait_until;

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    is_shut: bool,
    /// Who waits for it to open.
    held: usize,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.state.lock().unwrap().is_shut = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().is_shut = false;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.held += 1;
        while state.is_shut {
            state = self.opened.wait(state).unwrap();
        }
        state.held -= 1;
    }

    /// Returns once somebody hangs.
    #[track_caller]
    pub(crate) fn wait_until_somebody_is_held(&self) {
        wait_until("somebody hangs at the gate", || {
            self.state.lock().unwrap().held > 0
        });
    }
}
