//! The names in the directory of a log, and errors that say which file it was.
//!
//! ```text
//! lock                        who has the directory
//! manifest                    the last checkpoint
//! journal-0000000000000007    journal files by number; the last ones count
//! spare-0000000000000002      zero-filled, to become a journal file
//! topic-NAME/0-00000000000000000000-0.seg    partition, first offset, generation
//! topic-NAME/0-00000000000000000000-0.idx    the index of that segment
//! aside-…                     bytes that are not part of the log any more, kept for people
//! ```

use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::Topic;
use tidegate_core::env::{Disk, OpenMode};

use crate::error::LogError;

pub(super) const LOCK: &str = "lock";
pub(super) const MANIFEST: &str = "manifest";
pub(super) const MANIFEST_NEW: &str = "manifest.new";
const JOURNAL: &str = "journal-";
const SPARE: &str = "spare-";
const TOPIC: &str = "topic-";

pub(super) fn journal(number: u64) -> String {
    format!("{JOURNAL}{number:016}")
}

pub(super) fn journal_number(name: &str) -> Option<u64> {
    name.strip_prefix(JOURNAL)?.parse().ok()
}

pub(super) fn spare(number: u64) -> String {
    format!("{SPARE}{number:016}")
}

pub(super) fn spare_number(name: &str) -> Option<u64> {
    name.strip_prefix(SPARE)?.parse().ok()
}

/// A topic may be called `..`; its directory never is.
pub(super) fn topic_dir(dir: &Path, topic: &Topic) -> PathBuf {
    dir.join(format!("{TOPIC}{topic}"))
}

pub(super) fn is_topic_dir(name: &str) -> bool {
    name.starts_with(TOPIC)
}

/// The name of the index beside a segment.
pub(super) fn index_of(segment: &str) -> String {
    segment.replace(".seg", ".idx")
}

/// Says what was being done to which file.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LogError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LogError> {
        self.map_err(|source| LogError::Disk {
            doing,
            path: path.to_owned(),
            source,
        })
    }
}

/// Whether the disk had no room: nothing is broken, and it may have room later.
pub(super) fn is_full(error: &LogError) -> bool {
    matches!(error, LogError::Disk { source, .. }
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// Whether a file was not there.
pub(super) fn is_missing(error: &LogError) -> bool {
    matches!(error, LogError::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Whether it was a sync that failed, which is final whatever it says: a later one that succeeds
/// proves nothing.
pub(super) fn is_failed_sync(error: &LogError) -> bool {
    matches!(error, LogError::Disk { doing: "sync", .. })
}

/// Writes a small file whole: under another name first, synced, then put in its place.
pub(super) fn replace(
    disk: &dyn Disk,
    dir: &Path,
    (new, name): (&str, &str),
    bytes: &[u8],
) -> Result<(), LogError> {
    let (from, to) = (dir.join(new), dir.join(name));
    match disk.remove(&from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.doing("remove", &from)?,
    }
    let mut file = disk.open(&from, OpenMode::CreateNew).doing("make", &from)?;
    file.append(bytes).doing("write", &from)?;
    file.sync().doing("sync", &from)?;
    disk.replace(&from, &to).doing("put in place", &to)
}

/// Keeps bytes aside under a name of their own, durably.
pub(super) fn keep_aside(
    disk: &dyn Disk,
    dir: &Path,
    what: &str,
    bytes: &[u8],
) -> Result<PathBuf, LogError> {
    for attempt in 0_u32.. {
        let path = dir.join(format!("aside-{what}-{attempt}"));
        match disk.open(&path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The same bytes, kept by a process that died before it could go on.
                if disk
                    .read(&path, bytes.len() as u64)
                    .is_ok_and(|b| b == bytes)
                {
                    return Ok(path);
                }
            }
            opened => {
                let mut file = opened.doing("make", &path)?;
                let written = file.append(bytes).doing("write", &path);
                let written = written.and_then(|()| file.sync().doing("sync", &path));
                if let Err(error) = written {
                    // A part of it is of no use; if it stays, the next attempt takes another name.
                    disk.remove(&path).ok();
                    return Err(error);
                }
                disk.sync_dir(dir).doing("sync", dir)?;
                return Ok(path);
            }
        }
    }
    Ok(dir.to_owned())
}

/// Keeps a whole file aside under a name that none has, durably.
pub(super) fn rename_aside(disk: &dyn Disk, dir: &Path, name: &str) -> Result<PathBuf, LogError> {
    let entries = disk.list(dir).doing("list", dir)?;
    let is_free = |aside: &String| entries.iter().all(|entry| entry.name != *aside);
    let mut asides = (0_u64..).map(|attempt| format!("aside-{name}-{attempt}"));
    let aside = asides.find(is_free).unwrap_or_default();
    let (from, to) = (dir.join(name), dir.join(aside));
    disk.replace(&from, &to).doing("rename", &from)?;
    Ok(to)
}
