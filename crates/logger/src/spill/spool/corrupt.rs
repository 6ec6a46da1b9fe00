//! What the books do about lines that cannot be read.

use std::collections::BTreeMap;

use tidegate_core::books::{Books, Bucket, Place, Tally};

use super::Tallies;

/// Moves what the books have beyond `readable` from spilled to dead-lettered, and says how many
/// events that is: the lines that cannot be read, whose ids only the sums still know.
pub(crate) fn settle_corrupt(books: &mut Books, readable: &BTreeMap<Bucket, Tally>) -> i64 {
    let spilled = books.tallies(&Place::Spilled);
    let mut corrupt = Tallies::new();
    for (bucket, tally) in &spilled {
        let sum = corrupt.entry(kept_in(&spilled, *bucket)).or_default();
        *sum = sum.plus(*tally);
    }
    for (bucket, tally) in readable {
        let sum = corrupt.entry(kept_in(&spilled, *bucket)).or_default();
        *sum = sum.minus(*tally);
    }
    let mut count = 0;
    for (bucket, tally) in corrupt.into_iter().filter(|(_, tally)| tally.count > 0) {
        let (from, to) = (Some(Place::Spilled), Some(Place::DeadLettered));
        books.move_tally(bucket, from, to, tally);
        count += tally.count;
    }
    count
}

/// The coarsest bucket in which the books keep what is of this one: old minutes are folded into
/// hours and days, and what is moved later is not yet.
fn kept_in(kept: &Tallies, bucket: Bucket) -> Bucket {
    let (hour, day) = match bucket {
        Bucket::Minute(minute) => (minute / 60, minute / 60 / 24),
        Bucket::Hour(hour) => (hour, hour / 24),
        Bucket::Day(_) | Bucket::Offsets { .. } => return bucket,
    };
    [Bucket::Day(day), Bucket::Hour(hour)]
        .into_iter()
        .find(|coarse| kept.contains_key(coarse))
        .unwrap_or(bucket)
}
