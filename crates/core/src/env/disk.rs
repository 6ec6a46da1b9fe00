//! Where durable bytes go.
//!
//! The port is synchronous: whoever writes durably is a state machine on a thread of its own, and
//! wants to know the outcome before its next step.
//!
//! # What a power cut leaves
//!
//! | done before the cut | what is found afterwards |
//! |---|---|
//! | bytes written, not synced | any part of them, in any order, torn at sector bounds |
//! | [`DiskFile::sync`] returned | all bytes written before it, and the length of the file |
//! | file created or removed, directory not synced | the old or the new directory entry |
//! | [`Disk::sync_dir`] returned | every entry as it was then |
//! | [`Disk::replace`] returned | the new file under its name; during the call, the old or the new one |
//!
//! **A failed sync is final.** The system may have thrown the dirty pages away and still report
//! success next time; whoever sees a sync fail must give that file up.

use std::fmt;
use std::io;
use std::path::Path;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist, and is only read.
    Read,
    /// It must exist, and is read and written.
    Write,
    /// It must not exist yet, and is read and written. Durable once its directory is synced.
    CreateNew,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name within its directory.
    pub name: String,
    /// The length in bytes; 0 for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Where durable bytes go.
///
/// Errors are those of the system: `NotFound`, `AlreadyExists`, `StorageFull`, `WouldBlock` for a
/// lock that is held, anything else for a device that fails.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file.
    ///
    /// # Errors
    /// The file is missing, exists already, or cannot be opened.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;

    /// The entries of a directory, sorted by name so that no order of the system reaches a
    /// decision.
    ///
    /// # Errors
    /// The directory is missing or cannot be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Makes a directory and its parents, durably. Making it twice changes nothing.
    ///
    /// # Errors
    /// A parent is a file, or the disk refuses.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Puts the file `from` in the place of `to`, in the same directory, atomically, and returns
    /// once the new name would survive a power cut. The content of `from` must have been synced
    /// before.
    ///
    /// # Errors
    /// `InvalidInput` for two directories, whose entries no file system changes durably together.
    /// When it fails otherwise, either name may hold: look before going on.
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Durable once its directory is synced.
    ///
    /// # Errors
    /// The file is missing or cannot be removed.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once every entry of `dir` would survive a power cut.
    ///
    /// # Errors
    /// The directory could not be synced; what was created in it may vanish.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the exclusive lock on `path`, making the file where it is missing; a directory that is
    /// there can be locked as well. It is held until the guard is dropped or the process ends, however it ends.
    ///
    /// # Errors
    /// `WouldBlock` when somebody holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>>;

    /// The bytes that may still be written below `dir`.
    ///
    /// # Errors
    /// The file system cannot be asked.
    fn space_left(&self, dir: &Path) -> io::Result<u64>;
}

impl dyn Disk + '_ {
    /// Reads a whole file that is known to be small.
    ///
    /// # Errors
    /// The file is missing or unreadable, or holds more than `limit` bytes (`FileTooLarge`).
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("`{}` has {len} bytes and may have {limit}", path.display()),
            ));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// An open file.
pub trait DiskFile: Send + fmt::Debug {
    /// Writes all of `bytes` at the end of the file.
    ///
    /// # Errors
    /// Any prefix of `bytes` may have been written (a full disk writes short): cut it back with
    /// [`truncate`](DiskFile::truncate) before the next append, or give the file up.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, which may lie past the end; the gap reads as zeros.
    ///
    /// # Errors
    /// Any part of `bytes` may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `buffer` from `offset` and says how many bytes there were: fewer than asked only at
    /// the end of the file.
    ///
    /// # Errors
    /// The device cannot read these bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// The length of the file in bytes.
    ///
    /// # Errors
    /// The device cannot tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no bytes.
    ///
    /// # Errors
    /// The device cannot tell.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Lets the system begin to write these bytes out, and does not wait for it: then the next sync has
    /// less to do. This is a hint: it promises nothing, and not every system takes it. The next sync of
    /// this handle reports what goes wrong with it.
    fn begin_sync(&mut self, offset: u64, len: u64);

    /// Cuts the file to `len` bytes, or grows it with zeros. Durable with the next sync.
    ///
    /// # Errors
    /// The length is as it was.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Grows the file to `len` bytes of written zeros. Later writes within it then need no new space,
    /// and a sync of them writes data only. A file that is long enough stays as it is.
    ///
    /// # Errors
    /// `StorageFull` when the space is not there; any part may have been filled.
    fn preallocate(&mut self, len: u64) -> io::Result<()>;

    /// Returns once everything written to this file, and its length, would survive a power cut.
    ///
    /// # Errors
    /// Final for this file: never sync it again, and trust none of what was written since the last
    /// sync that succeeded.
    fn sync(&mut self) -> io::Result<()>;
}

/// A held lock; dropping it lets go.
pub trait DiskLock: Send + fmt::Debug {}
