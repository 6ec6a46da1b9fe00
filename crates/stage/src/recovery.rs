//! From committed offsets and a changelog to the state of a task: pure, and refused by name where they disagree.

use bytes::Bytes;

use crate::changelog::{DeltaFrame, EpochMark, Frame, FrameError, InputOffset, chain_checksum};
use crate::state::backend::{MapBackend, StateBackend};

/// A state that cannot be recovered. No restart mends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The changelog holds state, and the group has no committed offsets.
    #[error(
        "the changelog of partition {partition} holds frames, and the group has committed no offset"
    )]
    OffsetsForgotten {
        /// The partition.
        partition: i32,
    },
    /// Some inputs have committed offsets and others, which were read before, have none.
    #[error("input `{topic}` of partition {partition} has no committed offset any more")]
    OffsetMissing {
        /// The partition.
        partition: i32,
        /// The input.
        topic: String,
    },
    /// The text beside an offset was written by something else.
    #[error(
        "the offset of `{topic}`, partition {partition}, was committed by another program: `{metadata}`"
    )]
    ForeignOffset {
        /// The partition.
        partition: i32,
        /// The input.
        topic: String,
        /// The text.
        metadata: String,
    },
    /// The inputs of one task were committed with different epochs.
    #[error("the inputs of partition {partition} were committed with epochs {one} and {other}")]
    EpochsDiffer {
        /// The partition.
        partition: i32,
        /// One of them.
        one: u64,
        /// Another one.
        other: u64,
    },
    /// The beginning of the state is not in the changelog any more.
    #[error(
        "the changelog of partition {partition} begins at {start}, and the state begins at {base}"
    )]
    BaseMissing {
        /// The partition.
        partition: i32,
        /// The first offset of the changelog.
        start: i64,
        /// The offset that the commit names.
        base: i64,
    },
    /// A frame cannot be read.
    #[error("offset {offset} of the changelog, partition {partition}: {error}")]
    Frame {
        /// The partition.
        partition: i32,
        /// Where it lies.
        offset: i64,
        /// The reason.
        error: FrameError,
    },
    /// A frame is missing.
    #[error(
        "the changelog of partition {partition} goes from epoch {before} to {after}, at offset {offset}"
    )]
    Gap {
        /// The partition.
        partition: i32,
        /// The epoch before it.
        before: u64,
        /// The epoch behind it.
        after: u64,
        /// Where it was noticed.
        offset: i64,
    },
    /// The changelog ends with another epoch than the one that was committed.
    #[error(
        "the changelog of partition {partition} ends with epoch {found}, and epoch {committed} was committed"
    )]
    OtherEpoch {
        /// The partition.
        partition: i32,
        /// Its last epoch.
        found: u64,
        /// The committed one.
        committed: u64,
    },
    /// The last frames are not those of the commit.
    #[error(
        "epoch {epoch} of partition {partition} is not the one that was committed: {what} differ"
    )]
    OtherFrames {
        /// The partition.
        partition: i32,
        /// The epoch.
        epoch: u64,
        /// The difference.
        what: &'static str,
    },
    /// The inputs had another number of partitions when the state was written.
    #[error("the state was written with {before} partitions per input, and now there are {now}")]
    PartitionsChanged {
        /// Before.
        before: u32,
        /// Now.
        now: u32,
    },
}

impl RecoveryError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::OffsetsForgotten { .. } | Self::OffsetMissing { .. } => "stage.offset.forgotten",
            Self::ForeignOffset { .. } => "stage.offset.foreign",
            Self::EpochsDiffer { .. } => "stage.offset.differ",
            Self::BaseMissing { .. } | Self::Gap { .. } => "stage.changelog.gap",
            Self::Frame { .. } => "stage.changelog.damaged",
            Self::OtherEpoch { .. } | Self::OtherFrames { .. } => "stage.changelog.differs",
            Self::PartitionsChanged { .. } => "stage.partitions.changed",
        }
    }
}

/// An input of a task with what its group committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputCommitted {
    /// The topic.
    pub topic: String,
    /// The next offset and the text beside it.
    pub committed: Option<(i64, String)>,
}

/// Where a recovery begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryStart {
    /// Nothing was ever committed: the state is empty, and the changelog begins here.
    First {
        /// The first offset of the changelog.
        base: i64,
    },
    /// The frames from here on make the state.
    Replay {
        /// The committed epoch.
        mark: EpochMark,
    },
}

/// The extent of a changelog, as readers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangelogExtent {
    /// Its first offset.
    pub start: i64,
    /// The offset behind its last one.
    pub end: i64,
    /// Whether there is a record in between. Offsets alone do not tell: on Kafka, aborted commits take some.
    pub has_frames: bool,
}

/// The epoch that the inputs of a task were committed with; none before the first commit.
///
/// # Errors
/// The inputs do not belong together, or another program committed them.
pub fn committed_mark(
    partition: i32,
    inputs: &[InputCommitted],
) -> Result<Option<EpochMark>, RecoveryError> {
    let mut mark: Option<EpochMark> = None;
    for input in inputs {
        // `Latest` commits where a group begins, without a text.
        let Some((_, metadata)) = input.committed.as_ref().filter(|held| !held.1.is_empty()) else {
            continue;
        };
        let found = EpochMark::parse(metadata).ok_or_else(|| RecoveryError::ForeignOffset {
            partition,
            topic: input.topic.clone(),
            metadata: metadata.clone(),
        })?;
        let one = *mark.get_or_insert(found);
        if one != found {
            return Err(RecoveryError::EpochsDiffer {
                partition,
                one: one.epoch,
                other: found.epoch,
            });
        }
    }
    Ok(mark)
}

/// Decides where a recovery begins.
///
/// # Errors
/// Offsets and changelog do not belong together.
pub fn start(
    partition: i32,
    mark: Option<EpochMark>,
    changelog: ChangelogExtent,
) -> Result<RecoveryStart, RecoveryError> {
    match mark {
        None if changelog.has_frames => Err(RecoveryError::OffsetsForgotten { partition }),
        None => Ok(RecoveryStart::First {
            base: changelog.end,
        }),
        Some(mark) if mark.base < changelog.start => Err(RecoveryError::BaseMissing {
            partition,
            start: changelog.start,
            base: mark.base,
        }),
        Some(mark) => Ok(RecoveryStart::Replay { mark }),
    }
}

/// The state of a task after its last committed epoch.
#[derive(Debug)]
pub struct RecoveredTask {
    /// The state.
    pub backend: Box<dyn StateBackend>,
    /// The last committed epoch; 0 before the first one.
    pub epoch: u64,
    /// Where the state begins in the changelog.
    pub base: i64,
    /// The processing time at the end of that epoch.
    pub clock_ms: i64,
    /// Bytes of the changelog that were read.
    pub replayed_bytes: u64,
}

impl RecoveredTask {
    /// A task that never committed anything; its changelog begins here.
    #[must_use]
    pub fn first(base: i64) -> Self {
        Self {
            backend: Box::new(MapBackend::default()),
            epoch: 0,
            base,
            clock_ms: 0,
            replayed_bytes: 0,
        }
    }
}

/// A replay of frames, in the order of the log.
///
/// An [audit](Self::of_audit) reads on behind a frame that cannot be used, and keeps the error. So what else is
/// there is counted.
#[derive(Debug)]
pub struct Replay {
    /// The errors so far; none where the first one ends it.
    faults: Option<Vec<RecoveryError>>,
    partition: i32,
    partitions: u32,
    mark: EpochMark,
    backend: Box<dyn StateBackend>,
    /// The last epoch whose frames are all there.
    complete: Option<u64>,
    /// The epoch whose frames are being read, how many were, their checksum and their changes.
    open: Option<OpenEpoch>,
    crc: u32,
    inputs: Vec<InputOffset>,
    clock_ms: i64,
    bytes: u64,
}

#[derive(Debug)]
struct OpenEpoch {
    epoch: u64,
    parts: u16,
    crc: u32,
    changes: Vec<(crate::state::backend::EntryKey, Option<Bytes>)>,
}

impl Replay {
    /// A replay into an empty backend.
    #[must_use]
    pub fn new(
        partition: i32,
        partitions: u32,
        mark: EpochMark,
        backend: Box<dyn StateBackend>,
    ) -> Self {
        Self {
            faults: None,
            partition,
            partitions,
            mark,
            backend,
            complete: None,
            open: None,
            crc: 0,
            inputs: Vec::new(),
            clock_ms: 0,
            bytes: 0,
        }
    }

    /// The same, which reads on behind what cannot be used.
    #[must_use]
    pub fn of_audit(mut self) -> Self {
        self.faults = Some(Vec::new());
        self
    }

    /// An error, where nothing is read behind the first one; else it is kept.
    ///
    /// # Errors
    /// The replay ends with it.
    pub fn fault(&mut self, error: RecoveryError) -> Result<(), RecoveryError> {
        match &mut self.faults {
            Some(faults) => faults.push(error),
            None => return Err(error),
        }
        Ok(())
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// It cannot be read, or one before it is missing.
    pub fn frame(&mut self, offset: i64, bytes: &Bytes) -> Result<(), RecoveryError> {
        self.bytes += bytes.len() as u64;
        let partition = self.partition;
        let delta = match Frame::decode(bytes) {
            Ok(Frame::Piece(piece)) => {
                self.backend
                    .replace(&piece.from, piece.to.as_ref(), piece.entries);
                return Ok(());
            }
            Ok(Frame::Delta(delta)) => delta,
            Err(error) => {
                return self.fault(RecoveryError::Frame {
                    partition,
                    offset,
                    error,
                });
            }
        };
        if delta.partitions != self.partitions {
            self.fault(RecoveryError::PartitionsChanged {
                before: delta.partitions,
                now: self.partitions,
            })?;
        }
        let (epoch, part) = (delta.epoch, delta.part);
        if self.faults.is_some() && epoch > self.mark.epoch {
            // The committed epoch itself could not be read, and this one is not committed yet.
            self.complete = Some(epoch);
            return Ok(());
        }
        let open = self.open.take();
        let open = match open.filter(|open| open.epoch == epoch && open.parts == part) {
            Some(open) => open,
            None => {
                let before = self.complete.unwrap_or(0);
                let is_next = self.complete.is_none_or(|last| last + 1 == epoch);
                // Behind a frame that cannot be read there is a gap, which says nothing more.
                let is_known = self
                    .faults
                    .as_ref()
                    .is_some_and(|faults| !faults.is_empty());
                if (part != 0 || !is_next) && !is_known {
                    self.fault(RecoveryError::Gap {
                        partition,
                        before,
                        after: epoch,
                        offset,
                    })?;
                }
                OpenEpoch {
                    epoch,
                    parts: part,
                    crc: 0,
                    changes: Vec::new(),
                }
            }
        };
        self.take_delta(open, delta, bytes);
        Ok(())
    }

    fn take_delta(&mut self, mut open: OpenEpoch, delta: DeltaFrame, bytes: &Bytes) {
        open.parts += 1;
        open.crc = chain_checksum(open.crc, bytes);
        open.changes.extend(delta.changes);
        if !delta.is_last {
            self.open = Some(open);
            return;
        }
        self.backend
            .apply(open.epoch, open.changes.into_iter().collect());
        self.complete = Some(open.epoch);
        self.crc = open.crc;
        self.inputs = delta.inputs;
        self.clock_ms = delta.clock_ms;
    }

    /// The frames so far stand for those of this epoch: they were made anew from its state.
    pub(crate) fn stands_for(&mut self, mark: EpochMark) {
        if self.open.is_none() && self.complete == Some(mark.epoch) {
            self.crc = mark.crc;
        }
    }

    /// Whether the committed epoch is there whole, or one behind it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete.is_some_and(|epoch| epoch >= self.mark.epoch)
    }

    /// The end of the changelog: what was read must be what was committed.
    ///
    /// # Errors
    /// It is not.
    pub fn finish(mut self, inputs: &[InputCommitted]) -> Result<RecoveredTask, RecoveryError> {
        for error in self.differences(inputs) {
            self.fault(error)?;
        }
        Ok(self.task())
    }

    /// The end of an audit: the state as far as it can be read, and what is wrong with it.
    #[must_use]
    pub fn finish_audit(
        mut self,
        inputs: &[InputCommitted],
    ) -> (RecoveredTask, Vec<RecoveryError>) {
        let differences = self.differences(inputs);
        let mut faults = self.faults.take().unwrap_or_default();
        // A frame that cannot be read makes the rest differ; that says nothing more.
        if faults.is_empty() {
            faults = differences;
        }
        (self.task(), faults)
    }

    /// Whatever the frames hold, up to the last whole epoch, with the offsets of that epoch; none without one.
    #[must_use]
    pub fn last(self) -> Option<(RecoveredTask, Vec<InputOffset>)> {
        let epoch = self.complete?;
        let inputs = self.inputs.clone();
        let task = self.task();
        Some((RecoveredTask { epoch, ..task }, inputs))
    }

    fn task(self) -> RecoveredTask {
        RecoveredTask {
            backend: self.backend,
            epoch: self.mark.epoch,
            base: self.mark.base,
            clock_ms: self.clock_ms,
            replayed_bytes: self.bytes,
        }
    }

    /// How the last epoch differs from the one that was committed.
    fn differences(&self, inputs: &[InputCommitted]) -> Vec<RecoveryError> {
        let (partition, epoch) = (self.partition, self.mark.epoch);
        if let Some(open) = &self.open {
            return vec![RecoveryError::Gap {
                partition,
                before: open.epoch,
                after: open.epoch,
                offset: -1,
            }];
        }
        let found = self.complete.unwrap_or(0);
        if found != epoch {
            return vec![RecoveryError::OtherEpoch {
                partition,
                found,
                committed: epoch,
            }];
        }
        let differs = |what| RecoveryError::OtherFrames {
            partition,
            epoch,
            what,
        };
        if self.crc != self.mark.crc {
            return vec![differs("the checksums")];
        }
        for kept in &self.inputs {
            let Some(input) = inputs.iter().find(|input| input.topic == kept.topic) else {
                continue;
            };
            match &input.committed {
                None => {
                    return vec![RecoveryError::OffsetMissing {
                        partition,
                        topic: kept.topic.clone(),
                    }];
                }
                Some((next, _)) if *next != kept.next => return vec![differs("the offsets")],
                Some(_) => {}
            }
        }
        Vec::new()
    }
}
