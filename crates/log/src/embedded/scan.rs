//! Reads the chunks of a segment one after the other, around what is damaged.

use std::path::Path;

use bytes::Bytes;
use tidegate_core::env::{Disk, DiskFile};

use super::chunk::{FIXED, Head};
use super::files::{self, Doing};
use super::secret::LogSecret;
use super::segment::{IndexEntry, MAGIC, Segment, SegmentIndex};
use crate::error::LogError;

/// Opens a segment to read it; none where it is not there.
///
/// # Errors
/// A later version wrote it, or it cannot be opened.
pub(super) fn open_segment(
    disk: &dyn Disk,
    path: &Path,
    secret: LogSecret,
) -> Result<Option<Box<dyn DiskFile>>, LogError> {
    let Some(file) = files::open_if_there(disk, path)? else {
        return Ok(None);
    };
    match is_of_later_version(&*file, path, secret)? {
        true => Err(LogError::Format {
            path: path.to_owned(),
            why: "a later version wrote it".to_owned(),
        }),
        false => Ok(Some(file)),
    }
}

/// Whether a segment begins as one does. Where it does not, its chunks still tell what they are.
pub(super) fn has_magic(file: &dyn DiskFile, path: &Path) -> Result<bool, LogError> {
    Ok(magic(file, path)? == Some(MAGIC))
}

/// Whether a segment says that a later version wrote it, and holds nothing that this one reads. A
/// flipped bit may say that as well, but it leaves the chunks as they were; and the manifest of a
/// later version is refused by itself.
fn is_of_later_version(
    file: &dyn DiskFile,
    path: &Path,
    secret: LogSecret,
) -> Result<bool, LogError> {
    let Some(magic) = magic(file, path)? else {
        return Ok(false);
    };
    if !magic.starts_with(&MAGIC[..KIND]) || version(magic) <= version(MAGIC) {
        return Ok(false);
    }
    let (first, len) = (MAGIC.len() as u64, file.len().doing("measure", path)?);
    let mut scan = Scan::new(secret, (first, len), ANY);
    // Mostly the first chunk tells, and the others need not be read.
    Ok(len > first
        && matches!(scan.chunk(file, path, first)?, Read::Nothing)
        && scan.resync(file, path, first)?.is_none())
}

/// What a file begins with; none where it is too short.
fn magic(file: &dyn DiskFile, path: &Path) -> Result<Option<[u8; MAGIC.len()]>, LogError> {
    let mut magic = [0; MAGIC.len()];
    let read = file.read_at(0, &mut magic).doing("read", path)?;
    Ok((read == magic.len()).then_some(magic))
}

fn version(magic: [u8; MAGIC.len()]) -> u32 {
    u32::from_le_bytes([magic[5], magic[6], magic[7], 0])
}

/// The bytes of the magic that tell the kind of the file; the rest is its version.
const KIND: usize = 5;

/// How much is read at a time.
pub(super) const WINDOW: usize = 512 * 1024;

/// A place in a segment, and what was read there already.
#[derive(Debug)]
pub(super) struct Scan {
    /// The bytes of the segment that count.
    len: u64,
    /// Where the next chunk begins.
    at: u64,
    window: Bytes,
    window_at: u64,
    /// How much is read at a time.
    step: usize,
    secret: LogSecret,
    /// The offsets that the next chunks can have: what is not among them is no chunk of this segment, but
    /// lies within a record.
    offsets: (i64, i64),
}

/// Where it is unknown which offsets the chunks can have.
pub(super) const ANY: (i64, i64) = (0, i64::MAX);

/// What lies at a place.
#[derive(Debug)]
pub(super) enum ScanItem {
    /// A whole chunk.
    Chunk { at: u64, head: Head, bytes: Bytes },
    /// Bytes that cannot be read, up to the next chunk that can, or to the end.
    Damage {
        at: u64,
        to: u64,
        /// The offsets that it held, where they are known: else what lies between its neighbours.
        held: Option<(i64, i64)>,
        /// The first offset of the next chunk; none at the end of the segment.
        next: Option<i64>,
    },
}

impl Scan {
    /// Begins at a place where a chunk begins, and ends at another one; the chunks between have some of
    /// these offsets.
    pub(super) fn new(secret: LogSecret, (at, len): (u64, u64), offsets: (i64, i64)) -> Self {
        Self {
            len,
            at,
            window: Bytes::new(),
            window_at: at,
            step: WINDOW,
            secret,
            offsets,
        }
    }

    /// Begins with the first chunk.
    pub(super) fn whole(segment: &Segment, secret: LogSecret) -> Self {
        Self::within(segment, secret, MAGIC.len() as u64)
    }

    /// Begins at a place of a segment where a chunk begins.
    pub(super) fn within(segment: &Segment, secret: LogSecret, at: u64) -> Self {
        Self::new(secret, (at, segment.len), (segment.base, segment.end))
    }

    /// The segment has grown.
    pub(super) fn grow(&mut self, segment: &Segment) {
        self.len = self.len.max(segment.len);
        self.offsets.1 = self.offsets.1.max(segment.end);
    }

    /// The next chunk or damage; none at the end.
    ///
    /// # Errors
    /// The disk fails; bytes that can be read and are wrong are no error.
    pub(super) fn next(
        &mut self,
        file: &dyn DiskFile,
        path: &Path,
    ) -> Result<Option<ScanItem>, LogError> {
        if self.at >= self.len {
            return Ok(None);
        }
        let at = self.at;
        match self.chunk(file, path, at)? {
            Read::Whole(head, bytes) => {
                self.at += bytes.len() as u64;
                self.offsets.0 = self.offsets.0.max(head.end());
                Ok(Some(ScanItem::Chunk { at, head, bytes }))
            }
            Read::Body(head) => {
                self.offsets.0 = self.offsets.0.max(head.end());
                let behind = at + head.len() as u64;
                let next = match behind < self.len {
                    true => self.resync(file, path, behind)?,
                    false => None,
                };
                // What follows the chunk may be damaged as well, and then it is said with it.
                let held = match next {
                    Some((found, base)) if found > behind => Some((head.base, base)),
                    None if behind < self.len => None,
                    Some(_) | None => Some((head.base, head.end())),
                };
                Ok(Some(self.damage(at, held, next)))
            }
            Read::Nothing => {
                let next = self.resync(file, path, at + 1)?;
                Ok(Some(self.damage(at, None, next)))
            }
        }
    }

    fn damage(&mut self, at: u64, held: Option<(i64, i64)>, next: Option<(u64, i64)>) -> ScanItem {
        self.at = next.map_or(self.len, |(position, _)| position);
        ScanItem::Damage {
            at,
            to: self.at,
            held,
            next: next.map(|(_, base)| base),
        }
    }

    fn chunk(&mut self, file: &dyn DiskFile, path: &Path, at: u64) -> Result<Read, LogError> {
        let bytes = self.window(file, path, at, FIXED)?;
        let Some(size) = Head::measure(&bytes, self.secret) else {
            return Ok(Read::Nothing);
        };
        let bytes = self.window(file, path, at, size)?;
        let Some(head) = Head::read(&bytes, self.secret) else {
            return Ok(Read::Nothing);
        };
        if at + head.len() as u64 > self.len {
            return Ok(Read::Nothing);
        }
        let bytes = self.window(file, path, at, head.len())?;
        if bytes.len() < head.len() {
            return Ok(Read::Body(head));
        }
        let bytes = bytes.slice(..head.len());
        Ok(match head.checked_body(&bytes) {
            Some(_) => Read::Whole(head, bytes),
            None => Read::Body(head),
        })
    }

    /// At least `count` bytes from `at` on, fewer only at the end.
    fn window(
        &mut self,
        file: &dyn DiskFile,
        path: &Path,
        at: u64,
        count: usize,
    ) -> Result<Bytes, LogError> {
        let skip = usize::try_from(at.saturating_sub(self.window_at)).unwrap_or(usize::MAX);
        if at >= self.window_at && skip.saturating_add(count) <= self.window.len() {
            return Ok(self.window.slice(skip..));
        }
        let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
        let wanted = count.max(self.step).min(left);
        let mut bytes = vec![0; wanted];
        // What the window has of it already is not read again.
        let mut have = 0;
        if at >= self.window_at && skip < self.window.len() {
            have = (self.window.len() - skip).min(wanted);
            bytes[..have].copy_from_slice(&self.window[skip..skip + have]);
        }
        let read = file
            .read_at(at + have as u64, &mut bytes[have..])
            .doing("read", path)?;
        bytes.truncate(have + read);
        self.window = Bytes::from(bytes);
        self.window_at = at;
        Ok(self.window.clone())
    }

    /// The next place from `at` on where a header can be read that is one of this segment.
    fn resync(
        &self,
        file: &dyn DiskFile,
        path: &Path,
        at: u64,
    ) -> Result<Option<(u64, i64)>, LogError> {
        // Damage is rare: the rest of the segment is read in one piece.
        let left = usize::try_from(self.len.saturating_sub(at)).unwrap_or(0);
        let mut bytes = vec![0; left];
        let read = file.read_at(at, &mut bytes).doing("read", path)?;
        bytes.truncate(read);
        let (first, (from, to)) = (Head::first_byte(self.secret), self.offsets);
        let is_one = |head: &Head| from <= head.base && head.end() <= to;
        let found = (0..bytes.len())
            .filter(|at| bytes[*at] == first)
            .find_map(|at| Some((at, Head::read(&bytes[at..], self.secret).filter(is_one)?)));
        Ok(found.map(|(from, head)| (at + from as u64, head.base)))
    }
}

enum Read {
    Whole(Head, Bytes),
    /// The header can be read, the records cannot.
    Body(Head),
    Nothing,
}

/// The entries of the index of a segment up to `until`, from its chunks.
pub(super) fn rebuild_index(
    file: &dyn DiskFile,
    path: &Path,
    (segment, until): (&Segment, u64),
    secret: LogSecret,
) -> Result<Vec<IndexEntry>, LogError> {
    let (first, offsets) = (MAGIC.len() as u64, (segment.base, segment.end));
    let mut scan = Scan::new(secret, (first, until), offsets);
    let mut index = SegmentIndex::whole();
    let mut max_ms = 0;
    while let Some(seen) = scan.next(file, path)? {
        if let ScanItem::Chunk { at, head, .. } = seen {
            index.add(head.base, at, max_ms);
            max_ms = max_ms.max(head.max_ms);
        }
    }
    Ok(index.entries().to_vec())
}
