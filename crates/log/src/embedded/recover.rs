//! What a directory holds: the last checkpoint, and the journal from there on.
//!
//! Looking changes nothing, so that a directory can be looked at beside the process that has it.

use std::io;
use std::path::Path;

use bytes::Bytes;
use tidegate_core::env::{Disk, OpenMode};

use super::change::{Change, Unread};
use super::files::{self, Doing};
use super::group::{ALIGN, Frame, HEADER};
use super::manifest;
use super::state::{JournalPlace, State};
use crate::error::LogError;

/// What was found in a directory.
#[derive(Debug)]
pub(super) struct Found {
    /// The log as of its last whole group.
    pub(super) state: State,
    /// Where the journal goes on behind the checkpoint, and the last sequence before that.
    pub(super) checkpoint: (JournalPlace, u64),
    /// The groups of which nobody can say that they were synced: where the first begins, and their
    /// bytes. They all lie in the file in which the journal ends.
    pub(super) unproven: Option<(u64, Bytes)>,
    /// What lies behind the last whole group and was never acknowledged.
    pub(super) torn: Option<Torn>,
    /// Groups that were acknowledged and cannot be read.
    pub(super) damage: Vec<JournalDamage>,
    /// Set where the file in which the journal ends is missing: the numbers of the files behind it,
    /// in which nothing was found that follows.
    pub(super) lost_end: Option<Vec<u64>>,
    /// How many groups were read from the journal.
    pub(super) replayed: u64,
}

/// Bytes of groups that were never acknowledged.
#[derive(Debug)]
pub(super) struct Torn {
    pub(super) place: JournalPlace,
    pub(super) bytes: Bytes,
}

/// A part of the journal that was acknowledged and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDamage {
    /// The name of the file.
    pub file: String,
    /// Where it begins.
    pub at: u64,
    /// The sequences that are lost: the first, and the one behind the last.
    pub sequences: (u64, u64),
    /// What is wrong.
    pub why: String,
}

/// Looks at a directory; none where there is no log yet.
///
/// # Errors
/// The directory or a file in it cannot be read, or is of another version.
pub(super) fn look(disk: &dyn Disk, dir: &Path) -> Result<Option<Found>, LogError> {
    let Some(state) = manifest::read(disk, dir)? else {
        return none_or_broken(disk, dir);
    };
    let mut replay = Replay {
        disk,
        dir,
        found: Found {
            checkpoint: (state.journal, state.sequence),
            state,
            unproven: None,
            torn: None,
            damage: Vec::new(),
            lost_end: None,
            replayed: 0,
        },
        tail: Vec::new(),
    };
    replay.run()?;
    Ok(Some(replay.found))
}

/// A directory without a manifest is new, unless it holds what only a manifest explains.
fn none_or_broken(disk: &dyn Disk, dir: &Path) -> Result<Option<Found>, LogError> {
    let entries = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        listed => listed.doing("list", dir)?,
    };
    let is_ours = |name: &str| files::journal_number(name).is_some() || files::is_topic_dir(name);
    if entries.iter().any(|entry| is_ours(&entry.name)) {
        return Err(LogError::Format {
            path: dir.join(files::MANIFEST),
            why: "it is missing, and there are records".to_owned(),
        });
    }
    Ok(None)
}

struct Replay<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    found: Found,
    /// The groups read from the last file: where each begins, and its frame.
    tail: Vec<(u64, Frame)>,
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
                Some(next) if self.follows(&next, 0).is_some() => {
                    number += 1;
                    self.begin(number);
                    bytes = next;
                    missing = None;
                }
                Some(_) | None => {
                    let place = self.found.state.journal;
                    match self.later(&bytes, place.at)? {
                        Some(later) => {
                            self.skip_damage(&later);
                            if later.place.file != number {
                                number = later.place.file;
                                let Some(next) = self.file(number)? else {
                                    return Ok(());
                                };
                                bytes = next;
                                missing = None;
                                self.tail.clear();
                            }
                        }
                        None => match missing {
                            Some(missing) => return self.end_without_file(missing),
                            None => {
                                self.end(&bytes);
                                return Ok(());
                            }
                        },
                    }
                }
            }
        }
    }

    /// The file in which the checkpoint lies, or nothing and what is wrong with it.
    fn first_file(&self, number: u64) -> Result<(Bytes, Option<Missing>), LogError> {
        Ok(match self.file(number)? {
            None => (Bytes::new(), Some(Missing::File)),
            Some(bytes) if (bytes.len() as u64) < self.found.state.journal.at => {
                (Bytes::new(), Some(Missing::End))
            }
            Some(bytes) => (bytes, None),
        })
    }

    fn file(&self, number: u64) -> Result<Option<Bytes>, LogError> {
        let path = self.dir.join(files::journal(number));
        let file = match self.disk.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.doing("open", &path)?,
        };
        let len = usize::try_from(file.len().doing("measure", &path)?).unwrap_or(0);
        let mut bytes = vec![0; len];
        let read = file.read_at(0, &mut bytes).doing("read", &path)?;
        bytes.truncate(read);
        Ok(Some(Bytes::from(bytes)))
    }

    fn begin(&mut self, number: u64) {
        self.found.state.journal = JournalPlace {
            file: number,
            at: 0,
        };
        self.tail.clear();
    }

    /// The group at this place, if it follows the last one.
    fn follows(&self, bytes: &Bytes, at: u64) -> Option<Frame> {
        let rest = bytes.get(usize::try_from(at).ok()?..)?;
        let state = &self.found.state;
        let frame = Frame::peek(rest)?;
        let is_next = frame.sequence == state.sequence + 1 && frame.previous == state.crc;
        is_next.then(|| Frame::read(rest))?
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

    fn take(&mut self, bytes: &Bytes, at: u64, frame: &Frame) -> Result<(), LogError> {
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let payload = frame.payload(&bytes.slice(from..));
        let is_damaged = !self.found.damage.is_empty();
        let state = &mut self.found.state;
        let applied = match Change::read_all(&payload) {
            Ok(changes) => {
                // What these speak of may have been made by a group that was lost.
                let made_up = match is_damaged {
                    true => state.make_up(&changes),
                    false => Ok(()),
                };
                let applied = made_up.and_then(|()| state.apply(frame.sequence, changes));
                applied.map_err(|nonsense| nonsense.0)
            }
            // Nothing is wrong with the group: a later version wrote it, and should read it.
            Err(Unread::Unknown(tag)) => {
                return Err(LogError::Format {
                    path: self.dir.join(files::journal(state.journal.file)),
                    why: format!(
                        "a commit group at byte {at} holds a change of kind {tag}, which a later \
                         version wrote"
                    ),
                });
            }
            Err(Unread::Senseless) => Err("its content makes no sense"),
        };
        if let Err(why) = applied {
            self.found.damage.push(JournalDamage {
                file: files::journal(state.journal.file),
                at,
                sequences: (frame.sequence, frame.sequence + 1),
                why: why.to_owned(),
            });
        }
        state.sequence = frame.sequence;
        state.crc = frame.crc;
        state.journal.at = at + frame.size() as u64;
        self.found.replayed += 1;
        self.tail.push((at, *frame));
        Ok(())
    }

    /// The next group that can be read and says that the one which is missing here was synced.
    ///
    /// Files are found by the listing of the directory: one that is missing hides none behind it.
    fn later(&self, bytes: &Bytes, at: u64) -> Result<Option<Later>, LogError> {
        let missing = self.found.state.sequence + 1;
        let file = self.found.state.journal.file;
        if let Some(found) = find_later(bytes, at, missing) {
            return Ok(Some(Later::new(file, found)));
        }
        for number in journals_behind(self.disk, self.dir, file)? {
            let bytes = self.file(number)?.unwrap_or_default();
            if let Some(found) = find_later(&bytes, 0, missing) {
                return Ok(Some(Later::new(number, found)));
            }
        }
        Ok(None)
    }

    /// The file in which the journal ends is not there, or cut off before its end. That is as it
    /// should be only where nothing was written to it yet.
    fn end_without_file(&mut self, missing: Missing) -> Result<(), LogError> {
        let state = &self.found.state;
        let behind = journals_behind(self.disk, self.dir, state.journal.file)?;
        if state.journal.at == 0 && behind.is_empty() {
            return Ok(());
        }
        let what = match missing {
            Missing::File => "the file is missing",
            Missing::End => "the file is shorter than it was",
        };
        let next = state.sequence + 1;
        self.found.damage.push(JournalDamage {
            file: files::journal(state.journal.file),
            at: state.journal.at,
            sequences: (next, next),
            why: format!("{what}, and nobody can say whether it held more"),
        });
        self.found.lost_end = Some(behind);
        Ok(())
    }

    /// Goes on at a later group: what lies between was acknowledged, and is lost.
    fn skip_damage(&mut self, later: &Later) {
        let state = &mut self.found.state;
        self.found.damage.push(JournalDamage {
            file: files::journal(state.journal.file),
            at: state.journal.at,
            sequences: (state.sequence + 1, later.frame.sequence),
            why: "it cannot be read, and a later group says that it was synced".to_owned(),
        });
        state.sequence = later.frame.sequence - 1;
        state.crc = later.frame.previous;
        state.journal = later.place;
    }

    /// Says what of the last file is in doubt.
    fn end(&mut self, bytes: &Bytes) {
        let state = &self.found.state;
        let (place, end) = (state.journal, state.journal.at);
        let part = |from: u64, to: u64| {
            let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            bytes.slice(at(from)..at(to))
        };
        let torn = torn(bytes, end, state.sequence + 1, state.crc);
        let last = self.tail.last().map_or(0, |(_, last)| last.synced);
        let unproven = self.tail.iter().find(|(_, frame)| frame.sequence > last);
        self.found.unproven = unproven.map(|(at, _)| (*at, part(*at, end)));
        self.found.torn = torn.map(|to| Torn {
            place,
            bytes: part(end, to),
        });
    }
}

/// What of a journal file is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// All of it.
    File,
    /// What it held up to the checkpoint, and whatever came later.
    End,
}

/// The numbers of the journal files behind this one, in their order.
fn journals_behind(disk: &dyn Disk, dir: &Path, file: u64) -> Result<Vec<u64>, LogError> {
    let entries = disk.list(dir).doing("list", dir)?;
    let numbers = entries
        .iter()
        .filter_map(|entry| files::journal_number(&entry.name));
    let mut behind: Vec<u64> = numbers.filter(|number| *number > file).collect();
    behind.sort_unstable();
    Ok(behind)
}

/// A group behind damage.
struct Later {
    place: JournalPlace,
    frame: Frame,
}

impl Later {
    fn new(file: u64, (at, frame): (u64, Frame)) -> Self {
        let place = JournalPlace { file, at };
        Self { place, frame }
    }
}

/// The first group from `at` on that is whole, comes later than `missing`, and says that `missing`
/// was synced.
fn find_later(bytes: &Bytes, at: u64, missing: u64) -> Option<(u64, Frame)> {
    groups(bytes, at).find(|(_, frame)| frame.sequence > missing && frame.synced >= missing)
}

/// All whole groups from `at` on, whatever lies between them.
fn groups(bytes: &Bytes, at: u64) -> impl Iterator<Item = (u64, Frame)> {
    let mut at = usize::try_from(at).unwrap_or(usize::MAX);
    std::iter::from_fn(move || {
        while at + HEADER <= bytes.len() {
            let here = at;
            match Frame::read(&bytes[here..]) {
                Some(frame) => {
                    at += frame.size();
                    return Some((here as u64, frame));
                }
                None => at += ALIGN,
            }
        }
        None
    })
}

/// Where the bytes end that belong to a write which was never acknowledged; none if there are none.
fn torn(bytes: &Bytes, at: u64, sequence: u64, previous: u32) -> Option<u64> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let begun = Frame::peek(rest)
        .filter(|frame| frame.sequence == sequence && frame.previous == previous)
        .map(|frame| at + frame.size().min(rest.len()) as u64);
    let behind = groups(bytes, at)
        .filter(|(_, frame)| frame.sequence >= sequence)
        .map(|(at, frame)| at + frame.size() as u64)
        .max();
    begun.max(behind)
}
