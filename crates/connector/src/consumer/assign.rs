//! Partitions come and go, and their records come in.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidegate_core::Offset;
use tidegate_core::books::{LossReason, Place};
use tidegate_log::{
    Assignment, Batch, Fence, LogError, SessionEvent, StartAt, StoredRecord, TopicPartition,
};

use super::{Consumer, RELEASE_SHARE, RELEASE_TIMEOUT, SessionEnd};
use crate::commit::CommitPlan;
use crate::handler::{ConsumedRecord, RecordSource};
use crate::hop::{self, RetryHistory};
use crate::lanes::{DueTime, FreshRecord, LaneKey, LaneRecord, PartitionWork, SettledRecord, Work};
use crate::marks::Ranges;
use crate::options::HandOff;
use crate::parked::PartitionPark;
use crate::planted_bugs::{PlantedBug, is};
use crate::progress::{self, CommitNotes};
use crate::telemetry;

/// Records that a broker removed before they were read.
const LOG_RETENTION: LossReason = LossReason::from_static("log_retention");

impl Consumer {
    pub(super) fn on_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Assigned(assignments) => {
                for assignment in assignments {
                    self.assign(assignment);
                }
            }
            SessionEvent::Revoking(partitions) => {
                let by = self.now() + RELEASE_TIMEOUT.mul_f64(RELEASE_SHARE);
                for at in partitions {
                    let found = self.partitions.entry(at);
                    found.and_modify(|partition| {
                        partition.let_go_by = Some(by);
                        partition.stop_runs();
                    });
                }
            }
            SessionEvent::Lost(partitions) => {
                for at in &partitions {
                    tracing::warn!(binding = self.binding.options.name, %at, "a partition was lost");
                    if is(PlantedBug::FlushAfterRevoke) {
                        self.flush_all_the_same(at);
                    }
                    self.forget(at);
                }
            }
            SessionEvent::Records { fence, batch } => self.on_records(fence, batch),
        }
    }

    /// Only ever called with a bug that is planted.
    fn flush_all_the_same(&mut self, at: &TopicPartition) {
        let Some(partition) = self.partitions.get(at) else {
            return;
        };
        let settled = partition.pending.values();
        let appends = settled
            .flat_map(|settled| settled.appends.clone())
            .collect();
        let log = Arc::clone(&self.binding.log);
        let flush = async move {
            log.append(appends).await.ok();
        };
        drop(self.binding.spawn.spawn("flush", Box::pin(flush)));
    }

    fn assign(&mut self, assignment: Assignment) {
        let Assignment {
            at,
            fence,
            committed,
            position,
        } = assignment;
        // The rest of an earlier assignment is not ours any more.
        self.forget(&at);
        let binding = &self.binding.options.name;
        let told = committed.as_ref().map(|held| {
            progress::read(&at, held.next.0, &held.metadata).unwrap_or_else(|| {
                tracing::warn!(
                    binding, %at, next = %held.next,
                    "the text of the commit is not ours; everything above it is handled again"
                );
                telemetry::marks_ignored(binding);
                (Ranges::new(), CommitNotes::default())
            })
        });
        let (ranges, notes) = told.unwrap_or_default();
        let held = committed.map(|held| (held.next.0, held.metadata));
        tracing::info!(binding, %at, %position, "assigned");
        let cluster = self.binding.log.cluster();
        let source = RecordSource::new(at.clone(), Arc::clone(&self.name), cluster);
        let mut work = PartitionWork::new(
            Arc::new(source),
            fence,
            position.0,
            ranges.clone(),
            held,
            self.now(),
        );
        // A pause of an earlier assignment holds in the session until it is resumed.
        work.is_held_back = true;
        self.begin_park(&mut work, ranges, notes);
        if self.binding.options.hand_off == HandOff::AtLeastOnce {
            (work.leaves_copies, work.is_searching) = (true, true);
            // The session hands records out until it is paused.
            work.is_held_back = false;
        }
        self.show(&work);
        self.partitions.insert(at, work);
    }

    /// Forgets a partition: nothing of it is settled or committed any more.
    pub(super) fn forget(&mut self, at: &TopicPartition) {
        if let Some(mut partition) = self.partitions.remove(at) {
            self.running -= partition.running;
            let park = partition.park.as_mut();
            if let Some(lease) = park.and_then(PartitionPark::take_lease) {
                self.release_later(lease);
            }
            if partition.has_probe() {
                self.binding.gate.end_probe();
            }
            self.binding.status.lock().gone(&self.seat, at);
        }
    }

    /// The session is over.
    pub(super) fn forget_all(&mut self) {
        let all: Vec<TopicPartition> = self.partitions.keys().cloned().collect();
        for at in &all {
            self.forget(at);
        }
    }

    pub(super) fn on_records(&mut self, fence: Fence, batch: Batch) {
        let is_early = |found: &&mut PartitionWork| found.fence == fence && !found.is_open();
        if let Some(early) = self.partitions.get_mut(&batch.at).filter(is_early) {
            early.early.push(batch);
            return;
        }
        let Batch { at, records, next } = batch;
        let now = self.now();
        let is_ours =
            |found: &&mut PartitionWork| found.fence == fence && found.let_go_by.is_none();
        let Some(partition) = self.partitions.get_mut(&at).filter(is_ours) else {
            return;
        };
        if self.stop_by.is_some() {
            return;
        }
        telemetry::batch(&self.binding.options.name, records.len());
        let was_idle = partition.tracker.open_count() == 0;
        if partition.leaves_copies && self.seat.tier.0 > 0 {
            let group = &self.binding.options.group;
            partition.copies.note_all(&records, group);
        }
        let new = partition.hand_out(records);
        partition.tracker.end_batch(next.0);
        if was_idle {
            partition.standing_since = now;
        }
        if partition.batch.is_none() && partition.tracker.open_count() > 0 {
            partition.batch = Some((now, next.0));
        }
        self.take_in(&at, new, now);
        // Also records that were settled before move the offset.
        self.want_commit(&at);
        if let Some(partition) = self.partitions.get(&at) {
            self.show(partition);
        }
    }

    fn take_in(&mut self, at: &TopicPartition, records: Vec<StoredRecord>, now: Duration) {
        let now_ms = self.binding.clock.now_ms();
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        let is_plain =
            self.seat.tier.0 == 0 && partition.copies.is_empty() && !partition.is_ordered();
        if !is_plain {
            for stored in records {
                self.take_in_one(at, stored, now, now_ms);
            }
            return;
        }
        let fresh = records.into_iter().map(|stored| {
            LaneRecord::Fresh(FreshRecord {
                stored,
                received_ms: now_ms,
            })
        });
        let keys = partition.enqueue(self.binding.options.concurrency_mode, fresh);
        for key in keys {
            self.make_ready(at, &key);
        }
    }

    /// Takes a record in that may not be for its handler.
    fn take_in_one(
        &mut self,
        at: &TopicPartition,
        stored: StoredRecord,
        now: Duration,
        now_ms: u64,
    ) {
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        let binding = &self.binding;
        let tier = self.seat.tier;
        let event_id = partition.source.event_id(&stored);
        let offset = stored.offset.0;
        let mut due = None;
        let mut history = None;
        if tier.0 > 0 {
            let read = RetryHistory::read(at, &stored, tier);
            let own = &binding.options.group;
            let is_foreign = read
                .group
                .as_deref()
                .is_some_and(|group| group != own.as_str());
            let is_second = partition.leaves_copies
                && hop::copy_name(&stored.record, own)
                    .is_some_and(|name| partition.copies.is_second(&name, offset));
            if is_foreign || is_second {
                // Another group's record is in the books of that group, and a second copy is in no books.
                partition.settle(offset, SettledRecord::silent(event_id, None));
                return;
            }
            let delay = binding.options.delay(tier);
            let handed = read.handed_ms.unwrap_or(stored.record.timestamp_ms);
            let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            due = Some(DueTime {
                at_ms: handed.saturating_add(delay_ms),
                at_latest: now + delay,
            });
            history = Some(Box::new(read));
        }
        if let Some(place) = partition
            .copies
            .take_written(offset, event_id, &stored.record)
        {
            tracing::info!(
                binding = binding.options.name, %at, offset, event = %event_id, place = %place,
                "handed off before a crash; settled by that copy"
            );
            let from = match tier.0 {
                0 => Place::Queued,
                _ => Place::Retrying,
            };
            let moved = (from != place).then_some((from, place));
            partition.settle(offset, SettledRecord::silent(event_id, moved));
            return;
        }
        let source = Arc::clone(&partition.source);
        let record = ConsumedRecord::new(source, stored, event_id, tier, now_ms);
        let work = Work {
            history,
            due,
            ..Work::new(Arc::new(record))
        };
        if partition
            .park
            .as_ref()
            .is_some_and(|park| park.has_key(work.record.key()))
        {
            self.park_behind(at, work);
            return;
        }
        let record = std::iter::once(LaneRecord::Known(work));
        let keys = partition.enqueue(binding.options.concurrency_mode, record);
        for key in keys {
            self.make_ready(at, &key);
        }
    }

    /// Everything is to be let go.
    pub(super) fn begin_stop(&mut self) {
        self.stop_by = Some(self.now() + self.binding.options.stop_timeout.mul_f64(RELEASE_SHARE));
        for partition in self.partitions.values() {
            partition.stop_runs();
        }
    }

    /// Lets partitions go whose work is done, or whose time is up; at a stop, all of them.
    pub(super) async fn let_go(&mut self) -> Option<SessionEnd> {
        let now = self.now();
        // Everything that is settled is committed, unless a commit fails.
        let is_committed = self.commit.is_none() && self.trouble.is_none();
        let is_parked = self.partitions.values().all(PartitionWork::is_park_settled);
        if let Some(by) = self.stop_by
            && (now >= by || (is_committed && is_parked && self.running == 0))
        {
            let all: Vec<TopicPartition> = self.partitions.keys().cloned().collect();
            self.release_leases(&all).await;
            self.session.close().await.ok();
            return Some(SessionEnd::Stopped);
        }
        let is_done = |partition: &PartitionWork| {
            let by = partition.let_go_by?;
            let is_done = is_committed && partition.is_park_settled() && partition.running == 0;
            (now >= by || is_done).then(|| partition.at.clone())
        };
        let done: Vec<TopicPartition> = self.partitions.values().filter_map(is_done).collect();
        if !done.is_empty() {
            self.release_leases(&done).await;
            for at in &done {
                let next = self
                    .partitions
                    .get(at)
                    .map(|partition| partition.tracker.position());
                tracing::info!(binding = self.binding.options.name, %at, next, "let go");
                self.forget(at);
            }
            // If the session is gone, so are the partitions.
            self.session.release(&done).await.ok();
        }
        None
    }

    /// Gives the rest of a batch back that took too long.
    pub(super) async fn hand_back(&mut self) {
        let is_ready = |partition: &&mut PartitionWork| {
            partition.is_handing_back && partition.running == 0 && partition.let_go_by.is_none()
        };
        let mut seeks: Vec<(TopicPartition, Fence, i64)> = Vec::new();
        let mut kept: Vec<(TopicPartition, LaneKey)> = Vec::new();
        for partition in self.partitions.values_mut().filter(is_ready) {
            partition.is_handing_back = false;
            partition.stop = Arc::new(AtomicBool::new(false));
            partition.batch = None;
            if let Some(from) = partition.take_unbegun() {
                seeks.push((partition.at.clone(), partition.fence, from));
            }
            kept.extend(
                partition
                    .lanes
                    .keys()
                    .map(|key| (partition.at.clone(), key.clone())),
            );
        }
        for (at, key) in kept {
            self.make_ready(&at, &key);
        }
        for (at, fence, from) in seeks {
            // A partition that is not ours any more is handed out to somebody else anyway.
            self.session.seek(&at, fence, Offset(from)).await.ok();
        }
    }

    /// The next record of a partition is not there any more, or there is no offset to begin at. Its records in hand
    /// come first.
    pub(super) fn on_lost_records(
        &mut self,
        at: &TopicPartition,
        asked: Offset,
        start: Offset,
    ) -> Option<SessionEnd> {
        if asked == StartAt::NO_OFFSET {
            return Some(SessionEnd::Fatal(format!(
                "group `{}` has no committed offset for {at}, and `auto-offset-reset` is none",
                self.seat.group
            )));
        }
        if start <= asked {
            return Some(SessionEnd::Fatal(format!(
                "offset {asked} of {at} lies behind the end of the log"
            )));
        }
        // Of a partition that was let go the next owner finds out.
        let partition = self.partitions.get_mut(at)?;
        partition.lost_below = Some(start.0);
        None
    }

    /// Passes records that the log has removed, as soon as nothing before them is in hand; then the binding stops.
    pub(super) async fn pass_lost(&mut self) -> Option<SessionEnd> {
        if self.commit.is_some() || self.stop_by.is_some() {
            return None;
        }
        let is_alone = |found: &&PartitionWork| {
            found.lost_below.is_some()
                && found.let_go_by.is_none()
                && found.is_open()
                && found.tracker.in_hand() == 0
                && !found.has_settled()
        };
        let partition = self.partitions.values().find(is_alone)?;
        let (start, next) = (partition.lost_below?, partition.tracker.next());
        let new_id = || self.binding.new_progress_id();
        let plan = CommitPlan::passing(partition, start, LOG_RETENTION, new_id);
        let at = partition.at.clone();
        let why = format!(
            "offsets {next} up to {start} of {at} are gone (`log_retention`); `start` goes on at {start}"
        );
        let committer = self.committer.clone();
        match committer
            .make(plan.commit, plan.progress, plan.changed)
            .await
        {
            Ok(()) => {
                tracing::error!(
                    binding = self.binding.options.name, %at, next, start, reason = "log_retention",
                    "records were removed before they were read"
                );
                Some(SessionEnd::Fatal(why))
            }
            Err(failed) => Some(SessionEnd::Lost(failed.error)),
        }
    }

    /// Tells where a partition stands, for health and for people.
    pub(super) fn show(&self, partition: &PartitionWork) {
        self.binding.status.lock().shown(&self.seat, partition);
        if let Some(park) = &partition.park {
            let (binding, at) = (&self.binding.options.name, &partition.at);
            telemetry::parked(binding, at.partition, park.counts().0);
        }
    }
}

/// Whether an error of a commit means that this session is over.
pub(super) fn ends_session(error: &LogError) -> bool {
    matches!(
        error,
        LogError::Closed
            | LogError::Stopped { .. }
            | LogError::OffsetRegressed { .. }
            | LogError::OutOfRange { .. }
    )
}
