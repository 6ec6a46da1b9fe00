//! The contents of the tables, beside what the books say that they hold.
//!
//! A store tells of each event where its tables have it ([`FoundRows`]); where the event is follows from
//! that alone, so that the three stores cannot differ in it. An event that is nowhere is missing; one
//! that is in two places is found twice, and the second time is too much.
//!
//! Events are counted page by page and remembered as sums, so that the size of the tables does not
//! matter.

use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::{
    Account, AuditFinding, Audited, Books, Bucket, ComponentKind, Discrepancy, Place, difference,
};

use crate::account::show_in_flight;
use crate::sql::COMPONENT;

/// Events that are nowhere and are remembered by their id; of more than these the sums tell.
const REMEMBERED: usize = 1_000;

/// The contents of the tables, and what the books say that they hold.
#[derive(Debug)]
pub struct QueueRecount {
    /// The books.
    pub books: Books,
    /// The events that were found in the tables.
    pub found: Books,
    /// The events that the books have and the tables do not.
    pub missing: Vec<Discrepancy>,
    /// How many of what was found are claimed, by the place that they are claimed from.
    claimed: BTreeMap<Place, i64>,
    /// Events that are in the log, where nobody who reads it finds them, and in another place too.
    twice: Vec<EventId>,
}

impl QueueRecount {
    /// How many events are missing.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        let counts = self.missing.iter();
        counts.map(|m| m.count.unsigned_abs().max(1)).sum()
    }

    /// The same as an audit shows it: what is claimed is in flight.
    #[must_use]
    pub fn audited(&self) -> Audited {
        let (name, kind) = (COMPONENT.to_owned(), ComponentKind::Queue);
        let missing = self.missing.clone();
        let mut audited = Audited::new(name, kind, &self.books, &self.found, missing);
        self.show_claimed(&mut audited.books);
        self.show_claimed(&mut audited.recount);
        let twice = self.twice.iter().map(|id| {
            let message = format!("event {id} is in the log and in the queue at once");
            AuditFinding::new("queue.twice", message).about(Some(*id))
        });
        audited.with_findings(twice)
    }

    fn show_claimed(&self, account: &mut Account) {
        for (place, count) in &self.claimed {
            show_in_flight(account, place, *count);
        }
    }
}

/// Where the tables have one event.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundRows {
    /// In the log, and then whether it was given up on.
    pub(crate) logged: Option<bool>,
    /// In the log, and nobody who reads the log finds it: its group is gone or lists something else,
    /// or has no position and never will have one.
    pub(crate) is_adrift: bool,
    /// In a row of its own, with this place.
    pub(crate) row: Option<Place>,
    /// Whether that row is claimed.
    pub(crate) is_row_claimed: bool,
    /// Where the next claim will come upon it: above the cursor, or in a gap, and not canceled.
    pub(crate) is_waiting: bool,
    /// In the lists of so many batches.
    pub(crate) batches: i64,
}

impl FoundRows {
    /// The places that the event is in: one, where all is well.
    ///
    /// A batch goes on listing the events that were settled of it. So its list counts only for an event
    /// that is neither in the log nor in a row.
    fn places(&self) -> impl Iterator<Item = Place> {
        let logged = self.logged.filter(|_| !self.is_adrift);
        let logged = logged.map(|is_failed| match is_failed {
            true => Place::DeadLettered,
            false => Place::Delivered,
        });
        let waiting = usize::from(self.is_waiting);
        let queued = waiting + usize::try_from(self.open_batches()).unwrap_or(0);
        let queued = std::iter::repeat_n(Place::Queued, queued);
        logged.into_iter().chain(self.row.clone()).chain(queued)
    }

    /// Whether the log has it and another table too.
    fn is_twice(&self) -> bool {
        self.logged.is_some() && self.is_adrift && (self.row.is_some() || self.is_waiting)
    }

    fn open_batches(&self) -> i64 {
        match (self.logged, &self.row) {
            (None, None) => self.batches,
            _ => 0,
        }
    }
}

/// A recount that is under way.
#[derive(Debug, Default)]
pub(crate) struct Count {
    found: Books,
    claimed: BTreeMap<Place, i64>,
    nowhere: Vec<EventId>,
    twice: Vec<EventId>,
}

impl Count {
    /// Counts one event.
    pub(crate) fn add(&mut self, id: EventId, seen: &FoundRows) {
        let mut is_somewhere = false;
        for place in seen.places() {
            self.found.move_one(id, None, Some(place));
            is_somewhere = true;
        }
        if !is_somewhere && self.nowhere.len() < REMEMBERED {
            self.nowhere.push(id);
        }
        if seen.is_twice() && self.twice.len() < REMEMBERED {
            self.twice.push(id);
        }
        let row = seen.row.as_ref().filter(|_| seen.is_row_claimed);
        if let Some(place) = row {
            *self.claimed.entry(place.clone()).or_default() += 1;
        }
        if seen.open_batches() > 0 {
            *self.claimed.entry(Place::Queued).or_default() += seen.open_batches();
        }
    }

    /// Ends a page that others follow: what is old is kept by the hour and the day, as the books
    /// keep it, so that the sums stay few.
    pub(crate) fn end_page(&mut self, now_ms: u64) {
        self.found.fold(now_ms);
    }

    /// Compares what was counted with the books.
    pub(crate) fn finish(self, books: Books) -> QueueRecount {
        QueueRecount {
            missing: named(&books, &self.found, &self.nowhere),
            books,
            found: self.found,
            claimed: self.claimed,
            twice: self.twice,
        }
    }
}

/// The missing events, with the ids of those whose payload is there and that are nowhere.
///
/// Sums name one event per bucket and place. Where just one more place of a bucket is short, what
/// else is nowhere was there, and can be named however many there are.
fn named(books: &Books, found: &Books, nowhere: &[EventId]) -> Vec<Discrepancy> {
    let missing = difference(books, found);
    let mut by_place: BTreeMap<(Bucket, Place), (i64, Vec<EventId>)> = BTreeMap::new();
    let is_named = |id: &&EventId| missing.iter().any(|one| one.id == Some(**id));
    for id in nowhere.iter().filter(|id| !is_named(id)) {
        let is_short = |one: &&Discrepancy| one.count > 0 && one.id.is_none();
        let mut short = missing
            .iter()
            .filter(is_short)
            .filter(|one| one.bucket.may_hold(*id));
        if let (Some(one), None) = (short.next(), short.next()) {
            let key = (one.bucket, one.place.clone());
            by_place
                .entry(key)
                .or_insert((one.count, Vec::new()))
                .1
                .push(*id);
        }
    }
    // More than are missing means that the books never knew some of them, and nobody can tell which.
    by_place.retain(|_, (count, ids)| i64::try_from(ids.len()).is_ok_and(|n| n <= *count));
    let mut whole = found.clone();
    let mut list = Vec::new();
    for ((bucket, place), (_, ids)) in &by_place {
        for id in ids {
            whole.move_one(*id, None, Some(place.clone()));
            list.push(Discrepancy {
                bucket: *bucket,
                place: place.clone(),
                count: 1,
                id: Some(*id),
            });
        }
    }
    let rest = difference(books, &whole);
    // A sum that is left over where nothing is missing any more says that the names were wrong.
    let is_wrong = |one: &Discrepancy| {
        one.count <= 0 && by_place.contains_key(&(one.bucket, one.place.clone()))
    };
    if rest.iter().any(is_wrong) {
        return missing;
    }
    list.extend(rest);
    list.sort_by(|a, b| (a.bucket, &a.place, a.id).cmp(&(b.bucket, &b.place, b.id)));
    list
}

#[cfg(test)]
mod tests;
