//! A disk that says no after it has done what it was asked: the nearest that a log in this process
//! comes to an answer that is lost on its way.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::env::{Disk, DiskFile, DiskLock, Entry, OpenMode};

/// Which syncs of journals are done and said to have failed, and which writes find no room.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    is_next: Arc<AtomicBool>,
    is_refused: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Losses {
    /// The next one.
    pub(crate) fn lose_next(&self) {
        self.is_next.store(true, Ordering::SeqCst);
    }

    /// There is no room for the next write, and there is for the one after it.
    pub(crate) fn refuse_next(&self) {
        self.is_refused.store(true, Ordering::SeqCst);
    }

    /// How many have been.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }

    /// A disk on which they happen.
    pub(crate) fn on(&self, disk: Arc<dyn Disk>) -> LossyDisk {
        LossyDisk {
            disk,
            losses: self.clone(),
        }
    }
}

/// A disk whose answers can be lost.
#[derive(Debug)]
pub(crate) struct LossyDisk {
    disk: Arc<dyn Disk>,
    losses: Losses,
}

impl Disk for LossyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(path, mode)?;
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| name.starts_with("journal-") || name.starts_with("spare-")) {
            return Ok(file);
        }
        let losses = self.losses.clone();
        Ok(Box::new(LossyFile { file, losses }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.disk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.replace(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.disk.lock(path)
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        self.disk.space_left(dir)
    }
}

#[derive(Debug)]
struct LossyFile {
    file: Box<dyn DiskFile>,
    losses: Losses,
}

impl DiskFile for LossyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.losses.is_refused.swap(false, Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn begin_sync(&mut self, offset: u64, len: u64) {
        self.file.begin_sync(offset, len);
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn preallocate(&mut self, len: u64) -> io::Result<()> {
        self.file.preallocate(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()?;
        if self.losses.is_next.swap(false, Ordering::SeqCst) {
            self.losses.lost.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other("the answer of the disk is lost"));
        }
        Ok(())
    }
}
