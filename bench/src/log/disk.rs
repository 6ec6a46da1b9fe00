//! The real disk, counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, DiskFile, DiskLock, Entry, OpenMode};

#[derive(Debug, Default)]
struct Counts {
    journal_syncs: AtomicU64,
    bytes_read: AtomicU64,
}

/// The real disk, which counts syncs of the journal and bytes that are read.
#[derive(Debug, Clone, Default)]
pub(super) struct CountedDisk(Arc<Counts>);

impl CountedDisk {
    pub(super) fn journal_syncs(&self) -> u64 {
        self.0.journal_syncs.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.0.bytes_read.load(Ordering::Relaxed)
    }
}

impl Disk for CountedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let name = path.file_name().and_then(|name| name.to_str());
        Ok(Box::new(CountedFile {
            file: SystemDisk.open(path, mode)?,
            is_journal: name.is_some_and(|name| name.starts_with("journal-")),
            counts: Arc::clone(&self.0),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
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
struct CountedFile {
    file: Box<dyn DiskFile>,
    is_journal: bool,
    counts: Arc<Counts>,
}

impl DiskFile for CountedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(offset, buffer)?;
        self.counts
            .bytes_read
            .fetch_add(read as u64, Ordering::Relaxed);
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
        if self.is_journal {
            self.counts.journal_syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.file.sync()
    }
}
