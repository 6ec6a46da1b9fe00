//! A disk that keeps what was written and what was synced apart.

mod faults;
mod file;
mod image;
mod survivors;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use tidegate_core::Mutex;
use tidegate_core::env::{DirEntry, Disk, DiskFile, DiskLock, Entropy, OpenMode, Stream};

use faults::DiskFaults;
pub use faults::{Fault, FaultKind};
use file::SimFile;
use image::{FileId, Image};
pub use survivors::Survivors;

use crate::trace::Trace;

/// The payload that unwinds from a disk operation that ended its node.
#[derive(Debug)]
pub(crate) struct Killed;

/// The kinds of disk operations, as faults and crash points name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "each is the operation of the port with that name"
)]
pub enum Operation {
    Create,
    CreateDir,
    Write,
    Truncate,
    Sync,
    Rename,
    Remove,
    SyncDir,
    Read,
    /// Also listing a directory, taking a lock, and asking for space.
    Open,
}

/// A simulated disk. Cloning gives another handle on the same disk.
///
/// **May fail**, by script or by chance: at a crash, any prefix or subset of what was not synced
/// survives, independently for each file; writes tear at 512 or 4,096 bytes; a lost write may leave
/// zeros; a new name, a removal or a rename survives only with the directory sync, else any prefix
/// of a directory's changes does; operations fail with an I/O error or a full disk; a write is cut
/// short; a sync fails and drops what was not written yet, and the next one says it is fine; bits
/// flip; the node dies at its n-th operation.
///
/// **Must not fail:** what was synced before the crash, under a name that was synced, reads back
/// unless a bit was flipped on purpose; a rename is atomic; a directory's changes survive in their
/// order; a lock is gone with the process that held it.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
    /// The life of the node that this handle belongs to; none for the hand of the test, which
    /// outlives every crash.
    life: Option<u64>,
}

#[derive(Clone)]
struct Inner {
    image: Image,
    locks: BTreeSet<PathBuf>,
    faults: DiskFaults,
    /// Bytes that fit.
    capacity: u64,
    /// Operations that change something, counted from 1.
    operations: u64,
    kill_at: Option<u64>,
    is_killed: bool,
    /// Counts crashes; a handle of an earlier life is dead.
    life: u64,
    entropy: Stream,
    trace: Option<Trace>,
}

/// The bytes that fit unless a test says otherwise.
const CAPACITY: u64 = 1 << 40;

impl SimDisk {
    /// An empty disk whose chances follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(Stream::new(seed), None)
    }

    pub(crate) fn traced(entropy: Stream, trace: Trace) -> Self {
        Self::with(entropy, Some(trace))
    }

    fn with(entropy: Stream, trace: Option<Trace>) -> Self {
        let inner = Inner {
            image: Image::default(),
            locks: BTreeSet::new(),
            faults: DiskFaults::default(),
            capacity: CAPACITY,
            operations: 0,
            kill_at: None,
            is_killed: false,
            life: 0,
            entropy,
            trace,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            life: None,
        }
    }

    /// A handle that dies with the present life of the disk's node.
    pub(crate) fn of_this_life(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            life: Some(self.inner.lock().life),
        }
    }

    /// An operation that changes nothing: refused for a handle that is dead, or by a fault.
    fn looking(&self, operation: Operation, path: &Path) -> io::Result<MutexGuard<'_, Inner>> {
        let mut inner = self.inner.lock();
        let life = self.life.unwrap_or(inner.life);
        inner.begin(life, operation, path, &[])?.whole()?;
        Ok(inner)
    }

    /// How many operations changed something so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.inner.lock().operations
    }

    /// Ends the node at its operation with this number, counted from 1: the operation does not
    /// return. A write is on its way by then; a sync has not begun.
    pub fn kill_at(&self, operation: u64) {
        self.inner.lock().kill_at = Some(operation);
    }

    /// Whether an operation ended the node.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.inner.lock().is_killed
    }

    /// Forgets a kill that has not happened.
    pub(crate) fn forget_kill(&self) {
        self.inner.lock().kill_at = None;
    }

    pub(crate) fn kill(&self) {
        self.inner.lock().is_killed = true;
    }

    /// How many changes would be at risk in a crash now.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.inner.lock().image.pending()
    }

    /// Takes the power from the disk: `survivors` of what was not synced remain. Handles and locks
    /// of before are dead.
    pub fn crash(&self, survivors: &Survivors) {
        let mut inner = self.inner.lock();
        inner.image = inner.image.after_crash(survivors);
        inner.begin_life();
    }

    /// Ends the process that used the disk and leaves the machine running: nothing is lost, and
    /// what was not synced is still at risk.
    pub fn end_process(&self) {
        self.inner.lock().begin_life();
    }

    /// The disk that would be found if the power went now; this one stays as it is.
    #[must_use]
    pub fn after_crash(&self, survivors: &Survivors) -> Self {
        let mut inner = self.inner.lock().clone_without_image();
        inner.image = self.inner.lock().image.after_crash(survivors);
        inner.begin_life();
        inner.kill_at = None;
        Self {
            inner: Arc::new(Mutex::new(inner)),
            life: None,
        }
    }

    /// A disk of its own with the same content, the same changes at risk, and no open handles.
    pub(crate) fn fork(&self) -> Self {
        let mut inner = self.inner.lock().clone();
        inner.begin_life();
        Self {
            inner: Arc::new(Mutex::new(inner)),
            life: None,
        }
    }

    /// Makes an operation fail, see [`Fault`].
    pub fn fail(&self, fault: Fault) {
        self.inner.lock().faults.add(fault);
    }

    /// Makes each operation of this kind fail with this probability, until set to 0.
    pub fn fail_at_random(&self, operation: Operation, kind: FaultKind, probability: f64) {
        self.inner
            .lock()
            .faults
            .set_chance(operation, kind, probability);
    }

    /// Sets how many bytes fit on the disk.
    pub fn set_capacity(&self, bytes: u64) {
        self.inner.lock().capacity = bytes;
    }

    /// Turns one bit of a file around, on the medium itself.
    ///
    /// # Panics
    /// When there is no such file or it is not that long.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) {
        let mut inner = self.inner.lock();
        let id = inner
            .image
            .find(path)
            .unwrap_or_else(|_| panic!("no file `{}`", path.display()));
        inner.image.flip_bit(id, offset, bit);
    }
}

impl Inner {
    fn begin_life(&mut self) {
        self.locks.clear();
        self.life += 1;
        self.is_killed = false;
        // A scenario that loses the power itself is still to be killed at its n-th operation; only
        // a kill that happened is over.
        self.kill_at = self.kill_at.filter(|at| *at > self.operations);
    }

    /// All but the content, which is about to be replaced.
    fn clone_without_image(&mut self) -> Self {
        let image = std::mem::take(&mut self.image);
        let copy = self.clone();
        self.image = image;
        copy
    }

    fn alive(&self, life: u64) -> io::Result<()> {
        if self.is_killed || self.life != life {
            return Err(io::Error::other("the node that opened this has ended"));
        }
        Ok(())
    }

    /// Counts an operation and says whether it fails, and whether the node ends at it.
    fn begin(
        &mut self,
        life: u64,
        operation: Operation,
        path: &Path,
        bytes: &[u8],
    ) -> io::Result<Begun> {
        self.alive(life)?;
        if let Some(trace) = &self.trace {
            let text = format!("{operation:?} {}", path.display());
            trace.add(&[b"disk", text.as_bytes(), bytes]);
        }
        let is_change = !matches!(operation, Operation::Read | Operation::Open);
        self.operations += u64::from(is_change);
        let is_last = is_change && self.kill_at == Some(self.operations);
        let fault = self.faults.next(operation, path, &mut self.entropy);
        Ok(Begun { is_last, fault })
    }
}

/// The fate of an operation.
struct Begun {
    is_last: bool,
    fault: Option<FaultKind>,
}

impl Begun {
    /// The error of an operation that fails as a whole.
    fn whole(&self) -> io::Result<()> {
        match self.fault {
            None | Some(FaultKind::ShortWrite) => Ok(()),
            Some(kind) => Err(kind.error()),
        }
    }
}

/// Ends the node: unwinds without the noise of a panic.
fn die(mut inner: MutexGuard<'_, Inner>) -> ! {
    inner.is_killed = true;
    drop(inner);
    std::panic::resume_unwind(Box::new(Killed))
}

impl SimDisk {
    /// An operation that changes names: done, or failed as a whole, or the last one.
    fn change(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&mut Image) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let life = self.life.unwrap_or(inner.life);
        let begun = inner.begin(life, operation, path, &[])?;
        // A sync that the power cut meets may have done all or nothing: what is pending decides.
        if begun.is_last && (operation == Operation::SyncDir || begun.fault.is_some()) {
            die(inner);
        }
        begun.whole()?;
        let result = act(&mut inner.image);
        if begun.is_last {
            die(inner);
        }
        result
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        if mode == OpenMode::CreateNew {
            self.change(Operation::Create, path, |image| {
                image.create(path).map(|_| ())
            })?;
        }
        let inner = self.looking(Operation::Open, path)?;
        let id = inner.image.find(path)?;
        let is_writable = mode != OpenMode::Read;
        let life = inner.life;
        drop(inner);
        Ok(Box::new(SimFile::new(
            self.clone(),
            id,
            path.to_owned(),
            life,
            is_writable,
        )))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.looking(Operation::Open, dir)?.image.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let levels = self.looking(Operation::Open, dir)?.image.levels(dir)?;
        let deepest = levels
            .iter()
            .rposition(|(_, is_there)| *is_there)
            .unwrap_or(0);
        for (level, is_there) in levels.iter().skip(deepest) {
            if !is_there {
                self.change(Operation::CreateDir, level, |image| image.create_dir(level))?;
            }
            self.sync_dir(level.parent().unwrap_or(Path::new("/")))?;
        }
        Ok(())
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(Operation::Rename, to, |image| image.rename(from, to))?;
        self.sync_dir(to.parent().unwrap_or(Path::new("")))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(Operation::Remove, path, |image| image.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(Operation::SyncDir, dir, |image| image.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let mut inner = self.looking(Operation::Open, path)?;
        if inner.locks.contains(path) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        // A lock file that is not there yet is made; it holds nothing that a crash could lose.
        match inner.image.find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                inner.image.create(path)?;
            }
            found => {
                found?;
            }
        }
        inner.locks.insert(path.to_owned());
        let life = inner.life;
        drop(inner);
        Ok(Box::new(SimLock {
            disk: self.clone(),
            path: path.to_owned(),
            life,
        }))
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        let inner = self.looking(Operation::Open, dir)?;
        inner.image.list(dir)?;
        Ok(inner.capacity.saturating_sub(inner.image.used()))
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        write!(
            f,
            "SimDisk({} operations, {} unsynced)",
            inner.operations,
            inner.image.pending()
        )
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner.lock();
        if inner.life == self.life {
            inner.locks.remove(&self.path);
        }
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock({})", self.path.display())
    }
}

/// A draw between 0 and 1.
fn unit(stream: &mut Stream) -> f64 {
    let entropy: &mut dyn Entropy = stream;
    entropy.unit()
}
