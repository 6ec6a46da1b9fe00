//! Looks at every line of a spill directory: what waits, what is replayed, and what is not as it
//! should be.
//!
//! It takes no lock and writes nothing. Files are read in the order in which events pass through
//! them. So beside a running logger an event may be seen twice, and never not at all.

mod sequence;
mod walk;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tidegate_core::books::Discrepancy;
use tidegate_core::env::{Disk, OpenMode};

use self::sequence::{Chain, Sequence};
use super::books_file::{BooksFile, BooksSnapshot};
use super::cursor::{Cursor, ReplayPosition};
use super::recount::{SpillRecount, recount};
use super::replay::fits;
use super::{ACTIVE, BOOKS, CORRUPT, CURSOR, LOCK, REJECTED, REPLAY};
use super::{LEFTOVER, SEALED, SpillError, names, number_of};

pub(super) use self::walk::{WalkItem, WalkedLine, walk};

/// The purpose of a file of a spill directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// New events are appended to it.
    Active,
    /// An active file whose sync failed, which waits for its replay.
    Sealed,
    /// The snapshot that is being replayed.
    Replay,
    /// Lines that cannot be read.
    Corrupt,
    /// Events that the API refused for good.
    Rejected,
}

impl Role {
    /// The role of a file with this name; none for one that holds no events.
    pub(super) fn of(name: &str) -> Option<Self> {
        // An operator may have renamed a kept file: its events count all the same.
        let is_kept = |first: &str, stem: &str| {
            let rest = name.strip_prefix(stem);
            name == first || rest.is_some_and(|rest| rest.starts_with('-'))
        };
        match name {
            ACTIVE => Some(Self::Active),
            REPLAY => Some(Self::Replay),
            _ if number_of(name, SEALED).is_some() => Some(Self::Sealed),
            _ if is_kept(CORRUPT, "eventlog-spillover.corrupt") => Some(Self::Corrupt),
            _ if is_kept(REJECTED, "eventlog-spillover.rejected") => Some(Self::Rejected),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Sealed => "sealed",
            Self::Replay => "replay",
            Self::Corrupt => "corrupt",
            Self::Rejected => "rejected",
        })
    }
}

/// The files of a spill directory and the problems in them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SpillInspection {
    /// Its files, in the order in which they are replayed, then those that are kept.
    pub files: Vec<InspectedFile>,
    /// Everything that is not as it should be.
    pub findings: Vec<SpillFinding>,
}

impl SpillInspection {
    /// Lines that wait for replay, in all files together.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let is_waiting = |file: &&InspectedFile| file.role < Role::Corrupt;
        self.files.iter().filter(is_waiting).map(|f| f.lines).sum()
    }
}

/// One file with events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub role: Role,
    /// Its length in bytes.
    pub bytes: u64,
    /// Lines that wait in it, or are kept in it.
    pub lines: u64,
    /// Lines of it that were replayed already.
    pub replayed: u64,
    /// Lines, of those that wait or are kept, that cannot be read.
    pub unreadable: u64,
    /// When the oldest of its events was born, in milliseconds since 1970; of those that tell.
    pub oldest_ms: Option<u64>,
    /// When the newest of them was born.
    pub newest_ms: Option<u64>,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// Left by a crash; the next start repairs it and nothing is lost.
    Note,
    /// Somebody should look at it.
    Problem,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpillFinding {
    /// How much it matters.
    pub level: FindingLevel,
    /// The stable code.
    pub code: &'static str,
    /// The file.
    pub file: String,
    /// The line, counted from 1, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The description, for people.
    pub message: String,
}

impl SpillFinding {
    fn problem(
        code: &'static str,
        file: &str,
        line: Option<u64>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            level: FindingLevel::Problem,
            code,
            file: file.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for SpillFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {} ({})", self.message, self.code)
    }
}

/// The code of an event that the books have and no file.
pub(super) const MISSING: &str = "event.missing";

/// Looks at a spill directory.
///
/// ```
/// use tidegate_core::env::system::SystemDisk;
/// use tidegate_logger::spill::inspect;
/// let dir = tempfile::tempdir()?;
/// let inspection = inspect(&SystemDisk, dir.path())?;
/// assert_eq!((inspection.waiting(), inspection.findings.len()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn inspect(disk: &dyn Disk, dir: &Path) -> Result<SpillInspection, SpillError> {
    inspect_and_count(disk, dir).map(|(inspection, _)| inspection)
}

/// Looks at a spill directory, and compares it with its books.
pub(super) fn inspect_and_count(
    disk: &dyn Disk,
    dir: &Path,
) -> Result<(SpillInspection, SpillRecount), SpillError> {
    let covered = BooksFile::peek(disk, dir).map_or(0, |written| written.active_len);
    let mut files: Vec<(InspectedFile, Chain)> = Vec::new();
    let mut findings = Vec::new();
    walk(disk, dir, &mut |seen| {
        let Some(line) = &seen.line else {
            let file = InspectedFile {
                name: seen.file.to_owned(),
                role: seen.role,
                bytes: seen.bytes,
                lines: 0,
                replayed: 0,
                unreadable: 0,
                oldest_ms: None,
                newest_ms: None,
            };
            return files.push((file, Chain::default()));
        };
        let Some((file, chain)) = files.last_mut() else {
            return;
        };
        if line.is_replayed {
            file.replayed += 1;
        } else if line.raw.is_whole || line.line.is_some() || seen.role >= Role::Corrupt {
            file.lines += 1;
            file.unreadable += u64::from(line.line.is_none());
        }
        if let Some(born) = line.line.as_ref().and_then(|line| line.id.born_ms()) {
            file.oldest_ms = Some(file.oldest_ms.map_or(born, |oldest| oldest.min(born)));
            file.newest_ms = file.newest_ms.max(Some(born));
        }
        if seen.role != Role::Corrupt {
            findings.extend(look_at(seen.file, seen.role, line, covered));
            chain.add(line);
        }
    })?;
    files.sort_by_key(|(file, _)| {
        let turn = match file.role {
            Role::Replay => 0,
            Role::Sealed => 1,
            Role::Active => 2,
            Role::Corrupt | Role::Rejected => 3,
        };
        // By number, not by name: 10 comes after 9.
        (turn, file.role, number_of(&file.name, SEALED))
    });
    let mut sequence = Sequence::default();
    let waiting = files
        .iter_mut()
        .filter(|(file, _)| file.role < Role::Corrupt);
    for (file, chain) in waiting {
        chain.put_in_order(&file.name, &mut findings);
        sequence.follow(&file.name, chain, &mut findings);
    }
    let counted = recount(disk, dir)?;
    compare_with_books(&counted.missing, &mut findings);
    findings.extend(look_around(disk, dir, sequence.has_lines())?);
    let files = files.into_iter().map(|(file, _)| file).collect();
    Ok((SpillInspection { files, findings }, counted))
}

/// Adds what only the books know: which line is missing before the first running sum, and that one
/// is missing at either end.
fn compare_with_books(missing: &[Discrepancy], findings: &mut Vec<SpillFinding>) {
    let mut gaps: Vec<&mut SpillFinding> = findings
        .iter_mut()
        .filter(|finding| finding.code == sequence::GAP)
        .collect();
    match (missing, &mut gaps[..]) {
        ([Discrepancy { id: Some(id), .. }], [gap]) if gap.message == sequence::ONE_MISSING => {
            gap.message = sequence::named(*id);
        }
        (missing, []) => {
            let message = |missing: &Discrepancy| match missing.id {
                Some(id) => format!("the books have event {id}, but no file has it"),
                None if missing.count == 0 => {
                    "the files have other events than the books in place of some".to_owned()
                }
                None => format!("the books have {} events that no file has", missing.count),
            };
            findings.extend(
                missing
                    .iter()
                    .map(|missing| SpillFinding::problem(MISSING, BOOKS, None, message(missing))),
            );
        }
        _ => {}
    }
}

/// The problem of one line, if it has one.
///
/// The books cover the active file up to `covered`.
fn look_at(file: &str, role: Role, line: &WalkedLine<'_>, covered: u64) -> Option<SpillFinding> {
    let finding = |level, code, message: &str| {
        let problem = SpillFinding::problem(code, file, Some(line.raw.number), message);
        Some(SpillFinding { level, ..problem })
    };
    match (&line.line, line.raw.is_whole) {
        (Some(_), true) => None,
        (Some(_), false) if role == Role::Active && line.raw.offset < covered => finding(
            FindingLevel::Problem,
            "line.open",
            "the newline of the line is gone; opening the directory adds it",
        ),
        (Some(_), false) if role == Role::Replay || role == Role::Sealed => None,
        (Some(_), false) => finding(
            FindingLevel::Note,
            "line.open",
            "the line has no newline yet; opening the directory adds it",
        ),
        (None, false) if role == Role::Active && line.raw.offset < covered => finding(
            FindingLevel::Problem,
            "line.cut",
            "the last line is cut, and the books have its event",
        ),
        (None, false) if role == Role::Active => finding(
            FindingLevel::Note,
            "line.torn",
            "the last line is torn: a write that was cut, or damage; opening the directory sets it \
             aside",
        ),
        (None, _) if line.is_replayed => None,
        (None, _) => finding(
            FindingLevel::Problem,
            "line.unreadable",
            "the line is unreadable; replay sets it aside, byte for byte",
        ),
    }
}

/// Problems of the files that hold no events.
fn look_around(
    disk: &dyn Disk,
    dir: &Path,
    has_ours: bool,
) -> Result<Vec<SpillFinding>, SpillError> {
    let names = names(disk, dir)?;
    let has = |name: &str| names.iter().any(|found| found == name);
    let mut findings = Vec::new();
    let mut add = |level, code, file: &str, message: &str| {
        let problem = SpillFinding::problem(code, file, None, message);
        findings.push(SpillFinding { level, ..problem });
    };
    // The cursor first: beside a running logger it follows the books.
    let position = Cursor::peek(disk, dir);
    let written = BooksFile::peek(disk, dir);
    let is_of_logger = |name: &&str| has(name);
    if has(BOOKS) && written.is_none() {
        let message = "neither slot of the books is readable; nobody can say what was spilled here";
        add(FindingLevel::Problem, "books.unreadable", BOOKS, message);
    } else if has(BOOKS) && BooksFile::has_damaged_slot(disk, dir) {
        let message = "one slot of the books is damaged, or was cut while it was written; the other one is \
                       used, which may be older";
        add(FindingLevel::Problem, "books.damaged", BOOKS, message);
    } else if !has(BOOKS) && (has_ours || [LOCK, CURSOR, REJECTED].iter().any(is_of_logger)) {
        let message =
            "the books are missing, and a logger was here; nobody can say what was spilled";
        add(FindingLevel::Problem, "books.missing", BOOKS, message);
    }
    if has(CURSOR) && has(REPLAY) {
        let replay = disk.open(&dir.join(REPLAY), OpenMode::Read).ok();
        let fits =
            |position: &ReplayPosition| replay.as_ref().is_none_or(|file| fits(&**file, position));
        match &position {
            None => add(
                FindingLevel::Note,
                "cursor.unusable",
                CURSOR,
                "no slot is readable; replay uses the books, or starts from the beginning",
            ),
            Some(position) if !fits(position) => add(
                FindingLevel::Note,
                "cursor.unusable",
                CURSOR,
                "it belongs to another snapshot and is ignored",
            ),
            Some(position) if is_ahead(position, written.as_ref(), fits) => add(
                FindingLevel::Problem,
                "cursor.ahead",
                CURSOR,
                "it says that more was sent than the books do; replay uses the books",
            ),
            Some(_) => {}
        }
    }
    for name in names
        .iter()
        .filter(|name| number_of(name, LEFTOVER).is_some())
    {
        let message = "an unfinished file of a Java client; it is kept, not replayed";
        add(FindingLevel::Note, "file.leftover", name, message);
    }
    for name in names.iter().filter(|name| is_stray(name)) {
        let message = "not a file of the logger; left by a crash or another program";
        add(FindingLevel::Note, "file.unknown", name, message);
    }
    Ok(findings)
}

/// Whether a cursor is past the books, which are written before it.
fn is_ahead(
    position: &ReplayPosition,
    written: Option<&BooksSnapshot>,
    fits: impl Fn(&ReplayPosition) -> bool,
) -> bool {
    written.is_some_and(|written| {
        let known = written.replay.filter(fits).unwrap_or_default();
        (position.is_done, position.offset) > (known.is_done, known.offset)
    })
}

fn is_stray(name: &str) -> bool {
    let is_known = Role::of(name).is_some()
        || [BOOKS, CURSOR, LOCK].contains(&name)
        || number_of(name, LEFTOVER).is_some();
    name.starts_with("eventlog-spillover") && !is_known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_role_of_its_name() {
        let numbered = |name: &str, number: &str| name.replace(".jsonl", number);
        for (name, role) in [
            (ACTIVE.to_owned(), Some(Role::Active)),
            (REPLAY.to_owned(), Some(Role::Replay)),
            (CORRUPT.to_owned(), Some(Role::Corrupt)),
            (numbered(CORRUPT, "-2.jsonl"), Some(Role::Corrupt)),
            (REJECTED.to_owned(), Some(Role::Rejected)),
            (numbered(REJECTED, "-17.jsonl"), Some(Role::Rejected)),
            (numbered(REJECTED, "-june.jsonl"), Some(Role::Rejected)),
            (numbered(CORRUPT, "-2.txt"), Some(Role::Corrupt)),
            (numbered(CORRUPT, "ed.jsonl"), None),
            (BOOKS.to_owned(), None),
        ] {
            assert_eq!(Role::of(&name), role, "{name}");
        }
    }
}
