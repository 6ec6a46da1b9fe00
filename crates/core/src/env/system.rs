//! The ports of this machine: the one place that knows the operating system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{
    BoxFuture, CatchPanic, Clock, DirEntry, Disk, DiskFile, DiskLock, OpenMode, Sleep, Spawn,
    Stream, Task, TaskOutcome,
};

/// The clocks of this machine. Sleeping needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose [`elapsed`](Clock::elapsed) starts now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the monotonic clock"
    )]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that sleeps on the real clock"
    )]
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// This host and this process, as a name that people recognize.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the name of the host is in a file that is no data of ours"
)]
pub fn process_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "localhost" } else { host };
    format!("{host}-{}", std::process::id())
}

/// A stream that is seeded by the operating system.
///
/// # Panics
/// When the operating system has no randomness to give: ids could then repeat, and nothing that
/// follows would be safe.
#[must_use]
pub fn system_entropy() -> Stream {
    let word = || getrandom::u64().expect("the operating system gives randomness");
    Stream::from_words([word(), word()])
}

/// The file systems of this machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemDisk;

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that touches the file system"
)]
impl Disk for SystemDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        // Opening a pipe waits for its other end, for ever if nobody has it.
        if mode != OpenMode::CreateNew {
            must_be_regular(&fs::metadata(path)?)?;
        }
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        let file = options.open(path)?;
        Ok(Box::new(SystemFile { file }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // Names that are not UTF-8 are nobody's of ours.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let metadata = match entry.metadata() {
                // It was removed while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let is_dir = metadata.is_dir();
            entries.push(DirEntry {
                name,
                len: if is_dir { 0 } else { metadata.len() },
                is_dir,
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        // Each new entry is durable only once its parent is synced, so the path is walked up to
        // the first directory that is there already.
        let mut missing = Vec::new();
        let mut at = Some(dir);
        while let Some(path) = at.filter(|p| !p.as_os_str().is_empty()) {
            match fs::metadata(path) {
                Ok(found) if found.is_dir() => {
                    // Made by somebody who may have died before syncing its parent. A parent that
                    // we may not open was not made by us.
                    match self.sync_dir(parent(path)) {
                        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                            return Err(error);
                        }
                        Ok(()) | Err(_) => break,
                    }
                }
                Ok(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(path),
                Err(error) => return Err(error),
            }
            at = path.parent();
        }
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => self.sync_dir(parent(path))?,
            }
        }
        Ok(())
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        if parent(from) != parent(to) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        fs::rename(from, to)?;
        self.sync_dir(parent(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let file = match path.is_dir() {
            true => File::open(path)?,
            false => OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Box::new(SystemLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn space_left(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

fn must_be_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a pipe, a socket or a device, and no regular file",
        )),
    }
}

/// The directory that holds `path`; a bare name lies in the current one.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        Some(_) | None => Path::new("."),
    }
}

#[derive(Debug)]
struct SystemFile {
    file: File,
}

impl DiskFile for SystemFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The end is asked for each time: another handle, or a write that failed half-way, may
        // have moved it, and writing over it would destroy what is there. Not by `O_APPEND`,
        // because positioned writes ignore their position on a file that was opened with it.
        let end = self.file.metadata()?.len();
        self.file.write_all_at(bytes, end)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&mut self, offset: u64, len: u64) {
        use rustix::fs::{Advice, fadvise};
        // Linux begins to write such bytes out, and forgets them only where that has already ended.
        // Bytes that it does not take are left to the sync.
        fadvise(&self.file, offset, len.try_into().ok(), Advice::DontNeed).ok();
    }

    #[cfg(not(target_os = "linux"))]
    fn begin_sync(&mut self, _offset: u64, _len: u64) {}

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn preallocate(&mut self, len: u64) -> io::Result<()> {
        /// Large enough that the system call does not matter, small enough for any stack of ours.
        const CHUNK: usize = 64 * 1024;
        let zeros = vec![0; CHUNK];
        let mut at = self.len()?;
        while at < len {
            let step = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
            self.write_at(at, &zeros[..step])?;
            at += step as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[derive(Debug)]
struct SystemLock {
    _file: File,
}

impl DiskLock for SystemLock {}

/// Tasks on the tokio runtime that is current where they are spawned.
#[derive(Debug, Clone, Copy)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &str, task: BoxFuture<'static>) -> Task {
        let (tell, done) = oneshot::channel();
        let running = Handle::current().spawn(async move {
            report(tell, outcome_of(task).await);
        });
        Task::new(done, move || running.abort())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that starts threads"
    )]
    fn spawn_thread(&self, name: &str, task: BoxFuture<'static>) -> Task {
        let (tell, done) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = Handle::current();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let outcome = runtime.block_on(async {
                    tokio::select! {
                        biased;
                        outcome = outcome_of(task) => outcome,
                        // The sender going away is no request to stop: a dropped `Task` lets it run.
                        Ok(()) = stopped => TaskOutcome::Aborted,
                    }
                });
                report(tell, outcome);
            });
        let stop = std::sync::Mutex::new(Some(stop));
        let abort = move || {
            let taken = stop.lock().ok().and_then(|mut slot| slot.take());
            if let Some(stop) = taken {
                // The thread may have ended by itself; then nobody listens, and nothing is to do.
                stop.send(()).ok();
            }
        };
        match thread {
            Ok(_detached) => Task::new(done, abort),
            // No thread, no sender: joining the task says that it was aborted.
            Err(_) => Task::new(oneshot::channel().1, || {}),
        }
    }
}

fn report(tell: oneshot::Sender<TaskOutcome>, outcome: TaskOutcome) {
    // Nobody may be waiting for the end, which is their choice.
    tell.send(outcome).ok();
}

/// Runs a task and says how it ended.
async fn outcome_of(task: BoxFuture<'static>) -> TaskOutcome {
    match CatchPanic(task).await {
        Ok(()) => TaskOutcome::Completed,
        Err(message) => TaskOutcome::Panicked(message),
    }
}
