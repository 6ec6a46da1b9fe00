//! The store of the outbox as a model in memory, for simulation.
//!
//! Rows are invisible until their transaction commits, and leases go by a clock of its own. Calls are refused,
//! take their time, or lose their answer.

mod state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::books::{Account, Books};
use tidegate_core::env::{Clock, Entropy, Env};
use tidegate_core::{EventId, EventIds, Mutex};
use tidegate_store::StoreError;

use crate::port::{
    BatchSettlement, BucketLease, ClaimedRows, OutboxFilter, OutboxFuture, OutboxRow, OutboxStats,
    OutboxStore, PurgeRequest, RelayLeases, RowClaim, RowSelection, Settled,
};
use crate::recount::OutboxRecount;
use crate::{NewOutboxEvent, OutboxError, OutboxOptions};
use state::OutboxTables;

/// How often calls of the model go wrong, in a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxRates {
    /// Calls that are refused; nothing happens.
    pub refuse: u64,
    /// Calls that happen, and whose answer is lost.
    pub lose_answer: u64,
    /// The longest time that a call takes.
    pub delay: Duration,
}

/// A table in memory. Clones are the same table.
#[derive(Debug, Clone)]
pub struct OutboxModel {
    shared: Arc<Shared>,
    /// Of the node that asks; the time of leases is that of the model itself.
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<OutboxTables>,
    faults: Mutex<ModelFaults>,
    ids: EventIds,
    /// The clock of the database.
    clock: Arc<dyn Clock>,
    is_checked: AtomicBool,
}

#[derive(Debug)]
struct ModelFaults {
    rates: OutboxRates,
    script: VecDeque<bool>,
    random: Box<dyn Entropy>,
}

/// Rows of a transaction that was not committed yet. Dropped, they never were.
#[derive(Debug)]
#[must_use = "a transaction that is dropped changes nothing"]
pub struct ModelInsert {
    model: OutboxModel,
    rows: Vec<(i64, EventId)>,
    events: Vec<NewOutboxEvent>,
}

impl OutboxModel {
    /// An empty table.
    #[must_use]
    pub fn new(options: &OutboxOptions, env: &Env) -> Self {
        let env = env.fork("outbox-model");
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(OutboxTables::new(options)),
                faults: Mutex::new(ModelFaults {
                    rates: OutboxRates::default(),
                    script: VecDeque::new(),
                    random: env.entropy.fork("faults"),
                }),
                ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids")),
                clock: Arc::clone(&env.clock),
                is_checked: AtomicBool::new(false),
            }),
            clock: Arc::clone(&env.clock),
        }
    }

    /// The same table, as a node reaches it.
    #[must_use]
    pub fn on(&self, env: &Env) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            clock: Arc::clone(&env.clock),
        }
    }

    /// How often calls go wrong from now on.
    pub fn set_rates(&self, rates: OutboxRates) {
        self.shared.faults.lock().rates = rates;
    }

    /// The next call happens, and its answer is lost.
    pub fn lose_next_answer(&self) {
        self.shared.faults.lock().script.push_back(true);
    }

    /// Compares the books with the rows after each call from now on, and panics where they differ.
    ///
    /// Rows that are removed by [`delete_row`](Self::delete_row) are such a difference.
    pub fn check_books(&self) {
        self.shared.is_checked.store(true, Ordering::Relaxed);
    }

    fn checked(&self, state: &OutboxTables, doing: &str, now: i64) {
        if self.shared.is_checked.load(Ordering::Relaxed) {
            let recount = state.recount(now);
            assert!(recount.missing.is_empty(), "{doing}: {:?}", recount.missing);
            assert!(recount.books.is_balanced(), "{doing}: {:?}", recount.books);
        }
    }

    /// Begins a transaction that adds events: they have their numbers, and nobody sees them.
    pub fn begin_insert(&self, events: &[NewOutboxEvent]) -> ModelInsert {
        let mut state = self.shared.state.lock();
        let rows = events
            .iter()
            .map(|_| (state.next_number(), self.shared.ids.mint()));
        ModelInsert {
            rows: rows.collect(),
            model: self.clone(),
            events: events.to_vec(),
        }
    }

    /// Removes a row without a word, as somebody does by hand.
    pub fn delete_row(&self, id: i64) {
        self.shared.state.lock().delete(id);
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.shared.clock.now_ms()).unwrap_or(i64::MAX)
    }

    /// One call: it may take its time, be refused, or lose its answer.
    async fn call<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut OutboxTables, i64) -> T,
    ) -> Result<T, OutboxError> {
        let (delay, is_refused, is_lost) = {
            let mut faults = self.shared.faults.lock();
            let rates = faults.rates;
            let longest = u64::try_from(rates.delay.as_micros()).unwrap_or(u64::MAX);
            let delay = faults.random.below(longest.saturating_add(1));
            let scripted = faults.script.pop_front();
            let roll = faults.random.below(1_000);
            let is_refused = scripted.is_none() && roll < rates.refuse;
            let is_lost = scripted == Some(true) || roll >= 1_000 - rates.lose_answer.min(1_000);
            (Duration::from_micros(delay), is_refused, is_lost)
        };
        // Half of the time before it happens, half after it: a crash may come at either side.
        self.clock.sleep(delay / 2).await;
        if is_refused {
            return Err(OutboxError::Store(
                StoreError::Timeout {
                    doing,
                    limit: Duration::ZERO,
                }
                .undone(),
            ));
        }
        let now = self.now_ms();
        let outcome = {
            let mut state = self.shared.state.lock();
            let outcome = work(&mut state, now);
            self.checked(&state, doing, now);
            outcome
        };
        self.clock.sleep(delay / 2).await;
        match is_lost {
            true => Err(OutboxError::OutcomeUnknown { doing }),
            false => Ok(outcome),
        }
    }
}

impl ModelInsert {
    /// Makes the rows visible, and gives their events.
    pub fn commit(self) -> Vec<EventId> {
        let now = self.model.now_ms();
        let mut state = self.model.shared.state.lock();
        for ((id, event_id), event) in self.rows.iter().zip(&self.events) {
            state.insert(*id, *event_id, event, now);
        }
        self.model.checked(&state, "add rows", now);
        self.rows
            .into_iter()
            .map(|(_, event_id)| event_id)
            .collect()
    }

    /// The numbers of its rows.
    #[must_use]
    pub fn numbers(&self) -> Vec<i64> {
        self.rows.iter().map(|(id, _)| *id).collect()
    }
}

impl OutboxStore for OutboxModel {
    fn insert<'a>(&'a self, events: &'a [NewOutboxEvent]) -> OutboxFuture<'a, Vec<EventId>> {
        Box::pin(async move { Ok(self.begin_insert(events).commit()) })
    }

    fn renew<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        span: Duration,
    ) -> OutboxFuture<'a, RelayLeases> {
        Box::pin(self.call("renew leases", move |state, now| {
            state.renew(worker, held, span, now)
        }))
    }

    fn acquire<'a>(
        &'a self,
        worker: &'a str,
        count: u32,
        span: Duration,
    ) -> OutboxFuture<'a, Vec<BucketLease>> {
        Box::pin(self.call("take buckets", move |state, now| {
            state.acquire(worker, count, span, now)
        }))
    }

    fn release<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        is_leaving: bool,
    ) -> OutboxFuture<'a, ()> {
        Box::pin(self.call("give buckets back", move |state, now| {
            state.release(worker, held, is_leaving, now);
        }))
    }

    fn claim(&self, claim: RowClaim) -> OutboxFuture<'_, ClaimedRows> {
        Box::pin(self.call("claim rows", move |state, now| state.claim(&claim, now)))
    }

    fn settle<'a>(&'a self, settlement: &'a BatchSettlement) -> OutboxFuture<'a, Settled> {
        Box::pin(self.call("settle a batch", move |state, now| {
            state.settle(settlement, now)
        }))
    }

    fn list<'a>(&'a self, filter: &'a OutboxFilter) -> OutboxFuture<'a, Vec<OutboxRow>> {
        Box::pin(async move { Ok(self.shared.state.lock().list(filter, self.now_ms())) })
    }

    fn show<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, Option<OutboxRow>> {
        Box::pin(async move { Ok(self.shared.state.lock().show(which, self.now_ms())) })
    }

    fn retry<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, u64> {
        Box::pin(async move { Ok(self.shared.state.lock().retry(which, self.now_ms())) })
    }

    fn purge(&self, request: PurgeRequest) -> OutboxFuture<'_, u64> {
        Box::pin(async move { Ok(self.shared.state.lock().purge(request)) })
    }

    fn clean(&self, retention: Option<Duration>, limit: u32) -> OutboxFuture<'_, u64> {
        Box::pin(self.call("clean the outbox", move |state, now| {
            state.clean(retention, limit, now)
        }))
    }

    fn stats(&self) -> OutboxFuture<'_, OutboxStats> {
        Box::pin(async move { Ok(self.shared.state.lock().stats(self.now_ms())) })
    }

    fn account(&self) -> OutboxFuture<'_, Account> {
        Box::pin(async move { Ok(self.shared.state.lock().account(self.now_ms())) })
    }

    fn books(&self) -> OutboxFuture<'_, Books> {
        Box::pin(async move { Ok(self.shared.state.lock().books()) })
    }

    fn recount(&self) -> OutboxFuture<'_, OutboxRecount> {
        Box::pin(async move { Ok(self.shared.state.lock().recount(self.now_ms())) })
    }

    fn ping(&self) -> OutboxFuture<'_, ()> {
        Box::pin(self.call("look", |_, _| ()))
    }
}
