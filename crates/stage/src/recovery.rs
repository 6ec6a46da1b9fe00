//! From committed offsets and a changelog to the state of a task: pure, and refused by name where they disagree.

use bytes::Bytes;

use crate::changelog::{EpochMark, Frame, FrameError, InputOffset, chain_checksum};
use crate::state::backend::StateBackend;

/// A state that cannot be recovered. No restart mends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The changelog holds state, and the group has no committed offsets.
    #[error(
        "the changelog of partition {partition} holds {records} records, and the group has committed no offset"
    )]
    OffsetsForgotten {
        /// The partition.
        partition: i32,
        /// Its records.
        records: i64,
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

/// Decides where a recovery begins. `changelog` has the first offset and the one behind the last.
///
/// # Errors
/// Offsets and changelog do not belong together.
pub fn start(
    partition: i32,
    inputs: &[InputCommitted],
    changelog: (i64, i64),
) -> Result<RecoveryStart, RecoveryError> {
    let (first, end) = changelog;
    let mut mark: Option<EpochMark> = None;
    for input in inputs {
        let Some((_, metadata)) = &input.committed else {
            continue;
        };
        // `Latest` commits where a group begins, without a text.
        if metadata.is_empty() && mark.is_none() && first == end {
            continue;
        }
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
    let Some(mark) = mark else {
        return match first == end {
            true => Ok(RecoveryStart::First { base: end }),
            false => Err(RecoveryError::OffsetsForgotten {
                partition,
                records: end - first,
            }),
        };
    };
    if mark.base < first {
        return Err(RecoveryError::BaseMissing {
            partition,
            start: first,
            base: mark.base,
        });
    }
    Ok(RecoveryStart::Replay { mark })
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
    /// The offsets behind the last records of the inputs, where they were asked for.
    pub ends: Vec<i64>,
}

/// A replay of frames, in the order of the log.
#[derive(Debug)]
pub struct Replay {
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

    /// Takes the next frame.
    ///
    /// # Errors
    /// It cannot be read, or one before it is missing.
    pub fn frame(&mut self, offset: i64, bytes: &Bytes) -> Result<(), RecoveryError> {
        self.bytes += bytes.len() as u64;
        let partition = self.partition;
        let frame = Frame::decode(bytes).map_err(|error| RecoveryError::Frame {
            partition,
            offset,
            error,
        })?;
        let delta = match frame {
            Frame::Piece(piece) => {
                self.backend
                    .replace(&piece.from, piece.to.as_ref(), piece.entries);
                return Ok(());
            }
            Frame::Delta(delta) => delta,
        };
        let gap = |before| RecoveryError::Gap {
            partition,
            before,
            after: delta.epoch,
            offset,
        };
        let mut open = match self.open.take() {
            Some(open) if open.epoch == delta.epoch && open.parts == delta.part => open,
            Some(open) => return Err(gap(open.epoch)),
            None if delta.part != 0 => return Err(gap(self.complete.unwrap_or(0))),
            None => {
                if let Some(complete) = self.complete.filter(|last| last + 1 != delta.epoch) {
                    return Err(gap(complete));
                }
                OpenEpoch {
                    epoch: delta.epoch,
                    parts: 0,
                    crc: 0,
                    changes: Vec::new(),
                }
            }
        };
        if delta.partitions != self.partitions {
            return Err(RecoveryError::PartitionsChanged {
                before: delta.partitions,
                now: self.partitions,
            });
        }
        open.parts += 1;
        open.crc = chain_checksum(open.crc, bytes);
        open.changes.extend(delta.changes);
        if !delta.is_last {
            self.open = Some(open);
            return Ok(());
        }
        self.backend
            .apply(open.epoch, open.changes.into_iter().collect());
        self.complete = Some(open.epoch);
        self.crc = open.crc;
        self.inputs = delta.inputs;
        self.clock_ms = delta.clock_ms;
        Ok(())
    }

    /// Whether the committed epoch is there whole.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete == Some(self.mark.epoch)
    }

    /// The end of the changelog: what was read must be what was committed.
    ///
    /// # Errors
    /// It is not.
    pub fn finish(self, inputs: &[InputCommitted]) -> Result<RecoveredTask, RecoveryError> {
        let (partition, epoch) = (self.partition, self.mark.epoch);
        if let Some(open) = &self.open {
            return Err(RecoveryError::Gap {
                partition,
                before: open.epoch,
                after: open.epoch,
                offset: -1,
            });
        }
        let found = self.complete.unwrap_or(0);
        if found != epoch {
            return Err(RecoveryError::OtherEpoch {
                partition,
                found,
                committed: epoch,
            });
        }
        let differs = |what| RecoveryError::OtherFrames {
            partition,
            epoch,
            what,
        };
        if self.crc != self.mark.crc {
            return Err(differs("the checksums"));
        }
        for kept in &self.inputs {
            let Some(input) = inputs.iter().find(|input| input.topic == kept.topic) else {
                continue;
            };
            match &input.committed {
                None => {
                    return Err(RecoveryError::OffsetMissing {
                        partition,
                        topic: kept.topic.clone(),
                    });
                }
                Some((next, _)) if *next != kept.next => return Err(differs("the offsets")),
                Some(_) => {}
            }
        }
        Ok(RecoveredTask {
            backend: self.backend,
            epoch,
            base: self.mark.base,
            clock_ms: self.clock_ms,
            replayed_bytes: self.bytes,
            ends: Vec::new(),
        })
    }
}
