//! Which claimed event is handled next.
//!
//! **Invariant:** of one key at most one event is out at a time, and they go out in the order in
//! which they came in; after one that did not succeed, those behind it go nowhere.

use std::collections::{BTreeMap, VecDeque};

use crate::port::{ClaimedEvent, LeaseId};

/// Claimed events that wait for a worker.
#[derive(Debug, Default)]
pub(super) struct Ready {
    queue: VecDeque<ClaimedEvent>,
    /// Those behind an event of their key that waits or is out.
    behind: BTreeMap<String, VecDeque<ClaimedEvent>>,
}

impl Ready {
    pub(super) fn push(&mut self, event: ClaimedEvent) {
        let Some(key) = &event.key else {
            self.queue.push_back(event);
            return;
        };
        match self.behind.get_mut(key) {
            Some(behind) => behind.push_back(event),
            None => {
                self.behind.insert(key.clone(), VecDeque::new());
                self.queue.push_back(event);
            }
        }
    }

    /// The next event to handle.
    pub(super) fn take(&mut self) -> Option<ClaimedEvent> {
        self.queue.pop_front()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.behind.values().map(VecDeque::len).sum::<usize>()
    }

    /// The event that was out for `key` is done with. Gives those that must be parked behind it.
    pub(super) fn done(&mut self, key: &str, is_finished: bool) -> Vec<ClaimedEvent> {
        let Some(behind) = self.behind.get_mut(key) else {
            return Vec::new();
        };
        if !is_finished {
            return self.behind.remove(key).map(Vec::from).unwrap_or_default();
        }
        match behind.pop_front() {
            Some(next) => self.queue.push_front(next),
            None => {
                self.behind.remove(key);
            }
        }
        Vec::new()
    }

    /// Takes everything out that is held by these leases, or everything.
    pub(super) fn remove(&mut self, is_gone: impl Fn(LeaseId) -> bool) -> Vec<ClaimedEvent> {
        let mut gone = Vec::new();
        let mut keep = VecDeque::new();
        let mut freed = Vec::new();
        for event in std::mem::take(&mut self.queue) {
            if is_gone(event.claim.lease) {
                freed.extend(event.key.clone());
                gone.push(event);
            } else {
                keep.push_back(event);
            }
        }
        self.queue = keep;
        for behind in self.behind.values_mut() {
            let (out, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(behind)
                .into_iter()
                .partition(|e| is_gone(e.claim.lease));
            gone.extend(out);
            *behind = kept;
        }
        // Those whose head is gone and who are still ours move up.
        for key in freed {
            self.done(&key, true);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Claim;
    use tidegate_core::EventId;
    use tidegate_core::books::Place;

    fn event(id: i64, key: Option<&str>, batch: i64) -> ClaimedEvent {
        ClaimedEvent {
            claim: Claim {
                id,
                event_id: EventId::from_u128(1),
                lease: LeaseId::Batch { batch, token: 1 },
                place: Place::Queued,
                trace_id: None,
            },
            type_name: "a".to_owned(),
            key: key.map(str::to_owned),
            payload: String::new(),
            headers: BTreeMap::new(),
            created_ms: 0,
            attempts: 1,
            abandoned: 0,
            is_blocked: false,
            states: Vec::new(),
        }
    }

    fn taken(ready: &mut Ready) -> Vec<i64> {
        std::iter::from_fn(|| ready.take())
            .map(|event| event.claim.id)
            .collect()
    }

    #[test]
    fn events_of_one_key_go_out_one_at_a_time() {
        let mut ready = Ready::default();
        for (id, key) in [(1, Some("k")), (2, Some("k")), (3, None), (4, Some("l"))] {
            ready.push(event(id, key, 1));
        }
        assert_eq!(taken(&mut ready), [1, 3, 4]);
        assert_eq!(ready.len(), 1);
        assert!(ready.done("k", true).is_empty());
        assert_eq!(taken(&mut ready), [2]);
        assert!(ready.done("k", true).is_empty());
        ready.push(event(5, Some("k"), 1));
        assert_eq!(taken(&mut ready), [5]);
    }

    #[test]
    fn behind_one_that_failed_everybody_is_parked() {
        let mut ready = Ready::default();
        for id in 1..=3 {
            ready.push(event(id, Some("k"), 1));
        }
        assert_eq!(taken(&mut ready), [1]);
        let parked: Vec<i64> = ready.done("k", false).iter().map(|e| e.claim.id).collect();
        assert_eq!(parked, [2, 3]);
        assert_eq!(ready.len(), 0);
    }

    #[test]
    fn lost_leases_are_taken_out_and_the_rest_moves_up() {
        let mut ready = Ready::default();
        ready.push(event(1, Some("k"), 1));
        ready.push(event(2, Some("k"), 2));
        ready.push(event(3, None, 1));
        let gone = ready.remove(|held| matches!(held, LeaseId::Batch { batch: 1, .. }));
        assert_eq!(gone.len(), 2);
        assert_eq!(taken(&mut ready), [2]);
    }
}
