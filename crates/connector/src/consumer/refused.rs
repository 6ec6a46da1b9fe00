//! Hand-offs and outputs that the log refuses for good: one of them must not hold the others up.

use tidegate_core::books::Place;
use tidegate_core::dead_letter::Reason;
use tidegate_core::{Failure, PauseReason};
use tidegate_log::{LogError, TopicPartition};

use super::Consumer;
use crate::commit::CommitPart;
use crate::lanes::SettledRecord;

/// A record of a failed commit that writes something.
pub(super) struct HandOffTried {
    at: TopicPartition,
    offset: i64,
    bytes: usize,
}

/// Everything in a part of a commit that writes something.
pub(super) fn hand_offs(part: &CommitPart) -> impl Iterator<Item = HandOffTried> + '_ {
    let settled = part.taken.iter().chain(&part.leaving);
    let writing = settled.filter(|(_, settled)| !settled.appends.is_empty());
    writing.map(|(offset, settled)| HandOffTried {
        at: part.at.clone(),
        offset: *offset,
        bytes: settled.size(),
    })
}

/// Whether the records of a commit are at fault, so that nothing changes if it is made again.
fn is_refusal(error: &LogError) -> bool {
    matches!(
        error,
        LogError::RecordTooLarge { .. }
            | LogError::CommitTooLarge { .. }
            | LogError::HeaderTooLong { .. }
            | LogError::RecordRefused { .. }
            | LogError::UnknownPartition { .. }
    )
}

impl Consumer {
    /// Makes a commit smaller that the log refuses, until one record is left, and gives that one up. Says whether
    /// something was done.
    pub(super) fn on_refused(&mut self, error: &LogError, tried: &[HandOffTried]) -> bool {
        if !is_refusal(error) || tried.is_empty() {
            return false;
        }
        let binding = &self.binding.options.name;
        tracing::warn!(binding, records = tried.len(), code = %error.code(), %error, "a commit is refused for good");
        match tried {
            [one] => {
                self.room.is_alone = false;
                self.refuse(one, error);
            }
            all if matches!(error, LogError::CommitTooLarge { .. }) => {
                let bytes: usize = all.iter().map(|tried| tried.bytes).sum();
                self.room.bytes = self.room.bytes.min(bytes) / 2;
            }
            _ => self.room.is_alone = true,
        }
        self.trouble = None;
        self.commit_due = Some(self.now());
        true
    }

    /// The log took everything that was to be written.
    pub(super) fn is_written(&mut self) {
        self.room.is_alone = false;
    }

    /// A record whose outputs are refused is a dead letter. One whose hand-off is refused is shrunk, kept in the
    /// store, or kept where it is while the binding is paused.
    fn refuse(&mut self, tried: &HandOffTried, error: &LogError) {
        let HandOffTried { at, offset, .. } = tried;
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        let settled = match partition.pending.remove(offset) {
            Some(settled) => {
                partition.tracker.reopen(*offset);
                partition.letters.remove(offset);
                Some(settled)
            }
            None => partition
                .park
                .as_mut()
                .and_then(|park| park.take_refused(*offset)),
        };
        // A row that nobody has in hand stays in the store.
        let Some(SettledRecord {
            work: Some(mut work),
            mut appends,
            moved,
            reason,
            ..
        }) = settled
        else {
            return;
        };
        let is_output = matches!(moved, Some((_, Place::Delivered)));
        let kept = match (is_output, error, appends.pop()) {
            (true, _, _) => {
                let failure = Failure::of(error, error.code(), error.hint());
                self.hand_to_dlt(at, *work, Reason::NonRetryable, failure)
            }
            (false, LogError::RecordTooLarge { topic, limit, .. }, Some(append)) => {
                let below = append.record.size().saturating_sub(1) as u64;
                self.binding.limit_records(topic, (*limit).min(below));
                self.hand_off(at, *work, topic, append.record, reason)
            }
            (false, _, _) => {
                let why = format!("record {offset} of {at} is kept: {error}");
                tracing::error!(binding = self.binding.options.name, why, "paused");
                self.binding.gate.add(PauseReason::Operator, Some(why));
                work.attempt = 0;
                Some(*work)
            }
        };
        let mode = self.binding.options.concurrency_mode;
        if let Some(kept) = kept
            && let Some(partition) = self.partitions.get_mut(at)
        {
            let lane = partition.put_first(mode, kept);
            self.make_ready(at, &lane);
        }
    }
}
