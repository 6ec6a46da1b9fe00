//! The store of bindings: records that wait behind an earlier one of their key, and progress that does not fit
//! into a commit.
//!
//! Each method is one transaction, so a crash between any two calls is a case that the simulation plays. A row
//! belongs to the owner of its partition. That owner holds the partition's lease, and every change checks its
//! token. Progress is immutable: a row is written before the commit that names it, and removed after one that
//! does not.

#[cfg(feature = "model")]
mod model;
mod partition;
mod sql;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tidegate_core::books::Books;
use tidegate_core::env::BoxFuture;
use tidegate_core::{EventId, Offset, TierIndex, Topic};
use tidegate_log::{Record, TopicPartition};
use tidegate_store::StoreError;

#[cfg(feature = "model")]
pub use model::{ParkedModel, ParkedRates};
pub(crate) use partition::{HeldUntil, LoadedRows, PartitionPark, StoreCallKind};
pub use sql::{migrate, migration_sql, parked_store, pending};

/// A call on its way, boxed so that the port is object-safe.
pub type ParkedFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A partition of a binding: its rows have one owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParkedIn {
    /// The binding, as the books name it: `group@topic`.
    pub component: String,
    /// The partition that its records lie in: of the topic, or of a tier.
    pub at: TopicPartition,
}

impl ParkedIn {
    /// The name of its lease.
    #[must_use]
    pub fn lease_name(&self) -> String {
        format!("connector/{}/{}", self.component, self.at)
    }
}

/// The right to change the rows of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a lease that nobody keeps runs out"]
pub struct ParkLease {
    /// The partition.
    pub of: ParkedIn,
    /// Larger than that of every owner before.
    pub token: i64,
}

/// A parked record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRow {
    /// Where it lies in its partition.
    pub offset: Offset,
    /// Its event.
    pub event_id: EventId,
    /// The record; its headers carry its history, as in a tier.
    pub record: Record,
    /// The tier whose delay and attempts are its own; 0 for one that was never handled.
    pub tier: TierIndex,
    /// Which delivery within that tier comes next, from 1.
    pub delivery: u32,
    /// Not before this time, in milliseconds since 1970.
    pub due_ms: u64,
    /// The topic that it is for as soon as it fits there; none for a record that is still to be handled.
    pub target: Option<Topic>,
}

/// Changes of the rows of a partition, as one transaction. A row is in one of them alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParkedChanges {
    /// Rows to be written, over those of the same offset.
    pub puts: BTreeMap<i64, ParkedRow>,
    /// Rows whose events were delivered: they are removed, with a posting for those that were there.
    pub delivered: BTreeSet<i64>,
    /// Rows that are removed without a posting: a commit of the log has it, or they were never counted.
    pub removed: BTreeSet<i64>,
}

impl ParkedChanges {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.delivered.is_empty() && self.removed.is_empty()
    }

    /// Puts changes that were not made before those that came later.
    pub(crate) fn put_back(&mut self, mut earlier: Self) {
        earlier
            .removed
            .retain(|offset| !self.puts.contains_key(offset));
        // A row that is on its way out must not come back when they are made once more.
        earlier
            .puts
            .retain(|offset, _| !self.delivered.contains(offset) && !self.removed.contains(offset));
        earlier.puts.append(&mut self.puts);
        self.puts = earlier.puts;
        self.delivered.append(&mut earlier.delivered);
        self.removed.append(&mut earlier.removed);
    }
}

/// Settled records above a committed offset, as the store keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressRow {
    /// Its number, which the commit names.
    pub id: i64,
    /// The offset from which its lengths count.
    pub next: i64,
    /// Its lengths, as in the text of a commit.
    pub lengths: Vec<u8>,
}

/// Progress that no commit names any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GoneProgress {
    /// This row.
    pub id: Option<i64>,
    /// Rows that were written for offsets below this one, which is committed.
    pub below: i64,
    /// Not this row, whatever its offset.
    pub but: Option<i64>,
}

/// The rows of a component and its postings, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParkedCount {
    /// Each row: where it lay, and its event.
    pub rows: Vec<(TopicPartition, Offset, EventId)>,
    /// The postings of the store.
    pub books: Books,
}

/// The store of bindings.
pub trait ParkedStore: Send + Sync + fmt::Debug {
    /// Whether other machines reach it too, so that its rows follow a partition there.
    fn is_shared(&self) -> bool;

    /// Takes the lease of a partition for `span`; none while another owner holds it.
    fn acquire<'a>(
        &'a self,
        of: &'a ParkedIn,
        owner: &'a str,
        span: Duration,
    ) -> ParkedFuture<'a, Option<ParkLease>>;

    /// Holds a lease for `span` from now, and says whether it was still ours.
    fn renew<'a>(&'a self, lease: &'a ParkLease, span: Duration) -> ParkedFuture<'a, bool>;

    /// Gives a lease back, so that the next owner need not wait.
    fn release<'a>(&'a self, lease: &'a ParkLease) -> ParkedFuture<'a, ()>;

    /// The next rows of a partition above an offset, in order; none when there are no more.
    fn rows<'a>(&'a self, of: &'a ParkedIn, above: i64) -> ParkedFuture<'a, Vec<ParkedRow>>;

    /// Makes changes if the lease is the newest, and says whether it was. Making the same ones again changes
    /// nothing.
    fn change<'a>(
        &'a self,
        lease: &'a ParkLease,
        changes: &'a ParkedChanges,
    ) -> ParkedFuture<'a, bool>;

    /// Writes progress.
    fn put_progress<'a>(&'a self, of: &'a ParkedIn, row: &'a ProgressRow) -> ParkedFuture<'a, ()>;

    /// Progress, by its number.
    fn progress<'a>(&'a self, of: &'a ParkedIn, id: i64) -> ParkedFuture<'a, Option<ProgressRow>>;

    /// Removes progress that no commit names any more.
    fn drop_progress<'a>(&'a self, of: &'a ParkedIn, gone: GoneProgress) -> ParkedFuture<'a, ()>;

    /// Counts the rows of a component, and reads its postings of the same moment.
    fn count<'a>(&'a self, component: &'a str) -> ParkedFuture<'a, ParkedCount>;

    /// The rows of an event.
    fn find<'a>(
        &'a self,
        component: &'a str,
        id: EventId,
    ) -> ParkedFuture<'a, Vec<(TopicPartition, ParkedRow)>>;

    /// Sums up old postings.
    fn fold<'a>(&'a self, component: &'a str) -> ParkedFuture<'a, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_on_its_way_out_does_not_come_back() {
        let row = |offset| ParkedRow {
            offset: Offset(offset),
            event_id: EventId::from_u128(7),
            record: Record::new("v"),
            tier: TierIndex(1),
            delivery: 1,
            due_ms: 0,
            target: None,
        };
        let earlier = ParkedChanges {
            puts: (1..=4).map(|offset| (offset, row(offset))).collect(),
            delivered: BTreeSet::from([8]),
            removed: BTreeSet::from([9]),
        };
        let mut newer = row(3);
        newer.delivery = 2;
        let mut changes = ParkedChanges {
            puts: BTreeMap::from([(3, newer.clone()), (9, row(9))]),
            delivered: BTreeSet::from([1]),
            removed: BTreeSet::from([2]),
        };
        changes.put_back(earlier);
        let puts: Vec<i64> = changes.puts.keys().copied().collect();
        assert_eq!((puts, &changes.puts[&3]), (vec![3, 4, 9], &newer));
        assert_eq!(changes.delivered, BTreeSet::from([1, 8]));
        assert_eq!(changes.removed, BTreeSet::from([2]));
    }
}
