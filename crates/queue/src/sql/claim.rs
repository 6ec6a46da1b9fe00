//! Claims, decided once for both databases.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::AssertSqlSafe;
use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_store::sql::{OwnColumns, SqlConnection, SqlList};
use tidegate_store::{span_ms, sqlx};

use super::columns::{ParkedKeys, place_of, small};
use super::decode::QueueRow;
use super::maintain::{read_registry, registry_version};
use crate::event::trace_of;
use crate::port::{
    Claim, ClaimRequest, Claimed, ClaimedEvent, HandlerState, Lane, LeaseId, POISON_STARVATION,
    Registry,
};

/// Which rows are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Those of which fewer than two leases ran out.
    Trusted,
    /// One of the others.
    Poison,
    /// One of those that have waited for long.
    Starved,
}

impl RowKind {
    pub(super) fn is_poison(self) -> bool {
        self != Self::Trusted
    }

    /// For how many leases more than others such a row has waited.
    pub(super) fn starvation(self) -> u32 {
        match self {
            Self::Trusted | Self::Poison => 0,
            Self::Starved => POISON_STARVATION,
        }
    }
}

/// Numbers of events that were claimed, before the events are read.
#[derive(Default)]
pub(super) struct ClaimedIds {
    leases: BTreeMap<i64, (LeaseId, u32, Place)>,
    pub(super) order: Vec<i64>,
    /// Batches with their events.
    pub(super) batches: Vec<(i64, Vec<i64>)>,
    /// Those of which leases ran out, and how many.
    abandoned: BTreeMap<i64, u32>,
}

impl ClaimedIds {
    /// Notes a batch, of which so many leases ran out.
    pub(super) fn batch(
        &mut self,
        (batch, token): (i64, i64),
        attempts: i64,
        abandoned: i64,
        ids: Vec<i64>,
    ) {
        let lease = LeaseId::Batch { batch, token };
        for id in &ids {
            let counts = (small(attempts), small(abandoned));
            self.note(*id, lease, counts, Place::Queued);
        }
        if !ids.is_empty() {
            self.batches.push((batch, ids));
        }
    }

    fn note(&mut self, id: i64, lease: LeaseId, (attempts, abandoned): (u32, u32), place: Place) {
        if abandoned > 0 {
            self.abandoned.insert(id, abandoned);
        }
        self.leases.insert(id, (lease, attempts, place));
        self.order.push(id);
    }

    /// The claim of an event, and how often it was claimed.
    pub(super) fn claim(&self, id: i64, event_id: EventId) -> Option<(Claim, u32)> {
        let (lease, attempts, place) = self.leases.get(&id)?.clone();
        let claim = Claim {
            id,
            event_id,
            lease,
            place,
            trace_id: None,
        };
        Some((claim, attempts))
    }

    /// Those that were claimed before.
    pub(super) fn claimed_again(&self) -> Vec<i64> {
        let is_again = |id: &i64| {
            self.leases
                .get(id)
                .is_some_and(|(_, attempts, _)| *attempts > 1)
        };
        self.order.iter().copied().filter(is_again).collect()
    }
}

/// Type, key, payload and headers of an event.
pub(super) type Texts = (String, Option<String>, String, BTreeMap<String, String>);

/// Events that were claimed, by number.
#[derive(Default)]
pub(super) struct ClaimedEvents(BTreeMap<i64, ClaimedEvent>);

impl ClaimedEvents {
    pub(super) fn add(
        &mut self,
        ids: &ClaimedIds,
        (mut claim, attempts): (Claim, u32),
        (type_name, key, payload, headers): Texts,
        created_ms: i64,
    ) {
        claim.trace_id = trace_of(&headers);
        let event = ClaimedEvent {
            type_name,
            key,
            payload,
            headers,
            created_ms,
            attempts,
            abandoned: ids.abandoned.get(&claim.id).copied().unwrap_or(0),
            is_blocked: false,
            states: Vec::new(),
            claim,
        };
        self.0.insert(event.claim.id, event);
    }

    pub(super) fn have_keys(&self) -> bool {
        self.0.values().any(|event| event.key.is_some())
    }

    /// Notes which of them have an earlier one of their key that is not finished.
    pub(super) fn block(&mut self, blocked: Vec<i64>) {
        let blocked: BTreeSet<i64> = blocked.into_iter().collect();
        for event in self.0.values_mut() {
            event.is_blocked |= blocked.contains(&event.claim.id);
        }
    }

    pub(super) fn add_state(&mut self, id: i64, state: HandlerState) {
        if let Some(event) = self.0.get_mut(&id) {
            event.states.push(state);
        }
    }

    pub(super) fn in_order(mut self, order: &[i64]) -> Vec<ClaimedEvent> {
        order.iter().filter_map(|id| self.0.remove(id)).collect()
    }
}

/// A claim under way.
pub(super) struct ClaimScan {
    pub(super) request: ClaimRequest,
    /// The time of this host.
    pub(super) now: i64,
    /// How far the looks for parked keys have come.
    pub(super) parked: ParkedKeys,
    /// There is no batch below.
    pub(super) floor: i64,
    /// The last number of a batch that was seen to be given out before.
    pub(super) known_batch: i64,
    /// The last number of a batch that was given out, where it was looked for.
    pub(super) last_batch: Option<i64>,
    pub(super) taken: ClaimedIds,
}

impl ClaimScan {
    /// When the claim ends without renewal, by the time of this host.
    pub(super) fn until(&self) -> i64 {
        self.now + span_ms(self.request.lease)
    }

    /// How many more events are asked for.
    pub(super) fn room(&self) -> u32 {
        let taken = u32::try_from(self.taken.order.len()).unwrap_or(u32::MAX);
        self.request.limit.saturating_sub(taken)
    }

    /// How many rows of this kind may be claimed. Where something that ran out was taken, no poison candidate comes
    /// with it.
    fn row_limit(&self, kind: RowKind) -> u32 {
        match kind {
            RowKind::Trusted => self.room(),
            RowKind::Poison | RowKind::Starved => {
                let is_free = self.request.include_poison && self.taken.abandoned.is_empty();
                self.room().min(u32::from(is_free))
            }
        }
    }

    /// Of these lanes, those whose rows are for this claimer; with a registry, also what was left for
    /// handlers that are not registered any more.
    fn served(&self, lanes: Vec<String>, registry: Option<&Registry>) -> Vec<String> {
        let filter = &self.request.filter;
        let is_served = |lane: &String| {
            let lane = Lane::parse(lane);
            let is_left = |registry| lane.is_left_to(filter, registry);
            lane.is_served_by(filter) || registry.is_some_and(is_left)
        };
        lanes.into_iter().filter(is_served).collect()
    }
}

/// The statements of claims.
pub(super) trait ClaimStatements: SqlConnection {
    /// The lanes there are, from one to the next by the index, without looking at what is in between.
    const LANES: &'static str;

    /// Takes over one batch that ran out; with `starvation` a poison candidate, which has waited so many
    /// leases more.
    fn take_over(
        &mut self,
        scan: &mut ClaimScan,
        starvation: u32,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Releases keys whose release was lost in a crash, before anything is claimed. PostgreSQL does it
    /// in [`reclaim_expired`](Self::reclaim_expired).
    fn release_stuck(
        &mut self,
        _scan: &mut ClaimScan,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        async { Ok(()) }
    }

    /// Takes over one batch that ran out.
    fn reclaim_expired(
        &mut self,
        scan: &mut ClaimScan,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Claims rows of these lanes: number, token, attempts, place and leases that ran out.
    fn claim_rows(
        &mut self,
        scan: &ClaimScan,
        lanes: &[String],
        kind: RowKind,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;

    /// Claims what nobody has claimed before, and gives the version of the registry.
    fn claim_fresh(
        &mut self,
        scan: &mut ClaimScan,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Reads the events that were claimed, with the time of the database.
    fn read_claimed(
        &mut self,
        scan: &ClaimScan,
    ) -> impl Future<Output = Result<(ClaimedEvents, i64), sqlx::Error>> + Send;

    /// Which events of a batch have an earlier one of their key that is not finished.
    fn blocked(
        &mut self,
        batch: i64,
        ids: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Extends leases, or gives them back, and gives those that were lost.
    fn renew(
        &mut self,
        leases: Vec<LeaseId>,
        lease_ms: i64,
        now: i64,
    ) -> impl Future<Output = Result<Vec<LeaseId>, sqlx::Error>> + Send;

    /// Gives a batch a new token, and says which of its events are open.
    fn reopen(
        &mut self,
        batch: i64,
        token: i64,
    ) -> impl Future<Output = Result<Option<(i64, Vec<i64>)>, sqlx::Error>> + Send;
}

/// Claims batches that ran out, rows that are due, then what is fresh.
pub(super) async fn claim<C: ClaimStatements>(
    db: &mut C,
    mut scan: ClaimScan,
) -> Result<(Claimed, ClaimScan), sqlx::Error> {
    let is_reclaim = scan.request.reclaim_expired;
    if is_reclaim {
        db.release_stuck(&mut scan).await?;
    }
    if is_reclaim && scan.request.isolate && scan.request.include_poison {
        db.take_over(&mut scan, POISON_STARVATION).await?;
        look_at_rows(db, &mut scan, &[RowKind::Starved]).await?;
    }
    let is_isolated = !scan.taken.order.is_empty();
    if is_reclaim && !is_isolated {
        db.reclaim_expired(&mut scan).await?;
    }
    if !is_isolated {
        look_at_rows(db, &mut scan, &[RowKind::Trusted, RowKind::Poison]).await?;
    }
    let registry = if !is_isolated && scan.room() > 0 {
        db.claim_fresh(&mut scan).await?
    } else {
        registry_version(db).await?
    };
    let (events, now_ms) = read(db, &scan).await?;
    let claimed = Claimed {
        events,
        is_isolated,
        registry,
        now_ms,
    };
    Ok((claimed, scan))
}

/// Whether the release of a key was lost: its first row, `head`, is parked, and no earlier event of
/// the key is claimed with a batch.
pub(super) fn is_stuck(head: i64, is_due: bool, claimed: Option<i64>) -> bool {
    !is_due && claimed.is_none_or(|claimed| claimed > head)
}

/// Claims rows of these kinds, one after the other.
async fn look_at_rows<C: ClaimStatements>(
    db: &mut C,
    scan: &mut ClaimScan,
    kinds: &[RowKind],
) -> Result<(), sqlx::Error> {
    if !scan.request.include_delayed || scan.room() == 0 {
        return Ok(());
    }
    let lanes: Vec<String> = db.fetch_all(C::LANES, &[]).await?;
    let registry = match scan.request.reclaim_expired && !lanes.is_empty() {
        true => Some(read_registry(db).await?),
        false => None,
    };
    let lanes = scan.served(lanes, registry.as_ref());
    for kind in kinds {
        let limit = scan.row_limit(*kind);
        if lanes.is_empty() || limit == 0 {
            continue;
        }
        for row in db.claim_rows(scan, &lanes, *kind, limit).await? {
            let (id, token) = (row.get(0)?, row.get(1)?);
            let counts = (row.count(2)?, row.count(4)?);
            let place = place_of(&row.get::<String>(3)?);
            scan.taken
                .note(id, LeaseId::Row { id, token }, counts, place);
        }
    }
    Ok(())
}

/// Reads the events that were claimed. The claim stands already: should this fail, its lease runs
/// out and somebody else reads them.
async fn read<C: ClaimStatements>(
    db: &mut C,
    scan: &ClaimScan,
) -> Result<(Vec<ClaimedEvent>, i64), sqlx::Error> {
    let taken = &scan.taken;
    if taken.order.is_empty() {
        return Ok((Vec::new(), scan.now));
    }
    let (mut events, now_ms) = db.read_claimed(scan).await?;
    if events.have_keys() {
        for (batch, ids) in &taken.batches {
            events.block(db.blocked(*batch, ids).await?);
        }
    }
    // A first claim finds nothing that a handler has said before.
    let again = taken.claimed_again();
    if !again.is_empty() {
        let sql = format!(
            "SELECT id, handler_id, result, attempts, error FROM tidegate_handler_state
             WHERE id {}",
            C::IN_LIST
        );
        for row in db.rows(AssertSqlSafe(sql), &[&SqlList(&again)]).await? {
            events.add_state(row.get(0)?, row.handler_state(1)?);
        }
    }
    Ok((events.in_order(&taken.order), now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_stuck_where_nothing_before_its_parked_row_is_claimed() {
        assert!(is_stuck(5, false, None));
        assert!(is_stuck(5, false, Some(6)));
        assert!(!is_stuck(5, false, Some(4)), "the earlier one releases it");
        assert!(!is_stuck(5, true, None), "it is not parked");
    }
}
