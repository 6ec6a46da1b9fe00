//! Records that wait in the store, and the calls of the store, one at a time.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::env::BoxFuture;
use tidegate_core::{Failure, Topic};
use tidegate_log::{Append, Fence, LogError, Record, StoredRecord, TopicPartition};
use tidegate_store::StoreError;

use super::{Consumer, SessionEnd};
use crate::handler::{ConsumedRecord, RecordSource};
use crate::hop::RetryHistory;
use crate::ladder::Rung;
use crate::lanes::{DueTime, LaneKey, PartitionWork, SettledRecord, Work};
use crate::marks::Ranges;
use crate::options::{BindingOptions, OrderingMode};
use crate::parked::{
    LoadedRows, ParkLease, ParkedIn, ParkedRow, ParkedStore, PartitionPark, ProgressRow,
    StoreCallKind,
};
use crate::planted_bugs::{PlantedBug, is};
use crate::progress::{self, CommitNotes, ProgressName};
use crate::telemetry;
use crate::tracker::OffsetTracker;

/// How long a lease is given back at the end, before it runs out by itself.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
/// A record of a blocked key is not handled before somebody gives it up.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A call of the store on its way.
pub(super) struct StoreCallUnderWay {
    call: StoreCall,
    future: BoxFuture<'static, Result<StoreAnswer, StoreError>>,
}

/// Which call it is.
pub(super) struct StoreCall {
    at: TopicPartition,
    fence: Fence,
    kind: StoreCallKind,
    began: Duration,
}

pub(super) enum StoreAnswer {
    Progress(Option<ProgressRow>),
    Loaded(Option<LoadedRows>),
    /// Whether the lease was still ours.
    Held(bool),
    Dropped,
}

/// The answer to the call under way; never without one.
pub(super) async fn answered(
    call: &mut Option<StoreCallUnderWay>,
) -> (StoreCall, Result<StoreAnswer, StoreError>) {
    let answer = match call {
        Some(under_way) => under_way.future.as_mut().await,
        None => std::future::pending().await,
    };
    match call.take() {
        Some(under_way) => (under_way.call, answer),
        None => std::future::pending().await,
    }
}

async fn make(
    store: Arc<dyn ParkedStore>,
    of: ParkedIn,
    owner: String,
    span: Duration,
    kind: StoreCallKind,
) -> Result<StoreAnswer, StoreError> {
    match kind {
        StoreCallKind::Progress(name) => {
            let row = store.progress(&of, name.id).await?;
            Ok(StoreAnswer::Progress(row))
        }
        StoreCallKind::Load => {
            let Some(lease) = store.acquire(&of, &owner, span).await? else {
                return Ok(StoreAnswer::Loaded(None));
            };
            let mut rows: Vec<ParkedRow> = Vec::new();
            loop {
                let above = rows.last().map_or(-1, |row| row.offset.0);
                let page = match store.rows(&of, above).await {
                    Ok(page) => page,
                    Err(error) => {
                        // The next try need not wait until it runs out.
                        store.release(&lease).await.ok();
                        return Err(error);
                    }
                };
                if page.is_empty() {
                    return Ok(StoreAnswer::Loaded(Some(LoadedRows { lease, rows })));
                }
                rows.extend(page);
            }
        }
        StoreCallKind::Renew(lease) => Ok(StoreAnswer::Held(store.renew(&lease, span).await?)),
        StoreCallKind::Change(lease, changes) => {
            Ok(StoreAnswer::Held(store.change(&lease, &changes).await?))
        }
        StoreCallKind::Drop(gone) => {
            store.drop_progress(&of, gone).await?;
            Ok(StoreAnswer::Dropped)
        }
    }
}

/// A record whose row is in the store.
fn as_parked(row: &ParkedRow, from: Place) -> SettledRecord {
    SettledRecord::silent(row.event_id, Some((from, Place::Parked)))
}

impl PartitionWork {
    /// Whether the store lets a lane begin.
    pub(super) fn may_begin(&self, key: &LaneKey, now: Duration, options: &BindingOptions) -> bool {
        let Some(park) = &self.park else { return true };
        let is_free = match key {
            LaneKey::ParkedKey(key) => !park.is_leaving(key),
            LaneKey::ParkedRecord(_) => true,
            // A record that fails now would have no place.
            // A dead letter that the log does not have yet is tried again after a crash.
            LaneKey::Partition | LaneKey::Key(_) | LaneKey::Record(_) => {
                !park.is_full(options.key_ordered.max_parked, usize::MAX)
                    && !self.letters.values().any(|lane| lane == key)
            }
        };
        is_free && park.flows(now)
    }

    /// Whether the store has nothing left to do about it.
    pub(super) fn is_park_settled(&self) -> bool {
        self.park.as_ref().is_none_or(PartitionPark::is_settled)
    }
}

impl Consumer {
    /// A partition begins: what its last commit says about the store.
    pub(super) fn begin_park(
        &mut self,
        work: &mut PartitionWork,
        ranges: Ranges,
        notes: CommitNotes,
    ) {
        if self.binding.store.is_none() {
            if let Some(named) = notes.progress {
                let position = work.tracker.position();
                work.tracker = OffsetTracker::new(position, Ranges::new());
                self.must_stop = self.lost_progress(&work.at, named, "and there is no store");
            }
            return;
        }
        let options = &self.binding.options;
        let of = ParkedIn {
            component: options.component_name(),
            at: work.at.clone(),
        };
        let is_ordered = options.ordering == OrderingMode::KeyOrdered;
        let mut park = PartitionPark::new(of, is_ordered, self.now());
        let next = work.committed.as_ref().map(|(next, _)| *next);
        park.begin(next, ranges, notes.progress);
        park.given_up = notes.given_up;
        // The session hands records out until it is paused.
        work.is_held_back = park.is_open();
        work.park = Some(park);
    }

    /// Asks the store for the next thing, one partition after the other.
    pub(super) fn begin_store_call(&mut self) {
        let Some(store) = self
            .binding
            .store
            .clone()
            .filter(|_| self.store_call.is_none())
        else {
            return;
        };
        let now = self.now();
        let turn = self.store_turn.take();
        // Those behind the last one first.
        let mut order: Vec<TopicPartition> = self.partitions.keys().cloned().collect();
        let first = order.partition_point(|at| turn.as_ref().is_some_and(|turn| at <= turn));
        order.rotate_left(first);
        for at in order {
            let Some(partition) = self.partitions.get_mut(&at) else {
                continue;
            };
            let is_searching = partition.is_searching;
            let park = partition.park.as_mut();
            let Some(park) = park.filter(|_| !is_searching) else {
                continue;
            };
            let Some(kind) = park.next_call(now) else {
                continue;
            };
            let (of, span) = (park.of.clone(), park.span());
            let owner = format!("{}/{}", self.name.binding, self.name.instance);
            let future = make(store, of, owner, span, kind.clone());
            let call = StoreCall {
                at: at.clone(),
                fence: partition.fence,
                kind,
                began: now,
            };
            self.store_call = Some(StoreCallUnderWay {
                call,
                future: Box::pin(future),
            });
            self.store_turn = Some(at);
            return;
        }
    }

    /// The store answered.
    pub(super) fn on_store(
        &mut self,
        call: StoreCall,
        answer: Result<StoreAnswer, StoreError>,
    ) -> Option<SessionEnd> {
        let now = self.now();
        let StoreCall {
            at,
            fence,
            kind,
            began,
        } = call;
        let name = self.binding.options.name.clone();
        let found = self.partitions.get_mut(&at);
        let found = found.filter(|found| found.fence == fence);
        let Some(park) = found.and_then(|found| found.park.as_mut()) else {
            if let Ok(StoreAnswer::Loaded(Some(loaded))) = answer {
                self.release_later(loaded.lease);
            }
            return None;
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                park.failed(kind, now);
                tracing::warn!(binding = name, %at, %error, "the store does not answer; the partition waits");
                self.binding
                    .status
                    .lock()
                    .store_failed(&self.seat, error.to_string());
                return None;
            }
        };
        park.answered();
        self.binding.status.lock().store_answers(&self.seat);
        let was_open = park.is_open();
        match (kind, answer) {
            (StoreCallKind::Progress(named), StoreAnswer::Progress(row)) => {
                let ranges = progress::from_row(&at, named, row);
                let lost = match ranges {
                    Some(_) => None,
                    None => self.lost_progress(
                        &at,
                        named,
                        "which is not in the store as it was written",
                    ),
                };
                if let Some(why) = lost {
                    return Some(SessionEnd::Fatal(why));
                }
                self.take_progress(&at, named, ranges);
            }
            (kind, StoreAnswer::Loaded(None)) => park.failed(kind, now),
            (_, StoreAnswer::Loaded(Some(loaded))) => {
                let rows = park.loaded(loaded, began);
                self.take_rows(&at, rows);
            }
            (_, StoreAnswer::Held(false)) => {
                tracing::warn!(binding = name, %at, "somebody else has the lease of the partition");
                return Some(SessionEnd::Lost(LogError::Fenced { at }));
            }
            (StoreCallKind::Change(_, changes), StoreAnswer::Held(true)) => {
                let stored = park.changed(&changes);
                telemetry::processed(
                    &name,
                    &at.topic,
                    at.partition,
                    changes.delivered.len() as u64,
                );
                for (row, from) in stored {
                    let settled = as_parked(&row, from);
                    if let Some(partition) = self.partitions.get_mut(&at) {
                        partition.settle(row.offset.0, settled);
                    }
                }
                self.want_commit(&at);
            }
            (StoreCallKind::Drop(gone), _) => park.dropped(gone),
            (_, StoreAnswer::Held(true)) => park.renewed(began),
            (_, StoreAnswer::Progress(_) | StoreAnswer::Dropped) => {}
        }
        let partition = self.partitions.get_mut(&at)?;
        if partition.is_open() && !was_open {
            for batch in std::mem::take(&mut partition.early) {
                self.on_records(fence, batch);
            }
        }
        if let Some(partition) = self.partitions.get(&at) {
            self.show(partition);
        }
        None
    }

    /// Progress that a commit names cannot be read: everything above the offset is handled again. Says why the binding
    /// must stop instead, if it must.
    fn lost_progress(&self, at: &TopicPartition, named: ProgressName, why: &str) -> Option<String> {
        let options = &self.binding.options;
        telemetry::marks_ignored(&options.name);
        let why = format!("the commit of {at} names progress {}, {why}", named.id);
        if options.transactional {
            return Some(why);
        }
        let binding = &options.name;
        tracing::error!(binding, why, "everything above the offset is handled again");
        None
    }

    /// The progress that the last commit named is part of what is settled.
    fn take_progress(&mut self, at: &TopicPartition, named: ProgressName, ranges: Option<Ranges>) {
        let Some(partition) = self.partitions.get_mut(at) else {
            return;
        };
        let position = partition.tracker.position();
        let told = partition.tracker.ahead();
        let all = ranges
            .as_ref()
            .map(|ranges| progress::union(&told, ranges, position));
        let all = all.unwrap_or_default();
        partition.tracker = OffsetTracker::new(position, all.clone());
        if let Some(park) = &mut partition.park {
            park.read_progress(named, ranges, all);
        }
    }

    /// The rows of a partition that is ours now.
    fn take_rows(&mut self, at: &TopicPartition, rows: Vec<ParkedRow>) {
        let mut works = Vec::new();
        for row in rows {
            let Some(partition) = self.partitions.get_mut(at) else {
                return;
            };
            let (offset, id) = (row.offset.0, row.event_id);
            if let Some(place) = partition.copies.take_written(offset, id, &row.record) {
                let settled = SettledRecord::silent(id, Some((Place::Parked, place)));
                if let Some(park) = &mut partition.park {
                    park.leave(offset, settled);
                }
                continue;
            }
            let Some(target) = &row.target else {
                works.push(self.work_of(at, row));
                continue;
            };
            if row.record.size() as u64 > self.binding.record_limit(target) {
                continue;
            }
            // It fits by now.
            let place = match *target == self.binding.dlt_topic {
                true => Place::DeadLettered,
                false => Place::Retrying,
            };
            let append = Append::new(target.clone(), row.record.clone()).partition(at.partition.0);
            let settled = SettledRecord {
                event_id: row.event_id,
                moved: Some((Place::Parked, place)),
                appends: vec![append],
                reason: None,
                work: None,
            };
            let partition = self.partitions.get_mut(at);
            if let Some(park) = partition.and_then(|found| found.park.as_mut()) {
                park.leave(row.offset.0, settled);
            }
        }
        self.begin_parked(at, works);
        self.want_commit(at);
    }

    /// Rows that may be handled from now on.
    pub(super) fn begin_parked(&mut self, at: &TopicPartition, works: Vec<Work>) {
        for work in works {
            let Some(partition) = self.partitions.get_mut(at) else {
                return;
            };
            let lane = partition.enqueue_parked(work);
            self.make_ready(at, &lane);
        }
    }

    /// A row as a record in hand.
    fn work_of(&self, at: &TopicPartition, row: ParkedRow) -> Work {
        let now_ms = self.binding.clock.now_ms();
        let delay = self.binding.options.delay(row.tier);
        let stored = StoredRecord {
            offset: row.offset,
            record: row.record,
        };
        let history = (row.tier.0 > 0).then(|| Box::new(RetryHistory::read(at, &stored, row.tier)));
        let cluster = self.binding.log.cluster();
        let source = RecordSource::new(at.clone(), Arc::clone(&self.name), cluster);
        let record = ConsumedRecord::new(Arc::new(source), stored, row.event_id, row.tier, now_ms);
        Work {
            history,
            due: (row.tier.0 > 0).then(|| DueTime {
                at_ms: row.due_ms,
                at_latest: self.now() + delay,
            }),
            is_parked: true,
            ..Work::new(Arc::new(record))
        }
    }

    /// A record waits in the store for its next delivery, and its key with it. Returns it if it is there already.
    pub(super) fn park(
        &mut self,
        at: &TopicPartition,
        work: Work,
        rung: Rung,
        failure: Failure,
    ) -> Option<Work> {
        let now_ms = self.binding.clock.now_ms();
        let mut history = self.history(at, &work);
        history.fail(work.attempt, &failure, now_ms);
        telemetry::attempts(&self.binding.options.name, work.record.tier(), work.attempt);
        let (id, group) = (work.record.event_id(), &self.binding.options.group);
        let mut record = history.to_tier(work.record.record(), id, rung, group, now_ms);
        record.timestamp_ms = work.record.timestamp_ms();
        let delay = self.binding.options.delay(rung.tier);
        let row = ParkedRow {
            offset: work.record.offset(),
            event_id: id,
            record,
            tier: rung.tier,
            delivery: rung.delivery,
            due_ms: now_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            target: None,
        };
        let mut parked = self.work_of(at, row.clone());
        parked.failure = Some(Box::new(failure));
        self.put_row(at, &work, row, parked)
    }

    /// A record that used up its attempts keeps its key waiting. Returns it if it is in the store already.
    pub(super) fn block(
        &mut self,
        at: &TopicPartition,
        work: Work,
        failure: Failure,
    ) -> Option<Work> {
        let why = format!("record {} of {at} blocks its key: {failure}", work.offset());
        tracing::error!(
            binding = self.binding.options.name,
            why,
            "its key waits (`key-ordered.on-exhausted: block-key`)"
        );
        if !work.is_parked {
            // It is tried once more as a row.
            return self.park(at, work, Rung::MAIN, failure);
        }
        Some(Work {
            attempt: 0,
            due: Some(DueTime {
                at_ms: u64::MAX,
                at_latest: self.now() + NEVER,
            }),
            failure: Some(Box::new(failure)),
            ..work
        })
    }

    /// A record whose key is parked waits behind the others.
    pub(super) fn park_behind(&mut self, at: &TopicPartition, work: Work) {
        let row = ParkedRow {
            offset: work.record.offset(),
            event_id: work.record.event_id(),
            record: work.record.record().clone(),
            tier: Rung::MAIN.tier,
            delivery: Rung::MAIN.delivery,
            due_ms: self.binding.clock.now_ms(),
            target: None,
        };
        let parked = self.work_of(at, row.clone());
        self.put_row(at, &work, row, parked);
    }

    /// A record that fits into no topic waits for one that takes it.
    pub(super) fn park_for(
        &mut self,
        at: &TopicPartition,
        work: Work,
        topic: &Topic,
        record: Record,
    ) {
        let why = format!(
            "record {} of {at} has {} bytes with its history, and `{topic}` takes at most {}",
            work.offset(),
            record.size(),
            self.binding.record_limit(topic)
        );
        tracing::error!(
            binding = self.binding.options.name,
            why,
            "it waits in the store"
        );
        let row = ParkedRow {
            offset: work.record.offset(),
            event_id: work.record.event_id(),
            record,
            tier: work.record.tier(),
            delivery: work.delivery(),
            due_ms: self.binding.clock.now_ms(),
            target: Some(topic.clone()),
        };
        let place = self.place_of(&work);
        let partition = self.partitions.get_mut(at);
        if let Some(park) = partition.and_then(|found| found.park.as_mut()) {
            park.put(row, (!work.is_parked).then_some((None, place)));
        }
    }

    /// Writes a row. One that comes from the log is handled after its commit; any other is returned.
    fn put_row(
        &mut self,
        at: &TopicPartition,
        work: &Work,
        row: ParkedRow,
        parked: Work,
    ) -> Option<Work> {
        let place = self.place_of(work);
        let partition = self.partitions.get_mut(at)?;
        let park = partition.park.as_mut()?;
        if work.is_parked {
            park.put(row, None);
            return Some(parked);
        }
        let offset = row.offset.0;
        let early = is(PlantedBug::ParkAfterCommit).then(|| as_parked(&row, place.clone()));
        park.put(row, Some((Some(parked), place)));
        if let Some(stored) = early {
            partition.settle(offset, stored);
        }
        None
    }

    /// Gives the leases of partitions back that are let go.
    pub(super) async fn release_leases(&mut self, partitions: &[TopicPartition]) {
        let Some(store) = self.binding.store.clone() else {
            return;
        };
        let clock = Arc::clone(&self.binding.clock);
        let limit = clock.elapsed() + RELEASE_LIMIT;
        for at in partitions {
            let park = self
                .partitions
                .get_mut(at)
                .and_then(|found| found.park.as_mut());
            let Some(lease) = park.and_then(PartitionPark::take_lease) else {
                continue;
            };
            let left = limit.saturating_sub(clock.elapsed());
            // If the store does not answer, it runs out by itself.
            clock.within(left, store.release(&lease)).await;
        }
    }

    /// A lease that is of no use any more is given back beside the work.
    pub(super) fn release_later(&self, lease: ParkLease) {
        let Some(store) = self.binding.store.clone() else {
            return;
        };
        let release = async move {
            store.release(&lease).await.ok();
        };
        drop(
            self.binding
                .spawn
                .spawn("eventbus-release", Box::pin(release)),
        );
    }
}
