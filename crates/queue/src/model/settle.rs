//! Settling in the model.

use tidegate_store::span_ms;

use super::state::{Logged, ModelState, RowState, Where};
use super::tx::PendingWrites;
use crate::QueueError;
use crate::port::{Claim, Disposition, HandlerCommit, Leadership, LeaseId, Settlement, Transition};

impl ModelState {
    /// How often the event of a claim was claimed, if the claim still holds.
    fn fence(&mut self, claim: &Claim) -> Option<u32> {
        match claim.lease {
            LeaseId::Batch { batch, token } => {
                let found = self.batches.get(&batch)?;
                let stored = self.events.get(&claim.id)?;
                let is_in_it = matches!(stored.at, Where::Batch(of) if of == batch);
                (found.token == token && is_in_it).then_some(found.attempts)
            }
            LeaseId::Row { id, token } => {
                let row = self.row(id)?;
                (row.token == token && row.locked_by.is_some()).then_some(row.attempts)
            }
        }
    }

    pub(super) fn settle(&mut self, settlement: &Settlement, now: i64) -> Vec<i64> {
        let mut stale = Vec::new();
        let mut group = Vec::new();
        for one in &settlement.transitions {
            match self.fence(&one.claim) {
                Some(attempts) => self.apply(one, attempts, now, &mut group),
                None => stale.push(one.claim.id),
            }
        }
        if !group.is_empty() {
            self.groups.push(group);
        }
        for held in &settlement.finished {
            if let LeaseId::Batch { batch, token } = *held
                && self
                    .batches
                    .get(&batch)
                    .is_some_and(|found| found.token == token)
                && self.in_batch(batch).is_empty()
            {
                self.batches.remove(&batch);
            }
        }
        let keys = settlement
            .transitions
            .iter()
            .filter_map(|one| one.key.as_deref());
        self.release(keys, now);
        stale
    }

    fn apply(&mut self, one: &Transition, attempts: u32, now: i64, group: &mut Vec<i64>) {
        let id = one.claim.id;
        let from = one.claim.place.clone();
        let to = one.to.place(&from);
        if from != to {
            self.books
                .move_one(one.claim.event_id, Some(from), Some(to.clone()));
        }
        for state in &one.states {
            self.states
                .insert((id, state.handler.clone()), state.clone());
        }
        let number = self.groups.len();
        let token = self.row(id).map_or(0, |row| row.token + 1);
        let row = |lane: &crate::port::Lane, due: Option<i64>| {
            Where::Row(RowState {
                lane: lane.to_string(),
                place: to.clone(),
                attempts,
                token,
                due,
                since: now,
                locked_by: None,
                abandoned: 0,
                is_confirmed: true,
            })
        };
        let at = match &one.to {
            Disposition::Finalize { errors, handlers } => {
                group.push(id);
                Where::Log(Logged {
                    group: number,
                    attempts,
                    errors: errors.clone(),
                    handlers: handlers.clone(),
                    finalized_ms: now,
                })
            }
            Disposition::Retry { after, lane } => row(lane, Some(now + span_ms(*after))),
            Disposition::Defer { lane } => row(lane, one.key.is_none().then_some(now)),
            Disposition::Park { lane } => row(lane, None),
        };
        self.put(id, at);
    }

    pub(super) fn record(
        &mut self,
        commit: &HandlerCommit,
        pending: Option<PendingWrites>,
        now: i64,
    ) -> Result<bool, QueueError> {
        if self.fence(&commit.claim).is_none() {
            return Ok(false);
        }
        let (handler, event_id) = (&commit.state.handler, commit.event_id);
        let guard = |sub_task: &String| (handler.clone(), event_id, sub_task.clone());
        if commit.done.iter().any(|s| self.inbox.contains(&guard(s))) {
            return Err(QueueError::SideEffectExists { event_id });
        }
        let key = (commit.claim.id, commit.state.handler.clone());
        self.states.insert(key, commit.state.clone());
        for sub_task in &commit.done {
            let handler = commit.state.handler.clone();
            self.inbox
                .insert((handler, commit.event_id, sub_task.clone()));
        }
        self.publish(&commit.follow_ups, now);
        if let Some(pending) = pending {
            self.apply_pending(pending, now);
        }
        Ok(true)
    }

    pub(super) fn holds(&self, leadership: &Leadership) -> bool {
        let found = self.leaderships.get(&leadership.name);
        found.is_some_and(|(token, _)| *token == leadership.token)
    }

    pub(super) fn acquire_leadership(
        &mut self,
        name: &str,
        now: i64,
        until: i64,
    ) -> Option<Leadership> {
        let leadership = self
            .leaderships
            .entry(name.to_owned())
            .or_insert((0, i64::MIN));
        if leadership.1 >= now {
            return None;
        }
        *leadership = (leadership.0 + 1, until);
        Some(Leadership {
            name: name.to_owned(),
            token: leadership.0,
        })
    }

    pub(super) fn renew_leadership(&mut self, leadership: &Leadership, until: i64) -> bool {
        match self.leaderships.get_mut(&leadership.name) {
            Some(found) if found.0 == leadership.token => {
                found.1 = until;
                true
            }
            Some(_) | None => false,
        }
    }
}
