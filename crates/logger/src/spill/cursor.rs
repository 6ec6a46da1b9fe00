//! How far replay has come: two slots of 64 bytes, written in turn.
//!
//! A slot begins with five numbers of eight bytes each, little endian: generation, identity of the
//! replay file, its end, offset, lines replayed. Then come whether it is done (one byte), zeros, and in
//! the last four bytes the CRC32C of all that.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::{SpillError, at, open_slots};

const SLOT: usize = 64;

/// How far a replay file has been replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct ReplayPosition {
    /// Which file it is about.
    pub(super) identity: u64,
    /// Where its last line ends that counts.
    pub(super) end: u64,
    /// Every line before this offset is replayed.
    pub(super) offset: u64,
    /// How many lines that is.
    pub(super) lines: u64,
    /// Whether the file may be removed.
    pub(super) is_done: bool,
}

/// The cursor file.
#[derive(Debug)]
pub(super) struct Cursor {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    generation: u64,
}

impl Cursor {
    /// Opens or makes the file, with room for both slots, and gives the newest position that can be
    /// read. A file of a process that stopped in good order is trusted as it is.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        is_trusted: bool,
    ) -> Result<(Self, Option<ReplayPosition>), SpillError> {
        let path = dir.join(super::CURSOR);
        let file = open_slots(disk, &path, 2 * SLOT as u64, is_trusted)?;
        let newest = newest(file.as_ref());
        let cursor = Self {
            path,
            file,
            generation: newest.map_or(0, |(generation, _)| generation),
        };
        Ok((cursor, newest.map(|(_, position)| position)))
    }

    /// The newest position in a directory that somebody else may hold open.
    pub(super) fn peek(disk: &dyn Disk, dir: &Path) -> Option<ReplayPosition> {
        let file = disk.open(&dir.join(super::CURSOR), OpenMode::Read).ok()?;
        newest(file.as_ref()).map(|(_, position)| position)
    }

    /// Writes a position down and returns once it would survive a power cut.
    pub(super) fn write(&mut self, position: ReplayPosition) -> Result<(), SpillError> {
        let generation = self.generation + 1;
        let bytes = encode(generation, position);
        let offset = (generation % 2) * SLOT as u64;
        at("write", &self.path, self.file.write_at(offset, &bytes))?;
        at("sync", &self.path, self.file.sync())?;
        self.generation = generation;
        Ok(())
    }
}

fn newest(file: &dyn DiskFile) -> Option<(u64, ReplayPosition)> {
    let slot = |index: u64| {
        let mut bytes = [0; SLOT];
        let read = file.read_at(index * SLOT as u64, &mut bytes).ok()?;
        (read == SLOT).then(|| decode(&bytes)).flatten()
    };
    slot(0)
        .into_iter()
        .chain(slot(1))
        .max_by_key(|(generation, _)| *generation)
}

fn encode(generation: u64, position: ReplayPosition) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    let numbers = [
        generation,
        position.identity,
        position.end,
        position.offset,
        position.lines,
    ];
    for (index, number) in numbers.into_iter().enumerate() {
        bytes[index * 8..][..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes[40] = u8::from(position.is_done);
    let crc = crc32c::crc32c(&bytes[..SLOT - 4]);
    bytes[SLOT - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT]) -> Option<(u64, ReplayPosition)> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let number = |index: usize| {
        body[index * 8..]
            .first_chunk::<8>()
            .map(|chunk| u64::from_le_bytes(*chunk))
            .unwrap_or(0)
    };
    let position = ReplayPosition {
        identity: number(1),
        end: number(2),
        offset: number(3),
        lines: number(4),
        is_done: body[40] == 1,
    };
    Some((number(0), position))
}

#[cfg(test)]
mod tests {
    use tidegate_sim::SimDisk;

    use super::*;

    #[test]
    fn the_newest_of_both_slots_is_found() {
        let (disk, dir) = (SimDisk::new(1), Path::new("/spill"));
        disk.create_dir_all(dir).unwrap();
        let (mut cursor, found) = Cursor::open(&disk, dir, false).unwrap();
        assert_eq!(found, None);
        for lines in 1..5 {
            let position = ReplayPosition {
                end: 1_000,
                offset: lines * 100,
                lines,
                ..ReplayPosition::default()
            };
            cursor.write(position).unwrap();
            assert_eq!(Cursor::peek(&disk, dir), Some(position));
            let (_, reopened) = Cursor::open(&disk, dir, true).unwrap();
            assert_eq!(reopened, Some(position));
        }
    }
}
