//! The end of an epoch: it is closed, and its commit is answered.

use tidegate_core::books::Place;
use tidegate_core::dead_letter::name;
use tidegate_core::{Classify, Code, Failure, FailureClass, Offset, Topic};
use tidegate_log::{Append, Commit, LogError, RecordPosition, TopicPartition};

use super::{
    Effect, FIRST_WAIT_MS, IDLE_COMMIT_MS, InFlight, LONGEST_WAIT_MS, Machine, MachineOptions,
    SentTask,
};
use crate::aligner::Aligner;
use crate::chain::OutputPartition;
use crate::task::StageTask;

impl Machine {
    pub(super) fn committed(
        &mut self,
        positions: Option<&[RecordPosition]>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(in_flight) = self.in_flight.take() else {
            return;
        };
        self.failures = 0;
        let usual = self.options.epoch_records;
        self.epoch_limit = self.epoch_limit.saturating_mul(2).min(usual);
        for sent in in_flight.tasks {
            let (partition, first_piece) = (sent.partition, sent.first_piece);
            let task = self.tasks.get_mut(&partition);
            let Some(task) = task.filter(|task| task.fence() == sent.fence) else {
                continue;
            };
            let position = |index: usize| Some(positions?.get(index)?.offset.0);
            task.committed(first_piece.is_some(), first_piece.and_then(position));
            if let Some(cut) = task.cut() {
                let at = TopicPartition::new(self.options.changelog.clone(), partition);
                effects.push(Effect::Cut(at, Offset(cut)));
            }
            for (at, offset) in task.cut_repartitions(usual) {
                effects.push(Effect::Cut(at, offset));
            }
        }
        self.news.metrics.extend(in_flight.news.metrics);
        for (reason, count) in in_flight.news.losses {
            *self.news.losses.entry(reason).or_default() += count;
        }
        if self.aligner == Aligner::Closed {
            self.aligned(effects);
        }
        let done = in_flight.counts;
        self.counts.epochs += 1;
        self.counts.records_in += done.records_in;
        self.counts.records_out += done.records_out;
        self.counts.dead_letters += done.dead_letters;
    }

    pub(super) fn not_committed(
        &mut self,
        error: &LogError,
        now_ms: i64,
        effects: &mut Vec<Effect>,
    ) {
        let is_taken_back = matches!(
            error,
            LogError::Fenced { .. }
                | LogError::PrecedingCommitFailed { .. }
                | LogError::OutcomeUnknown { .. }
                | LogError::Full { .. }
                | LogError::Overloaded { .. }
        );
        let sent = self.in_flight.take().unwrap_or_default();
        if is_about_content(error) {
            return match self.refuse_less(sent, error) {
                Ok(()) => self.take_back(now_ms, effects),
                Err(failure) => self.fail(failure, effects),
            };
        }
        if !is_taken_back && error.class() != FailureClass::Transient {
            let code = Code::from_static("stage.commit");
            let message = format!("an epoch cannot be committed: {error}");
            return self.fail(Failure::new(FailureClass::System, code, message), effects);
        }
        self.failures = self.failures.saturating_add(1);
        let wait = FIRST_WAIT_MS << self.failures.min(10).saturating_sub(1);
        self.wait_until_ms = now_ms.saturating_add(wait.min(LONGEST_WAIT_MS));
        self.take_back(now_ms, effects);
    }

    /// The log refuses what an epoch holds. Shorter epochs find the record that it refuses, which becomes a dead
    /// letter.
    fn refuse_less(&mut self, sent: InFlight, error: &LogError) -> Result<(), Failure> {
        let records: u64 = sent.tasks.iter().map(|task| task.records).sum();
        if self.epoch_limit > 1 {
            let refused = match records {
                0 => self.epoch_limit,
                some => some.min(self.epoch_limit),
            };
            self.epoch_limit = (refused / 2).max(1);
            return Ok(());
        }
        let mut is_found = false;
        for sent in sent.tasks {
            let task = self.tasks.get_mut(&sent.partition);
            let task = task.filter(|task| task.fence() == sent.fence);
            match (sent.last, task) {
                (Some(place), Some(task)) => task.refuse(place, refused_commit(error))?,
                (None, Some(task)) if sent.has_fired => task.refuse_timer(refused_commit(error))?,
                (None, Some(_)) => continue,
                // Somebody else has the task, and finds it out.
                (_, None) => {}
            }
            is_found = true;
        }
        match is_found {
            true => Ok(()),
            // There is nothing that could be left out.
            false => Err(refused_commit(error)),
        }
    }

    /// Drops everything that is not committed, and reads it again.
    pub(super) fn take_back(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        self.counts.aborted += 1;
        self.end_alignment("an epoch was taken back", effects);
        self.opened_ms = None;
        self.open_bytes = 0;
        for task in self.tasks.values_mut() {
            task.abort(now_ms);
            for input in &task.inputs {
                let to = Offset(input.committed);
                effects.push(Effect::Seek(input.at.clone(), input.fence, to));
            }
        }
    }

    /// Closes the open epoch of every task and sends it on its way.
    pub(super) fn close(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        let mut commit = Commit::default();
        let mut in_flight = InFlight::default();
        let partitions: Vec<i32> = self.tasks.keys().copied().collect();
        for partition in partitions {
            let Some(task) = self.tasks.get_mut(&partition) else {
                continue;
            };
            let is_idle = now_ms.saturating_sub(task.last_commit_ms) >= IDLE_COMMIT_MS;
            if !task.is_open() && !is_idle {
                continue;
            }
            let (records, last) = (task.records, task.last());
            let has_fired = task.has_fired();
            in_flight.counts.records_in += records;
            let outputs = std::mem::take(&mut task.out.outputs);
            in_flight.news.metrics.append(&mut task.out.metrics);
            for one in &task.out.moves {
                if let Place::Lost(reason) = &one.to {
                    *in_flight.news.losses.entry(reason.clone()).or_default() += 1;
                }
            }
            let letters = outputs
                .iter()
                .filter(|output| output.dead_letter_of.is_some());
            in_flight.counts.dead_letters += letters.count() as u64;
            let appends = match appends(&self.options, &mut self.round_robin, outputs) {
                Ok(appends) => appends,
                Err(failure) => return self.fail(failure, effects),
            };
            in_flight.counts.records_out += appends.len() as u64;
            let Some(task) = self.tasks.get_mut(&partition) else {
                continue;
            };
            let changelog = &self.options.changelog;
            let of_changelog = (changelog, self.options.partitions, self.options.rolls_base);
            let sealed = task.seal(of_changelog, appends, now_ms);
            let before = commit.appends.len();
            in_flight.tasks.push(SentTask {
                partition,
                fence: task.fence(),
                records,
                last,
                has_fired,
                first_piece: sealed.first_piece.map(|index| before + index),
            });
            commit.appends.extend(sealed.appends);
            commit.offsets.extend(sealed.offsets);
        }
        self.opened_ms = None;
        self.open_bytes = 0;
        let is_aligned = self.aligner.is_aligned();
        if is_aligned {
            self.aligner.close();
            self.tasks.values_mut().for_each(StageTask::unmark);
        }
        if is_aligned && in_flight.tasks.is_empty() {
            self.aligned(effects);
        }
        if !in_flight.tasks.is_empty() {
            self.in_flight = Some(in_flight);
            effects.push(Effect::Commit(commit));
        }
    }
}

/// Whether the log refuses an epoch for what it holds, whoever sends it and whenever.
fn is_about_content(error: &LogError) -> bool {
    matches!(
        error,
        LogError::RecordTooLarge { .. }
            | LogError::HeaderTooLong { .. }
            | LogError::CommitTooLarge { .. }
            | LogError::RecordRefused { .. }
    )
}

fn refused_commit(error: &LogError) -> Failure {
    let code = Code::from_static("stage.commit.refused");
    let message = format!("an epoch cannot be committed: {error}");
    Failure::new(FailureClass::System, code, message)
}

/// The outputs as appends to their topics.
fn appends(
    options: &MachineOptions,
    round_robin: &mut u32,
    outputs: Vec<crate::chain::StageOutput>,
) -> Result<Vec<Append>, Failure> {
    let mut appends = Vec::with_capacity(outputs.len());
    for output in outputs {
        let Some(sink) = options.sinks.get(&*output.stream) else {
            let code = Code::from_static("stage.stream.unknown");
            let message = format!("the stream `{}` has no topic", output.stream);
            return Err(Failure::new(FailureClass::System, code, message));
        };
        let mut record = tidegate_log::Record {
            key: output.key,
            value: output.value,
            headers: output.headers,
            timestamp_ms: output.timestamp_ms,
        };
        if let Some(input) = output.dead_letter_of {
            record = record.header(name::GROUP, &options.group);
            let topic = options.inputs.get(input).map_or("", Topic::as_str);
            record = record.header(name::INPUT, topic);
            for (input, id) in output.stands_for {
                let topic = options.inputs.get(input).map_or("", Topic::as_str);
                record = record.header(name::STANDS_FOR, name::stands_for(id, topic));
            }
        }
        let record = record.event_id(output.id);
        let append = Append::new(sink.topic.clone(), record);
        let partitions = i32::try_from(sink.partitions).unwrap_or(1).max(1);
        match output.to {
            OutputPartition::ByKey => appends.push(append),
            OutputPartition::RoundRobin => {
                *round_robin = round_robin.wrapping_add(1);
                let partition = *round_robin % sink.partitions.max(1);
                let partition = i32::try_from(partition).unwrap_or(0);
                appends.push(append.partition(partition));
            }
            OutputPartition::Broadcast => {
                let to = (0..partitions).map(|partition| append.clone().partition(partition));
                appends.extend(to);
            }
        }
    }
    Ok(appends)
}
