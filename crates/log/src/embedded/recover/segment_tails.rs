//! The chunks that segments hold behind the last checkpoint.
//!
//! The maintenance thread writes to segments what is durable in the journal, and to the same places after a crash.
//! So a chunk there proves that its group was acknowledged, whatever became of the journal.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tidegate_core::env::{Disk, DiskFile};

use crate::embedded::chunk::Head;
use crate::embedded::files::{self, Doing};
use crate::embedded::scan::{Scan, ScanItem};
use crate::embedded::secret::LogSecret;
use crate::embedded::segment::{self, MAGIC};
use crate::embedded::state::{LogState, TopicState};
use crate::error::LogError;
use crate::record::TopicPartition;

/// The chunks that segments hold behind the last checkpoint, by partition.
#[derive(Debug, Default)]
pub(super) struct SegmentTails(BTreeMap<TopicPartition, TailChunks>);

/// The chunks that the segments of one partition hold behind the last checkpoint.
#[derive(Debug, Default)]
struct TailChunks {
    /// By offset.
    chunks: VecDeque<TailChunk>,
    /// The end of what was there, as headers of chunks tell that cannot be read otherwise.
    proven: i64,
}

/// A chunk that lies in a segment behind the last checkpoint.
#[derive(Debug)]
pub(super) struct TailChunk {
    pub(super) head: Head,
    path: PathBuf,
    position: u64,
}

impl TailChunk {
    /// Its bytes; none where they are not there any more.
    pub(super) fn bytes(&self, disk: &dyn Disk) -> Result<Option<Bytes>, LogError> {
        let Some(file) = files::open_if_there(disk, &self.path)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; self.head.len()];
        let read = file.read_at(self.position, &mut bytes);
        let is_whole = read.doing("read", &self.path)? == bytes.len();
        let bytes = Bytes::from(bytes);
        let is_whole = is_whole && self.head.checked_body(&bytes).is_some();
        Ok(is_whole.then_some(bytes))
    }
}

impl SegmentTails {
    /// The next chunk of a partition that ends at `end`, if all of it lies before `limit`. Chunks that
    /// the partition has are let go of.
    pub(super) fn next(&mut self, at: &TopicPartition, end: i64, limit: i64) -> Option<TailChunk> {
        let chunks = &mut self.0.get_mut(at)?.chunks;
        while chunks.front().is_some_and(|first| first.head.base < end) {
            chunks.pop_front();
        }
        let is_before = chunks.front()?.head.end() <= limit;
        is_before.then(|| chunks.pop_front())?
    }

    /// Whether segments hold nothing behind the checkpoint.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|found| found.chunks.is_empty())
    }

    /// The partitions of which something was found, and up to where each of them had records for
    /// certain.
    pub(super) fn partitions(&self) -> Vec<(TopicPartition, i64)> {
        let found = self.0.iter();
        let found = found.filter(|(_, found)| !found.chunks.is_empty() || found.proven > 0);
        found
            .map(|(at, found)| (at.clone(), found.proven))
            .collect()
    }

    /// Reads a segment from the first byte of which the checkpoint does not speak.
    fn read(
        &mut self,
        file: Box<dyn DiskFile>,
        path: &Path,
        at: TopicPartition,
        unread: &Unread,
        secret: LogSecret,
    ) -> Result<(), LogError> {
        let len = file.len().doing("measure", path)?;
        let tail = self.0.entry(at).or_default();
        // Which offsets they can have, the journal tells only later.
        let offsets = (unread.end, i64::MAX);
        for seen in Scan::new(file, path, secret, (unread.from, len), offsets) {
            match seen? {
                ScanItem::Chunk { at, chunk } if chunk.head.base >= unread.end => {
                    tail.chunks.push_back(TailChunk {
                        head: chunk.head,
                        path: path.to_owned(),
                        position: at,
                    });
                }
                ScanItem::Chunk { .. } => {}
                // It may have been on its way when the process ended: then the journal has it. Where
                // the journal does not, its header still proves that it was there.
                ScanItem::Damage { held, .. } => {
                    let to = held.map_or(0, |(_, to)| to);
                    tail.proven = tail.proven.max(to);
                }
            }
        }
        Ok(())
    }
}

/// The chunks behind the ends of the partitions, as a checkpoint has them, by partition and offset.
///
/// # Errors
/// A directory or a file cannot be read.
pub(super) fn look(
    disk: &dyn Disk,
    dir: &Path,
    state: &LogState,
) -> Result<SegmentTails, LogError> {
    let mut found = SegmentTails::default();
    let entries = disk.list(dir).doing("list", dir)?;
    let topics = entries
        .iter()
        .filter_map(|entry| files::topic_of(&entry.name));
    // Also those that were made after the checkpoint.
    for name in topics {
        let topic = state.known_topic(&name).map(|(_, topic)| topic);
        let place = files::topic_dir(dir, &name);
        let entries = disk.list(&place).if_there().doing("list", &place)?;
        let names = entries.into_iter().flatten().map(|entry| entry.name);
        for unread in unread(topic, names) {
            let number = i32::try_from(unread.partition).unwrap_or(i32::MAX);
            let path = place.join(&unread.name);
            let Some(file) = files::open_if_there(disk, &path)? else {
                continue;
            };
            let at = TopicPartition::new(name.clone(), number);
            found.read(file, &path, at, &unread, state.secret)?;
        }
    }
    for tail in found.0.values_mut() {
        let chunks = tail.chunks.make_contiguous();
        chunks.sort_by_key(|kept| kept.head.base);
    }
    Ok(found)
}

/// A segment that may hold more than a checkpoint says.
struct Unread {
    name: String,
    partition: u32,
    /// The first byte of which the checkpoint does not speak.
    from: u64,
    /// Where the partition ends, as the checkpoint has it.
    end: i64,
}

/// The segments that may hold more than the checkpoint says.
fn unread(topic: Option<&TopicState>, names: impl Iterator<Item = String>) -> Vec<Unread> {
    let mut unread = Vec::new();
    for name in names {
        // A start may have died after it put the segment aside, and before a checkpoint had what it holds.
        let before = segment::name_before_aside(&name);
        let Some((number, base, generation)) = segment::parse_name(before) else {
            continue;
        };
        let partition = topic.and_then(|topic| topic.partitions.get(number as usize));
        let end = partition.map_or(0, |partition| partition.end);
        let mut known = partition.into_iter().flat_map(|p| p.segments.iter());
        let known = known.find(|segment| segment.name(number) == name);
        let from = match known {
            Some(segment) if !segment.is_sealed => segment.len,
            Some(_) => continue,
            // A rewritten segment holds nothing that was not there before.
            None if generation > 0 || base < end => continue,
            None => MAGIC.len() as u64,
        };
        unread.push(Unread {
            name,
            partition: number,
            from,
            end,
        });
    }
    unread
}
