//! Checkpoints: the state of every task at a committed epoch, in a directory.
//!
//! One is read from the changelog, beside the flow: no task waits for it. Its files are frames as in the changelog.
//! The manifest comes last, so a checkpoint without one was never taken. `docs/formats/stage.md` has the bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_core::env::{Disk, OpenMode};
use tidegate_core::{Code, Failure, FailureClass};

use crate::base::whole;
use crate::changelog::{DeltaFrame, EpochMark, Frame, InputOffset, chain_checksum};
use crate::recovery::{RecoveredTask, Replay};
use crate::state::LayeredState;
use crate::state::backend::MapBackend;

const VERSION: u32 = 1;
/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;
/// The largest file of a task that is read.
const MAX_TASK_FILE: u64 = 64 * 1024 * 1024 * 1024;

/// Where the checkpoints of a process are kept, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The directory of this process.
    pub dir: PathBuf,
    /// Checkpoints that are kept.
    pub retain: usize,
}

/// A checkpoint, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointManifest {
    version: u32,
    /// Its number, from 1.
    pub number: u64,
    /// The process.
    pub process: String,
    /// When it was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Partitions of each input.
    pub partitions: u32,
    /// The tasks that had committed something.
    pub tasks: Vec<CheckpointTask>,
}

/// A task within a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointTask {
    /// Its partition.
    pub partition: i32,
    /// Its epoch.
    pub epoch: u64,
    /// The length of its file.
    pub bytes: u64,
    /// The checksum of its file.
    crc32c: u32,
}

/// The state of a task, with how far its inputs were read.
#[derive(Debug)]
pub(crate) struct TaskSnapshot {
    pub(crate) partition: i32,
    pub(crate) recovered: RecoveredTask,
    pub(crate) inputs: Vec<InputOffset>,
}

impl TaskSnapshot {
    /// The frames: the whole state in pieces, then an epoch without changes.
    pub(crate) fn frames(self, partitions: u32) -> SnapshotFrames {
        let epoch = self.recovered.epoch;
        let state = LayeredState::new(self.recovered.backend);
        let delta = Frame::Delta(DeltaFrame {
            epoch,
            part: 0,
            is_last: true,
            clock_ms: self.recovered.clock_ms,
            partitions,
            inputs: self.inputs.clone(),
            changes: Vec::new(),
        });
        SnapshotFrames {
            partition: self.partition,
            epoch,
            inputs: self.inputs,
            pieces: whole(&state, epoch),
            delta: delta.encode(),
        }
    }
}

/// The frames of a snapshot of a task.
pub(crate) struct SnapshotFrames {
    pub(crate) partition: i32,
    pub(crate) epoch: u64,
    pub(crate) inputs: Vec<InputOffset>,
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) delta: Vec<u8>,
}

impl SnapshotFrames {
    /// The text beside the offsets that are committed with these frames.
    pub(crate) fn mark(&self, base: i64) -> EpochMark {
        EpochMark {
            epoch: self.epoch,
            base,
            crc: chain_checksum(0, &self.delta),
        }
    }
}

/// The checkpoints of a process.
pub(crate) struct CheckpointStore {
    disk: Arc<dyn Disk>,
    options: CheckpointOptions,
}

impl fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckpointStore({})", self.options.dir.display())
    }
}

fn failed(code: &'static str, message: String) -> Failure {
    Failure::new(FailureClass::System, Code::from_static(code), message)
}

impl CheckpointStore {
    pub(crate) fn new(disk: Arc<dyn Disk>, options: CheckpointOptions) -> Self {
        Self { disk, options }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.options.dir.join(name)
    }

    fn unusable(&self, doing: &str, error: &io::Error) -> Failure {
        let dir = self.options.dir.display();
        let message = format!("could not {doing} a checkpoint in `{dir}`: {error}");
        let code = Code::from_static("stage.checkpoint.storage");
        Failure::transient(code, message)
    }

    /// The numbers of the checkpoints, the newest first.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>, Failure> {
        let entries = match self.disk.list(&self.options.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(self.unusable("list", &error)),
        };
        let number = |name: &str| name.strip_suffix(".manifest")?.parse().ok();
        let found = entries.iter().filter_map(|entry| number(&entry.name));
        let mut found: Vec<u64> = found.collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Writes a checkpoint, and removes those that are too many.
    pub(crate) fn write(
        &self,
        process: &str,
        partitions: u32,
        taken_ms: u64,
        tasks: Vec<TaskSnapshot>,
    ) -> Result<CheckpointManifest, Failure> {
        let number = self.numbers()?.first().map_or(1, |last| last + 1);
        let mut manifest = CheckpointManifest {
            version: VERSION,
            number,
            process: process.to_owned(),
            taken_ms,
            partitions,
            tasks: Vec::new(),
        };
        self.write_files(&mut manifest, tasks)
            .map_err(|error| self.unusable("write", &error))?;
        if let Err(error) = self.prune() {
            tracing::warn!(%error, dir = %self.options.dir.display(), "old checkpoints were not removed");
        }
        Ok(manifest)
    }

    fn write_files(
        &self,
        manifest: &mut CheckpointManifest,
        tasks: Vec<TaskSnapshot>,
    ) -> io::Result<()> {
        self.disk.create_dir_all(&self.options.dir)?;
        for task in tasks {
            let frames = task.frames(manifest.partitions);
            let name = task_file(manifest.number, frames.partition);
            let (mut bytes, mut crc) = (0, 0);
            let mut file = self.new_file(&self.path(&name))?;
            for frame in frames.pieces.iter().chain([&frames.delta]) {
                let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
                for part in [&length.to_le_bytes()[..], frame] {
                    file.append(part)?;
                    crc = crc32c::crc32c_append(crc, part);
                    bytes += part.len() as u64;
                }
            }
            file.sync()?;
            manifest.tasks.push(CheckpointTask {
                partition: frames.partition,
                epoch: frames.epoch,
                bytes,
                crc32c: crc,
            });
        }
        let text = serde_json::to_vec(manifest).map_err(io::Error::other)?;
        let (begun, done) = (
            self.path("manifest.new"),
            self.path(&manifest_file(manifest.number)),
        );
        let mut file = self.new_file(&begun)?;
        file.append(&text)?;
        file.sync()?;
        drop(file);
        self.disk.sync_dir(&self.options.dir)?;
        self.disk.replace(&begun, &done)
    }

    /// A file without content, in place of one that was left behind.
    fn new_file(&self, path: &Path) -> io::Result<Box<dyn tidegate_core::env::DiskFile>> {
        match self.disk.open(path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.remove(path)?;
                self.disk.open(path, OpenMode::CreateNew)
            }
            opened => opened,
        }
    }

    /// Removes what is not one of the newest checkpoints: each manifest before its files.
    fn prune(&self) -> io::Result<()> {
        let numbers = self.numbers().map_err(io::Error::other)?;
        let kept: BTreeSet<u64> = numbers
            .into_iter()
            .take(self.options.retain.max(1))
            .collect();
        let entries = self.disk.list(&self.options.dir)?;
        let number = |name: &str| name.split_once('.')?.0.parse::<u64>().ok();
        let is_old = |name: &str| number(name).is_some_and(|number| !kept.contains(&number));
        let names = entries.iter().map(|entry| entry.name.as_str());
        let mut old: Vec<&str> = names.filter(|name| is_old(name)).collect();
        old.sort_by_key(|name| !name.ends_with(".manifest"));
        for name in old {
            self.disk.remove(&self.path(name))?;
        }
        self.disk.sync_dir(&self.options.dir)
    }

    /// Reads a checkpoint: the one of this number, or the newest that is whole.
    pub(crate) fn read(
        &self,
        number: Option<u64>,
    ) -> Result<(CheckpointManifest, Vec<TaskSnapshot>), Failure> {
        if let Some(number) = number {
            return self.read_one(number);
        }
        let mut last = None;
        for number in self.numbers()? {
            match self.read_one(number) {
                Ok(found) => return Ok(found),
                Err(failure) => {
                    tracing::warn!(%failure, "a checkpoint cannot be used; the one before it is tried");
                    last.get_or_insert(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            let message = format!("there is no checkpoint in `{}`", self.options.dir.display());
            failed("stage.checkpoint.none", message)
        }))
    }

    fn read_one(&self, number: u64) -> Result<(CheckpointManifest, Vec<TaskSnapshot>), Failure> {
        let damaged = |what: &str| {
            let message = format!(
                "checkpoint {number} in `{}` cannot be used: {what}",
                self.options.dir.display()
            );
            failed("stage.checkpoint.damaged", message)
        };
        let path = self.path(&manifest_file(number));
        let text = match self.disk.read(&path, MAX_MANIFEST) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dir = self.options.dir.display();
                let message = format!("there is no checkpoint {number} in `{dir}`");
                return Err(failed("stage.checkpoint.none", message));
            }
            Err(error) => return Err(self.unusable("read", &error)),
        };
        let manifest: CheckpointManifest = serde_json::from_slice(&text)
            .map_err(|error| damaged(&format!("its manifest: {error}")))?;
        if manifest.version != VERSION {
            return Err(damaged(&format!("it has version {}", manifest.version)));
        }
        let mut tasks = Vec::new();
        for task in &manifest.tasks {
            let path = self.path(&task_file(number, task.partition));
            let of_task = |what: &str| damaged(&format!("partition {}: {what}", task.partition));
            let bytes = match self.disk.read(&path, MAX_TASK_FILE) {
                Ok(bytes) => Bytes::from(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(of_task("its file is missing"));
                }
                Err(error) => return Err(self.unusable("read", &error)),
            };
            if bytes.len() as u64 != task.bytes || crc32c::crc32c(&bytes) != task.crc32c {
                return Err(of_task("its checksum is wrong"));
            }
            let read = read_frames(task, manifest.partitions, bytes);
            tasks.push(read.ok_or_else(|| of_task("its frames are not those of a task"))?);
        }
        Ok((manifest, tasks))
    }
}

fn manifest_file(number: u64) -> String {
    format!("{number:010}.manifest")
}

fn task_file(number: u64, partition: i32) -> String {
    format!("{number:010}.{partition}.frames")
}

fn read_frames(task: &CheckpointTask, partitions: u32, mut bytes: Bytes) -> Option<TaskSnapshot> {
    let mark = EpochMark {
        epoch: task.epoch,
        base: 0,
        crc: 0,
    };
    let backend = Box::new(MapBackend::default());
    let mut replay = Replay::new(task.partition, partitions, mark, backend);
    let mut number = 0;
    while !bytes.is_empty() {
        let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
        if bytes.len() < 4 + length {
            return None;
        }
        let frame = bytes.split_to(4 + length).slice(4..);
        replay.frame(number, &frame).ok()?;
        number += 1;
    }
    let (recovered, inputs) = replay.last()?;
    let partition = task.partition;
    (recovered.epoch == task.epoch).then_some(TaskSnapshot {
        partition,
        recovered,
        inputs,
    })
}
