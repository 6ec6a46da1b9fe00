//! The steps of a run, as one number.

use std::sync::Arc;

use tidegate_core::Mutex;

/// A running hash of everything a simulation does: two runs of one seed must end with the same.
///
/// Cloning shares it.
#[derive(Debug, Clone)]
pub struct Trace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    hash: u64,
    events: u64,
}

impl Default for Trace {
    fn default() -> Self {
        // The offset basis of FNV-1a.
        Self(Arc::new(Mutex::new(State {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
        })))
    }
}

impl Trace {
    /// Adds one event. The parts are told apart, so `["ab", "c"]` is not `["a", "bc"]`.
    pub fn add(&self, parts: &[&[u8]]) {
        let mut state = self.0.lock();
        state.events += 1;
        for part in parts {
            let length = (part.len() as u64).to_le_bytes();
            for byte in length.iter().chain(*part) {
                state.hash = (state.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }

    /// The hash of everything so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// How many events there were.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }
}
