//! A task of a checkpoint: its changelog, copied frame by frame.

use bytes::{Buf, Bytes, BytesMut};
use tidegate_core::Failure;

use super::{CheckpointFile, CheckpointMode, CheckpointPart, CheckpointStore, CheckpointTask};
use crate::base::piece;
use crate::changelog::{DeltaFrame, EpochMark, Frame, FrameError, FrameHead};
use crate::changelog_reader::{ChangelogReader, ReadFrame, refused};
use crate::recovery::RecoveryError;
use crate::state::LayeredState;
use crate::state::backend::EntryKey;

/// Bytes that are written at once.
const WRITE_AT_ONCE: usize = 1024 * 1024;

/// A task that is copied.
#[derive(Debug, Clone)]
pub(crate) struct CopiedTask {
    pub(crate) partition: i32,
    /// The text beside its committed offsets.
    pub(crate) mark: EpochMark,
}

/// A frame of a file, cut off its beginning; none while it is not there whole.
pub(super) fn split_frame(bytes: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    if bytes.len() - 4 < length {
        return None;
    }
    bytes.advance(4);
    Some(bytes.split_to(length).freeze())
}

/// The changes that are copied: those of the epochs between two, in their order.
struct EpochRange {
    /// The last epoch that is there already; none where the first one that comes is taken.
    before: Option<u64>,
    /// The last epoch that is wanted.
    last: u64,
    /// The next frame of an epoch of which not all frames have come.
    open: Option<(u64, u16)>,
}

/// The use of a frame.
#[derive(Debug, PartialEq, Eq)]
enum FrameUse {
    /// It is not wanted.
    Skip,
    /// It is copied.
    Copy,
    /// It is copied, and is the last one.
    CopyLast,
    /// One before it is missing.
    Gap,
}

impl EpochRange {
    fn take(&mut self, epoch: u64, part: u16, is_last: bool) -> FrameUse {
        if self.before.is_some_and(|before| epoch <= before) {
            return FrameUse::Skip;
        }
        let is_next = match self.open {
            Some(expected) => expected == (epoch, part),
            None => part == 0 && self.before.is_none_or(|before| epoch == before + 1),
        };
        if !is_next || epoch > self.last {
            return FrameUse::Gap;
        }
        self.open = (!is_last).then_some((epoch, part + 1));
        if is_last {
            self.before = Some(epoch);
        }
        match is_last && epoch == self.last {
            true => FrameUse::CopyLast,
            false => FrameUse::Copy,
        }
    }
}

impl CheckpointStore {
    /// Copies a task for a checkpoint of this number. `before` is the same task in the one before it, and `unique` makes
    /// the names of files those of this program.
    ///
    /// # Errors
    /// The changelog cannot be read, or the storage does not answer.
    pub(crate) async fn copy(
        &self,
        (number, unique): (u64, &str),
        task: &CopiedTask,
        before: Option<&CheckpointTask>,
        reader: &ChangelogReader,
    ) -> Result<CheckpointTask, Failure> {
        let partition = task.partition;
        let mark = task.mark.to_string();
        let of_files = |files: Vec<CheckpointPart>| {
            let next = files.last().map_or(0, |file| file.next);
            let (epoch, mark) = (task.mark.epoch, mark.clone());
            CheckpointTask {
                partition,
                epoch,
                mark,
                next,
                files,
            }
        };
        let is_enough = |before: &&CheckpointTask| {
            let is_incremental = self.options.mode == CheckpointMode::Incremental;
            before.mark == mark && (is_incremental || before.files.len() == 1)
        };
        if let Some(same) = before.filter(is_enough) {
            // Nothing has happened since.
            return Ok(of_files(same.files.clone()));
        }
        let name = |kind: &str| format!("{number:010}.{partition}.{unique}.{kind}");
        if self.options.mode == CheckpointMode::Incremental
            && let Some([full, rest @ ..]) = before.map(|before| before.files.as_slice())
        {
            let since: u64 = rest.iter().map(|file| file.bytes).sum();
            if since < full.bytes / 2 {
                let begun = Some((full.next, full.epoch));
                match self
                    .copy_frames(&name("changes"), task, begun, reader)
                    .await
                {
                    Ok(part) => return Ok(of_files(vec![full.clone(), part])),
                    // The changelog does not reach back to it, or was begun anew.
                    Err(failure) if is_gap(&failure) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        let name = name("whole");
        let part = match self.options.shared {
            // The changelog does not hold the whole state.
            true => self.write_whole(&name, task, reader).await?,
            false => self.copy_frames(&name, task, None, reader).await?,
        };
        Ok(of_files(vec![part]))
    }

    /// Writes a file: the whole state at the wanted epoch, in pieces.
    async fn write_whole(
        &self,
        name: &str,
        task: &CopiedTask,
        reader: &ChangelogReader,
    ) -> Result<CheckpointPart, Failure> {
        let (recovered, inputs, next) = reader.state_at(task.partition, task.mark).await?;
        let state = LayeredState::new(recovered.backend);
        let delta = Frame::Delta(DeltaFrame {
            epoch: task.mark.epoch,
            part: 0,
            is_last: true,
            clock_ms: recovered.clock_ms,
            partitions: reader.partitions,
            inputs,
            changes: Vec::new(),
        });
        let mut file = self.begin_file(name).await?;
        let mut cursor = Some(EntryKey::first());
        while let Some(from) = cursor {
            let (piece, to) = piece(&state, task.mark.epoch, from);
            file.add(&piece).await?;
            cursor = to;
        }
        file.add(&delta.encode()).await?;
        file.finish(task.mark.epoch, next).await
    }

    async fn begin_file(&self, name: &str) -> Result<PartFile<'_>, Failure> {
        let file = self.storage.create(name).await;
        Ok(PartFile {
            store: self,
            name: name.to_owned(),
            file: file.map_err(|error| self.unusable(&error))?,
            hash: blake3::Hasher::new(),
            buffer: BytesMut::new(),
            bytes: 0,
        })
    }

    /// Writes a file: the frames up to the wanted epoch, from the base of the changelog, or from an offset behind an
    /// epoch.
    async fn copy_frames(
        &self,
        name: &str,
        task: &CopiedTask,
        since: Option<(i64, u64)>,
        reader: &ChangelogReader,
    ) -> Result<CheckpointPart, Failure> {
        let partition = task.partition;
        let (start, end) = reader.extent(partition).await?;
        let from = since.map_or(task.mark.base, |(offset, _)| offset);
        if from < start {
            let base = from;
            return Err(refused(RecoveryError::BaseMissing {
                partition,
                start,
                base,
            }));
        }
        let mut range = EpochRange {
            before: since.map(|(_, epoch)| epoch),
            last: task.mark.epoch,
            open: None,
        };
        // Pieces behind the last one of a base are those of the next base.
        let mut has_base = since.is_some();
        let mut frames = reader.frames(partition, from, end);
        let mut file = self.begin_file(name).await?;
        let next = loop {
            let Some(read) = frames.next().await? else {
                return Err(refused(RecoveryError::OtherEpoch {
                    partition,
                    found: range.before.unwrap_or(0),
                    committed: task.mark.epoch,
                }));
            };
            let damaged = |offset, error| {
                refused(RecoveryError::Frame {
                    partition,
                    offset,
                    error,
                })
            };
            let (offset, frame) = match read {
                ReadFrame::Frame(offset, frame) => (offset, frame),
                ReadFrame::Damaged(offset) => return Err(damaged(offset, FrameError::Damaged)),
            };
            let head = FrameHead::of(&frame).map_err(|error| damaged(offset, error))?;
            let used = match head {
                FrameHead::Piece { .. } if has_base => FrameUse::Skip,
                FrameHead::Piece { is_last } => {
                    has_base = is_last;
                    FrameUse::Copy
                }
                FrameHead::Delta {
                    epoch,
                    part,
                    is_last,
                } => range.take(epoch, part, is_last),
            };
            match used {
                FrameUse::Skip => continue,
                FrameUse::Copy | FrameUse::CopyLast => {}
                FrameUse::Gap => {
                    return Err(refused(RecoveryError::Gap {
                        partition,
                        before: range.before.unwrap_or(0),
                        after: task.mark.epoch,
                        offset,
                    }));
                }
            }
            file.add(&frame).await?;
            if used == FrameUse::CopyLast {
                break offset + 1;
            }
        };
        file.finish(task.mark.epoch, next).await
    }
}

/// A file of a task that is being written.
struct PartFile<'s> {
    store: &'s CheckpointStore,
    name: String,
    file: Box<dyn CheckpointFile>,
    hash: blake3::Hasher,
    buffer: BytesMut,
    bytes: u64,
}

impl PartFile<'_> {
    /// Adds a frame.
    async fn add(&mut self, frame: &[u8]) -> Result<(), Failure> {
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(frame);
        match self.buffer.len() >= WRITE_AT_ONCE {
            true => self.write().await,
            false => Ok(()),
        }
    }

    async fn write(&mut self) -> Result<(), Failure> {
        self.hash.update(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        let written = self.file.append(self.buffer.split().freeze()).await;
        written.map_err(|error| self.store.unusable(&error))
    }

    async fn finish(mut self, epoch: u64, next: i64) -> Result<CheckpointPart, Failure> {
        self.write().await?;
        let finished = self.file.finish().await;
        finished.map_err(|error| self.store.unusable(&error))?;
        Ok(CheckpointPart {
            name: self.name,
            bytes: self.bytes,
            epoch,
            next,
            blake3: self.hash.finalize().to_hex().to_string(),
        })
    }
}

/// Whether a changelog begins too late, or has a gap.
pub(crate) fn is_gap(failure: &Failure) -> bool {
    matches!(
        failure.code.as_str(),
        "stage.changelog.gap" | "stage.changelog.differs" | "log.out-of-range"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changes_between_two_epochs_are_copied_in_their_order() {
        let range = |before| EpochRange {
            before,
            last: 5,
            open: None,
        };
        let mut since = range(Some(3));
        assert_eq!(since.take(3, 0, true), FrameUse::Skip);
        assert_eq!(since.take(4, 0, false), FrameUse::Copy);
        assert_eq!(since.take(4, 1, true), FrameUse::Copy);
        assert_eq!(since.take(5, 0, true), FrameUse::CopyLast);
        // One is missing, or half of one.
        assert_eq!(range(Some(3)).take(5, 0, true), FrameUse::Gap);
        assert_eq!(range(None).take(4, 1, true), FrameUse::Gap);
        let mut open = range(None);
        assert_eq!(open.take(4, 0, false), FrameUse::Copy);
        assert_eq!(open.take(5, 0, true), FrameUse::Gap);
        // Later ones are not of this checkpoint.
        assert_eq!(range(Some(5)).take(6, 0, true), FrameUse::Gap);
    }

    #[test]
    fn a_frame_is_cut_off_once_it_is_there_whole() {
        let mut bytes = BytesMut::new();
        for part in [&3_u32.to_le_bytes()[..], b"ab"] {
            bytes.extend_from_slice(part);
            assert_eq!(split_frame(&mut bytes), None);
        }
        bytes.extend_from_slice(b"cd");
        assert_eq!(split_frame(&mut bytes), Some(Bytes::from_static(b"abc")));
        assert_eq!(&bytes[..], b"d");
    }
}
