//! Reads a changelog: for a start, for a look at what is committed, and for a checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::env::Clock;
use tidegate_core::{Code, Failure, FailureClass, Offset, Topic};
use tidegate_log::{Assignment, Log, LogError, LogFuture, Read, StoredRecord, TopicPartition};

use crate::changelog::{EpochMark, FrameError, InputOffset};
use crate::checkpoint::CheckpointStore;
use crate::recovery::{
    self, ChangelogExtent, InputCommitted, RecoveredTask, RecoveryError, RecoveryStart, Replay,
};
use crate::state::backend::MapBackend;

/// The wait before what did not answer is read again.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// How often checkpoints are looked for that others remove meanwhile.
const LOOKS: usize = 5;
/// Bytes that are read at once.
const READ_AT_ONCE: usize = 8 * 1024 * 1024;

/// A changelog, and what a start from it needs.
#[derive(Debug, Clone)]
pub(crate) struct ChangelogReader {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) changelog: Topic,
    pub(crate) partitions: u32,
    /// The checkpoints that every host reaches: the changelog may begin behind the oldest one.
    pub(crate) shared: Option<Arc<CheckpointStore>>,
}

/// How a changelog is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The task is nobody else's: its last frame is that of the committed epoch.
    Owner,
    /// Its owner goes on meanwhile: frames of later epochs are left where they are.
    Guest,
    /// As a guest, and on behind what cannot be read.
    Audit,
}

/// A record of a changelog.
#[derive(Debug)]
pub(crate) enum ReadFrame {
    /// Its bytes, and where it lies.
    Frame(i64, Bytes),
    /// It cannot be read; where it lies.
    Damaged(i64),
}

/// The frames of a partition between two offsets, one after the other.
#[derive(Debug)]
pub(crate) struct FrameReader<'r> {
    reader: &'r ChangelogReader,
    at: TopicPartition,
    from: Offset,
    end: i64,
    batch: VecDeque<StoredRecord>,
}

impl FrameReader<'_> {
    /// The next one; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ReadFrame>, LogError> {
        loop {
            if let Some(stored) = self.batch.pop_front() {
                let frame = stored.record.value.unwrap_or_default();
                return Ok(Some(ReadFrame::Frame(stored.offset.0, frame)));
            }
            if self.from.0 >= self.end {
                return Ok(None);
            }
            let read = Read {
                max_bytes: READ_AT_ONCE,
                ..Read::new(self.at.clone(), self.from)
            };
            let reader = self.reader;
            match reader.again(|| reader.log.read(read.clone())).await {
                Ok(batch) if batch.next <= self.from => return Ok(None),
                Ok(batch) => {
                    self.from = batch.next;
                    self.batch = batch.records.into();
                }
                Err(LogError::Damaged { to, .. }) => {
                    let at = self.from.0;
                    self.from = Offset(to.0.max(at + 1));
                    return Ok(Some(ReadFrame::Damaged(at)));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl ChangelogReader {
    /// Reads the state of a task that nobody else runs.
    pub(crate) async fn recover(
        &self,
        partition: i32,
        inputs: &[Assignment],
    ) -> Result<RecoveredTask, Failure> {
        let committed = inputs.iter().map(|input| InputCommitted {
            topic: input.at.topic.to_string(),
            committed: input
                .committed
                .as_ref()
                .map(|held| (held.next.0, held.metadata.clone())),
        });
        let committed: Vec<InputCommitted> = committed.collect();
        let read = self.replay(partition, &committed, Reading::Owner).await?;
        Ok(read.0)
    }

    /// Reads the state that belongs to committed offsets; frames of later epochs are left where they are.
    pub(crate) async fn read_committed(
        &self,
        partition: i32,
        committed: &[InputCommitted],
    ) -> Result<RecoveredTask, Failure> {
        let read = self.replay(partition, committed, Reading::Guest).await?;
        Ok(read.0)
    }

    /// Reads the state that belongs to committed offsets as far as it can be read, and says what is wrong.
    pub(crate) async fn read_audit(
        &self,
        partition: i32,
        committed: &[InputCommitted],
    ) -> Result<(RecoveredTask, Vec<RecoveryError>), Failure> {
        self.replay(partition, committed, Reading::Audit).await
    }

    /// Where the changelog of a task begins and ends.
    pub(crate) async fn extent(&self, partition: i32) -> Result<(i64, i64), LogError> {
        let described = self.again(|| self.log.describe(&self.changelog)).await?;
        let mut partitions = described.partitions.iter();
        let found = partitions.find(|found| found.partition.0 == partition);
        Ok(found.map_or((0, 0), |found| (found.start.0, found.end.0)))
    }

    /// The frames of a task from an offset on, up to another one.
    pub(crate) fn frames(&self, partition: i32, from: i64, end: i64) -> FrameReader<'_> {
        FrameReader {
            reader: self,
            at: TopicPartition::new(self.changelog.clone(), partition),
            from: Offset(from),
            end,
            batch: VecDeque::new(),
        }
    }

    async fn replay(
        &self,
        partition: i32,
        committed: &[InputCommitted],
        reading: Reading,
    ) -> Result<(RecoveredTask, Vec<RecoveryError>), Failure> {
        let (start, end) = self.extent(partition).await?;
        let (mark, begun) = match recovery::committed_mark(partition, committed) {
            Ok(mark) => {
                let has_frames = mark.is_none() && self.has_frames(partition, (start, end)).await?;
                let extent = ChangelogExtent {
                    start,
                    end,
                    has_frames,
                };
                (mark, recovery::start(partition, mark, extent))
            }
            Err(error) => (None, Err(error)),
        };
        let kept = match mark {
            Some(mark) => self.kept(partition, mark, start).await?,
            None => None,
        };
        let (mut replay, from) = match (begun, kept) {
            (_, Some(kept)) => kept,
            (Ok(RecoveryStart::First { base }), None) => {
                return Ok((RecoveredTask::first(base), Vec::new()));
            }
            (Ok(RecoveryStart::Replay { mark }), None) => (self.empty(partition, mark), mark.base),
            (Err(error), None) if reading == Reading::Audit => {
                return Ok((RecoveredTask::first(end), vec![error]));
            }
            (Err(error), None) => return Err(refused(error)),
        };
        if reading == Reading::Audit {
            replay = replay.of_audit();
        }
        let mut frames = self.frames(partition, from, end);
        while reading == Reading::Owner || !replay.is_complete() {
            match frames.next().await? {
                Some(ReadFrame::Frame(offset, frame)) => {
                    replay.frame(offset, &frame).map_err(refused)?;
                }
                Some(ReadFrame::Damaged(offset)) => {
                    let error = FrameError::Damaged;
                    let damaged = RecoveryError::Frame {
                        partition,
                        offset,
                        error,
                    };
                    replay.fault(damaged).map_err(refused)?;
                }
                None => break,
            }
        }
        match reading {
            Reading::Audit => Ok(replay.finish_audit(committed)),
            Reading::Owner | Reading::Guest => {
                let task = replay.finish(committed).map_err(refused)?;
                Ok((task, Vec::new()))
            }
        }
    }

    fn empty(&self, partition: i32, mark: EpochMark) -> Replay {
        let backend = Box::new(MapBackend::default());
        Replay::new(partition, self.partitions, mark, backend)
    }

    /// The state of the newest checkpoint that is not behind a commit, and the offset from which the changelog goes on
    /// with it; none where checkpoints are not for starts.
    async fn kept(
        &self,
        partition: i32,
        mark: EpochMark,
        start: i64,
    ) -> Result<Option<(Replay, i64)>, Failure> {
        let Some(store) = &self.shared else {
            return Ok(None);
        };
        for _ in 0..LOOKS {
            let numbers = store.numbers().await?;
            for number in &numbers {
                let manifest = match store.manifest(*number).await {
                    Ok(manifest) => manifest,
                    Err(failure) => {
                        tracing::warn!(%failure, "a checkpoint cannot be used; the one before it is tried");
                        continue;
                    }
                };
                let mut tasks = manifest.tasks.iter();
                let found = tasks.find(|task| {
                    task.partition == partition && task.epoch <= mark.epoch && task.next >= start
                });
                let Some(task) = found else { continue };
                let mut replay = self.empty(partition, mark);
                match store.load(*number, task, &mut replay).await {
                    Ok(()) => return Ok(Some((replay, task.next))),
                    Err(failure) => {
                        tracing::warn!(%failure, "a checkpoint cannot be used; the one before it is tried");
                    }
                }
            }
            // They may have been removed while they were read.
            if store.numbers().await? == numbers {
                break;
            }
        }
        Ok(None)
    }

    /// Reads the state at an epoch, the offsets of that epoch, and the offset behind it.
    pub(crate) async fn state_at(
        &self,
        partition: i32,
        mark: EpochMark,
    ) -> Result<(RecoveredTask, Vec<InputOffset>, i64), Failure> {
        let (start, end) = self.extent(partition).await?;
        let kept = self.kept(partition, mark, start).await?;
        if kept.is_none() && mark.base < start {
            let base = mark.base;
            return Err(refused(RecoveryError::BaseMissing {
                partition,
                start,
                base,
            }));
        }
        let (mut replay, mut next) =
            kept.unwrap_or_else(|| (self.empty(partition, mark), mark.base));
        let mut frames = self.frames(partition, next, end);
        while !replay.is_complete() {
            let (offset, frame) = match frames.next().await? {
                Some(ReadFrame::Frame(offset, frame)) => (offset, frame),
                Some(ReadFrame::Damaged(offset)) => (offset, Bytes::new()),
                None => break,
            };
            replay.frame(offset, &frame).map_err(refused)?;
            next = offset + 1;
        }
        let read = replay.last().filter(|(read, _)| read.epoch == mark.epoch);
        let (recovered, inputs) = read.ok_or_else(|| {
            refused(RecoveryError::OtherEpoch {
                partition,
                found: 0,
                committed: mark.epoch,
            })
        })?;
        Ok((recovered, inputs, next))
    }

    /// Reads whatever a changelog holds; none where that is not one whole epoch.
    pub(crate) async fn read_last(
        &self,
        partition: i32,
    ) -> Result<Option<(RecoveredTask, Vec<InputOffset>)>, Failure> {
        let (start, end) = self.extent(partition).await?;
        // Every frame that readers see is committed, whichever epoch it is of.
        let mark = EpochMark {
            epoch: u64::MAX,
            base: start,
            crc: 0,
        };
        let kept = self.kept(partition, mark, start).await?;
        let (mut replay, from) = kept.unwrap_or_else(|| (self.empty(partition, mark), start));
        let mut frames = self.frames(partition, from, end);
        while let Some(read) = frames.next().await? {
            let (offset, frame) = match read {
                ReadFrame::Frame(offset, frame) => (offset, frame),
                ReadFrame::Damaged(offset) => (offset, Bytes::new()),
            };
            replay.frame(offset, &frame).map_err(refused)?;
        }
        Ok(replay.last())
    }

    /// Whether readers see a record between two offsets. A damaged one counts.
    async fn has_frames(&self, partition: i32, (start, end): (i64, i64)) -> Result<bool, LogError> {
        Ok(self.frames(partition, start, end).next().await?.is_some())
    }

    /// Calls until the log answers.
    async fn again<'a, T>(&'a self, call: impl Fn() -> LogFuture<'a, T>) -> Result<T, LogError> {
        loop {
            match call().await {
                Err(error @ (LogError::Unavailable { .. } | LogError::OutcomeUnknown { .. })) => {
                    tracing::warn!(%error, changelog = %self.changelog, "a state cannot be read yet");
                    self.clock.sleep(READ_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }
}

/// A state that cannot be recovered, as the failure of a stage.
pub(crate) fn refused(error: RecoveryError) -> Failure {
    let code = Code::from_static(error.code());
    Failure::new(FailureClass::System, code, error.to_string()).with_source(error)
}
