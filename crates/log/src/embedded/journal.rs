//! The journal: files of commit groups, one of which is written.
//!
//! Files are filled with zeros before they are used and used again once a checkpoint has passed
//! them, so that a sync writes data only.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::files::{self, Doing};
use super::planted::{self, Bug};
use super::state::JournalPlace;
use crate::error::LogError;

/// The journal as its one writer has it.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    size: u64,
    file: Option<Box<dyn DiskFile>>,
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
        let path = dir.join(files::journal(place.file));
        let file = match disk.open(&path, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.doing("open", &path)?),
        };
        Ok(Self {
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

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(files::journal(number))
    }

    /// Whether so many bytes need another file.
    pub(super) fn needs_file(&self, bytes: usize) -> bool {
        let is_begun = self.place.at > 0;
        self.file.is_none()
            || self.is_left
            || (is_begun && self.place.at + bytes as u64 > self.size)
    }

    /// Begins another file: one of the names of `pool`, or a new one. What was begun is given back
    /// by [`place`](Self::place).
    ///
    /// # Errors
    /// The disk has no room or fails; the journal is as it was.
    pub(super) fn begin_file(&mut self, pool: &mut Vec<String>) -> Result<(), LogError> {
        let number = match &self.file {
            Some(_) => self.place.file + 1,
            None => self.place.file,
        };
        let path = self.path(number);
        let name = files::journal(number);
        // A file of that very name was begun by a process that died before it wrote to it.
        let taken = pool.iter().position(|free| *free == name);
        match taken.or(pool.len().checked_sub(1)) {
            Some(index) => {
                let from = self.dir.join(&pool[index]);
                if from == path {
                    self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
                } else {
                    self.disk.replace(&from, &path).doing("rename", &from)?;
                }
                pool.remove(index);
            }
            None => {
                make(&*self.disk, &path, self.size)?;
                self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
            }
        }
        let file = self
            .disk
            .open(&path, OpenMode::Write)
            .doing("open", &path)?;
        self.file = Some(file);
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
        let path = self.path(self.place.file);
        let Some(file) = &mut self.file else {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(source).doing("write", &path);
        };
        file.write_at(self.place.at, bytes).doing("write", &path)
    }

    /// Makes what was written durable and part of the journal.
    ///
    /// # Errors
    /// Final: the journal takes nothing any more.
    pub(super) fn sync(&mut self, bytes: usize) -> Result<(), LogError> {
        let path = self.path(self.place.file);
        if let Some(file) = &mut self.file
            && !planted::is(Bug::AnswerBeforeSync)
        {
            file.sync().doing("sync", &path)?;
        }
        self.place.at += bytes as u64;
        Ok(())
    }

    /// Writes the last groups once more, where they are, and syncs them: a process that was killed
    /// before its sync left them unsynced, and one whose sync failed left them looking well.
    pub(super) fn rewrite(&mut self, at: u64, bytes: &[u8]) -> Result<(), LogError> {
        let path = self.path(self.place.file);
        if let Some(file) = &mut self.file {
            file.write_at(at, bytes).doing("write", &path)?;
            file.sync().doing("sync", &path)?;
        }
        Ok(())
    }
}

/// Makes a file of zeros, durably but for its name. What is there of it is completed.
pub(super) fn make(disk: &dyn Disk, path: &Path, size: u64) -> Result<(), LogError> {
    let mut file = match disk.open(path, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.open(path, OpenMode::Write).doing("open", path)?
        }
        opened => opened.doing("make", path)?,
    };
    file.preallocate(size).doing("fill", path)?;
    file.sync().doing("sync", path)
}
