//! A real disk that tells who uses it and can be made slow.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, DiskFile, DiskLock, Entry, OpenMode};

/// Is called before each operation with its name and its path.
pub(crate) type Probe = Arc<dyn Fn(&'static str, &Path) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct ProbedDisk(pub(crate) Probe);

struct ProbedFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    probe: Probe,
}

impl fmt::Debug for ProbedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbedDisk")
    }
}

impl fmt::Debug for ProbedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProbedFile({})", self.path.display())
    }
}

impl Disk for ProbedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        (self.0)("open", path);
        let file = SystemDisk.open(path, mode)?;
        let (path, probe) = (path.to_owned(), Arc::clone(&self.0));
        Ok(Box::new(ProbedFile { path, file, probe }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        (self.0)("list", dir);
        SystemDisk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        (self.0)("create_dir_all", dir);
        SystemDisk.create_dir_all(dir)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.0)("replace", to);
        SystemDisk.replace(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        (self.0)("remove", path);
        SystemDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        (self.0)("sync_dir", dir);
        SystemDisk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        (self.0)("lock", path);
        SystemDisk.lock(path)
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        (self.0)("space_left", dir);
        SystemDisk.space_left(dir)
    }
}

impl DiskFile for ProbedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.probe)("append", &self.path);
        self.file.append(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (self.probe)("write_at", &self.path);
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (self.probe)("read_at", &self.path);
        self.file.read_at(offset, buffer)
    }

    fn len(&self) -> io::Result<u64> {
        (self.probe)("len", &self.path);
        self.file.len()
    }

    fn begin_sync(&mut self, offset: u64, len: u64) {
        (self.probe)("begin_sync", &self.path);
        self.file.begin_sync(offset, len);
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        (self.probe)("truncate", &self.path);
        self.file.truncate(len)
    }

    fn preallocate(&mut self, len: u64) -> io::Result<()> {
        (self.probe)("preallocate", &self.path);
        self.file.preallocate(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        (self.probe)("sync", &self.path);
        self.file.sync()
    }
}
