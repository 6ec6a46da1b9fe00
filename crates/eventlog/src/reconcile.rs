//! The books of a logger beside the events that are stored of it.

use tidegate_core::books::{Books, Discrepancy, Place, difference};

/// Events that a logger calls delivered and the API does not have.
///
/// `logger` are the books of a spill directory, `stored` those of its events in the API, removed ones
/// included. Only the delivered events of a bucket are compared. An event that is stored and not yet known
/// as delivered is no finding: its answer may be on its way, or was lost.
///
/// ```
/// use tidegate_core::EventId;
/// use tidegate_core::books::{Books, Place};
/// use tidegate_eventlog::logger_findings;
/// let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
/// let mut logger = Books::default();
/// logger.move_one(id, None, Some(Place::Delivered));
/// let found = logger_findings(&logger, &Books::default());
/// assert_eq!(found[0].id, Some(id));
/// # Ok::<(), tidegate_core::ParseEventIdError>(())
/// ```
#[must_use]
pub fn logger_findings(logger: &Books, stored: &Books) -> Vec<Discrepancy> {
    let found = difference(&delivered(logger), &delivered(stored));
    found.into_iter().filter(|one| one.count >= 0).collect()
}

/// The delivered events of these books, those included that were removed since.
fn delivered(books: &Books) -> Books {
    let mut alone = Books::default();
    for (bucket, tally) in books.tallies(&Place::Delivered) {
        alone.move_tally(bucket, None, Some(Place::Delivered), tally);
    }
    alone
}

#[cfg(test)]
mod tests {
    use tidegate_core::EventId;

    use super::*;

    fn id(n: u128) -> EventId {
        EventId::from_u128((60_000 << 80) | (7 << 76) | (0b10 << 62) | n)
    }

    fn books(moves: &[(u128, Place)]) -> Books {
        let mut books = Books::default();
        for (n, place) in moves {
            books.move_one(id(*n), None, Some(place.clone()));
        }
        books
    }

    #[test]
    fn an_event_that_is_delivered_and_not_stored_is_named() {
        let logger = books(&[
            (1, Place::Delivered),
            (2, Place::Delivered),
            (3, Place::Spilled),
        ]);
        let found = logger_findings(&logger, &books(&[(1, Place::Delivered)]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].id), (1, Some(id(2))));
    }

    #[test]
    fn an_event_that_is_stored_and_not_known_as_delivered_is_no_finding() {
        let logger = books(&[(1, Place::Delivered), (2, Place::Spilled)]);
        let stored = books(&[(1, Place::Delivered), (2, Place::Delivered)]);
        assert_eq!(logger_findings(&logger, &stored), []);
    }

    #[test]
    fn an_event_that_retention_removed_is_no_finding() {
        let logger = books(&[(1, Place::Delivered)]);
        let mut stored = logger.clone();
        stored.move_one(id(1), Some(Place::Delivered), None);
        assert_eq!(logger_findings(&logger, &stored), []);
    }

    #[test]
    fn events_that_were_exchanged_are_a_finding() {
        let logger = books(&[(1, Place::Delivered)]);
        let found = logger_findings(&logger, &books(&[(2, Place::Delivered)]));
        assert_eq!((found[0].count, found[0].id), (0, None));
    }
}
