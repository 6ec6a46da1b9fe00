//! The journal: files of commit groups, one of which is written.
//!
//! Files are filled with zeros before they are used and used again once a checkpoint has passed
//! them, so that a sync writes data only. A file gets its name when it is as long as the name says.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::files::{self, Doing};
use super::injected_bugs::{self, InjectedBug};
use super::state::JournalPlace;
use crate::error::LogError;

/// The purpose of a write, by how much it is needed on a disk without room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// Adds records.
    Records,
    /// Takes groups on, so that records can go.
    Commits,
    /// Takes records out.
    Removal,
}

impl Use {
    /// How far a file of this size may be written. The rest is kept for what makes room: without it
    /// nothing could be removed once the disk has no room for another file.
    fn limit(self, size: u64) -> u64 {
        match self {
            Self::Records => size - size / 16,
            Self::Commits => size - size / 64,
            Self::Removal => size,
        }
    }
}

/// The journal as its one writer has it.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    size: u64,
    file: Option<Box<dyn DiskFile>>,
    /// The path of that file, and how long it was made: behind that a cut would go unnoticed.
    path: PathBuf,
    len: u64,
    /// Where the next group goes.
    place: JournalPlace,
    /// Whether nothing more goes to this file, whatever room it has.
    is_left: bool,
}

impl Journal {
    /// Goes on at `place`, in a file that may not be there yet.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        size: u64,
        place: JournalPlace,
    ) -> Result<Self, LogError> {
        let name = files::journals(&*disk, dir)?.remove(&place.file);
        let path = dir.join(name.as_deref().unwrap_or_default());
        let (file, len) = match &name {
            None => (None, 0),
            Some(name) => {
                let file = disk.open(&path, OpenMode::Write).doing("open", &path)?;
                let len = file.len().doing("measure", &path)?;
                (Some(file), files::journal_len(name).unwrap_or(len))
            }
        };
        Ok(Self {
            path,
            len,
            disk,
            dir: dir.to_owned(),
            size,
            file,
            place,
            is_left: false,
        })
    }

    /// Leaves the file as it is: the next group goes to another one.
    pub(super) fn leave_file(&mut self) {
        self.is_left = true;
    }

    /// Where the next group goes, if it fits there.
    pub(super) fn place(&self) -> JournalPlace {
        self.place
    }

    /// Whether so many bytes need another file.
    pub(super) fn needs_file(&self, bytes: usize, use_: Use) -> bool {
        let is_begun = self.place.at > 0;
        let end = self.place.at + bytes as u64;
        self.file.is_none()
            || self.is_left
            || end > self.len
            || (is_begun && end > use_.limit(self.len.min(self.size)))
    }

    /// Begins another file that takes so many bytes: one of the names of `pool`, or a new one. Its
    /// place is given by [`place`](Self::place).
    ///
    /// # Errors
    /// The disk has no room or fails; the journal is as it was.
    pub(super) fn begin_file(
        &mut self,
        bytes: usize,
        pool: &mut Vec<String>,
    ) -> Result<(), LogError> {
        let number = match self.file.is_some() || self.is_left {
            true => self.place.file + 1,
            false => self.place.file,
        };
        // A file of that very number was begun by a process that died before it wrote to it.
        let begun = files::journals(&*self.disk, &self.dir)?.remove(&number);
        let name = begun.or_else(|| pool.last().cloned());
        let name = name.unwrap_or_else(|| files::spare(NEXT));
        let from = self.dir.join(&name);
        // One that was made for a smaller journal, or not to its end, is completed first.
        let len = make(&*self.disk, &from, self.size.max(bytes as u64))?;
        let path = self.dir.join(files::journal(number, len));
        if from == path {
            // Who named it may have died before this.
            if !injected_bugs::is(InjectedBug::UnsyncedName) {
                self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
            }
        } else {
            // It syncs the directory as well, and a sync that fails is final.
            self.disk.replace(&from, &path).doing("sync", &path)?;
        }
        pool.retain(|free| *free != name);
        let file = self
            .disk
            .open(&path, OpenMode::Write)
            .doing("open", &path)?;
        self.file = Some(file);
        self.path = path;
        self.len = len;
        self.is_left = false;
        self.place = JournalPlace {
            file: number,
            at: 0,
        };
        Ok(())
    }

    /// Writes groups at the end, without syncing them.
    ///
    /// # Errors
    /// The disk has no room or fails; any part may have been written, and none of it counts.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let Some(file) = &mut self.file else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(source).doing("write", &self.path);
        };
        file.write_at(self.place.at, bytes)
            .doing("write", &self.path)
    }

    /// Makes what was written durable and part of the journal.
    ///
    /// # Errors
    /// Final: the journal takes nothing any more.
    pub(super) fn sync(&mut self, bytes: usize) -> Result<(), LogError> {
        if let Some(file) = &mut self.file
            && !injected_bugs::is(InjectedBug::AnswerBeforeSync)
        {
            file.sync().doing("sync", &self.path)?;
        }
        self.place.at += bytes as u64;
        Ok(())
    }

    /// Writes the last groups once more, where they are, and syncs them: a process that was killed
    /// before its sync left them unsynced, and one whose sync failed left them looking well.
    pub(super) fn rewrite(&mut self, at: u64, bytes: &[u8]) -> Result<(), LogError> {
        if let Some(file) = &mut self.file {
            file.write_at(at, bytes).doing("write", &self.path)?;
            file.sync().doing("sync", &self.path)?;
        }
        Ok(())
    }
}

/// The number of the spare file that the journal makes for itself; those of the maintenance thread count from 1.
const NEXT: u64 = 0;

/// Makes a file of zeros, durably but for its name, and gives its length. A shorter
/// file of that name is completed.
///
/// # Errors
/// The disk has no room, of which nothing is taken then; or it fails.
pub(super) fn make(disk: &dyn Disk, path: &Path, size: u64) -> Result<u64, LogError> {
    let mut file = files::open_or_make(disk, path)?;
    let len = file.len().doing("measure", path)?;
    if let Err(error) = file.preallocate(size).doing("fill", path) {
        // The part of it that there is would be missing elsewhere.
        drop(file);
        disk.remove(path).doing("remove", path)?;
        return Err(error);
    }
    // Also of a file that is long enough: who made it may have died before this.
    file.sync().doing("sync", path)?;
    Ok(len.max(size))
}
