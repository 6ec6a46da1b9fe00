//! One task: partition p of every input, with its operators, its state and its open epoch.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::books::{Place, Posting, postings};
use tidegate_core::{EventId, Failure, Offset, Topic};
use tidegate_log::{Append, Assignment, Fence, OffsetCommit, Record, StoredRecord, TopicPartition};

use crate::base::BaseRoll;
use crate::chain::{ChainOutput, InputRecord, RejectedContent, StageMove, TaskOperators, TaskTime};
use crate::changelog::{
    DeltaFrame, EpochMark, Frame, InputOffset, MAX_FRAME_BYTES, chain_checksum, entry_bytes,
};
use crate::planted_bugs::{PlantedStageBug, is};
use crate::recovery::RecoveredTask;
use crate::state::LayeredState;
use crate::state::backend::EntryKey;

/// An input of a task.
#[derive(Debug)]
pub(crate) struct TaskInput {
    pub(crate) at: TopicPartition,
    pub(crate) fence: Fence,
    /// The next record to handle.
    pub(crate) position: i64,
    /// Where to go on after an epoch was taken back.
    pub(crate) committed: i64,
    /// The positions of epochs that are on their way.
    sealed: VecDeque<i64>,
    /// Everything before it is removed, in a topic of the stage's own.
    cut: i64,
}

impl TaskInput {
    pub(crate) fn new(at: TopicPartition, fence: Fence, position: i64) -> Self {
        Self {
            at,
            fence,
            position,
            committed: position,
            sealed: VecDeque::new(),
            cut: position,
        }
    }
}

/// A record that waits in a task.
#[derive(Debug)]
pub(crate) struct QueuedRecord {
    pub(crate) input: usize,
    pub(crate) stored: StoredRecord,
    /// The position behind it.
    pub(crate) next: i64,
}

/// A task that owns partition p of every input and knows its state.
#[derive(Debug)]
pub(crate) struct StageTask {
    pub(crate) partition: i32,
    pub(crate) inputs: Vec<TaskInput>,
    pub(crate) chain: Box<dyn TaskOperators>,
    pub(crate) state: LayeredState,
    /// The last epoch that is committed or on its way.
    pub(crate) epoch: u64,
    committed_epoch: u64,
    pub(crate) queue: VecDeque<QueuedRecord>,
    /// How many records of the queue come before the marker of a checkpoint, where there is one.
    marker: Option<usize>,
    pub(crate) out: ChainOutput,
    /// Records of the open epoch.
    pub(crate) records: u64,
    is_fired: bool,
    pub(crate) clock_ms: i64,
    roll: BaseRoll,
    committed_roll: BaseRoll,
    sealed_rolls: VecDeque<BaseRoll>,
    pub(crate) last_commit_ms: i64,
    /// Nothing waits in the state any more, and no record came since.
    pub(crate) is_finished: bool,
    cleans: bool,
    /// Records that the log refuses; each is kept until its dead letter is committed.
    rejections: BTreeMap<RecordPlace, Rejection>,
    /// The next timer makes what the log refuses.
    timer_rejection: Option<Rejection>,
    /// The dead letter of that timer is on its way.
    sealed_rejection: Option<Rejection>,
    /// The text beside the committed offsets, and those of epochs that are on their way.
    mark: String,
    sealed_marks: VecDeque<String>,
    /// The last record of the open epoch.
    last: Option<RecordPlace>,
    /// More timers are due.
    pub(crate) has_due: bool,
    /// The changelog can be cut here.
    cut_at: Option<i64>,
}

/// A record of a task: its input, and its offset there.
pub(crate) type RecordPlace = (usize, i64);

/// Why a record becomes a dead letter.
#[derive(Debug)]
struct Rejection {
    failure: Failure,
    /// How much of the record its dead letter keeps.
    keep: RejectedContent,
}

/// The words of an epoch that is closed.
#[derive(Debug, Default)]
pub(crate) struct SealedEpoch {
    pub(crate) appends: Vec<Append>,
    pub(crate) offsets: Vec<OffsetCommit>,
    /// Which of the appends is the first piece of a base.
    pub(crate) first_piece: Option<usize>,
}

impl StageTask {
    pub(crate) fn new(
        partition: i32,
        inputs: Vec<TaskInput>,
        chain: Box<dyn TaskOperators>,
        recovered: RecoveredTask,
        mark: String,
        now_ms: i64,
    ) -> Self {
        let roll = BaseRoll::new(recovered.base, recovered.replayed_bytes);
        let mut task = Self {
            partition,
            inputs,
            chain,
            state: LayeredState::new(recovered.backend),
            epoch: recovered.epoch,
            committed_epoch: recovered.epoch,
            queue: VecDeque::new(),
            marker: None,
            out: ChainOutput::default(),
            records: 0,
            is_fired: false,
            clock_ms: recovered.clock_ms,
            committed_roll: roll.clone(),
            roll,
            sealed_rolls: VecDeque::new(),
            last_commit_ms: now_ms,
            is_finished: false,
            cleans: false,
            rejections: BTreeMap::new(),
            timer_rejection: None,
            sealed_rejection: None,
            mark,
            sealed_marks: VecDeque::new(),
            last: None,
            has_due: false,
            cut_at: None,
        };
        let time = task.time(now_ms, now_ms);
        task.chain.reload(&task.state, time);
        task
    }

    fn time(&mut self, now_ms: i64, epoch_start_ms: i64) -> TaskTime {
        self.clock_ms = self.clock_ms.max(now_ms);
        TaskTime {
            now_ms: self.clock_ms,
            epoch_start_ms: epoch_start_ms.max(0),
        }
    }

    /// Whether the open epoch holds anything.
    pub(crate) fn is_open(&self) -> bool {
        self.records > 0 || self.is_fired || !self.out.is_empty() || !self.state.open().is_empty()
    }

    /// About how many bytes the open epoch will commit.
    pub(crate) fn open_bytes(&self) -> usize {
        self.state.open().bytes()
    }

    /// Fires timers that are due, at most so many.
    pub(crate) fn fire(
        &mut self,
        now_ms: i64,
        epoch_start_ms: i64,
        limit: usize,
    ) -> Result<(), Failure> {
        let time = self.time(now_ms, epoch_start_ms);
        let before = self.out.outputs.len() + self.out.moves.len();
        let (state, out) = (&mut self.state, &mut self.out);
        let rejection = self.timer_rejection.as_ref();
        self.has_due = match rejection.filter(|_| !self.is_fired) {
            Some(Rejection { failure, keep }) => {
                self.chain
                    .reject_timer(state, time, (failure, *keep), out)?;
                true
            }
            None => self.chain.fire(state, time, limit, out)?,
        };
        self.is_fired |= self.out.outputs.len() + self.out.moves.len() > before;
        Ok(())
    }

    /// Handles the next record, if there is one.
    pub(crate) fn handle(
        &mut self,
        now_ms: i64,
        epoch_start_ms: i64,
        cluster: &str,
    ) -> Result<bool, Failure> {
        let Some(queued) = self.queue.pop_front() else {
            return Ok(false);
        };
        self.marker = self.marker.map(|before| before.saturating_sub(1));
        self.is_finished = false;
        let time = self.time(now_ms, epoch_start_ms);
        let input = &mut self.inputs[queued.input];
        let record = InputRecord {
            input: queued.input,
            topic: input.at.topic.as_str(),
            partition: self.partition,
            id: queued.stored.event_id(cluster, &input.at),
            record: &queued.stored,
        };
        let (chain, state, out) = (&mut self.chain, &mut self.state, &mut self.out);
        let place = (queued.input, queued.stored.offset.0);
        self.last = Some(place);
        let done = match self.rejections.get(&place) {
            Some(Rejection { failure, keep }) => {
                chain.reject(state, time, record, (failure, *keep), out)
            }
            None => chain.record(state, time, record, out),
        };
        done.map_err(|failure| {
            let Failure { class, code, .. } = &failure;
            let at = format!("{}, offset {}", input.at, queued.stored.offset);
            let epoch = self.epoch + 1;
            let message = format!("record at {at}, in epoch {epoch}: {failure}");
            Failure::new(*class, code.clone(), message)
        })?;
        input.position = queued.next;
        self.records += 1;
        Ok(true)
    }

    /// The marker of a checkpoint enters the queues of all inputs, behind what waits there.
    pub(crate) fn mark_checkpoint(&mut self) {
        self.marker = Some(self.queue.len());
    }

    /// Whether it has come to the marker: nothing behind it is handled.
    pub(crate) fn is_at_marker(&self) -> bool {
        self.marker == Some(0)
    }

    /// It goes on behind the marker.
    pub(crate) fn unmark(&mut self) {
        self.marker = None;
    }

    /// Its part of a checkpoint: the text beside its committed offsets, and those offsets; none before the first
    /// commit.
    pub(crate) fn committed_at(&self) -> Option<(String, Vec<(Topic, i64)>)> {
        let inputs = self.inputs.iter();
        let offsets = inputs.map(|input| (input.at.topic.clone(), input.committed));
        (!self.mark.is_empty()).then(|| (self.mark.clone(), offsets.collect()))
    }

    /// The end of all inputs: fires a batch of all timers, due or not. Says whether more are left.
    pub(crate) fn finish(
        &mut self,
        now_ms: i64,
        epoch_start_ms: i64,
        limit: usize,
    ) -> Result<bool, Failure> {
        let time = self.time(now_ms, epoch_start_ms);
        let before = self.out.outputs.len() + self.out.moves.len();
        let (state, out) = (&mut self.state, &mut self.out);
        let has_more = self.chain.finish(state, time, limit, out)?;
        self.is_fired |= self.out.outputs.len() + self.out.moves.len() > before;
        self.is_finished = !has_more;
        Ok(has_more)
    }

    /// The assignment that it works for.
    pub(crate) fn fence(&self) -> Option<Fence> {
        self.inputs.first().map(|input| input.fence)
    }

    /// Whether timers of the open epoch fired.
    pub(crate) fn has_fired(&self) -> bool {
        self.is_fired
    }

    /// From now on, batches of the clean-up are done until nothing is left.
    pub(crate) fn begin_clean(&mut self) {
        self.cleans = true;
    }

    pub(crate) fn cleans(&self) -> bool {
        self.cleans
    }

    /// Does a batch of the clean-up, if one is due.
    pub(crate) fn clean(&mut self, now_ms: i64, epoch_start_ms: i64) -> Result<(), Failure> {
        self.cleans &= self.committed_epoch > 0;
        if self.cleans {
            let time = self.time(now_ms, epoch_start_ms);
            self.cleans = !self.chain.clean(&mut self.state, time)?;
        }
        Ok(())
    }

    /// The last record of the open epoch.
    pub(crate) fn last(&self) -> Option<RecordPlace> {
        self.last
    }

    /// A record becomes a dead letter, since the log refuses what it makes.
    ///
    /// # Errors
    /// The log refused the dead letter, too.
    pub(crate) fn refuse(&mut self, place: RecordPlace, failure: Failure) -> Result<(), Failure> {
        let before = self.rejections.get(&place).map(|before| before.keep);
        let keep = match before {
            None => RejectedContent::All,
            Some(RejectedContent::All) => RejectedContent::Nothing,
            Some(RejectedContent::Nothing) => return Err(failure),
        };
        self.rejections.insert(place, Rejection { failure, keep });
        Ok(())
    }

    /// The next timer makes a dead letter, since the log refuses its outputs.
    ///
    /// # Errors
    /// The log refused the dead letter, too.
    pub(crate) fn refuse_timer(&mut self, failure: Failure) -> Result<(), Failure> {
        let before = self.sealed_rejection.take();
        let keep = match before.map(|before| before.keep) {
            None => RejectedContent::All,
            Some(RejectedContent::All) => RejectedContent::Nothing,
            Some(RejectedContent::Nothing) => return Err(failure),
        };
        self.timer_rejection = Some(Rejection { failure, keep });
        Ok(())
    }

    /// Where topics of the stage's own can be cut: what lies before was committed, and nobody else reads it.
    /// `every` is how many records are cut at once, at least.
    pub(crate) fn cut_repartitions(&mut self, every: u64) -> Vec<(TopicPartition, Offset)> {
        let every = i64::try_from(every).unwrap_or(i64::MAX);
        let mut cuts = Vec::new();
        for (input, of_chain) in self.inputs.iter_mut().zip(self.chain.inputs()) {
            if of_chain.is_repartition && input.committed.saturating_sub(input.cut) >= every {
                input.cut = input.committed;
                cuts.push((input.at.clone(), Offset(input.committed)));
            }
        }
        cuts
    }

    /// Closes the open epoch: outputs, frames, offsets with their text, and postings.
    pub(crate) fn seal(
        &mut self,
        (changelog, partitions, rolls_base): (&Topic, u32, bool),
        outputs: Vec<Append>,
        now_ms: i64,
    ) -> SealedEpoch {
        self.epoch += 1;
        let epoch = self.epoch;
        let mut roll = self.roll.clone();
        let delta_bytes = self.state.open().bytes();
        let pieces = match rolls_base {
            true => roll.pieces(&self.state, epoch, delta_bytes),
            false => Vec::new(),
        };
        let deltas = self.deltas(partitions);
        let mut crc = 0;
        for frame in &deltas {
            crc = chain_checksum(crc, frame);
        }
        let written = pieces.iter().chain(&deltas).map(Vec::len).sum::<usize>();
        roll.written(written as u64);
        let mark = EpochMark {
            epoch,
            base: roll.base(),
            crc,
        };
        let mut sealed = SealedEpoch {
            appends: outputs,
            ..SealedEpoch::default()
        };
        sealed.first_piece = (!pieces.is_empty()).then_some(sealed.appends.len());
        let skips = is(PlantedStageBug::SkippedFrame) && epoch.is_multiple_of(3);
        let frames = pieces.into_iter().chain(deltas);
        for frame in frames.filter(|_| !skips) {
            let record = Record::new(frame);
            sealed
                .appends
                .push(Append::new(changelog.clone(), record).partition(self.partition));
        }
        if self.is_fired {
            self.sealed_rejection = self.timer_rejection.take();
        }
        let moves = std::mem::take(&mut self.out.moves);
        let mut by_input = by_input(&moves, self.inputs.len());
        let metadata = mark.to_string();
        for (index, input) in self.inputs.iter_mut().enumerate() {
            sealed.offsets.push(OffsetCommit {
                at: input.at.clone(),
                fence: input.fence,
                next: Offset(input.position),
                metadata: metadata.clone(),
                postings: std::mem::take(&mut by_input[index]),
            });
            input.sealed.push_back(input.position);
        }
        self.state.seal(epoch);
        self.chain.sealed();
        self.sealed_marks.push_back(metadata);
        self.sealed_rolls.push_back(roll.clone());
        self.roll = roll;
        self.out = ChainOutput::default();
        self.records = 0;
        self.last = None;
        self.is_fired = false;
        self.last_commit_ms = now_ms;
        sealed
    }

    /// The frames of the open epoch.
    fn deltas(&self, partitions: u32) -> Vec<Vec<u8>> {
        let inputs = self.inputs.iter().map(|input| InputOffset {
            topic: input.at.topic.to_string(),
            next: input.position,
        });
        let empty = DeltaFrame {
            epoch: self.epoch,
            part: 0,
            is_last: true,
            clock_ms: self.clock_ms,
            partitions,
            inputs: inputs.collect(),
            changes: Vec::new(),
        };
        let mut frames = vec![empty.clone()];
        let mut size = 0;
        for (key, value) in self.state.open().changes() {
            let entry = entry_bytes(key, value);
            if size + entry > MAX_FRAME_BYTES - 4_096 && size > 0 {
                let part = u16::try_from(frames.len()).unwrap_or(u16::MAX);
                frames.push(DeltaFrame {
                    part,
                    ..empty.clone()
                });
                size = 0;
            }
            size += entry;
            if let Some(frame) = frames.last_mut() {
                let change: (EntryKey, _) = (key.clone(), value.cloned());
                frame.changes.push(change);
            }
        }
        let last = frames.len() - 1;
        let numbered = frames.into_iter().enumerate();
        numbered
            .map(|(number, mut frame)| {
                frame.is_last = number == last;
                Frame::Delta(frame).encode()
            })
            .collect()
    }

    /// The epoch that is on its way the longest was committed. `first_piece` is where its first piece lies.
    pub(crate) fn committed(&mut self, had_pieces: bool, first_piece: Option<i64>) {
        self.committed_epoch += 1;
        self.state.committed(self.committed_epoch);
        self.chain.committed();
        self.sealed_rejection = None;
        if let Some(mark) = self.sealed_marks.pop_front() {
            self.mark = mark;
        }
        for input in &mut self.inputs {
            if let Some(position) = input.sealed.pop_front() {
                input.committed = position;
            }
        }
        let inputs = &self.inputs;
        self.rejections.retain(|(input, offset), _| {
            inputs
                .get(*input)
                .is_some_and(|one| one.committed <= *offset)
        });
        if let Some(mut roll) = self.sealed_rolls.pop_front() {
            if had_pieces {
                roll.placed(first_piece);
                // The open epoch has not touched it yet: it does so when it is sealed.
                self.roll.placed(first_piece);
            }
            if roll.base() > self.committed_roll.base() || is(PlantedStageBug::BaseCutTooEarly) {
                self.cut_at = match is(PlantedStageBug::BaseCutTooEarly) {
                    true => first_piece,
                    false => Some(roll.base()),
                };
            }
            self.committed_roll = roll;
        }
    }

    /// Where the changelog can be cut now, told once.
    pub(crate) fn cut(&mut self) -> Option<i64> {
        self.cut_at.take()
    }

    /// Takes back everything that is not committed. Where to read on is [`TaskInput::committed`].
    pub(crate) fn abort(&mut self, now_ms: i64) {
        if !is(PlantedStageBug::StateAheadOfEpoch) {
            self.state.abort();
        }
        self.queue.clear();
        self.marker = None;
        self.out = ChainOutput::default();
        self.records = 0;
        self.last = None;
        self.is_fired = false;
        self.is_finished = false;
        self.has_due = false;
        self.epoch = self.committed_epoch;
        self.roll = self.committed_roll.clone();
        self.sealed_rolls.clear();
        self.sealed_marks.clear();
        if self.sealed_rejection.is_some() {
            self.timer_rejection = self.sealed_rejection.take();
        }
        for input in &mut self.inputs {
            input.position = input.committed;
            input.sealed.clear();
        }
        self.time(now_ms, now_ms);
        self.chain.aborted(&self.state);
    }

    /// The last epoch that the log has.
    pub(crate) fn committed_epoch(&self) -> u64 {
        self.committed_epoch
    }

    /// Whether nothing waits and nothing is due.
    pub(crate) fn is_at_rest(&self, now_ms: i64) -> bool {
        let due = self.chain.next_due(&self.state);
        !self.is_open()
            && self.queue.is_empty()
            && !self.has_due
            && due.is_none_or(|due| due > now_ms)
    }

    /// The committed state of a task that is let go.
    pub(crate) fn leave(self, now_ms: i64) -> LeftTask {
        let inputs = self.inputs.into_iter();
        LeftTask {
            left_ms: now_ms,
            mark: self.mark,
            committed: inputs.map(|input| (input.at, input.committed)).collect(),
            recovered: RecoveredTask {
                backend: self.state.into_backend(),
                epoch: self.committed_epoch,
                base: self.committed_roll.base(),
                clock_ms: self.clock_ms,
                replayed_bytes: self.committed_roll.bytes(),
            },
        }
    }
}

/// The committed state of a task that was let go. It is used again if nobody went on from there.
#[derive(Debug)]
pub(crate) struct LeftTask {
    pub(crate) left_ms: i64,
    mark: String,
    committed: Vec<(TopicPartition, i64)>,
    pub(crate) recovered: RecoveredTask,
}

impl LeftTask {
    /// Whether these assignments begin where it ended. Each commit has a text of its own.
    pub(crate) fn is_at(&self, assignments: &[Assignment]) -> bool {
        let is_same = |assignment: &Assignment| {
            let committed = assignment.committed.as_ref();
            committed.is_some_and(|committed| {
                committed.metadata == self.mark
                    && self
                        .committed
                        .contains(&(assignment.at.clone(), committed.next.0))
            })
        };
        !self.mark.is_empty() && assignments.iter().all(is_same)
    }
}

/// The postings of each input.
fn by_input(moves: &[StageMove], inputs: usize) -> Vec<Vec<Posting>> {
    let mut moved: Vec<BTreeMap<(Place, Place), Vec<EventId>>> = vec![BTreeMap::new(); inputs];
    for one in moves {
        if let Some(of_input) = moved.get_mut(one.input)
            && one.from != one.to
        {
            let key = (one.from.clone(), one.to.clone());
            of_input.entry(key).or_default().push(one.id);
        }
    }
    let posted = moved.into_iter().map(|of_input| {
        let written = of_input
            .into_iter()
            .flat_map(|((from, to), ids)| postings(ids, Some(from), Some(to)));
        written.collect()
    });
    posted.collect()
}
