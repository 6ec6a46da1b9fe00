//! Claims: what is claimed, and by what right.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::{EventId, TraceId};

use super::HandlerState;

/// The handlers of a claimer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerFilter {
    /// Whatever there is; for polling by hand.
    All,
    /// These handlers, by type.
    Handlers(BTreeMap<String, BTreeSet<String>>),
}

/// A request to claim events.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Who claims, as it is shown in `locked_by`.
    pub owner: String,
    /// How many events at most.
    pub limit: u32,
    /// How long the claim holds without renewal.
    pub lease: Duration,
    /// For which handlers.
    pub filter: HandlerFilter,
    /// Whether to look for claims that ran out.
    pub reclaim_expired: bool,
    /// Whether to look for events with a row of their own: retried, released, left by others.
    pub include_delayed: bool,
    /// Whether a poison candidate may be among it, where that look finds nothing else that ran out: an event of
    /// which [`POISON_AFTER`] leases ran out. It comes alone, each time one lease later, ten at most.
    pub include_poison: bool,
    /// Whether a poison candidate that has waited for [`POISON_STARVATION`] leases more than it had to comes first, and
    /// alone: for a claimer that holds nothing, and claims nothing while it has it. Where processes go
    /// on dying, there is always something else that ran out, and poison candidates would wait for ever.
    pub isolate: bool,
}

/// So many leases does a poison candidate wait for what ran out otherwise.
pub const POISON_STARVATION: u32 = 10;

/// So many leases of an event that ran out, one after the other, make it a poison candidate: it may be what takes
/// processes down. Fewer happen to anybody who was in a batch with it, or on a host that stood still.
pub const POISON_AFTER: u32 = 2;

/// By which lease an event is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseId {
    /// As one of a batch.
    Batch {
        /// The batch.
        batch: i64,
        /// The token of this claim.
        token: i64,
    },
    /// By itself.
    Row {
        /// The event.
        id: i64,
        /// The token of this claim.
        token: i64,
    },
}

/// The token that those of a redriven event go on from: the time in microseconds. The event may have had a row
/// before, and whoever stood still may have a claim of that; no count of claims comes so far.
pub(crate) fn first_token(now_ms: i64) -> i64 {
    now_ms.saturating_mul(1_000)
}

/// The right to settle one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The number of the event.
    pub id: i64,
    /// Its id.
    pub event_id: EventId,
    /// By which lease.
    pub lease: LeaseId,
    /// Where it is in the books.
    pub place: Place,
    /// The trace of its event, for log lines.
    pub trace_id: Option<TraceId>,
}

/// One event that was claimed.
#[derive(Debug, Clone)]
pub struct ClaimedEvent {
    /// The right to settle it.
    pub claim: Claim,
    /// Its type.
    pub type_name: String,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// Its JSON.
    pub payload: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// When it was published, in milliseconds since 1970.
    pub created_ms: i64,
    /// How often it was claimed, this time included.
    pub attempts: u32,
    /// How many of its leases ran out, one after the other, without an answer. A lease that was given
    /// back did not run out, and that of a poison candidate counts only when it was renewed: otherwise its owner
    /// may never have heard of it.
    pub abandoned: u32,
    /// Whether an earlier event of its key is not finished yet. It must be parked.
    pub is_blocked: bool,
    /// The results of its handlers before.
    pub states: Vec<HandlerState>,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// The events.
    pub events: Vec<ClaimedEvent>,
    /// Whether it is a poison candidate that is to stay alone.
    pub is_isolated: bool,
    /// The version of the registry when they were claimed.
    pub registry: u64,
    /// The time of the store, in milliseconds since 1970.
    pub now_ms: i64,
}
