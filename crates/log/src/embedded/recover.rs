//! The content of a directory: the last checkpoint, and the journal from there on.
//!
//! Looking changes nothing, so that a directory can be looked at beside the process that has it.

mod gap_evidence;
mod lost;
mod resync;
mod segment_tails;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use tidegate_core::env::Disk;

use super::change::{LogChange, Unread};
use super::files::{self, Doing};
use super::group::{HEADER, JournalFrame};
use super::manifest::{self, Checkpoint};
use super::presence::{Presence, presence};
use super::state::{InvalidChange, JournalDamage, JournalPlace, LogState};
use crate::error::LogError;
use gap_evidence::GapEvidence;
use lost::Missing;
pub(super) use resync::groups;
use resync::{ResyncPoint, find_resync_point, torn};
use segment_tails::SegmentTails;

/// The log that was found in a directory.
#[derive(Debug, Default)]
pub(super) struct RecoveredLog {
    /// The log as of its last whole group.
    pub(super) state: LogState,
    /// Where the journal goes on behind the checkpoint, and the last sequence before that.
    pub(super) checkpoint: (JournalPlace, u64),
    /// The groups of which it is unknown whether they were synced: where the first begins, and their
    /// bytes. They all lie in the file in which the journal ends.
    pub(super) unproven: Option<(u64, Bytes)>,
    /// The bytes behind the last whole group that were never acknowledged.
    pub(super) torn: Option<Torn>,
    /// Groups that were acknowledged and cannot be read.
    pub(super) damage: Vec<JournalDamage>,
    /// The names of the journal files they lay in, and from where on each of these cannot be read.
    pub(super) unread: BTreeMap<String, u64>,
    /// Set where the file in which the journal ends is missing or was cut, or one behind it was cut: the
    /// names of the files behind it, in which nothing was found that follows.
    pub(super) lost_end: Option<Vec<String>>,
    /// The manifest or its copy, where only the other one can be used, and why.
    pub(super) manifest: Option<(&'static str, String)>,
    /// How many groups were read from the journal.
    pub(super) replayed: u64,
    /// Whether the last group proves those before it and holds nothing itself.
    pub(super) is_proven: bool,
}

/// Bytes of groups that were never acknowledged.
#[derive(Debug)]
pub(super) struct Torn {
    /// The name of the file, and where in it they begin.
    pub(super) file: String,
    pub(super) at: u64,
    pub(super) bytes: Bytes,
}

/// Looks at a directory; none where there is no log yet.
///
/// # Errors
/// The directory or a file in it cannot be read, or is of another version.
pub(super) fn look(disk: &dyn Disk, dir: &Path) -> Result<Option<RecoveredLog>, LogError> {
    let Some(Checkpoint { state, damage, .. }) = checkpoint(disk, dir)? else {
        return Ok(None);
    };
    // Before the journal is read: whatever a running process puts into segments meanwhile is in the
    // journal by then.
    let tails = segment_tails::look(disk, dir, &state)?;
    let mut replay = Replay {
        disk,
        dir,
        found: RecoveredLog {
            checkpoint: (state.journal, state.sequence),
            state,
            manifest: damage,
            ..RecoveredLog::default()
        },
        names: files::journals(disk, dir)?,
        tail: Vec::new(),
        evidence: GapEvidence::default(),
        tails,
    };
    replay.run()?;
    replay.rescue()?;
    replay.note_damage();
    Ok(Some(replay.found))
}

/// Whether something was committed since this state was read, so that a look would find more.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub(super) fn has_grown(disk: &dyn Disk, dir: &Path, state: &LogState) -> Result<bool, LogError> {
    let names = files::journals(disk, dir)?;
    let JournalPlace { file, at } = state.journal;
    if !names.contains_key(&file) {
        return Ok(true);
    }
    for (number, at) in [(file, at), (file + 1, 0)] {
        let Some(name) = names.get(&number) else {
            continue;
        };
        let path = dir.join(name);
        let Some(file) = files::open_if_there(disk, &path)? else {
            return Ok(true);
        };
        let mut header = [0; HEADER];
        let read = file.read_at(at, &mut header).doing("read", &path)?;
        let frame = JournalFrame::peek(&header[..read], state.secret);
        if frame.is_some_and(|frame| frame.sequence == state.sequence + 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The last checkpoint. A directory without a manifest is new, unless it holds what only a manifest
/// explains.
fn checkpoint(disk: &dyn Disk, dir: &Path) -> Result<Option<Checkpoint>, LogError> {
    if let Some(found) = manifest::read(disk, dir)? {
        return Ok(Some(found));
    }
    match presence(disk, dir)? {
        Presence::Absent | Presence::Emptied => Ok(None),
        // Or somebody has made the log just now: its manifest comes before anything else.
        Presence::There => match manifest::read(disk, dir)? {
            Some(found) => Ok(Some(found)),
            None => Err(LogError::Format {
                path: dir.join(files::MANIFEST),
                why: "it is missing, and there are records".to_owned(),
            }),
        },
    }
}

struct Replay<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    found: RecoveredLog,
    /// The journal files by number.
    names: BTreeMap<u64, String>,
    /// The groups read from the last file: where each begins, and its frame.
    tail: Vec<(u64, JournalFrame)>,
    evidence: GapEvidence,
    /// The chunks that segments hold behind the checkpoint.
    tails: SegmentTails,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<(), LogError> {
        let mut number = self.found.state.journal.file;
        // A file that is not there holds nothing; what follows it may still be there.
        let (mut bytes, mut missing) = self.first_file(number)?;
        loop {
            self.read_file(&bytes)?;
            // The next group lies here, or at the beginning of the next file, or nowhere.
            match self.file(number + 1)? {
                Some((next, is_short)) if self.follows(&next, 0).is_some() => {
                    number += 1;
                    self.begin(number);
                    bytes = next;
                    missing = is_short.then_some(Missing::End);
                }
                Some(_) | None => {
                    let place = self.found.state.journal;
                    match self.resync_point(&bytes, place.at)? {
                        Some(resync) => {
                            self.skip_damage(&resync);
                            if resync.place.file != number {
                                number = resync.place.file;
                                let Some((next, is_short)) = self.file(number)? else {
                                    return Ok(());
                                };
                                bytes = next;
                                missing = is_short.then_some(Missing::End);
                                self.tail.clear();
                            }
                        }
                        None => {
                            let cut = self.cut_behind(number)?;
                            match missing.or(cut) {
                                Some(missing) => self.end_without_file(&bytes, missing),
                                None => self.end(&bytes),
                            }
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// The file in which the checkpoint lies, or nothing and what is wrong with it.
    fn first_file(&self, number: u64) -> Result<(Bytes, Option<Missing>), LogError> {
        Ok(match self.file(number)? {
            None => (Bytes::new(), Some(Missing::File)),
            Some((bytes, _)) if (bytes.len() as u64) < self.found.state.journal.at => {
                (Bytes::new(), Some(Missing::End))
            }
            Some((bytes, is_short)) => (bytes, is_short.then_some(Missing::End)),
        })
    }

    /// The name of a journal file, also of one that is not there.
    fn name(&self, number: u64) -> String {
        let name = self.names.get(&number);
        name.cloned()
            .unwrap_or_else(|| format!("journal-{number:016}"))
    }

    /// The content of a file, and whether it is shorter than it was made.
    fn file(&self, number: u64) -> Result<Option<(Bytes, bool)>, LogError> {
        let Some(name) = self.names.get(&number) else {
            return Ok(None);
        };
        let path = self.dir.join(name);
        let read = self.disk.read(&path, u64::MAX).if_there();
        let Some(bytes) = read.doing("read", &path)? else {
            return Ok(None);
        };
        let is_short = files::journal_len(name).is_some_and(|made| (bytes.len() as u64) < made);
        Ok(Some((Bytes::from(bytes), is_short)))
    }

    fn begin(&mut self, number: u64) {
        self.found.state.journal = JournalPlace {
            file: number,
            at: 0,
        };
        self.tail.clear();
    }

    /// The group at this place, if it follows the last one.
    fn follows(&self, bytes: &Bytes, at: u64) -> Option<JournalFrame> {
        let rest = bytes.get(usize::try_from(at).ok()?..)?;
        let state = &self.found.state;
        let frame = JournalFrame::peek(rest, state.secret)?;
        let is_next = frame.sequence == state.sequence + 1 && frame.previous == state.crc;
        is_next.then(|| JournalFrame::read(rest, state.secret))?
    }

    /// Applies the groups that follow, as far as they go.
    fn read_file(&mut self, bytes: &Bytes) -> Result<(), LogError> {
        loop {
            let at = self.found.state.journal.at;
            let Some(frame) = self.follows(bytes, at) else {
                return Ok(());
            };
            self.take(bytes, at, &frame)?;
        }
    }

    fn take(&mut self, bytes: &Bytes, at: u64, frame: &JournalFrame) -> Result<(), LogError> {
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let payload = frame.payload(&bytes.slice(from..));
        let is_damaged = !self.found.damage.is_empty();
        let number = self.found.state.journal.file;
        let read = LogChange::read_all(&payload, self.found.state.secret);
        let holds_nothing = |change: &LogChange| matches!(change, LogChange::EndOffsets { .. });
        self.found.is_proven = read.iter().flatten().all(holds_nothing);
        let applied = match read {
            Ok(changes) if is_damaged => self.apply_behind_damage(frame.sequence, changes)?,
            Ok(changes) => {
                self.take_in_before(&changes)?;
                self.found.state.apply(frame.sequence, changes)
            }
            // Nothing is wrong with the group: a later version wrote it, and should read it.
            Err(Unread::Unknown(tag)) => {
                return Err(LogError::Format {
                    path: self.dir.join(self.name(number)),
                    why: format!(
                        "a commit group at byte {at} holds a change of kind {tag}, which a later \
                         version wrote"
                    ),
                });
            }
            Err(Unread::Malformed) => Err(InvalidChange("its content is malformed")),
        };
        let state = &mut self.found.state;
        state.sequence = frame.sequence;
        state.crc = frame.crc;
        state.journal.at = at + frame.size() as u64;
        if let Err(InvalidChange(why)) = applied {
            self.evidence.begin();
            self.leave_unread(number, at);
            let file = self.name(number);
            self.found.damage.push(JournalDamage {
                file,
                at,
                sequences: (frame.sequence, frame.sequence + 1),
                events: 0,
                why: why.to_owned(),
            });
        }
        self.found.replayed += 1;
        self.tail.push((at, *frame));
        Ok(())
    }

    /// The next group that can be read and says that the one which is missing here was synced.
    ///
    /// Files are found by the listing of the directory: one that is missing hides none behind it.
    fn resync_point(&self, bytes: &Bytes, at: u64) -> Result<Option<ResyncPoint>, LogError> {
        let missing = self.found.state.sequence + 1;
        let secret = self.found.state.secret;
        let file = self.found.state.journal.file;
        if let Some(found) = find_resync_point(bytes, secret, at, missing) {
            return Ok(Some(ResyncPoint::new(file, found)));
        }
        for number in self.behind(file) {
            let (bytes, _) = self.file(number)?.unwrap_or_default();
            if let Some(found) = find_resync_point(&bytes, secret, 0, missing) {
                return Ok(Some(ResyncPoint::new(number, found)));
            }
        }
        Ok(None)
    }

    /// The numbers of the journal files behind this one, in their order.
    fn behind(&self, file: u64) -> impl Iterator<Item = u64> {
        self.names.range(file + 1..).map(|(number, _)| *number)
    }

    /// Says what of the last file may not have been synced.
    fn end(&mut self, bytes: &Bytes) {
        let state = &self.found.state;
        let end = state.journal.at;
        let part = |from: u64, to: u64| {
            let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            bytes.slice(at(from)..at(to))
        };
        let torn = torn(bytes, state.secret, end, (state.sequence + 1, state.crc));
        let last = self.tail.last().map_or(0, |(_, last)| last.synced);
        let unproven = self.tail.iter().find(|(_, frame)| frame.sequence > last);
        self.found.unproven = unproven.map(|(at, _)| (*at, part(*at, end)));
        let torn = torn.map(|to| (self.name(state.journal.file), part(end, to)));
        self.found.torn = torn.map(|(file, bytes)| Torn {
            file,
            at: end,
            bytes,
        });
    }
}
