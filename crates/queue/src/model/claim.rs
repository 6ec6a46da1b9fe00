//! Claiming in the model.

use super::state::{ModelBatch, ModelEvent, ModelState, RowState, Where};
use crate::event::trace_of;
use crate::port::{
    Claim, ClaimRequest, Claimed, ClaimedEvent, Lane, LeaseId, POISON_AFTER, POISON_STARVATION,
};
use tidegate_core::books::Place;
use tidegate_store::span_ms;

impl ModelState {
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: i64) -> Claimed {
        let until = now + span_ms(request.lease);
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let mut taken: Vec<i64> = Vec::new();
        if request.reclaim_expired {
            let keys: Vec<String> = self.parked_keys();
            self.release(keys.iter().map(String::as_str), now);
            if request.isolate && request.include_poison {
                taken.extend(self.reclaim_expired(request, limit, (now, until), POISON_STARVATION));
            }
            if request.isolate && taken.is_empty() {
                let starved = Some(POISON_STARVATION);
                taken.extend(self.claim_rows(request, limit, &[], (now, until), starved));
            }
        }
        if !taken.is_empty() {
            return self.gives(&taken, true, now);
        }
        if request.reclaim_expired {
            taken.extend(self.reclaim_expired(request, limit, (now, until), 0));
        }
        for starvation in [None, Some(0)] {
            let room = limit - taken.len();
            taken.extend(self.claim_rows(request, room, &taken, (now, until), starvation));
        }
        let waiting = self.events.iter();
        let waiting = waiting.filter(|(_, stored)| matches!(stored.at, Where::Waiting));
        let room = limit - taken.len();
        let fresh: Vec<i64> = waiting.map(|(id, _)| *id).take(room).collect();
        if !fresh.is_empty() {
            self.new_batch(&fresh, (1, 0), &request.owner, (now, until));
            taken.extend(fresh);
        }
        self.gives(&taken, false, now)
    }

    fn gives(&self, taken: &[i64], is_isolated: bool, now: i64) -> Claimed {
        Claimed {
            events: taken.iter().filter_map(|id| self.claimed(*id)).collect(),
            is_isolated,
            registry: self.registry.version,
            now_ms: now,
        }
    }

    fn parked_keys(&self) -> Vec<String> {
        let parked = self.events.values().filter_map(|stored| match &stored.at {
            Where::Row(row) if row.due.is_none() => stored.event.key.clone(),
            Where::Row(_) | Where::Waiting | Where::Batch(_) | Where::Log(_) => None,
        });
        let mut keys: Vec<String> = parked.collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// A batch with so many attempts, of which so many leases ran out.
    fn new_batch(&mut self, ids: &[i64], counts: (u32, u32), owner: &str, times: (i64, i64)) {
        self.next_batch += 1;
        let (attempts, abandoned) = counts;
        let (since, until) = times;
        let batch = ModelBatch {
            token: 1,
            attempts,
            owner: owner.to_owned(),
            since,
            until,
            abandoned,
            is_confirmed: abandoned < POISON_AFTER,
        };
        self.batches.insert(self.next_batch, batch);
        for id in ids {
            self.put(*id, Where::Batch(self.next_batch));
        }
    }

    fn reclaim_expired(
        &mut self,
        request: &ClaimRequest,
        limit: usize,
        (now, until): (i64, i64),
        starvation: u32,
    ) -> Vec<i64> {
        let expired = self.batches.iter().filter(|(_, batch)| {
            let ran_out = (batch.ran_out(), batch.until);
            batch.until < now && may_be_taken(ran_out, request, now, starvation)
        });
        let expired = expired.min_by_key(|(id, batch)| (batch.ran_out() >= POISON_AFTER, **id));
        let Some((id, batch)) = expired.map(|(id, batch)| (*id, batch.clone())) else {
            return Vec::new();
        };
        let abandoned = batch.ran_out();
        let limit = limit.min(if abandoned >= POISON_AFTER { 1 } else { limit });
        let mut ids = self.in_batch(id);
        if ids.is_empty() {
            self.batches.remove(&id);
            return Vec::new();
        }
        if ids.len() > limit {
            ids.truncate(limit);
            if let Some(batch) = self.batches.get_mut(&id) {
                batch.token += 1;
            }
            let counts = (batch.attempts + 1, abandoned);
            self.new_batch(&ids, counts, &request.owner, (now, until));
            return ids;
        }
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.token += 1;
            batch.attempts += 1;
            batch.abandoned = abandoned;
            batch.is_confirmed = abandoned < POISON_AFTER;
            batch.owner.clone_from(&request.owner);
            batch.since = now;
            batch.until = until;
        }
        ids
    }

    /// Claims rows that are due; with `starvation` one that is a poison candidate, where nothing that ran
    /// out was taken.
    fn claim_rows(
        &mut self,
        request: &ClaimRequest,
        room: usize,
        taken: &[i64],
        (now, until): (i64, i64),
        starvation: Option<u32>,
    ) -> Vec<i64> {
        let is_abandoned = |id: &i64| self.claimed(*id).is_some_and(|e| e.abandoned > 0);
        let room = match starvation {
            None => room,
            Some(_) if taken.iter().any(is_abandoned) => 0,
            Some(_) => room.min(1),
        };
        let due = self.events.iter().filter_map(|(id, stored)| {
            let Where::Row(row) = &stored.at else {
                return None;
            };
            let due = row.due.filter(|due| *due <= now)?;
            let is_wanted = (row.ran_out() >= POISON_AFTER) == starvation.is_some()
                && may_be_taken((row.ran_out(), due), request, now, starvation.unwrap_or(0))
                && self.is_served(row, request);
            is_wanted.then_some((due, *id))
        });
        let mut due: Vec<(i64, i64)> = due.filter(|_| request.include_delayed).collect();
        due.sort_unstable();
        due.truncate(room);
        for (_, id) in &due {
            self.take_row(*id, request, until);
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    fn is_served(&self, row: &RowState, request: &ClaimRequest) -> bool {
        let lane = Lane::parse(&row.lane);
        lane.is_served_by(&request.filter)
            || (request.reclaim_expired && lane.is_left_to(&request.filter, &self.registry))
    }

    fn take_row(&mut self, id: i64, request: &ClaimRequest, until: i64) {
        if let Some(row) = self.row(id) {
            row.abandoned = row.ran_out();
            row.is_confirmed = row.abandoned < POISON_AFTER;
            row.token += 1;
            row.attempts += 1;
            row.due = Some(until);
            row.locked_by = Some(request.owner.clone());
        }
    }

    pub(super) fn row(&mut self, id: i64) -> Option<&mut RowState> {
        match self.events.get_mut(&id) {
            Some(ModelEvent {
                at: Where::Row(row),
                ..
            }) => Some(row),
            Some(_) | None => None,
        }
    }

    fn claimed(&self, id: i64) -> Option<ClaimedEvent> {
        let stored = self.events.get(&id)?;
        let (lease, attempts, abandoned, place, batch) = match &stored.at {
            Where::Batch(batch) => {
                let of = self.batches.get(batch)?;
                let lease = LeaseId::Batch {
                    batch: *batch,
                    token: of.token,
                };
                let counts = (of.attempts, of.abandoned);
                (lease, counts.0, counts.1, Place::Queued, Some(*batch))
            }
            Where::Row(row) => {
                let lease = LeaseId::Row {
                    id,
                    token: row.token,
                };
                (lease, row.attempts, row.abandoned, row.place.clone(), None)
            }
            Where::Waiting | Where::Log(_) => return None,
        };
        let key = stored.event.key.as_deref();
        let is_blocked = batch.is_some() && key.is_some_and(|key| self.is_held_up(key, id, batch));
        let states = self
            .states
            .range((id, String::new())..(id + 1, String::new()));
        Some(ClaimedEvent {
            claim: Claim {
                id,
                event_id: stored.event.event_id,
                lease,
                place,
                trace_id: trace_of(&stored.event.headers),
            },
            type_name: stored.event.type_name.clone(),
            key: stored.event.key.clone(),
            payload: stored.event.payload.clone(),
            headers: stored.event.headers.clone(),
            created_ms: stored.created_ms,
            attempts,
            abandoned,
            is_blocked,
            states: states.map(|(_, state)| state.clone()).collect(),
        })
    }

    pub(super) fn renew(&mut self, leases: &[LeaseId], now: i64, lease: i64) -> Vec<LeaseId> {
        let (until, is_given_back) = (now + lease, lease == 0);
        let mut lost = Vec::new();
        for one in leases {
            let is_kept = match *one {
                LeaseId::Batch { batch, token } => match self.batches.get_mut(&batch) {
                    Some(batch) if batch.token == token => {
                        batch.until = until;
                        batch.is_confirmed = true;
                        if is_given_back {
                            batch.owner.clear();
                        }
                        true
                    }
                    Some(_) | None => false,
                },
                LeaseId::Row { id, token } => match self.row(id) {
                    Some(row) if row.token == token && row.locked_by.is_some() => {
                        row.due = Some(until);
                        row.is_confirmed = true;
                        row.locked_by.take_if(|_| is_given_back);
                        true
                    }
                    Some(_) | None => false,
                },
            };
            if !is_kept {
                lost.push(*one);
            }
        }
        lost
    }

    pub(super) fn reopen(&mut self, batch: i64, token: i64) -> Option<(i64, Vec<i64>)> {
        let found = self.batches.get_mut(&batch)?;
        if found.token != token {
            return None;
        }
        found.token += 1;
        let token = found.token;
        Some((token, self.in_batch(batch)))
    }
}

/// Whether what was due at `since` may be taken now. A poison candidate comes each time one lease later, ten at
/// most; with `starvation` only a poison candidate may, and so many leases later.
fn may_be_taken(
    (ran_out, since): (u32, i64),
    request: &ClaimRequest,
    now: i64,
    starvation: u32,
) -> bool {
    match ran_out.checked_sub(POISON_AFTER) {
        None => starvation == 0,
        Some(alone) => {
            let pause = i64::from(alone.min(10) + starvation) * span_ms(request.lease);
            request.include_poison && since <= now - pause
        }
    }
}
