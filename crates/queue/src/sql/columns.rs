//! Moves as columns, the way statements take them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};
use tidegate_core::books::{Bucket, Place, Posting, postings};
use tidegate_store::span_ms;

use crate::QueueError;
use crate::port::{
    Disposition, HandlerResult, HandlerState, LeaseId, ListedEvent, Settlement, Transition,
};

/// The transitions of a settlement by the lease they are held by.
#[derive(Default)]
pub(super) struct ByLease<'a> {
    /// By batch and token: moves, and whether the batch is finished after this.
    pub(super) batches: BTreeMap<(i64, i64), (Vec<&'a Transition>, bool)>,
    pub(super) rows: Vec<&'a Transition>,
    /// Events of which the same claim was settled twice.
    pub(super) again: Vec<i64>,
}

impl<'a> ByLease<'a> {
    pub(super) fn of(settlement: &'a Settlement) -> Self {
        let (transitions, again) = settlement.once_each();
        let mut by = Self {
            again,
            ..Self::default()
        };
        for one in transitions {
            match one.claim.lease {
                LeaseId::Batch { batch, token } => {
                    by.batches.entry((batch, token)).or_default().0.push(one);
                }
                LeaseId::Row { .. } => by.rows.push(one),
            }
        }
        for held in &settlement.finished {
            if let LeaseId::Batch { batch, token } = *held {
                by.batches.entry((batch, token)).or_default().1 = true;
            }
        }
        by
    }
}

/// Parked keys that one look for expired claims goes through: the next look goes on where this one
/// ends.
pub(super) const PARKED_KEYS: i32 = 1_000;

/// How far the looks have come in the order of keys.
#[derive(Debug, Clone, Default)]
pub(super) struct ParkedKeys {
    /// The last key that was looked at, which the next look begins with; none for the first of all.
    pub(super) after: Option<String>,
}

impl ParkedKeys {
    /// A look went through these keys; where there were fewer than it may have, it came to the end.
    pub(super) fn note<'a>(&mut self, keys: impl ExactSizeIterator<Item = &'a String>) {
        let is_full = keys.len() >= usize::try_from(PARKED_KEYS).unwrap_or(usize::MAX);
        self.after = keys.last().filter(|_| is_full).cloned();
    }
}

/// Keys whose next event may go now.
pub(super) fn keys_of(settlement: &Settlement) -> Vec<String> {
    let keys = settlement
        .transitions
        .iter()
        .filter_map(|one| one.key.clone());
    let mut keys: Vec<String> = keys.collect();
    keys.sort();
    keys.dedup();
    keys
}

/// How a row goes on: its lane, its place, and after how many milliseconds it is due; none for not
/// before it is released.
pub(super) struct RowUpdate {
    pub(super) lane: String,
    pub(super) place: Place,
    pub(super) after_ms: Option<i64>,
}

/// Where a transition leads, as the tables see it.
pub(super) enum TransitionEffect {
    Log {
        errors: Option<String>,
        handlers: Option<String>,
    },
    Row(RowUpdate),
}

pub(super) fn goal(one: &Transition) -> TransitionEffect {
    let place = one.to.place(&one.claim.place);
    match &one.to {
        Disposition::Finalize { errors, handlers } => TransitionEffect::Log {
            errors: (!errors.is_empty()).then(|| errors_text(errors)),
            handlers: handlers.clone(),
        },
        Disposition::Retry { after, lane } => TransitionEffect::Row(RowUpdate {
            lane: lane.to_string(),
            place,
            after_ms: Some(span_ms(*after)),
        }),
        Disposition::Defer { lane } => TransitionEffect::Row(RowUpdate {
            lane: lane.to_string(),
            place,
            // One with a key goes when its turn has come, which the release finds out.
            after_ms: one.key.is_none().then_some(0),
        }),
        Disposition::Park { lane } => TransitionEffect::Row(RowUpdate {
            lane: lane.to_string(),
            place,
            after_ms: None,
        }),
    }
}

/// The postings of these moves together.
pub(super) fn postings_of(transitions: &[&Transition]) -> Vec<Posting> {
    let mut by_move: BTreeMap<(Place, Place), Vec<_>> = BTreeMap::new();
    for one in transitions {
        let from = one.claim.place.clone();
        let to = one.to.place(&from);
        if from != to {
            by_move
                .entry((from, to))
                .or_default()
                .push(one.claim.event_id);
        }
    }
    let all = by_move
        .into_iter()
        .flat_map(|((from, to), ids)| postings(ids, Some(from), Some(to)));
    all.collect()
}

/// The posting of one move, if it changes the books.
pub(super) fn posting_of(one: &Transition) -> Option<(Bucket, Place, Place)> {
    let from = one.claim.place.clone();
    let to = one.to.place(&from);
    (from != to).then(|| (Bucket::of(one.claim.event_id), from, to))
}

pub(super) fn errors_text(errors: &[HandlerState]) -> String {
    // Texts and numbers always have a JSON form.
    serde_json::to_string(errors).unwrap_or_default()
}

pub(super) fn errors_of(text: &str) -> Vec<HandlerState> {
    serde_json::from_str(text).unwrap_or_default()
}

/// A payload as it is shown. One that is no JSON stands as a text, so that it hides no other event from
/// whoever looks.
pub(super) fn shown_payload(payload: String) -> Box<RawValue> {
    let shown = serde_json::from_str(&payload);
    // A text always has a JSON form.
    shown.unwrap_or_else(|_| to_raw_value(&payload).unwrap_or_default())
}

pub(super) fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The place a row has.
pub(super) fn place_of(text: &str) -> Place {
    text.parse().unwrap_or(Place::Queued)
}

/// Events that one transaction of retention removes at most, or one group where that has more: it is
/// short, so that it holds nobody up.
pub(super) const REMOVED_AT_ONCE: i64 = 5_000;
/// How long one clean-up goes on removing old events, one transaction after the other.
pub(super) const REMOVING: Duration = Duration::from_secs(5);

/// The error of an event that no handler can be given.
pub(super) fn unreadable_errors() -> String {
    errors_text(&[HandlerState {
        handler: STORE.to_owned(),
        result: HandlerResult::UnrecoverableError,
        attempts: 0,
        error: Some("queue.unreadable: type, key, payload or headers are no UTF-8".to_owned()),
    }])
}

/// Who is named where no handler failed, but what is stored cannot be used.
const STORE: &str = "store";

/// The error of an event that an operator ended.
pub(crate) fn canceled() -> HandlerState {
    HandlerState {
        handler: "operator".to_owned(),
        result: HandlerResult::UnrecoverableError,
        attempts: 0,
        error: Some("canceled".to_owned()),
    }
}

/// Why an event, which is shown as this, was not given back.
pub(crate) fn not_redriven(id: i64, shown: Option<ListedEvent>) -> QueueError {
    wrong_state(id, shown, "tried again")
}

/// Why an event, which is shown as this, was not canceled.
pub(crate) fn not_canceled(id: i64, shown: Option<ListedEvent>) -> QueueError {
    match shown {
        Some(ListedEvent {
            locked_by: Some(owner),
            ..
        }) => QueueError::Busy { id, owner },
        shown => wrong_state(id, shown, "canceled"),
    }
}

fn wrong_state(id: i64, shown: Option<ListedEvent>, wanted: &'static str) -> QueueError {
    match shown {
        Some(listed) => QueueError::WrongState {
            id,
            state: listed.status.as_str(),
            wanted,
        },
        None => QueueError::UnknownEvent { id },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_no_json_is_shown_as_a_text() {
        let shown = |payload: &str| shown_payload(payload.to_owned()).get().to_owned();
        assert_eq!(shown(r#"{"n": 1.50}"#), r#"{"n": 1.50}"#);
        assert_eq!(shown(" [1] "), "[1]");
        assert_eq!(shown("{}\0garbage"), r#""{}\u0000garbage""#);
    }

    #[test]
    fn a_canceled_event_lands_among_the_dead_letters() {
        let to = Disposition::Finalize {
            errors: vec![canceled()],
            handlers: None,
        };
        assert_eq!(to.place(&Place::Queued), Place::DeadLettered);
    }
}
