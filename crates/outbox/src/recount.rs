//! The rows of the table, beside what the books say that it holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::{
    Account, Audited, Books, ComponentKind, Discrepancy, LossReason, Place, difference,
};
use tidegate_log::partition_of;

use crate::port::{OutboxStatus, place_of};

/// A row, as far as a recount needs it.
#[derive(Debug, Clone)]
pub(crate) struct FinishedRow {
    pub(crate) event_id: EventId,
    pub(crate) status: OutboxStatus,
    pub(crate) attempts: u32,
    pub(crate) key: String,
    pub(crate) topic: Option<String>,
    /// When it was sent, or failed last.
    pub(crate) at_ms: Option<i64>,
}

/// An event that is to be found in a topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) place: OutboxStatus,
    pub(crate) at_ms: i64,
    key_hash: u32,
}

impl Expected {
    /// The most partitions that a topic could have: in one of so many the whole hash of a key is left.
    const MOST: u32 = 1 << 31;

    pub(crate) fn new(place: OutboxStatus, at_ms: i64, key: &str) -> Self {
        let hash = partition_of(key.as_bytes(), Self::MOST).0;
        Self {
            place,
            at_ms,
            key_hash: hash.unsigned_abs(),
        }
    }

    /// The partition of its key, in a topic of so many.
    pub(crate) fn partition(&self, partitions: usize) -> usize {
        usize::try_from(self.key_hash).unwrap_or(0) % partitions.max(1)
    }
}

/// The events that are to be found in one topic, by their id.
pub(crate) type ExpectedEvents = BTreeMap<EventId, Expected>;

/// The contents of the table, and what the books say that it holds, as of one moment.
#[derive(Debug)]
pub struct OutboxRecount {
    /// The books.
    pub books: Books,
    /// The events that were found in the table.
    pub found: Books,
    /// The events that the books have and the table does not, or the reverse.
    pub missing: Vec<Discrepancy>,
    /// How many of what was found are claimed, before and after a failed attempt.
    claimed: (i64, i64),
    /// The SENT and DEAD rows, by the topic that they name.
    pub(crate) finished: BTreeMap<Option<Arc<str>>, ExpectedEvents>,
}

impl OutboxRecount {
    /// How many events are missing.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        let counts = self.missing.iter();
        counts.map(|one| one.count.unsigned_abs().max(1)).sum()
    }

    /// The same as an audit shows it: what is claimed is in flight.
    #[must_use]
    pub fn audited(&self, component: &str, missing: Vec<Discrepancy>) -> Audited {
        let name = component.to_owned();
        let kind = ComponentKind::Relay;
        let mut audited = Audited::new(name, kind, &self.books, &self.found, missing);
        show_in_flight(&mut audited.books, self.claimed);
        show_in_flight(&mut audited.recount, self.claimed);
        audited
    }
}

/// Shows claimed events as in flight. A claim moves nothing in the books: it is a lease on a row that stays
/// where it was, so that a lease that runs out needs no posting.
pub(crate) fn show_in_flight(account: &mut Account, (fresh, again): (i64, i64)) {
    account.queued -= fresh;
    account.retrying -= again;
    account.in_flight += fresh + again;
}

/// A recount that is under way.
#[derive(Debug, Default)]
pub(crate) struct RowCount {
    found: Books,
    topics: BTreeMap<String, Arc<str>>,
    finished: BTreeMap<Option<Arc<str>>, ExpectedEvents>,
}

impl RowCount {
    /// Counts one row.
    pub(crate) fn add(&mut self, row: FinishedRow) {
        let place = place_of(row.status, row.attempts);
        self.found.move_one(row.event_id, None, Some(place));
        if !matches!(row.status, OutboxStatus::Sent | OutboxStatus::Dead) {
            return;
        }
        let topic = row.topic.map(|name| {
            let shared = self
                .topics
                .entry(name.clone())
                .or_insert_with(|| name.into());
            Arc::clone(shared)
        });
        let expected = Expected::new(row.status, row.at_ms.unwrap_or(0), &row.key);
        self.finished
            .entry(topic)
            .or_default()
            .insert(row.event_id, expected);
    }

    /// Compares what was counted with the books.
    pub(crate) fn finish(mut self, books: Books, claimed: (i64, i64)) -> OutboxRecount {
        // Rows that an operator has purged are nowhere, and known to be.
        let purged = Place::Lost(LossReason::PURGED);
        for (bucket, tally) in books.tallies(&purged) {
            self.found
                .move_tally(bucket, None, Some(purged.clone()), tally);
        }
        OutboxRecount {
            missing: difference(&books, &self.found),
            books,
            found: self.found,
            claimed,
            finished: self.finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> EventId {
        EventId::from_u128((60_000 << 80) | (7 << 76) | (0b10 << 62) | n)
    }

    fn row(n: u128, status: OutboxStatus, attempts: u32) -> FinishedRow {
        FinishedRow {
            event_id: id(n),
            status,
            attempts,
            key: "k".to_owned(),
            topic: Some("t".to_owned()),
            at_ms: Some(5),
        }
    }

    #[test]
    fn a01_rows_are_counted_in_their_places_and_a_deleted_one_is_named() {
        let mut books = Books::default();
        for n in 1..=5 {
            books.move_one(id(n), None, Some(Place::Queued));
        }
        books.move_one(id(2), Some(Place::Queued), Some(Place::Retrying));
        books.move_one(id(3), Some(Place::Queued), Some(Place::Delivered));
        let lost = Place::Lost(LossReason::PURGED);
        books.move_one(id(4), Some(Place::Queued), Some(lost));
        let mut count = RowCount::default();
        count.add(row(2, OutboxStatus::Pending, 1));
        count.add(row(3, OutboxStatus::Sent, 0));
        count.add(row(5, OutboxStatus::Pending, 0));
        let recount = count.finish(books, (1, 0));
        assert_eq!(recount.unaccounted(), 1);
        assert_eq!(recount.missing[0].id, Some(id(1)));
        let audited = recount.audited("outbox.default", recount.missing.clone());
        assert_eq!((audited.recount.in_flight, audited.recount.queued), (1, 0));
        assert_eq!(
            recount.finished.values().map(BTreeMap::len).sum::<usize>(),
            1
        );
    }

    #[test]
    fn the_partition_of_a_row_is_that_of_its_record() {
        for key in ["", "a", "loan-7", "\u{10ffff}"] {
            let expected = Expected::new(OutboxStatus::Sent, 0, key);
            for partitions in [1_u32, 2, 3, 7, 64] {
                let own = partition_of(key.as_bytes(), partitions).0;
                let found = expected.partition(usize::try_from(partitions).unwrap());
                assert_eq!(i32::try_from(found), Ok(own), "{key}");
            }
        }
    }
}
