//! Records in and out of the client's memory.
//!
//! A message of the client keeps its whole batch alive and blocks the client's end, so records are
//! copied out at once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Bytes, BytesMut};
use rdkafka::TopicPartitionList;
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use tidegate_core::Offset;

use crate::record::{Headers, Record, StoredRecord, TopicPartition};

/// The first piece of memory of a copier; each later one is twice as large, up to the last.
const FIRST_PIECE: usize = 4 * 1_024;
/// A caller that keeps one record keeps the piece it lies in, so this is what a record can cost.
const LAST_PIECE: usize = 64 * 1_024;
/// A larger value gets memory of its own.
const ALONE: usize = LAST_PIECE / 4;

/// A message could not be copied: a name of a header is not UTF-8, or longer than our headers can be.
#[derive(Debug)]
pub(super) struct UnreadableRecord {
    pub(super) offset: Offset,
}

/// Copies messages out of the client's memory, many into one piece: an allocation for each, freed by
/// another thread, costs more than the copying.
#[derive(Debug, Default)]
pub(super) struct RecordConverter {
    /// Empty between two copies; its capacity is what is left of the piece.
    piece: BytesMut,
    size: usize,
}

impl RecordConverter {
    /// Copies a message, exactly as it lies in the log.
    pub(super) fn out(
        &mut self,
        message: &BorrowedMessage<'_>,
    ) -> Result<StoredRecord, UnreadableRecord> {
        let offset = Offset(message.offset());
        let headers = match message.headers() {
            None => Headers::default(),
            // The client's own accessor panics on a name that is not UTF-8, which any program may
            // write.
            Some(found) => catch_unwind(AssertUnwindSafe(|| {
                self.headers(|| found.iter().map(|header| (header.key, header.value)))
            }))
            .ok()
            .flatten()
            .ok_or(UnreadableRecord { offset })?,
        };
        let timestamp = message.timestamp().to_millis().unwrap_or(0);
        Ok(StoredRecord {
            offset,
            record: Record {
                key: message.key().map(|key| self.bytes(key)),
                value: message.payload().map(|value| self.bytes(value)),
                headers,
                timestamp_ms: u64::try_from(timestamp).unwrap_or(0),
            },
        })
    }

    /// Goes over the headers twice. Whatever is wrong with them is found the first time, when nothing
    /// has been written; none if something does not fit.
    fn headers<'a, I>(&mut self, headers: impl Fn() -> I) -> Option<Headers>
    where
        I: Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    {
        let length = Headers::length(headers());
        // Whatever does not fit is longer than that.
        if length > Headers::LONGEST_NAME && Headers::unfit(headers()).is_some() {
            return None;
        }
        if length > ALONE {
            let mut alone = BytesMut::with_capacity(length);
            return Some(Headers::write(headers(), &mut alone));
        }
        self.make_room(length);
        Some(Headers::write(headers(), &mut self.piece))
    }

    fn bytes(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() > ALONE {
            return Bytes::copy_from_slice(bytes);
        }
        self.make_room(bytes.len());
        self.piece.extend_from_slice(bytes);
        self.piece.split().freeze()
    }

    /// Begins a new piece when this much does not fit into what is left.
    fn make_room(&mut self, length: usize) {
        if self.piece.capacity() < length {
            self.size = (self.size * 2).clamp(FIRST_PIECE, LAST_PIECE);
            self.piece = BytesMut::with_capacity(self.size.max(length));
        }
    }
}

/// Places in partitions, in the client's form.
pub(super) fn places<'a>(
    places: impl IntoIterator<Item = (&'a TopicPartition, Offset)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (at, offset) in places {
        let offset = rdkafka::Offset::Offset(offset.0);
        list.add_partition_offset(at.topic.as_str(), at.partition.0, offset)?;
    }
    Ok(list)
}

/// The headers of a record in the client's form; none where there are none.
pub(super) fn headers(record: &Record) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let mut headers = OwnedHeaders::new();
    for (key, value) in record.headers.iter() {
        headers = headers.insert(Header { key, value });
    }
    Some(headers)
}

/// The timestamp of a record in the client's form: 0 lets the client fill in the time.
pub(super) fn timestamp(record: &Record) -> i64 {
    i64::try_from(record.timestamp_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_pieces_and_stay_what_they_were() {
        let mut converter = RecordConverter::default();
        let copied: Vec<(Vec<u8>, Bytes)> = (0..3_000_usize)
            .map(|number| {
                let length = [0, 1, 200, 900, ALONE, ALONE + 1][number % 6];
                let bytes: Vec<u8> = (0..length).map(|at| (at + number) as u8).collect();
                let copy = converter.bytes(&bytes);
                (bytes, copy)
            })
            .collect();
        assert!(copied.iter().all(|(bytes, copy)| copy == bytes));
        assert!(converter.piece.is_empty() && converter.size == LAST_PIECE);
        // Two that follow each other lie side by side.
        let mut converter = RecordConverter::default();
        let (one, two) = (converter.bytes(b"one"), converter.bytes(b"two"));
        assert_eq!(one.as_ptr().wrapping_add(3), two.as_ptr());
    }

    #[test]
    fn headers_are_written_as_they_are_pushed() {
        let headers = [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b""[..]))];
        let mut pushed = Headers::default();
        for (name, value) in headers {
            pushed.push(name, value);
        }
        let long = "n".repeat(ALONE + 3);
        let large = [(long.as_str(), Some(&b"v"[..]))];
        let mut pushed_large = Headers::default();
        pushed_large.push(&long, Some(b"v"));
        let mut converter = RecordConverter::default();
        assert_eq!(converter.headers(|| headers.into_iter()), Some(pushed));
        assert_eq!(converter.headers(|| large.into_iter()), Some(pushed_large));
        let none = converter.headers(|| [].into_iter());
        assert_eq!(none, Some(Headers::default()));
        let longer = "n".repeat(Headers::LONGEST_NAME + 1);
        let unfit = [("a", None), (longer.as_str(), None)];
        assert_eq!(converter.headers(|| unfit.into_iter()), None);
    }
}
