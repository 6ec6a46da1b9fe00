//! What segments hold behind the last checkpoint.
//!
//! The keeper writes to segments what is durable in the journal, and to the same places after a crash.
//! So a chunk there proves that its group was acknowledged, whatever became of the journal.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tidegate_core::env::Disk;

use crate::embedded::chunk::Head;
use crate::embedded::files::{self, Doing};
use crate::embedded::scan::{Scan, Seen};
use crate::embedded::segment::{self, MAGIC};
use crate::embedded::state::{State, TopicState};
use crate::error::LogError;
use crate::record::TopicPartition;

/// A chunk that lies in a segment behind the last checkpoint.
#[derive(Debug)]
pub(super) struct Beyond {
    pub(super) at: TopicPartition,
    pub(super) head: Head,
    path: PathBuf,
    position: u64,
}

impl Beyond {
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

/// The chunks behind the ends of the partitions, as a checkpoint has them, by partition and offset.
///
/// # Errors
/// A directory or a file cannot be read.
pub(super) fn look(disk: &dyn Disk, dir: &Path, state: &State) -> Result<Vec<Beyond>, LogError> {
    let mut found = Vec::new();
    let entries = disk.list(dir).doing("list", dir)?;
    let topics = entries
        .iter()
        .filter_map(|entry| files::topic_of(&entry.name));
    // Also those that were made after the checkpoint.
    for name in topics {
        let topic = state.topic(&name).map(|(_, topic)| topic);
        let place = files::topic_dir(dir, &name);
        let entries = match disk.list(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            listed => listed.doing("list", &place)?,
        };
        let names = entries.into_iter().map(|entry| entry.name);
        for ((number, _), unread) in unread(topic, names) {
            let number = i32::try_from(number).unwrap_or(i32::MAX);
            let path = place.join(unread.name);
            let Some(file) = files::open_if_there(disk, &path)? else {
                continue;
            };
            let len = file.len().doing("measure", &path)?;
            let mut scan = Scan::new(unread.from, len);
            // What cannot be read was on its way when the process ended.
            while let Some(Seen::Chunk { at, head, .. }) = scan.next(&*file, &path)? {
                if head.base >= unread.end {
                    found.push(Beyond {
                        at: TopicPartition::new(name.clone(), number),
                        head,
                        path: path.clone(),
                        position: at,
                    });
                }
            }
        }
    }
    Ok(found)
}

/// A segment that may hold more than a checkpoint says.
struct Unread {
    name: String,
    /// The first byte of which the checkpoint does not speak.
    from: u64,
    /// Where the partition ends, as the checkpoint has it.
    end: i64,
}

/// The segments that may hold more than the checkpoint says, by partition and first offset.
fn unread(
    topic: Option<&TopicState>,
    names: impl Iterator<Item = String>,
) -> BTreeMap<(u32, i64), Unread> {
    let mut unread = BTreeMap::new();
    for name in names {
        let Some((number, base, generation)) = segment::parse_name(&name) else {
            continue;
        };
        let partition = topic.and_then(|topic| topic.partitions.get(number as usize));
        let end = partition.map_or(0, |partition| partition.end);
        let mut known = partition.into_iter().flat_map(|p| p.segments.iter());
        let known = known.find(|segment| segment.name(number) == name);
        let from = match known {
            Some(segment) if !segment.is_sealed => segment.len,
            Some(_) => continue,
            // What was rewritten holds nothing that was not there before.
            None if generation > 0 || base < end => continue,
            None => MAGIC.len() as u64,
        };
        unread.insert((number, base), Unread { name, from, end });
    }
    unread
}
