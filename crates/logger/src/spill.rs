//! The spill directory: events on disk that wait for replay.
//!
//! # Files
//!
//! | file | role | written | removed |
//! |---|---|---|---|
//! | `eventlog-spillover.jsonl` | active: new events are appended here | whole batches, synced | renamed at rotation |
//! | `eventlog-spillover.replay.jsonl` | snapshot that is being replayed | never | when every line is replayed |
//! | `eventlog-spillover.replay.cursor` | how far replay has come: two slots of 64 bytes | in turn, synced | after the snapshot |
//! | `eventlog-spillover.sealed-N.jsonl` | an active file whose sync failed | never | renamed when its turn comes |
//! | `eventlog-spillover.corrupt.jsonl` | lines that cannot be read, byte for byte | appended, synced | never |
//! | `eventlog-spillover.rejected.jsonl` | events that the API refused for good | appended, synced | never |
//! | `….corrupt-N.jsonl`, `….rejected-N.jsonl` | earlier ones of these two, whose sync failed | never | never |
//! | `eventlog-spillover.books` | the books: two slots with a checksum | in turn, synced | never |
//! | `eventlog-spillover.lock` | held by the one process that may write, and says which it is | at opening | never |
//! | `eventlog-spillover.leftover-N.jsonl` | what a Java client was writing when it ended | never | never |
//!
//! # A line
//!
//! The event's own JSON object with up to four properties of ours at its end:
//!
//! - `_id`: the id of the event.
//! - `_seq`: its number, per directory, never given to another event.
//! - `_sum`: the running sum of all ids up to here, on the last line of each batch.
//! - `_crc`: the CRC32C of all bytes before it.
//!
//! Readers ignore properties they do not know; lines without ours are read too.
//!
//! # What a crash leaves
//!
//! A batch is written whole, synced, and only then promised. So a batch that has a successor was
//! synced; only the last one may have holes, and nobody was promised anything of it. A rename is
//! durable with its directory; an active file that was not renamed yet is simply still active. A
//! cursor that is behind costs duplicates, which carry their id. The books carry the cursor they
//! agree with, so that they can be checked whichever of the two files is newer.
//!
//! **Invariant:** a line is removed from the directory only after one of two things: the API has stored
//! it, or a copy of it was synced to a file that is kept.
//! **Invariant:** after a sync failed, that file is never synced again and nothing that was not
//! covered by an earlier sync is trusted.

mod batch;
mod books_file;
mod cursor;
mod directory;
mod find;
mod holder;
mod inspect;
mod line;
mod recount;
mod replay;
mod scan;
mod set_aside;
mod spool;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::books::{Bucket, Tally};
use tidegate_core::env::{Disk, DiskFile, OpenMode};
use tidegate_core::{Classify, EventId, FailureClass};

pub(crate) use batch::{AppendPosition, BatchWritten, Prepared, SyncHandle, WriteOutcome};
pub use directory::SpillDirectory;
pub use find::find;
pub use inspect::{FindingLevel, InspectedFile, Role, SpillFinding, SpillInspection, inspect};
pub use recount::{SpillRecount, recount};
pub(crate) use replay::ReplayBatch;
pub(crate) use set_aside::Rejection;
pub(crate) use spool::{AppendResult, Caps, Recovered, Spool, post_corrupt_lines};

/// The active file.
pub const ACTIVE: &str = "eventlog-spillover.jsonl";
/// The snapshot that is being replayed.
pub const REPLAY: &str = "eventlog-spillover.replay.jsonl";
/// How far replay has come.
pub const CURSOR: &str = "eventlog-spillover.replay.cursor";
/// Lines that cannot be read.
pub const CORRUPT: &str = "eventlog-spillover.corrupt.jsonl";
/// Events that the API refused for good.
pub const REJECTED: &str = "eventlog-spillover.rejected.jsonl";
/// The books.
pub const BOOKS: &str = "eventlog-spillover.books";
/// The lock.
pub const LOCK: &str = "eventlog-spillover.lock";

/// Longest line that is read as one; a longer one is set aside.
pub const MAX_LINE: usize = 4 * 1024 * 1024;

/// Bytes of a line of an ordinary event, that is of the documented samples: what a cap is worth in
/// events.
pub const EVENT_BYTES: u64 = 400;

/// Active files whose sync failed, kept at the same time; past it the disk is given up.
pub const MAX_SEALED: usize = 8;

/// Kinds of files that have numbers.
const SEALED: &str = "sealed";
const LEFTOVER: &str = "leftover";

/// The name of a file of this kind with a number.
fn numbered(kind: &str, number: u32) -> String {
    format!("eventlog-spillover.{kind}-{number}.jsonl")
}

/// The number of a file of this kind.
fn number_of(name: &str, kind: &str) -> Option<u32> {
    let rest = name.strip_prefix("eventlog-spillover.")?;
    let rest = rest.strip_prefix(kind)?.strip_prefix('-')?;
    rest.strip_suffix(".jsonl")?.parse().ok()
}

/// The names of all files of a directory.
fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, SpillError> {
    let listed = at("list", dir, disk.list(dir))?;
    Ok(listed.into_iter().map(|entry| entry.name).collect())
}

/// The sums of lines, by bucket.
type Tallies = BTreeMap<Bucket, Tally>;

fn add(tallies: &mut Tallies, bucket: Bucket, tally: Tally) {
    let sum = tallies.entry(bucket).or_default();
    *sum = sum.plus(tally);
}

fn add_one(tallies: &mut Tallies, id: EventId) {
    add(tallies, Bucket::of(id), Tally::of(id));
}

/// Why the spill directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// Another process writes to the directory.
    #[error("spill directory `{dir}` is used by {holder}, which holds `{LOCK}`")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Which process it is, as far as that is known.
        holder: String,
    },
    /// A file could not be read, written or renamed.
    #[error("could not {doing} `{path}`")]
    Disk {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Too many active files failed to sync.
    #[error("{count} spill files in `{dir}` could not be synced; the disk is given up")]
    TooManySealed {
        /// The directory.
        dir: PathBuf,
        /// How many.
        count: usize,
    },
}

impl SpillError {
    /// Whether the disk has no room, which may pass.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Disk { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Locked { .. } | Self::TooManySealed { .. } => false,
        }
    }
}

impl Classify for SpillError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Locked { .. } | Self::Disk { .. } | Self::TooManySealed { .. } => {
                FailureClass::System
            }
        }
    }
}

/// Puts a synced copy of a file in its place.
///
/// After a process whose sync failed, the bytes that reads show may not be on the disk. A sync by the
/// next process would not write them: they were thrown away and count as written. A copy is written
/// anew.
///
/// A disk without room for a copy keeps the file as it is. Its lines can only be sent, and room
/// be made, if it is read.
fn rewrite(disk: &dyn Disk, path: &Path) -> Result<(), SpillError> {
    let temporary = path.with_extension("new");
    // A crash may have left an earlier try.
    disk.remove(&temporary).ok();
    match copy(disk, path, &temporary) {
        Err(error) if error.is_full() => {
            tracing::warn!(
                path = %path.display(),
                "no room to copy the file; overwriting it in place"
            );
            disk.remove(&temporary).ok();
            rewrite_in_place(disk, path)
        }
        Err(error) => Err(error),
        Ok(()) => at("replace", path, disk.replace(&temporary, path)),
    }
}

/// Writes a file over itself, which needs no room, and syncs it. A power cut half-way leaves the old
/// bytes or the new ones, which are the same.
fn rewrite_in_place(disk: &dyn Disk, path: &Path) -> Result<(), SpillError> {
    let new = at("open", path, disk.open(path, OpenMode::Write))?;
    let write = |new: &mut dyn DiskFile, offset, bytes: &[u8]| new.write_at(offset, bytes);
    copy_bytes(disk, path, path, new, write)
}

fn copy(disk: &dyn Disk, path: &Path, to: &Path) -> Result<(), SpillError> {
    let new = at("create", to, disk.open(to, OpenMode::CreateNew))?;
    copy_bytes(disk, path, to, new, |new, _, bytes| new.append(bytes))
}

/// Writes all bytes of a file to another one, and syncs that.
fn copy_bytes(
    disk: &dyn Disk,
    path: &Path,
    to: &Path,
    mut new: Box<dyn DiskFile>,
    write: impl Fn(&mut dyn DiskFile, u64, &[u8]) -> io::Result<()>,
) -> Result<(), SpillError> {
    let old = at("open", path, disk.open(path, OpenMode::Read))?;
    // Bytes that are copied at a time.
    let mut buffer = vec![0; 256 * 1024];
    let mut offset = 0;
    loop {
        let read = at("read", path, old.read_at(offset, &mut buffer))?;
        if read == 0 {
            return at("sync", to, new.sync());
        }
        at("write", to, write(&mut *new, offset, &buffer[..read]))?;
        offset += read as u64;
    }
}

/// Makes a file of this size.
fn create_filled(disk: &dyn Disk, path: &Path, size: u64) -> Result<Box<dyn DiskFile>, SpillError> {
    let mut file = at("create", path, disk.open(path, OpenMode::CreateNew))?;
    if let Err(error) = file.preallocate(size) {
        // On a full disk it would only be in the way.
        disk.remove(path).ok();
        return at("fill", path, Err(error));
    }
    Ok(file)
}

/// Opens a file of two slots, or makes it with room for both. Where it is not `is_trusted`, nothing
/// says that it is synced: a process may be killed while it syncs its last word. After a sync that
/// failed only a copy is sure to be written.
fn open_slots(
    disk: &dyn Disk,
    path: &Path,
    size: u64,
    is_trusted: bool,
) -> Result<Box<dyn DiskFile>, SpillError> {
    match disk.open(path, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut file = create_filled(disk, path, size)?;
            at("sync", path, file.sync())?;
            let dir = path.parent().unwrap_or(path);
            at("sync", dir, disk.sync_dir(dir))?;
            Ok(file)
        }
        Ok(_) if !is_trusted => {
            rewrite(disk, path)?;
            at("open", path, disk.open(path, OpenMode::Write))
        }
        opened => at("open", path, opened),
    }
}

/// Ties an I/O error to what was being done.
fn at<T>(doing: &'static str, path: &Path, result: io::Result<T>) -> Result<T, SpillError> {
    result.map_err(|source| SpillError::Disk {
        doing,
        path: path.to_owned(),
        source,
    })
}
