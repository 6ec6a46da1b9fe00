//! Looks for the first record that is not older than a time.

use tidegate_core::Offset;

use super::{SegmentReader, TRIES, unknown};
use crate::embedded::chunk::Records;
use crate::embedded::scan::{Scan, ScanItem};
use crate::embedded::segment::Segment;
use crate::error::LogError;
use crate::port::Read;
use crate::record::TopicPartition;

impl SegmentReader {
    /// As [`RecordStorage::offset_at`](crate::local::RecordStorage::offset_at).
    pub(in crate::embedded) fn offset_at(
        &mut self,
        at: &TopicPartition,
        ms: u64,
    ) -> Result<Offset, LogError> {
        for _ in 0..TRIES {
            let (start, end, segment, unflushed) = {
                let state = self.context.state();
                let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
                let Some(partition) = found else {
                    return Err(unknown(&state, at));
                };
                let segment = partition
                    .segments
                    .iter()
                    .find(|s| s.max_ms >= ms && !s.is_empty());
                let unflushed = partition.unflushed.iter().find(|f| f.head.max_ms >= ms);
                let (start, end) = (partition.start, partition.end);
                (
                    start,
                    end,
                    segment.map(Segment::without_index),
                    unflushed.cloned(),
                )
            };
            if let Some(segment) = segment {
                match self.time_in_segment(at, &segment, start, ms)? {
                    Some(Some(offset)) => return Ok(Offset(offset)),
                    // Removed meanwhile, or only damage and removed records are that young.
                    Some(None) => return self.offset_after(at, segment.end, ms),
                    None => continue,
                }
            }
            if let Some(unflushed) = unflushed
                && let Some(body) = unflushed.head.body(&unflushed.bytes)
            {
                let records = Records::new(&unflushed.head, body);
                return Ok(Offset(first_from(records, start, ms).unwrap_or(end)));
            }
            return Ok(Offset(end));
        }
        Err(LogError::OutcomeUnknown {
            doing: "looking for a time",
            why: format!("the segments of {at} kept changing"),
        })
    }

    /// The first record behind `from` that is not older, record by record.
    fn offset_after(
        &mut self,
        at: &TopicPartition,
        from: i64,
        ms: u64,
    ) -> Result<Offset, LogError> {
        let mut read = Read::new(at.clone(), Offset(from));
        loop {
            let batch = match self.read(&read) {
                Err(LogError::Damaged { to, .. }) => {
                    read.from = to;
                    continue;
                }
                read => read?,
            };
            let found = batch.records.iter().find(|s| s.record.timestamp_ms >= ms);
            match found {
                Some(found) => return Ok(found.offset),
                None if batch.records.is_empty() => return Ok(batch.next),
                None => read.from = batch.next,
            }
        }
    }

    /// The first record of a segment that is not older; the outer none if the segment is gone.
    fn time_in_segment(
        &self,
        at: &TopicPartition,
        segment: &Segment,
        start: i64,
        ms: u64,
    ) -> Result<Option<Option<i64>>, LogError> {
        let Some(cursor) = self.begin(at, segment, Some(0), start)? else {
            return Ok(None);
        };
        let look = |found: &Segment| found.index.find_time(ms);
        let place = self.complete_index(at, segment, &*cursor.file, &cursor.path, look)?;
        let Some(place) = place else {
            return Ok(None);
        };
        let mut scan = Scan::within(segment, self.context.secret, place);
        while let Some(seen) = scan.next(&*cursor.file, &cursor.path)? {
            let ScanItem::Chunk { head, bytes, .. } = seen else {
                continue;
            };
            if head.max_ms < ms || head.end() <= start {
                continue;
            }
            let records = head.body(&bytes).map(|body| Records::new(&head, body));
            if let Some(found) = records.and_then(|records| first_from(records, start, ms)) {
                return Ok(Some(Some(found)));
            }
        }
        Ok(Some(None))
    }
}

/// The first record from `start` on that is not older.
fn first_from(mut records: Records, start: i64, ms: u64) -> Option<i64> {
    while let Ok(Some(stored)) = records.next_from(start) {
        if stored.record.timestamp_ms >= ms {
            return Some(stored.offset.0);
        }
    }
    None
}
