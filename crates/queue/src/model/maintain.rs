//! The registry, projections, clean-up and operators in the model.

use std::collections::BTreeSet;

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::state::{Logged, ModelEvent, ModelState, RowState, Where};
use super::tx::PendingWrites;
use crate::QueueError;
use crate::port::{Cleaned, HandlerResult, Lane, Leadership, LogEvent, LogPage, first_token};
use crate::sql::{canceled, not_canceled, not_redriven};

impl ModelState {
    pub(super) fn register(&mut self, handlers: &[(String, String)]) {
        let mut is_changed = false;
        for (type_name, handler) in handlers {
            let of_type = self.registry.handlers.entry(type_name.clone()).or_default();
            is_changed |= of_type.insert(handler.clone());
        }
        self.registry.version += u64::from(is_changed);
    }

    pub(super) fn unregister(&mut self, type_name: &str, handler: &str) -> bool {
        let of_type = self.registry.handlers.get_mut(type_name);
        let was_there = of_type.is_some_and(|of_type| of_type.remove(handler));
        self.registry.version += u64::from(was_there);
        was_there
    }

    pub(super) fn sequence(&mut self, limit: u32) -> u64 {
        let mut next = self.head() + 1;
        let mut count = 0;
        while self.sequenced < self.groups.len() && count < u64::from(limit) {
            for id in &self.groups[self.sequenced] {
                self.positions.insert(next, (*id, self.sequenced));
                next += 1;
            }
            self.sequenced += 1;
            count += 1;
        }
        count
    }

    pub(super) fn head(&self) -> i64 {
        self.positions.keys().next_back().copied().unwrap_or(0)
    }

    pub(super) fn read_log(&self, after: i64, limit: i64) -> LogPage {
        let last = after.saturating_add(limit).min(self.head()).max(after);
        let mut events = Vec::new();
        for (position, (id, group)) in self.positions.range(after + 1..last + 1) {
            let Some(stored) = self.events.get(id) else {
                continue;
            };
            if !matches!(&stored.at, Where::Log(log) if log.group == *group && log.errors.is_empty())
            {
                continue;
            }
            events.push(LogEvent {
                position: *position,
                id: *id,
                event_id: stored.event.event_id,
                type_name: stored.event.type_name.clone(),
                key: stored.event.key.clone(),
                payload: stored.event.payload.clone(),
                headers: stored.event.headers.clone(),
                created_ms: stored.created_ms,
            });
        }
        LogPage {
            events,
            last,
            head: self.head(),
        }
    }

    pub(super) fn advance(
        &mut self,
        pending: PendingWrites,
        leadership: &Leadership,
        name: &str,
        (from, to): (i64, i64),
        now: i64,
    ) -> bool {
        let at = self.projections.get(name).copied().unwrap_or(0);
        if !self.holds(leadership) || at != from {
            return false;
        }
        self.projections.insert(name.to_owned(), to);
        self.apply_pending(pending, now);
        true
    }

    pub(super) fn swap(
        &mut self,
        leadership: &Leadership,
        name: &str,
        shadow: &str,
        tables: &[String],
        marks: &[String],
    ) -> bool {
        if !self.holds(leadership) {
            return false;
        }
        let Some(position) = self.projections.remove(shadow) else {
            return false;
        };
        for table in tables {
            let rebuilt = self.tables.remove(&format!("{table}__rebuild"));
            self.tables
                .insert(table.clone(), rebuilt.unwrap_or_default());
        }
        self.projections.insert(name.to_owned(), position);
        *self.rebuilds.entry(name.to_owned()).or_default() += 1;
        for mark in marks {
            self.projections.remove(mark);
        }
        true
    }

    pub(super) fn clean(&mut self, before: Option<i64>, now: i64) -> Cleaned {
        let events = &self.events;
        let is_done = |id: &i64| {
            let log = events.get(id).map(|stored| &stored.at);
            matches!(log, Some(Where::Log(log)) if log.errors.is_empty())
        };
        let had = self.states.len();
        self.states.retain(|(id, _), _| !is_done(id));
        let states = had - self.states.len();
        self.cleaned_until = now;
        let removed = before.map_or(0, |before| self.remove_old(before));
        Cleaned {
            states: states as u64,
            events: removed,
            postings: 0,
        }
    }

    fn remove_old(&mut self, before: i64) -> u64 {
        let behind = self.projections.values().min().copied().unwrap_or(i64::MAX);
        let old = self
            .positions
            .range(..=behind)
            .filter_map(|(_, (id, group))| match &self.events.get(id)?.at {
                Where::Log(log) if log.group == *group && log.finalized_ms < before => Some(*id),
                Where::Log(_) | Where::Waiting | Where::Batch(_) | Where::Row(_) => None,
            });
        let old: Vec<i64> = old.collect();
        let mut gone = BTreeSet::new();
        for id in &old {
            if let Some(stored) = self.events.remove(id)
                && let Where::Log(log) = stored.at
            {
                gone.insert(stored.event.event_id);
                let place = if log.errors.is_empty() {
                    Place::Delivered
                } else {
                    Place::DeadLettered
                };
                self.books
                    .move_one(stored.event.event_id, Some(place), None);
            }
            self.states.retain(|(of, _), _| of != id);
        }
        // Who published an id twice has it twice, and what guards one of the two guards the other.
        let kept = self.events.values().map(|stored| stored.event.event_id);
        let kept: BTreeSet<EventId> = kept.collect();
        self.inbox
            .retain(|(_, event, _)| kept.contains(event) || !gone.contains(event));
        old.len() as u64
    }

    pub(super) fn redrive(&mut self, id: i64, now: i64) -> Result<(), QueueError> {
        if let Some(row) = self.row(id)
            && row.locked_by.is_none()
            && row.due.is_some_and(|due| due > now)
        {
            row.due = Some(now);
            return Ok(());
        }
        let (event, attempts) = match self.events.get(&id) {
            Some(ModelEvent {
                event,
                at: Where::Log(log),
                ..
            }) if !log.errors.is_empty() => (event.clone(), log.attempts),
            Some(_) | None => return Err(not_redriven(id, self.show(id))),
        };
        self.states
            .retain(|(of, _), state| *of != id || state.result == HandlerResult::Success);
        let is_done = |handler: &str| self.states.contains_key(&(id, handler.to_owned()));
        let wanted = self.registry.of(&event.type_name);
        let lane = Lane::new(&event.type_name, wanted.filter(|handler| !is_done(handler)));
        let (from, to) = (Some(Place::DeadLettered), Some(Place::Queued));
        self.books.move_one(event.event_id, from, to);
        let row = RowState {
            lane: lane.to_string(),
            place: Place::Queued,
            attempts,
            token: first_token(now),
            due: event.key.is_none().then_some(now),
            since: now,
            locked_by: None,
            abandoned: 0,
            is_confirmed: true,
        };
        self.put(id, Where::Row(row));
        self.release(event.key.as_deref(), now);
        Ok(())
    }

    pub(super) fn cancel(&mut self, id: i64, now: i64) -> Result<(), QueueError> {
        let free = self.events.get(&id).and_then(|stored| {
            let (place, attempts) = match &stored.at {
                Where::Waiting => (Place::Queued, 0),
                Where::Row(row) => {
                    let is_held = row.due.is_none_or(|until| until >= now);
                    if row.locked_by.is_some() && is_held {
                        return None;
                    }
                    (row.place.clone(), row.attempts)
                }
                Where::Batch(batch) => match self.batches.get(batch) {
                    Some(batch) if batch.until >= now => return None,
                    batch => (Place::Queued, batch.map_or(0, |batch| batch.attempts)),
                },
                Where::Log(_) => return None,
            };
            Some((stored.event.clone(), place, attempts))
        });
        let Some((event, place, attempts)) = free else {
            return Err(not_canceled(id, self.show(id)));
        };
        self.books
            .move_one(event.event_id, Some(place), Some(Place::DeadLettered));
        let logged = Logged {
            group: self.groups.len(),
            attempts,
            errors: vec![canceled()],
            handlers: None,
            finalized_ms: now,
        };
        self.groups.push(vec![id]);
        self.put(id, Where::Log(logged));
        self.release(event.key.as_deref(), now);
        Ok(())
    }
}
