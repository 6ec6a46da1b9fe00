//! Loops that must keep going.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_core::{HealthFinding, Mutex};

use super::HealthPart;

/// The loops of the process and when each was last heard of.
#[derive(Debug)]
pub(super) struct Loops {
    clock: Arc<dyn Clock>,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    by_id: BTreeMap<u64, Watch>,
    next_id: u64,
}

#[derive(Debug)]
struct Watch {
    name: String,
    limit: Duration,
    last: Duration,
}

impl Loops {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            watched: Mutex::default(),
        }
    }

    pub(super) fn add(this: &Arc<Self>, name: String, limit: Duration) -> Heartbeat {
        let last = this.clock.elapsed();
        let mut watched = this.watched.lock();
        let id = watched.next_id;
        watched.next_id += 1;
        watched.by_id.insert(id, Watch { name, limit, last });
        Heartbeat {
            loops: Arc::clone(this),
            id,
        }
    }

    pub(super) fn stalled(&self) -> Vec<HealthPart> {
        let now = self.clock.elapsed();
        let watched = self.watched.lock();
        let late = watched
            .by_id
            .values()
            .filter(|w| now.saturating_sub(w.last) > w.limit);
        late.map(|watch| {
            let message = format!("no beat within {:?}", watch.limit);
            HealthPart::new(watch.name.clone(), true, HealthFinding::down(message))
        })
        .collect()
    }
}

/// The sign of life of one loop.
///
/// Dropping it is not an end but a death: a loop that panicked or was aborted took it along, its
/// limit runs out, and `/livez` fails. A loop that ends as it should calls [`end`](Self::end).
#[derive(Debug)]
pub struct Heartbeat {
    loops: Arc<Loops>,
    id: u64,
}

impl Heartbeat {
    /// Says that the loop goes on: its limit begins anew.
    pub fn beat(&self) {
        let now = self.loops.clock.elapsed();
        if let Some(watch) = self.loops.watched.lock().by_id.get_mut(&self.id) {
            watch.last = now;
        }
    }

    /// Says that the loop ended as it should: it is not watched any more.
    pub fn end(self) {
        self.loops.watched.lock().by_id.remove(&self.id);
    }
}
