//! The store of bindings as a model in memory, for simulation. Calls are refused, take their time, or lose their
//! answer; leases go by a clock of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Books, Place};
use tidegate_core::env::{Clock, Entropy, Env};
use tidegate_core::{EventId, Mutex};
use tidegate_log::TopicPartition;
use tidegate_store::{StoreError, span_ms};

use super::{
    GoneProgress, ParkLease, ParkedChanges, ParkedCount, ParkedFuture, ParkedIn, ParkedRow,
    ParkedStore, ProgressRow,
};

/// How often calls of the model go wrong, in a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParkedRates {
    /// Calls that are refused; nothing happens.
    pub refuse: u64,
    /// Calls that happen, and whose answer is lost.
    pub lose_answer: u64,
    /// The longest time that a call takes.
    pub delay: Duration,
}

/// Tables in memory. Clones are the same tables.
#[derive(Debug, Clone)]
pub struct ParkedModel {
    shared: Arc<Shared>,
    /// Of the node that asks; the time of leases is that of the model itself.
    clock: Arc<dyn Clock>,
    is_shared: bool,
}

#[derive(Debug)]
struct Shared {
    tables: Mutex<ParkedTables>,
    faults: Mutex<(ParkedRates, Box<dyn Entropy>)>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct ParkedTables {
    rows: BTreeMap<(ParkedIn, i64), ParkedRow>,
    /// The token of each lease, and until when it is held.
    leases: BTreeMap<ParkedIn, (i64, i64)>,
    progress: BTreeMap<(ParkedIn, i64), ProgressRow>,
    books: BTreeMap<String, Books>,
}

impl ParkedModel {
    /// Empty tables.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        let random = env.fork("parked-model").entropy;
        let shared = Shared {
            tables: Mutex::default(),
            faults: Mutex::new((ParkedRates::default(), random)),
            clock: Arc::clone(&env.clock),
        };
        Self {
            shared: Arc::new(shared),
            clock: Arc::clone(&env.clock),
            is_shared: true,
        }
    }

    /// The same tables as a file of one machine, which no other one reaches.
    #[must_use]
    pub fn of_one_machine(self) -> Self {
        Self {
            is_shared: false,
            ..self
        }
    }

    /// The same tables, as a node reaches them.
    #[must_use]
    pub fn on(&self, env: &Env) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            clock: Arc::clone(&env.clock),
            is_shared: self.is_shared,
        }
    }

    /// How often calls go wrong from now on.
    pub fn set_rates(&self, rates: ParkedRates) {
        self.shared.faults.lock().0 = rates;
    }

    /// Removes everything that is kept about progress, as somebody does by hand.
    pub fn forget_progress(&self) {
        self.shared.tables.lock().progress.clear();
    }

    /// Removes the rows of an event without a word, as somebody does by hand.
    pub fn delete_row(&self, id: EventId) {
        let mut tables = self.shared.tables.lock();
        tables.rows.retain(|_, row| row.event_id != id);
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.shared.clock.now_ms()).unwrap_or(i64::MAX)
    }

    /// One call: it may take its time, be refused, or lose its answer.
    async fn call<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut ParkedTables, i64) -> T,
    ) -> Result<T, StoreError> {
        let limit = Duration::ZERO;
        let (delay, is_refused, is_lost) = {
            let mut faults = self.shared.faults.lock();
            let (rates, random) = &mut *faults;
            let longest = u64::try_from(rates.delay.as_micros()).unwrap_or(u64::MAX);
            let delay = random.below(longest.saturating_add(1));
            let roll = random.below(1_000);
            let is_lost = roll >= 1_000 - rates.lose_answer.min(1_000);
            (Duration::from_micros(delay), roll < rates.refuse, is_lost)
        };
        // Half of the time before it happens, half after it: a crash may come at either side.
        self.clock.sleep(delay / 2).await;
        if is_refused {
            return Err(StoreError::Timeout { doing, limit }.undone());
        }
        let now = self.now_ms();
        let outcome = work(&mut self.shared.tables.lock(), now);
        self.clock.sleep(delay / 2).await;
        match is_lost {
            true => Err(StoreError::Timeout { doing, limit }),
            false => Ok(outcome),
        }
    }
}

impl ParkedTables {
    fn holds(&self, lease: &ParkLease) -> bool {
        let held = self.leases.get(&lease.of);
        held.is_some_and(|(token, _)| *token == lease.token)
    }

    fn change(&mut self, lease: &ParkLease, changes: &ParkedChanges) -> bool {
        if !self.holds(lease) {
            return false;
        }
        let of = &lease.of;
        for (offset, row) in &changes.puts {
            self.rows.insert((of.clone(), *offset), row.clone());
        }
        for offset in &changes.delivered {
            if let Some(row) = self.rows.remove(&(of.clone(), *offset)) {
                let books = self.books.entry(of.component.clone()).or_default();
                let (from, to) = (Some(Place::Parked), Some(Place::Delivered));
                books.move_one(row.event_id, from, to);
            }
        }
        for offset in &changes.removed {
            self.rows.remove(&(of.clone(), *offset));
        }
        true
    }
}

impl ParkedStore for ParkedModel {
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn acquire<'a>(
        &'a self,
        of: &'a ParkedIn,
        _owner: &'a str,
        span: Duration,
    ) -> ParkedFuture<'a, Option<ParkLease>> {
        Box::pin(self.call("take a lease", move |tables, now| {
            let held = tables.leases.entry(of.clone()).or_insert((0, now - 1));
            if held.1 >= now {
                return None;
            }
            *held = (held.0 + 1, now + span_ms(span));
            let (of, token) = (of.clone(), held.0);
            Some(ParkLease { of, token })
        }))
    }

    fn renew<'a>(&'a self, lease: &'a ParkLease, span: Duration) -> ParkedFuture<'a, bool> {
        Box::pin(self.call("renew a lease", move |tables, now| {
            let is_held = tables.holds(lease);
            if is_held {
                let until = now + span_ms(span);
                tables.leases.insert(lease.of.clone(), (lease.token, until));
            }
            is_held
        }))
    }

    fn release<'a>(&'a self, lease: &'a ParkLease) -> ParkedFuture<'a, ()> {
        Box::pin(self.call("give a lease back", move |tables, now| {
            if tables.holds(lease) {
                let of = lease.of.clone();
                tables.leases.insert(of, (lease.token, now - 1));
            }
        }))
    }

    fn rows<'a>(&'a self, of: &'a ParkedIn, above: i64) -> ParkedFuture<'a, Vec<ParkedRow>> {
        Box::pin(self.call("read rows", move |tables, _| {
            let rows = tables.rows.iter();
            rows.filter(|((row_of, offset), _)| row_of == of && *offset > above)
                .map(|(_, row)| row.clone())
                .take(50)
                .collect()
        }))
    }

    fn change<'a>(
        &'a self,
        lease: &'a ParkLease,
        changes: &'a ParkedChanges,
    ) -> ParkedFuture<'a, bool> {
        Box::pin(self.call("change rows", move |tables, _| {
            tables.change(lease, changes)
        }))
    }

    fn put_progress<'a>(&'a self, of: &'a ParkedIn, row: &'a ProgressRow) -> ParkedFuture<'a, ()> {
        Box::pin(self.call("write progress", move |tables, _| {
            let place = (of.clone(), row.id);
            tables.progress.entry(place).or_insert_with(|| row.clone());
        }))
    }

    fn progress<'a>(&'a self, of: &'a ParkedIn, id: i64) -> ParkedFuture<'a, Option<ProgressRow>> {
        Box::pin(self.call("read progress", move |tables, _| {
            tables.progress.get(&(of.clone(), id)).cloned()
        }))
    }

    fn drop_progress<'a>(&'a self, of: &'a ParkedIn, gone: GoneProgress) -> ParkedFuture<'a, ()> {
        Box::pin(self.call("remove progress", move |tables, _| {
            tables.progress.retain(|(row_of, id), row| {
                let is_old = row.next < gone.below && Some(*id) != gone.but;
                row_of != of || !(is_old || Some(*id) == gone.id)
            });
        }))
    }

    /// Witnesses look without faults.
    fn count<'a>(&'a self, component: &'a str) -> ParkedFuture<'a, ParkedCount> {
        let tables = self.shared.tables.lock();
        let rows = tables.rows.iter();
        let rows = rows.filter(|((of, _), _)| of.component == component);
        let rows = rows.map(|((of, _), row)| (of.at.clone(), row.offset, row.event_id));
        let count = ParkedCount {
            rows: rows.collect(),
            books: tables.books.get(component).cloned().unwrap_or_default(),
        };
        Box::pin(async move { Ok(count) })
    }

    fn find<'a>(
        &'a self,
        component: &'a str,
        id: EventId,
    ) -> ParkedFuture<'a, Vec<(TopicPartition, ParkedRow)>> {
        Box::pin(self.call("look for a row", move |tables, _| {
            let rows = tables.rows.iter();
            rows.filter(|((of, _), row)| of.component == component && row.event_id == id)
                .map(|((of, _), row)| (of.at.clone(), row.clone()))
                .collect()
        }))
    }

    fn fold<'a>(&'a self, _: &'a str) -> ParkedFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
