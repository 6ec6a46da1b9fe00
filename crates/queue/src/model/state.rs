//! The state of the model.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::EventId;
use tidegate_core::books::{Books, Place};

use crate::event::NewEvent;
use crate::port::{HandlerState, Registry};

#[derive(Debug, Default)]
pub(super) struct ModelState {
    pub(super) next_id: i64,
    pub(super) next_batch: i64,
    pub(super) events: BTreeMap<i64, ModelEvent>,
    pub(super) batches: BTreeMap<i64, ModelBatch>,
    /// The events of each group that was finalized together, by its number.
    pub(super) groups: Vec<Vec<i64>>,
    /// How many groups have positions.
    pub(super) sequenced: usize,
    /// By position: the event, and the group in which it was finalized.
    pub(super) positions: BTreeMap<i64, (i64, usize)>,
    pub(super) states: BTreeMap<(i64, String), HandlerState>,
    pub(super) cleaned_until: i64,
    pub(super) registry: Registry,
    pub(super) inbox: BTreeSet<(String, EventId, String)>,
    pub(super) leaderships: BTreeMap<String, (i64, i64)>,
    pub(super) projections: BTreeMap<String, i64>,
    /// How often a rebuild of a projection was swapped in.
    pub(super) rebuilds: BTreeMap<String, u64>,
    pub(super) tables: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) books: Books,
}

#[derive(Debug, Clone)]
pub(super) struct ModelEvent {
    pub(super) event: NewEvent,
    pub(super) created_ms: i64,
    pub(super) at: Where,
}

/// Where an event is.
#[derive(Debug, Clone)]
pub(super) enum Where {
    Waiting,
    Batch(i64),
    Row(RowState),
    Log(Logged),
}

#[derive(Debug, Clone)]
pub(super) struct RowState {
    pub(super) lane: String,
    pub(super) place: Place,
    pub(super) attempts: u32,
    pub(super) token: i64,
    /// From when on it may be claimed; none while parked.
    pub(super) due: Option<i64>,
    /// When it was written.
    pub(super) since: i64,
    pub(super) locked_by: Option<String>,
    pub(super) abandoned: u32,
    pub(super) is_confirmed: bool,
}

impl RowState {
    /// How many leases of it ran out by now, where it is due.
    pub(super) fn ran_out(&self) -> u32 {
        self.abandoned + u32::from(self.locked_by.is_some() && self.is_confirmed)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub(super) group: usize,
    pub(super) attempts: u32,
    pub(super) errors: Vec<HandlerState>,
    pub(super) handlers: Option<String>,
    pub(super) finalized_ms: i64,
}

#[derive(Debug, Clone)]
pub(super) struct ModelBatch {
    pub(super) token: i64,
    pub(super) attempts: u32,
    /// Nobody, after it was given back.
    pub(super) owner: String,
    /// When this owner got it.
    pub(super) since: i64,
    pub(super) until: i64,
    pub(super) abandoned: u32,
    pub(super) is_confirmed: bool,
}

impl ModelBatch {
    /// How many leases of it ran out by now, where this one is over.
    pub(super) fn ran_out(&self) -> u32 {
        self.abandoned + u32::from(!self.owner.is_empty() && self.is_confirmed)
    }
}

impl ModelState {
    pub(super) fn reserve(&mut self, count: usize) -> Vec<i64> {
        let first = self.next_id + 1;
        self.next_id += i64::try_from(count).unwrap_or(i64::MAX);
        (first..=self.next_id).collect()
    }

    pub(super) fn publish(&mut self, events: &[NewEvent], now: i64) -> Vec<i64> {
        let ids = self.reserve(events.len());
        for (id, event) in ids.iter().zip(events) {
            self.add(*id, event.clone(), now);
        }
        ids
    }

    pub(super) fn publish_once(&mut self, event: &NewEvent, now: i64) -> bool {
        let guard = (String::new(), event.event_id, String::new());
        let is_new = self.inbox.insert(guard);
        if is_new {
            self.publish(std::slice::from_ref(event), now);
        }
        is_new
    }

    pub(super) fn add(&mut self, id: i64, event: NewEvent, now: i64) {
        self.books
            .move_one(event.event_id, None, Some(Place::Queued));
        let stored = ModelEvent {
            event,
            created_ms: now,
            at: Where::Waiting,
        };
        self.events.insert(id, stored);
    }

    /// Puts an event somewhere else.
    pub(super) fn put(&mut self, id: i64, at: Where) {
        if let Some(stored) = self.events.get_mut(&id) {
            stored.at = at;
        }
    }

    /// The events of a batch that are still in it, in order.
    pub(super) fn in_batch(&self, batch: i64) -> Vec<i64> {
        let all = self.events.iter();
        let mine = all.filter(|(_, stored)| matches!(stored.at, Where::Batch(of) if of == batch));
        mine.map(|(id, _)| *id).collect()
    }

    /// Whether an unfinished event of `key` before `id` is claimed or has a row, outside of `batch`.
    pub(super) fn is_held_up(&self, key: &str, id: i64, batch: Option<i64>) -> bool {
        self.events.range(..id).any(|(_, stored)| {
            stored.event.key.as_deref() == Some(key)
                && match &stored.at {
                    Where::Batch(of) => Some(*of) != batch,
                    Where::Row(_) => true,
                    Where::Waiting | Where::Log(_) => false,
                }
        })
    }

    /// Whether an event of `key` is being handled that knew nothing of the row of `id`, which was given
    /// back. An event that was claimed after the row was written is parked.
    fn is_busy(&self, key: &str, id: i64) -> bool {
        let Some(Where::Row(head)) = self.events.get(&id).map(|stored| &stored.at) else {
            return false;
        };
        let of_key = self.events.iter();
        let mut of_key = of_key.filter(|(_, stored)| stored.event.key.as_deref() == Some(key));
        of_key.any(|(other, stored)| match &stored.at {
            Where::Batch(batch) => {
                let batch = self.batches.get(batch);
                batch.is_some_and(|batch| batch.since <= head.since)
            }
            Where::Row(row) => row.locked_by.is_some(),
            // That of an event that was canceled before it was claimed.
            Where::Waiting => *other < id,
            Where::Log(_) => false,
        })
    }

    /// Lets the first waiting event of each key go, and holds back the others.
    pub(super) fn release<'a>(&mut self, keys: impl IntoIterator<Item = &'a str>, now: i64) {
        for key in keys {
            let mut is_first = true;
            let of_key: Vec<i64> = self.with_key(key);
            for id in of_key {
                let is_held_up = self.is_held_up(key, id, None) || self.is_busy(key, id);
                let Some(ModelEvent {
                    at: Where::Row(row),
                    ..
                }) = self.events.get_mut(&id)
                else {
                    continue;
                };
                if std::mem::take(&mut is_first) {
                    if row.due.is_none() && !is_held_up {
                        row.due = Some(now);
                    }
                } else if row.locked_by.is_none() {
                    row.due = None;
                }
            }
        }
    }

    fn with_key(&self, key: &str) -> Vec<i64> {
        let all = self.events.iter();
        let mine = all.filter(|(_, stored)| {
            stored.event.key.as_deref() == Some(key) && matches!(stored.at, Where::Row(_))
        });
        mine.map(|(id, _)| *id).collect()
    }

    /// Problems that must never be, whatever happened before.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.books.is_balanced() {
            problems.push("the books do not balance".to_owned());
        }
        for (id, stored) in &self.events {
            if let Where::Batch(batch) = stored.at
                && !self.batches.contains_key(&batch)
            {
                problems.push(format!("event {id} is in batch {batch}, which is gone"));
            }
        }
        let recount = self.recount();
        for missing in &recount.missing {
            problems.push(format!("books and tables differ: {missing:?}"));
        }
        if i64::try_from(self.positions.len()) != Ok(self.head()) {
            problems.push("the positions have holes".to_owned());
        }
        problems
    }
}
