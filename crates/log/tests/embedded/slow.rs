//! A real disk on which reads of some files take as long as a test likes.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, DiskFile, DiskLock, Entry, OpenMode};

/// A real disk that holds up whoever reads from some files.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowDisk(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Held>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// Files whose names begin so.
    prefix: Option<&'static str>,
    waiting: u32,
    /// The names of the files that were read from, one for each read.
    reads: Vec<String>,
}

impl SlowDisk {
    /// From now on, whoever reads from a file whose name begins so waits.
    pub(crate) fn hold(&self, prefix: &'static str) {
        self.0.state.lock().unwrap().prefix = Some(prefix);
    }

    /// Everybody goes on.
    pub(crate) fn let_go(&self) {
        self.0.state.lock().unwrap().prefix = None;
        self.0.opened.notify_all();
    }

    /// How often files whose names begin so were read from.
    pub(crate) fn reads(&self, prefix: &str) -> usize {
        let held = self.0.state.lock().unwrap();
        let reads = held.reads.iter();
        reads.filter(|name| name.starts_with(prefix)).count()
    }

    pub(crate) async fn wait_until_somebody_is_held(&self) {
        for _ in 0..6_000 {
            if self.0.state.lock().unwrap().waiting > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody reads from a file that is held");
    }
}

impl Gate {
    fn pass(&self, name: &str) {
        let mut held = self.state.lock().unwrap();
        held.waiting += 1;
        held.reads.push(name.to_owned());
        while held.prefix.is_some_and(|prefix| name.starts_with(prefix)) {
            held = self.opened.wait(held).unwrap();
        }
        held.waiting -= 1;
    }
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let name = path.file_name().unwrap_or_default();
        Ok(Box::new(SlowFile {
            file: SystemDisk.open(path, mode)?,
            name: name.to_string_lossy().into_owned(),
            gate: Arc::clone(&self.0),
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
struct SlowFile {
    file: Box<dyn DiskFile>,
    name: String,
    gate: Arc<Gate>,
}

impl DiskFile for SlowFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.gate.pass(&self.name);
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
        self.file.sync()
    }
}
