//! The records of one partition that are in hand: lanes of records that must stay in order.
//!
//! A lane is a partition, a key or a single record, by `concurrency-mode`. Within a lane the next record
//! begins only after the one before it is settled or handed off.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::books::Place;
use tidegate_core::dead_letter::Reason;
use tidegate_core::env::Task;
use tidegate_core::{EventId, Failure, TierIndex};
use tidegate_log::{Append, Batch, Fence, Record, StoredRecord, TopicPartition};

use crate::attempt::HandledRecord;
use crate::consumer::KnownCopies;
use crate::handler::{ConsumedRecord, RecordSource};
use crate::hop::RetryHistory;
use crate::marks::Ranges;
use crate::options::ConcurrencyMode;
use crate::parked::PartitionPark;
use crate::planted_bugs::{PlantedBug, is};
use crate::tracker::OffsetTracker;

/// A record in hand.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) record: Arc<ConsumedRecord>,
    /// Attempts in this delivery.
    pub(crate) attempt: u32,
    /// Its history; for records of the main topic it is read when they fail.
    pub(crate) history: Option<Box<RetryHistory>>,
    /// Not before this time of the wall clock, nor (whichever comes first) of the monotonic one.
    pub(crate) due: Option<DueTime>,
    /// The last failure, for an operator who gives it up.
    pub(crate) failure: Option<Box<Failure>>,
    /// Whether it is a row of the store.
    pub(crate) is_parked: bool,
}

impl Work {
    /// A record of which nothing is known yet.
    pub(crate) fn new(record: Arc<ConsumedRecord>) -> Self {
        Self {
            record,
            attempt: 0,
            history: None,
            due: None,
            failure: None,
            is_parked: false,
        }
    }

    pub(crate) fn offset(&self) -> i64 {
        self.record.offset().0
    }

    /// Which delivery within its tier it is, from 1.
    pub(crate) fn delivery(&self) -> u32 {
        self.history
            .as_ref()
            .map_or(1, |history| history.rung.delivery)
    }
}

/// A record in a lane.
#[derive(Debug)]
pub(crate) enum LaneRecord {
    /// Of the main topic, and nothing was tried yet.
    Fresh(FreshRecord),
    Known(Work),
}

/// A record as the log handed it out.
#[derive(Debug)]
pub(crate) struct FreshRecord {
    pub(crate) stored: StoredRecord,
    pub(crate) received_ms: u64,
}

impl FreshRecord {
    /// The record for its handler. `spare` is one whose memory may serve for it.
    fn consumed(
        self,
        source: &Arc<RecordSource>,
        spare: Option<Arc<ConsumedRecord>>,
    ) -> Arc<ConsumedRecord> {
        let id = source.event_id(&self.stored);
        let Self {
            stored,
            received_ms,
        } = self;
        if let Some(mut spare) = spare
            && let Some(memory) = Arc::get_mut(&mut spare)
        {
            memory.become_next(source, stored, id, received_ms);
            return spare;
        }
        let tier = TierIndex(0);
        Arc::new(ConsumedRecord::new(
            Arc::clone(source),
            stored,
            id,
            tier,
            received_ms,
        ))
    }
}

impl LaneRecord {
    pub(crate) fn offset(&self) -> i64 {
        match self {
            Self::Fresh(fresh) => fresh.stored.offset.0,
            Self::Known(work) => work.offset(),
        }
    }

    pub(crate) fn record(&self) -> &Record {
        match self {
            Self::Fresh(fresh) => &fresh.stored.record,
            Self::Known(work) => work.record.record(),
        }
    }

    pub(crate) fn key(&self) -> Option<&Bytes> {
        self.record().key.as_ref()
    }

    /// Attempts in this delivery.
    pub(crate) fn attempt(&self) -> u32 {
        self.work().map_or(0, |work| work.attempt)
    }

    pub(crate) fn due(&self) -> Option<DueTime> {
        self.work().and_then(|work| work.due)
    }

    fn is_parked(&self) -> bool {
        self.work().is_some_and(|work| work.is_parked)
    }

    fn work(&self) -> Option<&Work> {
        match self {
            Self::Fresh(_) => None,
            Self::Known(work) => Some(work),
        }
    }

    /// The record for its handler. `spare` is one whose memory may serve for it.
    pub(crate) fn into_work(
        self,
        source: &Arc<RecordSource>,
        spare: &mut Option<Arc<ConsumedRecord>>,
    ) -> Work {
        match self {
            Self::Known(work) => work,
            Self::Fresh(fresh) => Work::new(fresh.consumed(source, spare.take())),
        }
    }
}

/// When a record of a tier may be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueTime {
    /// Handed to the tier, and its delay.
    pub(crate) at_ms: u64,
    /// Received, and the delay of the tier: no clock that went wrong holds a record longer.
    pub(crate) at_latest: Duration,
}

impl DueTime {
    /// How long to wait still; nothing when it is due.
    pub(crate) fn wait(self, now_ms: u64, elapsed: Duration) -> Duration {
        if is(PlantedBug::EarlyTier) {
            return Duration::ZERO;
        }
        let by_wall = Duration::from_millis(self.at_ms.saturating_sub(now_ms));
        by_wall.min(self.at_latest.saturating_sub(elapsed))
    }
}

/// Which records must stay in order with each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneKey {
    Partition,
    Key(Bytes),
    Record(i64),
    /// Parked records of a key.
    ParkedKey(Bytes),
    /// A parked record without a key.
    ParkedRecord(i64),
}

impl LaneKey {
    /// Of rows of the store.
    pub(crate) fn is_parked(&self) -> bool {
        match self {
            Self::ParkedKey(_) | Self::ParkedRecord(_) => true,
            Self::Partition | Self::Key(_) | Self::Record(_) => false,
        }
    }

    pub(crate) fn of(mode: ConcurrencyMode, key: Option<&Bytes>, offset: i64) -> Self {
        match (mode, key) {
            (ConcurrencyMode::Partition, _) => Self::Partition,
            (ConcurrencyMode::Key, Some(key)) => Self::Key(key.clone()),
            // A record without a key has no order.
            (ConcurrencyMode::Key, None) | (ConcurrencyMode::Unordered, _) => Self::Record(offset),
        }
    }
}

/// Records that stay in order.
#[derive(Debug, Default)]
pub(crate) struct WorkLane {
    pub(crate) queue: VecDeque<LaneRecord>,
    /// The run that has its first records, and the first of them.
    pub(crate) running: Option<RunningLane>,
    /// Nothing of it begins before this.
    pub(crate) wait_until: Option<Duration>,
    /// Whether its first record is tried alone because of a System failure, and how often that was.
    pub(crate) probes: Option<u32>,
    pub(crate) is_ready: bool,
}

#[derive(Debug)]
pub(crate) struct RunningLane {
    pub(crate) task: Task,
    pub(crate) first: (i64, Option<Bytes>),
}

/// A record that is settled and waits for the commit that says so.
#[derive(Debug)]
pub(crate) struct SettledRecord {
    pub(crate) event_id: EventId,
    /// Its move in the books; none for a record that is not in ours.
    pub(crate) moved: Option<(Place, Place)>,
    /// Records to be written in the same commit: a hand-off, or outputs of the handler.
    pub(crate) appends: Vec<Append>,
    /// The reason, of a dead letter.
    pub(crate) reason: Option<Reason>,
    /// The record itself, if something is written for it: the log may refuse that.
    pub(crate) work: Option<Box<Work>>,
}

impl SettledRecord {
    /// A record for which nothing is to be written.
    pub(crate) fn silent(event_id: EventId, moved: Option<(Place, Place)>) -> Self {
        Self {
            event_id,
            moved,
            appends: Vec::new(),
            reason: None,
            work: None,
        }
    }

    /// Whether it is written somewhere else, and settled by that.
    pub(crate) fn is_handed_off(&self) -> bool {
        let is_output = matches!(&self.moved, Some((_, Place::Delivered)));
        !self.appends.is_empty() && !is_output
    }

    /// Bytes that are written for it.
    pub(crate) fn size(&self) -> usize {
        let records = self.appends.iter();
        records.map(|append| append.record.size()).sum()
    }
}

/// Everything about one partition under one assignment.
#[derive(Debug)]
pub(crate) struct PartitionWork {
    pub(crate) at: TopicPartition,
    pub(crate) source: Arc<RecordSource>,
    pub(crate) fence: Fence,
    pub(crate) tracker: OffsetTracker,
    pub(crate) lanes: BTreeMap<LaneKey, WorkLane>,
    /// An empty queue that takes the place of the next one: a new one for each batch costs more than its records.
    pub(crate) spare: VecDeque<LaneRecord>,
    /// Settled for the next commit, with something to be written or a move of its own.
    pub(crate) pending: BTreeMap<i64, SettledRecord>,
    /// Handled for the next commit.
    pub(crate) handled: Vec<HandledRecord>,
    /// Lanes whose keys are ordered and whose last record is a dead letter, until the log has it.
    pub(crate) letters: BTreeMap<i64, LaneKey>,
    /// Tells runs to stop after their record.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) running: usize,
    pub(crate) queued: usize,
    pub(crate) queued_bytes: usize,
    /// Whether the session hands out none of it for now.
    pub(crate) is_held_back: bool,
    /// It is to be let go, at the latest then.
    pub(crate) let_go_by: Option<Duration>,
    /// Since when the present batch is in hand, and the offset behind it.
    pub(crate) batch: Option<(Duration, i64)>,
    /// Its rest is handed back as soon as no run has it.
    pub(crate) is_handing_back: bool,
    /// The offset and the text that the log holds, as far as they are known.
    pub(crate) committed: Option<(i64, String)>,
    pub(crate) committed_at: Duration,
    /// The log begins there by now, and records before it were not read.
    pub(crate) lost_below: Option<i64>,
    /// Since when the committed offset stands still with records in hand.
    pub(crate) standing_since: Duration,
    /// Its rows in the store, if there is a store.
    pub(crate) park: Option<PartitionPark>,
    /// Records that came before its progress was read, or its copies were known.
    pub(crate) early: Vec<Batch>,
    /// Whether a hand-off is written before its offset is committed, so that a crash leaves copies.
    pub(crate) leaves_copies: bool,
    /// Whether copies of its records are still looked for.
    pub(crate) is_searching: bool,
    pub(crate) copies: KnownCopies,
}

impl PartitionWork {
    pub(crate) fn new(
        source: Arc<RecordSource>,
        fence: Fence,
        position: i64,
        marks: Ranges,
        committed: Option<(i64, String)>,
        now: Duration,
    ) -> Self {
        Self {
            at: source.at.clone(),
            source,
            fence,
            tracker: OffsetTracker::new(position, marks),
            lanes: BTreeMap::new(),
            spare: VecDeque::new(),
            pending: BTreeMap::new(),
            handled: Vec::new(),
            letters: BTreeMap::new(),
            stop: Arc::new(AtomicBool::new(false)),
            running: 0,
            queued: 0,
            queued_bytes: 0,
            is_held_back: false,
            let_go_by: None,
            batch: None,
            is_handing_back: false,
            committed,
            committed_at: now,
            lost_below: None,
            standing_since: now,
            park: None,
            early: Vec::new(),
            leaves_copies: false,
            is_searching: false,
            copies: KnownCopies::default(),
        }
    }

    /// Whether its records may come in: nothing must be read first.
    pub(crate) fn is_open(&self) -> bool {
        let has_read = self.park.as_ref().is_none_or(PartitionPark::is_open);
        has_read && !self.is_searching
    }

    /// Whether the records of its keys settle in their order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.park.as_ref().is_some_and(PartitionPark::is_ordered)
    }

    /// Records of lanes that came from the log count as queued.
    fn count_in(&mut self, key: &LaneKey, count: usize, bytes: usize) {
        if !key.is_parked() {
            self.queued += count;
            self.queued_bytes += bytes;
        }
    }

    fn count_out<'a>(&mut self, records: impl Iterator<Item = &'a LaneRecord>) {
        for record in records.filter(|record| !record.is_parked()) {
            self.queued -= 1;
            self.queued_bytes -= record.record().size();
        }
    }

    /// Puts a row of the store at the end of its lane, and says which lane that is.
    pub(crate) fn enqueue_parked(&mut self, work: Work) -> LaneKey {
        let key = match work.record.key() {
            Some(key) => LaneKey::ParkedKey(key.clone()),
            None => LaneKey::ParkedRecord(work.offset()),
        };
        let lane = self.lanes.entry(key.clone()).or_default();
        lane.queue.push_back(LaneRecord::Known(work));
        key
    }

    /// A row that waits for somebody to give it up.
    pub(crate) fn blocked(&self) -> Option<&Work> {
        let parked = self.lanes.iter().filter(|(key, _)| key.is_parked());
        let mut first = parked.filter_map(|(_, lane)| lane.queue.front()?.work());
        first.find(|work| work.due.is_some_and(|due| due.at_ms == u64::MAX))
    }

    /// Takes the records out of a lane whose key is parked.
    pub(crate) fn take_followers(&mut self, key: &LaneKey) -> Vec<Work> {
        let (Some(park), Some(lane)) = (&self.park, self.lanes.get_mut(key)) else {
            return Vec::new();
        };
        if !park.is_ordered() {
            return Vec::new();
        }
        let (followers, kept): (Vec<LaneRecord>, Vec<LaneRecord>) = lane
            .queue
            .drain(..)
            .partition(|record| park.has_key(record.key()));
        lane.queue = kept.into();
        self.count_out(followers.iter());
        let source = &self.source;
        let works = followers.into_iter();
        works
            .map(|record| record.into_work(source, &mut None))
            .collect()
    }

    /// Notes that the log handed these records out. Gives those that are to be handled.
    pub(crate) fn hand_out(&mut self, mut records: Vec<StoredRecord>) -> Vec<StoredRecord> {
        let offset_after = |stored: &StoredRecord| stored.offset.0 + 1;
        let mut runs = records.chunk_by(|one, next| offset_after(one) == next.offset.0);
        let known = runs.find_map(|run| {
            let (first, last) = (run.first()?.offset.0, run.last()?);
            let is_new = self.tracker.hand_out_new(first..offset_after(last));
            (!is_new).then_some(first)
        });
        if let Some(known) = known {
            records.retain(|stored| {
                let offset = stored.offset.0;
                offset < known || self.tracker.hand_out(offset)
            });
        }
        records
    }

    /// Whether something is settled that no commit has told yet.
    pub(crate) fn has_settled(&self) -> bool {
        !self.pending.is_empty() || !self.handled.is_empty()
    }

    /// Puts records at the end of their lanes, and says which lanes these are.
    pub(crate) fn enqueue(
        &mut self,
        mode: ConcurrencyMode,
        records: impl ExactSizeIterator<Item = LaneRecord>,
    ) -> Vec<LaneKey> {
        self.queued += records.len();
        if mode == ConcurrencyMode::Partition {
            let lane = self.lanes.entry(LaneKey::Partition).or_default();
            let bytes = &mut self.queued_bytes;
            lane.queue
                .extend(records.inspect(|record| *bytes += record.record().size()));
            return vec![LaneKey::Partition];
        }
        let mut keys = Vec::with_capacity(records.len());
        for record in records {
            self.queued_bytes += record.record().size();
            let key = LaneKey::of(mode, record.key(), record.offset());
            let lane = self.lanes.entry(key.clone()).or_default();
            if lane.queue.capacity() == 0 {
                // Most lanes have one record at a time.
                lane.queue.reserve_exact(1);
            }
            lane.queue.push_back(record);
            keys.push(key);
        }
        keys
    }

    /// Puts records back at the front of their lane, in their order.
    pub(crate) fn put_back(&mut self, key: &LaneKey, records: Vec<LaneRecord>) {
        if records.is_empty() {
            return;
        }
        let bytes = records.iter().map(|record| record.record().size()).sum();
        self.count_in(key, records.len(), bytes);
        let lane = self.lanes.entry(key.clone()).or_default();
        for record in records.into_iter().rev() {
            lane.queue.push_front(record);
        }
    }

    /// Puts a record back at the front of its lane, and says which lane that is.
    pub(crate) fn put_first(&mut self, mode: ConcurrencyMode, work: Work) -> LaneKey {
        let key = match (work.is_parked, work.record.key()) {
            (true, Some(key)) => LaneKey::ParkedKey(key.clone()),
            (true, None) => LaneKey::ParkedRecord(work.offset()),
            (false, key) => LaneKey::of(mode, key, work.offset()),
        };
        self.put_back(&key, vec![LaneRecord::Known(work)]);
        key
    }

    /// Takes up to `limit` records of a lane, all of them due.
    pub(crate) fn take(
        &mut self,
        key: &LaneKey,
        limit: usize,
        is_due: impl Fn(DueTime) -> bool,
    ) -> VecDeque<LaneRecord> {
        let Some(lane) = self.lanes.get_mut(key) else {
            return VecDeque::new();
        };
        let mut count = 0;
        for record in lane.queue.iter().take(limit) {
            // A record that was tried before is tried alone: it may have to wait again.
            let is_alone = record.attempt() > 0;
            if record.due().is_some_and(|due| !is_due(due)) || (is_alone && count > 0) {
                break;
            }
            count += 1;
            if is_alone {
                break;
            }
        }
        let mut taken = match key {
            LaneKey::Partition => std::mem::take(&mut self.spare),
            LaneKey::Key(_)
            | LaneKey::Record(_)
            | LaneKey::ParkedKey(_)
            | LaneKey::ParkedRecord(_) => VecDeque::new(),
        };
        match count == lane.queue.len() {
            true => std::mem::swap(&mut taken, &mut lane.queue),
            false => taken.extend(lane.queue.drain(..count)),
        }
        self.count_out(taken.iter());
        taken
    }

    /// Forgets a lane that has nothing any more.
    pub(crate) fn tidy(&mut self, key: &LaneKey) {
        let is_empty = |lane: &WorkLane| lane.queue.is_empty() && lane.running.is_none();
        if self.lanes.get(key).is_some_and(is_empty) {
            self.lanes.remove(key);
        }
    }

    /// A record is settled.
    pub(crate) fn settle(&mut self, offset: i64, settlement: SettledRecord) {
        if self.tracker.settle(offset) {
            self.pending.insert(offset, settlement);
        }
    }

    /// Records are handled, and nothing is to be written for them.
    pub(crate) fn settle_handled(&mut self, mut records: Vec<HandledRecord>) {
        let offset_after = |record: &HandledRecord| record.offset + 1;
        let mut runs = records.chunk_by(|one, next| offset_after(one) == next.offset);
        let broken = runs.position(|run| {
            let range = run.first().zip(run.last());
            let range = range.map(|(first, last)| first.offset..offset_after(last));
            !range.is_some_and(|range| self.tracker.settle_all(range))
        });
        if let Some(broken) = broken {
            let runs = records.chunk_by(|one, next| offset_after(one) == next.offset);
            let before = runs.take(broken).map(<[_]>::len).sum();
            let mut rest = records.split_off(before);
            rest.retain(|record| self.tracker.settle(record.offset));
            records.append(&mut rest);
        }
        match self.handled.is_empty() {
            true => self.handled = records,
            false => self.handled.append(&mut records),
        }
    }

    /// Takes every record that no attempt was made at out of its lane. Returns the offset to go back to.
    pub(crate) fn take_unbegun(&mut self) -> Option<i64> {
        let mut offsets = Vec::new();
        for lane in self.lanes.values_mut() {
            let is_probed = lane.probes.is_some();
            let (kept, unbegun): (VecDeque<LaneRecord>, VecDeque<LaneRecord>) = lane
                .queue
                .drain(..)
                .partition(|record| record.attempt() > 0 || is_probed || record.is_parked());
            lane.queue = kept;
            for record in unbegun {
                self.queued -= 1;
                self.queued_bytes -= record.record().size();
                offsets.push(record.offset());
            }
        }
        self.lanes
            .retain(|_, lane| !lane.queue.is_empty() || lane.running.is_some());
        self.tracker.give_back(&offsets)
    }

    /// Takes a record out of its lane that no run has.
    pub(crate) fn take_held(&mut self, offset: i64) -> Option<(LaneKey, Work)> {
        let (key, lane) = self
            .lanes
            .iter_mut()
            .find(|(_, lane)| lane.queue.iter().any(|held| held.offset() == offset))?;
        let index = lane.queue.iter().position(|held| held.offset() == offset)?;
        let record = lane.queue.remove(index)?;
        lane.wait_until = None;
        let key = key.clone();
        self.count_out(std::iter::once(&record));
        Some((key, record.into_work(&self.source, &mut None)))
    }

    /// Runs stop after their record.
    pub(crate) fn stop_runs(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// The present batch is over once everything before its end is settled.
    pub(crate) fn follow_batch(&mut self, now: Duration) {
        if self
            .batch
            .is_some_and(|(_, end)| self.tracker.next() >= end)
        {
            let is_more = self.tracker.open_count() > 0;
            self.batch = is_more.then(|| (now, self.tracker.end()));
        }
    }

    /// Whether one of its records is tried alone because of a System failure.
    pub(crate) fn has_probe(&self) -> bool {
        self.lanes.values().any(|lane| lane.probes.is_some())
    }

    /// The offset that holds the commit up, and its key.
    pub(crate) fn blocker(&self) -> Option<(i64, Option<Bytes>)> {
        if self.tracker.open_count() == 0 {
            return None;
        }
        let next = self.tracker.next();
        let running = self.lanes.values().filter_map(|lane| lane.running.as_ref());
        let running = running.map(|running| running.first.clone());
        let queued = self.lanes.values().filter_map(|lane| lane.queue.front());
        let queued = queued.map(|record| (record.offset(), record.key().cloned()));
        let found = running.chain(queued).find(|(offset, _)| *offset == next);
        Some(found.unwrap_or((next, None)))
    }
}

impl Drop for PartitionWork {
    fn drop(&mut self) {
        // Nobody settles what they do any more.
        self.stop_runs();
        for lane in self.lanes.values() {
            if let Some(running) = &lane.running {
                running.task.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c23_a_record_is_due_by_the_wall_clock_or_by_its_own_delay() {
        let due = DueTime {
            at_ms: 10_000,
            at_latest: Duration::from_secs(60),
        };
        let seconds = Duration::from_secs;
        assert_eq!(due.wait(4_000, seconds(50)), seconds(6));
        assert_eq!(due.wait(10_000, seconds(50)), Duration::ZERO);
        // The wall clock went back by an hour: its own delay is the limit.
        assert_eq!(due.wait(0, seconds(55)), seconds(5));
        assert_eq!(due.wait(0, seconds(60)), Duration::ZERO);
    }

    fn partition(position: i64, marks: Ranges) -> PartitionWork {
        let consumer = crate::handler::ConsumerName {
            binding: "orders".to_owned(),
            container: "eventbus-orders".to_owned(),
            group: "shipping".to_owned(),
            instance: "host-0".to_owned(),
        };
        let at = TopicPartition::new(tidegate_core::Topic::new("orders").unwrap(), 0);
        let source = RecordSource::new(at, Arc::new(consumer), "main");
        let source = Arc::new(source);
        PartitionWork::new(source, Fence(1), position, marks, None, Duration::ZERO)
    }

    fn handed_out(work: &mut PartitionWork, offsets: &[i64]) -> Vec<i64> {
        let records = offsets.iter().map(|offset| StoredRecord {
            offset: tidegate_core::Offset(*offset),
            record: Record::new("value"),
        });
        let new = work.hand_out(records.collect());
        new.iter().map(|stored| stored.offset.0).collect()
    }

    fn settled(work: &mut PartitionWork, offsets: &[i64]) -> Vec<i64> {
        let before = work.handled.len();
        let records = offsets.iter().map(|offset| HandledRecord {
            offset: *offset,
            event_id: EventId::from_u128(7),
        });
        work.settle_handled(records.collect());
        let new = work.handled.iter().skip(before);
        new.map(|done| done.offset).collect()
    }

    #[test]
    fn a_batch_with_holes_and_known_records_is_handed_out_once() {
        let mut work = partition(10, Ranges::from([(15, 17)]));
        assert_eq!(handed_out(&mut work, &[10, 11, 13]), [10, 11, 13]);
        // 12 was a hole, 13 is in hand, 15 and 16 were settled before the assignment.
        let batch = [13, 14, 15, 16, 17, 18, 20];
        assert_eq!(handed_out(&mut work, &batch), [14, 17, 18, 20]);
        assert_eq!(handed_out(&mut work, &[21, 22]), [21, 22]);
        assert_eq!(handed_out(&mut work, &[20, 21, 22, 23]), [23]);
    }

    #[test]
    fn a_record_is_settled_once_however_it_is_told() {
        let mut work = partition(10, Ranges::new());
        assert_eq!(handed_out(&mut work, &[10, 11, 12, 14, 15]).len(), 5);
        assert_eq!(settled(&mut work, &[11]), [11]);
        assert_eq!(work.tracker.next(), 10);
        // 11 again, a hole, and a record that nobody was given.
        assert_eq!(settled(&mut work, &[14, 10, 11, 12, 13, 16]), [14, 10, 12]);
        assert_eq!(work.tracker.next(), 15);
        assert_eq!(settled(&mut work, &[15, 15]), [15]);
        assert_eq!(work.tracker.next(), 16);
    }
}
