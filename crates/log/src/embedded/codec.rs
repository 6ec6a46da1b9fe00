//! Numbers and texts as they stand in the files: little-endian, lengths in front.

use tidegate_core::books::{Books, Bucket, Place, Posting, Row, Tally};
use tidegate_core::{Offset, Partition};

/// Reads what the functions below wrote; none where the bytes end early or make no sense.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoder<'a>(pub(super) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// A number in as few bytes as it needs, seven bits in each.
    #[inline]
    pub(super) fn varint(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first()?;
        if first < 0x80 {
            self.0 = rest;
            return Some(u64::from(first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// The length of a list of things that have at least `least` bytes each.
    pub(super) fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count.checked_mul(least)? <= self.0.len()).then_some(count)
    }

    /// A list, of things that have at least `least` bytes each.
    pub(super) fn list<T, C: FromIterator<T>>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<C> {
        (0..self.count(least)?).map(|_| read(self)).collect()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(str::to_owned)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn optional(&mut self) -> Option<Option<u64>> {
        self.option(Self::u64)
    }

    /// A value, or that there is none.
    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.flag()? {
            true => read(self).map(Some),
            false => Some(None),
        }
    }

    pub(super) fn tally(&mut self) -> Option<Tally> {
        let count = self.i64()?;
        let id_sum = self.u128()?;
        Some(Tally { count, id_sum })
    }

    fn bucket(&mut self) -> Option<Bucket> {
        Some(match self.u8()? {
            0 => Bucket::Minute(self.u64()?),
            1 => Bucket::Hour(self.u64()?),
            2 => Bucket::Day(self.u64()?),
            3 => Bucket::Offsets {
                partition: Partition(i32::from_le_bytes(self.array()?)),
                first: Offset(self.i64()?),
                last: Offset(self.i64()?),
            },
            _ => return None,
        })
    }

    fn place(&mut self) -> Option<Option<Place>> {
        let text = self.text()?;
        if text.is_empty() {
            return Some(None);
        }
        text.parse().ok().map(Some)
    }

    pub(super) fn postings(&mut self) -> Option<Vec<Posting>> {
        self.list(40, |decoder| {
            Some(Posting {
                bucket: decoder.bucket()?,
                from: decoder.place()?,
                to: decoder.place()?,
                count: decoder.u64()?,
                id_sum: decoder.u128()?,
            })
        })
    }

    pub(super) fn books(&mut self) -> Option<Books> {
        let rows: Vec<Row> = self.list(20, |decoder| {
            Some(Row {
                bucket: decoder.text()?,
                column: decoder.text()?,
                count: decoder.i64()?,
                id_sum: decoder.text()?,
            })
        })?;
        Books::from_rows(&rows)
    }
}

#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

/// A signed number such that small ones of either sign stay small.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// A length that is known to fit, because everything in the files is limited far below 4 GiB.
pub(super) fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&length(bytes.len()).to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// The length of a list, and its items.
pub(super) fn put_list<T>(
    out: &mut Vec<u8>,
    items: impl ExactSizeIterator<Item = T>,
    mut put: impl FnMut(&mut Vec<u8>, T),
) {
    put_u32(out, length(items.len()));
    items.for_each(|item| put(out, item));
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_optional(out: &mut Vec<u8>, value: Option<u64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put_u64(out, value);
    }
}

pub(super) fn put_tally(out: &mut Vec<u8>, tally: Tally) {
    put_i64(out, tally.count);
    out.extend_from_slice(&tally.id_sum.to_le_bytes());
}

fn put_bucket(out: &mut Vec<u8>, bucket: Bucket) {
    let (tag, number) = match bucket {
        Bucket::Minute(number) => (0, number),
        Bucket::Hour(number) => (1, number),
        Bucket::Day(number) => (2, number),
        Bucket::Offsets {
            partition,
            first,
            last,
        } => {
            out.push(3);
            out.extend_from_slice(&partition.0.to_le_bytes());
            put_i64(out, first.0);
            put_i64(out, last.0);
            return;
        }
    };
    out.push(tag);
    put_u64(out, number);
}

pub(super) fn put_postings(out: &mut Vec<u8>, postings: &[Posting]) {
    let text = |place: &Option<Place>| place.as_ref().map(ToString::to_string).unwrap_or_default();
    put_list(out, postings.iter(), |out, posting| {
        put_bucket(out, posting.bucket);
        put_text(out, &text(&posting.from));
        put_text(out, &text(&posting.to));
        put_u64(out, posting.count);
        out.extend_from_slice(&posting.id_sum.to_le_bytes());
    });
}

pub(super) fn put_books(out: &mut Vec<u8>, books: &Books) {
    put_list(out, books.rows().iter(), |out, row| {
        put_text(out, &row.bucket);
        put_text(out, &row.column);
        put_i64(out, row.count);
        put_text(out, &row.id_sum);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_whatever_their_size() {
        let mut out = Vec::new();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        for number in numbers {
            put_varint(&mut out, number);
        }
        let mut decoder = Decoder(&out);
        for number in numbers {
            assert_eq!(decoder.varint(), Some(number));
        }
        assert!(decoder.is_empty());
        for number in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
    }

    #[test]
    fn a_count_that_cannot_be_is_refused_before_it_takes_memory() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(Decoder(&bytes).postings(), None);
        assert_eq!(Decoder(&bytes).books(), None);
        assert_eq!(Decoder(&[0xff; 11]).varint(), None);
    }
}
