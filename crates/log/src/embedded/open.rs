//! Opens a directory: takes the lock, finds what is there, and makes it whole.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::env::{Clock, Disk, DiskLock, Entropy, OpenMode, Stream};

use super::config::EmbeddedConfig;
use super::context::{EmbeddedContext, LogStatus, RefusalReason};
use super::files::{self, Doing, LOCK};
use super::journal::Journal;
use super::lock_holder::LockHolder;
use super::maintenance::{Maintenance, PendingRecovery};
use super::manifest;
use super::recover::{self, RecoveredLog};
use super::secret::LogSecret;
use super::state::{JournalPlace, LogState};
use super::writer::JournalWriter;
use crate::error::LogError;

/// The parts of an opened log, before anybody runs them.
#[derive(Debug)]
pub(super) struct OpenedLog {
    pub(super) context: Arc<EmbeddedContext>,
    pub(super) writer: JournalWriter,
    pub(super) maintenance: Maintenance,
    pub(super) lock: Locks,
}

/// The locks that keep others away: the lock file, which says who has the directory, and the directory itself,
/// which nobody removes.
#[derive(Debug)]
pub(super) struct Locks {
    _file: Box<dyn DiskLock>,
    _dir: Option<Box<dyn DiskLock>>,
}

/// Opens a directory. `random` is a number from which writes are counted, and from which the secret of a new
/// log is drawn.
///
/// # Errors
/// Another process has it, it is of another version, or the disk fails.
pub(super) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    config: EmbeddedConfig,
    random: u64,
) -> Result<OpenedLog, LogError> {
    let dir = config.dir.clone();
    disk.create_dir_all(&dir).doing("make", &dir)?;
    let lock = take_lock(&*disk, &config)?;
    let mut found = match recover::look(&*disk, &dir)? {
        Some(found) => found,
        None => begin(&*disk, &config, random)?,
    };
    if found.state.cluster != config.cluster {
        tracing::warn!(
            cluster = %found.state.cluster,
            configured = %config.cluster,
            "the cluster name of a log cannot change; using the old one"
        );
    }
    mend_manifest(&*disk, &dir)?;
    let is_tail_kept = report(&*disk, &dir, &found)?;
    let is_damaged = !found.damage.is_empty();
    if is_damaged {
        found.state.leave_segments();
    }
    let is_end_lost = found.lost_end.is_some();
    let place = found.state.journal;
    let mut journal = Journal::open(Arc::clone(&disk), &dir, config.journal_size, place)?;
    if !is_tail_kept || is_end_lost {
        journal.leave_file();
    }
    if let Some((at, bytes)) = &found.unproven {
        journal.rewrite(*at, bytes)?;
    }
    let pool = pool(&*disk, &dir, &found, place)?;
    if !is_damaged {
        let leftovers = Leftovers {
            disk: &*disk,
            dir: &dir,
            is_damaged,
        };
        leftovers.clear(&found.state)?;
    }
    let (checkpoint, mut checkpoint_sequence) = found.checkpoint;
    if is_end_lost {
        found.state.journal = JournalPlace {
            file: place.file + 1,
            at: 0,
        };
    }
    if is_damaged {
        // No checkpoint has what was found.
        checkpoint_sequence = u64::MAX;
    }
    let status = LogStatus {
        checkpoint,
        checkpoint_sequence,
        ..LogStatus::default()
    };
    let pending_recovery = is_damaged.then(|| PendingRecovery {
        unread: found.unread,
        behind: found.lost_end.unwrap_or_default(),
        is_noted: false,
    });
    let is_unproven = found.replayed > 0 && !found.is_proven;
    let context = EmbeddedContext::new(config, disk, clock, found.state, status, pool.names);
    let context = Arc::new(context);
    let mut opened = OpenedLog {
        writer: JournalWriter::new(Arc::clone(&context), journal, random, is_unproven),
        maintenance: Maintenance::new(
            Arc::clone(&context),
            checkpoint.file,
            pool.next_spare,
            pending_recovery,
        ),
        context,
        lock,
    };
    if is_damaged {
        opened.persist_recovery()?;
    }
    let is_written_down = !opened.context.status().is(RefusalReason::RecoveryPending);
    if is_written_down && (checkpoint.at == 0 || is_end_lost) {
        if_there_is_room(opened.begin_journal())?;
    }
    Ok(opened)
}

impl OpenedLog {
    /// Has the manifest know what was found: the journal goes on as if nothing had been there. Where the
    /// disk has no room for that, nothing is taken until it has.
    fn persist_recovery(&mut self) -> Result<(), LogError> {
        let done = self.maintenance.checkpoint();
        if let Err(error) = &done
            && files::is_full(error)
        {
            self.context
                .status()
                .set(RefusalReason::RecoveryPending, Some(error.to_string()));
        }
        if_there_is_room(done)
    }

    /// Has the manifest speak of a group in the journal's file: from here on a file that is missing is
    /// missed, also where the process ends before its next checkpoint.
    fn begin_journal(&mut self) -> Result<(), LogError> {
        if self.context.state().journal.at == 0 {
            self.writer.change(&[])?;
        }
        self.maintenance.checkpoint()
    }
}

/// A disk without room is no reason not to open: what could not be written is written later.
fn if_there_is_room(done: Result<(), LogError>) -> Result<(), LogError> {
    match done {
        Err(error) if files::is_full(&error) => {
            tracing::warn!(%error, "could not save the result of recovery yet; retrying");
            Ok(())
        }
        done => done,
    }
}

/// Puts the manifest and its copy right, where one of them is damaged, newer, or of an earlier version.
/// Does without where the disk has no room.
fn mend_manifest(disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
    let Some(found) = manifest::read(disk, dir)? else {
        return Ok(());
    };
    if let Some((name, why)) = &found.damage {
        tracing::error!(file = name, %why, "one of the two manifest copies is unreadable; using the other");
    }
    if found.damage.is_none() && !found.is_old && !found.is_copy_newer {
        return Ok(());
    }
    match manifest::mend(disk, dir, &found) {
        Err(error) if files::is_full(&error) => {
            tracing::warn!(%error, "could not rewrite the manifest yet");
            // It may have been put right, and only the manifest found no room.
            match manifest::read(disk, dir)? {
                Some(now) if now.is_copy_newer => manifest::remove_copy(disk, dir),
                Some(_) | None => Ok(()),
            }
        }
        done => done,
    }
}

fn take_lock(disk: &dyn Disk, config: &EmbeddedConfig) -> Result<Locks, LogError> {
    let path = config.dir.join(LOCK);
    let locked = || LogError::Locked {
        dir: config.dir.clone(),
        holder: LockHolder::read(disk, &path),
    };
    let is_held = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let file = match disk.lock(&path) {
        Err(error) if is_held(&error) => return Err(locked()),
        taken => taken.doing("lock", &path)?,
    };
    // Removing the lock file does not free the directory.
    let dir = match disk.lock(&config.dir) {
        Err(error) if is_held(&error) => return Err(locked()),
        Err(error) => {
            tracing::debug!(%error, "this file system cannot lock directories");
            None
        }
        Ok(taken) => Some(taken),
    };
    let lock = Locks {
        _file: file,
        _dir: dir,
    };
    let holder = LockHolder {
        process: Some(std::process::id()),
        url: config.answers_at.clone(),
    };
    // The lock holds without what the file says.
    let written = disk.open(&path, OpenMode::Write).and_then(|mut file| {
        file.truncate(0)?;
        file.append(format!("{holder}\n").as_bytes())
    });
    if let Err(error) = written {
        tracing::debug!(%error, "could not write the holder to the lock file");
    }
    Ok(lock)
}

/// Makes a new log: the manifest comes first, so that whatever follows can be explained.
fn begin(disk: &dyn Disk, config: &EmbeddedConfig, random: u64) -> Result<RecoveredLog, LogError> {
    let state = LogState {
        cluster: config.cluster.clone(),
        // Not the number itself: writes are counted from there, in their groups.
        secret: LogSecret::draw(Stream::new(random).next_u64()),
        journal: JournalPlace { file: 1, at: 0 },
        ..LogState::default()
    };
    manifest::write(disk, &config.dir, &state)?;
    Ok(RecoveredLog {
        checkpoint: (state.journal, state.sequence),
        state,
        ..RecoveredLog::default()
    })
}

/// Keeps a torn tail aside and says what was found. False where there was no room for that: then
/// the tail must stay where it is.
fn report(disk: &dyn Disk, dir: &Path, found: &RecoveredLog) -> Result<bool, LogError> {
    let mut is_tail_kept = true;
    if let Some(torn) = &found.torn {
        let what = format!("{}-{}", torn.file, torn.at);
        match files::keep_aside(disk, dir, &what, &torn.bytes) {
            Err(error) if files::is_full(&error) => {
                tracing::warn!(%error, "the journal ends in bytes that cannot be read: a write that was cut, or damage to the last commit; they stay in their file");
                is_tail_kept = false;
            }
            kept => tracing::warn!(
                bytes = torn.bytes.len(),
                kept = %kept?.display(),
                "the journal ended in bytes that cannot be read: a write that was cut, or damage to the last commit; they are kept aside"
            ),
        }
    }
    for damage in &found.damage {
        tracing::error!(
            file = %damage.file,
            at = damage.at,
            first = damage.sequences.0,
            behind = damage.sequences.1,
            why = %damage.why,
            "a part of the journal is damaged or missing; see `tidegate log check`"
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
fn pool(
    disk: &dyn Disk,
    dir: &Path,
    found: &RecoveredLog,
    end: JournalPlace,
) -> Result<Pool, LogError> {
    let first = found.checkpoint.0.file;
    let mut pool = Pool {
        names: Vec::new(),
        // That of number 0 belongs to the journal.
        next_spare: 1,
    };
    for entry in disk.list(dir).doing("list", dir)? {
        let number = files::journal_number(&entry.name);
        let spare = files::spare_number(&entry.name);
        if let Some(spare) = spare {
            pool.next_spare = pool.next_spare.max(spare + 1);
        }
        // A spare file never held anything; a file before the checkpoint was let go of.
        let is_before = spare.is_some() || number.is_some_and(|n| n < first);
        // Damage in the journal is looked at by people; nothing of it is used again.
        let is_behind = number.is_some_and(|n| n > end.file) && found.damage.is_empty();
        if is_before || is_behind {
            pool.names.push(entry.name);
        }
    }
    Ok(pool)
}

/// Files of segments that nobody speaks of.
pub(super) struct Leftovers<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) dir: &'a Path,
    /// Whether they may hold what was lost elsewhere; then they are kept.
    pub(super) is_damaged: bool,
}

impl Leftovers<'_> {
    /// Removes what the journal replaces: segments that were begun, or given up, after the last
    /// checkpoint.
    pub(super) fn clear(&self, state: &LogState) -> Result<(), LogError> {
        for (topic, number) in state.topics.iter().zip(0..) {
            let dir = files::topic_dir(self.dir, &topic.name);
            let listed = self.disk.list(&dir).if_there().doing("list", &dir)?;
            let partitions = topic.partitions.iter().zip(0..);
            let segments = partitions.flat_map(|(partition, p)| {
                let segments = partition.segments.iter();
                segments.map(move |segment| segment.name(p))
            });
            let waiting = state.garbage.iter().filter(|g| g.topic == number);
            let known = segments.chain(waiting.map(|garbage| garbage.name.clone()));
            let known: BTreeSet<String> = known
                .flat_map(|name| [files::index_of(&name), name])
                .collect();
            for entry in listed.into_iter().flatten() {
                if is_segment(&entry.name) && !known.contains(&entry.name) {
                    self.clear_one(&dir, &entry.name)?;
                }
            }
        }
        match self.is_damaged {
            true => self.leave_topics(state),
            false => Ok(()),
        }
    }

    /// Keeps segments of topics aside that were lost to damage: should a topic of that name be made
    /// again, they are none of its own.
    fn leave_topics(&self, state: &LogState) -> Result<(), LogError> {
        let entries = self.disk.list(self.dir).doing("list", self.dir)?;
        let topics = entries
            .iter()
            .filter_map(|entry| files::topic_of(&entry.name));
        for topic in topics.filter(|topic| state.known_topic(topic).is_none()) {
            let dir = files::topic_dir(self.dir, &topic);
            for entry in self.disk.list(&dir).doing("list", &dir)? {
                if is_segment(&entry.name) {
                    let what = format!("{LOST}{}", entry.name);
                    files::rename_aside_as(self.disk, &dir, &entry.name, &what)?;
                }
            }
        }
        Ok(())
    }

    fn clear_one(&self, dir: &Path, name: &str) -> Result<(), LogError> {
        let path = dir.join(name);
        if self.is_damaged {
            // Its records are found there as well, until a checkpoint has them.
            return files::rename_aside(self.disk, dir, name).map(drop);
        }
        self.disk.remove(&path).doing("remove", &path)
    }
}

/// A part of the names of segments that are kept aside because their topic is unknown.
const LOST: &str = "of-a-lost-topic-";

fn is_segment(name: &str) -> bool {
    let path = Path::new(name);
    let is = |extension: &str| path.extension().is_some_and(|found| found == extension);
    !name.starts_with("aside-") && (is("seg") || is("idx"))
}
