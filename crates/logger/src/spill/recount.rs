//! Counts a spill directory from its files and compares that with its books.
//!
//! It takes no lock and writes nothing, so it can run beside the process that holds the directory.
//! It then counts up to the last line that was written, and looks again when the files changed
//! under it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use tidegate_core::EventId;
use tidegate_core::books::{Books, Bucket, Discrepancy, Place, difference};
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::books_file::{BooksFile, BooksSnapshot};
use super::cursor::{Cursor, ReplayPosition};
use super::inspect::Role;
use super::replay::fits;
use super::scan::LineReader;
use super::{ACTIVE, REPLAY, SEALED, SpillError, at, line, names, number_of, numbered};

/// How often files that change under us are looked at again.
const TRIES: usize = 10;

/// The content of a spill directory, beside the content that its books claim.
#[derive(Debug)]
pub struct SpillRecount {
    /// The books, with the lines that are newer than they are.
    pub books: Books,
    /// The events in the files.
    pub found: Books,
    /// Events that the books have and the files do not.
    pub missing: Vec<Discrepancy>,
    /// Events of which nothing can be said: lines that cannot be read, and what was in memory.
    pub unverifiable: u64,
}

impl SpillRecount {
    /// How many events are missing.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        self.missing
            .iter()
            .map(|missing| missing.count.unsigned_abs().max(1))
            .sum()
    }
}

/// Counts a spill directory. A directory without spill files is empty and right.
///
/// # Errors
/// The directory or a file in it cannot be read, or kept changing while it was read.
pub fn recount(disk: &dyn Disk, dir: &Path) -> Result<SpillRecount, SpillError> {
    let mut tries = 0;
    loop {
        let before = BooksFile::peek(disk, dir);
        let counted = count(disk, dir, before.clone());
        let after = BooksFile::peek(disk, dir);
        let is_same = before.as_ref().map(|w| (w.replay, &w.sealed))
            == after.as_ref().map(|w| (w.replay, &w.sealed));
        tries += 1;
        if (is_same && counted.is_ok()) || tries == TRIES {
            return counted;
        }
    }
}

fn count(
    disk: &dyn Disk,
    dir: &Path,
    written: Option<BooksSnapshot>,
) -> Result<SpillRecount, SpillError> {
    let is_known = written.is_some();
    let written = written.unwrap_or_default();
    let mut counting = Counting {
        disk,
        dir,
        chain: Chain::new(&written),
        written,
        is_known,
        found: Books::default(),
        new: Books::default(),
        hints: Vec::new(),
        unreadable: 0,
        unreadable_kept: 0,
    };
    let names = match names(disk, dir) {
        Err(SpillError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Vec::new()
        }
        listed => listed?,
    };
    let has = |name: &str| names.iter().any(|found| found == name);
    if has(REPLAY) {
        counting.replay()?;
    }
    let sealed = names.iter().filter_map(|name| number_of(name, SEALED));
    let mut sealed: Vec<u32> = sealed.collect();
    sealed.sort_unstable();
    for number in sealed {
        let end = counting.written.sealed_len(number);
        counting.spilled(&numbered(SEALED, number), 0, end, u64::MAX)?;
    }
    if has(ACTIVE) {
        let covered = counting.written.active_len;
        counting.spilled(ACTIVE, 0, None, covered)?;
    }
    for name in &names {
        if let Some(role @ (Role::Corrupt | Role::Rejected)) = Role::of(name) {
            counting.kept(name, role)?;
        }
    }
    Ok(counting.compare())
}

struct Counting<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    written: BooksSnapshot,
    is_known: bool,
    chain: Chain,
    found: Books,
    /// Lines that are newer than the books.
    new: Books,
    /// Lines that cannot be read and name an event, with the place that their file means.
    hints: Vec<(EventId, Place)>,
    /// Lines that cannot be read, in files that wait and in those that are kept.
    unreadable: u64,
    unreadable_kept: u64,
}

impl Counting<'_> {
    fn open(&self, name: &str) -> Result<(Box<dyn DiskFile>, u64), SpillError> {
        let path = self.dir.join(name);
        let file = at("open", &path, self.disk.open(&path, OpenMode::Read))?;
        let len = at("measure", &path, file.len())?;
        Ok((file, len))
    }

    /// The snapshot, from the position with which the books agree.
    fn replay(&mut self) -> Result<(), SpillError> {
        let (file, _) = self.open(REPLAY)?;
        let is_it = |position: &ReplayPosition| fits(&*file, position);
        match self.written.replay.filter(is_it) {
            Some(position) if position.is_done => Ok(()),
            Some(position) => {
                let end = Some(position.end);
                self.spilled(REPLAY, position.offset, end, u64::MAX)
            }
            None => {
                // Rotated after the books were written: it was the active file then.
                let cursor = Cursor::peek(self.disk, self.dir).filter(is_it);
                let offset = cursor.map_or(0, |position| position.offset);
                self.spilled(REPLAY, offset, None, self.written.active_len)
            }
        }
    }

    /// Lines that wait for replay.
    fn spilled(
        &mut self,
        name: &str,
        from: u64,
        end: Option<u64>,
        covered: u64,
    ) -> Result<(), SpillError> {
        let (file, bytes) = self.open(name)?;
        let mut lines = LineReader::new(from, end.unwrap_or(bytes));
        while let Some(raw) = at("read", &self.dir.join(name), lines.next_filled(&*file))? {
            // A line that is being written has no end yet.
            if !raw.is_whole {
                continue;
            }
            let Some(line) = line::read(raw.bytes, raw.offset) else {
                self.unreadable += 1;
                let id = line::hint(raw.bytes);
                self.hints.extend(id.map(|id| (id, Place::Spilled)));
                continue;
            };
            self.found.move_one(line.id, None, Some(Place::Spilled));
            let is_new = match line.seq {
                Some(seq) => seq > self.written.seq,
                None => !self.is_known || raw.offset >= covered,
            };
            if is_new {
                self.new.move_one(line.id, None, Some(Place::Spilled));
                if let Some(seq) = line.seq {
                    self.chain.add(seq, line.id, line.sum);
                }
            }
        }
        Ok(())
    }

    /// Lines that are kept for good.
    fn kept(&mut self, name: &str, role: Role) -> Result<(), SpillError> {
        let (file, bytes) = self.open(name)?;
        let mut lines = LineReader::new(0, bytes);
        let mut seen = BTreeSet::new();
        while let Some(raw) = at("read", &self.dir.join(name), lines.next_filled(&*file))? {
            match line::read(raw.bytes, raw.offset).filter(|_| role == Role::Rejected) {
                // A crash right after it was set aside has it refused, and set aside, again.
                Some(line) if !seen.insert(line.id) => {}
                Some(line) => self
                    .found
                    .move_one(line.id, None, Some(Place::DeadLettered)),
                None => {
                    self.unreadable_kept += 1;
                    let id = line::hint(raw.bytes);
                    self.hints.extend(id.map(|id| (id, Place::DeadLettered)));
                }
            }
        }
        Ok(())
    }

    fn compare(self) -> SpillRecount {
        let mut books = self.written.books();
        books.merge(&self.new);
        let mut expected = Books::default();
        for place in [Place::Spilled, Place::DeadLettered] {
            for (bucket, tally) in books.tallies(&place) {
                expected.move_tally(bucket, None, Some(place.clone()), tally);
            }
        }
        let mut unverifiable = books.in_place(&Place::InFlight) + books.in_place(&Place::Retrying);
        let mut missing = Vec::new();
        let (believed, lines) = believed(&expected, &self.found, &self.hints);
        let mut found_or_named = self.found.clone();
        for (id, place) in &believed {
            found_or_named.move_one(*id, None, Some(place.clone()));
        }
        unverifiable += i64::try_from(believed.len()).unwrap_or(i64::MAX);
        // A line that cannot be read is there, only its id is not known: it accounts for one that
        // is missing, wherever that is. A torn tail accounts for none: it is in no books.
        let promised = self.unreadable_kept.saturating_sub(self.written.torn);
        let mut unnamed = (self.unreadable + promised).saturating_sub(lines);
        let mut gaps = self.chain.missing;
        gaps.extend(difference(&expected, &found_or_named));
        for found in gaps.into_iter().filter(|d| d.count >= 0) {
            // As many as expected, but not the same ones. One that does not tell its id stands
            // beside one that was set aside and is not in the books yet.
            let count = found.count.unsigned_abs().max(1);
            if unnamed >= count {
                unnamed -= count;
                unverifiable += found.count;
            } else {
                missing.push(found);
            }
        }
        SpillRecount {
            books,
            found: self.found,
            missing,
            unverifiable: u64::try_from(unverifiable).unwrap_or(0),
        }
    }
}

/// The hints that the books agree with, that is an event that they miss in that place, and how many
/// lines gave them. A damaged line may name an event that never was, or one that was sent again and
/// is elsewhere.
fn believed(
    expected: &Books,
    found: &Books,
    hints: &[(EventId, Place)],
) -> (BTreeSet<(EventId, Place)>, u64) {
    // A line that was set aside twice names the same event twice.
    let mut believed: BTreeSet<(EventId, Place)> = hints.iter().cloned().collect();
    let mut with_hints = found.clone();
    for (id, place) in &believed {
        with_hints.move_one(*id, None, Some(place.clone()));
    }
    // Buckets, folded or not, in which hints and books do not agree.
    let doubtful: Vec<Discrepancy> = difference(expected, &with_hints)
        .into_iter()
        .filter(|d| d.count <= 0)
        .collect();
    believed.retain(|(id, place)| {
        let is_doubtful = |d: &Discrepancy| d.place == *place && holds(d.bucket, *id);
        !doubtful.iter().any(is_doubtful)
    });
    let lines = hints.iter().filter(|hint| believed.contains(hint)).count();
    (believed, lines as u64)
}

/// Whether an event is kept in this bucket.
fn holds(bucket: Bucket, id: EventId) -> bool {
    let Bucket::Minute(minute) = Bucket::of(id) else {
        return false;
    };
    match bucket {
        Bucket::Minute(kept) => kept == minute,
        Bucket::Hour(kept) => kept == minute / 60,
        Bucket::Day(kept) => kept == minute / 60 / 24,
        Bucket::Offsets { .. } => false,
    }
}

/// Follows the running sums over the lines that are newer than the books.
///
/// A batch that has a successor was synced, so a hole in it is a line that was taken away. The last
/// batch may have holes: nobody was promised anything of it.
struct Chain {
    last_sum: (u64, u128),
    batch: (u64, u128),
    /// The part that the last whole batch lacks, until a successor proves that it was synced.
    suspected: Option<Discrepancy>,
    missing: Vec<Discrepancy>,
}

impl Chain {
    fn new(written: &BooksSnapshot) -> Self {
        let last_sum = (written.seq, written.sum);
        Self {
            last_sum,
            batch: (0, 0),
            suspected: None,
            missing: Vec::new(),
        }
    }

    fn add(&mut self, seq: u64, id: EventId, sum: Option<u128>) {
        self.missing.extend(self.suspected.take());
        self.batch.0 += 1;
        self.batch.1 = self.batch.1.wrapping_add(id.as_u128());
        if let Some(sum) = sum {
            let expected = (
                seq.saturating_sub(self.last_sum.0),
                sum.wrapping_sub(self.last_sum.1),
            );
            if expected.0 > self.batch.0 {
                let count = expected.0 - self.batch.0;
                let id = EventId::from_u128(expected.1.wrapping_sub(self.batch.1));
                let id = (count == 1).then_some(id);
                self.suspected = Some(Discrepancy {
                    bucket: id.map_or(Bucket::Minute(0), Bucket::of),
                    place: Place::Spilled,
                    count: i64::try_from(count).unwrap_or(i64::MAX),
                    id,
                });
            }
            self.last_sum = (seq, sum);
            self.batch = (0, 0);
        }
    }
}
