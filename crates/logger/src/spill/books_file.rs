//! The books of a spill directory: two slots with a checksum, written in turn.
//!
//! The file is two slots of equal size. A slot: the length of its text (four bytes, little endian),
//! the CRC32C of the text (four bytes), the text (JSON). A text is written to slot `generation % 2`,
//! so never over the one before it. One that outgrows its slot makes the file anew with larger ones,
//! put in place by a rename.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_core::books::{Books, Row};
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::cursor::ReplayPosition;
use super::{SpillError, at, create_filled, open_slots};
use crate::logger_id::LoggerId;

const HEAD: usize = 8;
const FIRST_SLOT: u64 = 32 * 1024;
/// No books of ours are larger; what is, is not ours.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The content of the books file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct BooksSnapshot {
    pub(super) generation: u64,
    /// The last `_seq` that was given out when this was written.
    pub(super) seq: u64,
    /// The sum of all ids up to that `_seq`.
    #[serde(with = "hex")]
    pub(super) sum: u128,
    /// The position in the replay file with which the books agree.
    pub(super) replay: Option<ReplayPosition>,
    /// Sealed files with the length that was synced.
    pub(super) sealed: Vec<(u32, u64)>,
    /// How much of the active file the books cover.
    pub(super) active_len: u64,
    /// Whether this was the last word of a process that stopped in good order.
    #[serde(default)]
    pub(super) is_clean: bool,
    /// Torn tails in the corrupt files. Nobody was promised them, so they are in no books.
    #[serde(default)]
    pub(super) torn: u64,
    /// The id of the directory; books of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<LoggerId>,
    pub(super) books: Vec<Row>,
}

impl BooksSnapshot {
    /// The books that were written; empty where they cannot be read.
    pub(super) fn books(&self) -> Books {
        Books::from_rows(&self.books).unwrap_or_default()
    }

    /// How much of a sealed file was synced, if that is known.
    pub(super) fn sealed_len(&self, number: u32) -> Option<u64> {
        let known = self.sealed.iter().find(|(known, _)| *known == number);
        known.map(|(_, len)| *len)
    }
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(sum: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{sum:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// The books file.
#[derive(Debug)]
pub(super) struct BooksFile {
    dir: PathBuf,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    slot: u64,
    generation: u64,
}

impl BooksFile {
    /// Opens or makes the file, and gives the newest slot that can be read.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
    ) -> Result<(Self, Option<BooksSnapshot>), SpillError> {
        let path = dir.join(super::BOOKS);
        let file = open_slots(disk, &path, 2 * FIRST_SLOT, false)?;
        let newest = newest(file.as_ref());
        let slot = at("read", &path, file.len())? / 2;
        let generation = newest.as_ref().map_or(0, |written| written.generation);
        let books = Self {
            dir: dir.to_owned(),
            path,
            file,
            slot,
            generation,
        };
        Ok((books, newest))
    }

    /// The newest slot in a directory that somebody else may hold open.
    pub(super) fn peek(disk: &dyn Disk, dir: &Path) -> Option<BooksSnapshot> {
        newest(
            disk.open(&dir.join(super::BOOKS), OpenMode::Read)
                .ok()?
                .as_ref(),
        )
    }

    /// Whether one of the slots holds something that is no books, in a directory that somebody else may hold
    /// open.
    pub(super) fn has_damaged_slot(disk: &dyn Disk, dir: &Path) -> bool {
        let opened = disk.open(&dir.join(super::BOOKS), OpenMode::Read);
        let Ok(file) = opened else {
            return false;
        };
        // A file that was cut has another size than those that are made.
        let is_ours = |half: &u64| *half >= FIRST_SLOT && half.is_power_of_two();
        let Some(half) = half(file.as_ref()).filter(is_ours) else {
            return true;
        };
        let is_damaged = |offset: u64| {
            let mut head = [0; HEAD];
            let read = file.read_at(offset, &mut head);
            // A slot that was not written yet is zeros.
            read.is_ok_and(|read| read < HEAD || head != [0; HEAD])
                && slot(file.as_ref(), offset, half).is_none()
        };
        is_damaged(0) || is_damaged(half)
    }

    /// Writes the books down and returns once they would survive a power cut.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        mut written: BooksSnapshot,
        books: &Books,
    ) -> Result<(), SpillError> {
        written.generation = self.generation + 1;
        written.books = books.rows();
        // Plain numbers and texts: there is nothing in it that could fail to be written.
        let text = serde_json::to_vec(&written).unwrap_or_default();
        let bytes = frame(&text);
        if bytes.len() as u64 > self.slot {
            self.grow(disk, written.generation, &bytes)?;
        } else {
            let offset = (written.generation % 2) * self.slot;
            at("write", &self.path, self.file.write_at(offset, &bytes))?;
            at("sync", &self.path, self.file.sync())?;
        }
        self.generation = written.generation;
        Ok(())
    }

    fn grow(&mut self, disk: &dyn Disk, generation: u64, bytes: &[u8]) -> Result<(), SpillError> {
        let slot = (bytes.len() as u64).next_power_of_two() * 2;
        if 2 * slot > MAX_FILE {
            // Nobody would read it back.
            let why = std::io::Error::from(std::io::ErrorKind::FileTooLarge);
            return at("write", &self.path, Err(why));
        }
        let temporary = self.dir.join("eventlog-spillover.books.new");
        // A crash may have left an earlier try.
        disk.remove(&temporary).ok();
        let mut file = create_filled(disk, &temporary, 2 * slot)?;
        let offset = (generation % 2) * slot;
        at("write", &temporary, file.write_at(offset, bytes))?;
        at("sync", &temporary, file.sync())?;
        at("replace", &self.path, disk.replace(&temporary, &self.path))?;
        self.file = file;
        self.slot = slot;
        Ok(())
    }
}

fn frame(text: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len())
        .unwrap_or(0)
        .to_le_bytes()
        .to_vec();
    bytes.extend(crc32c::crc32c(text).to_le_bytes());
    bytes.extend_from_slice(text);
    bytes
}

/// The length of a slot; none for a file that is none of ours.
fn half(file: &dyn DiskFile) -> Option<u64> {
    let len = file.len().ok().filter(|len| *len <= MAX_FILE)?;
    Some(len / 2)
}

/// The books in the slot at this place, if they can be read.
fn slot(file: &dyn DiskFile, offset: u64, half: u64) -> Option<BooksSnapshot> {
    let mut head = [0; HEAD];
    (file.read_at(offset, &mut head).ok()? == HEAD).then_some(())?;
    let (length, crc) = head.split_at(4);
    let length = u32::from_le_bytes(*length.first_chunk()?);
    let crc = u32::from_le_bytes(*crc.first_chunk()?);
    if u64::from(length) + HEAD as u64 > half {
        return None;
    }
    let mut text = vec![0; usize::try_from(length).ok()?];
    (file.read_at(offset + HEAD as u64, &mut text).ok()? == text.len()).then_some(())?;
    (crc32c::crc32c(&text) == crc).then_some(())?;
    serde_json::from_slice(&text).ok()
}

fn newest(file: &dyn DiskFile) -> Option<BooksSnapshot> {
    let half = half(file)?;
    slot(file, 0, half)
        .into_iter()
        .chain(slot(file, half, half))
        .max_by_key(|written| written.generation)
}

#[cfg(test)]
mod tests {
    use tidegate_core::books::{Bucket, Place, Tally};
    use tidegate_sim::{SimDisk, crash_points, crash_points_of_two_lives, scaled, seeds};

    use super::*;

    fn dir() -> &'static Path {
        Path::new("/spill")
    }

    /// Books whose text takes about eighty bytes per minute.
    fn books(minutes: u64) -> Books {
        let mut books = Books::default();
        for minute in 0..minutes {
            let (count, id_sum) = (1, u128::MAX - u128::from(minute));
            let tally = Tally { count, id_sum };
            books.move_tally(Bucket::Minute(minute), None, Some(Place::Delivered), tally);
        }
        books
    }

    /// The minutes of the books that are found.
    fn found(disk: &SimDisk) -> u64 {
        let found = BooksFile::peek(disk, dir()).map(|found| found.books());
        found.map_or(0, |books| u64::try_from(books.account().accepted).unwrap())
    }

    #[test]
    fn the_newest_books_are_found_at_any_operation_also_while_they_grow() {
        // The minutes that were written last, and those that are being written.
        type Obligations = (u64, u64);
        let scenario = |disk: &SimDisk, (written, writing): &mut Obligations| {
            disk.create_dir_all(dir()).unwrap();
            let (mut file, _) = BooksFile::open(disk, dir()).unwrap();
            for minutes in [1, 2, 300, 301, 302, 1_000, 1_001, 1_002] {
                *writing = minutes;
                file.write(disk, BooksSnapshot::default(), &books(minutes))
                    .unwrap();
                *written = minutes;
            }
        };
        let explored = crash_points(1, scenario, |disk, (written, writing): &Obligations| {
            let found = found(disk);
            if found == *written || found == *writing {
                return Ok(());
            }
            Err(format!("{found} minutes, and {written} were written"))
        });
        assert!(explored.operations > 20, "{explored:?}");
    }

    /// A kill leaves books that were not synced. The next process writes over the other slot,
    /// and a power cut then would take both.
    #[test]
    fn books_of_a_killed_process_survive_a_power_cut_in_the_next_one() {
        let write = |disk: &SimDisk, written: &mut u64, lengths: &[u64]| {
            disk.create_dir_all(dir()).unwrap();
            let (mut file, found) = BooksFile::open(disk, dir()).unwrap();
            // A process builds on the books that it found when it opened them.
            let found = found.map_or(0, |found| found.books().account().accepted);
            *written = u64::try_from(found).unwrap();
            for minutes in lengths {
                let last = BooksSnapshot {
                    is_clean: Some(minutes) == lengths.last(),
                    ..BooksSnapshot::default()
                };
                file.write(disk, last, &books(*minutes)).unwrap();
                *written = *minutes;
            }
        };
        // Each takes several sectors, so that it can tear; the last outgrows its slot.
        for (lengths, next) in [([20, 30, 40], 50), ([20, 30, 500], 510)] {
            seeds!(scaled(20), |seed| {
                let explored = crash_points_of_two_lives(
                    seed,
                    |disk, written| write(disk, written, &lengths),
                    |disk, written| write(disk, written, &[next]),
                    |disk, written| match found(disk) {
                        found if found >= *written => Ok(()),
                        found => Err(format!("{found} minutes, and {written} were written")),
                    },
                );
                assert!(explored.operations > 60, "{explored:?}");
            });
        }
    }

    #[test]
    fn books_that_nobody_could_read_back_are_not_written() {
        let disk = SimDisk::new(1);
        disk.create_dir_all(dir()).unwrap();
        let (mut file, _) = BooksFile::open(&disk, dir()).unwrap();
        file.write(&disk, BooksSnapshot::default(), &books(1))
            .unwrap();
        let bytes = vec![0; usize::try_from(MAX_FILE / 4).unwrap() + 1];
        assert!(file.grow(&disk, 2, &bytes).is_err());
        assert_eq!(BooksFile::peek(&disk, dir()).unwrap().books(), books(1));
    }
}
