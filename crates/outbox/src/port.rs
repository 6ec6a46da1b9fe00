//! The store of the outbox: what a relay and its operators need of a database.
//!
//! Each method is one transaction. So a crash between any two calls is a case that the simulation plays,
//! and inside a call the database is atomic.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tidegate_core::EventId;
use tidegate_core::books::{Account, Books, Place};
use tidegate_core::env::BoxFuture;

use crate::recount::OutboxRecount;
use crate::{NewOutboxEvent, OutboxError};

/// A call on its way, boxed so that the port is object-safe.
pub type OutboxFuture<'a, T> = BoxFuture<'a, Result<T, OutboxError>>;

/// The state of a row, as users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum OutboxStatus {
    /// It waits for its turn or for its next attempt.
    Pending,
    /// A relay is publishing it.
    Claimed,
    /// It is in its topic.
    Sent,
    /// It was given up on, and is in the topic of dead letters.
    Dead,
}

impl OutboxStatus {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Claimed, Self::Sent, Self::Dead];

    /// The word in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Claimed => "CLAIMED",
            Self::Sent => "SENT",
            Self::Dead => "DEAD",
        }
    }

    /// The status with this word, in upper or lower case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|status| status.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for OutboxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row, as operators see it. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutboxRow {
    /// Its number.
    pub id: i64,
    /// The id of its event.
    pub event_id: EventId,
    /// The kind of its aggregate.
    pub aggregate_type: Option<String>,
    /// Its key.
    pub aggregate_id: String,
    /// The type of its event.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its topic, where it names one.
    pub topic: Option<String>,
    /// The content; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Bytes of the content.
    pub payload_bytes: i64,
    /// Its headers, as JSON.
    pub headers: Option<String>,
    /// When it was inserted.
    pub created_at: i64,
    /// Whether it is in its topic.
    pub sent: bool,
    /// Its state.
    pub status: OutboxStatus,
    /// Attempts that failed.
    pub attempts: u32,
    /// The relay that is publishing it, or did so last.
    pub locked_by: Option<String>,
    /// When that relay claimed it.
    pub locked_at: Option<i64>,
    /// When it was sent.
    pub sent_at: Option<i64>,
    /// When an attempt failed last.
    pub last_error_at: Option<i64>,
    /// Before this it is not tried again.
    pub next_attempt_at: Option<i64>,
    /// Why an attempt failed last.
    pub last_error: Option<String>,
}

impl OutboxRow {
    /// Where its event is, in the words of the books.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.status {
            OutboxStatus::Claimed => Place::InFlight,
            OutboxStatus::Pending | OutboxStatus::Sent | OutboxStatus::Dead => {
                place_of(self.status, self.attempts)
            }
        }
    }
}

/// Where an event is by the columns of its row. A claim moves nothing: it is a lease on a row that stays
/// where it was.
pub(crate) fn place_of(status: OutboxStatus, attempts: u32) -> Place {
    match (status, attempts) {
        (OutboxStatus::Pending | OutboxStatus::Claimed, 0) => Place::Queued,
        (OutboxStatus::Pending | OutboxStatus::Claimed, _) => Place::Retrying,
        (OutboxStatus::Sent, _) => Place::Delivered,
        (OutboxStatus::Dead, _) => Place::DeadLettered,
    }
}

/// Which rows to list, by ascending number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxFilter {
    /// Only those in this state; none for all that are not sent.
    pub status: Option<OutboxStatus>,
    /// Only those of this key.
    pub aggregate_id: Option<String>,
    /// Only those above this number.
    pub after: i64,
    /// At most this many.
    pub limit: u32,
}

impl Default for OutboxFilter {
    fn default() -> Self {
        Self {
            status: None,
            aggregate_id: None,
            after: 0,
            limit: 100,
        }
    }
}

/// Which rows an operator means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSelection {
    /// The one with this number.
    Id(i64),
    /// The one with this event.
    Event(EventId),
    /// All of them.
    All,
}

/// Which rows to remove for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeRequest {
    /// [`OutboxStatus::Sent`] or [`OutboxStatus::Dead`].
    pub status: OutboxStatus,
    /// Only those that were sent, or failed last, before this time in milliseconds since 1970.
    pub before_ms: i64,
    /// At most this many in one transaction.
    pub limit: u32,
}

/// The numbers of a table, as of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct OutboxStats {
    /// Rows that wait, due or not.
    pub pending: i64,
    /// Of these, rows that wait for another attempt.
    pub retrying: i64,
    /// Rows that a relay is publishing.
    pub claimed: i64,
    /// Rows that were given up on.
    pub dead: i64,
    /// Age of the oldest row that is neither sent nor dead, in milliseconds.
    pub oldest_age_ms: Option<i64>,
    /// Relays that are alive.
    pub relays: i64,
}

/// A bucket that a relay owns, with the token of that ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketLease {
    /// The bucket.
    pub bucket: u32,
    /// Larger than that of every owner before.
    pub token: i64,
}

/// The leases of a relay after it asked for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayLeases {
    /// The buckets that it owns.
    pub held: Vec<BucketLease>,
    /// Relays that are alive, this one included.
    pub relays: u32,
}

/// A bucket to claim from, and how far it was claimed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketCursor {
    /// The bucket.
    pub lease: BucketLease,
    /// Rows up to this number are passed over.
    pub after: i64,
}

/// A claim of the next rows of some buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowClaim {
    /// The relay.
    pub worker: String,
    /// Which of its lanes; a claim takes the place of the one before.
    pub lane: u32,
    /// The buckets.
    pub buckets: Vec<BucketCursor>,
    /// Rows above this number are left alone. See [`ClaimedRows::up_to`].
    pub up_to: Option<i64>,
    /// At most so many rows.
    pub limit: u32,
    /// At most so many of one bucket, which keeps a store from reading far more than it gives. One that reads all
    /// buckets together need not care.
    pub per_bucket: u32,
}

/// A row to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRow {
    /// Its number.
    pub id: i64,
    /// Its bucket.
    pub bucket: u32,
    /// The id of its event.
    pub event_id: EventId,
    /// Its key.
    pub aggregate_id: String,
    /// The kind of its aggregate.
    pub aggregate_type: Option<String>,
    /// The type of its event.
    pub type_name: String,
    /// Its topic, where it names one.
    pub topic: Option<String>,
    /// The content; none is a tombstone.
    pub payload: Option<Bytes>,
    /// Its headers, as JSON.
    pub headers: Option<String>,
    /// Attempts that failed before.
    pub attempts: u32,
    /// When it was inserted, in milliseconds since 1970.
    pub created_ms: i64,
}

impl ClaimedRow {
    /// The trace that its event belongs to, where its headers name one; for the log.
    #[must_use]
    pub fn trace_id(&self) -> Option<String> {
        let headers: serde_json::Value = serde_json::from_str(self.headers.as_deref()?).ok()?;
        let parent = headers.get("traceparent")?.as_str()?;
        parent.split('-').nth(1).map(str::to_owned)
    }
}

/// The rows of a claim, by ascending number within each bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimedRows {
    /// The rows.
    pub rows: Vec<ClaimedRow>,
    /// Whether every lease of the claim was still held; if not, there are no rows.
    pub is_held: bool,
    /// Whether a limit was reached, so that there may be more.
    pub has_more: bool,
    /// The largest number that was visible. A row up to here that becomes visible later has no
    /// predecessor of its key that this claim did not see. So claims up to here may go on behind
    /// the rows that were claimed.
    pub up_to: i64,
}

/// The fate of a row, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledRow {
    /// Its number.
    pub id: i64,
    /// The id of its event.
    pub event_id: EventId,
    /// Attempts that had failed when it was claimed.
    pub attempts_before: u32,
    /// Its fate.
    pub to: SettledTo,
}

/// The fate of a row, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettledTo {
    /// It is in its topic.
    Sent,
    /// It is tried again after this time.
    Retry {
        /// The wait, from the moment of the settle.
        wait: Duration,
        /// Why it failed.
        error: String,
    },
    /// It is in the topic of dead letters.
    Dead {
        /// Why it failed.
        error: String,
    },
}

impl SettledRow {
    /// Attempts that have failed by now.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        match self.to {
            SettledTo::Sent => self.attempts_before,
            SettledTo::Retry { .. } | SettledTo::Dead { .. } => {
                self.attempts_before.saturating_add(1)
            }
        }
    }

    /// Where its event was, and where it is.
    #[must_use]
    pub fn places(&self) -> (Place, Place) {
        let from = place_of(OutboxStatus::Pending, self.attempts_before);
        let to = match self.to {
            SettledTo::Sent => Place::Delivered,
            SettledTo::Retry { .. } => Place::Retrying,
            SettledTo::Dead { .. } => Place::DeadLettered,
        };
        (from, to)
    }
}

/// The end of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSettlement {
    /// The relay.
    pub worker: String,
    /// Which of its lanes.
    pub lane: u32,
    /// The leases under which the rows were claimed.
    pub leases: Vec<BucketLease>,
    /// The rows whose state changes; the others of the claim stay as they are.
    pub rows: Vec<SettledRow>,
}

/// How a settle ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// All of it was written down.
    Done,
    /// A lease had another owner meanwhile; nothing was changed.
    Fenced,
    /// These rows were changed or removed by somebody else, and were left alone; the others are written
    /// down.
    Foreign(Vec<i64>),
}

/// The store of the outbox.
pub trait OutboxStore: Send + Sync + fmt::Debug {
    /// Adds events in a transaction of their own and gives their ids.
    fn insert<'a>(&'a self, events: &'a [NewOutboxEvent]) -> OutboxFuture<'a, Vec<EventId>>;

    /// Renews the leases of a relay for `span`, together with its own sign of life. Gives those that it
    /// still holds.
    fn renew<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        span: Duration,
    ) -> OutboxFuture<'a, RelayLeases>;

    /// Takes at most `count` buckets that nobody owns, for `span`.
    fn acquire<'a>(
        &'a self,
        worker: &'a str,
        count: u32,
        span: Duration,
    ) -> OutboxFuture<'a, Vec<BucketLease>>;

    /// Gives buckets back, so that the next owner need not wait. A relay that `is_leaving` is no relay any
    /// more.
    fn release<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        is_leaving: bool,
    ) -> OutboxFuture<'a, ()>;

    /// Claims the next rows, in the order of their keys. A row that waits holds up its key.
    fn claim(&self, claim: RowClaim) -> OutboxFuture<'_, ClaimedRows>;

    /// Writes down what became of the rows of a claim, with its postings, if all its leases are held.
    fn settle<'a>(&'a self, settlement: &'a BatchSettlement) -> OutboxFuture<'a, Settled>;

    /// Lists rows, without their payload.
    fn list<'a>(&'a self, filter: &'a OutboxFilter) -> OutboxFuture<'a, Vec<OutboxRow>>;

    /// One row, with its payload.
    fn show<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, Option<OutboxRow>>;

    /// Makes DEAD rows PENDING again, and rows that wait due at once. Gives how many.
    fn retry<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, u64>;

    /// Removes rows for good, and posts what it removes. Gives how many.
    fn purge(&self, request: PurgeRequest) -> OutboxFuture<'_, u64>;

    /// Removes SENT rows that are older than `retention`, at most so many, and sums up old postings. Gives
    /// how many rows it removed.
    fn clean(&self, retention: Option<Duration>, limit: u32) -> OutboxFuture<'_, u64>;

    /// The numbers of the table.
    fn stats(&self) -> OutboxFuture<'_, OutboxStats>;

    /// Where the events are by the books.
    fn account(&self) -> OutboxFuture<'_, Account>;

    /// The books with their sums of ids, without a look at a row.
    fn books(&self) -> OutboxFuture<'_, Books>;

    /// Counts the table as of one moment and reads the books of the same moment. Of the rows that are SENT
    /// or DEAD it gives what is needed to look for them in their topics.
    fn recount(&self) -> OutboxFuture<'_, OutboxRecount>;

    /// Whether it answers.
    fn ping(&self) -> OutboxFuture<'_, ()>;
}
