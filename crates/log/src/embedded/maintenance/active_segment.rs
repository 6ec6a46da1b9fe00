//! The segment that the next chunk of a partition goes to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Maintenance;
use crate::embedded::change::PartitionKey;
use crate::embedded::chunk::Chunk;
use crate::embedded::files::{self, Doing};
use crate::embedded::segment::{MAGIC, Segment};
use crate::error::LogError;

/// The next step with the last segment of a partition when there is another chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The chunk goes there.
    Add,
    /// Its file is made, again or for the first time: it holds nothing yet.
    Begin,
    /// It takes nothing any more, and another one is begun.
    SealAndBegin,
}

/// Decides that. `len` is how long its file is; none where there is none.
fn next_step(last: &Segment, len: Option<u64>, chunk: u64, size: u64) -> Step {
    let is_whole = len.is_some_and(|len| len >= last.len);
    match last.is_sealed {
        true => Step::SealAndBegin,
        false if last.is_empty() && is_whole => Step::Add,
        false if last.is_empty() => Step::Begin,
        // Somebody removed it or cut it off. Behind its old end a chunk would stand alone in it, and
        // into a file that is not there nothing can be written: what is lost stays what it is.
        false if !is_whole => Step::SealAndBegin,
        false if last.len + chunk <= size => Step::Add,
        false => Step::SealAndBegin,
    }
}

impl Maintenance {
    /// The segment that the next chunk goes to, begun if need be, and how large it may grow.
    pub(super) fn segment_for(
        &mut self,
        at: PartitionKey,
        first: &Chunk,
    ) -> Result<(PathBuf, Segment, u64), LogError> {
        let (name, config, last) = {
            let state = self.context.state();
            let found = state.topics.get(at.0 as usize).and_then(|topic| {
                let partition = topic.partitions.get(at.1 as usize)?;
                let last = partition.segments.last().map(Segment::without_index);
                Some((topic.name.clone(), topic.config.clone(), last))
            });
            found.ok_or_else(|| LogError::Stopped {
                why: "records for an unknown partition".to_owned(),
            })?
        };
        let dir = self.context.topic_dir(&name);
        let size = segment_size(self.context.config.segment_size, config.retention_bytes);
        if let Some(last) = last {
            let path = dir.join(last.name(at.1));
            let len = self.len(&path)?;
            match next_step(&last, len, first.bytes.len() as u64, size) {
                Step::Add => return Ok((dir, last, size)),
                Step::Begin => {
                    self.begin_segment(&dir, at.1, &last)?;
                    return Ok((dir, last, size));
                }
                Step::SealAndBegin => {
                    if len.is_none_or(|len| len < last.len) {
                        tracing::error!(
                            file = %path.display(),
                            expected = last.len,
                            found = len,
                            "a segment is missing or was cut off; see `tidegate log check`"
                        );
                    }
                    self.seal_last(at, &dir);
                }
            }
        }
        let begun = Segment::new(first.head.base, 0);
        self.begin_segment(&dir, at.1, &begun)?;
        let mut state = self.context.state();
        state.used += begun.len;
        if let Some(partition) = state.partition_mut(at) {
            partition.segments.push(begun.clone());
        }
        Ok((dir, begun, size))
    }

    /// How long the file of a segment is; none where there is none.
    fn len(&self, path: &Path) -> Result<Option<u64>, LogError> {
        let len = match self.open.get(path) {
            Some(file) => Some(file.len()),
            None => files::open_if_there(&*self.context.disk, path)?.map(|file| file.len()),
        };
        len.map(|len| len.doing("measure", path)).transpose()
    }

    /// Has the last segment of a partition take nothing more.
    fn seal_last(&self, at: PartitionKey, dir: &Path) {
        let sealed = {
            let mut state = self.context.state();
            let partition = state.partition_mut(at);
            partition.and_then(|p| p.segments.last_mut()).map(|last| {
                last.is_sealed = true;
                last.clone()
            })
        };
        if let Some(sealed) = sealed {
            self.write_index(dir, at.1, &sealed);
        }
    }

    /// Makes the file of a segment. One of that name is a left-over of an attempt without room.
    fn begin_segment(
        &mut self,
        dir: &Path,
        partition: u32,
        begun: &Segment,
    ) -> Result<(), LogError> {
        let disk = Arc::clone(&self.context.disk);
        disk.create_dir_all(dir).doing("make", dir)?;
        let path = dir.join(begun.name(partition));
        let mut file = files::open_or_make(&*disk, &path)?;
        self.dirs.insert(dir.to_owned());
        file.write_at(0, &MAGIC).doing("write", &path)?;
        self.open.insert(path, file);
        Ok(())
    }
}

/// How large a segment of a topic grows: small enough that whole segments can go when the topic
/// keeps few bytes.
fn segment_size(usual: u64, retention_bytes: Option<u64>) -> u64 {
    const LEAST: u64 = 4_096;
    retention_bytes.map_or(usual, |kept| usual.min((kept / 4).max(LEAST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_goes_to_the_last_segment_if_that_is_all_there_and_has_room() {
        let of = |len: u64, is_sealed: bool| Segment {
            len,
            is_sealed,
            ..Segment::new(0, 0)
        };
        for (last, len, chunk, expect) in [
            (of(100, false), Some(100), 100, Step::Add),
            (of(100, false), Some(150), 100, Step::Add),
            (of(100, false), Some(100), 101, Step::SealAndBegin),
            (of(100, false), Some(99), 1, Step::SealAndBegin),
            (of(100, false), Some(0), 1, Step::SealAndBegin),
            (of(100, false), None, 1, Step::SealAndBegin),
            (of(100, true), Some(100), 1, Step::SealAndBegin),
            // A chunk that is larger than a segment has one of its own.
            (of(8, false), Some(8), 900, Step::Add),
            (of(8, false), Some(7), 1, Step::Begin),
            (of(8, false), None, 1, Step::Begin),
        ] {
            let step = next_step(&last, len, chunk, 200);
            assert_eq!(step, expect, "{last:?} {len:?} {chunk}");
        }
    }
}
