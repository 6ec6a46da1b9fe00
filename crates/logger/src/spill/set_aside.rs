//! Files for what cannot be replayed: kept, never replayed, never removed.

use std::path::{Path, PathBuf};

use serde_json::json;
use serde_json::value::RawValue;
use tidegate_core::env::{Disk, DiskFile, OpenMode};
use tidegate_core::{Code, iso_time};

use super::{SpillError, at};
use crate::api::Payload;

/// An event that the API refused for good.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) payload: Payload,
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) status: Option<u16>,
    pub(crate) attempts: u32,
}

impl Rejection {
    /// The line that is kept: the event with why and when it was refused.
    pub(super) fn line(&self, now_ms: u64) -> Vec<u8> {
        let event = std::str::from_utf8(&self.payload.json)
            .ok()
            .and_then(|text| serde_json::from_str::<Box<RawValue>>(text).ok());
        let mut line = json!({
            "_id": self.payload.id,
            "rejectedAt": iso_time(now_ms),
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "attempts": self.attempts,
        })
        .to_string();
        // The event goes in as it is, byte for byte.
        line.pop();
        line.push_str(",\"event\":");
        line.push_str(event.as_ref().map_or("null", |event| event.get()));
        line.push_str("}\n");
        line.into_bytes()
    }
}

/// A file that is only ever appended to, made when it is first needed.
#[derive(Debug)]
pub(super) struct SetAside {
    dir: PathBuf,
    path: PathBuf,
    file: Option<Box<dyn DiskFile>>,
}

impl SetAside {
    pub(super) fn new(dir: &Path, name: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            path: dir.join(name),
            file: None,
        }
    }

    /// Appends `bytes` and returns once they would survive a power cut.
    pub(super) fn append(&mut self, disk: &dyn Disk, bytes: &[u8]) -> Result<(), SpillError> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open(disk)?,
        };
        let before = at("measure", &self.path, file.len())?;
        if let Err(error) = file.append(bytes) {
            // Half a line would be glued to the next one.
            at("cut back", &self.path, file.truncate(before))?;
            self.file = Some(file);
            return at("write", &self.path, Err(error));
        }
        if file.sync().is_err() {
            // Final for that file: it keeps what was synced before, under another name, and what
            // is in our hands goes to a fresh one. If that fails too we stop.
            self.move_away(disk)?;
            file = self.open(disk)?;
            at("write", &self.path, file.append(bytes))?;
            at("sync", &self.path, file.sync())?;
        }
        self.file = Some(file);
        Ok(())
    }

    fn move_away(&self, disk: &dyn Disk) -> Result<(), SpillError> {
        let entries = at("list", &self.dir, disk.list(&self.dir))?;
        let stem = self
            .path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let free = (1..)
            .map(|number| format!("{stem}-{number}.jsonl"))
            .find(|name| entries.iter().all(|entry| entry.name != *name));
        let to = self.dir.join(free.unwrap_or_default());
        at("move", &to, disk.replace(&self.path, &to))
    }

    fn open(&self, disk: &dyn Disk) -> Result<Box<dyn DiskFile>, SpillError> {
        match disk.open(&self.path, OpenMode::Write) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let file = at(
                    "create",
                    &self.path,
                    disk.open(&self.path, OpenMode::CreateNew),
                )?;
                at("sync", &self.dir, disk.sync_dir(&self.dir))?;
                Ok(file)
            }
            opened => {
                let mut file = at("open", &self.path, opened)?;
                self.end_line(&mut *file)?;
                Ok(file)
            }
        }
    }

    /// A crash may have left half a line; what follows starts on a line of its own.
    fn end_line(&self, file: &mut dyn DiskFile) -> Result<(), SpillError> {
        let len = at("measure", &self.path, file.len())?;
        let mut last = [b'\n'];
        if len > 0 {
            at("read", &self.path, file.read_at(len - 1, &mut last))?;
        }
        if last == [b'\n'] {
            Ok(())
        } else {
            at("write", &self.path, file.append(b"\n"))
        }
    }
}
