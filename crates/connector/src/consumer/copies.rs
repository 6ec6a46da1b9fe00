//! Copies of records that a hand-off made twice.

use std::collections::{BTreeSet, VecDeque};

use tidegate_core::EventId;

/// The copies that a tier has seen lately, by event and delivery.
#[derive(Debug, Default)]
pub(super) struct RecentCopies {
    seen: BTreeSet<(EventId, u32)>,
    order: VecDeque<(EventId, u32)>,
}

/// Copies that are remembered.
const MAX_COPIES: usize = 10_000;

impl RecentCopies {
    /// A copy is settled, and that is committed. Before that it may come again.
    pub(super) fn remember(&mut self, event: EventId, delivery: u32) {
        if self.seen.insert((event, delivery)) {
            self.order.push_back((event, delivery));
        }
        if self.order.len() > MAX_COPIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
    }

    /// Whether a copy of this delivery was settled before.
    pub(super) fn has(&self, event: EventId, delivery: u32) -> bool {
        self.seen.contains(&(event, delivery))
    }
}
