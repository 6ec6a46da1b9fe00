//! Posts unreadable lines in the books.

use tidegate_core::books::{Books, Bucket, Place, Tally};

use crate::spill::{Tallies, add};

/// Moves what the books have beyond `readable` from spilled to dead-lettered, and says how many
/// events that is. They are the lines that cannot be read, whose ids only the sums still know.
pub(crate) fn post_corrupt_lines(books: &mut Books, readable: &Tallies) -> i64 {
    let spilled = books.tallies(&Place::Spilled);
    let mut corrupt = Tallies::new();
    for (bucket, tally) in &spilled {
        add(&mut corrupt, kept_in(&spilled, *bucket), *tally);
    }
    for (bucket, tally) in readable {
        let negative = Tally::default().minus(*tally);
        add(&mut corrupt, kept_in(&spilled, *bucket), negative);
    }
    let mut count = 0;
    for (bucket, tally) in corrupt.into_iter().filter(|(_, tally)| tally.count > 0) {
        let (from, to) = (Some(Place::Spilled), Some(Place::DeadLettered));
        books.move_tally(bucket, from, to, tally);
        count += tally.count;
    }
    count
}

/// The coarsest bucket in which the books keep what is of this one. Old minutes are folded into
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

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60;

    #[test]
    fn unreadable_lines_are_found_also_where_the_books_are_folded() {
        let one = |id_sum: u128| Tally { count: 1, id_sum };
        // Two events a bucket, of which one can be read.
        let cases = [
            (Bucket::Minute(3 * DAY + 61), Bucket::Minute(3 * DAY + 61)),
            (
                Bucket::Hour(2 * 24 + 7),
                Bucket::Minute(2 * DAY + 7 * 60 + 59),
            ),
            (Bucket::Day(1), Bucket::Minute(DAY + 23 * 60)),
            (Bucket::Day(5), Bucket::Hour(5 * 24 + 1)),
        ];
        let mut books = Books::default();
        let mut readable = Tallies::new();
        for (number, (folded, bucket)) in (1u128..).zip(cases) {
            for id in [number, 100 * number] {
                books.move_tally(folded, None, Some(Place::Spilled), one(id));
            }
            readable.insert(bucket, one(number));
        }
        assert_eq!(post_corrupt_lines(&mut books, &readable), 4);
        for (number, (folded, _)) in (1u128..).zip(cases) {
            for (place, id) in [
                (Place::Spilled, number),
                (Place::DeadLettered, 100 * number),
            ] {
                assert_eq!(
                    books.tallies(&place).get(&folded),
                    Some(&one(id)),
                    "{folded:?}"
                );
            }
        }
        assert!(books.account().is_balanced());
    }
}
