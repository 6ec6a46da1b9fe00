//! The parked records of one partition, and what the store is to do about them.
//!
//! **Invariant:** a row is handled only after the commit that says it is parked. A partition whose keys are ordered
//! is handled only under its lease. Rows of a key are settled in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::books::Place;
use tidegate_core::{Backoff, Offset};

use super::{GoneProgress, ParkLease, ParkedChanges, ParkedIn, ParkedRow};
use crate::lanes::{SettledRecord, Work};
use crate::marks::Ranges;
use crate::progress::{MAX_GIVEN_UP, NamedProgress, ProgressName};

/// The lease of a partition whose keys are ordered.
const ORDERED_LEASE: Duration = Duration::from_secs(10);
/// The lease of any other: nothing waits for it.
const OTHER_LEASE: Duration = Duration::from_secs(60);
/// Bytes of parked records of a partition that are held in memory.
const MAX_PARKED_BYTES: usize = 128 * 1024 * 1024;

/// A call that the store is to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreCallKind {
    /// Read the progress that the last commit names.
    Progress(ProgressName),
    /// Take the lease, and read the rows.
    Load,
    Renew(ParkLease),
    Change(ParkLease, ParkedChanges),
    Drop(GoneProgress),
}

/// Until when a lease is held, as runs see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldUntil(Arc<AtomicU64>);

impl HeldUntil {
    fn set(&self, until: Duration) {
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.0.store(until, Ordering::Release);
    }

    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= Duration::from_micros(self.0.load(Ordering::Acquire))
    }
}

/// The lease of a partition and its rows.
#[derive(Debug)]
pub(crate) struct LoadedRows {
    pub(crate) lease: ParkLease,
    pub(crate) rows: Vec<ParkedRow>,
}

/// A row that is in the store, or on its way there.
#[derive(Debug)]
struct KnownRow {
    key: Option<Bytes>,
    size: usize,
    /// Whether it is for a topic that does not take it.
    is_stuck: bool,
}

/// The parked records of one partition.
#[derive(Debug)]
pub(crate) struct PartitionPark {
    pub(crate) of: ParkedIn,
    is_ordered: bool,
    lease: Option<ParkLease>,
    held_until: HeldUntil,
    /// Whether rows that nobody counts were removed, so that records may flow.
    is_clean: bool,
    renew_at: Duration,
    try_at: Duration,
    failures: u32,
    /// The offset that was committed when the partition was assigned, and what was settled above it.
    base: (Option<i64>, Ranges),
    unread: Option<ProgressName>,
    pub(crate) progress: Option<NamedProgress>,
    gone: Option<GoneProgress>,
    /// Rows that a commit gave up, and that the store may still have.
    pub(crate) given_up: BTreeSet<i64>,
    rows: BTreeMap<i64, KnownRow>,
    keys: BTreeMap<Bytes, usize>,
    bytes: usize,
    /// Rows whose offset is not committed yet, and the place that they come from.
    waiting: BTreeMap<i64, (Option<Work>, Place)>,
    changes: ParkedChanges,
    is_changing: bool,
    /// Rows that leave by a commit of the log.
    leaving: BTreeMap<i64, SettledRecord>,
    /// Those of them whose commit is under way.
    committing: BTreeSet<i64>,
}

impl PartitionPark {
    pub(crate) fn new(of: ParkedIn, is_ordered: bool, now: Duration) -> Self {
        Self {
            of,
            is_ordered,
            lease: None,
            held_until: HeldUntil::default(),
            is_clean: false,
            renew_at: now,
            try_at: now,
            failures: 0,
            base: (None, Ranges::new()),
            unread: None,
            progress: None,
            gone: None,
            given_up: BTreeSet::new(),
            rows: BTreeMap::new(),
            keys: BTreeMap::new(),
            bytes: 0,
            waiting: BTreeMap::new(),
            changes: ParkedChanges::default(),
            is_changing: false,
            leaving: BTreeMap::new(),
            committing: BTreeSet::new(),
        }
    }

    /// The partition was assigned with this commit.
    pub(crate) fn begin(
        &mut self,
        next: Option<i64>,
        settled: Ranges,
        unread: Option<ProgressName>,
    ) {
        self.base = (next, settled);
        self.unread = unread;
        self.gone = next.map(|below| GoneProgress {
            id: None,
            below,
            but: unread.map(|name| name.id),
        });
    }

    /// The progress that was named has this.
    pub(crate) fn read_progress(
        &mut self,
        name: ProgressName,
        ranges: Option<Ranges>,
        all: Ranges,
    ) {
        self.unread = None;
        self.base.1 = all;
        self.progress = ranges.map(|ranges| NamedProgress {
            name,
            ranges: Arc::new(ranges),
        });
    }

    /// Another progress is named from now on, or none.
    pub(crate) fn name_progress(&mut self, named: Option<NamedProgress>, next: i64) {
        let id = |named: &Option<NamedProgress>| named.as_ref().map(|named| named.name.id);
        let (before, after) = (id(&self.progress), id(&named));
        if before != after {
            self.gone = before.map(|id| GoneProgress {
                id: Some(id),
                below: next,
                but: after,
            });
        }
        self.progress = named;
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// How long its lease is taken for.
    pub(crate) fn span(&self) -> Duration {
        match self.is_ordered {
            true => ORDERED_LEASE,
            false => OTHER_LEASE,
        }
    }

    /// Whether its records may be handed out: nothing must be read first.
    pub(crate) fn is_open(&self) -> bool {
        self.unread.is_none() && (self.is_clean || !self.is_ordered)
    }

    /// Whether handlers may begin.
    pub(crate) fn flows(&self, now: Duration) -> bool {
        self.is_open() && (!self.is_ordered || !self.held_until.is_over(now))
    }

    /// Until when runs may go on, where keys are ordered.
    pub(crate) fn held_until(&self) -> Option<HeldUntil> {
        self.is_ordered.then(|| self.held_until.clone())
    }

    /// Whether no more records may be parked.
    pub(crate) fn is_full(&self, max_parked: usize, max_waiting: usize) -> bool {
        self.rows.len() >= max_parked
            || self.bytes >= MAX_PARKED_BYTES
            || self.waiting.len() >= max_waiting
    }

    /// Whether an earlier record of this key is parked.
    pub(crate) fn has_key(&self, key: Option<&Bytes>) -> bool {
        self.is_ordered && key.is_some_and(|key| self.keys.contains_key(key))
    }

    /// Whether a record of this key is on its way out, so that those behind it must wait.
    pub(crate) fn is_leaving(&self, key: &Bytes) -> bool {
        let leaving = self.leaving.keys().chain(&self.committing);
        let mut rows = leaving.filter_map(|offset| self.rows.get(offset));
        rows.any(|row| row.key.as_ref() == Some(key))
    }

    /// Rows that are known, and those of them that fit into no topic.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let stuck = self.rows.values().filter(|row| row.is_stuck);
        (self.rows.len(), stuck.count())
    }

    /// The lease, to be given back.
    pub(crate) fn take_lease(&mut self) -> Option<ParkLease> {
        self.lease.take()
    }

    /// Whether nothing is left for the store to do.
    pub(crate) fn is_settled(&self) -> bool {
        self.changes.is_empty()
            && !self.is_changing
            && self.leaving.is_empty()
            && self.waiting.is_empty()
    }

    /// A row is to be written. A record that comes from the log is handled after its commit.
    pub(crate) fn put(&mut self, row: ParkedRow, from_log: Option<(Option<Work>, Place)>) {
        let offset = row.offset.0;
        self.changes.removed.remove(&offset);
        self.know(&row);
        self.changes.puts.insert(offset, row);
        if let Some(waiting) = from_log {
            self.waiting.insert(offset, waiting);
        }
    }

    fn know(&mut self, row: &ParkedRow) {
        let (key, size) = (row.record.key.clone(), row.record.size());
        let is_stuck = row.target.is_some();
        let known = KnownRow {
            key,
            size,
            is_stuck,
        };
        match self.rows.insert(row.offset.0, known) {
            Some(before) => self.bytes -= before.size,
            None => {
                if let Some(key) = &row.record.key {
                    *self.keys.entry(key.clone()).or_default() += 1;
                }
            }
        }
        self.bytes += size;
    }

    fn forget(&mut self, offset: i64) {
        let Some(row) = self.rows.remove(&offset) else {
            return;
        };
        self.bytes -= row.size;
        if let Some(key) = row.key
            && let Some(count) = self.keys.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&key);
            }
        }
    }

    /// A row was handled.
    pub(crate) fn deliver(&mut self, offset: i64) {
        self.changes.puts.remove(&offset);
        self.changes.delivered.insert(offset);
    }

    /// A row leaves by a commit of the log.
    pub(crate) fn leave(&mut self, offset: i64, settled: SettledRecord) {
        self.committing.remove(&offset);
        self.leaving.insert(offset, settled);
    }

    /// Whether a row is on its way out.
    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The rows that may leave by the next commit: it names at most so many.
    pub(crate) fn take_leaving(
        &mut self,
        mut fits: impl FnMut(&SettledRecord) -> bool,
    ) -> BTreeMap<i64, SettledRecord> {
        let room = MAX_GIVEN_UP.saturating_sub(self.given_up.len());
        let next = self.leaving.iter().take(room);
        let offsets: Vec<i64> = next
            .take_while(|(_, settled)| fits(settled))
            .map(|(offset, _)| *offset)
            .collect();
        self.committing.extend(&offsets);
        let taken = offsets.into_iter();
        taken
            .filter_map(|offset| self.leaving.remove_entry(&offset))
            .collect()
    }

    /// A row does not leave after all: the log refuses what was to be written for it.
    pub(crate) fn take_refused(&mut self, offset: i64) -> Option<SettledRecord> {
        self.committing.remove(&offset);
        self.leaving.remove(&offset)
    }

    /// A commit gave these rows up.
    pub(crate) fn gave_up(&mut self, offsets: impl Iterator<Item = i64>) {
        for offset in offsets {
            self.committing.remove(&offset);
            self.given_up.insert(offset);
            self.changes.puts.remove(&offset);
            self.changes.removed.insert(offset);
        }
    }

    /// The commit of a row is done: it may be handled. None for a record that did not wait for it.
    pub(crate) fn committed(&mut self, offset: i64) -> Option<Work> {
        self.waiting.remove(&offset)?.0
    }

    /// The next call of the store, if there is something to do and it is time.
    pub(crate) fn next_call(&mut self, now: Duration) -> Option<StoreCallKind> {
        if now < self.try_at {
            return None;
        }
        if let Some(name) = self.unread {
            return Some(StoreCallKind::Progress(name));
        }
        let Some(lease) = &self.lease else {
            return Some(StoreCallKind::Load);
        };
        if now >= self.renew_at {
            return Some(StoreCallKind::Renew(lease.clone()));
        }
        if !self.changes.is_empty() {
            self.is_changing = true;
            let changes = std::mem::take(&mut self.changes);
            return Some(StoreCallKind::Change(lease.clone(), changes));
        }
        self.gone.map(StoreCallKind::Drop)
    }

    /// When [`next_call`](Self::next_call) next has something to do by the clock.
    pub(crate) fn wakes_at(&self) -> Duration {
        match &self.lease {
            Some(_) if self.changes.is_empty() && self.gone.is_none() => {
                self.renew_at.max(self.try_at)
            }
            _ => self.try_at,
        }
    }

    /// A call failed: it is made again after a while.
    pub(crate) fn failed(&mut self, call: StoreCallKind, now: Duration) {
        if let StoreCallKind::Change(_, changes) = call {
            self.is_changing = false;
            self.changes.put_back(changes);
        }
        let backoff = Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1));
        self.try_at = now + backoff.wait_without_jitter(self.failures);
        self.failures = self.failures.saturating_add(1);
    }

    /// The store answers.
    pub(crate) fn answered(&mut self) {
        self.failures = 0;
    }

    /// The lease is held from `began` on.
    pub(crate) fn renewed(&mut self, began: Duration) {
        self.held_until.set(began + self.span());
        self.renew_at = began + self.span() / 3;
    }

    /// The lease is ours. Gives the rows that are parked; the others are removed first.
    pub(crate) fn loaded(&mut self, loaded: LoadedRows, began: Duration) -> Vec<ParkedRow> {
        self.lease = Some(loaded.lease);
        self.renewed(began);
        let (next, settled) = &self.base;
        let is_committed = |Offset(offset): Offset| {
            let below = settled.range(..=offset).next_back();
            next.is_some_and(|next| offset < next) || below.is_some_and(|(_, to)| offset < *to)
        };
        let mut parked = Vec::new();
        for row in loaded.rows {
            // Rows that came after the base are ours.
            if self.rows.contains_key(&row.offset.0) {
                continue;
            }
            if is_committed(row.offset) && !self.given_up.contains(&row.offset.0) {
                parked.push(row);
            } else {
                self.changes.removed.insert(row.offset.0);
            }
        }
        self.base.1 = Ranges::new();
        // Those that are gone need not be named any more.
        let removed = &self.changes.removed;
        self.given_up.retain(|offset| removed.contains(offset));
        self.is_clean = self.changes.removed.is_empty();
        parked.iter().for_each(|row| self.know(row));
        parked
    }

    /// Changes were made. Gives the rows that the log is to commit now, with the place that they come from.
    pub(crate) fn changed(&mut self, changes: &ParkedChanges) -> Vec<(ParkedRow, Place)> {
        (self.is_changing, self.is_clean) = (false, true);
        for offset in changes.delivered.iter().chain(&changes.removed) {
            self.given_up.remove(offset);
            self.forget(*offset);
        }
        let stored = changes.puts.iter();
        let stored = stored.filter_map(|(offset, row)| {
            let (_, from) = self.waiting.get(offset)?;
            Some((row.clone(), from.clone()))
        });
        stored.collect()
    }

    pub(crate) fn dropped(&mut self, gone: GoneProgress) {
        if self.gone == Some(gone) {
            self.gone = None;
        }
    }
}
