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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c24_the_latest_copies_are_known_by_event_and_delivery() {
        let id = |n: usize| EventId::from_u128(n as u128 + 1);
        let mut copies = RecentCopies::default();
        copies.remember(id(0), 1);
        copies.remember(id(0), 1);
        assert!(copies.has(id(0), 1));
        assert!(!copies.has(id(0), 2), "its next delivery is another copy");
        assert!(!copies.has(id(1), 1));
        for n in 1..MAX_COPIES {
            copies.remember(id(n), 1);
        }
        assert!(copies.has(id(0), 1), "so many are remembered");
        copies.remember(id(MAX_COPIES), 1);
        assert!(!copies.has(id(0), 1), "the oldest one is forgotten");
        assert!(copies.has(id(1), 1) && copies.has(id(MAX_COPIES), 1));
        assert_eq!(
            (copies.seen.len(), copies.order.len()),
            (MAX_COPIES, MAX_COPIES)
        );
    }
}
