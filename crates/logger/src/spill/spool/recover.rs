//! Takes a spill directory over: finds what an earlier process left, and what its books do not
//! know yet.

use std::io;
use std::path::Path;

use tidegate_core::EventId;
use tidegate_core::books::{Books, Place};
use tidegate_core::env::{DiskFile, OpenMode};

use super::super::books_file::BooksSnapshot;
use super::super::replay::ReplayReader;
use super::super::scan::LineReader;
use super::super::{
    ACTIVE, CURSOR, LEFTOVER, REPLAY, SEALED, SpillError, Tallies, add, add_one, at, line, names,
    number_of, numbered, rewrite,
};
use super::{Active, Recovered, Spool};

impl Spool {
    pub(super) fn recover(
        &mut self,
        written: Option<BooksSnapshot>,
    ) -> Result<Recovered, SpillError> {
        let is_known = written.is_some();
        let written = written.unwrap_or_default();
        let mut books = written.books();
        let unverifiable = books.forget(&Place::InFlight) + books.forget(&Place::Retrying);
        let mut found = Found {
            written: &written,
            is_known,
            new: Tallies::new(),
            new_lines: 0,
            seq: 0,
            sum: 0,
        };
        let names = names(&*self.disk, &self.dir)?;
        let has = |name: &str| names.iter().any(|found| found == name);
        self.set_leftovers_aside(&names)?;
        let mut backlog = 0;
        if has(REPLAY) {
            backlog += self.recover_replay(&written, &mut books, &mut found)?;
        } else if has(CURSOR) {
            self.remove(&self.dir.join(CURSOR))?;
        }
        for number in names.iter().filter_map(|name| number_of(name, SEALED)) {
            let path = self.dir.join(numbered(SEALED, number));
            let good = written.sealed_len(number);
            if good.is_none() {
                // It was sealed by a process that ended before its books said how much of it is
                // synced. All of it is counted, so all of it has to be made to last.
                rewrite(&*self.disk, &path)?;
            }
            let file = at("open", &path, self.disk.open(&path, OpenMode::Read))?;
            let end = match good {
                Some(len) => len,
                None => at("measure", &path, file.len())?,
            };
            let counted = at("read", &path, found.count(&*file, 0, end, end))?;
            backlog += counted.lines;
            self.sealed.insert(number, (end, counted.waiting()));
        }
        if has(ACTIVE) {
            let (active, is_whole) = self.recover_active(&mut found)?;
            backlog += active.lines;
            if active.len == 0 {
                // Made, and nothing was written to it before the crash.
                self.remove(&active.path)?;
                self.sync_dir()?;
            } else if is_whole {
                self.active = Some(active);
            } else {
                self.seal(active)?;
            }
        }
        for (bucket, tally) in &found.new {
            books.move_tally(*bucket, None, Some(Place::Spilled), *tally);
        }
        self.seq = self.seq.max(found.seq);
        self.sum = self.sum.wrapping_add(found.sum);
        let unverifiable = (unverifiable - found.new_lines).max(0);
        Ok(Recovered {
            books,
            backlog,
            unverifiable,
            is_behind: false,
        })
    }

    /// The unfinished file of a Java client holds copies of lines that are in its replay file. It is
    /// kept, under a name that nobody writes to.
    fn set_leftovers_aside(&self, names: &[String]) -> Result<(), SpillError> {
        let taken = names
            .iter()
            .filter_map(|name| number_of(name, LEFTOVER))
            .max();
        let is_leftover =
            |name: &&String| name.starts_with("eventlog-spillover") && name.ends_with(".tmp");
        for (name, number) in names
            .iter()
            .filter(is_leftover)
            .zip(taken.unwrap_or(0) + 1..)
        {
            let to = self.dir.join(numbered(LEFTOVER, number));
            at(
                "set aside",
                &to,
                self.disk.replace(&self.dir.join(name), &to),
            )?;
            tracing::warn!(
                file = name,
                to = %to.display(),
                "found an unfinished file of a Java client; setting it aside"
            );
        }
        Ok(())
    }

    /// Takes the snapshot up again where it was left, or removes one that was done.
    fn recover_replay(
        &mut self,
        written: &BooksSnapshot,
        books: &mut Books,
        found: &mut Found<'_>,
    ) -> Result<u64, SpillError> {
        let (cursor, position) = self.open_cursor(written.is_clean)?.unzip();
        self.cursor = cursor;
        // The cursor follows the books, so one that is past them was not written by a logger.
        let known = match found.is_known {
            true => written.replay,
            false => position.flatten(),
        };
        let known: Vec<_> = known.into_iter().collect();
        let replay = ReplayReader::open(&*self.disk, &self.dir, None, &known)?;
        let path = self.dir.join(REPLAY);
        let file = at("open", &path, self.disk.open(&path, OpenMode::Read))?;
        let booked = written
            .replay
            .filter(|p| p.identity == replay.position.identity);
        // Lines that are replayed according to the cursor, and not yet in the books.
        let from = booked.map_or(0, |position| position.offset);
        let until = replay.position.offset.max(from);
        let replayed = at("read", &path, found.count(&*file, from, until, u64::MAX))?;
        for (bucket, tally) in replayed.tallies {
            books.move_tally(bucket, Some(Place::Spilled), Some(Place::Delivered), tally);
        }
        if replay.position.is_done {
            self.replay = Some(replay);
            self.remove_replay()?;
            return Ok(0);
        }
        // A snapshot that the books do not know was the active file when they were written.
        let covered = if booked.is_some() {
            u64::MAX
        } else {
            written.active_len
        };
        let end = replay.position.end;
        let counted = at(
            "read",
            &path,
            found.count(&*file, replay.position.offset, end, covered),
        )?;
        self.replay = Some(replay);
        Ok(counted.lines)
    }

    /// Takes the active file over, and says whether it ends with a line: only then anything may be
    /// written behind it.
    fn recover_active(&mut self, found: &mut Found<'_>) -> Result<(Active, bool), SpillError> {
        let path = self.dir.join(ACTIVE);
        if !found.written.is_clean {
            rewrite(&*self.disk, &path)?;
        }
        let mut file = at("open", &path, self.disk.open(&path, OpenMode::Write))?;
        let is_whole = match self.repair_tail(&path, &mut *file) {
            // The torn tail stays where it is, and is set aside by replay.
            Err(error) if error.is_full() => {
                tracing::warn!(%error, "no room to set a torn line aside; retrying later");
                false
            }
            repaired => {
                repaired?;
                true
            }
        };
        let len = at("measure", &path, file.len())?;
        let counted = at(
            "read",
            &path,
            found.count(&*file, 0, len, found.written.active_len),
        )?;
        let active = Active {
            path,
            file,
            second: None,
            len,
            lines: counted.lines,
            tallies: counted.waiting(),
        };
        Ok((active, is_whole))
    }

    /// A tail without a newline gets one if it is a line, and is set aside and cut if it is not.
    /// Else the next line would be glued to it, and both would be lost.
    fn repair_tail(&mut self, path: &Path, file: &mut dyn DiskFile) -> Result<(), SpillError> {
        let len = at("measure", path, file.len())?;
        let mut lines = LineReader::new(0, len);
        let mut tail = None;
        while let Some(raw) = at("read", path, lines.next(file))? {
            tail = (!raw.is_whole).then(|| (raw.offset, raw.bytes.to_vec()));
        }
        match tail {
            None => {}
            Some((offset, bytes)) if line::read(&bytes, offset).is_some() => {
                at("write", path, file.append(b"\n"))?;
                at("sync", path, file.sync())?;
            }
            Some((offset, mut bytes)) => {
                bytes.push(b'\n');
                self.corrupt.append(&*self.disk, &bytes)?;
                self.torn += 1;
                at("cut", path, file.truncate(offset))?;
                at("sync", path, file.sync())?;
            }
        }
        Ok(())
    }
}

/// The content of a file.
#[derive(Default)]
struct Counted {
    lines: u64,
    tallies: Tallies,
    /// Lines that cannot be read, as far as it is known which event they are.
    unreadable: Tallies,
}

impl Counted {
    /// All that waits in the file.
    fn waiting(mut self) -> Tallies {
        for (bucket, tally) in self.unreadable {
            add(&mut self.tallies, bucket, tally);
        }
        self.tallies
    }
}

/// Gathers what the files hold that the books do not know yet.
struct Found<'w> {
    written: &'w BooksSnapshot,
    is_known: bool,
    /// The sums of the lines that the books do not know, and how many there are.
    new: Tallies,
    new_lines: i64,
    seq: u64,
    sum: u128,
}

impl Found<'_> {
    /// Counts the lines from `from` to `end`. Lines of others count as new from `covered` on.
    fn count(
        &mut self,
        file: &dyn DiskFile,
        from: u64,
        end: u64,
        covered: u64,
    ) -> io::Result<Counted> {
        let mut counted = Counted::default();
        let mut lines = LineReader::new(from, end);
        while let Some(raw) = lines.next_filled(file)? {
            counted.lines += 1;
            let is_beyond_books = !self.is_known || raw.offset >= covered;
            let Some(line) = line::read(raw.bytes, raw.offset) else {
                // It is there and has to be accounted for, though nobody can say what it was.
                if is_beyond_books {
                    let id = EventId::of_bytes(raw.offset, raw.bytes);
                    self.add_new(id);
                    add_one(&mut counted.unreadable, id);
                } else if let Some(id) = line::hint(raw.bytes) {
                    add_one(&mut counted.unreadable, id);
                }
                continue;
            };
            add_one(&mut counted.tallies, line.id);
            let is_new = match line.seq {
                Some(seq) => seq > self.written.seq,
                None => is_beyond_books,
            };
            self.seq = self.seq.max(line.seq.unwrap_or(0));
            if is_new {
                self.add_new(line.id);
                // Only lines with a `_seq` of ours are in the running sum.
                let added = line.seq.map_or(0, |_| line.id.as_u128());
                self.sum = self.sum.wrapping_add(added);
            }
        }
        Ok(counted)
    }

    fn add_new(&mut self, id: EventId) {
        add_one(&mut self.new, id);
        self.new_lines += 1;
    }
}
