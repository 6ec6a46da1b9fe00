//! Settled records above the committed offset, as the text that is committed beside it.
//!
//! The text is `tg1.` and then two parts. The first is base64 of pairs of lengths: so many offsets that
//! are open, then so many that are settled. The second is a checksum over the partition, the committed
//! offset and the lengths. Anybody can write commit metadata, so a text that is not exactly ours says
//! nothing: everything above the offset is handled again, and nothing is skipped.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_log::TopicPartition;

use crate::planted_bugs::{PlantedBug, is};

/// The version that begins each text.
const VERSION: &str = "tg1";

/// Ranges of offsets by their first one; each ends before the value.
pub(crate) type Ranges = BTreeMap<i64, i64>;

/// The text of a commit, and how far it tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedMarks {
    /// The text; empty when there is nothing to tell.
    pub(crate) text: String,
    /// Settled records at or above this offset are not in the text; none when all are.
    pub(crate) cut_at: Option<i64>,
}

/// Writes the settled ranges above `next`, lowest first, as many as fit into `limit` bytes.
pub(crate) fn encode(
    at: &TopicPartition,
    next: i64,
    settled: &Ranges,
    limit: usize,
) -> EncodedMarks {
    let mut bytes: Vec<u8> = Vec::new();
    let cut_at = push_ranges(&mut bytes, next, settled, limit);
    if bytes.is_empty() {
        let text = String::new();
        return EncodedMarks { text, cut_at };
    }
    let sum = checksum(at, next, &bytes);
    let text = format!("{VERSION}.{}.{sum:08x}", URL_SAFE_NO_PAD.encode(&bytes));
    EncodedMarks { text, cut_at }
}

/// The ranges that a text tells for this partition and offset.
///
/// None for a text that is not ours, or was written for another partition or offset.
pub(crate) fn decode(at: &TopicPartition, next: i64, text: &str) -> Option<Ranges> {
    if text.is_empty() {
        return Some(Ranges::new());
    }
    let (body, sum) = text
        .strip_prefix(VERSION)?
        .strip_prefix('.')?
        .rsplit_once('.')?;
    let bytes = URL_SAFE_NO_PAD.decode(body).ok()?;
    let is_ours = format!("{:08x}", checksum(at, next, &bytes)) == sum;
    if !is_ours && !is(PlantedBug::ForeignMarks) {
        return None;
    }
    pull_ranges(&bytes, next)
}

/// Adds the settled ranges above `next`, lowest first, as many as fit into a text of `limit` bytes. Gives the
/// first offset that did not fit.
pub(crate) fn push_ranges(
    bytes: &mut Vec<u8>,
    next: i64,
    settled: &Ranges,
    limit: usize,
) -> Option<i64> {
    let mut position = next;
    for (&from, &to) in settled {
        let from = from.max(position);
        if to <= from {
            continue;
        }
        let before = bytes.len();
        push(bytes, from - position);
        push(bytes, to - from);
        if text_length(bytes.len()) > limit {
            bytes.truncate(before);
            return Some(from);
        }
        position = to;
    }
    None
}

/// The ranges of these lengths, which count from `next`.
pub(crate) fn pull_ranges(lengths: &[u8], next: i64) -> Option<Ranges> {
    let mut ranges = Ranges::new();
    let mut rest = lengths;
    let mut position = next;
    while !rest.is_empty() {
        let from = position.checked_add(pull(&mut rest)?)?;
        let length = pull(&mut rest)?;
        position = from.checked_add(length)?;
        if length == 0 {
            return None;
        }
        ranges.insert(from, position);
    }
    Some(ranges)
}

fn text_length(bytes: usize) -> usize {
    VERSION.len() + 2 + bytes.div_ceil(3) * 4 + 8
}

pub(crate) fn checksum(at: &TopicPartition, next: i64, bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c(format!("{at}@{next};").as_bytes());
    crc32c::crc32c_append(sum, bytes)
}

/// Seven bits a byte, the lowest first.
pub(crate) fn push(bytes: &mut Vec<u8>, length: i64) {
    let mut left = length.cast_unsigned();
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push((left & 0x7f) as u8);
}

pub(crate) fn pull(bytes: &mut &[u8]) -> Option<i64> {
    let mut length: u64 = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return i64::try_from(length).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Topic;

    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("orders").unwrap(), partition)
    }

    #[test]
    fn what_does_not_fit_is_cut_at_a_whole_range() {
        let every_second: Ranges = (0..4_000).map(|n| (11 + 2 * n, 12 + 2 * n)).collect();
        let marks = encode(&at(0), 10, &every_second, 3_840);
        assert!(marks.text.len() <= 3_840, "{}", marks.text.len());
        let cut_at = marks.cut_at.unwrap();
        let read = decode(&at(0), 10, &marks.text).unwrap();
        assert!(read.len() > 1_300, "{}", read.len());
        assert_eq!(*read.last_key_value().unwrap().1, cut_at - 1);
        let nothing = EncodedMarks {
            text: String::new(),
            cut_at: None,
        };
        assert_eq!(encode(&at(0), 10, &Ranges::new(), 3_840), nothing);
        assert_eq!(encode(&at(0), 10, &Ranges::from([(3, 10)]), 3_840), nothing);
    }

    #[test]
    fn a_text_of_somebody_else_says_nothing() {
        let marks = encode(&at(3), 10, &Ranges::from([(12, 20)]), 3_840).text;
        assert!(decode(&at(3), 10, &marks).is_some());
        assert_eq!(decode(&at(4), 10, &marks), None);
        assert_eq!(decode(&at(3), 11, &marks), None);
        for text in [
            "x",
            "tg1",
            "tg1.",
            "tg1..",
            "tg1.AA.00000000",
            "tg2.AgI.00000000",
            "é",
        ] {
            assert_eq!(decode(&at(3), 10, text), None, "{text}");
        }
        // The sum is right and the lengths are not.
        for bytes in [
            &b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..],
            b"\x02",
            b"\x02\x00",
        ] {
            let sum = checksum(&at(3), 10, bytes);
            let text = format!("tg1.{}.{sum:08x}", URL_SAFE_NO_PAD.encode(bytes));
            assert_eq!(decode(&at(3), 10, &text), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            next in 0_i64..i64::MAX / 2,
            lengths in proptest::collection::vec((1_i64..1_000_000, 1_i64..1_000_000), 0..200),
        ) {
            let mut settled = Ranges::new();
            let mut position = next;
            for (open, done) in lengths {
                settled.insert(position + open, position + open + done);
                position += open + done;
            }
            let marks = encode(&at(0), next, &settled, 3_840);
            prop_assert!(marks.text.is_ascii() && marks.text.len() <= 3_840);
            let read = decode(&at(0), next, &marks.text).unwrap();
            let told: Ranges = match marks.cut_at {
                Some(cut) => settled.range(..cut).map(|(a, b)| (*a, *b)).collect(),
                None => settled,
            };
            prop_assert_eq!(read, told);
        }

        #[test]
        fn no_text_panics(text in ".{0,200}", next in any::<i64>()) {
            decode(&at(0), next, &text);
            decode(&at(0), next, &format!("tg1.{text}"));
        }
    }
}
