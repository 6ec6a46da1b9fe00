//! The state that the tasks of a dispatcher share.

mod handler_results;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use tidegate_core::env::Entropy;
use tidegate_core::{Failure, FailureClass};
use tokio::sync::Notify;

use super::ready::Ready;
use super::{DispatchReport, DispatcherHealth, Shared};
pub(super) use handler_results::HandlerResults;

use crate::port::{
    Claim, ClaimedEvent, Disposition, HandlerState, Lane, LeaseId, POISON_AFTER, Registry,
    Transition,
};

/// Who is told when.
#[derive(Default)]
pub(super) struct DispatchSignals {
    /// There is something to handle.
    pub(super) work: Notify,
    /// There is room for another claim.
    pub(super) room: Notify,
    /// There may be rows that are due before anybody polls.
    pub(super) rows: Notify,
    /// There is something to settle.
    pub(super) outcome: Notify,
    /// The stop was asked for.
    pub(super) stop: Notify,
    /// Nothing is left to settle.
    pub(super) end: Notify,
}

/// One lease that we hold. It is known by what it was at the claim: a batch that was lost and claimed
/// again is another lease, and what is left of the first one has no say in the second.
#[derive(Debug)]
struct Lease {
    /// Its id now: reopening a batch gives it a newer token.
    id: LeaseId,
    /// Events that are not settled.
    open: usize,
    /// Events that are left to run out, because nobody knows what became of them.
    abandoned: usize,
    /// How many leases of its events ran out before this one.
    ran_out: u32,
    /// The results of its events, until it ends.
    results: BTreeMap<i64, HandlerResults>,
}

pub(super) struct DispatchState {
    pub(super) ready: Ready,
    pub(super) registry: Registry,
    pub(super) entropy: Box<dyn Entropy>,
    pub(super) report: DispatchReport,
    leases: BTreeMap<LeaseId, Lease>,
    /// The lease of a poison candidate that is to stay alone, for as long as we hold it.
    isolated: Option<LeaseId>,
    outcomes: Vec<Transition>,
    running: usize,
    pub(super) is_stopping: bool,
    stopped_at: Option<std::time::Duration>,
    has_ended: bool,
    pub(super) is_claiming: bool,
    pub(super) problem: Option<(FailureClass, String)>,
    /// The failure of a handler that stopped us.
    broken: Option<String>,
}

impl DispatchState {
    pub(super) fn new(entropy: Box<dyn Entropy>) -> Self {
        Self {
            ready: Ready::default(),
            registry: Registry::default(),
            entropy,
            report: DispatchReport::default(),
            leases: BTreeMap::new(),
            isolated: None,
            outcomes: Vec::new(),
            running: 0,
            is_stopping: false,
            stopped_at: None,
            has_ended: false,
            is_claiming: false,
            problem: None,
            broken: None,
        }
    }

    /// Events claimed and not settled.
    pub(super) fn in_memory(&self) -> usize {
        self.ready.len() + self.running + self.outcomes.len()
    }

    /// Whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && self.outcomes.is_empty() && !self.is_claiming
    }

    /// Takes what was claimed. A poison candidate that `is_isolated` stays so: whatever came beside it might take the
    /// process down, and would be held against it.
    pub(super) fn add(&mut self, events: Vec<ClaimedEvent>, is_isolated: bool) {
        let first = events.first().filter(|_| is_isolated);
        self.isolated = first.map(|event| event.claim.lease);
        self.report.claimed += events.len() as u64;
        for event in events {
            let lease_id = event.claim.lease;
            if !self.leases.contains_key(&lease_id) {
                self.supersede(lease_id);
            }
            let lease = self.leases.entry(lease_id).or_insert(Lease {
                id: lease_id,
                open: 0,
                abandoned: 0,
                ran_out: event.abandoned,
                results: BTreeMap::new(),
            });
            lease.open += 1;
            if self.is_stopping {
                // Kept as a lease only, which is given back.
                continue;
            }
            if event.is_blocked {
                self.park(event);
            } else {
                self.ready.push(event);
            }
        }
    }

    /// This claim shows that older ones were lost, though nobody has told us: the process stood still for
    /// longer than its lease. The rest of the older claims has no say any more, and is never settled
    /// together with the newer one.
    fn supersede(&mut self, claimed: LeaseId) {
        let first = match claimed {
            LeaseId::Batch { batch, .. } => LeaseId::Batch {
                batch,
                token: i64::MIN,
            },
            LeaseId::Row { id, .. } => LeaseId::Row {
                id,
                token: i64::MIN,
            },
        };
        let older = self.leases.range(first..claimed);
        let older = older.filter(|(_, lease)| lease.id < claimed);
        let older: Vec<LeaseId> = older.map(|(key, _)| *key).collect();
        for key in older {
            self.give_up(key);
        }
    }

    fn park(&mut self, event: ClaimedEvent) {
        let wanted = self.registry.of(&event.type_name).collect::<Vec<_>>();
        let lane = Lane::new(&event.type_name, wanted);
        self.outcomes.push(Transition {
            claim: event.claim,
            key: event.key,
            to: Disposition::Park { lane },
            states: Vec::new(),
        });
    }

    pub(super) fn take(&mut self) -> Option<ClaimedEvent> {
        if self.is_stopping {
            return None;
        }
        let event = self.ready.take()?;
        self.running += 1;
        Some(event)
    }

    /// The claim with its newest token; none when the lease was lost.
    pub(super) fn current(&self, claim: &Claim) -> Option<Claim> {
        let lease = self.leases.get(&claim.lease)?;
        Some(Claim {
            lease: lease.id,
            ..claim.clone()
        })
    }

    /// Where an event goes by what its handlers said.
    pub(super) fn decided(
        &mut self,
        claim: Claim,
        key: Option<String>,
        (to, states): (Disposition, Vec<HandlerState>),
        results: HandlerResults,
    ) {
        self.running -= 1;
        let is_finished = matches!(to, Disposition::Finalize { .. });
        if let Some(key) = &key {
            for behind in self.ready.done(key, is_finished) {
                self.park(behind);
            }
        }
        if let Some(lease) = self.leases.get_mut(&claim.lease) {
            lease.results.insert(claim.id, results);
        }
        self.outcomes.push(Transition {
            claim,
            key,
            to,
            states,
        });
    }

    /// Nobody knows what became of an event: its lease must run out.
    pub(super) fn abandon(&mut self, event: &ClaimedEvent) {
        self.running -= 1;
        if let Some(key) = &event.key {
            for behind in self.ready.done(key, false) {
                self.park(behind);
            }
        }
        self.leave(event.claim.lease);
    }

    /// One event of a lease cannot be settled: it is left to run out, and the others go on.
    pub(super) fn leave(&mut self, key: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.abandoned += 1;
        }
        self.settled(key, 1);
    }

    /// Whether a whole batch, or a row, waits to be settled.
    pub(super) fn has_whole(&self) -> bool {
        let mut counts: BTreeMap<LeaseId, usize> = BTreeMap::new();
        for one in &self.outcomes {
            *counts.entry(one.claim.lease).or_default() += 1;
        }
        counts
            .iter()
            .any(|(key, count)| self.leases.get(key).is_none_or(|l| l.open <= *count))
    }

    pub(super) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// The transitions that wait, by lease, with the newest tokens. Those that were lost meanwhile are left
    /// out: somebody else has them.
    pub(super) fn outcomes(&mut self) -> BTreeMap<LeaseId, Vec<Transition>> {
        let mut by: BTreeMap<LeaseId, Vec<Transition>> = BTreeMap::new();
        for mut one in std::mem::take(&mut self.outcomes) {
            let key = one.claim.lease;
            match self.leases.get(&key) {
                Some(lease) => {
                    one.claim.lease = lease.id;
                    by.entry(key).or_default().push(one);
                }
                None => self.report.stale += 1,
            }
        }
        by
    }

    /// Whether settling `count` events more leaves nothing of the lease.
    pub(super) fn ends_with(&self, key: LeaseId, count: usize) -> Option<LeaseId> {
        let lease = self.leases.get(&key)?;
        (lease.open <= count && lease.abandoned == 0).then_some(lease.id)
    }

    pub(super) fn settled(&mut self, key: LeaseId, count: usize) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.open = lease.open.saturating_sub(count);
            // An abandoned one is not renewed any more once the others are done. Otherwise it would be
            // ours, and nobody's, for as long as we live.
            if lease.open == 0 {
                self.leases.remove(&key);
            }
        }
    }

    pub(super) fn reopened(&mut self, key: LeaseId, newest: LeaseId, open: usize) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.id = newest;
            // Those that were abandoned are among what is left, and stay so.
            lease.open = open.saturating_sub(lease.abandoned);
            if lease.open == 0 && lease.abandoned > 0 {
                self.leases.remove(&key);
            }
        }
    }

    /// Forgets leases that were lost, and what waits by their right. One that was reopened meanwhile
    /// has a newer token than the one that is said to be lost, and stays.
    pub(super) fn lose(&mut self, lost: &[LeaseId]) {
        let lost: BTreeSet<LeaseId> = lost.iter().copied().collect();
        let gone = self
            .leases
            .iter()
            .filter(|(_, lease)| lost.contains(&lease.id));
        let gone: BTreeSet<LeaseId> = gone.map(|(key, _)| *key).collect();
        self.leases.retain(|key, _| !gone.contains(key));
        let dropped = self.ready.remove(|lease| gone.contains(&lease));
        self.report.stale += dropped.len() as u64;
    }

    /// Whether we hold something that ran out before. A poison candidate is not taken beside that, so that what
    /// becomes of either tells something of it.
    pub(super) fn holds_abandoned(&self) -> bool {
        self.leases.values().any(|lease| lease.ran_out > 0)
    }

    /// Whether we hold a poison candidate that is to stay alone.
    pub(super) fn is_isolated(&self) -> bool {
        self.isolated
            .is_some_and(|key| self.leases.contains_key(&key))
    }

    /// Whether we hold nothing at all.
    pub(super) fn holds_nothing(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether this lease is on a poison candidate.
    pub(super) fn is_poison(&self, key: LeaseId) -> bool {
        let lease = self.leases.get(&key);
        lease.is_some_and(|lease| lease.ran_out >= POISON_AFTER)
    }

    /// The id of a lease now, by what it was at the claim.
    pub(super) fn newest(&self, key: LeaseId) -> Option<LeaseId> {
        self.leases.get(&key).map(|lease| lease.id)
    }

    /// Forgets one lease, by what it was at the claim.
    pub(super) fn give_up(&mut self, key: LeaseId) {
        self.leases.remove(&key);
        let dropped = self.ready.remove(|lease| lease == key);
        self.report.stale += dropped.len() as u64;
    }

    pub(super) fn lease_ids(&self) -> Vec<LeaseId> {
        self.leases.values().map(|lease| lease.id).collect()
    }

    pub(super) fn health(&self) -> DispatcherHealth {
        let broken = self.broken.clone();
        let broken = broken.map(|problem| (FailureClass::System, problem));
        let (class, problem) = broken.or_else(|| self.problem.clone()).unzip();
        DispatcherHealth {
            is_up: class != Some(FailureClass::System) && !self.is_stopping,
            problem,
            class,
        }
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, DispatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handler failed in a way that is not about its event: whatever is claimed next would fail
    /// too, so we stop, and what was not begun goes to others.
    pub(super) fn stop_for(&self, handler: &str, failure: &Failure) {
        tracing::error!(handler, %failure, "handler failed with class System; dispatcher stops");
        let problem = format!("handler `{handler}` failed with class System: {failure}");
        self.state().broken.get_or_insert(problem);
        self.stop();
    }

    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        state.stopped_at.get_or_insert(self.env.clock.elapsed());
        state.ready.remove(|_| true);
        drop(state);
        self.signals.stop.notify_waiters();
        self.signals.work.notify_waiters();
        self.signals.room.notify_one();
        self.signals.outcome.notify_one();
    }

    /// Whether the time that running handlers have after the stop is over.
    pub(super) fn is_past_stop(&self) -> bool {
        let stopped_at = self.state().stopped_at;
        let now = self.env.clock.elapsed();
        stopped_at.is_some_and(|at| now >= at.saturating_add(self.options.stop_timeout))
    }

    /// Completes once the stop was asked for.
    pub(super) async fn stopping(&self) {
        self.told(&self.signals.stop, |state| state.is_stopping)
            .await;
    }

    /// Nothing is left to settle.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.signals.end.notify_waiters();
    }

    /// Completes once everything was settled after the stop.
    pub(super) async fn stopped(&self) {
        self.told(&self.signals.end, |state| state.has_ended).await;
    }

    async fn told(&self, signal: &Notify, is_so: fn(&DispatchState) -> bool) {
        let notified = signal.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !is_so(&self.state()) {
            notified.await;
        }
    }
}
