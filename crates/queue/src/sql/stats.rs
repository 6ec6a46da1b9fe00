//! Numbers for gauges, from what the books say and a few looks by index.
//!
//! Reading them costs what is in flight and what the books have rows, however much waits: they are
//! wanted every few seconds, and most of all when the backlog is long.

use tidegate_core::books::{Books, Bucket, Place};

use super::columns::{place_of, unsigned};
use crate::account::show_in_flight;
use crate::port::{Lane, QueueStats};

const MINUTE_MS: u64 = 60_000;
const HOUR: u64 = 60;

/// The numbers that were read, as of one moment.
pub(super) struct StatsFacts {
    /// The books; their sums of ids are not looked at.
    pub(super) books: Books,
    /// The time, in milliseconds since 1970.
    pub(super) now_ms: i64,
    /// How many events are claimed, by the place they have in the books.
    pub(super) claimed: Vec<(String, i64)>,
    /// When the event with the lowest number of all that are not finalized was published.
    pub(super) oldest_ms: Option<i64>,
    pub(super) handler_states: i64,
    /// The last position there is.
    pub(super) head: i64,
    /// The positions of projections.
    pub(super) projections: Vec<(String, i64)>,
    /// How many events there are in each lane that wants nobody.
    pub(super) unwanted: Vec<(String, i64)>,
    /// How many are parked behind those.
    pub(super) held_up: i64,
}

impl StatsFacts {
    pub(super) fn stats(self) -> QueueStats {
        let mut account = self.books.account();
        for (place, count) in &self.claimed {
            show_in_flight(&mut account, &place_of(place), *count);
        }
        let removed = self.books.removed();
        let ended = account.delivered + account.dead_lettered;
        let age = self
            .oldest_ms
            .map_or(0, |at| self.now_ms.saturating_sub(at));
        let mut stats = QueueStats {
            pending: unsigned(account.queued + account.retrying + account.parked),
            processing: unsigned(account.in_flight),
            retrying: unsigned(account.retrying),
            oldest_age_seconds: std::time::Duration::from_millis(unsigned(age)).as_secs_f64(),
            ages: ages(&self.books, unsigned(self.now_ms)),
            finalized: unsigned(ended - removed.delivered - removed.dead_lettered),
            handler_states: unsigned(self.handler_states),
            held_up: unsigned(self.held_up),
            ..QueueStats::default()
        };
        for (name, at) in self.projections {
            stats.lag.insert(name, (self.head - at).max(0));
        }
        for (lane, count) in self.unwanted {
            let of_type = Lane::parse(&lane).type_name;
            *stats.unhandled.entry(of_type).or_default() += unsigned(count);
        }
        stats
    }
}

/// How many of the events that are not finalized were born when.
fn ages(books: &Books, now_ms: u64) -> [u64; 3] {
    let now = now_ms / MINUTE_MS;
    let mut ages = [0_i64; 3];
    for place in [Place::Queued, Place::Retrying, Place::Parked] {
        for (bucket, tally) in books.tallies(&place) {
            let slot = match bucket {
                Bucket::Minute(minute) if minute + 1 >= now => 0,
                Bucket::Minute(minute) if minute + HOUR >= now => 1,
                // Only what is older than a day is kept by the hour.
                Bucket::Minute(_) | Bucket::Hour(_) | Bucket::Day(_) | Bucket::Offsets { .. } => 2,
            };
            ages[slot] += tally.count;
        }
    }
    ages.map(unsigned)
}

/// The lanes of events that nobody wants, among these.
pub(super) fn unwanted(lanes: Vec<String>) -> Vec<String> {
    let is_unwanted = |lane: &String| Lane::parse(lane).wanted.is_empty();
    lanes.into_iter().filter(is_unwanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::books::Tally;

    fn born(books: &mut Books, minute: u64, to: Place, count: i64) {
        let tally = Tally { count, id_sum: 0 };
        books.move_tally(Bucket::Minute(minute), None, Some(to), tally);
    }

    #[test]
    fn ages_are_those_of_events_that_are_not_finalized() {
        let mut books = Books::default();
        born(&mut books, 1_000, Place::Queued, 1);
        born(&mut books, 999, Place::Parked, 2);
        born(&mut books, 998, Place::Retrying, 4);
        born(&mut books, 940, Place::Queued, 8);
        born(&mut books, 939, Place::Queued, 16);
        born(&mut books, 0, Place::Queued, 32);
        born(&mut books, 1_000, Place::Delivered, 64);
        let hour = Tally {
            count: 128,
            id_sum: 0,
        };
        books.move_tally(Bucket::Hour(1), None, Some(Place::Queued), hour);
        assert_eq!(ages(&books, 1_000 * MINUTE_MS + 7), [3, 12, 176]);
    }

    #[test]
    fn a_time_that_cannot_be_is_only_a_long_age() {
        for at in [i64::MIN, i64::MAX] {
            let facts = StatsFacts {
                books: Books::default(),
                now_ms: 301_500,
                claimed: Vec::new(),
                oldest_ms: Some(at),
                handler_states: 0,
                head: 0,
                projections: Vec::new(),
                unwanted: Vec::new(),
                held_up: 0,
            };
            assert_eq!(facts.stats().oldest_age_seconds > 0.0, at == i64::MIN);
        }
    }

    #[test]
    fn claimed_events_do_not_wait_and_removed_ones_are_not_in_the_log() {
        let mut books = Books::default();
        born(&mut books, 5, Place::Queued, 10);
        born(&mut books, 5, Place::Retrying, 4);
        born(&mut books, 5, Place::Delivered, 7);
        let removed = Tally {
            count: 2,
            id_sum: 0,
        };
        books.move_tally(Bucket::Minute(5), Some(Place::Delivered), None, removed);
        let facts = StatsFacts {
            books,
            now_ms: 301_500,
            claimed: vec![("queued".to_owned(), 3), ("retrying".to_owned(), 1)],
            oldest_ms: Some(300_000),
            handler_states: 4,
            head: 9,
            projections: vec![("p".to_owned(), 7)],
            unwanted: vec![("a:".to_owned(), 2)],
            held_up: 5,
        };
        let stats = facts.stats();
        assert_eq!(
            (stats.pending, stats.processing, stats.retrying),
            (10, 4, 3)
        );
        assert_eq!((stats.finalized, stats.handler_states), (5, 4));
        assert!((stats.oldest_age_seconds - 1.5).abs() < 0.001);
        assert_eq!(stats.lag["p"], 2);
        assert_eq!((stats.unhandled["a"], stats.held_up), (2, 5));
    }
}
