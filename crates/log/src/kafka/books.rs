//! The books of a group on a topic, carried in the metadata of its committed offsets.
//!
//! ```text
//! t1;<base>;<count>;<id sum>;<what the caller wrote>
//! t2;<earlier>;<base>;<count>;<id sum>;<what the caller wrote>
//! ```
//!
//! - `base`: the offset at which counting began.
//! - `count`: how many records between it and the committed offset were settled.
//! - `id sum`: the wrapping 128-bit sum of their event ids, as 32 hex digits.
//! - `earlier`: how many were settled before `base`. Version 1 is written where there are none.
//!
//! All of it is ASCII; `docs/formats/kafka.md` is the specification.
//!
//! **Invariant:** the books change only in the same commit as the offset they belong to.

use tidegate_core::Offset;
use tidegate_core::books::{Place, Posting};

const VERSION_1: &str = "t1;";
const VERSION_2: &str = "t2;";

/// The records of a partition that a group has settled since counting began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBooks {
    /// Where counting began.
    pub base: Offset,
    /// How many records were settled since.
    pub count: u64,
    /// The wrapping sum of their ids.
    pub id_sum: u128,
    /// How many were settled before counting began here: nobody can verify them any more.
    pub earlier: u64,
}

impl GroupBooks {
    /// Books that begin at an offset.
    #[must_use]
    pub fn begin(base: Offset) -> Self {
        Self {
            base,
            count: 0,
            id_sum: 0,
            earlier: 0,
        }
    }

    /// How many records the group has settled, ever. It never falls.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.earlier.saturating_add(self.count)
    }

    /// The same books for an owner that finds the partition beginning at `start`. The records they
    /// cover must be there to be verified: if the broker has removed some of them, counting begins anew
    /// at `next`.
    #[must_use]
    pub(super) fn handed_on(self, start: Offset, next: Offset) -> Self {
        if self.base >= start {
            return self;
        }
        Self {
            earlier: self.settled(),
            ..Self::begin(next)
        }
    }

    /// The books after a commit that brings these postings.
    ///
    /// Postings that take records out of the group's hands are counted. A record that is passed without
    /// one is not: it lies in the topic and not in the books, and whoever counts misses it.
    #[must_use]
    pub(super) fn after(self, postings: &[Posting]) -> Self {
        let settled = postings.iter().filter(|posting| settles(posting));
        settled.fold(self, |books, posting| Self {
            count: books.count.saturating_add(posting.count),
            id_sum: books.id_sum.wrapping_add(posting.id_sum),
            ..books
        })
    }
}

/// Whether a posting takes records out of the hands of the group: from its queue or its handlers to any
/// other place. A record that moves on from there later (a parked one that is delivered) was counted
/// when its offset was committed.
fn settles(posting: &Posting) -> bool {
    let is_in_hand =
        |place: &Option<Place>| matches!(place, None | Some(Place::Queued | Place::InFlight));
    is_in_hand(&posting.from) && !is_in_hand(&posting.to)
}

/// The metadata of a committed offset: the books, then what the caller wrote.
pub(super) fn write(books: GroupBooks, metadata: &str) -> String {
    let GroupBooks {
        base,
        count,
        id_sum,
        earlier,
    } = books;
    match earlier {
        0 => format!("{VERSION_1}{base};{count};{id_sum:032x};{metadata}"),
        _ => format!("{VERSION_2}{earlier};{base};{count};{id_sum:032x};{metadata}"),
    }
}

/// Takes metadata apart. Text that we did not write has no books and is the caller's whole.
pub(super) fn read(text: &str) -> (Option<GroupBooks>, &str) {
    fn parse(text: &str) -> Option<(GroupBooks, &str)> {
        let (earlier, rest) = match text.strip_prefix(VERSION_1) {
            Some(rest) => (0, rest),
            None => {
                let (earlier, rest) = text.strip_prefix(VERSION_2)?.split_once(';')?;
                (earlier.parse().ok()?, rest)
            }
        };
        let mut parts = rest.splitn(4, ';');
        let base = Offset(parts.next()?.parse().ok()?);
        let count = parts.next()?.parse().ok()?;
        let id_sum = parts.next().filter(|digits| digits.len() == 32)?;
        let id_sum = u128::from_str_radix(id_sum, 16).ok()?;
        let books = GroupBooks {
            base,
            count,
            id_sum,
            earlier,
        };
        Some((books, parts.next()?))
    }
    parse(text).map_or((None, text), |(books, rest)| (Some(books), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::MAX_METADATA;
    use tidegate_core::EventId;
    use tidegate_core::books::postings;

    #[test]
    fn books_are_read_back_as_written_and_fit_a_broker() {
        let mut books = GroupBooks {
            base: Offset(i64::MAX),
            count: u64::MAX,
            id_sum: u128::MAX,
            earlier: 0,
        };
        for earlier in [0, u64::MAX] {
            books.earlier = earlier;
            for metadata in ["", "a;b;;c", "t1;1;2;3;4", "t2;1;2;3;4;5"] {
                let text = write(books, metadata);
                assert_eq!(read(&text), (Some(books), metadata));
            }
        }
        assert!(write(books, &"x".repeat(MAX_METADATA)).len() <= 4_096);
    }

    #[test]
    fn books_of_both_versions_are_read() {
        let sum = "00000000000000000000000000000007";
        let first = GroupBooks {
            count: 2,
            id_sum: 7,
            ..GroupBooks::begin(Offset(1))
        };
        let text = format!("t1;1;2;{sum};x");
        assert_eq!(read(&text), (Some(first), "x"));
        assert_eq!(write(first, "x"), text);
        let second = GroupBooks {
            earlier: 9,
            ..first
        };
        let text = format!("t2;9;1;2;{sum};x");
        assert_eq!(read(&text), (Some(second), "x"));
        assert_eq!(write(second, "x"), text);
    }

    #[test]
    fn metadata_of_others_is_the_callers_whole() {
        let long = "t1;1;2;00000000000000000000000000000007";
        for text in [
            "",
            "hello",
            "t1;",
            "t1;1;2;7;x",
            "t1;x;2;7;",
            "t2;1;2;3;",
            "t2;1;2;3;4;5",
            "t3;1;2;3;4;5",
            long,
        ] {
            assert_eq!(read(text), (None, text));
        }
    }

    #[test]
    fn only_what_leaves_the_hands_of_the_group_is_counted() {
        let ids = [EventId::from_u128(3), EventId::from_u128(4)];
        let moved = |from, to| postings(ids, from, to);
        let begin = GroupBooks::begin(Offset(10));
        let mut all = moved(Some(Place::InFlight), Some(Place::Delivered));
        all.extend(moved(Some(Place::Queued), Some(Place::InFlight)));
        all.extend(moved(Some(Place::Parked), Some(Place::Delivered)));
        let books = begin.after(&all);
        assert_eq!((books.base, books.count, books.id_sum), (Offset(10), 2, 7));
        let tier = moved(Some(Place::Queued), Some(Place::Retrying));
        assert_eq!(books.after(&tier).count, 4);
    }

    #[test]
    fn books_whose_beginning_was_removed_begin_anew_and_forget_no_count() {
        let books = GroupBooks {
            base: Offset(1),
            count: 5,
            id_sum: 9,
            earlier: 2,
        };
        assert_eq!(books.after(&[]), books, "without postings nothing changes");
        assert_eq!(books.handed_on(Offset(1), Offset(8)), books);
        let anew = books.handed_on(Offset(2), Offset(8));
        assert_eq!((anew.base, anew.count, anew.id_sum), (Offset(8), 0, 0));
        assert_eq!(anew.settled(), books.settled());
    }
}
