//! Shows every line of a directory.

use std::io;
use std::path::Path;

use tidegate_core::env::{Disk, DiskFile, OpenMode};

use super::Role;
use crate::spill::books_file::BooksFile;
use crate::spill::cursor::Cursor;
use crate::spill::line::{self, SpillLine};
use crate::spill::replay::fits;
use crate::spill::scan::{LineReader, RawLine};
use crate::spill::{ACTIVE, SEALED, SpillError, at, names, number_of};

/// A file, or a line of one.
pub(in crate::spill) struct WalkItem<'a> {
    pub(in crate::spill) file: &'a str,
    pub(in crate::spill) role: Role,
    pub(in crate::spill) bytes: u64,
    /// None once per file, before its lines.
    pub(in crate::spill) line: Option<WalkedLine<'a>>,
}

/// A line as it was met.
pub(in crate::spill) struct WalkedLine<'a> {
    pub(in crate::spill) raw: RawLine<'a>,
    pub(in crate::spill) line: Option<SpillLine<'a>>,
    pub(in crate::spill) is_replayed: bool,
}

/// Shows every file and every line to `look`, in the order in which events pass through them. Bytes
/// that were written to a file after its sync failed do not count and are not shown.
pub(in crate::spill) fn walk(
    disk: &dyn Disk,
    dir: &Path,
    look: &mut dyn FnMut(WalkItem<'_>),
) -> Result<(), SpillError> {
    // A directory that cannot be listed is no empty one.
    names(disk, dir)?;
    read(disk, dir, ACTIVE, Role::Active, look)?;
    for role in [Role::Sealed, Role::Replay, Role::Corrupt, Role::Rejected] {
        let mut of_role = names(disk, dir)?;
        of_role.retain(|name| Role::of(name) == Some(role));
        of_role.sort_by_key(|name| (number_of(name, SEALED), name.clone()));
        for name in of_role {
            read(disk, dir, &name, role, look)?;
        }
    }
    Ok(())
}

fn read(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    role: Role,
    look: &mut dyn FnMut(WalkItem<'_>),
) -> Result<(), SpillError> {
    let path = dir.join(name);
    let file = match disk.open(&path, OpenMode::Read) {
        // Not there, or not any more: then its lines are in a file that is read later.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => at("open", &path, opened)?,
    };
    let bytes = at("measure", &path, file.len())?;
    let (replayed, end) = bounds(disk, dir, name, role, &*file, bytes);
    look(WalkItem {
        file: name,
        role,
        bytes,
        line: None,
    });
    let mut lines = LineReader::new(0, end);
    while let Some(raw) = at("read", &path, lines.next_filled(&*file))? {
        let line = WalkedLine {
            line: line::read(raw.bytes, raw.offset),
            is_replayed: raw.offset < replayed,
            raw,
        };
        look(WalkItem {
            file: name,
            role,
            bytes,
            line: Some(line),
        });
    }
    Ok(())
}

/// Up to where a file is replayed, and up to where it counts.
fn bounds(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    role: Role,
    file: &dyn DiskFile,
    bytes: u64,
) -> (u64, u64) {
    let written = BooksFile::peek(disk, dir);
    if role == Role::Sealed {
        let number = number_of(name, SEALED);
        let known = written.zip(number);
        let known = known.and_then(|(written, number)| written.sealed_len(number));
        return (0, known.map_or(bytes, |len| len.min(bytes)));
    }
    if role != Role::Replay {
        return (0, bytes);
    }
    // The cursor follows the books and is never past them; without books it is all there is.
    let known = match written {
        Some(written) => written.replay,
        None => Cursor::peek(disk, dir),
    };
    match known.filter(|position| fits(file, position)) {
        Some(position) if position.is_done => (position.end, position.end),
        Some(position) => (position.offset, position.end),
        None => (0, bytes),
    }
}
