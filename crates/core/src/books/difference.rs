//! The findings of an audit.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Books, Bucket, Place, Tally};
use crate::EventId;

/// Events that the books expect in a place and the recount does not find there, or the reverse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discrepancy {
    /// The bucket of the events.
    pub bucket: Bucket,
    /// The place that differs.
    pub place: Place,
    /// How many are missing; negative for events that are there and should not be; 0 when as many
    /// were found as expected, but not the same ones.
    pub count: i64,
    /// Which event it is, where the sums tell: one is missing, or one too many. Should others have
    /// been exchanged in the same bucket and place at the same time, it may be nobody's id; looking
    /// it up tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
}

/// Compares the books with a recount of the same component, place by place.
///
/// Events that the books have as removed are expected in no recount. Buckets that were folded on one
/// side only are folded on the other side too.
///
/// ```
/// use tidegate_core::books::{Books, Place, difference};
/// use tidegate_core::EventId;
/// let id = "019a8f3e-5c00-7abc-8def-0123456789ab".parse::<EventId>()?;
/// let mut books = Books::default();
/// books.move_one(id, None, Some(Place::Spilled));
/// let found = difference(&books, &Books::default());
/// assert_eq!((found[0].count, found[0].id), (1, Some(id)));
/// # Ok::<(), tidegate_core::ParseEventIdError>(())
/// ```
#[must_use]
pub fn difference(books: &Books, recount: &Books) -> Vec<Discrepancy> {
    let (books, recount) = (books.aligned_with(recount), recount.aligned_with(books));
    let buckets: BTreeSet<Bucket> = books
        .pages()
        .keys()
        .chain(recount.pages().keys())
        .copied()
        .collect();
    let nothing = super::tally::Page::default();
    let mut found = Vec::new();
    for bucket in buckets {
        let expected = books.pages().get(&bucket).unwrap_or(&nothing);
        let counted = recount.pages().get(&bucket).unwrap_or(&nothing);
        let places: BTreeSet<&Place> = expected
            .places
            .keys()
            .chain(expected.removed.keys())
            .chain(counted.places.keys())
            .collect();
        for place in places {
            let of = |tallies: &std::collections::BTreeMap<Place, Tally>| {
                tallies.get(place).copied().unwrap_or_default()
            };
            let missing = of(&expected.places)
                .minus(of(&expected.removed))
                .minus(of(&counted.places));
            if !missing.is_zero() {
                found.push(discrepancy(bucket, place.clone(), missing));
            }
        }
    }
    found
}

fn discrepancy(bucket: Bucket, place: Place, missing: Tally) -> Discrepancy {
    let id = match missing.count {
        1 => Some(EventId::from_u128(missing.id_sum)),
        -1 => Some(EventId::from_u128(missing.id_sum.wrapping_neg())),
        _ => None,
    };
    // One missing and others exchanged give a sum that is nobody's id. Those that no id of this
    // bucket can have are not named: they would send somebody looking for a ghost.
    let id = id.filter(|id| bucket.may_hold(*id));
    Discrepancy {
        bucket,
        place,
        count: missing.count,
        id,
    }
}
