//! Claiming in the model.

use super::state::{Batch, RowState, State, Stored, Where};
use crate::port::{Claim, ClaimRequest, Claimed, ClaimedEvent, Held, Lane};
use tidegate_core::books::Place;

impl State {
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: i64) -> Claimed {
        let until = now + super::ms(request.lease);
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let mut taken: Vec<i64> = Vec::new();
        if request.rescue {
            let keys: Vec<String> = self.parked_keys();
            self.release(keys.iter().map(String::as_str), now);
            taken.extend(self.rescue(request, limit, now, until));
        }
        if request.rows {
            let room = limit - taken.len();
            taken.extend(self.claim_rows(request, room, now, until));
        }
        let waiting = self.events.iter();
        let waiting = waiting.filter(|(_, stored)| matches!(stored.at, Where::Waiting));
        let room = limit - taken.len();
        let fresh: Vec<i64> = waiting.map(|(id, _)| *id).take(room).collect();
        if !fresh.is_empty() {
            self.new_batch(&fresh, 1, &request.owner, until);
            taken.extend(fresh);
        }
        Claimed {
            events: taken.iter().filter_map(|id| self.claimed(*id)).collect(),
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

    fn new_batch(&mut self, ids: &[i64], attempts: u32, owner: &str, until: i64) {
        self.next_batch += 1;
        let batch = Batch {
            token: 1,
            attempts,
            owner: owner.to_owned(),
            until,
        };
        self.batches.insert(self.next_batch, batch);
        for id in ids {
            if let Some(stored) = self.events.get_mut(id) {
                stored.at = Where::Batch(self.next_batch);
            }
        }
    }

    fn rescue(&mut self, request: &ClaimRequest, limit: usize, now: i64, until: i64) -> Vec<i64> {
        let expired = self.batches.iter().find(|(_, batch)| batch.until < now);
        let Some((id, batch)) = expired.map(|(id, batch)| (*id, batch.clone())) else {
            return Vec::new();
        };
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
            self.new_batch(&ids, batch.attempts + 1, &request.owner, until);
            return ids;
        }
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.token += 1;
            batch.attempts += 1;
            batch.owner.clone_from(&request.owner);
            batch.until = until;
        }
        ids
    }

    fn claim_rows(
        &mut self,
        request: &ClaimRequest,
        room: usize,
        now: i64,
        until: i64,
    ) -> Vec<i64> {
        let due = self
            .events
            .iter()
            .filter_map(|(id, stored)| match &stored.at {
                Where::Row(row) => {
                    let due = row.due.filter(|due| *due <= now)?;
                    let lane = Lane::parse(&row.lane);
                    let is_served = lane.is_served_by(&request.serves)
                        || (request.rescue && lane.is_left_to(&request.serves, &self.registry));
                    is_served.then_some((due, *id))
                }
                Where::Waiting | Where::Batch(_) | Where::Log(_) => None,
            });
        let mut due: Vec<(i64, i64)> = due.collect();
        due.sort_unstable();
        due.truncate(room);
        for (_, id) in &due {
            if let Some(row) = self.row(*id) {
                row.token += 1;
                row.attempts += 1;
                row.due = Some(until);
                row.locked_by = Some(request.owner.clone());
            }
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn row(&mut self, id: i64) -> Option<&mut RowState> {
        match self.events.get_mut(&id) {
            Some(Stored {
                at: Where::Row(row),
                ..
            }) => Some(row),
            Some(_) | None => None,
        }
    }

    fn claimed(&self, id: i64) -> Option<ClaimedEvent> {
        let stored = self.events.get(&id)?;
        let (held, attempts, place, batch) = match &stored.at {
            Where::Batch(batch) => {
                let of = self.batches.get(batch)?;
                let held = Held::Batch {
                    batch: *batch,
                    token: of.token,
                };
                (held, of.attempts, Place::Queued, Some(*batch))
            }
            Where::Row(row) => {
                let held = Held::Row {
                    id,
                    token: row.token,
                };
                (held, row.attempts, row.place.clone(), None)
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
                held,
                place,
            },
            type_name: stored.event.type_name.clone(),
            key: stored.event.key.clone(),
            payload: stored.event.payload.clone(),
            headers: stored.event.headers.clone(),
            created_ms: stored.created_ms,
            attempts,
            is_blocked,
            states: states.map(|(_, state)| state.clone()).collect(),
        })
    }

    pub(super) fn renew(&mut self, held: &[Held], until: i64) -> Vec<Held> {
        let mut lost = Vec::new();
        for one in held {
            let is_kept = match *one {
                Held::Batch { batch, token } => match self.batches.get_mut(&batch) {
                    Some(batch) if batch.token == token => {
                        batch.until = until;
                        true
                    }
                    Some(_) | None => false,
                },
                Held::Row { id, token } => match self.row(id) {
                    Some(row) if row.token == token && row.locked_by.is_some() => {
                        row.due = Some(until);
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
