//! The snapshot that is being replayed.

use std::path::Path;

use bytes::Bytes;
use tidegate_core::EventId;
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::cursor::ReplayPosition;
use super::scan::LineReader;
use super::{REPLAY, SpillError, Tallies, add_one, at, line};
use crate::api::Payload;

/// How much of the start of a file tells it apart from others.
const IDENTITY_BYTES: usize = 4_096;

/// Lines that were read from the snapshot, in their order.
#[derive(Debug, Default)]
pub(crate) struct ReplayBatch {
    pub(crate) lines: Vec<ReplayLine>,
}

/// One line of the snapshot.
#[derive(Debug)]
pub(crate) struct ReplayLine {
    /// The event; none for a line that cannot be read and was set aside.
    pub(crate) payload: Option<Payload>,
    /// Where the next line starts.
    next: u64,
}

impl ReplayBatch {
    /// The ids of the first so many lines, those that can be read.
    pub(crate) fn ids(&self, count: usize) -> impl Iterator<Item = EventId> {
        self.lines
            .iter()
            .take(count)
            .filter_map(|line| line.payload.as_ref().map(|p| p.id))
    }

    /// Drops the first so many lines: they are replayed.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.lines.drain(..count);
    }
}

pub(super) struct ReplayReader {
    file: Box<dyn DiskFile>,
    pub(super) position: ReplayPosition,
    /// The reader, which is ahead of the position by what is being sent.
    lines: LineReader,
    /// Whether a line that cannot be read has come up, and whether those of the rest of the
    /// snapshot were posted for it.
    pub(super) has_corrupt: bool,
    pub(super) is_corrupt_posted: bool,
}

impl ReplayReader {
    /// Opens the snapshot, at the position that was written down for it, or from its start up to
    /// `end`.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        end: Option<u64>,
        known: &[ReplayPosition],
    ) -> Result<Self, SpillError> {
        let path = dir.join(REPLAY);
        let file = at("open", &path, disk.open(&path, OpenMode::Read))?;
        let len = at("measure", &path, file.len())?;
        let end = end.unwrap_or(len).min(len);
        let mut position = ReplayPosition {
            identity: at("read", &path, identity(&*file, end))?,
            end,
            ..ReplayPosition::default()
        };
        for known in known
            .iter()
            .filter(|known| known.end <= len && known.offset <= known.end)
        {
            let is_it = at("read", &path, identity(&*file, known.end))? == known.identity;
            let is_further = (known.is_done, known.offset) >= (position.is_done, position.offset);
            if is_it && is_further {
                position = *known;
            }
        }
        let lines = LineReader::new(position.offset, position.end);
        Ok(Self {
            file,
            position,
            lines,
            has_corrupt: false,
            is_corrupt_posted: false,
        })
    }

    /// Reads up to so many lines; an empty batch at the end. Lines that cannot be read are given to
    /// `set_aside` before they are passed over.
    ///
    /// A line that `set_aside` refuses ends the batch: the lines before it are given out, and the next
    /// call comes back to it. After an error the next call reads the same lines again.
    pub(super) fn read(
        &mut self,
        max_lines: usize,
        max_bytes: usize,
        set_aside: impl FnMut(&[u8]) -> Result<(), SpillError>,
    ) -> Result<ReplayBatch, SpillError> {
        let start = self.lines.position();
        let read = self.read_on(max_lines, max_bytes, set_aside);
        if read.is_err() {
            self.lines = LineReader::new(start, self.position.end);
        }
        read
    }

    fn read_on(
        &mut self,
        max_lines: usize,
        max_bytes: usize,
        mut set_aside: impl FnMut(&[u8]) -> Result<(), SpillError>,
    ) -> Result<ReplayBatch, SpillError> {
        let mut batch = ReplayBatch::default();
        let mut bytes = 0;
        while batch.lines.len() < max_lines && bytes < max_bytes {
            let next = self.lines.next(&*self.file);
            let Some(raw) = at("read", Path::new(REPLAY), next)? else {
                break;
            };
            let next = raw.next;
            if raw.bytes.trim_ascii().is_empty() {
                // Nobody's line; it is passed over together with the one before or after it.
                if let Some(last) = batch.lines.last_mut() {
                    last.next = next;
                }
                continue;
            }
            let payload = match line::read(raw.bytes, raw.offset) {
                Some(line) => {
                    bytes += line.json.len();
                    Some(Payload {
                        id: line.id,
                        json: Bytes::from(line.json.into_owned()),
                    })
                }
                None => {
                    let offset = raw.offset;
                    match set_aside(raw.bytes) {
                        // Good lines do not wait for room for a bad one.
                        Err(_) if !batch.lines.is_empty() => {
                            self.lines = LineReader::new(offset, self.position.end);
                            break;
                        }
                        kept => kept?,
                    }
                    self.has_corrupt = true;
                    None
                }
            };
            batch.lines.push(ReplayLine { payload, next });
        }
        Ok(batch)
    }

    /// The sums of the lines that are not replayed yet and can be read; those that cannot are what
    /// is left of the books.
    pub(super) fn readable(&self) -> Result<Tallies, SpillError> {
        let mut tallies = Tallies::new();
        let mut lines = LineReader::new(self.position.offset, self.position.end);
        while let Some(raw) = at("read", Path::new(REPLAY), lines.next(&*self.file))? {
            if let Some(line) = line::read(raw.bytes, raw.offset) {
                add_one(&mut tallies, line.id);
            }
        }
        Ok(tallies)
    }

    /// Notes that the first so many lines of `batch` are replayed.
    pub(super) fn mark_replayed(&mut self, batch: &ReplayBatch, count: usize) {
        if let Some(last) = count.checked_sub(1).and_then(|last| batch.lines.get(last)) {
            self.position.offset = last.next;
            self.position.lines += count as u64;
        }
    }
}

/// Tells a snapshot apart from others: a hash of its start and its length.
pub(super) fn identity(file: &dyn DiskFile, end: u64) -> std::io::Result<u64> {
    let mut start = vec![
        0;
        usize::try_from(end)
            .unwrap_or(usize::MAX)
            .min(IDENTITY_BYTES)
    ];
    let read = file.read_at(0, &mut start)?;
    let crc = crc32c::crc32c(&start[..read]);
    Ok(u64::from(crc) << 32 | (end & 0xffff_ffff))
}

/// Whether a position is about this file.
pub(super) fn fits(file: &dyn DiskFile, position: &ReplayPosition) -> bool {
    file.len().is_ok_and(|len| position.end <= len)
        && identity(file, position.end).is_ok_and(|found| found == position.identity)
}
