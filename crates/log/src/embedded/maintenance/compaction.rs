//! Compaction: of records with the same key only the last one stays.
//!
//! A record goes when a later one has its key. A tombstone goes as well once nothing before it has
//! its key any more. A record that goes was read by every group, keeps its offset unused, and is posted.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use tidegate_core::env::{DiskFile, OpenMode};

use super::Maintenance;
use crate::embedded::change::{LogChange, PartitionKey};
use crate::embedded::chunk::{Chunk, count_id, rebuild};
use crate::embedded::files::{self, Doing};
use crate::embedded::injected_bugs::{self, InjectedBug};
use crate::embedded::scan::{Scan, ScanItem};
use crate::embedded::segment::{MAGIC, Minutes, Segment};
use crate::embedded::tally::{add_all, removed};
use crate::embedded::telemetry;
use crate::error::LogError;
use crate::record::{StoredRecord, TopicPartition};

/// The bytes that a key needs in memory beside its own.
const BESIDE: u64 = 96;

/// Where a key was seen first and last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: i64,
    last: i64,
}

/// The keys that a round knows.
struct Keys {
    spans: HashMap<Bytes, Span>,
    memory: u64,
    limit: u64,
}

impl Keys {
    fn is_full(&self) -> bool {
        self.memory > self.limit
    }

    fn note(&mut self, key: &Bytes, offset: i64) {
        if let Some(span) = self.spans.get_mut(key) {
            span.first = span.first.min(offset);
            span.last = span.last.max(offset);
            return;
        }
        self.memory += key.len() as u64 + BESIDE;
        let span = Span {
            first: offset,
            last: offset,
        };
        // A copy, so that a key does not hold on to all that was read with it.
        self.spans.insert(Bytes::copy_from_slice(key), span);
    }
}

/// Decides whether a record stays, by where its key was seen.
fn stays(offset: i64, is_tombstone: bool, seen: Option<Span>) -> bool {
    match seen {
        // A record without a key replaces nothing and is replaced by nothing.
        None => true,
        Some(span) if span.last > offset => false,
        // A tombstone has done its work once nothing before it has its key.
        Some(span) => !(is_tombstone && span.first == offset),
    }
}

/// The segments of a partition that a round works on.
struct Job {
    at: TopicPartition,
    key: PartitionKey,
    start: i64,
    segments: Vec<Segment>,
    generation: u32,
    size: u64,
}

impl Maintenance {
    /// The next switch to segments that hold less: of one partition at a time; none when nothing
    /// is worth it.
    pub(in crate::embedded) fn compaction(&mut self) -> Result<Option<LogChange>, LogError> {
        for mut job in self.jobs() {
            let found = job.segments.clone();
            // It was damaged as it is, and is not read again until it is another one.
            if self.damaged.get(&job.key) == Some(&found) {
                continue;
            }
            let switch = match self.survey(&mut job)? {
                Some(keys) => self.rewrite(&job, &keys)?,
                None => None,
            };
            if switch.is_some() {
                self.damaged.remove(&job.key);
                return Ok(switch);
            }
            self.damaged.insert(job.key, found);
        }
        Ok(None)
    }

    /// The partitions of which at least as much was never compacted as was.
    fn jobs(&self) -> Vec<Job> {
        let state = self.context.state();
        let jobs = state.all().filter_map(|(key, partition)| {
            let config = &state.topics.get(key.0 as usize)?.config;
            let needed_from = state.needed_from(key);
            let segments = partition.segments.iter();
            let segments: Vec<Segment> = segments
                .take_while(|segment| segment.is_sealed && segment.end <= needed_from)
                .map(Segment::without_index)
                .collect();
            let of = |is_clean: bool| -> u64 {
                let segments = segments.iter();
                let found = segments.filter(|s| (s.generation > 0) == is_clean);
                found.map(|segment| segment.len).sum()
            };
            let is_worth_it = config.compact && of(false) > 0 && of(false) >= of(true);
            let job = |at| Job {
                at,
                key,
                start: partition.start,
                generation: segments.iter().map(|s| s.generation).max().unwrap_or(0) + 1,
                size: self.context.config.segment_size,
                segments,
            };
            state.name(key).filter(|_| is_worth_it).map(job)
        });
        jobs.collect()
    }

    fn scan(&self, job: &Job, segment: &Segment) -> Result<Scan, LogError> {
        let path = files::segment_path(&self.context.config.dir, &job.at, segment);
        let file = self.context.disk.open(&path, OpenMode::Read);
        let file = file.doing("open", &path)?;
        Ok(Scan::of_segment(file, &path, segment, self.context.secret))
    }

    /// Where each key was seen; none when something is damaged: then nothing is rewritten.
    ///
    /// Keys of segments that were never compacted come first, and segments that would take too much
    /// memory are left for a later round; so every round compacts something new. In the others those
    /// keys are looked for, and more are noted while there is room. A key that is not noted where it
    /// comes first is not noted later: what is known of a key is always all there is.
    fn survey(&self, job: &mut Job) -> Result<Option<HashMap<Bytes, Span>>, LogError> {
        let mut keys = Keys {
            spans: HashMap::new(),
            memory: 0,
            limit: self.context.config.compaction_memory,
        };
        let mut is_begun = false;
        let mut cut = job.segments.len();
        for (index, segment) in job.segments.iter().enumerate() {
            if segment.generation > 0 {
                continue;
            }
            if is_begun && keys.is_full() {
                cut = index;
                break;
            }
            is_begun = true;
            if !self.survey_segment(job, segment, |key, offset| keys.note(key, offset))? {
                return Ok(None);
            }
        }
        job.segments.truncate(cut);
        for segment in job.segments.iter().filter(|s| s.generation > 0) {
            let mut note = |key: &Bytes, offset| {
                if !keys.is_full() || keys.spans.contains_key(key) {
                    keys.note(key, offset);
                }
            };
            if !self.survey_segment(job, segment, &mut note)? {
                return Ok(None);
            }
        }
        telemetry::compacted(keys.memory);
        Ok(Some(keys.spans))
    }

    /// Gives the key and the offset of each record that has a key; false for damage, also of a whole
    /// file.
    fn survey_segment(
        &self,
        job: &Job,
        segment: &Segment,
        mut note: impl FnMut(&Bytes, i64),
    ) -> Result<bool, LogError> {
        let scan = match self.scan(job, segment) {
            Err(error) if files::is_missing(&error) => return Ok(false),
            opened => opened?,
        };
        for seen in scan {
            let Some((_, records)) = records_of(seen?, job.start) else {
                return Ok(false);
            };
            for stored in records {
                if let Some(key) = &stored.record.key {
                    note(key, stored.offset.0);
                }
            }
        }
        Ok(true)
    }

    fn rewrite(
        &self,
        job: &Job,
        keys: &HashMap<Bytes, Span>,
    ) -> Result<Option<LogChange>, LogError> {
        let cluster = self.context.state().cluster.clone();
        let mut gone = Minutes::new();
        let mut output = Output::new(self, job);
        for segment in &job.segments {
            for seen in self.scan(job, segment)? {
                let Some((chunk, records)) = records_of(seen?, job.start) else {
                    // Nobody speaks of what was written so far.
                    tracing::warn!(at = %job.at, "a damaged partition is not compacted");
                    return Ok(None);
                };
                let is_whole = records.len() == chunk.head.count as usize;
                let (kept, lost): (Vec<StoredRecord>, Vec<StoredRecord>) =
                    records.into_iter().partition(|stored| {
                        let seen = stored.record.key.as_ref().and_then(|key| keys.get(key));
                        let is_tombstone = stored.record.value.is_none();
                        stays(stored.offset.0, is_tombstone, seen.copied())
                    });
                let mut tallies = Vec::new();
                for stored in &lost {
                    count_id(&mut tallies, stored.event_id(&cluster, &job.at));
                }
                add_all(&mut gone, tallies);
                if lost.is_empty() && is_whole {
                    output.add(&chunk)?;
                } else if let Some(chunk) =
                    rebuild(self.context.secret, &cluster, &job.at, &chunk.head, &kept)
                {
                    output.add(&chunk)?;
                }
            }
        }
        let segments = output.finish()?;
        let end = job.segments.last().map_or(job.start, |segment| segment.end);
        Ok(Some(LogChange::Switch {
            at: job.key,
            end,
            segments,
            removed: removed(&gone),
        }))
    }
}

/// The records of a chunk from `start` on; none for damage.
fn records_of(seen: ScanItem, start: i64) -> Option<(Chunk, Vec<StoredRecord>)> {
    let ScanItem::Chunk { chunk, .. } = seen else {
        return None;
    };
    let mut records = chunk.records()?;
    let mut found = Vec::with_capacity(chunk.head.count as usize);
    while let Some(stored) = records.next_from(start).ok()? {
        found.push(stored);
    }
    Some((chunk, found))
}

/// The segments that a round writes.
struct Output<'a> {
    maintenance: &'a Maintenance,
    job: &'a Job,
    done: Vec<Segment>,
    open: Option<OpenSegment>,
}

type OpenSegment = (PathBuf, Box<dyn DiskFile>, Segment);

impl<'a> Output<'a> {
    fn new(maintenance: &'a Maintenance, job: &'a Job) -> Self {
        Self {
            maintenance,
            job,
            done: Vec::new(),
            open: None,
        }
    }

    fn add(&mut self, chunk: &Chunk) -> Result<(), LogError> {
        let (size, len) = (self.job.size, chunk.bytes.len() as u64);
        let is_full = |segment: &Segment| segment.len + len > size && !segment.is_empty();
        if matches!(&self.open, Some((.., segment)) if is_full(segment)) {
            self.finish_segment()?;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => self.begin(chunk.head.base)?,
        };
        let (path, file, segment) = self.open.insert(open);
        file.append(&chunk.bytes).doing("write", path)?;
        segment.add(&chunk.head);
        Ok(())
    }

    fn begin(&self, base: i64) -> Result<OpenSegment, LogError> {
        let context = &self.maintenance.context;
        let segment = Segment::new(base, self.job.generation);
        let path = files::segment_path(&context.config.dir, &self.job.at, &segment);
        // A round that was given up may have left one.
        let mut file = files::make_anew(&*context.disk, &path)?;
        file.append(&MAGIC).doing("write", &path)?;
        Ok((path, file, segment))
    }

    fn finish_segment(&mut self) -> Result<(), LogError> {
        let Some((path, mut file, mut segment)) = self.open.take() else {
            return Ok(());
        };
        let context = &self.maintenance.context;
        if !injected_bugs::is(InjectedBug::UnsyncedSwitch) {
            context.synced(file.sync().doing("sync", &path))?;
        }
        segment.is_sealed = true;
        let dir = context.topic_dir(&self.job.at.topic);
        self.maintenance.write_index(&dir, self.job.key.1, &segment);
        self.done.push(segment);
        Ok(())
    }

    /// The new segments, durable under their names.
    fn finish(mut self) -> Result<Vec<Segment>, LogError> {
        self.finish_segment()?;
        if !self.done.is_empty() && !injected_bugs::is(InjectedBug::UnsyncedSwitch) {
            let context = &self.maintenance.context;
            let dir = context.topic_dir(&self.job.at.topic);
            context.synced(context.disk.sync_dir(&dir).doing("sync", &dir))?;
        }
        Ok(self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_key_the_last_record_stays_and_a_tombstone_as_long_as_it_hides_something() {
        let seen = |first, last| Some(Span { first, last });
        for (offset, is_tombstone, seen, expect) in [
            (5, false, None, true),
            (5, true, None, true),
            (5, false, seen(5, 5), true),
            (5, false, seen(1, 5), true),
            (5, false, seen(5, 9), false),
            (5, true, seen(5, 9), false),
            (5, true, seen(1, 5), true),
            (5, true, seen(5, 5), false),
        ] {
            assert_eq!(
                stays(offset, is_tombstone, seen),
                expect,
                "{offset} {seen:?}"
            );
        }
    }

    #[test]
    fn a_round_is_full_once_its_keys_take_more_memory_than_they_may() {
        let mut keys = Keys {
            spans: HashMap::new(),
            memory: 0,
            limit: 2 * (BESIDE + 5),
        };
        for (key, offset, is_full) in [
            ("key 1", 7, false),
            ("key 2", 8, false),
            ("key 1", 9, false),
            ("key 3", 10, true),
        ] {
            keys.note(&Bytes::from_static(key.as_bytes()), offset);
            assert_eq!(keys.is_full(), is_full, "{key} at {offset}");
        }
    }
}
