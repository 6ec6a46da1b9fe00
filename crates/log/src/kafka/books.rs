//! The books of a group on a topic, carried in the metadata of its committed offsets.
//!
//! ```text
//! t1;<base>;<count>;<id sum>;<what the caller wrote>
//! ```
//!
//! `base` is the offset at which counting began, `count` how many records between it and the
//! committed offset were settled, `id sum` the wrapping 128-bit sum of their event ids as 32 hex
//! digits. All of it is ASCII; `docs/formats/kafka.md` is the specification.
//!
//! **Invariant:** the books change only in the same commit as the offset they belong to.

use tidegate_core::Offset;
use tidegate_core::books::{Place, Posting};

use crate::port::MAX_METADATA;
use crate::{LogError, TopicPartition};

const VERSION: &str = "t1;";

/// What a group has settled of a partition since counting began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBooks {
    /// Where counting began.
    pub base: Offset,
    /// How many records were settled since.
    pub count: u64,
    /// The wrapping sum of their ids.
    pub id_sum: u128,
}

impl GroupBooks {
    /// Books that begin at an offset.
    #[must_use]
    pub fn begin(base: Offset) -> Self {
        Self {
            base,
            count: 0,
            id_sum: 0,
        }
    }

    /// The books after a commit that takes the group from `before` to `next`.
    ///
    /// Postings that take records out of the group's hands are counted. A commit that moves on
    /// without any posting comes from somebody who keeps no books: they begin anew behind it,
    /// because nobody could vouch for what lies before.
    #[must_use]
    pub(super) fn after(self, before: Offset, next: Offset, postings: &[Posting]) -> Self {
        let mut settled = postings
            .iter()
            .filter(|posting| settles(posting))
            .peekable();
        if settled.peek().is_none() && next > before {
            return Self::begin(next);
        }
        settled.fold(self, |books, posting| Self {
            count: books.count.saturating_add(posting.count),
            id_sum: books.id_sum.wrapping_add(posting.id_sum),
            ..books
        })
    }
}

/// Whether a posting takes records out of the hands of the group: from its queue or its handlers to
/// any other place. What moves on from there later (a parked record that is delivered) was counted
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
    } = books;
    format!("{VERSION}{base};{count};{id_sum:032x};{metadata}")
}

/// Takes metadata apart. Text that we did not write has no books and is the caller's whole.
pub(super) fn read(text: &str) -> (Option<GroupBooks>, &str) {
    fn parse(text: &str) -> Option<(GroupBooks, &str)> {
        let mut parts = text.strip_prefix(VERSION)?.splitn(4, ';');
        let base = Offset(parts.next()?.parse().ok()?);
        let count = parts.next()?.parse().ok()?;
        let id_sum = parts.next().filter(|digits| digits.len() == 32)?;
        let id_sum = u128::from_str_radix(id_sum, 16).ok()?;
        let books = GroupBooks {
            base,
            count,
            id_sum,
        };
        Some((books, parts.next()?))
    }
    parse(text).map_or((None, text), |(books, rest)| (Some(books), rest))
}

/// Refuses what a broker would not keep as it is.
pub(super) fn check_metadata(at: &TopicPartition, metadata: &str) -> Result<(), LogError> {
    if metadata.len() > MAX_METADATA {
        return Err(LogError::MetadataTooLong {
            at: at.clone(),
            length: metadata.len(),
            limit: MAX_METADATA,
        });
    }
    if !metadata.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err(LogError::MetadataNotAscii { at: at.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::EventId;
    use tidegate_core::books::postings;

    #[test]
    fn what_is_written_is_read_back_and_fits_a_broker() {
        let books = GroupBooks {
            base: Offset(i64::MAX),
            count: u64::MAX,
            id_sum: u128::MAX,
        };
        for metadata in ["", "a;b;;c", "t1;1;2;3;4"] {
            let text = write(books, metadata);
            assert_eq!(read(&text), (Some(books), metadata));
        }
        assert!(write(books, &"x".repeat(MAX_METADATA)).len() <= 4_096);
    }

    #[test]
    fn what_others_wrote_is_the_callers_whole() {
        let long = "t1;1;2;00000000000000000000000000000007";
        for text in [
            "",
            "hello",
            "t1;",
            "t1;1;2;7;x",
            "t1;x;2;7;",
            "t2;1;2;3;",
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
        let books = begin.after(Offset(10), Offset(12), &all);
        assert_eq!((books.base, books.count, books.id_sum), (Offset(10), 2, 7));
        let tier = moved(Some(Place::Queued), Some(Place::Retrying));
        assert_eq!(books.after(Offset(12), Offset(14), &tier).count, 4);
    }

    #[test]
    fn a_commit_without_postings_begins_the_books_anew_only_when_it_moves_on() {
        let books = GroupBooks {
            base: Offset(1),
            count: 5,
            id_sum: 9,
        };
        assert_eq!(books.after(Offset(6), Offset(6), &[]), books);
        assert_eq!(
            books.after(Offset(6), Offset(8), &[]),
            GroupBooks::begin(Offset(8))
        );
    }

    #[test]
    fn metadata_is_printable_and_short() {
        let at = TopicPartition::new(tidegate_core::Topic::new("t").unwrap(), 0);
        assert!(check_metadata(&at, &"~".repeat(MAX_METADATA)).is_ok());
        let long = check_metadata(&at, &"~".repeat(MAX_METADATA + 1));
        assert!(matches!(long, Err(LogError::MetadataTooLong { .. })));
        for bad in ["ä", "\n", "\u{7f}"] {
            let error = check_metadata(&at, bad);
            assert!(matches!(error, Err(LogError::MetadataNotAscii { .. })));
        }
    }
}
