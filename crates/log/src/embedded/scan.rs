//! Reads the chunks of a segment one after the other, around what is damaged.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::chunk::{Chunk, ChunkOwner, FIXED, Head};
use super::files::{self, Doing};
use super::secret::LogSecret;
use super::segment::{
    IndexEntry, MAGIC, Segment, SegmentIndex, index_file, owner_of, read_index_file,
};
use crate::error::LogError;

/// The bytes of the magic that tell the kind of the file; the rest is its version.
const KIND: usize = 5;
/// How much is read at a time.
pub(super) const WINDOW: usize = 512 * 1024;
/// More than any index file has.
const INDEX_LIMIT: u64 = 256 * 1024 * 1024;
/// Where the first chunk of a segment begins.
const FIRST: u64 = MAGIC.len() as u64;

/// A segment that is read chunk by chunk.
#[derive(Debug)]
pub(super) struct Scan {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// The bytes of the segment that count.
    len: u64,
    /// Where the next chunk begins.
    at: u64,
    window: Bytes,
    window_at: u64,
    secret: LogSecret,
    /// The partition that the name of the file tells: a chunk of another one is none of this segment.
    owner: ChunkOwner,
    /// The offsets that the next chunks can have: what is not among them is no chunk of this segment, but
    /// lies within a record.
    offsets: (i64, i64),
}

/// Something that lies in a segment.
#[derive(Debug)]
pub(super) enum ScanItem {
    /// A whole chunk.
    Chunk { at: u64, chunk: Chunk },
    /// Bytes that cannot be read, up to the next chunk that can, or to the end.
    Damage {
        /// From the first byte to the one behind the last.
        bytes: (u64, u64),
        /// The offsets that it held, where they are known.
        held: Option<(i64, i64)>,
        /// The same, or else those between its neighbors.
        offsets: (i64, i64),
    },
}

impl Scan {
    /// Opens a segment to read it from its first chunk on; none where it is not there.
    ///
    /// # Errors
    /// A later version wrote it, or it cannot be opened.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        segment: &Segment,
        secret: LogSecret,
    ) -> Result<Option<Self>, LogError> {
        let Some(file) = files::open_if_there(disk, path)? else {
            return Ok(None);
        };
        let mut scan = Self::new(file, path, secret, (FIRST, FIRST), (0, i64::MAX));
        if scan.is_of_later_version()? {
            return Err(LogError::Format {
                path: path.to_owned(),
                why: "a later version wrote it".to_owned(),
            });
        }
        Ok(Some(Self::of_segment(scan.file, path, segment, secret)))
    }

    /// Reads a segment from its first chunk on.
    pub(super) fn of_segment(
        file: Box<dyn DiskFile>,
        path: &Path,
        segment: &Segment,
        secret: LogSecret,
    ) -> Self {
        let offsets = (segment.base, segment.end);
        Self::new(file, path, secret, (FIRST, segment.len), offsets)
    }

    /// Begins at a place where a chunk begins, and ends at another one; the chunks between have some of
    /// these offsets.
    pub(super) fn new(
        file: Box<dyn DiskFile>,
        path: &Path,
        secret: LogSecret,
        (at, len): (u64, u64),
        offsets: (i64, i64),
    ) -> Self {
        Self {
            file,
            path: path.to_owned(),
            len,
            at,
            window: Bytes::new(),
            window_at: at,
            secret,
            owner: owner_of(path).unwrap_or_default(),
            offsets,
        }
    }

    /// Goes on at another place of the segment where a chunk begins.
    pub(super) fn seek(&mut self, segment: &Segment, at: u64) {
        self.at = at;
        self.offsets = (segment.base, segment.end);
    }

    /// The segment has grown.
    pub(super) fn grow(&mut self, segment: &Segment) {
        self.len = self.len.max(segment.len);
        self.offsets.1 = self.offsets.1.max(segment.end);
    }

    /// Whether the segment begins as one does. Where it does not, its chunks still tell what they are.
    pub(super) fn has_magic(&self) -> Result<bool, LogError> {
        Ok(self.magic()? == Some(MAGIC))
    }

    /// The bytes at the beginning of the file; none where it is too short.
    fn magic(&self) -> Result<Option<[u8; MAGIC.len()]>, LogError> {
        let mut magic = [0; MAGIC.len()];
        let read = self.file.read_at(0, &mut magic).doing("read", &self.path)?;
        Ok((read == magic.len()).then_some(magic))
    }

    /// Whether a segment says that a later version wrote it, and holds nothing that this one reads. A
    /// flipped bit may say that as well, but it leaves the chunks as they were; and the manifest of a
    /// later version is refused by itself.
    fn is_of_later_version(&mut self) -> Result<bool, LogError> {
        let version = |magic: [u8; MAGIC.len()]| [magic[7], magic[6], magic[5]];
        let Some(magic) = self.magic()? else {
            return Ok(false);
        };
        if !magic.starts_with(&MAGIC[..KIND]) || version(magic) <= version(MAGIC) {
            return Ok(false);
        }
        self.len = self.file.len().doing("measure", &self.path)?;
        // Mostly the first chunk tells, and the others need not be read.
        Ok(self.len > FIRST
            && matches!(self.chunk(FIRST)?, ChunkRead::Nothing)
            && self.resync(FIRST)?.is_none())
    }

    fn next_item(&mut self) -> Result<ScanItem, LogError> {
        let (at, expected) = (self.at, self.offsets.0);
        let (held, next) = match self.chunk(at)? {
            ChunkRead::Whole(chunk) => {
                self.at += chunk.bytes.len() as u64;
                self.offsets.0 = self.offsets.0.max(chunk.head.end());
                return Ok(ScanItem::Chunk { at, chunk });
            }
            ChunkRead::Body(head) => {
                self.offsets.0 = self.offsets.0.max(head.end());
                let behind = at + head.len() as u64;
                let next = match behind < self.len {
                    true => self.resync(behind)?,
                    false => None,
                };
                // The bytes behind the chunk may be damaged as well, and then they are said with it.
                let held = match next {
                    Some((found, base)) if found > behind => Some((head.base, base)),
                    None if behind < self.len => None,
                    Some(_) | None => Some((head.base, head.end())),
                };
                (held, next)
            }
            ChunkRead::Nothing => (None, self.resync(at + 1)?),
        };
        self.at = next.map_or(self.len, |(position, _)| position);
        let between = (expected, next.map_or(self.offsets.1, |(_, base)| base));
        let offsets = held.unwrap_or(between);
        self.offsets.0 = self.offsets.0.max(offsets.1);
        let bytes = (at, self.at);
        Ok(ScanItem::Damage {
            bytes,
            held,
            offsets,
        })
    }

    fn is_own(&self, head: &Head) -> bool {
        head.owner.agrees(self.owner)
    }

    fn chunk(&mut self, at: u64) -> Result<ChunkRead, LogError> {
        let bytes = self.window(at, FIXED)?;
        let Some(size) = Head::measure(&bytes, self.secret) else {
            return Ok(ChunkRead::Nothing);
        };
        let bytes = self.window(at, size)?;
        let Some(head) = Head::read(&bytes, self.secret) else {
            return Ok(ChunkRead::Nothing);
        };
        if at + head.len() as u64 > self.len || !self.is_own(&head) {
            return Ok(ChunkRead::Nothing);
        }
        let bytes = self.window(at, head.len())?;
        if bytes.len() < head.len() {
            return Ok(ChunkRead::Body(head));
        }
        let bytes = bytes.slice(..head.len());
        Ok(match head.checked_body(&bytes) {
            Some(_) => ChunkRead::Whole(Chunk { head, bytes }),
            None => ChunkRead::Body(head),
        })
    }

    /// At least `count` bytes from `at` on, fewer only at the end.
    fn window(&mut self, at: u64, count: usize) -> Result<Bytes, LogError> {
        let skip = usize::try_from(at.saturating_sub(self.window_at)).unwrap_or(usize::MAX);
        if at >= self.window_at && skip.saturating_add(count) <= self.window.len() {
            return Ok(self.window.slice(skip..));
        }
        let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
        let wanted = count.max(WINDOW).min(left);
        let mut bytes = vec![0; wanted];
        // Bytes that the window has already are not read again.
        let mut have = 0;
        if at >= self.window_at && skip < self.window.len() {
            have = (self.window.len() - skip).min(wanted);
            bytes[..have].copy_from_slice(&self.window[skip..skip + have]);
        }
        let read = self.file.read_at(at + have as u64, &mut bytes[have..]);
        bytes.truncate(have + read.doing("read", &self.path)?);
        self.window = Bytes::from(bytes);
        self.window_at = at;
        Ok(self.window.clone())
    }

    /// The next place from `at` on where a header can be read that is one of this segment.
    fn resync(&self, at: u64) -> Result<Option<(u64, i64)>, LogError> {
        // Damage is rare: the rest of the segment is read in one piece.
        let left = usize::try_from(self.len.saturating_sub(at)).unwrap_or(0);
        let mut bytes = vec![0; left];
        let read = self
            .file
            .read_at(at, &mut bytes)
            .doing("read", &self.path)?;
        bytes.truncate(read);
        let (first, (from, to)) = (Head::first_byte(self.secret), self.offsets);
        let is_one = |head: &Head| from <= head.base && head.end() <= to && self.is_own(head);
        let found = (0..bytes.len())
            .filter(|at| bytes[*at] == first)
            .find_map(|at| Some((at, Head::read(&bytes[at..], self.secret).filter(is_one)?)));
        Ok(found.map(|(from, head)| (at + from as u64, head.base)))
    }

    /// The entries of the index of a segment up to `until`, from its chunks. It is read to there.
    pub(super) fn index(&mut self, until: u64) -> Result<Vec<IndexEntry>, LogError> {
        let whole = std::mem::replace(&mut self.len, until);
        let mut index = SegmentIndex::whole();
        let mut max_ms = 0;
        for seen in &mut *self {
            if let ScanItem::Chunk { at, chunk } = seen? {
                index.add(chunk.head.base, at, max_ms);
                max_ms = max_ms.max(chunk.head.max_ms);
            }
        }
        self.len = whole;
        Ok(index.entries().to_vec())
    }
}

/// The chunks and the damage between them. An error means that the disk fails; bytes that can be read and
/// are wrong are no error.
impl Iterator for Scan {
    type Item = Result<ScanItem, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.len).then(|| self.next_item())
    }
}

enum ChunkRead {
    Whole(Chunk),
    /// The header can be read, the records cannot.
    Body(Head),
    Nothing,
}

/// The index of a segment, from its file; none where that is missing or damaged.
pub(super) fn read_index(
    disk: &dyn Disk,
    path: &Path,
    segment: &Segment,
) -> Option<Vec<IndexEntry>> {
    let bytes = disk.read(&path.with_extension("idx"), INDEX_LIMIT).ok()?;
    let entries = read_index_file(&bytes, segment.len)?;
    let is_within = |entry: &IndexEntry| (FIRST..segment.len).contains(&entry.position);
    entries.iter().all(is_within).then_some(entries)
}

/// The file of an index, of a segment that may have been found on disk.
pub(super) fn index_content(
    disk: &dyn Disk,
    path: &Path,
    segment: &Segment,
    secret: LogSecret,
) -> Result<Vec<u8>, LogError> {
    let mut indexed = segment.clone();
    if !indexed.index.is_whole() {
        let file = disk.open(path, OpenMode::Read).doing("open", path)?;
        let mut scan = Scan::of_segment(file, path, segment, secret);
        indexed.index.complete(scan.index(segment.len)?);
    }
    Ok(index_file(&indexed))
}
