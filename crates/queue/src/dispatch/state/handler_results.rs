//! The results of an event's handlers, kept until it is settled: a handler that registers before wants the
//! event too, and then it is decided again where it goes.

use std::collections::BTreeSet;

use super::DispatchState;
use crate::decide::{EventFacts, Policy, decide};
use crate::port::{Disposition, HandlerState, LeaseId, Registry, Transition};

/// The results of one event.
#[derive(Debug)]
pub(in crate::dispatch) struct HandlerResults {
    /// The version of the registry it was decided by.
    pub(in crate::dispatch) version: u64,
    /// Its type.
    pub(in crate::dispatch) type_name: String,
    /// The results of its handlers, before and now.
    pub(in crate::dispatch) states: Vec<HandlerState>,
    /// The results of this call.
    pub(in crate::dispatch) new_states: Vec<HandlerState>,
    /// Whether anything was written down about it before.
    pub(in crate::dispatch) has_history: bool,
}

impl DispatchState {
    /// Where an event goes as of the registry we know, and which states are to be remembered for it.
    pub(in crate::dispatch) fn verdict(
        &mut self,
        results: &HandlerResults,
        policy: &Policy,
    ) -> (Disposition, Vec<HandlerState>) {
        let none = BTreeSet::new();
        let facts = EventFacts {
            type_name: &results.type_name,
            registered: self
                .registry
                .handlers
                .get(&results.type_name)
                .unwrap_or(&none),
            states: &results.states,
            has_history: results.has_history,
        };
        let to = decide(&facts, policy, &mut *self.entropy);
        let is_plain = matches!(
            &to,
            Disposition::Finalize { errors, handlers: Some(_) } if errors.is_empty()
        );
        let states = if is_plain {
            Vec::new()
        } else {
            results.new_states.clone()
        };
        (to, states)
    }

    /// Takes note of the registry as it was read; a read that was on its way for long may be older than
    /// what we know.
    pub(in crate::dispatch) fn learn(&mut self, registry: Registry) {
        if registry.version > self.registry.version {
            self.registry = registry;
        }
    }

    /// Takes note of a registry whose version has gone back: what was decided by one of the same number
    /// was decided by another.
    pub(in crate::dispatch) fn begin_anew(&mut self, registry: Registry) {
        self.registry = registry;
        for lease in self.leases.values_mut() {
            for results in lease.results.values_mut() {
                results.version = 0;
            }
        }
    }

    /// Decides again what was decided by an older registry than we know, and gives the version that all
    /// of it is decided by now. `key` is the lease of the transitions by what it was at the claim; none for
    /// rows, each of which is its own.
    pub(in crate::dispatch) fn bring_up_to_date(
        &mut self,
        key: Option<LeaseId>,
        transitions: &mut [Transition],
        policy: &Policy,
    ) -> u64 {
        let version = self.registry.version;
        for one in transitions {
            let key = key.unwrap_or(one.claim.lease);
            let lease = self.leases.get_mut(&key);
            let Some(results) = lease.and_then(|lease| lease.results.get_mut(&one.claim.id)) else {
                continue;
            };
            if results.version == version {
                continue;
            }
            results.version = version;
            let results = std::mem::replace(results, HandlerResults::none(version));
            (one.to, one.states) = self.verdict(&results, policy);
            if let Some(lease) = self.leases.get_mut(&key) {
                lease.results.insert(one.claim.id, results);
            }
        }
        version
    }
}

impl HandlerResults {
    /// Stands in for one that is being looked at.
    fn none(version: u64) -> Self {
        Self {
            version,
            type_name: String::new(),
            states: Vec::new(),
            new_states: Vec::new(),
            has_history: false,
        }
    }
}
