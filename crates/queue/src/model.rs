//! The queue's store as a model in memory: what the tables mean, without tables.
//!
//! **May fail:** a [`Fault`] may refuse a call, lose its answer after it happened, delay it, or let it
//! hang; a transaction may commit long after a later one. **Must not fail:** each call is atomic,
//! what was answered stays, and the time is that of the clock the model was made with, which is the
//! database's and not that of whoever calls.
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
use tidegate_core::books::Account;
use tidegate_core::env::Clock;
use tidegate_store::span_ms;
use tokio::sync::Notify;

use crate::event::NewEvent;
use crate::port::{
    Answer, ClaimRequest, Claimed, Cleaned, Filter, HandlerCommit, Held, Listed, LogPage,
    QueueStore, Recount, Registry, Settlement, Sighting, Stats, Turn,
};
use crate::tx::Tx;
use crate::{QueueError, limit};
use state::State;
pub use tx::ModelTx;

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
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

type Script = dyn FnMut(&'static str) -> Fault + Send;

/// The queue in memory. Cloning gives another handle on the same one, as another process has it.
///
/// ```
/// use tidegate_core::env::Env;
/// use tidegate_queue::model::Model;
/// use tidegate_queue::port::QueueStore;
/// let model = Model::new(Env::system().clock);
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// assert_eq!(model.account().await?.accepted, 0);
/// # Ok::<(), tidegate_queue::QueueError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Clock>,
    wakes: Arc<Notify>,
    script: Arc<Mutex<Box<Script>>>,
}

impl Model {
    /// An empty queue whose time is that of `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Arc::default(),
            clock,
            wakes: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(|_| Fault::None))),
        }
    }

    /// Asks `script` before each call what becomes of it.
    pub fn set_faults(&self, script: impl FnMut(&'static str) -> Fault + Send + 'static) {
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

    /// What is wrong with the queue right now, beyond what the books say; for checks after each
    /// step of a simulation.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.lock().problems()
    }

    /// The books against a recount, without a call that could fail.
    #[must_use]
    pub fn audit(&self) -> Recount {
        self.lock().recount()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    fn fault(&self, doing: &'static str) -> Fault {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script(doing)
    }

    /// One call: what the script says, then the whole of it at once.
    fn call<'a, T: Send + 'a>(
        &'a self,
        doing: &'static str,
        act: impl FnOnce(&mut State, i64) -> Result<T, QueueError> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let fault = self.fault(doing);
            match fault {
                Fault::None | Fault::LoseAnswer => {}
                Fault::Refuse => {
                    return Err(QueueError::Store(tidegate_store::StoreError::of(
                        doing,
                        tidegate_store::sqlx::Error::PoolTimedOut,
                    )));
                }
                Fault::Delay(span) => self.clock.sleep(span).await,
                Fault::Hang => {
                    self.clock.sleep(TIMEOUT).await;
                    return Err(QueueError::Unanswered { doing });
                }
            }
            let now = self.now_ms();
            let answer = act(&mut self.lock(), now);
            match fault {
                Fault::LoseAnswer => Err(QueueError::Unanswered { doing }),
                Fault::None | Fault::Refuse | Fault::Delay(_) | Fault::Hang => answer,
            }
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}

impl QueueStore for Model {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        self.call("publish", |state, now| {
            limit::check_events(events)?;
            Ok(state.publish(events, now))
        })
    }

    fn publish_in<'a>(&'a self, tx: &'a mut Tx, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        Box::pin(async move {
            limit::check_events(events)?;
            let tx = tx.model().ok_or(QueueError::ForeignTransaction)?;
            Ok(tx.publish(events))
        })
    }

    fn begin(&self) -> Answer<'_, Tx> {
        let tx = ModelTx::new(self.clone());
        self.call("begin", |_, _| Ok(Tx::Model(tx)))
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> Answer<'a, Claimed> {
        self.call("claim", |state, now| Ok(state.claim(request, now)))
    }

    fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Held>> {
        self.call("renew", move |state, now| {
            Ok(state.renew(held, now, span_ms(lease)))
        })
    }

    fn reopen(&self, batch: i64, token: i64) -> Answer<'_, Option<(i64, Vec<i64>)>> {
        self.call("reopen", move |state, _| Ok(state.reopen(batch, token)))
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> Answer<'a, Vec<i64>> {
        self.call("settle", |state, now| {
            let version = state.registry.version;
            if settlement.registry.is_some_and(|by| by != version) {
                return Err(QueueError::RegistryChanged);
            }
            Ok(state.settle(settlement, now))
        })
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut tx = tx;
            let pending = match &mut tx {
                Some(tx) => Some(tx.model().ok_or(QueueError::ForeignTransaction)?.take()),
                None => None,
            };
            let recorded = self.call("record", |state, now| state.record(commit, pending, now));
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
    ) -> Answer<'a, bool> {
        let key = (handler.to_owned(), event, sub_task.to_owned());
        self.call("is_done", move |state, _| Ok(state.inbox.contains(&key)))
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> Answer<'a, ()> {
        self.call("register", |state, _| {
            state.register(handlers);
            Ok(())
        })
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> Answer<'a, bool> {
        self.call("unregister", |state, _| {
            Ok(state.unregister(type_name, handler))
        })
    }

    fn registry(&self) -> Answer<'_, Registry> {
        self.call("registry", |state, _| Ok(state.registry.clone()))
    }

    fn take_turn<'a>(
        &'a self,
        name: &'a str,
        _owner: &'a str,
        span: Duration,
    ) -> Answer<'a, Option<Turn>> {
        self.call("take_turn", move |state, now| {
            Ok(state.take_turn(name, now, now + span_ms(span)))
        })
    }

    fn keep_turn<'a>(&'a self, turn: &'a Turn, span: Duration) -> Answer<'a, bool> {
        self.call("keep_turn", move |state, now| {
            Ok(state.keep_turn(turn, now + span_ms(span)))
        })
    }

    fn sequence(&self, limit: u32) -> Answer<'_, u64> {
        self.call("sequence", move |state, _| Ok(state.sequence(limit)))
    }

    fn read_log(&self, after: i64, limit: u32) -> Answer<'_, LogPage> {
        self.call("read_log", move |state, _| {
            Ok(state.read_log(after, i64::from(limit)))
        })
    }

    fn has_removed(&self) -> Answer<'_, bool> {
        self.call("has_removed", |state, _| {
            Ok(state.books.removed().delivered != 0)
        })
    }

    fn projection<'a>(&'a self, name: &'a str) -> Answer<'a, i64> {
        self.call("projection", |state, _| {
            Ok(state.projections.get(name).copied().unwrap_or(0))
        })
    }

    fn projections(&self) -> Answer<'_, Vec<(String, i64)>> {
        self.call("projections", |state, _| {
            let all = state.projections.iter();
            Ok(all.map(|(name, at)| (name.clone(), *at)).collect())
        })
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        self.call("rebuilds", |state, _| {
            Ok(state.rebuilds.get(name).copied().unwrap_or(0))
        })
    }

    fn note_position<'a>(&'a self, of: &'a str, name: &'a str, position: i64) -> Answer<'a, bool> {
        self.call("note_position", move |state, _| {
            if !state.projections.contains_key(of) {
                return Ok(false);
            }
            let noted = state.projections.entry(name.to_owned());
            let noted = noted.or_insert(position);
            *noted = position.min(*noted);
            Ok(true)
        })
    }

    fn advance<'a>(
        &'a self,
        tx: Tx,
        turn: &'a Turn,
        name: &'a str,
        from: i64,
        to: i64,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut tx = tx;
            let pending = tx.model().ok_or(QueueError::ForeignTransaction)?.take();
            let advanced = self.call("advance", |state, now| {
                Ok(state.advance(pending, turn, name, (from, to), now))
            });
            advanced.await
        })
    }

    fn forget_projection<'a>(
        &'a self,
        turn: Option<&'a Turn>,
        names: &'a [String],
        tables: &'a [String],
    ) -> Answer<'a, bool> {
        self.call("forget_projection", move |state, _| {
            if turn.is_some_and(|turn| !state.holds(turn)) {
                return Ok(false);
            }
            for name in names {
                state.projections.remove(name);
                state.rebuilds.remove(name);
            }
            for table in tables {
                state.tables.remove(&format!("{table}__rebuild"));
            }
            Ok(true)
        })
    }

    fn swap<'a>(
        &'a self,
        turn: &'a Turn,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> Answer<'a, bool> {
        self.call("swap", |state, _| {
            Ok(state.swap(turn, name, shadow, tables, marks))
        })
    }

    fn clean(&self, retention: Option<Duration>) -> Answer<'_, Cleaned> {
        self.call("clean", move |state, now| {
            Ok(state.clean(retention.map(|retention| now - span_ms(retention)), now))
        })
    }

    fn redrive(&self, id: i64) -> Answer<'_, ()> {
        self.call("redrive", move |state, now| state.redrive(id, now))
    }

    fn cancel(&self, id: i64) -> Answer<'_, ()> {
        self.call("cancel", move |state, now| state.cancel(id, now))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Answer<'a, Vec<Listed>> {
        self.call("list", |state, _| Ok(state.list(filter)))
    }

    fn show(&self, id: i64) -> Answer<'_, Option<Listed>> {
        self.call("show", move |state, _| Ok(state.show(id)))
    }

    fn find(&self, event: EventId) -> Answer<'_, Option<Sighting>> {
        self.call("find", move |state, _| Ok(state.find(event)))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        self.call("stats", |state, now| Ok(state.stats(now)))
    }

    fn account(&self) -> Answer<'_, Account> {
        self.call("account", |state, _| Ok(state.account()))
    }

    fn recount(&self) -> Answer<'_, Recount> {
        self.call("recount", |state, _| Ok(state.recount()))
    }

    fn wake(&self) {
        self.wakes.notify_waiters();
        self.wakes.notify_one();
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wakes.notified())
    }
}
