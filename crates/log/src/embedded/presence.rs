//! Whether a directory holds a log.

use std::io;
use std::path::Path;

use tidegate_core::env::Disk;

use super::files::{self, Doing};
use crate::error::LogError;

/// The traces of a log in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Nothing: no log was ever opened here, or all of it was taken away.
    Absent,
    /// A log was opened here, and nothing is left that could hold a record. A process that is just
    /// making a log leaves the same for a moment.
    Emptied,
    /// A log, or a part of one that may hold records.
    There,
}

/// Looks whether there is a log in a directory. Nothing is changed, and no file is read.
///
/// ```
/// use tidegate_core::env::system::SystemDisk;
/// use tidegate_log::embedded::{Presence, presence};
/// let dir = tempfile::tempdir()?;
/// assert_eq!(presence(&SystemDisk, dir.path())?, Presence::Absent);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The directory cannot be listed.
pub fn presence(disk: &dyn Disk, dir: &Path) -> Result<Presence, LogError> {
    let entries = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Presence::Absent),
        listed => listed.doing("list", dir)?,
    };
    let any = |is_it: fn(&str) -> bool| entries.iter().any(|entry| is_it(&entry.name));
    Ok(match (any(files::is_log), any(files::is_trace)) {
        (true, _) => Presence::There,
        (false, true) => Presence::Emptied,
        (false, false) => Presence::Absent,
    })
}
