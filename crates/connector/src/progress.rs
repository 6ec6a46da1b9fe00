//! The text of a commit: settled records above its offset, and what the store has to do with it.
//!
//! A text that tells of settled records alone is that of [`marks`](crate::marks). Otherwise it is `tg2.`, base64
//! and a checksum. The bytes are numbers of seven bits a byte. First come the parked rows that this group gave up
//! and the store may still have: their number, then their offsets. Then comes progress that the store keeps: 0, or
//! 1, its number and its checksum. The rest is pairs of lengths as in `tg1`, for records that the store's progress
//! does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_log::TopicPartition;

use crate::marks::{self, EncodedMarks, Ranges, checksum, pull, push};
use crate::parked::ProgressRow;

/// The version of texts that speak of the store.
const VERSION: &str = "tg2.";
/// Rows that one text names.
pub(crate) const MAX_GIVEN_UP: usize = 32;

/// Progress in the store, as a commit names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgressName {
    pub(crate) id: i64,
    pub(crate) sum: u32,
}

/// The part of a commit's text that is about the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CommitNotes {
    /// Parked rows that a commit of the log gave up, and that may still be there.
    pub(crate) given_up: BTreeSet<i64>,
    pub(crate) progress: Option<ProgressName>,
}

/// Progress that a commit names, with what it tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedProgress {
    pub(crate) name: ProgressName,
    pub(crate) ranges: Arc<Ranges>,
}

/// Writes the text of a commit at `next`, with as many of the settled ranges as fit into `limit` bytes.
pub(crate) fn write(
    at: &TopicPartition,
    next: i64,
    settled: &Ranges,
    notes: &CommitNotes,
    limit: usize,
) -> EncodedMarks {
    if *notes == CommitNotes::default() {
        return marks::encode(at, next, settled, limit);
    }
    let mut bytes = Vec::new();
    push(&mut bytes, i64::try_from(notes.given_up.len()).unwrap_or(0));
    for offset in &notes.given_up {
        push(&mut bytes, *offset);
    }
    push(&mut bytes, i64::from(notes.progress.is_some()));
    if let Some(progress) = notes.progress {
        push(&mut bytes, progress.id);
        push(&mut bytes, i64::from(progress.sum));
    }
    let cut_at = marks::push_ranges(&mut bytes, next, settled, limit);
    let sum = checksum(at, next, &bytes);
    let text = format!("{VERSION}{}.{sum:08x}", URL_SAFE_NO_PAD.encode(&bytes));
    EncodedMarks { text, cut_at }
}

/// The settled ranges and the notes of a text for this partition and offset. None for a text that is not ours, or was written for another
/// partition or offset.
pub(crate) fn read(at: &TopicPartition, next: i64, text: &str) -> Option<(Ranges, CommitNotes)> {
    let Some(rest) = text.strip_prefix(VERSION) else {
        return Some((marks::decode(at, next, text)?, CommitNotes::default()));
    };
    let (body, sum) = rest.rsplit_once('.')?;
    let bytes = URL_SAFE_NO_PAD.decode(body).ok()?;
    if format!("{:08x}", checksum(at, next, &bytes)) != sum {
        return None;
    }
    let mut rest = &bytes[..];
    let mut notes = CommitNotes::default();
    let count = usize::try_from(pull(&mut rest)?).ok()?;
    for _ in 0..Some(count).filter(|count| *count <= MAX_GIVEN_UP)? {
        notes.given_up.insert(pull(&mut rest)?);
    }
    if pull(&mut rest)? != 0 {
        let (id, sum) = (pull(&mut rest)?, u32::try_from(pull(&mut rest)?).ok()?);
        notes.progress = Some(ProgressName { id, sum });
    }
    Some((marks::pull_ranges(rest, next)?, notes))
}

/// Settled ranges as a row of the store, and its name.
pub(crate) fn to_row(
    at: &TopicPartition,
    id: i64,
    next: i64,
    settled: &Ranges,
) -> (ProgressRow, ProgressName) {
    let mut lengths = Vec::new();
    marks::push_ranges(&mut lengths, next, settled, usize::MAX);
    let sum = checksum(at, next, &lengths);
    (ProgressRow { id, next, lengths }, ProgressName { id, sum })
}

/// The ranges of a row; none if it is missing, or is not the one that was named.
pub(crate) fn from_row(
    at: &TopicPartition,
    name: ProgressName,
    row: Option<ProgressRow>,
) -> Option<Ranges> {
    let row = row.filter(|row| checksum(at, row.next, &row.lengths) == name.sum)?;
    marks::pull_ranges(&row.lengths, row.next)
}

/// The ranges of both, from `next` on; ranges that touch are one.
pub(crate) fn union(one: &Ranges, other: &Ranges, next: i64) -> Ranges {
    let mut all: Vec<(i64, i64)> = one.iter().chain(other).map(|(a, b)| (*a, *b)).collect();
    all.sort_unstable();
    let mut sum = Ranges::new();
    let mut last: Option<(i64, i64)> = None;
    for (from, to) in all {
        let from = from.max(next);
        if to <= from {
            continue;
        }
        match &mut last {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => sum.extend(last.replace((from, to))),
        }
    }
    sum.extend(last);
    sum
}

/// The parts of `all` that `known` does not have.
pub(crate) fn beyond(all: &Ranges, known: &Ranges) -> Ranges {
    let mut rest: Ranges = BTreeMap::new();
    let mut known = known.iter().peekable();
    for (&from, &to) in all {
        let mut position = from;
        while let Some((&start, &end)) = known.peek().copied() {
            if end <= position {
                known.next();
                continue;
            }
            if start >= to {
                break;
            }
            if start > position {
                rest.insert(position, start);
            }
            position = end;
            if position >= to {
                break;
            }
            known.next();
        }
        if position < to {
            rest.insert(position, to);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Topic;

    use super::*;

    fn at() -> TopicPartition {
        TopicPartition::new(Topic::new("orders").unwrap(), 3)
    }

    #[test]
    fn a_text_names_rows_and_progress() {
        let settled = Ranges::from([(12, 20), (30, 31)]);
        let notes = CommitNotes {
            given_up: (0..32).map(|n| i64::MAX - n).collect(),
            progress: Some(ProgressName {
                id: i64::MAX,
                sum: u32::MAX,
            }),
        };
        let written = write(&at(), 10, &settled, &notes, 3_328);
        assert_eq!(written.cut_at, None);
        let other = TopicPartition::new(Topic::new("orders").unwrap(), 4);
        assert_eq!(read(&other, 10, &written.text), None);
        assert_eq!(read(&at(), 11, &written.text), None);
        assert_eq!(read(&at(), 10, &written.text), Some((settled, notes)));
        let plain = write(
            &at(),
            10,
            &Ranges::from([(12, 20)]),
            &CommitNotes::default(),
            3_328,
        );
        assert!(plain.text.starts_with("tg1."), "old programs read it");
        for text in ["tg2.", "tg2..", "tg2.AA.00000000", "tg2.é.00000000"] {
            assert_eq!(read(&at(), 10, text), None, "{text}");
        }
    }

    #[test]
    fn a_row_is_the_one_that_was_named_or_says_nothing() {
        let settled: Ranges = (0..5_000).map(|n| (11 + 2 * n, 12 + 2 * n)).collect();
        let (row, name) = to_row(&at(), 7, 10, &settled);
        assert_eq!(from_row(&at(), name, Some(row.clone())), Some(settled));
        assert_eq!(from_row(&at(), name, None), None);
        let mut other = row;
        other.lengths[3] ^= 1;
        assert_eq!(from_row(&at(), name, Some(other)), None);
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::btree_set(0_i64..60, 0..40).prop_map(|offsets| {
            let ones = offsets.into_iter().map(|offset| (offset, offset + 1));
            union(&ones.collect(), &Ranges::new(), 0)
        })
    }

    fn offsets(ranges: &Ranges) -> BTreeSet<i64> {
        ranges.iter().flat_map(|(from, to)| *from..*to).collect()
    }

    proptest! {
        #[test]
        fn sums_and_rests_are_those_of_sets(one in ranges(), other in ranges(), next in 0_i64..60) {
            let (a, b) = (offsets(&one), offsets(&other));
            let both: BTreeSet<i64> = a.union(&b).copied().filter(|n| *n >= next).collect();
            prop_assert_eq!(offsets(&union(&one, &other, next)), both);
            let rest: BTreeSet<i64> = a.difference(&b).copied().collect();
            prop_assert_eq!(offsets(&beyond(&one, &other)), rest);
        }

        #[test]
        fn no_text_panics(text in ".{0,200}", next in any::<i64>()) {
            read(&at(), next, &format!("tg2.{text}"));
        }
    }
}
