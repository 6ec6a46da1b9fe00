//! Opens a directory: takes the lock, finds what is there, and makes it whole.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::env::{Clock, Disk, DiskLock, OpenMode};

use super::config::EmbeddedConfig;
use super::files::{self, Doing, LOCK};
use super::hub::{Hub, Status};
use super::journal::Journal;
use super::keeper::Keeper;
use super::manifest;
use super::recover::{self, Found};
use super::state::{JournalPlace, State};
use super::writer::Writer;
use crate::error::LogError;

/// More than a lock file says.
const HOLDER_LIMIT: u64 = 4_096;

/// The parts of an opened log, before anybody runs them.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) hub: Arc<Hub>,
    pub(super) writer: Writer,
    pub(super) keeper: Keeper,
    pub(super) lock: Box<dyn DiskLock>,
}

/// Opens a directory. `write` is a random number, from which writes are counted.
///
/// # Errors
/// Another process has it, it is of another version, or the disk fails.
pub(super) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    config: EmbeddedConfig,
    write: u64,
) -> Result<Opened, LogError> {
    let dir = config.dir.clone();
    disk.create_dir_all(&dir).doing("make", &dir)?;
    let lock = take_lock(&*disk, &config)?;
    let mut found = match recover::look(&*disk, &dir)? {
        Some(found) => found,
        None => begin(&*disk, &config)?,
    };
    if found.state.cluster != config.cluster {
        tracing::warn!(
            cluster = %found.state.cluster,
            configured = %config.cluster,
            "the log keeps the name it was made with"
        );
    }
    let is_tail_kept = report(&*disk, &dir, &found)?;
    if let Some(behind) = found.lost_end.take() {
        begin_behind(&*disk, &dir, &mut found, &behind)?;
    }
    let place = found.state.journal;
    let mut journal = Journal::open(Arc::clone(&disk), &dir, config.journal_size, place)?;
    if !is_tail_kept {
        journal.leave_file();
    }
    if let Some((at, bytes)) = &found.unproven {
        journal.rewrite(*at, bytes)?;
    }
    let pool = pool(&*disk, &dir, &found, place)?;
    let leftovers = Leftovers {
        disk: &*disk,
        dir: &dir,
        is_damaged: !found.damage.is_empty(),
    };
    leftovers.clear(&found.state)?;
    let (checkpoint, checkpoint_sequence) = found.checkpoint;
    let status = Status {
        checkpoint,
        checkpoint_sequence,
        ..Status::default()
    };
    let hub = Hub::new(config, disk, clock, found.state, status, pool.names);
    let hub = Arc::new(hub);
    Ok(Opened {
        writer: Writer::new(Arc::clone(&hub), journal, write),
        keeper: Keeper::new(Arc::clone(&hub), checkpoint.file, pool.next_spare),
        hub,
        lock,
    })
}

fn take_lock(disk: &dyn Disk, config: &EmbeddedConfig) -> Result<Box<dyn DiskLock>, LogError> {
    let path = config.dir.join(LOCK);
    let lock = match disk.lock(&path) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let text = disk.read(&path, HOLDER_LIMIT).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            let holder = match text.is_empty() {
                true => String::new(),
                false => format!(" ({text})"),
            };
            return Err(LogError::Locked {
                dir: config.dir.clone(),
                holder,
            });
        }
        taken => taken.doing("lock", &path)?,
    };
    let mut text = format!("process {}", std::process::id());
    if let Some(holder) = &config.holder {
        text.push_str(", ");
        text.push_str(holder);
    }
    text.push('\n');
    // What it says is for people; the lock holds without it.
    let written = disk.open(&path, OpenMode::Write).and_then(|mut file| {
        file.truncate(0)?;
        file.append(text.as_bytes())
    });
    if let Err(error) = written {
        tracing::debug!(%error, "the lock file does not name its holder");
    }
    Ok(lock)
}

/// Makes a new log: the manifest comes first, so that whatever follows can be explained.
fn begin(disk: &dyn Disk, config: &EmbeddedConfig) -> Result<Found, LogError> {
    let state = State {
        cluster: config.cluster.clone(),
        journal: JournalPlace { file: 1, at: 0 },
        ..State::default()
    };
    manifest::write(disk, &config.dir, &state)?;
    Ok(Found {
        checkpoint: (state.journal, state.sequence),
        state,
        unproven: None,
        torn: None,
        damage: Vec::new(),
        lost_end: None,
        replayed: 0,
    })
}

/// Goes on in a file of a number that none has, where the one in which the journal ended is
/// missing. Nothing was read from the journal, so that the state is what the manifest says but for
/// that place. Files behind the missing one are kept aside first: by their numbers they would be
/// used again.
fn begin_behind(
    disk: &dyn Disk,
    dir: &Path,
    found: &mut Found,
    behind: &[u64],
) -> Result<(), LogError> {
    for number in behind {
        let kept = files::rename_aside(disk, dir, &files::journal(*number))?;
        tracing::error!(kept = %kept.display(), "a journal file follows one that is missing");
    }
    let last = behind.last().copied();
    let last = last.unwrap_or(found.state.journal.file);
    found.state.journal = JournalPlace {
        file: last + 1,
        at: 0,
    };
    manifest::write(disk, dir, &found.state)?;
    found.checkpoint = (found.state.journal, found.state.sequence);
    Ok(())
}

/// Keeps a torn tail aside and says what was found. False where there was no room for that: then
/// the tail must stay where it is.
fn report(disk: &dyn Disk, dir: &Path, found: &Found) -> Result<bool, LogError> {
    let mut is_tail_kept = true;
    if let Some(torn) = &found.torn {
        let what = format!("journal-{:016}-{}", torn.place.file, torn.place.at);
        match files::keep_aside(disk, dir, &what, &torn.bytes) {
            Err(error) if files::is_full(&error) => {
                tracing::warn!(%error, "the journal ended in a write that was never acknowledged; it stays in its file");
                is_tail_kept = false;
            }
            kept => tracing::warn!(
                bytes = torn.bytes.len(),
                kept = %kept?.display(),
                "the journal ended in a write that was never acknowledged; it was cut"
            ),
        }
    }
    for damage in &found.damage {
        let path = dir.join(&damage.file);
        // The rest of that file, before anybody writes to it again.
        let file = match disk.read(&path, u64::MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::error!(
                    file = %damage.file,
                    first = damage.sequences.0,
                    behind = damage.sequences.1,
                    why = %damage.why,
                    "a journal file is missing; `tidegate log check` tells more"
                );
                continue;
            }
            read => read.doing("read", &path)?,
        };
        let rest = file.get(usize::try_from(damage.at).unwrap_or(usize::MAX)..);
        let what = format!("damaged-{}-{}", damage.file, damage.at);
        // Of a file that was cut off before that place, all that there is.
        let kept = files::keep_aside(disk, dir, &what, rest.unwrap_or(&file))?;
        tracing::error!(
            kept = %kept.display(),
            file = %damage.file,
            at = damage.at,
            first = damage.sequences.0,
            behind = damage.sequences.1,
            why = %damage.why,
            "a part of the journal is damaged; `tidegate log check` tells more"
        );
    }
    if found.replayed > 0 {
        tracing::info!(
            groups = found.replayed,
            "the log was recovered from its journal"
        );
    }
    Ok(is_tail_kept)
}

struct Pool {
    names: Vec<String>,
    next_spare: u64,
}

/// The journal files that may be used again: those before the checkpoint, those behind the end of
/// the journal, and those that were made ready.
fn pool(disk: &dyn Disk, dir: &Path, found: &Found, end: JournalPlace) -> Result<Pool, LogError> {
    let first = found.checkpoint.0.file;
    let mut pool = Pool {
        names: Vec::new(),
        next_spare: 0,
    };
    for entry in disk.list(dir).doing("list", dir)? {
        let number = files::journal_number(&entry.name);
        let spare = files::spare_number(&entry.name);
        if let Some(spare) = spare {
            pool.next_spare = pool.next_spare.max(spare + 1);
        }
        let is_free = number.is_some_and(|n| n < first || n > end.file) || spare.is_some();
        // Damage in the journal is looked at by people; nothing of it is used again.
        if is_free && found.damage.is_empty() {
            pool.names.push(entry.name);
        }
    }
    Ok(pool)
}

/// Files of segments that nobody speaks of.
struct Leftovers<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    /// Whether they may hold what was lost elsewhere; then they are kept.
    is_damaged: bool,
}

impl Leftovers<'_> {
    /// Removes what the journal replaces: segments that were begun, or given up, after the last
    /// checkpoint.
    fn clear(&self, state: &State) -> Result<(), LogError> {
        for (topic, number) in state.topics.iter().zip(0..) {
            let dir = files::topic_dir(self.dir, &topic.name);
            let entries = match self.disk.list(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                listed => listed.doing("list", &dir)?,
            };
            let mut known = BTreeSet::new();
            for (partition, p) in topic.partitions.iter().zip(0..) {
                for segment in &partition.segments {
                    let name = segment.name(p);
                    known.insert(files::index_of(&name));
                    known.insert(name);
                }
            }
            let waiting = state
                .garbage
                .iter()
                .filter(|garbage| garbage.topic == number);
            for garbage in waiting {
                known.insert(files::index_of(&garbage.name));
                known.insert(garbage.name.clone());
            }
            for entry in entries.iter().filter(|entry| is_segment(&entry.name)) {
                if !known.contains(&entry.name) {
                    self.clear_one(&dir, &entry.name)?;
                }
            }
        }
        Ok(())
    }

    fn clear_one(&self, dir: &Path, name: &str) -> Result<(), LogError> {
        let path = dir.join(name);
        if self.is_damaged {
            let aside = dir.join(format!("aside-{name}"));
            return self.disk.replace(&path, &aside).doing("rename", &path);
        }
        self.disk.remove(&path).doing("remove", &path)
    }
}

fn is_segment(name: &str) -> bool {
    let path = Path::new(name);
    let is = |extension: &str| path.extension().is_some_and(|found| found == extension);
    !name.starts_with("aside-") && (is("seg") || is("idx"))
}
