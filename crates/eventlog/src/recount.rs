//! The events that are in the tables, beside what the books say.
//!
//! Each logger has books of its own, and so have the events without one. They are compared one by one, so
//! that one missing event of each bucket and logger can be named.

use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::{Audited, Books, ComponentKind, Place, difference};

use crate::sql::COMPONENT;

/// The books and the recount of all loggers. A sender without a spill directory keeps no books, so nobody can tell
/// whether all of its events arrived.
#[derive(Debug, Default)]
pub(crate) struct EventLogRecount {
    /// By the number of the logger; none for events without one.
    loggers: BTreeMap<Option<i64>, (Books, Books)>,
}

impl EventLogRecount {
    /// A recount that has not begun, with the books of the events without a logger.
    pub(crate) fn new(own: Books) -> Self {
        Self {
            loggers: BTreeMap::from([(None, (own, Books::default()))]),
        }
    }

    pub(crate) fn add_logger(&mut self, number: i64, books: Books) {
        self.loggers.insert(Some(number), (books, Books::default()));
    }

    /// Counts one event.
    pub(crate) fn found(&mut self, logger: Option<i64>, id: EventId) {
        let (_, found) = self.loggers.entry(logger).or_default();
        found.move_one(id, None, Some(Place::Delivered));
    }

    /// Ends a page that others follow: old buckets are summed up, as in the books, so that they stay few.
    pub(crate) fn end_page(&mut self, now_ms: u64) {
        for (_, found) in self.loggers.values_mut() {
            found.fold(now_ms);
        }
    }

    /// The result for all loggers together.
    pub(crate) fn audited(&self) -> Audited {
        let (mut books, mut found) = (Books::default(), Books::default());
        let mut missing = Vec::new();
        for (expected, counted) in self.loggers.values() {
            missing.extend(difference(expected, counted));
            books.merge(expected);
            found.merge(counted);
        }
        let without_logger = self.loggers.get(&None).map_or(0, |(_, counted)| {
            u64::try_from(counted.in_place(&Place::Delivered)).unwrap_or(0)
        });
        let (name, kind) = (COMPONENT.to_owned(), ComponentKind::EventLog);
        Audited::new(name, kind, &books, &found, missing).unverifiable(without_logger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> EventId {
        EventId::from_u128((60_000 << 80) | (7 << 76) | (0b10 << 62) | n)
    }

    fn books(ids: &[u128]) -> Books {
        let mut books = Books::default();
        for n in ids {
            books.move_one(id(*n), None, Some(Place::Delivered));
        }
        books
    }

    #[test]
    fn one_missing_event_of_each_logger_is_named() {
        let mut recount = EventLogRecount::new(books(&[1, 2]));
        recount.add_logger(7, books(&[3, 4]));
        recount.found(None, id(1));
        recount.found(Some(7), id(4));
        let audited = recount.audited();
        let missing: Vec<_> = audited.missing.iter().map(|one| one.id).collect();
        assert_eq!(missing, [Some(id(2)), Some(id(3))]);
        assert_eq!((audited.books.delivered, audited.recount.delivered), (4, 2));
    }

    #[test]
    fn events_of_a_sender_without_books_are_unverifiable() {
        let mut recount = EventLogRecount::new(books(&[1, 2]));
        recount.add_logger(7, books(&[3]));
        for (logger, n) in [(None, 1), (None, 2), (Some(7), 3)] {
            recount.found(logger, id(n));
        }
        let audited = recount.audited();
        assert_eq!((audited.unaccounted, audited.unverifiable), (0, 2));
    }

    #[test]
    fn a_removed_event_is_expected_nowhere() {
        let mut own = books(&[1]);
        own.move_one(id(1), Some(Place::Delivered), None);
        let audited = EventLogRecount::new(own).audited();
        assert_eq!((audited.unaccounted, audited.removed.delivered), (0, 1));
    }
}
