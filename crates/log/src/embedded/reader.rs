//! Reads partitions: unflushed records from memory, others from their segments.

mod times;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::Offset;
use tidegate_core::env::DiskFile;

use super::chunk::{Head, Records};
use super::context::EmbeddedContext;
use super::scan::{Scan, ScanItem, open_segment, rebuild_index};
use super::segment::{MAGIC, Segment, read_index_file};
use super::state::{LogState, UnflushedChunk};
use crate::error::LogError;
use crate::port::{Batch, Read};
use crate::record::{StoredRecord, TopicPartition};

/// Places in segments that are remembered, so that reading on does not begin with looking.
const CURSORS: usize = 16;
/// How often a segment that was removed meanwhile is looked for again.
const TRIES: usize = 100;
/// More than any index file has.
const INDEX_LIMIT: u64 = 256 * 1024 * 1024;

/// Where the next records of a partition are.
#[derive(Debug)]
pub(super) enum RecordSource {
    /// There are none: this is where they will be.
    Nothing(i64),
    /// In memory.
    Memory(Vec<UnflushedChunk>),
    /// In a segment, from about there.
    Segment { segment: Segment, at: Option<u64> },
}

/// Offsets that were lost to damage: from the first up to the one behind the last.
pub(super) type LostRange = Option<(i64, i64)>;

/// Says where the records from `from` on are, and which offsets behind it are lost next.
pub(super) fn locate(state: &LogState, read: &Read) -> Result<(RecordSource, LostRange), LogError> {
    let at = &read.at;
    let from = read.from.0;
    let Some((topic, number)) = state.find(at) else {
        return Err(unknown(state, at));
    };
    let Some(partition) = state.partition(topic, number) else {
        return Err(unknown(state, at));
    };
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
        let source = RecordSource::Segment {
            at: match from <= segment.base {
                // No index is needed to find the beginning.
                true => Some(MAGIC.len() as u64),
                false => segment.index.find(from),
            },
            segment: segment.without_index(),
        };
        return Ok((source, lost));
    }
    let mut bytes = 0;
    let wanted = |unflushed: &&UnflushedChunk| {
        // The first one always: at least one record is handed out.
        let is_wanted = bytes == 0 || bytes < read.max_bytes;
        bytes += unflushed.bytes.len();
        is_wanted
    };
    let unflushed = partition
        .unflushed
        .iter()
        .skip_while(|f| f.head.end() <= from);
    let unflushed: Vec<UnflushedChunk> = unflushed.take_while(wanted).cloned().collect();
    let source = match unflushed.is_empty() {
        true => RecordSource::Nothing(partition.end),
        false => RecordSource::Memory(unflushed),
    };
    Ok((source, lost))
}

pub(super) fn unknown(state: &LogState, at: &TopicPartition) -> LogError {
    match state.topic(&at.topic) {
        Some((_, topic)) => LogError::UnknownPartition {
            at: at.clone(),
            partitions: topic.config.partitions,
        },
        None => LogError::UnknownTopic {
            topic: at.topic.clone(),
        },
    }
}

fn damage(at: &TopicPartition, from: i64, to: i64) -> LogError {
    LogError::Damaged {
        at: at.clone(),
        from: Offset(from),
        to: Offset(to),
    }
}

/// The batch of records that are in memory.
pub(super) fn from_memory(
    read: &Read,
    unflushed: &[UnflushedChunk],
    lost: LostRange,
) -> Result<Batch, LogError> {
    let mut builder = BatchBuilder::new(read, lost);
    for unflushed in unflushed {
        let Some(body) = unflushed.head.body(&unflushed.bytes) else {
            continue;
        };
        let mut records = Records::new(&unflushed.head, body);
        let (from, to) = (unflushed.head.base, unflushed.head.end());
        builder
            .fill(&mut records)
            .map_err(|_| damage(&read.at, from, to))?;
        if builder.is_full() {
            break;
        }
    }
    builder.check(&read.at)?;
    Ok(builder.batch(&read.at))
}

/// Records that are gathered up to what was asked for.
struct BatchBuilder {
    from: i64,
    max_records: usize,
    max_bytes: usize,
    records: Vec<StoredRecord>,
    bytes: usize,
    lost: LostRange,
    /// Whether it ends where offsets are lost.
    is_cut: bool,
}

impl BatchBuilder {
    fn new(read: &Read, lost: LostRange) -> Self {
        Self {
            lost,
            is_cut: false,
            from: read.from.0,
            max_records: read.max_records.max(1),
            max_bytes: read.max_bytes,
            records: Vec::new(),
            bytes: 0,
        }
    }

    fn is_full(&self) -> bool {
        let is_enough = self.records.len() >= self.max_records || self.bytes >= self.max_bytes;
        self.is_cut || (is_enough && !self.records.is_empty())
    }

    fn fill(&mut self, records: &mut Records) -> Result<(), super::chunk::MalformedRecord> {
        while !self.is_full() {
            let Some(stored) = records.next_from(self.from)? else {
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

    /// Whether what was lost comes first.
    fn check(&self, at: &TopicPartition) -> Result<(), LogError> {
        match self.lost {
            Some((first, to)) if self.is_cut && self.records.is_empty() => {
                Err(damage(at, first, to))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn batch(self, at: &TopicPartition) -> Batch {
        let next = self
            .records
            .last()
            .map_or(self.from, |last| last.offset.0 + 1);
        Batch {
            at: at.clone(),
            records: self.records,
            next: Offset(next),
        }
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
struct Cursor {
    next: i64,
    segment: (i64, u32),
    path: PathBuf,
    file: Box<dyn DiskFile>,
    scan: Scan,
    /// The chunk that was not read to its end.
    rest: Option<(Head, Records)>,
    used: u64,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cursor({} at {})", self.path.display(), self.next)
    }
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
            let (source, lost) = locate(&self.context.state(), &read)?;
            match source {
                RecordSource::Nothing(end) => {
                    return Ok(Batch {
                        at: read.at,
                        records: Vec::new(),
                        next: Offset(end),
                    });
                }
                RecordSource::Memory(unflushed) => return from_memory(&read, &unflushed, lost),
                RecordSource::Segment { segment, at } => {
                    let end = segment.end;
                    match self.read_segment(&read, segment, at, lost)? {
                        Outcome::Records(batch) => return Ok(batch),
                        // Holes up to its end.
                        Outcome::None => read.from = Offset(end),
                        Outcome::Gone => {}
                    }
                }
            }
        }
        Err(LogError::OutcomeUnknown {
            doing: "reading",
            why: format!("the segments of {} kept changing", read.at),
        })
    }

    fn read_segment(
        &mut self,
        read: &Read,
        segment: Segment,
        at: Option<u64>,
        lost: LostRange,
    ) -> Result<Outcome, LogError> {
        let from = read.from.0;
        let known = self.cursors.remove(&read.at);
        let is_it = |cursor: &Cursor| {
            cursor.next == from && cursor.segment == (segment.base, segment.generation)
        };
        let mut cursor = match known.filter(is_it) {
            Some(mut cursor) => {
                cursor.scan.grow(&segment);
                cursor
            }
            None => match self.begin(&read.at, &segment, at, from)? {
                Some(cursor) => cursor,
                None => return Ok(Outcome::Gone),
            },
        };
        let mut builder = BatchBuilder::new(read, lost);
        let mut found = None;
        while !builder.is_full() {
            if let Some((head, records)) = &mut cursor.rest {
                if builder.fill(records).is_err() {
                    found = Some((head.base.max(from), head.end()));
                    break;
                }
                if builder.is_full() {
                    break;
                }
                cursor.rest = None;
            }
            match cursor.scan.next(&*cursor.file, &cursor.path)? {
                None => break,
                Some(ScanItem::Chunk { head, .. }) if head.end() <= from => {}
                Some(ScanItem::Chunk { head, bytes, .. }) => {
                    let records = head.body(&bytes).map(|body| Records::new(&head, body));
                    cursor.rest = records.map(|records| (head, records));
                }
                Some(ScanItem::Damage { held, next, .. }) => {
                    let (first, to) = held.unwrap_or((from, next.unwrap_or(segment.end)));
                    if to > from {
                        found = Some((first.max(from), to));
                        break;
                    }
                }
            }
        }
        builder.check(&read.at)?;
        let is_empty = builder.records.is_empty();
        let is_cut = builder.is_cut;
        match found {
            // What lies before the damage comes first; the next call begins at the damage.
            Some((from, to)) if is_empty => Err(damage(&read.at, from, to)),
            None if is_empty => Ok(Outcome::None),
            Some(_) => Ok(Outcome::Records(builder.batch(&read.at))),
            None if is_cut => Ok(Outcome::Records(builder.batch(&read.at))),
            None => {
                let batch = builder.batch(&read.at);
                cursor.next = batch.next.0;
                self.remember(read.at.clone(), cursor);
                Ok(Outcome::Records(batch))
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
        let number = u32::try_from(at.partition.0).unwrap_or(0);
        let path = self.context.topic_dir(&at.topic).join(segment.name(number));
        let file = match open_segment(&*self.context.disk, &path, self.context.secret)? {
            None => {
                return match self.is_gone(at, segment) {
                    true => Ok(None),
                    // What it held is lost; what lies behind it is not.
                    false => Err(damage(at, from, segment.end)),
                };
            }
            Some(file) => file,
        };
        let place = match place {
            Some(place) => place,
            None => {
                let find = |state: &Segment| state.index.find(from);
                match self.complete_index(at, segment, &*file, &path, find)? {
                    Some(place) => place,
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Cursor {
            next: from,
            segment: (segment.base, segment.generation),
            path,
            file,
            scan: Scan::within(segment, self.context.secret, place),
            rest: None,
            used: 0,
        }))
    }

    fn is_gone(&self, at: &TopicPartition, segment: &Segment) -> bool {
        let state = self.context.state();
        let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
        !found.is_some_and(|partition| partition.segments.iter().any(|s| is_same(s, segment)))
    }

    /// Completes the index of a segment that was found on disk, from its file or from its chunks,
    /// and looks something up in it; none if the segment was removed meanwhile.
    fn complete_index<T>(
        &self,
        at: &TopicPartition,
        segment: &Segment,
        file: &dyn DiskFile,
        path: &std::path::Path,
        look: impl Fn(&Segment) -> Option<T>,
    ) -> Result<Option<T>, LogError> {
        let until = {
            let state = self.context.state();
            let found = state.find(at).and_then(|(t, p)| state.partition(t, p));
            let found = found.and_then(|p| p.segments.iter().find(|s| is_same(s, segment)));
            match found {
                None => return Ok(None),
                Some(found) if found.index.is_whole() => return Ok(look(found)),
                Some(found) => found.index.from(),
            }
        };
        let written = path.with_extension("idx");
        let written = self.context.disk.read(&written, INDEX_LIMIT).ok();
        let entries = written.and_then(|bytes| read_index_file(&bytes, segment.len));
        let entries = match entries {
            Some(entries) => entries,
            None => rebuild_index(file, path, (segment, until), self.context.secret)?,
        };
        let mut state = self.context.state();
        let Some((topic, number)) = state.find(at) else {
            return Ok(None);
        };
        let partition = state.partition_mut(topic, number);
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

enum Outcome {
    Records(Batch),
    /// Nothing but holes up to the end of the segment.
    None,
    /// The segment was removed meanwhile.
    Gone,
}
