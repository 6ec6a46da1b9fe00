//! The one writer of a spill directory.

mod corrupt;
mod recover;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::{Books, Place};
use tidegate_core::env::{Disk, DiskFile, DiskLock, OpenMode};

pub(crate) use corrupt::post_corrupt_lines;

use super::batch::{AppendPosition, BatchWritten, Prepared, SyncHandle, WriteOutcome};
use super::books_file::{BooksFile, BooksSnapshot};
use super::cursor::{Cursor, ReplayPosition};
use super::replay::{ReplayBatch, ReplayReader, identity};
use super::set_aside::{Rejection, SetAside};
use super::{
    ACTIVE, CORRUPT, CURSOR, LOCK, MAX_SEALED, REJECTED, REPLAY, SEALED, SpillError, Tallies, add,
    add_one, at, holder, numbered,
};
use crate::logger_id::LoggerId;

/// How much the active file may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

/// Buffers that are kept: some wait or are written while the next one is filled.
const BUFFERS: usize = 7;

/// The result of appending a batch.
#[derive(Debug)]
pub(crate) enum AppendResult {
    /// Its events are durable, except those that a cap refused.
    Written(BatchWritten),
    /// The disk refused the write, and the file is as it was: none of its events is on disk.
    Refused(io::Error),
}

/// The state that was found when the directory was opened.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The books, carried on: what is on disk, and what came before.
    pub(crate) books: Books,
    /// Lines that wait for replay.
    pub(crate) backlog: u64,
    /// Events that were in memory when the last process ended, of which nothing is known.
    pub(crate) unverifiable: i64,
    /// Whether the books could not be written yet, because the disk has no room.
    pub(crate) is_behind: bool,
}

struct Active {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The same file, opened once more for the sync thread; none while that thread has it, or if it
    /// was never needed.
    second: Option<Box<dyn DiskFile>>,
    /// Bytes that are whole lines, synced.
    len: u64,
    lines: u64,
    /// The sums of its lines. One that cannot be read counts where it names its event.
    tallies: Tallies,
}

/// The one writer of a spill directory.
pub(crate) struct Spool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    id: LoggerId,
    caps: Caps,
    is_synced: bool,
    active: Option<Active>,
    /// Sealed files: the length that counts, and the sums of its lines.
    sealed: BTreeMap<u32, (u64, Tallies)>,
    replay: Option<ReplayReader>,
    cursor: Option<Cursor>,
    books: BooksFile,
    corrupt: SetAside,
    rejected: SetAside,
    seq: u64,
    sum: u128,
    /// Torn tails that were set aside.
    torn: u64,
    buffers: Vec<Vec<u8>>,
    _lock: Box<dyn DiskLock>,
}

impl Spool {
    /// Opens the directory, making it where it is missing: takes the lock, cuts a torn tail, and
    /// counts what is there. A directory without an id gets `new_id`.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        caps: Caps,
        is_synced: bool,
        new_id: LoggerId,
    ) -> Result<(Self, Recovered), SpillError> {
        at("create", dir, disk.create_dir_all(dir))?;
        let lock = match disk.lock(&dir.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(SpillError::Locked {
                    dir: dir.to_owned(),
                    holder: holder::of(&*disk, &dir.join(LOCK)),
                });
            }
            locked => at("lock", &dir.join(LOCK), locked)?,
        };
        holder::sign(&*disk, &dir.join(LOCK));
        let (books, written) = BooksFile::open(&*disk, dir)?;
        let id = written.as_ref().and_then(|written| written.id);
        let mut spool = Self {
            disk,
            dir: dir.to_owned(),
            id: id.unwrap_or(new_id),
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
            torn: written.as_ref().map_or(0, |written| written.torn),
            buffers: Vec::new(),
            _lock: lock,
        };
        let mut recovered = spool.recover(written)?;
        if id.is_none() {
            remove_delivered(&mut recovered.books);
        }
        recovered.is_behind = !spool.try_write_books(&recovered.books)?;
        Ok((spool, recovered))
    }

    /// The id of the directory.
    pub(crate) fn id(&self) -> LoggerId {
        self.id
    }

    /// Lifts the caps, for the rest of this process: callers that would rather wait than lose
    /// cannot wait any longer when the logger stops.
    pub(crate) fn lift_caps(&mut self) {
        self.caps = Caps {
            events: u64::MAX,
            bytes: u64::MAX,
        };
    }

    /// Bytes that wait for replay.
    pub(crate) fn bytes(&self) -> u64 {
        let replay = self.replay.as_ref().map(|replay| replay.position);
        let replay = replay.map_or(0, |position| position.end.saturating_sub(position.offset));
        let sealed: u64 = self.sealed.values().map(|(len, _)| *len).sum();
        replay + sealed + self.active.as_ref().map_or(0, |active| active.len)
    }

    /// Where the active file ends.
    pub(crate) fn append_position(&self) -> AppendPosition {
        let active = self.active.as_ref();
        AppendPosition {
            len: active.map_or(0, |active| active.len),
            lines: active.map_or(0, |active| active.lines),
            seq: self.seq,
            sum: self.sum,
        }
    }

    /// Makes lines of up to `count` events, no more than fit a batch, to be written behind `position`:
    /// where the file ends, or will end once the batch before this one is written.
    ///
    /// `encode` writes the JSON of an event, up to and with its `_id` and without the closing
    /// brace, and gives its id.
    pub(crate) fn prepare(
        &mut self,
        position: AppendPosition,
        count: usize,
        encode: &mut dyn FnMut(usize, &mut Vec<u8>) -> EventId,
    ) -> Prepared {
        let buffer = self.buffers.pop().unwrap_or_default();
        Prepared::new(buffer, position, self.caps, count, encode)
    }

    /// Opens the active file for another thread, which syncs it while more is written here. Until it
    /// is [returned](Self::return_sync_handle) the spool must not be asked for anything but to prepare,
    /// write and note batches.
    pub(crate) fn open_sync_handle(&mut self) -> Result<SyncHandle, SpillError> {
        let mut active = self.take_active()?;
        let second = match active.second.take() {
            Some(file) => Ok(file),
            None => self.disk.open(&active.path, OpenMode::Write),
        };
        let second = at("open", &active.path, second);
        self.active = Some(active);
        Ok(SyncHandle {
            file: second?,
            is_synced: self.is_synced,
        })
    }

    /// Takes the file back from the other thread.
    pub(crate) fn return_sync_handle(&mut self, handle: SyncHandle) {
        if let Some(active) = &mut self.active {
            active.second = Some(handle.file);
        }
    }

    /// Writes prepared lines behind those that were written before, without syncing them. After an
    /// error a part of them may be there.
    pub(crate) fn write(&mut self, prepared: &Prepared) -> io::Result<()> {
        match &mut self.active {
            Some(active) => active.file.append(&prepared.bytes),
            None => Err(io::Error::other("there is no active file")),
        }
    }

    fn take_active(&mut self) -> Result<Active, SpillError> {
        match self.active.take() {
            Some(active) => Ok(active),
            None => self.create_active(),
        }
    }

    /// Notes that these lines are durable.
    pub(crate) fn note(&mut self, prepared: Prepared) -> BatchWritten {
        if let Some(active) = &mut self.active {
            active.len += prepared.bytes.len() as u64;
            active.lines += prepared.written.ids.len() as u64;
            for id in &prepared.written.ids {
                add_one(&mut active.tallies, *id);
            }
        }
        self.seq = prepared.ends.seq;
        self.sum = prepared.ends.sum;
        self.recycle(prepared)
    }

    /// Writes prepared lines on this thread, and returns once they would survive a power cut.
    pub(crate) fn write_and_sync(
        &mut self,
        prepared: Prepared,
        books: &dyn Fn() -> Books,
    ) -> Result<AppendResult, SpillError> {
        if prepared.is_empty() {
            return Ok(AppendResult::Written(self.recycle(prepared)));
        }
        let mut active = self.take_active()?;
        let outcome = match active.file.append(&prepared.bytes) {
            Err(error) => WriteOutcome::Refused(error),
            Ok(()) if self.is_synced && active.file.sync().is_err() => WriteOutcome::Unsynced,
            Ok(()) => WriteOutcome::Durable,
        };
        self.active = Some(active);
        self.complete(prepared, outcome, books)
    }

    /// Does what is to be done about lines that were tried to be written. After an error the
    /// directory is given up; what was promised before is in it. `books` are the books of now.
    pub(crate) fn complete(
        &mut self,
        prepared: Prepared,
        outcome: WriteOutcome,
        books: &dyn Fn() -> Books,
    ) -> Result<AppendResult, SpillError> {
        match outcome {
            WriteOutcome::Durable => {}
            WriteOutcome::Skipped => {
                self.recycle(prepared);
                let why = "a write before it failed";
                return Ok(AppendResult::Refused(io::Error::other(why)));
            }
            WriteOutcome::Refused(error) => {
                // A part of it may be there, and what is reported as lost must not come back. If it
                // cannot be undone, durably, the file is given up, and the books say how much of it
                // counts before a loss is reported.
                if let Some(mut active) = self.active.take() {
                    if self.cut_back(&mut active) {
                        self.active = Some(active);
                    } else {
                        self.seal(active)?;
                        self.write_books(&books())?;
                    }
                }
                self.recycle(prepared);
                return Ok(AppendResult::Refused(error));
            }
            WriteOutcome::Unsynced => {
                // Final for that file: the batch goes to a fresh one, and if that fails too we
                // stop. The books say how much of the old file counts, before anything new is
                // promised.
                if let Some(active) = self.active.take() {
                    self.seal(active)?;
                }
                self.write_books(&books())?;
                let mut active = self.create_active()?;
                at("write", &active.path, active.file.append(&prepared.bytes))?;
                at("sync", &active.path, active.file.sync())?;
                self.active = Some(active);
            }
        }
        Ok(AppendResult::Written(self.note(prepared)))
    }

    /// Cuts the active file back to what was promised, and says whether that would survive a power
    /// cut.
    fn cut_back(&self, active: &mut Active) -> bool {
        let Active { file, len, .. } = active;
        file.truncate(*len).is_ok() && (!self.is_synced || file.sync().is_ok())
    }

    /// Keeps the buffer for the next batch.
    pub(crate) fn recycle(&mut self, prepared: Prepared) -> BatchWritten {
        if self.buffers.len() < BUFFERS {
            self.buffers.push(prepared.bytes);
        }
        prepared.written
    }

    fn create_active(&mut self) -> Result<Active, SpillError> {
        let path = self.dir.join(ACTIVE);
        let file = at("create", &path, self.disk.open(&path, OpenMode::CreateNew))?;
        self.sync_dir()?;
        Ok(Active {
            path,
            file,
            second: None,
            len: 0,
            lines: 0,
            tallies: Tallies::new(),
        })
    }

    fn remove(&self, path: &Path) -> Result<(), SpillError> {
        at("remove", path, self.disk.remove(path))
    }

    fn sync_dir(&self) -> Result<(), SpillError> {
        at("sync", &self.dir, self.disk.sync_dir(&self.dir))
    }

    /// Gives an active file up: its synced lines will be replayed in their turn.
    fn seal(&mut self, active: Active) -> Result<(), SpillError> {
        if active.len == 0 {
            // Nothing in it was promised, and what should have been goes to a fresh file.
            return self.remove(&active.path);
        }
        if self.sealed.len() >= MAX_SEALED {
            return Err(SpillError::TooManySealed {
                dir: self.dir.clone(),
                count: self.sealed.len(),
            });
        }
        let number = self.sealed.keys().next_back().map_or(1, |last| last + 1);
        let path = self.dir.join(numbered(SEALED, number));
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
        if self.cursor.is_none() {
            self.cursor = self.open_cursor(false)?.map(|(cursor, _)| cursor);
        }
        let oldest = self.sealed.first_key_value();
        let end = if let Some((number, end)) = oldest.map(|(number, (end, _))| (*number, *end)) {
            let from = self.dir.join(numbered(SEALED, number));
            // Under its new name nothing but the books tells how much of the file counts, so they
            // say it before it has that name.
            let file = at("open", &from, self.disk.open(&from, OpenMode::Read))?;
            let identity = at("read", &from, identity(&*file, end))?;
            let position = ReplayPosition {
                identity,
                end,
                ..ReplayPosition::default()
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
        self.replay = Some(ReplayReader::open(&*self.disk, &self.dir, end, &[])?);
        self.write_books(books)?;
        Ok(true)
    }

    /// The cursor; none where the disk has no room for it. The books know the position too, so replay
    /// goes on, and makes room.
    fn open_cursor(
        &self,
        is_trusted: bool,
    ) -> Result<Option<(Cursor, Option<ReplayPosition>)>, SpillError> {
        match Cursor::open(&*self.disk, &self.dir, is_trusted) {
            Err(error) if error.is_full() => {
                tracing::warn!(%error, "no room for a cursor; replay uses the books");
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// Notes that the first so many lines of a batch are replayed. Not durable until the books are
    /// written: a crash before costs duplicates.
    pub(crate) fn mark_replayed(&mut self, batch: &ReplayBatch, count: usize) {
        if let Some(replay) = &mut self.replay {
            replay.mark_replayed(batch, count);
        }
    }

    /// Whether there is a snapshot.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Once per snapshot in which a line cannot be read: the sums of all lines on disk that can be.
    /// The books have the lines that cannot be read beyond them.
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
        let sealed = self.sealed.values().map(|(_, tallies)| tallies);
        for (bucket, tally) in sealed.chain(active).flatten() {
            add(&mut readable, *bucket, *tally);
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
            self.remove(&active.path)?;
            self.sync_dir()?;
        }
        self.write_books(books)
    }

    fn remove_replay(&mut self) -> Result<(), SpillError> {
        let (replay, cursor) = (self.dir.join(REPLAY), self.dir.join(CURSOR));
        self.remove(&replay)?;
        self.sync_dir()?;
        self.replay = None;
        match self.cursor.take() {
            Some(_) => self.remove(&cursor),
            None => Ok(()),
        }
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

    /// Writes books and cursor down if the disk has room, and says whether it had. Without, what is
    /// newer than the books is found by the next process; it costs duplicates, and no event.
    pub(crate) fn try_write_books(&mut self, books: &Books) -> Result<bool, SpillError> {
        or_full(self.write_books(books))
    }

    /// Writes the last word of this process, if the disk has room for it.
    pub(crate) fn close(&mut self, books: &Books) -> Result<(), SpillError> {
        let position = self.replay.as_ref().map(|replay| replay.position);
        or_full(self.write_books_for(books, position, true)).map(|_| ())
    }

    fn write_books_for(
        &mut self,
        books: &Books,
        position: Option<ReplayPosition>,
        is_clean: bool,
    ) -> Result<(), SpillError> {
        let written = BooksSnapshot {
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
            torn: self.torn,
            id: Some(self.id),
            ..BooksSnapshot::default()
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

/// Posts the delivered events as removed: they left before the directory had its id, so no API has them under
/// it, and no audit may look for them there.
fn remove_delivered(books: &mut Books) {
    let removed = books.removed_tallies(&Place::Delivered);
    for (bucket, tally) in books.tallies(&Place::Delivered) {
        let earlier = removed.get(&bucket).copied().unwrap_or_default();
        books.move_tally(bucket, Some(Place::Delivered), None, tally.minus(earlier));
    }
}

/// Whether something was written; not, where the disk has no room.
fn or_full(written: Result<(), SpillError>) -> Result<bool, SpillError> {
    match written {
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "no room for the books; retrying later");
            Ok(false)
        }
        written => written.map(|()| true),
    }
}
