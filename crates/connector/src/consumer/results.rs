//! Results of runs and of commits.

use std::time::Duration;

use tidegate_core::Backoff;
use tidegate_core::books::Place;
use tidegate_core::dead_letter::Reason;
use tidegate_log::{Append, LogError, TopicPartition};

use super::assign::ends_session;
use super::refused::{HandOffTried, hand_offs};
use super::{CommitTrouble, CommitUnderWay, Consumer, SessionEnd};
use crate::attempt::{HandledRecord, RunReport, RunResults};
use crate::commit::{CommitPart, FailedCommit};
use crate::lanes::{LaneKey, LaneRecord, SettledRecord, Work};
use crate::options::{AckMode, HandOff, OrderingMode};
use crate::parked::PartitionPark;
use crate::planted_bugs::{PlantedBug, is};
use crate::telemetry;

/// How long hand-offs wait for company.
const HAND_OFF_GROUP: Duration = Duration::from_millis(5);
/// The longest time that settled records wait for the rest of their batch, with `ack-mode: MANUAL`.
const MANUAL_WAIT: Duration = Duration::from_secs(1);

/// Whether records of an append that failed may lie in their topics.
fn may_be_written(error: &LogError) -> bool {
    !matches!(
        error,
        LogError::UnknownTopic { .. }
            | LogError::UnknownPartition { .. }
            | LogError::RecordTooLarge { .. }
            | LogError::HeaderTooLong { .. }
            | LogError::CommitTooLarge { .. }
            | LogError::Full { .. }
            | LogError::Overloaded { .. }
            | LogError::Disk { .. }
    )
}

impl Consumer {
    pub(super) fn on_report(&mut self, report: RunReport) {
        let RunReport {
            source,
            fence,
            lane,
            results,
            ended,
        } = report;
        let at = source.at.clone();
        let is_ours = self
            .partitions
            .get(&at)
            .is_some_and(|found| found.fence == fence);
        if !is_ours {
            return;
        }
        let RunResults {
            handled,
            sent,
            failed,
            mut kept,
        } = results;
        if !handled.is_empty() || !sent.is_empty() {
            self.end_probe(&at, &lane);
        }
        self.settle_handled(&at, &lane, handled);
        for (work, outputs) in sent {
            self.settle(&at, work, Place::Delivered, outputs, None);
        }
        for (work, failure) in failed {
            let stays = self.on_failure(&at, &lane, work, failure);
            kept.extend(stays.map(LaneRecord::Known));
        }
        let now = self.now();
        let Some(partition) = self.partitions.get_mut(&at) else {
            return;
        };
        kept.sort_by_key(LaneRecord::offset);
        partition.put_back(&lane, kept);
        let followers = match lane.is_parked() {
            true => Vec::new(),
            false => partition.take_followers(&lane),
        };
        partition.follow_batch(now);
        if let Some(queue) = ended {
            partition.running -= 1;
            self.running -= 1;
            if lane == LaneKey::Partition {
                partition.spare = queue;
            }
            if let Some(lane) = partition.lanes.get_mut(&lane) {
                lane.running = None;
            }
            partition.tidy(&lane);
            self.make_ready(&at, &lane);
        }
        for work in followers {
            self.park_behind(&at, work);
        }
        self.want_commit(&at);
        // A key that is blocked from now on is told at once.
        if let Some(partition) = self.partitions.get(&at).filter(|_| lane.is_parked()) {
            self.show(partition);
        }
    }

    /// Records were handled, and nothing is to be written for them.
    fn settle_handled(&mut self, at: &TopicPartition, lane: &LaneKey, records: Vec<HandledRecord>) {
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        match (lane.is_parked(), &mut partition.park) {
            // A row is settled by the store.
            (true, Some(park)) => records.iter().for_each(|done| park.deliver(done.offset)),
            _ => partition.settle_handled(records),
        }
    }

    /// Where a record is by the books.
    pub(super) fn place_of(&self, work: &Work) -> Place {
        match work.is_parked {
            true => Place::Parked,
            false => self.seat.place(),
        }
    }

    /// A record is settled, with these records to be written.
    pub(super) fn settle(
        &mut self,
        at: &TopicPartition,
        work: Work,
        to: Place,
        appends: Vec<Append>,
        reason: Option<Reason>,
    ) {
        let from = self.place_of(&work);
        let mode = self.binding.options.concurrency_mode;
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        if partition.is_ordered() && !work.is_parked && !appends.is_empty() {
            let lane = LaneKey::of(mode, work.record.key(), work.offset());
            partition.letters.insert(work.offset(), lane);
        }
        let (offset, is_parked) = (work.offset(), work.is_parked);
        let settled = SettledRecord {
            event_id: work.record.event_id(),
            // A record that goes from tier to tier stays where it is in the books.
            moved: (from != to).then_some((from, to)),
            reason,
            work: (!appends.is_empty()).then(|| Box::new(work)),
            appends,
        };
        match &mut partition.park {
            // A row is settled by the store, or by a commit that writes something as well.
            Some(park) if is_parked && settled.appends.is_empty() => park.deliver(offset),
            Some(park) if is_parked => park.leave(offset, settled),
            _ => partition.settle(offset, settled),
        }
    }

    /// Says when a partition is to be committed.
    pub(super) fn want_commit(&mut self, at: &TopicPartition) {
        let now = self.now();
        let options = &self.binding.options;
        let Some(partition) = self.partitions.get(at) else {
            return;
        };
        let next = partition.tracker.next();
        let held = partition.committed.as_ref().map(|(next, _)| *next);
        let moves = next > held.unwrap_or(partition.tracker.position());
        let park = partition.park.as_ref();
        let leaves = park.is_some_and(PartitionPark::has_leaving);
        if !partition.has_settled() && !moves && !leaves {
            return;
        }
        let mut pending = partition.pending.values();
        let has_hand_off = leaves || pending.any(|one| !one.appends.is_empty());
        // The next record of an ordered key begins once the log has the letter of the one before it.
        let holds_key = leaves || !partition.letters.is_empty();
        let is_whole = partition.tracker.open_count() == 0
            || partition.pending.len() + partition.handled.len() >= options.max_poll_records;
        let due = match options.ack_mode {
            AckMode::Manual if !is_whole && !holds_key => now + MANUAL_WAIT,
            AckMode::Manual | AckMode::ManualImmediate if has_hand_off => now + HAND_OFF_GROUP,
            AckMode::Manual | AckMode::ManualImmediate => now,
        };
        self.commit_due = Some(self.commit_due.map_or(due, |before| before.min(due)));
    }

    pub(super) fn on_commit(&mut self, made: Result<(), FailedCommit>) -> Option<SessionEnd> {
        let CommitUnderWay {
            parts,
            has_hand_offs,
            ..
        } = self.commit.take()?;
        match made {
            Ok(()) => {
                self.trouble = self
                    .trouble
                    .take()
                    .filter(|_| !has_hand_offs && self.has_blocked());
                if self.trouble.is_none() {
                    self.binding.status.lock().commits_again(&self.seat);
                }
                if !self.has_blocked() {
                    self.is_written();
                }
                self.committer.is_in_doubt &= !has_hand_offs;
                for part in parts {
                    self.committed(part);
                }
                None
            }
            Err(failed) => self.on_failed_commit(failed, parts, has_hand_offs),
        }
    }

    /// Whether hand-offs still wait for the commit that failed.
    fn has_blocked(&self) -> bool {
        let mut settled = self
            .partitions
            .values()
            .flat_map(|found| found.pending.values());
        let mut parks = self
            .partitions
            .values()
            .filter_map(|found| found.park.as_ref());
        settled.any(|settled| !settled.appends.is_empty()) || parks.any(PartitionPark::has_leaving)
    }

    fn committed(&mut self, part: CommitPart) {
        let now = self.now();
        let binding = self.binding.options.name.clone();
        let CommitPart {
            at,
            fence,
            next,
            text,
            taken,
            handled,
            leaving,
            progress,
        } = part;
        let delivered =
            |settled: &&SettledRecord| matches!(&settled.moved, Some((_, Place::Delivered)));
        let settled = || taken.values().chain(leaving.values());
        let count = (settled().filter(delivered).count() + handled.len()) as u64;
        if count > 0 {
            telemetry::processed(&binding, &at.topic, at.partition, count);
        }
        for reason in settled().filter_map(|settled| settled.reason) {
            telemetry::dead_lettered(&binding, &self.binding.options.topic, reason);
        }
        let Some(partition) = self
            .partitions
            .get_mut(&at)
            .filter(|found| found.fence == fence)
        else {
            return;
        };
        if partition.tracker.position() != next || partition.tracker.open_count() == 0 {
            partition.standing_since = now;
        }
        partition
            .letters
            .retain(|offset, _| !taken.contains_key(offset));
        partition.tracker.committed(next);
        partition.committed = Some((next, text));
        partition.committed_at = now;
        let mut ready = Vec::new();
        if let Some(park) = &mut partition.park {
            park.name_progress(progress, next);
            park.gave_up(leaving.into_keys());
            ready.extend(taken.keys().filter_map(|offset| park.committed(*offset)));
        }
        self.begin_parked(&at, ready);
        self.want_commit(&at);
        if let Some(partition) = self.partitions.get(&at) {
            self.show(partition);
        }
    }

    fn on_failed_commit(
        &mut self,
        failed: FailedCommit,
        parts: Vec<CommitPart>,
        has_hand_offs: bool,
    ) -> Option<SessionEnd> {
        let FailedCommit {
            error,
            is_handed_off,
        } = failed;
        let binding = &self.binding.options.name;
        telemetry::commit_failed(binding, &error.code());
        let is_early = self.binding.options.hand_off == HandOff::AtLeastOnce;
        let is_in_doubt = is_early && has_hand_offs && !is_handed_off && may_be_written(&error);
        self.committer.is_in_doubt |= is_in_doubt;
        let tried: Vec<HandOffTried> = match is_handed_off {
            true => Vec::new(),
            false => parts.iter().flat_map(hand_offs).collect(),
        };
        for part in parts {
            let found = self.partitions.get_mut(&part.at);
            let Some(partition) = found.filter(|found| found.fence == part.fence) else {
                continue;
            };
            let (mut taken, mut leaving) = (part.taken, part.leaving);
            let is_missing = matches!(error, LogError::UnknownTopic { .. });
            if is_handed_off || (is_missing && is(PlantedBug::MissingTopicPassed)) {
                // They lie in their topics; only the offset is missing.
                let all = taken.values_mut().chain(leaving.values_mut());
                all.for_each(|settled| settled.appends.clear());
            }
            partition.pending.append(&mut taken);
            partition.handled.extend(part.handled);
            for (offset, settled) in leaving {
                if let Some(park) = &mut partition.park {
                    park.leave(offset, settled);
                }
            }
        }
        if let LogError::Fenced { at } = &error {
            tracing::warn!(binding, %at, "a commit came too late; the partition is not ours any more");
            let at = at.clone();
            self.forget(&at);
            self.commit_due = Some(self.now());
            return None;
        }
        if ends_session(&error) {
            return Some(SessionEnd::Lost(error));
        }
        if self.on_refused(&error, &tried) {
            return None;
        }
        let retries = self
            .trouble
            .as_ref()
            .map_or(0, |trouble| trouble.retries + 1);
        let backoff =
            Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(60));
        let binding = &self.binding.options.name;
        tracing::warn!(binding, retries, %error, "a commit failed; its records are kept");
        self.binding
            .status
            .lock()
            .commit_failed(&self.seat, error.to_string());
        self.trouble = Some(CommitTrouble {
            retries,
            until: self.now() + backoff.wait_without_jitter(retries),
            // A copy that may be there names the commit before it: there must be no other in between.
            tries_without: has_hand_offs
                && !is_in_doubt
                && self.binding.options.ordering != OrderingMode::KeyOrdered,
        });
        None
    }
}
