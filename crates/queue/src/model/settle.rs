//! Settling in the model.

use tidegate_store::span_ms;

use super::state::{Logged, RowState, State, Where};
use super::tx::Pending;
use crate::QueueError;
use crate::port::{Claim, Disposition, HandlerCommit, Held, Move, Settlement, Turn};

impl State {
    /// How often the event of a claim was claimed, if the claim still holds.
    fn fence(&mut self, claim: &Claim) -> Option<u32> {
        match claim.held {
            Held::Batch { batch, token } => {
                let found = self.batches.get(&batch)?;
                let stored = self.events.get(&claim.id)?;
                let is_in_it = matches!(stored.at, Where::Batch(of) if of == batch);
                (found.token == token && is_in_it).then_some(found.attempts)
            }
            Held::Row { id, token } => {
                let row = self.row(id)?;
                (row.token == token && row.locked_by.is_some()).then_some(row.attempts)
            }
        }
    }

    pub(super) fn settle(&mut self, settlement: &Settlement, now: i64) -> Vec<i64> {
        let mut stale = Vec::new();
        let mut group = Vec::new();
        for one in &settlement.moves {
            match self.fence(&one.claim) {
                Some(attempts) => self.apply(one, attempts, now, &mut group),
                None => stale.push(one.claim.id),
            }
        }
        if !group.is_empty() {
            self.groups.push(group);
        }
        for held in &settlement.finished {
            if let Held::Batch { batch, token } = *held
                && self
                    .batches
                    .get(&batch)
                    .is_some_and(|found| found.token == token)
                && self.in_batch(batch).is_empty()
            {
                self.batches.remove(&batch);
            }
        }
        let keys = settlement.moves.iter().filter_map(|one| one.key.as_deref());
        self.release(keys, now);
        stale
    }

    fn apply(&mut self, one: &Move, attempts: u32, now: i64, group: &mut Vec<i64>) {
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
            Disposition::Leave { lane } => row(lane, one.key.is_none().then_some(now)),
            Disposition::Park { lane } => row(lane, None),
        };
        if let Some(stored) = self.events.get_mut(&id) {
            stored.at = at;
        }
    }

    pub(super) fn record(
        &mut self,
        commit: &HandlerCommit,
        pending: Option<Pending>,
        now: i64,
    ) -> Result<bool, QueueError> {
        if self.fence(&commit.claim).is_none() {
            return Ok(false);
        }
        let (handler, event_id) = (&commit.state.handler, commit.event_id);
        let guard = |sub_task: &String| (handler.clone(), event_id, sub_task.clone());
        if commit.done.iter().any(|s| self.inbox.contains(&guard(s))) {
            return Err(QueueError::Guarded { event_id });
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

    pub(super) fn holds(&self, turn: &Turn) -> bool {
        let found = self.turns.get(&turn.name);
        found.is_some_and(|(token, _)| *token == turn.token)
    }

    pub(super) fn take_turn(&mut self, name: &str, now: i64, until: i64) -> Option<Turn> {
        let turn = self.turns.entry(name.to_owned()).or_insert((0, i64::MIN));
        if turn.1 >= now {
            return None;
        }
        *turn = (turn.0 + 1, until);
        Some(Turn {
            name: name.to_owned(),
            token: turn.0,
        })
    }

    pub(super) fn keep_turn(&mut self, turn: &Turn, until: i64) -> bool {
        match self.turns.get_mut(&turn.name) {
            Some(found) if found.0 == turn.token => {
                found.1 = until;
                true
            }
            Some(_) | None => false,
        }
    }
}
