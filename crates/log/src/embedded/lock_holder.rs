//! Who holds a directory, as its lock file says.

use std::fmt;
use std::io;
use std::path::Path;

use tidegate_core::env::Disk;

use super::files::{Doing, LOCK};
use super::presence::{Presence, presence};
use crate::error::LogError;

/// More than a lock file says.
const LIMIT: u64 = 4_096;

/// Who holds a directory. The lock file has it as `process 7, http://127.0.0.1:8080`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockHolder {
    /// Its process id, if it wrote that down.
    pub process: Option<u32>,
    /// Where it answers for the directory, if it does.
    pub url: Option<String>,
}

impl LockHolder {
    /// The holder that a lock file names.
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> Self {
        let text = disk.read(path, LIMIT).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(text: &str) -> Self {
        let (process, url) = match text.trim().split_once(", ") {
            Some((process, url)) => (process, Some(url.to_owned())),
            None => (text.trim(), None),
        };
        let process = process.strip_prefix("process ");
        Self {
            process: process.and_then(|number| number.parse().ok()),
            url,
        }
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("another process")?,
        }
        match &self.url {
            Some(url) => write!(f, ", {url}"),
            None => Ok(()),
        }
    }
}

/// Who holds the log in this directory; none if nobody does, or there is no log. Nothing is changed: no
/// lock file is made where there is none.
///
/// # Errors
/// The directory cannot be listed, or its lock cannot be tried.
pub fn lock_holder(disk: &dyn Disk, dir: &Path) -> Result<Option<LockHolder>, LogError> {
    // Emptying a directory does not end the process that has it.
    if presence(disk, dir)? == Presence::Absent {
        return Ok(None);
    }
    let path = dir.join(LOCK);
    // Trying the lock of a directory without one would make it.
    let listed = disk.list(dir).doing("list", dir)?;
    if listed.iter().all(|entry| entry.name != LOCK) {
        return Ok(None);
    }
    match disk.lock(&path) {
        Ok(_free) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Ok(Some(LockHolder::read(disk, &path)))
        }
        // Nobody writes to a directory that cannot be written to, or we may not know.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).doing("lock", &path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_tells_who_answers() {
        for (process, url) in [
            (Some(7), Some("http://127.0.0.1:8080")),
            (Some(7), None),
            (None, None),
        ] {
            let url = url.map(str::to_owned);
            let holder = LockHolder { process, url };
            assert_eq!(LockHolder::parse(&format!("{holder}\n")), holder);
        }
        assert_eq!(LockHolder::parse(""), LockHolder::default());
    }
}
