//! A disk that counts what is read from it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{DirEntry, Disk, DiskFile, DiskLock, OpenMode};

use super::Counted;

/// The disk of this machine. The bytes that are read of its files are counted.
#[derive(Debug)]
pub(crate) struct CountingDisk {
    counted: Arc<Counted>,
}

impl CountingDisk {
    pub(crate) fn new(counted: &Arc<Counted>) -> Self {
        Self {
            counted: Arc::clone(counted),
        }
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let file = SystemDisk.open(path, mode)?;
        let counted = Arc::clone(&self.counted);
        Ok(Box::new(CountingFile { file, counted }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        SystemDisk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.create_dir_all(dir)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.replace(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        SystemDisk.lock(path)
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        SystemDisk.space_left(dir)
    }
}

#[derive(Debug)]
struct CountingFile {
    file: Box<dyn DiskFile>,
    counted: Arc<Counted>,
}

impl DiskFile for CountingFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(offset, buffer)?;
        self.counted.add(read as u64);
        Ok(read)
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
        self.file.sync()
    }
}
