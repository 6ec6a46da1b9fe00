//! The path of the events: claim, handle, settle.
//!
//! **Invariant:** the books are posted under the same lock as the move they describe, so every
//! look at them finds them balanced.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::books::{Account, Books, Discrepancy, Place, difference};
use tidegate_core::breaker::{
    Breaker, BreakerChange, BreakerState, CallResult, Permit, Rates, Rule, Trip,
};
use tidegate_core::dead_letter::{LastFailure, RecordOrigin};
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{
    AttemptFacts, Backoff, DeadLetter, Decision, EventId, Failure, FailureClass, Offset, Partition,
    PauseReason, PauseReasons, Retry, TierIndex, Topic, decide,
};
use tokio::sync::Notify;

use super::dependency::Dependency;

/// Calls at the same time.
const WORKERS: usize = 16;

/// An event on its way, with what happened to it so far.
#[derive(Debug)]
struct PathEvent {
    id: EventId,
    offset: Offset,
    /// Attempts that counted.
    attempts: u32,
    first_failure_ms: Option<u64>,
}

/// The path that the events of the demo take.
#[derive(Clone)]
pub(super) struct DemoPath {
    env: Arc<Env>,
    topic: Topic,
    dependency: Dependency,
    state: Arc<Mutex<State>>,
    /// Notified when there may be something to do.
    wake: Arc<Notify>,
}

struct State {
    books: Books,
    breaker: Breaker,
    paused: PauseReasons,
    retry: Retry,
    entropy: Box<dyn Entropy>,
    queued: VecDeque<PathEvent>,
    /// Events in the hands of workers.
    in_flight: BTreeSet<EventId>,
    retrying: BTreeMap<(Duration, EventId), PathEvent>,
    dead_letters: Vec<DeadLetter>,
    attempts: u64,
    openings: u64,
}

/// One look at the path.
pub(super) struct Look {
    pub(super) account: Account,
    pub(super) breaker: BreakerState,
    pub(super) openings: u64,
    pub(super) attempts: u64,
    pub(super) dead_letters: Vec<DeadLetter>,
}

impl DemoPath {
    pub(super) fn new(env: Env, topic: Topic, dependency: Dependency) -> Self {
        // The rule of a binding, on the scale of a demo: a smaller window, a shorter pause.
        let rates = Rates {
            window: 40,
            minimum_calls: 10,
            failure_rate: 50.0,
            slow_call_rate: 80.0,
            slow_call: Duration::from_secs(5),
        };
        let rule = Rule {
            trip: Trip::Rates(rates),
            open_for: Duration::from_secs(4),
            probes: 5,
        };
        let backoff = Backoff::exponential(Duration::from_millis(200), 2.0, Duration::from_secs(5));
        let state = State {
            books: Books::default(),
            breaker: Breaker::new(rule),
            paused: PauseReasons::default(),
            retry: Retry {
                attempts: Some(6),
                backoff: backoff.with_jitter(0.125),
            },
            entropy: env.entropy.fork("path"),
            queued: VecDeque::new(),
            in_flight: BTreeSet::new(),
            retrying: BTreeMap::new(),
            dead_letters: Vec::new(),
            attempts: 0,
            openings: 0,
        };
        Self {
            env: Arc::new(env),
            topic,
            dependency,
            state: Arc::new(Mutex::new(state)),
            wake: Arc::new(Notify::new()),
        }
    }

    /// Starts the workers and the timer of the breaker. They end with the simulated node.
    pub(super) fn start(&self) {
        let spawn = &self.env.spawn;
        for _ in 0..WORKERS {
            let path = self.clone();
            drop(spawn.spawn("worker", Box::pin(async move { path.work().await })));
        }
        let path = self.clone();
        drop(spawn.spawn("timer", Box::pin(async move { path.keep_time().await })));
    }

    /// Takes an event on.
    pub(super) fn accept(&self, id: EventId, offset: Offset) {
        let mut state = self.state();
        state.books.move_one(id, None, Some(Place::Queued));
        state.queued.push_back(PathEvent {
            id,
            offset,
            attempts: 0,
            first_failure_ms: None,
        });
        drop(state);
        self.wake.notify_one();
    }

    /// Counts the events where they really are, and says what the books have otherwise.
    pub(super) fn audit(&self) -> Vec<Discrepancy> {
        let state = self.state();
        let mut recount = Books::default();
        let mut found = |place: Place, ids: Vec<EventId>| {
            for id in ids {
                recount.move_one(id, None, Some(place.clone()));
            }
        };
        let queued = state.queued.iter().map(|event| event.id);
        found(Place::Queued, queued.collect());
        found(Place::InFlight, state.in_flight.iter().copied().collect());
        let retrying = state.retrying.values().map(|event| event.id);
        found(Place::Retrying, retrying.collect());
        let dead = state.dead_letters.iter().map(|letter| letter.event_id);
        found(Place::DeadLettered, dead.collect());
        // Of the events that arrived, those that no worker has to settle any more.
        let arrived = self.dependency.arrivals().into_keys();
        let delivered = arrived.filter(|id| !state.in_flight.contains(id));
        found(Place::Delivered, delivered.collect());
        difference(&state.books, &recount)
    }

    pub(super) fn look(&self) -> Look {
        let state = self.state();
        Look {
            account: state.books.account(),
            breaker: state.breaker.state(),
            openings: state.openings,
            attempts: state.attempts,
            dead_letters: state.dead_letters.clone(),
        }
    }

    /// Whether every event has come to its end.
    pub(super) fn is_at_rest(&self) -> bool {
        let account = self.state().books.account();
        account.queued + account.in_flight + account.retrying == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self) {
        loop {
            let Some((event, permit)) = self.claim() else {
                self.wake.notified().await;
                continue;
            };
            // There may be more; somebody else can have it while we handle this one.
            self.wake.notify_one();
            let began = self.env.clock.elapsed();
            let outcome = self.dependency.call(event.id).await;
            self.settle(event, permit, began, outcome);
        }
    }

    /// Takes the next event that is due, if anything may flow.
    fn claim(&self) -> Option<(PathEvent, Permit)> {
        let now = self.env.clock.elapsed();
        let mut state = self.state();
        if !state.paused.flows() || state.queued.is_empty() {
            return None;
        }
        let permit = state.breaker.try_acquire(now)?;
        match state.queued.pop_front() {
            Some(event) => {
                state.post(event.id, Place::Queued, Place::InFlight);
                state.in_flight.insert(event.id);
                Some((event, permit))
            }
            None => {
                state.breaker.release(permit);
                None
            }
        }
    }

    fn settle(
        &self,
        event: PathEvent,
        permit: Permit,
        began: Duration,
        outcome: Result<(), Failure>,
    ) {
        let now = self.env.clock.elapsed();
        let took = now.saturating_sub(began);
        let mut state = self.state();
        state.attempts += 1;
        state.in_flight.remove(&event.id);
        let change = match &outcome {
            Ok(()) => state.breaker.record(permit, CallResult::Success, took, now),
            Err(failure) if failure.class == FailureClass::Transient => {
                state.breaker.record(permit, CallResult::Failure, took, now)
            }
            // Refused for good: the other side answered, so this says nothing about its health.
            Err(_) => {
                state.breaker.release(permit);
                None
            }
        };
        state.follow(change);
        match outcome {
            Ok(()) => state.post(event.id, Place::InFlight, Place::Delivered),
            Err(failure) => self.settle_failed(&mut state, event, &failure, now),
        }
        drop(state);
        self.wake.notify_waiters();
    }

    fn settle_failed(
        &self,
        state: &mut State,
        mut event: PathEvent,
        failure: &Failure,
        now: Duration,
    ) {
        let attempt = event.attempts + 1;
        let State { retry, entropy, .. } = state;
        let facts = AttemptFacts {
            class: failure.class,
            attempt,
            attempts: retry.attempts,
            wait: retry.backoff.wait(event.attempts, entropy.as_mut()),
            breaker_open: state.breaker.state() == BreakerState::Open,
            is_poison: false,
            exhausted: Decision::GIVE_UP,
        };
        let now_ms = self.env.clock.now_ms();
        event.first_failure_ms.get_or_insert(now_ms);
        match decide(&facts) {
            Decision::RetryIn(wait) => {
                event.attempts = attempt;
                state.post(event.id, Place::InFlight, Place::Retrying);
                state.retrying.insert((now + wait, event.id), event);
            }
            Decision::DeadLetter(reason) => {
                state.post(event.id, Place::InFlight, Place::DeadLettered);
                state.dead_letters.push(DeadLetter {
                    event_id: event.id,
                    origin: RecordOrigin {
                        topic: self.topic.clone(),
                        partition: Partition(0),
                        offset: event.offset,
                        timestamp_ms: i64::try_from(now_ms).unwrap_or(i64::MAX),
                    },
                    key: None,
                    value: Some(format!("order {}", event.offset).into()),
                    headers: Vec::new(),
                    reason,
                    dead_at_ms: now_ms,
                    attempts: attempt,
                    first_failure_ms: event.first_failure_ms.unwrap_or(now_ms),
                    failure: LastFailure {
                        code: failure.code.clone(),
                        message: failure.message.clone(),
                        stack: String::new(),
                    },
                    tier: TierIndex(0),
                    trail: Vec::new(),
                    replays: 0,
                    group: None,
                    stage: None,
                });
            }
            // The attempt does not count, and the event keeps its turn. There are no tiers and no store here.
            Decision::Pause(_) | Decision::Settle | Decision::Tier(_) | Decision::Park => {
                state.post(event.id, Place::InFlight, Place::Queued);
                state.queued.push_front(event);
            }
        }
    }

    /// Does what is due: retries whose wait is over, and the breaker's own timer.
    async fn keep_time(&self) {
        const TICK: Duration = Duration::from_millis(20);
        loop {
            self.env.clock.sleep(TICK).await;
            let now = self.env.clock.elapsed();
            let mut state = self.state();
            let change = state.breaker.tick(now);
            state.follow(change);
            while let Some(entry) = state.retrying.first_entry()
                && entry.key().0 <= now
            {
                let event = entry.remove();
                state.post(event.id, Place::Retrying, Place::Queued);
                state.queued.push_back(event);
            }
            drop(state);
            self.wake.notify_waiters();
        }
    }
}

impl State {
    fn post(&mut self, id: EventId, from: Place, to: Place) {
        self.books.move_one(id, Some(from), Some(to));
    }

    /// Pauses and resumes with the breaker.
    fn follow(&mut self, change: Option<BreakerChange>) {
        match change.map(|change| change.to) {
            Some(BreakerState::Open) => {
                self.openings += 1;
                self.paused.add(PauseReason::Breaker);
            }
            Some(BreakerState::HalfOpen | BreakerState::Closed) => {
                self.paused.remove(PauseReason::Breaker);
            }
            None => {}
        }
    }
}
