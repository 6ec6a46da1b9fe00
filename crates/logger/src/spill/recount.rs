//! Counts a spill directory from its files and compares that with its books.
//!
//! It takes no lock and writes nothing, so it can run beside the process that holds the directory.
//! It then counts up to the last line that was written, and looks again when the files changed
//! under it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use tidegate_core::EventId;
use tidegate_core::books::{AuditFinding, Books, Bucket, Discrepancy, Place, difference};
use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::books_file::{BooksFile, BooksSnapshot};
use super::cursor::{Cursor, ReplayPosition};
use super::inspect::Role;
use super::replay::fits;
use super::scan::{LineReader, RawLine};
use super::{ACTIVE, CORRUPT, REPLAY, SEALED, SpillError, at, line, names, number_of, numbered};

/// How often files that change under us are looked at again.
const TRIES: usize = 10;

/// The content of a spill directory, beside the content that its books claim.
#[derive(Debug, Default)]
pub struct SpillRecount {
    /// The books, with the lines that are newer than they are.
    pub books: Books,
    /// The events in the files.
    pub found: Books,
    /// Events that the books have and the files do not.
    pub missing: Vec<Discrepancy>,
    /// Events of which nothing can be said: lines that cannot be read, and what was in memory.
    pub unverifiable: u64,
    /// Lines that cannot be read and stand for no loss: those that were set aside, and those of which
    /// nobody can say whether they were promised.
    pub findings: Vec<AuditFinding>,
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
        chain: Chain::new(&written, is_known),
        written,
        is_known,
        found: Books::default(),
        new: Books::default(),
        replayed_below: 0,
        seen: BTreeSet::new(),
        torn: Vec::new(),
        waiting: Vec::new(),
        kept: Vec::new(),
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
    /// Lines with lower numbers were replayed, in a file that was changed.
    replayed_below: u64,
    /// Numbers and ids that were counted: a line that was doubled is one event.
    seen: BTreeSet<(u64, EventId)>,
    /// Last lines without an end that cannot be read, and that the books do not cover.
    torn: Vec<AuditFinding>,
    /// Lines that cannot be read, in files that wait and in those that are kept.
    waiting: Vec<UnreadableLine>,
    kept: Vec<UnreadableLine>,
}

/// A line that cannot be read.
struct UnreadableLine {
    /// The event that it names, if it does.
    hint: Option<EventId>,
    /// The id under which a start counts it, where the books do not cover it.
    counted_as: EventId,
    /// Tells its bytes apart from others.
    bytes: EventId,
    is_new: bool,
}

impl UnreadableLine {
    fn new(raw: &RawLine<'_>, is_new: bool) -> Self {
        Self {
            hint: line::hint(raw.bytes),
            counted_as: EventId::of_bytes(raw.offset, raw.bytes),
            bytes: EventId::of_bytes(0, raw.bytes),
            is_new,
        }
    }
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
        let (file, bytes) = self.open(REPLAY)?;
        let is_it = |position: &ReplayPosition| fits(&*file, position);
        match self.written.replay.filter(is_it) {
            Some(position) if position.is_done => Ok(()),
            Some(position) => {
                let end = Some(position.end);
                self.spilled(REPLAY, position.offset, end, u64::MAX)
            }
            // The books are written before another file gets this name, so this one was changed. Its lines tell by
            // their numbers which of them were replayed.
            None if self.is_known && self.written.replay.is_some_and(|known| !known.is_done) => {
                let replayed = self.written.replay.map_or(0, |known| known.lines);
                let mut lines = LineReader::new(0, bytes);
                let mut first = None;
                while first.is_none()
                    && let Some(raw) =
                        at("read", &self.dir.join(REPLAY), lines.next_filled(&*file))?
                {
                    let line = line::read(raw.bytes, raw.offset);
                    let seq = line.and_then(|line| line.seq);
                    first = seq.map(|seq| seq.saturating_sub(raw.number - 1));
                }
                self.replayed_below = first.map_or(0, |first| first.saturating_add(replayed));
                let counted = self.spilled(REPLAY, 0, None, u64::MAX);
                self.replayed_below = 0;
                counted
            }
            None => {
                // Rotated after the books were written: it was the active file then, and the cursor, which
                // follows the books, knows nothing of it. Without books it is all there is.
                let cursor = Cursor::peek(self.disk, self.dir);
                let cursor = cursor.filter(|position| !self.is_known && is_it(position));
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
            let is_beyond_books = !self.is_known || raw.offset >= covered;
            // A line that is being written has no end yet.
            if !raw.is_whole && is_beyond_books {
                if line::read(raw.bytes, raw.offset).is_none() {
                    self.torn.push(torn(name, &raw));
                }
                continue;
            }
            let Some(line) = line::read(raw.bytes, raw.offset) else {
                self.waiting
                    .push(UnreadableLine::new(&raw, is_beyond_books));
                continue;
            };
            if let Some(seq) = line.seq {
                let is_replayed = seq < self.replayed_below && seq <= self.written.seq;
                if is_replayed || !self.seen.insert((seq, line.id)) {
                    continue;
                }
            }
            self.found.move_one(line.id, None, Some(Place::Spilled));
            let is_new = match line.seq {
                Some(seq) => seq > self.written.seq,
                None => is_beyond_books,
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
            match kept_line(role, &raw) {
                // A crash right after it was set aside has it refused, and set aside, again.
                Some(id) if !seen.insert(id) => {}
                Some(id) => self.found.move_one(id, None, Some(Place::DeadLettered)),
                // A refused event that cannot be read is gone; a corrupt line never could.
                None if role == Role::Rejected => {}
                None => self.kept.push(UnreadableLine::new(&raw, false)),
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
        let (new, booked): (Vec<_>, Vec<_>) = self.waiting.iter().partition(|line| line.is_new);
        let named = self.kept.iter().filter_map(|line| line.hint);
        let named = named.map(|id| (id, Place::DeadLettered));
        let counted = booked.iter().map(|line| (line.counted_as, Place::Spilled));
        let candidates: Vec<(EventId, Place)> = named.chain(counted).collect();
        let (believed, lines) = believed(&expected, &self.found, &candidates);
        let mut found_or_named = self.found.clone();
        let mut findings = Vec::new();
        for (id, place) in &believed {
            found_or_named.move_one(*id, None, Some(place.clone()));
            let is_kept = *place == Place::DeadLettered;
            findings.push(match is_kept {
                true => set_aside(1, Some(*id)),
                false => unproven(1),
            });
        }
        let mut unreadable = Unreadable::new(&booked, &self.kept, self.written.torn);
        unreadable.all = unreadable.all.saturating_sub(lines);
        let mut unverifiable = believed.len() as u64 + new.len() as u64;
        if !new.is_empty() {
            findings.push(unproven(new.len()));
        }
        findings.extend(self.torn);
        let mut missing = Vec::new();
        let mut gaps = self.chain.missing;
        gaps.extend(difference(&expected, &found_or_named));
        for gap in gaps.into_iter().filter(|gap| gap.count >= 0) {
            let (covered, rest) = unreadable.cover(gap);
            if let Some((count, id)) = covered {
                findings.push(set_aside(count, id));
                unverifiable += count;
            }
            missing.extend(rest);
        }
        let memory = books.in_place(&Place::InFlight) + books.in_place(&Place::Retrying);
        SpillRecount {
            books,
            found: self.found,
            missing,
            unverifiable: unverifiable + u64::try_from(memory).unwrap_or(0),
            findings,
        }
    }
}

/// The id of a line that is kept and can be read. A corrupt line is none: nobody could say what it was.
fn kept_line(role: Role, raw: &RawLine<'_>) -> Option<EventId> {
    let is_readable = role == Role::Rejected && line::is_rejected_event_whole(raw.bytes);
    let line = is_readable.then(|| line::read(raw.bytes, raw.offset))?;
    line.map(|line| line.id)
}

/// Lines that cannot be read and of which the logger took note: they are events, and dead letters.
struct Unreadable {
    /// All that may be dead letters by the books.
    all: u64,
    /// Those of them that the books may still have as spilled: they were set aside, and the process ended
    /// before it wrote that down.
    set_aside: u64,
}

impl Unreadable {
    /// `booked` are those of the lines that wait which the books know. A torn line was promised to nobody.
    fn new(booked: &[&UnreadableLine], kept: &[UnreadableLine], torn: u64) -> Self {
        let copies: BTreeSet<EventId> = kept.iter().map(|line| line.bytes).collect();
        let is_copied = |line: &&&UnreadableLine| copies.contains(&line.bytes);
        let set_aside = booked.iter().filter(is_copied).count() as u64;
        // The logger posts all lines of the directory that cannot be read when it meets the first.
        let ahead = booked.len() as u64 - set_aside;
        let promised = (kept.len() as u64).saturating_sub(torn);
        Self {
            all: promised + ahead,
            set_aside,
        }
    }

    /// How many of these events such lines are, and the events that are missing all the same.
    fn cover(&mut self, gap: Discrepancy) -> (Option<(u64, Option<EventId>)>, Option<Discrepancy>) {
        // As many as expected, but not the same ones: one that does not tell its id stands beside one
        // that was set aside and is not in the books yet.
        let count = gap.count.unsigned_abs().max(1);
        let is_dead = gap.place == Place::DeadLettered;
        let limit = match is_dead {
            true => self.all,
            false => self.set_aside.min(self.all),
        };
        let covered = count.min(limit);
        self.all -= covered;
        if !is_dead {
            self.set_aside -= covered;
        }
        match covered {
            0 => (None, Some(gap)),
            _ if covered == count => (Some((count, gap.id)), None),
            _ => {
                let left = i64::try_from(count - covered).unwrap_or(i64::MAX);
                let rest = Discrepancy {
                    count: left,
                    id: None,
                    ..gap
                };
                (Some((covered, None)), Some(rest))
            }
        }
    }
}

/// The finding of events whose lines were unreadable and are kept.
fn set_aside(count: u64, id: Option<EventId>) -> AuditFinding {
    let message = match (count, id) {
        (_, Some(id)) => {
            format!(
                "event {id} is a dead letter: its line cannot be read and is kept in `{CORRUPT}`"
            )
        }
        (1, None) => {
            format!("1 event is a dead letter: its line cannot be read and is kept in `{CORRUPT}`")
        }
        (count, None) => format!(
            "{count} events are dead letters: their lines cannot be read and are kept in `{CORRUPT}`"
        ),
    };
    AuditFinding::new("line.corrupt", message).about(id)
}

/// The finding of a last line without an end. The place tells it apart from the next one that is being written.
fn torn(name: &str, raw: &RawLine<'_>) -> AuditFinding {
    let (bytes, offset) = (raw.bytes.len(), raw.offset);
    let message = format!(
        "the last {bytes} bytes of `{name}`, from byte {offset}, are no whole line: a write that was cut, or \
         damage; they may have been acknowledged"
    );
    AuditFinding::new("line.unproven", message)
}

/// The finding of lines behind everything that is certain.
fn unproven(count: usize) -> AuditFinding {
    let lines = match count {
        1 => "1 line was".to_owned(),
        count => format!("{count} lines were"),
    };
    let message = format!(
        "{lines} written last and cannot be read: a write that was cut, or damage; it may have been \
         acknowledged"
    );
    AuditFinding::new("line.unproven", message)
}

/// The events of these that the books agree with: those that they miss in that place, and how many
/// candidates named them. A damaged line may name an event that never was, or one that was sent again and
/// is elsewhere.
fn believed(
    expected: &Books,
    found: &Books,
    candidates: &[(EventId, Place)],
) -> (BTreeSet<(EventId, Place)>, u64) {
    // A line that was set aside twice names the same event twice.
    let mut believed: BTreeSet<(EventId, Place)> = candidates.iter().cloned().collect();
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
    let lines = candidates
        .iter()
        .filter(|candidate| believed.contains(candidate))
        .count();
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
    /// The last line with a running sum, and that sum. Without books the sum before the first is unknown.
    last: Option<(u64, Option<u128>)>,
    batch: (u64, u128),
    /// The part that the last whole batch lacks, until a successor proves that it was synced.
    suspected: Option<Discrepancy>,
    missing: Vec<Discrepancy>,
}

impl Chain {
    fn new(written: &BooksSnapshot, is_known: bool) -> Self {
        Self {
            last: is_known.then_some((written.seq, Some(written.sum))),
            batch: (0, 0),
            suspected: None,
            missing: Vec::new(),
        }
    }

    fn add(&mut self, seq: u64, id: EventId, sum: Option<u128>) {
        self.missing.extend(self.suspected.take());
        self.batch.0 += 1;
        self.batch.1 = self.batch.1.wrapping_add(id.as_u128());
        let (last_seq, last_sum) = *self.last.get_or_insert((seq.saturating_sub(1), None));
        if let Some(sum) = sum {
            let expected = seq.saturating_sub(last_seq);
            if expected > self.batch.0 {
                let count = expected - self.batch.0;
                let rest = last_sum.map(|last| sum.wrapping_sub(last).wrapping_sub(self.batch.1));
                let id = rest.filter(|_| count == 1).map(EventId::from_u128);
                self.suspected = Some(Discrepancy {
                    bucket: id.map_or(Bucket::Minute(0), Bucket::of),
                    place: Place::Spilled,
                    count: i64::try_from(count).unwrap_or(i64::MAX),
                    id,
                });
            }
            self.last = Some((seq, Some(sum)));
            self.batch = (0, 0);
        }
    }
}
