//! A disk with somebody in between.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{DirEntry, Disk, DiskFile, DiskLock, OpenMode};

/// A hook between a caller and a disk: it may wait, count, or change the answer.
///
/// Each operation goes by the name of its method in [`Disk`] or [`DiskFile`], with the path it is about.
pub trait DiskHook: Send + Sync {
    /// Comes before the operation. Its error is the answer, and the operation does not happen.
    ///
    /// # Errors
    /// As the hook wants it.
    fn before(&self, operation: &'static str, path: &Path) -> io::Result<()> {
        let _ = (operation, path);
        Ok(())
    }

    /// Comes after an operation that worked, with the bytes that were read. Its error is the answer,
    /// although the operation has happened.
    ///
    /// # Errors
    /// As the hook wants it.
    fn after(&self, operation: &'static str, path: &Path, bytes: usize) -> io::Result<()> {
        let _ = (operation, path, bytes);
        Ok(())
    }
}

/// A disk whose every operation goes by a [`DiskHook`].
///
/// ```
/// use std::io;
/// use std::path::Path;
/// use std::sync::Arc;
/// use tidegate_core::env::Disk;
/// use tidegate_core::env::system::SystemDisk;
/// use tidegate_sim::{DiskHook, DiskProxy};
///
/// struct Full;
/// impl DiskHook for Full {
///     fn before(&self, operation: &'static str, _: &Path) -> io::Result<()> {
///         match operation {
///             "create_dir_all" => Err(io::ErrorKind::StorageFull.into()),
///             _ => Ok(()),
///         }
///     }
/// }
/// let disk = DiskProxy::new(Arc::new(SystemDisk), Arc::new(Full));
/// let error = disk.create_dir_all(Path::new("anywhere")).unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::StorageFull);
/// ```
#[derive(Clone)]
pub struct DiskProxy {
    disk: Arc<dyn Disk>,
    hook: Arc<dyn DiskHook>,
}

impl DiskProxy {
    /// `disk` behind `hook`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, hook: Arc<dyn DiskHook>) -> Self {
        Self { disk, hook }
    }
}

impl fmt::Debug for DiskProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskProxy({:?})", self.disk)
    }
}

/// One operation between the two calls of the hook.
fn hooked<T>(
    hook: &dyn DiskHook,
    operation: &'static str,
    path: &Path,
    bytes: impl FnOnce(&T) -> usize,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    hook.before(operation, path)?;
    let done = act()?;
    hook.after(operation, path, bytes(&done))?;
    Ok(done)
}

impl DiskProxy {
    fn pass<T>(
        &self,
        operation: &'static str,
        path: &Path,
        act: impl FnOnce(&dyn Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        hooked(&*self.hook, operation, path, |_| 0, || act(&*self.disk))
    }
}

impl Disk for DiskProxy {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let file = self.pass("open", path, |disk| disk.open(path, mode))?;
        let (path, hook) = (path.to_owned(), Arc::clone(&self.hook));
        Ok(Box::new(FileProxy { file, path, hook }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.pass("list", dir, |disk| disk.list(dir))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.pass("create_dir_all", dir, |disk| disk.create_dir_all(dir))
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pass("replace", to, |disk| disk.replace(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.pass("remove", path, |disk| disk.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.pass("sync_dir", dir, |disk| disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.pass("lock", path, |disk| disk.lock(path))
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        self.pass("space_left", dir, |disk| disk.space_left(dir))
    }
}

struct FileProxy {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    hook: Arc<dyn DiskHook>,
}

impl fmt::Debug for FileProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileProxy({})", self.path.display())
    }
}

impl FileProxy {
    fn pass<T>(
        &mut self,
        operation: &'static str,
        act: impl FnOnce(&mut dyn DiskFile) -> io::Result<T>,
    ) -> io::Result<T> {
        let file = &mut *self.file;
        hooked(&*self.hook, operation, &self.path, |_| 0, || act(file))
    }
}

impl DiskFile for FileProxy {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pass("append", |file| file.append(bytes))
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.pass("write_at", |file| file.write_at(offset, bytes))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = || self.file.read_at(offset, buffer);
        hooked(&*self.hook, "read_at", &self.path, |read| *read, read)
    }

    fn len(&self) -> io::Result<u64> {
        hooked(&*self.hook, "len", &self.path, |_| 0, || self.file.len())
    }

    fn begin_sync(&mut self, offset: u64, len: u64) {
        // A hint has no answer that a hook could change.
        let hinted = self.pass("begin_sync", |file| {
            file.begin_sync(offset, len);
            Ok(())
        });
        drop(hinted);
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.pass("truncate", |file| file.truncate(len))
    }

    fn preallocate(&mut self, len: u64) -> io::Result<()> {
        self.pass("preallocate", |file| file.preallocate(len))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.pass("sync", |file| file.sync())
    }
}
