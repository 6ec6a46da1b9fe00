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
use super::books_file::BooksFile;
use super::cursor::Cursor;
use super::recount::recount;
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
            findings.extend(look_at(seen.file, seen.role, line));
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
    for (file, chain) in files.iter().filter(|(file, _)| file.role < Role::Corrupt) {
        sequence.follow(&file.name, chain, &mut findings);
    }
    compare_with_books(&recount(disk, dir)?.missing, &mut findings);
    findings.extend(look_around(disk, dir, sequence.has_lines())?);
    let files = files.into_iter().map(|(file, _)| file).collect();
    Ok(SpillInspection { files, findings })
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
                None => format!("the books have {} events that no file has", missing.count),
            };
            findings.extend(missing.iter().map(|missing| {
                SpillFinding::problem("event.missing", BOOKS, None, message(missing))
            }));
        }
        _ => {}
    }
}

/// The problem of one line, if it has one.
fn look_at(file: &str, role: Role, line: &WalkedLine<'_>) -> Option<SpillFinding> {
    let finding = |level, code, message: &str| {
        let problem = SpillFinding::problem(code, file, Some(line.raw.number), message);
        Some(SpillFinding { level, ..problem })
    };
    match (&line.line, line.raw.is_whole) {
        (Some(_), true) => None,
        (Some(_), false) if role == Role::Replay || role == Role::Sealed => None,
        (Some(_), false) => finding(
            FindingLevel::Note,
            "line.open",
            "the line has no newline yet; opening the directory adds it",
        ),
        (None, false) if role == Role::Active => finding(
            FindingLevel::Note,
            "line.torn",
            "the last line is torn; it was never acknowledged, and opening the directory sets it \
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
    if has(BOOKS) && BooksFile::peek(disk, dir).is_none() {
        let level = if has_ours {
            FindingLevel::Problem
        } else {
            FindingLevel::Note
        };
        add(
            level,
            "books.unreadable",
            BOOKS,
            "neither slot of the books is readable",
        );
    } else if !has(BOOKS) && has_ours {
        let message = "lines are numbered, but the books are missing";
        add(FindingLevel::Problem, "books.missing", BOOKS, message);
    }
    if has(CURSOR) && has(REPLAY) {
        let message = match Cursor::peek(disk, dir) {
            None => {
                Some("no slot is readable; replay uses the books, or starts from the beginning")
            }
            Some(position) => {
                let replay = disk.open(&dir.join(REPLAY), OpenMode::Read).ok();
                let is_it = replay.is_none_or(|file| fits(&*file, &position));
                (!is_it).then_some("it belongs to another snapshot and is ignored")
            }
        };
        if let Some(message) = message {
            add(FindingLevel::Note, "cursor.unusable", CURSOR, message);
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
