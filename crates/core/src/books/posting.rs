//! One move, as it is written down.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Bucket, Place};
use crate::EventId;

/// How many events of one bucket moved from one place to another, and the sum of their ids.
///
/// It is written in the same atomic commit as what it describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[must_use = "a posting that is not written leaves the books open"]
pub struct Posting {
    /// The bucket of the events.
    pub bucket: Bucket,
    /// Where they were; none for events that were just accepted.
    pub from: Option<Place>,
    /// Where they are now; none for events whose place was cleaned up after they arrived there.
    pub to: Option<Place>,
    /// How many.
    pub count: u64,
    /// The wrapping 128-bit sum of their ids.
    pub id_sum: u128,
}

/// The postings for moving these events: one per bucket, in the order of the buckets.
///
/// ```
/// use tidegate_core::books::{Place, postings};
/// use tidegate_core::EventId;
/// let ids = [EventId::from_u128(3), EventId::from_u128(4)];
/// let written = postings(ids, None, Some(Place::Queued));
/// assert_eq!((written[0].count, written[0].id_sum), (2, 7));
/// ```
pub fn postings(
    ids: impl IntoIterator<Item = EventId>,
    from: Option<Place>,
    to: Option<Place>,
) -> Vec<Posting> {
    let mut sums: BTreeMap<Bucket, (u64, u128)> = BTreeMap::new();
    // Neighbors mostly share their bucket, so the map is asked once per run of them.
    let mut ids = ids.into_iter().peekable();
    while let Some(first) = ids.next() {
        let bucket = Bucket::of(first);
        let (count, sum) = sums.entry(bucket).or_default();
        *count += 1;
        *sum = sum.wrapping_add(first.as_u128());
        while let Some(id) = ids.next_if(|id| Bucket::of(*id) == bucket) {
            *count += 1;
            *sum = sum.wrapping_add(id.as_u128());
        }
    }
    sums.into_iter()
        .map(|(bucket, (count, id_sum))| Posting {
            bucket,
            from: from.clone(),
            to: to.clone(),
            count,
            id_sum,
        })
        .collect()
}
