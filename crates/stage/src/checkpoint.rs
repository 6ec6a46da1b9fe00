//! Checkpoints: the state of every task at a committed epoch, in a directory or an object store.
//!
//! A file of a task is a copy of its changelog: the pieces of its base and the changes behind them, or, on top of an
//! earlier file, only the changes since then. So one is written beside the flow, range by range, without another copy in
//! memory. The manifest comes last, so a checkpoint without one was never taken. A file is removed once no kept manifest
//! names it. `docs/formats/stage.md` has the bytes.

mod copy;
#[cfg(feature = "object-storage")]
mod objects;
mod storage;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tidegate_core::env::Disk;
use tidegate_core::{Code, Failure, FailureClass};

pub(crate) use copy::{CopiedTask, is_gap};
pub use storage::{CheckpointFile, CheckpointStorage, StorageError, StorageFuture};

use storage::Directory;

use crate::base::whole;
use crate::changelog::{DeltaFrame, EpochMark, Frame, InputOffset, chain_checksum};
use crate::recovery::{RecoveredTask, Replay};
use crate::state::LayeredState;
use crate::state::backend::MapBackend;

const VERSION: u32 = 2;
/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;
/// Bytes of a file that are read at once.
const READ_AT_ONCE: u64 = 4 * 1024 * 1024;

/// The code of a checkpoint whose storage does not answer.
pub(crate) const STORAGE: &str = "stage.checkpoint.storage";

/// Where checkpoints are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointPlace {
    /// A directory.
    Directory(PathBuf),
    /// An object store that speaks S3. The environment has the rest, as the tools of AWS read it.
    S3 {
        /// The bucket.
        bucket: String,
        /// The beginning of the names.
        prefix: String,
        /// The address, where it is not that of AWS.
        endpoint: Option<String>,
    },
}

/// Whether a checkpoint has everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointMode {
    /// Always.
    Full,
    /// Only what came since the last one that has, until that is half as much.
    #[default]
    Incremental,
}

/// How the checkpoints of a process are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Where.
    pub place: CheckpointPlace,
    /// Whether each has everything.
    pub mode: CheckpointMode,
    /// Checkpoints that are kept.
    pub retain: usize,
    /// How long one may take.
    pub timeout: Duration,
    /// The pause after one.
    pub min_pause: Duration,
    /// Whether every host reaches them. Then a start reads one, and the changelog begins behind the oldest.
    pub shared: bool,
}

impl CheckpointOptions {
    /// The usual settings of a directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            place: CheckpointPlace::Directory(dir.into()),
            mode: CheckpointMode::default(),
            retain: 3,
            timeout: Duration::from_secs(60),
            min_pause: Duration::from_secs(1),
            shared: false,
        }
    }
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

impl CheckpointManifest {
    /// Bytes of all its files, those of earlier checkpoints too.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = self.tasks.iter().flat_map(|task| &task.files);
        files.map(|file| file.bytes).sum()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let files = self.tasks.iter().flat_map(|task| &task.files);
        files.map(|file| file.name.as_str())
    }
}

/// A task within a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointTask {
    /// Its partition.
    pub partition: i32,
    /// Its epoch.
    pub epoch: u64,
    /// The text beside the offsets that were committed with it.
    pub mark: String,
    /// The offset from which the changelog goes on.
    pub next: i64,
    /// Its files: one that has everything, and one with what came since, where there is one.
    pub files: Vec<CheckpointPart>,
}

/// A file of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointPart {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The last epoch in it.
    pub epoch: u64,
    /// The offset behind it in the changelog.
    pub next: i64,
    /// Its checksum.
    blake3: String,
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
            epoch,
            inputs: self.inputs,
            pieces: whole(&state, epoch),
            delta: delta.encode(),
        }
    }
}

/// The frames of a snapshot of a task.
pub(crate) struct SnapshotFrames {
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
    storage: Arc<dyn CheckpointStorage>,
    pub(crate) options: CheckpointOptions,
}

impl fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckpointStore({:?})", self.storage)
    }
}

fn failed(code: &'static str, message: String) -> Failure {
    Failure::new(FailureClass::System, Code::from_static(code), message)
}

impl CheckpointStore {
    /// # Errors
    /// This build cannot keep checkpoints in that place.
    pub(crate) fn open(disk: &Arc<dyn Disk>, options: CheckpointOptions) -> Result<Self, Failure> {
        let storage: Arc<dyn CheckpointStorage> = match &options.place {
            CheckpointPlace::Directory(dir) => {
                Arc::new(Directory::new(Arc::clone(disk), dir.clone()))
            }
            #[cfg(feature = "object-storage")]
            CheckpointPlace::S3 {
                bucket,
                prefix,
                endpoint,
            } => Arc::new(objects::Objects::s3(bucket, prefix, endpoint.as_deref())?),
            #[cfg(not(feature = "object-storage"))]
            CheckpointPlace::S3 { .. } => {
                let message = "this program was built without the feature `object-storage`";
                return Err(failed("stage.checkpoint.unset", message.to_owned()));
            }
        };
        Ok(Self { storage, options })
    }

    fn unusable(&self, error: &StorageError) -> Failure {
        let message = format!("checkpoints in {:?}: {error}", self.storage);
        Failure::transient(Code::from_static(STORAGE), message)
    }

    fn damaged(&self, number: u64, what: &str) -> Failure {
        let message = format!(
            "checkpoint {number} in {:?} cannot be used: {what}",
            self.storage
        );
        failed("stage.checkpoint.damaged", message)
    }

    /// The numbers of the checkpoints, the newest first.
    pub(crate) async fn numbers(&self) -> Result<Vec<u64>, Failure> {
        let names = self.storage.list().await;
        let names = names.map_err(|error| self.unusable(&error))?;
        let number = |name: &String| name.strip_suffix(".manifest")?.parse().ok();
        let mut found: Vec<u64> = names.iter().filter_map(number).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// The manifest of a checkpoint.
    pub(crate) async fn manifest(&self, number: u64) -> Result<CheckpointManifest, Failure> {
        let name = manifest_name(number);
        let text = match self.storage.read(&name, 0, MAX_MANIFEST).await {
            Ok(text) => text,
            Err(StorageError::Missing(_)) => {
                let message = format!("there is no checkpoint {number} in {:?}", self.storage);
                return Err(failed("stage.checkpoint.none", message));
            }
            Err(error) => return Err(self.unusable(&error)),
        };
        let manifest: CheckpointManifest = serde_json::from_slice(&text)
            .map_err(|error| self.damaged(number, &format!("its manifest: {error}")))?;
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(self.damaged(number, &format!("it has version {other}"))),
        }
    }

    /// The newest checkpoint whose manifest can be read.
    pub(crate) async fn newest(&self) -> Result<Option<CheckpointManifest>, Failure> {
        for number in self.numbers().await? {
            match self.manifest(number).await {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(failure) if failure.code.as_str() == STORAGE => return Err(failure),
                Err(failure) => {
                    tracing::warn!(%failure, "a checkpoint cannot be used");
                }
            }
        }
        Ok(None)
    }

    /// Ends a checkpoint: its manifest makes it one. Then those that are too many are removed.
    ///
    /// # Errors
    /// The manifest cannot be written, or another program was faster.
    pub(crate) async fn finish(&self, manifest: &CheckpointManifest) -> Result<(), Failure> {
        let text = serde_json::to_vec(manifest);
        let text = text.map_err(|error| failed("stage.checkpoint.damaged", error.to_string()))?;
        let written = async {
            let name = manifest_name(manifest.number);
            let mut file = self.storage.create(&name).await?;
            file.append(Bytes::from(text)).await?;
            file.finish().await
        };
        match written.await {
            Ok(()) => {}
            Err(StorageError::Exists(_)) => {
                let number = manifest.number;
                let message = format!("another program took checkpoint {number} at the same time");
                let code = Code::from_static("stage.checkpoint.taken");
                return Err(Failure::transient(code, message));
            }
            Err(error) => return Err(self.unusable(&error)),
        }
        if let Err(failure) = self.prune(manifest).await {
            tracing::warn!(%failure, "old checkpoints were not removed");
        }
        Ok(())
    }

    /// The manifest of another checkpoint.
    pub(crate) fn begin(
        &self,
        process: &str,
        number: u64,
        partitions: u32,
        taken_ms: u64,
    ) -> CheckpointManifest {
        CheckpointManifest {
            version: VERSION,
            number,
            process: process.to_owned(),
            taken_ms,
            partitions,
            tasks: Vec::new(),
        }
    }

    /// Removes what is not one of the newest checkpoints: each manifest before its files. Files that a kept manifest
    /// names stay, and so do those that may be written now.
    async fn prune(&self, newest: &CheckpointManifest) -> Result<(), Failure> {
        let kept = self.kept().await?;
        let oldest = kept.iter().map(|manifest| manifest.number).min();
        let oldest = oldest.unwrap_or(newest.number);
        let named: BTreeSet<&str> = kept.iter().flat_map(CheckpointManifest::names).collect();
        let names = self.storage.list().await;
        let names = names.map_err(|error| self.unusable(&error))?;
        let number = |name: &str| name.split_once('.')?.0.parse::<u64>().ok();
        let is_old = |name: &&String| {
            let is_manifest = name.ends_with(".manifest");
            number(name).is_some_and(|number| match is_manifest {
                true => number < oldest,
                false => number < newest.number && !named.contains(name.as_str()),
            })
        };
        let mut old: Vec<&String> = names.iter().filter(is_old).collect();
        old.sort_by_key(|name| !name.ends_with(".manifest"));
        for name in old {
            let removed = self.storage.remove(name).await;
            removed.map_err(|error| self.unusable(&error))?;
        }
        Ok(())
    }

    /// The manifests that are kept, the newest first.
    pub(crate) async fn kept(&self) -> Result<Vec<CheckpointManifest>, Failure> {
        let mut kept = Vec::new();
        for number in self.numbers().await? {
            if kept.len() >= self.options.retain.max(1) {
                break;
            }
            match self.manifest(number).await {
                Ok(manifest) => kept.push(manifest),
                Err(failure) if failure.code.as_str() == STORAGE => return Err(failure),
                // It is no checkpoint to go back to, and takes no place of one.
                Err(_) => {}
            }
        }
        Ok(kept)
    }

    /// Reads a checkpoint: the one of this number, or the newest that is whole.
    pub(crate) async fn read(
        &self,
        number: Option<u64>,
    ) -> Result<(CheckpointManifest, Vec<TaskSnapshot>), Failure> {
        if let Some(number) = number {
            return self.read_one(number).await;
        }
        let mut last = None;
        for number in self.numbers().await? {
            match self.read_one(number).await {
                Ok(found) => return Ok(found),
                Err(failure) => {
                    tracing::warn!(%failure, "a checkpoint cannot be used; the one before it is tried");
                    last.get_or_insert(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            let message = format!("there is no checkpoint in {:?}", self.storage);
            failed("stage.checkpoint.none", message)
        }))
    }

    async fn read_one(
        &self,
        number: u64,
    ) -> Result<(CheckpointManifest, Vec<TaskSnapshot>), Failure> {
        let manifest = self.manifest(number).await?;
        let mut tasks = Vec::new();
        for task in &manifest.tasks {
            let mark = EpochMark {
                epoch: task.epoch,
                base: 0,
                crc: 0,
            };
            let backend = Box::new(MapBackend::default());
            let mut replay = Replay::new(task.partition, manifest.partitions, mark, backend);
            self.load(number, task, &mut replay).await?;
            let read = replay.last();
            let read = read.filter(|(recovered, _)| recovered.epoch == task.epoch);
            let (recovered, inputs) = read.ok_or_else(|| {
                let what = format!("partition {}: its epoch is not there", task.partition);
                self.damaged(number, &what)
            })?;
            tasks.push(TaskSnapshot {
                partition: task.partition,
                recovered,
                inputs,
            });
        }
        Ok((manifest, tasks))
    }

    /// Replays the files of a task.
    ///
    /// # Errors
    /// One is missing, or not what was written.
    pub(crate) async fn load(
        &self,
        number: u64,
        task: &CheckpointTask,
        replay: &mut Replay,
    ) -> Result<(), Failure> {
        for part in &task.files {
            let damaged = |what: &str| self.damaged(number, &format!("`{}`: {what}", part.name));
            let mut hash = blake3::Hasher::new();
            let (mut at, mut rest) = (0, BytesMut::new());
            while at < part.bytes {
                let length = READ_AT_ONCE.min(part.bytes - at);
                let read = match self.storage.read(&part.name, at, length).await {
                    Ok(read) if read.is_empty() => return Err(damaged("it is too short")),
                    Ok(read) => read,
                    Err(StorageError::Missing(_)) => return Err(damaged("it is missing")),
                    Err(error) => return Err(self.unusable(&error)),
                };
                hash.update(&read);
                at += read.len() as u64;
                rest.extend_from_slice(&read);
                while let Some(frame) = copy::split_frame(&mut rest) {
                    let offset = i64::try_from(at).unwrap_or(i64::MAX);
                    let taken = replay.frame(offset, &frame);
                    taken.map_err(|error| damaged(&error.to_string()))?;
                }
            }
            if !rest.is_empty() || hash.finalize().to_hex().as_str() != part.blake3 {
                return Err(damaged("its checksum is wrong"));
            }
        }
        if let Some(mark) = EpochMark::parse(&task.mark) {
            replay.stands_for(mark);
        }
        Ok(())
    }
}

fn manifest_name(number: u64) -> String {
    format!("{number:010}.manifest")
}
