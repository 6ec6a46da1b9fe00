//! The queue's store as a model in memory: what the tables mean, without tables.
//!
//! **May fail:** a [`CallFault`] may refuse a call, lose its answer after it happened, delay it, or let
//! it hang; a transaction may commit long after a later one. **Must not fail:** each call is atomic,
//! and what was answered stays. The time is that of the clock the model was made with. That is the
//! database's clock, not the caller's.
//!
//! It is deterministic: whatever has an order is ordered by number or name.

mod claim;
mod inspect;
mod maintain;
mod settle;
mod state;
mod tx;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books};
use tidegate_core::env::Clock;
use tidegate_store::span_ms;
use tokio::sync::Notify;

use crate::event::NewEvent;
use crate::port::{
    ClaimRequest, Claimed, Cleaned, EventFilter, HandlerCommit, Leadership, LeaseId, ListedEvent,
    LogPage, QueueLocation, QueueRecount, QueueStats, QueueStore, Registry, Settlement,
    StoreFuture,
};
use crate::tx::Tx;
use crate::{QueueError, limit};
use state::ModelState;
pub use tx::ModelTx;

/// The fate of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// It works.
    None,
    /// It does not happen, and says so.
    Refuse,
    /// It happens, and the answer is lost.
    LoseAnswer,
    /// It happens after a while.
    Delay(Duration),
    /// It never happens, and the caller gives up after [`TIMEOUT`].
    Hang,
}

/// How long a call waits for an answer, as the real stores do.
pub const TIMEOUT: Duration = Duration::from_secs(10);

type Script = dyn FnMut(&'static str) -> CallFault + Send;

/// The queue in memory. Cloning gives another handle on the same one, as another process has it.
///
/// ```
/// use tidegate_core::env::Env;
/// use tidegate_queue::model::QueueModel;
/// use tidegate_queue::port::QueueStore;
/// let model = QueueModel::new(Env::system().clock);
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// assert_eq!(model.account().await?.accepted, 0);
/// # Ok::<(), tidegate_queue::QueueError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct QueueModel {
    state: Arc<Mutex<ModelState>>,
    clock: Arc<dyn Clock>,
    wakes: Arc<Notify>,
    script: Arc<Mutex<Box<Script>>>,
}

impl QueueModel {
    /// An empty queue whose time is that of `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Arc::default(),
            clock,
            wakes: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(|_| CallFault::None))),
        }
    }

    /// Asks `script` before each call what becomes of it.
    pub fn set_faults(&self, script: impl FnMut(&'static str) -> CallFault + Send + 'static) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(script);
    }

    /// The value of `key` in a table that transactions wrote to.
    #[must_use]
    pub fn value(&self, table: &str, key: &str) -> Option<String> {
        let state = self.lock();
        state
            .tables
            .get(table)
            .and_then(|rows| rows.get(key))
            .cloned()
    }

    /// Problems of the queue right now, beyond what the books say; for checks after each
    /// step of a simulation.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.lock().problems()
    }

    /// The books against a recount, without a call that could fail.
    #[must_use]
    pub fn audit(&self) -> QueueRecount {
        self.lock().recount()
    }

    fn lock(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    fn fault(&self, doing: &'static str) -> CallFault {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script(doing)
    }

    /// One call: the fault that the script gives it, then the whole of it at once.
    fn try_call<'a, T: Send + 'a>(
        &'a self,
        doing: &'static str,
        act: impl FnOnce(&mut ModelState, i64) -> Result<T, QueueError> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let fault = self.fault(doing);
            match fault {
                CallFault::None | CallFault::LoseAnswer => {}
                CallFault::Refuse => {
                    let refused = tidegate_store::sqlx::Error::PoolTimedOut;
                    return Err(tidegate_store::StoreError::of(doing, refused).into());
                }
                CallFault::Delay(span) => self.clock.sleep(span).await,
                CallFault::Hang => {
                    self.clock.sleep(TIMEOUT).await;
                    return Err(QueueError::OutcomeUnknown { doing });
                }
            }
            let now = self.now_ms();
            let answer = act(&mut self.lock(), now);
            if fault == CallFault::LoseAnswer {
                return Err(QueueError::OutcomeUnknown { doing });
            }
            answer
        })
    }

    /// The same for a call that the model itself never refuses.
    fn call<'a, T: Send + 'a>(
        &'a self,
        doing: &'static str,
        act: impl FnOnce(&mut ModelState, i64) -> T + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.try_call(doing, |state, now| Ok(act(state, now)))
    }
}

impl fmt::Debug for QueueModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueModel")
    }
}

impl QueueStore for QueueModel {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>> {
        self.try_call("publish", |state, now| {
            limit::check_events(events)?;
            Ok(state.publish(events, now))
        })
    }

    fn publish_once<'a>(&'a self, event: &'a NewEvent) -> StoreFuture<'a, bool> {
        self.try_call("publish once", |state, now| {
            limit::check_events(std::slice::from_ref(event))?;
            Ok(state.publish_once(event, now))
        })
    }

    fn publish_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        events: &'a [NewEvent],
    ) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(async move {
            limit::check_events(events)?;
            let tx = tx.model().ok_or(QueueError::ForeignTransaction)?;
            Ok(tx.publish(events))
        })
    }

    fn begin(&self) -> StoreFuture<'_, Tx> {
        let tx = ModelTx::new(self.clone());
        self.call("begin", |_, _| Tx::Model(tx))
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> StoreFuture<'a, Claimed> {
        self.call("claim", |state, now| state.claim(request, now))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [LeaseId],
        lease: Duration,
    ) -> StoreFuture<'a, Vec<LeaseId>> {
        self.call("renew", move |state, now| {
            state.renew(leases, now, span_ms(lease))
        })
    }

    fn reopen(&self, batch: i64, token: i64) -> StoreFuture<'_, Option<(i64, Vec<i64>)>> {
        self.call("reopen", move |state, _| state.reopen(batch, token))
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> StoreFuture<'a, Vec<i64>> {
        self.try_call("settle", |state, now| {
            let version = state.registry.version;
            if settlement.registry.is_some_and(|by| by != version) {
                return Err(QueueError::RegistryChanged);
            }
            Ok(state.settle(settlement, now))
        })
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut tx = tx;
            let pending = match &mut tx {
                Some(tx) => Some(tx.model().ok_or(QueueError::ForeignTransaction)?.take()),
                None => None,
            };
            let recorded = self.try_call("record", |state, now| state.record(commit, pending, now));
            let is_ours = recorded.await?;
            if is_ours && !commit.follow_ups.is_empty() {
                self.wake();
            }
            Ok(is_ours)
        })
    }

    fn is_done<'a>(
        &'a self,
        _tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> StoreFuture<'a, bool> {
        let key = (handler.to_owned(), event, sub_task.to_owned());
        self.call("is_done", move |state, _| state.inbox.contains(&key))
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        self.call("register", |state, _| state.register(handlers))
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool> {
        self.call("unregister", |state, _| {
            state.unregister(type_name, handler)
        })
    }

    fn registry(&self) -> StoreFuture<'_, Registry> {
        self.call("registry", |state, _| state.registry.clone())
    }

    fn acquire_leadership<'a>(
        &'a self,
        name: &'a str,
        _owner: &'a str,
        span: Duration,
    ) -> StoreFuture<'a, Option<Leadership>> {
        self.call("acquire_leadership", move |state, now| {
            state.acquire_leadership(name, now, now + span_ms(span))
        })
    }

    fn renew_leadership<'a>(
        &'a self,
        leadership: &'a Leadership,
        span: Duration,
    ) -> StoreFuture<'a, bool> {
        self.call("renew_leadership", move |state, now| {
            state.renew_leadership(leadership, now + span_ms(span))
        })
    }

    fn sequence(&self, limit: u32) -> StoreFuture<'_, u64> {
        self.call("sequence", move |state, _| state.sequence(limit))
    }

    fn read_log(&self, after: i64, limit: u32) -> StoreFuture<'_, LogPage> {
        self.call("read_log", move |state, _| {
            state.read_log(after, i64::from(limit))
        })
    }

    fn has_removed(&self) -> StoreFuture<'_, bool> {
        self.call("has_removed", |state, _| {
            state.books.removed().delivered != 0
        })
    }

    fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        self.call("projection", |state, _| {
            state.projections.get(name).copied().unwrap_or(0)
        })
    }

    fn projections(&self) -> StoreFuture<'_, Vec<(String, i64)>> {
        self.call("projections", |state, _| {
            let all = state.projections.iter();
            all.map(|(name, at)| (name.clone(), *at)).collect()
        })
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64> {
        self.call("rebuilds", |state, _| {
            state.rebuilds.get(name).copied().unwrap_or(0)
        })
    }

    fn note_position<'a>(
        &'a self,
        of: &'a str,
        name: &'a str,
        position: i64,
    ) -> StoreFuture<'a, bool> {
        self.call("note_position", move |state, _| {
            if !state.projections.contains_key(of) {
                return false;
            }
            let noted = state.projections.entry(name.to_owned());
            let noted = noted.or_insert(position);
            *noted = position.min(*noted);
            true
        })
    }

    fn advance<'a>(
        &'a self,
        tx: Tx,
        leadership: &'a Leadership,
        name: &'a str,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut tx = tx;
            let pending = tx.model().ok_or(QueueError::ForeignTransaction)?.take();
            let advanced = self.call("advance", |state, now| {
                state.advance(pending, leadership, name, (from, to), now)
            });
            advanced.await
        })
    }

    fn forget_projection<'a>(
        &'a self,
        leadership: Option<&'a Leadership>,
        names: &'a [String],
        tables: &'a [String],
    ) -> StoreFuture<'a, bool> {
        self.call("forget_projection", move |state, _| {
            if leadership.is_some_and(|leadership| !state.holds(leadership)) {
                return false;
            }
            for name in names {
                state.projections.remove(name);
                state.rebuilds.remove(name);
            }
            for table in tables {
                state.tables.remove(&format!("{table}__rebuild"));
            }
            true
        })
    }

    fn swap<'a>(
        &'a self,
        leadership: &'a Leadership,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> StoreFuture<'a, bool> {
        self.call("swap", |state, _| {
            state.swap(leadership, name, shadow, tables, marks)
        })
    }

    fn clean(&self, retention: Option<Duration>) -> StoreFuture<'_, Cleaned> {
        self.call("clean", move |state, now| {
            state.clean(retention.map(|retention| now - span_ms(retention)), now)
        })
    }

    fn redrive(&self, id: i64) -> StoreFuture<'_, ()> {
        self.try_call("redrive", move |state, now| state.redrive(id, now))
    }

    fn cancel(&self, id: i64) -> StoreFuture<'_, ()> {
        self.try_call("cancel", move |state, now| state.cancel(id, now))
    }

    fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>> {
        self.call("list", |state, _| state.list(filter))
    }

    fn show(&self, id: i64) -> StoreFuture<'_, Option<ListedEvent>> {
        self.call("show", move |state, _| state.show(id))
    }

    fn find(&self, event: EventId) -> StoreFuture<'_, Option<QueueLocation>> {
        self.call("find", move |state, _| state.find(event))
    }

    fn stats(&self) -> StoreFuture<'_, QueueStats> {
        self.call("stats", |state, now| state.stats(now))
    }

    fn account(&self) -> StoreFuture<'_, Account> {
        self.call("account", |state, _| state.account())
    }

    fn books(&self) -> StoreFuture<'_, Books> {
        self.call("books", |state, _| state.books.clone())
    }

    fn recount(&self) -> StoreFuture<'_, QueueRecount> {
        self.call("recount", |state, _| state.recount())
    }

    fn wake(&self) {
        self.wakes.notify_waiters();
        self.wakes.notify_one();
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wakes.notified())
    }
}
