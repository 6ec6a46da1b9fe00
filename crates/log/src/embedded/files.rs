//! The names in the directory of a log, and errors that say which file it was.
//!
//! ```text
//! lock                        who has the directory
//! manifest                    the last checkpoint
//! manifest.copy               the same, or a later one that was put in place half
//! journal-0000000000000007-67108864    journal files by number, and how long each was made
//! spare-0000000000000002      zero-filled, to become a journal file
//! topic-NAME/0-00000000000000000000-0.seg    partition, first offset, generation
//! topic-NAME/0-00000000000000000000-0.idx    the index of that segment
//! aside-…                     bytes that are not part of the log any more, kept for people
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::Topic;
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::segment::Segment;
use crate::error::LogError;
use crate::record::TopicPartition;

pub(super) const LOCK: &str = "lock";
pub(super) const MANIFEST: &str = "manifest";
pub(super) const MANIFEST_COPY: &str = "manifest.copy";
pub(super) const MANIFEST_NEW: &str = "manifest.new";
const JOURNAL: &str = "journal-";
const SPARE: &str = "spare-";
const TOPIC: &str = "topic-";
const ASIDE: &str = "aside-";

/// The name of a journal file that is made so long. A shorter file of that name was cut.
pub(super) fn journal(number: u64, len: u64) -> String {
    format!("{JOURNAL}{number:016}-{len}")
}

pub(super) fn journal_number(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(JOURNAL)?;
    let number = rest.split_once('-').map_or(rest, |(number, _)| number);
    number.parse().ok()
}

/// How long a journal file was made; none where its name does not tell, as in version 1.
pub(super) fn journal_len(name: &str) -> Option<u64> {
    let (_, len) = name.strip_prefix(JOURNAL)?.split_once('-')?;
    len.parse().ok()
}

/// The names of the journal files, by their numbers. Of two with one number the one that tells its
/// length counts: it was put in place of the other.
pub(super) fn journals(disk: &dyn Disk, dir: &Path) -> Result<BTreeMap<u64, String>, LogError> {
    let mut names = BTreeMap::new();
    let mut entries = disk.list(dir).doing("list", dir)?;
    entries.sort_unstable_by_key(|entry| journal_len(&entry.name).is_some());
    for entry in entries {
        if let Some(number) = journal_number(&entry.name) {
            names.insert(number, entry.name);
        }
    }
    Ok(names)
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

/// Whether something of this name is a part of a log that tells of records, or may hold some.
pub(super) fn is_log(name: &str) -> bool {
    [MANIFEST, MANIFEST_COPY].contains(&name)
        || journal_number(name).is_some()
        || is_topic_dir(name)
}

/// Whether something of this name tells that a log was opened here, and no more.
pub(super) fn is_trace(name: &str) -> bool {
    [LOCK, MANIFEST_NEW].contains(&name) || spare_number(name).is_some() || name.starts_with(ASIDE)
}

/// The topic whose directory has this name.
pub(super) fn topic_of(name: &str) -> Option<Topic> {
    Topic::new(name.strip_prefix(TOPIC)?).ok()
}

/// The name of the index beside a segment.
pub(super) fn index_of(segment: &str) -> String {
    segment.replace(".seg", ".idx")
}

/// The file of a segment of a partition.
pub(super) fn segment_path(dir: &Path, at: &TopicPartition, segment: &Segment) -> PathBuf {
    let number = u32::try_from(at.partition.0).unwrap_or(0);
    topic_dir(dir, &at.topic).join(segment.name(number))
}

/// Says what was being done to which file.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LogError>;

    /// None where there is no such file or directory.
    fn if_there(self) -> io::Result<Option<T>>;
}

impl<T> Doing<T> for io::Result<T> {
    fn if_there(self) -> io::Result<Option<T>> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            done => done.map(Some),
        }
    }

    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LogError> {
        self.map_err(|source| LogError::Disk {
            doing,
            path: path.to_owned(),
            source,
        })
    }
}

/// Opens a file to read it; none where it is not there.
pub(super) fn open_if_there(
    disk: &dyn Disk,
    path: &Path,
) -> Result<Option<Box<dyn DiskFile>>, LogError> {
    let opened = disk.open(path, OpenMode::Read);
    opened.if_there().doing("open", path)
}

/// Makes a file, in place of one that has the name.
pub(super) fn make_anew(disk: &dyn Disk, path: &Path) -> Result<Box<dyn DiskFile>, LogError> {
    disk.remove(path).if_there().doing("remove", path)?;
    disk.open(path, OpenMode::CreateNew).doing("make", path)
}

/// Opens a file to write to it, and makes it where it is not there.
pub(super) fn open_or_make(disk: &dyn Disk, path: &Path) -> Result<Box<dyn DiskFile>, LogError> {
    match disk.open(path, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.open(path, OpenMode::Write).doing("open", path)
        }
        opened => opened.doing("make", path),
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
    let mut file = make_anew(disk, &from)?;
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
                // The same bytes, kept by a process that died before it could go on, or sync them.
                if disk
                    .read(&path, bytes.len() as u64)
                    .is_ok_and(|b| b == bytes)
                {
                    let mut file = disk.open(&path, OpenMode::Write).doing("open", &path)?;
                    file.sync().doing("sync", &path)?;
                    disk.sync_dir(dir).doing("sync", dir)?;
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
    rename_aside_as(disk, dir, name, name)
}

/// The same, under a name that tells more.
pub(super) fn rename_aside_as(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    what: &str,
) -> Result<PathBuf, LogError> {
    let entries = disk.list(dir).doing("list", dir)?;
    let is_free = |aside: &String| entries.iter().all(|entry| entry.name != *aside);
    let mut asides = (0_u64..).map(|attempt| format!("aside-{what}-{attempt}"));
    let aside = asides.find(is_free).unwrap_or_default();
    let (from, to) = (dir.join(name), dir.join(aside));
    disk.replace(&from, &to).doing("rename", &from)?;
    Ok(to)
}
