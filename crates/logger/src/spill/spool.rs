//! The one writer of a spill directory.

mod recover;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::{Books, Bucket, LossReason, Place, Tally};
use tidegate_core::env::{Disk, DiskFile, DiskLock, OpenMode};

use super::books_file::{BooksFile, Written};
use super::cursor::{Cursor, Position};
use super::replay::{Replay, ReplayBatch, identity};
use super::set_aside::{Rejection, SetAside};
use super::{
    ACTIVE, CORRUPT, CURSOR, LOCK, MAX_LINE, MAX_SEALED, REJECTED, REPLAY, SpillError, at, line,
    sealed_name,
};
use crate::loss::reason;

/// How much the active file may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

/// Bytes after which a batch takes no more events.
const BATCH_BYTES: usize = 256 * 1024;

/// The sums of a file's lines, by bucket.
type Tallies = BTreeMap<Bucket, Tally>;

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Append {
    /// These of its events are durable; the others were refused because a cap is reached.
    Written {
        /// How many events were taken from the front of what was offered.
        taken: usize,
        /// Which ones of those did not fit, and why.
        refused: Vec<(usize, LossReason)>,
    },
    /// The disk refused the write, and the file is as it was: none of its events is on disk.
    Refused(io::Error),
}

/// What was found when the directory was opened.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The books, carried on: what is on disk, and what came before.
    pub(crate) books: Books,
    /// Lines that wait for replay.
    pub(crate) backlog: u64,
    /// Events that were in memory when the last process ended, of which nothing is known.
    pub(crate) unverifiable: i64,
}

struct Active {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// Bytes that are whole lines, synced.
    len: u64,
    lines: u64,
    tallies: Tallies,
}

/// The one writer of a spill directory.
pub(crate) struct Spool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    caps: Caps,
    is_synced: bool,
    active: Option<Active>,
    /// Sealed files: the length that counts, and the sums of its lines.
    sealed: BTreeMap<u32, (u64, Tallies)>,
    replay: Option<Replay>,
    cursor: Option<Cursor>,
    books: BooksFile,
    corrupt: SetAside,
    rejected: SetAside,
    seq: u64,
    sum: u128,
    batch: Vec<u8>,
    _lock: Box<dyn DiskLock>,
}

impl Spool {
    /// Opens the directory, making it where it is missing: takes the lock, cuts a torn tail, and
    /// counts what is there.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        caps: Caps,
        is_synced: bool,
    ) -> Result<(Self, Recovered), SpillError> {
        at("create", dir, disk.create_dir_all(dir))?;
        let lock = match disk.lock(&dir.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(SpillError::Locked {
                    dir: dir.to_owned(),
                });
            }
            locked => at("lock", &dir.join(LOCK), locked)?,
        };
        let (books, written) = BooksFile::open(&*disk, dir)?;
        let mut spool = Self {
            disk,
            dir: dir.to_owned(),
            caps,
            is_synced,
            active: None,
            sealed: BTreeMap::new(),
            replay: None,
            cursor: None,
            books,
            corrupt: SetAside::new(dir, CORRUPT),
            rejected: SetAside::new(dir, REJECTED),
            seq: written.as_ref().map_or(0, |written| written.seq),
            sum: written.as_ref().map_or(0, |written| written.sum),
            batch: Vec::new(),
            _lock: lock,
        };
        let recovered = spool.recover(written)?;
        spool.write_books(&recovered.books)?;
        Ok((spool, recovered))
    }

    /// Keeps up to `count` events, no more than fit a batch, and returns once they would survive a
    /// power cut.
    ///
    /// `encode` writes the JSON of an event, up to and with its `_id` and without the closing
    /// brace, and gives its id; `books` are the books of now. After an error the directory is given
    /// up; what was promised before is in it.
    pub(crate) fn append(
        &mut self,
        count: usize,
        encode: &mut dyn FnMut(usize, &mut Vec<u8>) -> EventId,
        books: &dyn Fn() -> Books,
    ) -> Result<Append, SpillError> {
        let mut active = match self.active.take() {
            Some(active) => active,
            None => self.create_active()?,
        };
        let planned = self.plan(&active, count, encode);
        if planned.ids.is_empty() {
            self.active = Some(active);
            return Ok(Append::Written {
                taken: planned.taken,
                refused: planned.refused,
            });
        }
        if let Err(error) = active.file.append(&self.batch) {
            // A part of it may be there. If even that cannot be undone, the file is given up.
            if active.file.truncate(active.len).is_err() {
                self.seal(active)?;
            } else {
                self.active = Some(active);
            }
            return Ok(Append::Refused(error));
        }
        if self.is_synced && active.file.sync().is_err() {
            // Final for that file: the batch goes to a fresh one, and if that fails too we stop.
            // The books say how much of the old file counts, before anything new is promised.
            self.seal(active)?;
            self.write_books(&books())?;
            active = self.create_active()?;
            at("write", &active.path, active.file.append(&self.batch))?;
            at("sync", &active.path, active.file.sync())?;
        }
        active.len += self.batch.len() as u64;
        active.lines += planned.ids.len() as u64;
        for id in planned.ids {
            self.sum = self.sum.wrapping_add(id.as_u128());
            self.seq += 1;
            let tally = active.tallies.entry(Bucket::of(id)).or_default();
            *tally = tally.plus(Tally::of(id));
        }
        self.active = Some(active);
        Ok(Append::Written {
            taken: planned.taken,
            refused: planned.refused,
        })
    }

    /// Encodes what fits under the caps into the batch.
    fn plan(
        &mut self,
        active: &Active,
        count: usize,
        encode: &mut dyn FnMut(usize, &mut Vec<u8>) -> EventId,
    ) -> Planned {
        /// The most that closing a line adds.
        const CLOSING: usize = 96;
        let mut planned = Planned::default();
        let (mut seq, mut sum) = (self.seq, self.sum);
        self.batch.clear();
        // A line is closed when its successor is known, because only the last one carries the sum.
        let mut open_from = 0;
        for index in 0..count {
            if self.batch.len() >= BATCH_BYTES {
                break;
            }
            planned.taken += 1;
            // Closed before it is known whether a successor fits; taken back if none does.
            let closed_from = self.batch.len();
            if !planned.ids.is_empty() {
                line::close(&mut self.batch, open_from, seq, None);
            }
            let start = self.batch.len();
            let id = encode(index, &mut self.batch);
            let line = self.batch.len() - start + CLOSING;
            let refused = if active.lines + planned.ids.len() as u64 >= self.caps.events {
                Some(reason::SPILLOVER_MAX_EVENTS)
            } else if active.len + (start + line) as u64 > self.caps.bytes || line > MAX_LINE {
                Some(reason::SPILLOVER_MAX_SIZE)
            } else {
                None
            };
            if let Some(reason) = refused {
                self.batch.truncate(closed_from);
                planned.refused.push((index, reason));
                continue;
            }
            open_from = start;
            seq += 1;
            sum = sum.wrapping_add(id.as_u128());
            planned.ids.push(id);
        }
        if !planned.ids.is_empty() {
            line::close(&mut self.batch, open_from, seq, Some(sum));
        }
        planned
    }

    fn create_active(&mut self) -> Result<Active, SpillError> {
        let path = self.dir.join(ACTIVE);
        let file = at("create", &path, self.disk.open(&path, OpenMode::CreateNew))?;
        at("sync", &self.dir, self.disk.sync_dir(&self.dir))?;
        Ok(Active {
            path,
            file,
            len: 0,
            lines: 0,
            tallies: Tallies::new(),
        })
    }

    /// Gives an active file up: its synced lines will be replayed in their turn.
    fn seal(&mut self, active: Active) -> Result<(), SpillError> {
        if active.len == 0 {
            // Nothing in it was promised, and what should have been goes to a fresh file.
            return at("remove", &active.path, self.disk.remove(&active.path));
        }
        if self.sealed.len() >= MAX_SEALED {
            return Err(SpillError::TooManySealed {
                dir: self.dir.clone(),
                count: self.sealed.len(),
            });
        }
        let number = self.sealed.keys().next_back().map_or(1, |last| last + 1);
        let path = self.dir.join(sealed_name(number));
        at("seal", &path, self.disk.replace(&active.path, &path))?;
        self.sealed.insert(number, (active.len, active.tallies));
        Ok(())
    }

    /// Reads lines to send: from the snapshot, or from a new one if there is none. An empty batch
    /// means that nothing waits.
    pub(crate) fn read_replay(
        &mut self,
        max_lines: usize,
        max_bytes: usize,
        books: &Books,
    ) -> Result<ReplayBatch, SpillError> {
        if self.replay.is_none() && !self.rotate(books)? {
            return Ok(ReplayBatch::default());
        }
        let Self {
            replay,
            corrupt,
            disk,
            ..
        } = self;
        let Some(replay) = replay else {
            return Ok(ReplayBatch::default());
        };
        replay.read(max_lines, max_bytes, |bytes| {
            let mut line = bytes.to_vec();
            line.push(b'\n');
            corrupt.append(&**disk, &line)
        })
    }

    /// Makes the oldest sealed file, or the active one, the snapshot.
    fn rotate(&mut self, books: &Books) -> Result<bool, SpillError> {
        let to = self.dir.join(REPLAY);
        if self.is_empty() {
            return Ok(false);
        }
        // Made before anything is renamed: a disk without room for it changes nothing.
        if self.cursor.is_none() {
            self.cursor = Some(Cursor::open(&*self.disk, &self.dir)?.0);
        }
        let oldest = self.sealed.first_key_value();
        let end = if let Some((number, end)) = oldest.map(|(number, (end, _))| (*number, *end)) {
            let from = self.dir.join(sealed_name(number));
            // Under its new name nothing but the books tells how much of the file counts, so they
            // say it before it has that name.
            let file = at("open", &from, self.disk.open(&from, OpenMode::Read))?;
            let identity = at("read", &from, identity(&*file, end))?;
            let position = Position {
                identity,
                end,
                ..Position::default()
            };
            self.write_books_for(books, Some(position), false)?;
            at("rotate", &to, self.disk.replace(&from, &to))?;
            self.sealed.remove(&number);
            Some(end)
        } else {
            match self.active.take() {
                Some(active) if active.lines > 0 => {
                    at("rotate", &to, self.disk.replace(&active.path, &to))?;
                    None
                }
                idle => {
                    self.active = idle;
                    return Ok(false);
                }
            }
        };
        self.replay = Some(Replay::open(&*self.disk, &self.dir, end, &[])?);
        self.write_books(books)?;
        Ok(true)
    }

    /// Notes that the first so many lines of a batch are settled. Not durable until the books are
    /// written: a crash before costs duplicates.
    pub(crate) fn settle_replay(&mut self, batch: &ReplayBatch, count: usize) {
        if let Some(replay) = &mut self.replay {
            replay.settle(batch, count);
        }
    }

    /// Whether there is a snapshot.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Once per snapshot in which a line cannot be read: the sums of all lines on disk that can be.
    /// What the books have beyond them are the lines that cannot.
    pub(crate) fn readable_beside_corrupt(&mut self) -> Result<Option<Tallies>, SpillError> {
        let Some(replay) = &mut self.replay else {
            return Ok(None);
        };
        if !replay.has_corrupt || replay.is_corrupt_posted {
            return Ok(None);
        }
        replay.is_corrupt_posted = true;
        let mut readable = replay.readable()?;
        let active = self.active.iter().map(|active| &active.tallies);
        for tallies in self
            .sealed
            .values()
            .map(|(_, tallies)| tallies)
            .chain(active)
        {
            for (bucket, tally) in tallies {
                let sum = readable.entry(*bucket).or_default();
                *sum = sum.plus(*tally);
            }
        }
        Ok(Some(readable))
    }

    /// Whether any line waits for replay.
    pub(crate) fn is_empty(&self) -> bool {
        self.replay.is_none()
            && self.sealed.is_empty()
            && self.active.as_ref().is_none_or(|active| active.lines == 0)
    }

    /// Ends the replay of the snapshot: notes that it is done, then removes it.
    pub(crate) fn finish_replay(&mut self, books: &Books) -> Result<(), SpillError> {
        if let Some(replay) = &mut self.replay {
            replay.position.is_done = true;
        }
        self.write_books(books)?;
        self.remove_replay()?;
        // An active file without lines is only in the way of "nothing is left".
        if let Some(active) = self.active.take_if(|active| active.lines == 0) {
            at("remove", &active.path, self.disk.remove(&active.path))?;
            at("sync", &self.dir, self.disk.sync_dir(&self.dir))?;
        }
        self.write_books(books)
    }

    fn remove_replay(&mut self) -> Result<(), SpillError> {
        let (replay, cursor) = (self.dir.join(REPLAY), self.dir.join(CURSOR));
        at("remove", &replay, self.disk.remove(&replay))?;
        at("sync", &self.dir, self.disk.sync_dir(&self.dir))?;
        self.replay = None;
        self.cursor = None;
        at("remove", &cursor, self.disk.remove(&cursor))
    }

    /// Keeps events that the API refused for good, and returns once they would survive a power
    /// cut.
    pub(crate) fn set_aside(
        &mut self,
        rejections: &[Rejection],
        now_ms: u64,
    ) -> Result<(), SpillError> {
        let lines: Vec<u8> = rejections
            .iter()
            .flat_map(|rejection| rejection.line(now_ms))
            .collect();
        self.rejected.append(&*self.disk, &lines)
    }

    /// Writes books and cursor down, and returns once they would survive a power cut.
    pub(crate) fn write_books(&mut self, books: &Books) -> Result<(), SpillError> {
        let position = self.replay.as_ref().map(|replay| replay.position);
        self.write_books_for(books, position, false)
    }

    /// Writes the last word of this process.
    pub(crate) fn close(&mut self, books: &Books) -> Result<(), SpillError> {
        let position = self.replay.as_ref().map(|replay| replay.position);
        self.write_books_for(books, position, true)
    }

    fn write_books_for(
        &mut self,
        books: &Books,
        position: Option<Position>,
        is_clean: bool,
    ) -> Result<(), SpillError> {
        let written = Written {
            is_clean,
            seq: self.seq,
            sum: self.sum,
            replay: position,
            sealed: self
                .sealed
                .iter()
                .map(|(number, (len, _))| (*number, *len))
                .collect(),
            active_len: self.active.as_ref().map_or(0, |active| active.len),
            ..Written::default()
        };
        self.books.write(&*self.disk, written, books)?;
        match (&mut self.cursor, position) {
            (Some(cursor), Some(position)) => cursor.write(position),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spool({}, seq {})", self.dir.display(), self.seq)
    }
}

/// Moves what the books have beyond `readable` from spilled to dead-lettered, and says how many
/// events that is: the lines that cannot be read, whose ids only the sums still know.
pub(crate) fn settle_corrupt(books: &mut Books, readable: &BTreeMap<Bucket, Tally>) -> i64 {
    let mut count = 0;
    for (bucket, tally) in books.tallies(&Place::Spilled) {
        let corrupt = tally.minus(readable.get(&bucket).copied().unwrap_or_default());
        if corrupt.count > 0 {
            books.move_tally(
                bucket,
                Some(Place::Spilled),
                Some(Place::DeadLettered),
                corrupt,
            );
            count += corrupt.count;
        }
    }
    count
}

#[derive(Default)]
struct Planned {
    taken: usize,
    ids: Vec<EventId>,
    refused: Vec<(usize, LossReason)>,
}
