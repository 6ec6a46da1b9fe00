//! The sum of postings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Account, Bucket, Place, Posting};
use crate::EventId;

/// A number of events and the sum of their ids.
///
/// The number is signed: one process may write down that an event arrived which another process
/// accepted, and only their books together are positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How many events.
    pub count: i64,
    /// The wrapping sum of their ids.
    pub id_sum: u128,
}

impl Tally {
    /// The tally of one event.
    #[must_use]
    pub fn of(id: EventId) -> Self {
        Self {
            count: 1,
            id_sum: id.as_u128(),
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            id_sum: self.id_sum.wrapping_add(other.id_sum),
        }
    }

    /// This without the other.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            count: self.count - other.count,
            id_sum: self.id_sum.wrapping_sub(other.id_sum),
        }
    }
}

/// The books of one component, or of several processes of it together.
///
/// ```
/// use tidegate_core::books::{Books, Place};
/// use tidegate_core::EventId;
/// let mut books = Books::default();
/// let id = EventId::from_u128(7);
/// books.move_one(id, None, Some(Place::Queued));
/// books.move_one(id, Some(Place::Queued), Some(Place::Delivered));
/// assert!(books.is_balanced());
/// assert_eq!(books.account().delivered, 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Books {
    buckets: BTreeMap<Bucket, Page>,
}

/// One number of the books, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The bucket.
    #[serde(rename = "b")]
    pub bucket: String,
    /// `accepted`, a place, or `removed:` and a place.
    #[serde(rename = "p")]
    pub column: String,
    /// How many.
    #[serde(rename = "n")]
    pub count: i64,
    /// The sum of their ids, in hex.
    #[serde(rename = "s")]
    pub id_sum: String,
}

/// The books of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Page {
    pub(super) accepted: Tally,
    pub(super) places: BTreeMap<Place, Tally>,
    /// The events that retention and clean-up took away, by their place.
    pub(super) removed: BTreeMap<Place, Tally>,
}

impl Books {
    /// Adds a posting.
    pub fn post(&mut self, posting: &Posting) {
        let count = i64::try_from(posting.count).unwrap_or(i64::MAX);
        let tally = Tally {
            count,
            id_sum: posting.id_sum,
        };
        self.add(
            posting.bucket,
            posting.from.as_ref(),
            posting.to.as_ref(),
            tally,
        );
    }

    /// Adds the move of a single event; the same as posting it.
    pub fn move_one(&mut self, id: EventId, from: Option<Place>, to: Option<Place>) {
        self.add(Bucket::of(id), from.as_ref(), to.as_ref(), Tally::of(id));
    }

    fn add(&mut self, bucket: Bucket, from: Option<&Place>, to: Option<&Place>, tally: Tally) {
        let page = self.buckets.entry(bucket).or_default();
        match (from, to) {
            // A clean-up: the event stays where it was in the books, and is expected in no recount.
            (Some(place), None) => add(&mut page.removed, place, tally),
            (None, None) => {}
            (from, Some(to)) => {
                match from {
                    Some(from) => add(&mut page.places, from, Tally::default().minus(tally)),
                    None => page.accepted = page.accepted.plus(tally),
                }
                add(&mut page.places, to, tally);
            }
        }
    }

    /// Adds the books of another process of the same component.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, page) in &other.buckets {
            self.merge_page(*bucket, page);
        }
    }

    fn merge_page(&mut self, bucket: Bucket, page: &Page) {
        let mine = self.buckets.entry(bucket).or_default();
        mine.accepted = mine.accepted.plus(page.accepted);
        for (place, tally) in &page.places {
            add(&mut mine.places, place, *tally);
        }
        for (place, tally) in &page.removed {
            add(&mut mine.removed, place, *tally);
        }
    }

    /// Folds old buckets into coarser ones, see [`Bucket::folded`]. The sums stay what they were.
    pub fn fold(&mut self, now_ms: u64) {
        for (bucket, page) in std::mem::take(&mut self.buckets) {
            self.merge_page(bucket.folded(now_ms), &page);
        }
    }

    /// The time as of which others must be folded to be folded as far as these. These may have been
    /// folded by a clock that was ahead.
    #[must_use]
    pub fn folded_from(&self) -> u64 {
        let buckets = self.buckets.keys();
        buckets.map(|b| b.folded_from()).max().unwrap_or(0)
    }

    /// Whether `accepted` equals the sum of all places in each bucket, in number and in ids, and no
    /// place has fewer than no events: an event that left a place twice shows there.
    ///
    /// It holds for the books of all processes together; those of one process alone may lack what
    /// another one wrote down.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.buckets.values().all(|page| {
            let sum = page
                .places
                .values()
                .fold(Tally::default(), |sum, t| sum.plus(*t));
            sum == page.accepted && page.places.values().all(|tally| tally.count >= 0)
        })
    }

    /// How many events are in `place`.
    #[must_use]
    pub fn in_place(&self, place: &Place) -> i64 {
        self.buckets
            .values()
            .filter_map(|page| page.places.get(place))
            .map(|t| t.count)
            .sum()
    }

    /// The events in `place`, by bucket.
    #[must_use]
    pub fn tallies(&self, place: &Place) -> BTreeMap<Bucket, Tally> {
        let pages = self.buckets.iter();
        pages
            .filter_map(|(bucket, page)| Some((*bucket, *page.places.get(place)?)))
            .collect()
    }

    /// The events that retention and clean-up took away from `place`, by bucket.
    #[must_use]
    pub fn removed_tallies(&self, place: &Place) -> BTreeMap<Bucket, Tally> {
        let pages = self.buckets.iter();
        pages
            .filter_map(|(bucket, page)| Some((*bucket, *page.removed.get(place)?)))
            .collect()
    }

    /// Moves a tally of one bucket, as [`post`](Self::post) does; for tallies that were computed.
    pub fn move_tally(
        &mut self,
        bucket: Bucket,
        from: Option<Place>,
        to: Option<Place>,
        tally: Tally,
    ) {
        self.add(bucket, from.as_ref(), to.as_ref(), tally);
    }

    /// The account that users see: the sums over all buckets.
    #[must_use]
    pub fn account(&self) -> Account {
        let mut account = Account::default();
        for page in self.buckets.values() {
            account.accepted += page.accepted.count;
            for (place, tally) in &page.places {
                account.add(place, tally.count);
            }
        }
        account
    }

    /// The account of what retention and clean-up took away.
    #[must_use]
    pub fn removed(&self) -> Account {
        let mut account = Account::default();
        for (place, tally) in self.buckets.values().flat_map(|page| &page.removed) {
            account.accepted += tally.count;
            account.add(place, tally.count);
        }
        account
    }

    /// Takes the events that are in `place` out of the books, as if they had never been accepted,
    /// and says how many there were: for what a crash took from memory, of which nothing is known.
    pub fn forget(&mut self, place: &Place) -> i64 {
        let mut forgotten = 0;
        for page in self.buckets.values_mut() {
            if let Some(tally) = page.places.remove(place) {
                page.accepted = page.accepted.minus(tally);
                forgotten += tally.count;
            }
        }
        self.buckets.retain(|_, page| *page != Page::default());
        forgotten
    }

    /// The rows of the books, to be written down; [`from_rows`](Self::from_rows) reads them back.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (bucket, page) in &self.buckets {
            let mut add = |column: String, tally: &Tally| {
                rows.push(Row {
                    bucket: bucket.to_string(),
                    column,
                    count: tally.count,
                    id_sum: format!("{:x}", tally.id_sum),
                });
            };
            if !page.accepted.is_zero() {
                add("accepted".to_owned(), &page.accepted);
            }
            for (place, tally) in &page.places {
                add(place.to_string(), tally);
            }
            for (place, tally) in &page.removed {
                add(format!("removed:{place}"), tally);
            }
        }
        rows
    }

    /// The books that these rows are of; none when a row cannot be read.
    #[must_use]
    pub fn from_rows(rows: &[Row]) -> Option<Self> {
        let mut books = Self::default();
        for row in rows {
            let page = books.buckets.entry(row.bucket.parse().ok()?).or_default();
            let id_sum = u128::from_str_radix(&row.id_sum, 16).ok()?;
            let tally = Tally {
                count: row.count,
                id_sum,
            };
            match (row.column.as_str(), row.column.strip_prefix("removed:")) {
                ("accepted", _) => page.accepted = page.accepted.plus(tally),
                (_, Some(place)) => add(&mut page.removed, &place.parse().ok()?, tally),
                (place, None) => add(&mut page.places, &place.parse().ok()?, tally),
            }
        }
        Some(books)
    }

    pub(super) fn pages(&self) -> &BTreeMap<Bucket, Page> {
        &self.buckets
    }

    /// The same books with each bucket in the coarsest bucket that either side keeps it in. So two
    /// books folded at different times can be compared.
    pub(super) fn aligned_with(&self, other: &Self) -> Self {
        let coarsest = |bucket: Bucket| {
            let mut found = bucket;
            let mut at = bucket;
            while let Some(coarser) = at.coarser() {
                if self.buckets.contains_key(&coarser) || other.buckets.contains_key(&coarser) {
                    found = coarser;
                }
                at = coarser;
            }
            found
        };
        let mut aligned = Self::default();
        for (bucket, page) in &self.buckets {
            aligned.merge_page(coarsest(*bucket), page);
        }
        aligned
    }
}

fn add(tallies: &mut BTreeMap<Place, Tally>, place: &Place, tally: Tally) {
    // A place that is empty again leaves no trace, so that equal books compare equal.
    let sum = tallies.get(place).copied().unwrap_or_default().plus(tally);
    if sum.is_zero() {
        tallies.remove(place);
    } else {
        tallies.insert(place.clone(), sum);
    }
}
