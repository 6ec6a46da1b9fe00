//! Looks for the first record that is not older than a time.

use tidegate_core::Offset;

use super::{Cursor, SegmentReader, TRIES};
use crate::embedded::chunk::Records;
use crate::embedded::files;
use crate::embedded::scan::ScanItem;
use crate::embedded::segment::{MAGIC, Segment};
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
                let partition = state.at(at)?;
                let mut segments = partition.segments.iter();
                let segment = segments.find(|s| s.max_ms >= ms && !s.is_empty());
                let segment = segment.map(Segment::without_index);
                let mut unflushed = partition.unflushed.iter();
                let unflushed = unflushed.find(|f| f.head.max_ms >= ms).cloned();
                (partition.start, partition.end, segment, unflushed)
            };
            if let Some(segment) = segment {
                match self.time_in_segment(at, &segment, start, ms)? {
                    Some(Some(offset)) => return Ok(Offset(offset)),
                    // Removed meanwhile, or only damage and removed records are that young.
                    Some(None) => return self.offset_after(at, segment.end, ms),
                    None => continue,
                }
            }
            let records = unflushed.and_then(|chunk| chunk.records());
            let found = records.and_then(|records| first_from(records, start, ms));
            return Ok(Offset(found.unwrap_or(end)));
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
        let first = Some(MAGIC.len() as u64);
        let Some(Cursor { mut scan, .. }) = self.begin(at, segment, first, start)? else {
            return Ok(None);
        };
        let look = |found: &Segment| found.index.find_time(ms);
        let path = files::segment_path(&self.context.config.dir, at, segment);
        let Some(place) = self.complete_index(at, segment, (&mut scan, &path), look)? else {
            return Ok(None);
        };
        scan.seek(segment, place);
        for seen in scan {
            if let ScanItem::Chunk { chunk, .. } = seen?
                && chunk.head.max_ms >= ms
                && chunk.head.end() > start
                && let Some(records) = chunk.records()
                && let Some(found) = first_from(records, start, ms)
            {
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
