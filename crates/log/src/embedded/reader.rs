//! Reads partitions: unflushed records from memory, others from their segments.

mod times;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::Offset;

use super::chunk::{Chunk, MalformedRecord, Records};
use super::context::EmbeddedContext;
use super::files;
use super::scan::{Scan, ScanItem, read_index};
use super::segment::{MAGIC, Segment};
use crate::error::LogError;
use crate::port::{Batch, Read};
use crate::record::{StoredRecord, TopicPartition};

/// Places in segments that are remembered, so that reading on does not begin with looking.
const CURSORS: usize = 16;
/// How often a segment that was removed meanwhile is looked for again.
const TRIES: usize = 100;
/// Where the next records of a partition are.
#[derive(Debug)]
pub(super) enum Located {
    /// In memory, or there are none yet.
    Batch(Batch),
    /// In a segment, from about there, and which offsets are lost next.
    Segment {
        segment: Segment,
        at: Option<u64>,
        lost: LostRange,
    },
}

/// Offsets that were lost to damage: from the first up to the one behind the last.
type LostRange = Option<(i64, i64)>;

/// Finds the records from `from` on, and reads them if they are in memory.
pub(super) fn locate(context: &EmbeddedContext, read: &Read) -> Result<Located, LogError> {
    let (at, from) = (&read.at, read.from.0);
    let state = context.state();
    let partition = state.at(at)?;
    if from < partition.start || from > partition.end {
        return Err(LogError::OutOfRange {
            at: at.clone(),
            asked: read.from,
            start: Offset(partition.start),
            end: Offset(partition.end),
        });
    }
    let damaged = partition.damaged.iter().filter(|(_, to)| *to > from);
    let lost = damaged.min().copied();
    if let Some((_, to)) = lost.filter(|(first, _)| *first <= from) {
        return Err(damage(at, from, to));
    }
    let index = partition
        .segments
        .partition_point(|segment| segment.end <= from);
    if let Some(segment) = partition.segments.get(index).filter(|s| !s.is_empty()) {
        return Ok(Located::Segment {
            at: match from <= segment.base {
                // No index is needed to find the beginning.
                true => Some(MAGIC.len() as u64),
                false => segment.index.find(from),
            },
            segment: segment.without_index(),
            lost,
        });
    }
    let mut bytes = 0;
    let wanted = |chunk: &&Chunk| {
        // The first one always: at least one record is handed out.
        let is_wanted = bytes == 0 || bytes < read.max_bytes;
        bytes += chunk.bytes.len();
        is_wanted
    };
    let unflushed = partition.unflushed.iter();
    let unflushed = unflushed.skip_while(|chunk| chunk.head.end() <= from);
    let unflushed: Vec<Chunk> = unflushed.take_while(wanted).cloned().collect();
    let end = partition.end;
    drop(state);
    let mut builder = BatchBuilder::new(read, lost);
    for chunk in &unflushed {
        if let Some(mut records) = chunk.records() {
            let filled = builder.fill(&mut records);
            filled.map_err(|_| damage(at, chunk.head.base, chunk.head.end()))?;
        }
        if builder.is_full() {
            break;
        }
    }
    let mut batch = builder.finish()?;
    if unflushed.is_empty() {
        batch.next = Offset(end);
    }
    Ok(Located::Batch(batch))
}

fn damage(at: &TopicPartition, from: i64, to: i64) -> LogError {
    LogError::Damaged {
        at: at.clone(),
        from: Offset(from),
        to: Offset(to),
    }
}

/// Records that are gathered up to what was asked for.
struct BatchBuilder<'a> {
    read: &'a Read,
    records: Vec<StoredRecord>,
    bytes: usize,
    lost: LostRange,
    /// Whether it ends where offsets are lost.
    is_cut: bool,
}

impl<'a> BatchBuilder<'a> {
    fn new(read: &'a Read, lost: LostRange) -> Self {
        Self {
            read,
            records: Vec::new(),
            bytes: 0,
            lost,
            is_cut: false,
        }
    }

    fn is_full(&self) -> bool {
        let is_enough =
            self.records.len() >= self.read.max_records.max(1) || self.bytes >= self.read.max_bytes;
        self.is_cut || (is_enough && !self.records.is_empty())
    }

    fn fill(&mut self, records: &mut Records) -> Result<(), MalformedRecord> {
        while !self.is_full() {
            let Some(stored) = records.next_from(self.read.from.0)? else {
                break;
            };
            if self.lost.is_some_and(|(first, _)| stored.offset.0 >= first) {
                self.is_cut = true;
                break;
            }
            self.bytes += stored.record.size();
            self.records.push(stored);
        }
        Ok(())
    }

    /// The records that were gathered, unless lost offsets come first.
    fn finish(self) -> Result<Batch, LogError> {
        let at = self.read.at.clone();
        let next = match (self.records.last(), self.lost) {
            (Some(last), _) => Offset(last.offset.0 + 1),
            (None, Some((first, to))) if self.is_cut => return Err(damage(&at, first, to)),
            (None, _) => self.read.from,
        };
        Ok(Batch {
            at,
            records: self.records,
            next,
        })
    }
}

/// Reads segments, and remembers where it was.
#[derive(Debug)]
pub(super) struct SegmentReader {
    context: Arc<EmbeddedContext>,
    cursors: BTreeMap<TopicPartition, Cursor>,
    clock: u64,
}

/// Where a caller stopped reading.
#[derive(Debug)]
struct Cursor {
    next: i64,
    segment: (i64, u32),
    scan: Scan,
    /// The chunk that was not read to its end: its offsets, and what is left of it.
    rest: Option<((i64, i64), Records)>,
    used: u64,
}

impl SegmentReader {
    pub(super) fn new(context: Arc<EmbeddedContext>) -> Self {
        Self {
            context,
            cursors: BTreeMap::new(),
            clock: 0,
        }
    }

    /// As [`RecordStorage::read`](crate::local::RecordStorage::read).
    pub(super) fn read(&mut self, read: &Read) -> Result<Batch, LogError> {
        let mut read = read.clone();
        for _ in 0..TRIES {
            let batch = match locate(&self.context, &read)? {
                Located::Batch(batch) => Some(batch),
                Located::Segment { segment, at, lost } => {
                    self.read_segment(&mut read, &segment, at, lost)?
                }
            };
            if let Some(batch) = batch {
                return Ok(batch);
            }
        }
        Err(LogError::OutcomeUnknown {
            doing: "reading",
            why: format!("the segments of {} kept changing", read.at),
        })
    }

    /// Reads from a segment; none where it is gone, or holds nothing from there on. In the second case the
    /// read goes on behind it.
    fn read_segment(
        &mut self,
        read: &mut Read,
        segment: &Segment,
        at: Option<u64>,
        lost: LostRange,
    ) -> Result<Option<Batch>, LogError> {
        let from = read.from.0;
        let known = self.cursors.remove(&read.at);
        let is_it = |cursor: &Cursor| {
            cursor.next == from && cursor.segment == (segment.base, segment.generation)
        };
        let mut cursor = match known.filter(is_it) {
            Some(mut cursor) => {
                cursor.scan.grow(segment);
                cursor
            }
            None => match self.begin(&read.at, segment, at, from)? {
                Some(cursor) => cursor,
                None => return Ok(None),
            },
        };
        let mut builder = BatchBuilder::new(read, lost);
        let mut found = None;
        while !builder.is_full() {
            if let Some(((base, end), records)) = &mut cursor.rest {
                if builder.fill(records).is_err() {
                    found = Some(((*base).max(from), *end));
                    break;
                }
                if builder.is_full() {
                    break;
                }
                cursor.rest = None;
            }
            match cursor.scan.next().transpose()? {
                None => break,
                Some(ScanItem::Chunk { chunk, .. }) if chunk.head.end() <= from => {}
                Some(ScanItem::Chunk { chunk, .. }) => {
                    let offsets = (chunk.head.base, chunk.head.end());
                    cursor.rest = chunk.records().map(|records| (offsets, records));
                }
                Some(ScanItem::Damage { held, offsets, .. }) => {
                    let first = held.map_or(from, |(first, _)| first.max(from));
                    if offsets.1 > from {
                        found = Some((first, offsets.1));
                        break;
                    }
                }
            }
        }
        let is_whole = found.is_none() && !builder.is_cut;
        let batch = builder.finish()?;
        match (batch.records.is_empty(), found) {
            // Records before the damage come first; the next call begins at the damage.
            (true, Some((from, to))) => Err(damage(&read.at, from, to)),
            (true, None) => {
                read.from = Offset(segment.end);
                Ok(None)
            }
            (false, _) => {
                if is_whole {
                    cursor.next = batch.next.0;
                    self.remember(read.at.clone(), cursor);
                }
                Ok(Some(batch))
            }
        }
    }

    fn remember(&mut self, at: TopicPartition, mut cursor: Cursor) {
        if self.cursors.len() >= CURSORS {
            let oldest = self.cursors.iter().min_by_key(|(_, cursor)| cursor.used);
            if let Some(oldest) = oldest.map(|(at, _)| at.clone()) {
                self.cursors.remove(&oldest);
            }
        }
        self.clock += 1;
        cursor.used = self.clock;
        self.cursors.insert(at, cursor);
    }

    /// Begins to read a segment; none if it was removed meanwhile.
    fn begin(
        &self,
        at: &TopicPartition,
        segment: &Segment,
        place: Option<u64>,
        from: i64,
    ) -> Result<Option<Cursor>, LogError> {
        let path = files::segment_path(&self.context.config.dir, at, segment);
        let scan = Scan::open(&*self.context.disk, &path, segment, self.context.secret)?;
        let Some(mut scan) = scan else {
            let state = self.context.state();
            let found = state.at(at)?.segments.iter().any(|s| is_same(s, segment));
            return match found {
                false => Ok(None),
                // Its records are lost; those behind it are not.
                true => Err(damage(at, from, segment.end)),
            };
        };
        let place = match place {
            Some(place) => place,
            None => {
                let find = |found: &Segment| found.index.find(from);
                match self.complete_index(at, segment, (&mut scan, &path), find)? {
                    Some(place) => place,
                    None => return Ok(None),
                }
            }
        };
        scan.seek(segment, place);
        Ok(Some(Cursor {
            next: from,
            segment: (segment.base, segment.generation),
            scan,
            rest: None,
            used: 0,
        }))
    }

    /// Completes the index of a segment that was found on disk, from its file or from its chunks,
    /// and looks something up in it; none if the segment was removed meanwhile.
    fn complete_index<T>(
        &self,
        at: &TopicPartition,
        segment: &Segment,
        (scan, path): (&mut Scan, &Path),
        look: impl Fn(&Segment) -> Option<T>,
    ) -> Result<Option<T>, LogError> {
        let until = {
            let state = self.context.state();
            let mut segments = state.at(at)?.segments.iter();
            match segments.find(|s| is_same(s, segment)) {
                None => return Ok(None),
                Some(found) if found.index.is_whole() => return Ok(look(found)),
                Some(found) => found.index.from(),
            }
        };
        let entries = match read_index(&*self.context.disk, path, segment) {
            Some(entries) => entries,
            None => scan.index(until)?,
        };
        let mut state = self.context.state();
        let key = state.find(at);
        let partition = key.and_then(|key| state.partition_mut(key));
        let found = partition.and_then(|p| p.segments.iter_mut().find(|s| is_same(s, segment)));
        Ok(found.and_then(|found| {
            if !found.index.is_whole() {
                found.index.complete(entries);
            }
            look(found)
        }))
    }
}

fn is_same(a: &Segment, b: &Segment) -> bool {
    (a.base, a.generation) == (b.base, b.generation)
}
