//! What a claim takes, decided once for both databases.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::columns::small;
use crate::port::{
    Claim, ClaimRequest, ClaimedEvent, HandlerState, Lane, LeaseId, POISON_STARVATION, Registry,
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
        for id in &ids {
            let lease = LeaseId::Batch { batch, token };
            self.note(*id, lease, small(attempts), abandoned, Place::Queued);
        }
        if !ids.is_empty() {
            self.batches.push((batch, ids));
        }
    }

    /// Notes an event with a row of its own.
    pub(super) fn row(&mut self, id: i64, token: i64, attempts: u32, abandoned: i64, place: Place) {
        self.note(id, LeaseId::Row { id, token }, attempts, abandoned, place);
    }

    fn note(&mut self, id: i64, lease: LeaseId, attempts: u32, abandoned: i64, place: Place) {
        if abandoned > 0 {
            self.abandoned.insert(id, small(abandoned));
        }
        self.leases.insert(id, (lease, attempts, place));
        self.order.push(id);
    }

    /// How many more events are asked for.
    pub(super) fn room(&self, request: &ClaimRequest) -> u32 {
        let taken = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        request.limit.saturating_sub(taken)
    }

    /// How many rows of this kind may be claimed. Where something that ran out was taken, no poison candidate comes
    /// with it.
    pub(super) fn row_limit(&self, request: &ClaimRequest, kind: RowKind) -> u32 {
        match kind {
            RowKind::Trusted => self.room(request),
            RowKind::Poison | RowKind::Starved => {
                let is_free = request.include_poison && self.abandoned.is_empty();
                self.room(request).min(u32::from(is_free))
            }
        }
    }

    /// The claim of an event, and how often it was claimed.
    pub(super) fn claim(&self, id: i64, event_id: EventId) -> Option<(Claim, u32)> {
        let (lease, attempts, place) = self.leases.get(&id)?.clone();
        let claim = Claim {
            id,
            event_id,
            lease,
            place,
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
        (claim, attempts): (Claim, u32),
        (type_name, key, payload, headers): Texts,
        created_ms: i64,
    ) {
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

/// Of these lanes, those whose rows are for this claimer; with a registry, also what was left for
/// handlers that are not registered any more.
pub(super) fn served(
    lanes: Vec<String>,
    request: &ClaimRequest,
    registry: Option<&Registry>,
) -> Vec<String> {
    let is_served = |lane: &String| {
        let lane = Lane::parse(lane);
        let is_left = |registry| lane.is_left_to(&request.filter, registry);
        lane.is_served_by(&request.filter) || registry.is_some_and(is_left)
    };
    lanes.into_iter().filter(is_served).collect()
}
