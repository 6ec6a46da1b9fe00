//! The model as seen from outside.

use tidegate_core::EventId;
use tidegate_core::books::{Account, Place};

use super::state::{ModelEvent, ModelState, Where};
use crate::port::{
    EventFilter, HandlerResult, HandlerState, Lane, ListedEvent, LocationState, QueueLocation,
    QueueRecount, QueueStats, QueueStatus,
};
use crate::recount::{Count, FoundRows};

impl ModelState {
    fn status(&self, stored: &ModelEvent) -> QueueStatus {
        match &stored.at {
            Where::Waiting => QueueStatus::Pending,
            Where::Batch(_) => QueueStatus::Processing,
            Where::Row(row) if row.locked_by.is_some() => QueueStatus::Processing,
            Where::Row(_) => QueueStatus::Pending,
            Where::Log(log) if log.errors.is_empty() => QueueStatus::Completed,
            Where::Log(_) => QueueStatus::CompletedWithErrors,
        }
    }

    fn attempts(&self, stored: &ModelEvent) -> u32 {
        match &stored.at {
            Where::Waiting => 0,
            Where::Batch(batch) => self.batches.get(batch).map_or(0, |batch| batch.attempts),
            Where::Row(row) => row.attempts,
            Where::Log(log) => log.attempts,
        }
    }

    /// The results of an event's handlers, also where they were written down only once for all.
    fn states_of(&self, id: i64, stored: &ModelEvent) -> Vec<HandlerState> {
        let of_id = self
            .states
            .range((id, String::new())..(id + 1, String::new()));
        let mut states: Vec<HandlerState> = of_id.map(|(_, state)| state.clone()).collect();
        if let Where::Log(log) = &stored.at
            && log.finalized_ms > self.cleaned_until
        {
            let handlers = log.handlers.iter().flat_map(|handlers| handlers.split(','));
            states.extend(handlers.map(|handler| HandlerState {
                handler: handler.to_owned(),
                result: HandlerResult::Success,
                attempts: log.attempts,
                error: None,
            }));
        }
        states
    }

    pub(super) fn show(&self, id: i64) -> Option<ListedEvent> {
        let stored = self.events.get(&id)?;
        let mut listed = ListedEvent {
            id,
            event_id: stored.event.event_id,
            type_name: stored.event.type_name.clone(),
            key: stored.event.key.clone(),
            payload: serde_json::value::RawValue::from_string(stored.event.payload.clone()).ok()?,
            headers: stored.event.headers.clone(),
            status: self.status(stored),
            attempts: self.attempts(stored),
            created_ms: stored.created_ms,
            next_attempt_ms: None,
            locked_by: None,
            locked_until_ms: None,
            finalized_ms: None,
            position: None,
            errors: Vec::new(),
            states: self.states_of(id, stored),
        };
        match &stored.at {
            Where::Waiting => {}
            Where::Batch(batch) => {
                let batch = self.batches.get(batch)?;
                listed.locked_by = Some(batch.owner.clone());
                listed.locked_until_ms = Some(batch.until);
            }
            Where::Row(row) => {
                listed.locked_by.clone_from(&row.locked_by);
                match row.locked_by {
                    Some(_) => listed.locked_until_ms = row.due,
                    None => listed.next_attempt_ms = row.due,
                }
            }
            Where::Log(log) => {
                listed.finalized_ms = Some(log.finalized_ms);
                listed.errors.clone_from(&log.errors);
                let mut positions = self.positions.iter();
                let mine = positions.find(|(_, (of, group))| *of == id && *group == log.group);
                listed.position = mine.map(|(position, _)| *position);
            }
        }
        Some(listed)
    }

    pub(super) fn list(&self, filter: &EventFilter) -> Vec<ListedEvent> {
        let is_wanted = |stored: &ModelEvent| {
            let status = self.status(stored);
            let is_open = matches!(status, QueueStatus::Pending | QueueStatus::Processing);
            let is_type = filter.type_name.as_ref();
            filter.status.map_or(is_open, |wanted| wanted == status)
                && is_type.is_none_or(|wanted| *wanted == stored.event.type_name)
        };
        let after = self.events.range(filter.after + 1..);
        let wanted = after.filter(|(_, stored)| is_wanted(stored));
        let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
        wanted
            .take(limit)
            .filter_map(|(id, _)| self.show(*id))
            .collect()
    }

    pub(super) fn find(&self, event: EventId) -> Option<QueueLocation> {
        let of_id = self.events.iter();
        let of_id = of_id.filter(|(_, stored)| stored.event.event_id == event);
        let numbers: Vec<i64> = of_id.clone().map(|(id, _)| *id).collect();
        let mut found = None;
        for (id, stored) in of_id {
            let sighting = self.sight(*id, stored)?;
            let is_open = !sighting.is_finalized();
            found = Some(sighting.among(&numbers));
            if is_open {
                break;
            }
        }
        found
    }

    fn sight(&self, id: i64, stored: &ModelEvent) -> Option<QueueLocation> {
        let state = match &stored.at {
            Where::Log(log) => LocationState::Finished {
                is_failed: !log.errors.is_empty(),
            },
            Where::Row(row) => LocationState::Unfinished {
                is_claimed: row.locked_by.is_some(),
                row: Some(row.place.clone()),
            },
            Where::Batch(_) | Where::Waiting => LocationState::Unfinished {
                is_claimed: matches!(stored.at, Where::Batch(_)),
                row: None,
            },
        };
        Some(QueueLocation::of(self.show(id)?, state))
    }

    pub(super) fn stats(&self, now: i64) -> QueueStats {
        let mut stats = QueueStats {
            handler_states: self.states.len() as u64,
            ..QueueStats::default()
        };
        let mut is_first = true;
        let mut stopped = std::collections::BTreeSet::new();
        for stored in self.events.values() {
            match self.status(stored) {
                QueueStatus::Pending => stats.pending += 1,
                QueueStatus::Processing => stats.processing += 1,
                QueueStatus::Completed | QueueStatus::CompletedWithErrors => {
                    stats.finalized += 1;
                    continue;
                }
            }
            let since = |ms: i64| std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            if std::mem::take(&mut is_first) {
                stats.oldest_age_seconds = since(now - stored.created_ms).as_secs_f64();
            }
            let born = stored.event.event_id.born_ms().unwrap_or(0) / 60_000;
            let minutes = (since(now).as_secs() / 60).saturating_sub(born);
            let slot = [1, 60].iter().position(|limit| minutes <= *limit);
            stats.ages[slot.unwrap_or(2)] += 1;
            if let Where::Row(row) = &stored.at {
                let lane = Lane::parse(&row.lane);
                let is_retried = row.place == Place::Retrying && row.locked_by.is_none();
                stats.retrying += u64::from(is_retried);
                let key = stored.event.key.as_deref();
                if !lane.wanted.is_empty() {
                    let is_behind = key.is_some_and(|key| stopped.contains(key));
                    stats.held_up += u64::from(is_behind && row.due.is_none());
                } else {
                    stopped.extend(key);
                    *stats.unhandled.entry(lane.type_name).or_default() += 1;
                }
            }
        }
        let head = self.head();
        let lags = self.projections.iter();
        stats.lag = lags
            .map(|(name, at)| (name.clone(), (head - at).max(0)))
            .collect();
        stats
    }

    pub(super) fn account(&self) -> Account {
        let mut account = self.books.account();
        for stored in self.events.values() {
            match &stored.at {
                Where::Batch(_) => {
                    crate::account::show_in_flight(&mut account, &Place::Queued, 1);
                }
                Where::Row(row) if row.locked_by.is_some() => {
                    crate::account::show_in_flight(&mut account, &row.place, 1);
                }
                Where::Row(_) | Where::Waiting | Where::Log(_) => {}
            }
        }
        account
    }

    pub(super) fn recount(&self) -> QueueRecount {
        let mut count = Count::default();
        for stored in self.events.values() {
            let mut seen = FoundRows::default();
            match &stored.at {
                Where::Waiting => seen.is_waiting = true,
                Where::Batch(_) => seen.batches = 1,
                Where::Row(row) => {
                    seen.row = Some(row.place.clone());
                    seen.is_row_claimed = row.locked_by.is_some();
                }
                Where::Log(log) => seen.logged = Some(!log.errors.is_empty()),
            }
            count.add(stored.event.event_id, &seen);
        }
        count.finish(self.books.clone())
    }
}
