//! The calls of the queue's store, written once for both databases.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books};
use tidegate_core::env::Clock;
use tidegate_store::sql::{SqlAccess, SqlConnection, SqlFuture};
use tidegate_store::{Store, StoreError, StoreTx, posting, span_ms, sqlx};

use super::backend::SqlBackend;
use super::claim::{ClaimScan, ClaimStatements, claim};
use super::columns::{ParkedKeys, REMOVING, not_canceled, not_redriven, unsigned};
use super::inspect;
use super::maintain::{MaintainStatements, read_registry};
use super::projection::{self, ProjectionStatements};
use super::settle::{Recorded, SettleStatements};
use super::{COMPONENT, leadership};
use crate::event::NewEvent;
use crate::port::{
    ClaimRequest, Claimed, Cleaned, EventFilter, HandlerCommit, Leadership, LeaseId, ListedEvent,
    LogPage, QueueLocation, QueueRecount, QueueStats, QueueStore, Registry, Settlement,
    StoreFuture,
};
use crate::tx::Tx;
use crate::{QueueError, limit};

/// The queue's tables on one of the two databases.
#[derive(Debug)]
pub(super) struct SqlQueue<B> {
    backend: B,
    store: Store,
    clock: Arc<dyn Clock>,
    parked: Mutex<ParkedKeys>,
}

impl<B: SqlBackend> SqlQueue<B> {
    pub(super) fn new(backend: B, store: Store, clock: Arc<dyn Clock>) -> Self {
        Self {
            backend,
            store,
            clock,
            parked: Mutex::default(),
        }
    }

    /// The wall time of this host. PostgreSQL goes by its own clock.
    fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    fn call<T, F>(&self, access: SqlAccess, doing: &'static str, call: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut B::Connection) -> SqlFuture<'c, T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.backend.call(access, doing, call).await?) })
    }

    /// A transaction that was lent, in which names mean our tables again.
    async fn lent(&self, tx: Tx, doing: &'static str) -> Result<StoreTx, QueueError> {
        let mut tx = tx.into_sql()?;
        let (limit, db) = (tx.limit(), connection::<B>(&mut tx)?);
        if let Some(sql) = B::OUR_TABLES {
            let ours = limit.run(doing, db.execute_raw(sql)).await;
            ours.map_err(StoreError::undone)?;
        }
        Ok(tx)
    }

    /// A result of a handler, written in `tx` and committed; rolled back where it does not hold.
    async fn record_in(
        &self,
        mut tx: StoreTx,
        doing: &'static str,
        commit: &HandlerCommit,
    ) -> Result<Recorded, QueueError> {
        let (limit, db) = (tx.limit(), connection::<B>(&mut tx)?);
        let recorded = limit.run(doing, db.record(commit, self.now_ms())).await;
        // The commit is not asked for yet, so a failure is known to have changed nothing.
        let recorded = recorded.map_err(StoreError::undone)?;
        match recorded {
            Recorded::Whole => tx.commit().await?,
            Recorded::Nothing | Recorded::Guarded => tx.rollback().await?,
        }
        Ok(recorded)
    }

    async fn remove_old(&self, retention: Duration, now: i64) -> Result<u64, QueueError> {
        let (age, until) = (span_ms(retention), self.clock.elapsed() + REMOVING);
        let mut events = 0;
        loop {
            let round = self.call(SqlAccess::Transact, "remove old events", move |db| {
                Box::pin(db.remove_old(age, now))
            });
            let round = round.await?;
            events += round;
            if round == 0 || self.clock.elapsed() >= until {
                return Ok(events);
            }
        }
    }
}

fn connection<B: SqlBackend>(tx: &mut StoreTx) -> Result<&mut B::Connection, QueueError> {
    B::connection(tx).ok_or(QueueError::ForeignTransaction)
}

/// Commits what was done, or takes it back where it does not hold.
async fn end(tx: StoreTx, is_done: bool) -> Result<bool, QueueError> {
    match is_done {
        true => tx.commit().await?,
        false => tx.rollback().await?,
    }
    Ok(is_done)
}

impl<B: SqlBackend> QueueStore for SqlQueue<B> {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(async move {
            limit::check_events(events)?;
            let access = self.backend.publish_access(events);
            let (events, now) = (events.to_vec(), self.now_ms());
            let published = self.call(access, "publish events", move |db| {
                Box::pin(async move { db.insert(&events, now).await })
            });
            published.await
        })
    }

    fn publish_once<'a>(&'a self, event: &'a NewEvent) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            limit::check_events(std::slice::from_ref(event))?;
            let (event, now) = (event.clone(), self.now_ms());
            let published = self.call(SqlAccess::Transact, "publish an event", move |db| {
                Box::pin(async move {
                    let is_new = db.guard(event.event_id, now).await?;
                    if is_new {
                        db.insert(&[event], now).await?;
                    }
                    Ok(is_new)
                })
            });
            published.await
        })
    }

    fn publish_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        events: &'a [NewEvent],
    ) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(async move {
            limit::check_events(events)?;
            let tx = tx.sql()?;
            let (limit, db) = (tx.limit(), connection::<B>(tx)?);
            let publishing = db.insert(events, self.now_ms());
            Ok(limit.run("publish events", publishing).await?)
        })
    }

    fn begin(&self) -> StoreFuture<'_, Tx> {
        Box::pin(async move { Ok(Tx::Sql(self.store.begin().await?)) })
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> StoreFuture<'a, Claimed> {
        Box::pin(async move {
            let parked = || self.parked.lock().unwrap_or_else(PoisonError::into_inner);
            let (floor, known_batch) = self.backend.known_batches();
            let scan = ClaimScan {
                request: request.clone(),
                now: self.now_ms(),
                parked: parked().clone(),
                floor,
                known_batch,
                last_batch: None,
                taken: Default::default(),
            };
            let claimed = self.call(SqlAccess::Write, "claim events", move |db| {
                Box::pin(claim(db, scan))
            });
            let (claimed, scan) = claimed.await?;
            self.backend.note_claim(&scan);
            if request.reclaim_expired {
                *parked() = scan.parked;
            }
            Ok(claimed)
        })
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [LeaseId],
        lease: Duration,
    ) -> StoreFuture<'a, Vec<LeaseId>> {
        let (leases, lease, now) = (leases.to_vec(), span_ms(lease), self.now_ms());
        self.call(SqlAccess::Write, "renew claims", move |db| {
            Box::pin(db.renew(leases, lease, now))
        })
    }

    fn reopen(&self, batch: i64, token: i64) -> StoreFuture<'_, Option<(i64, Vec<i64>)>> {
        self.call(SqlAccess::Write, "reopen a batch", move |db| {
            Box::pin(db.reopen(batch, token))
        })
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(self.backend.settle(settlement, self.now_ms()))
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let doing = "record a result";
            let tx = match tx {
                Some(tx) => Some(self.lent(tx, doing).await?),
                None if B::RECORDS_IN_TRANSACTION => Some(self.store.begin_own().await?),
                None => None,
            };
            let recorded = match tx {
                Some(tx) => self.record_in(tx, doing, commit).await?,
                None => {
                    let (commit, now) = (commit.clone(), self.now_ms());
                    let recorded = self.call(SqlAccess::Write, doing, move |db| {
                        Box::pin(async move { db.record(&commit, now).await })
                    });
                    recorded.await?
                }
            };
            let event_id = commit.event_id;
            match recorded {
                Recorded::Whole => {}
                Recorded::Nothing => return Ok(false),
                Recorded::Guarded => return Err(QueueError::SideEffectExists { event_id }),
            }
            if !commit.follow_ups.is_empty() {
                self.wake();
            }
            Ok(true)
        })
    }

    fn is_done<'a>(
        &'a self,
        tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> StoreFuture<'a, bool> {
        let doing = "look for a side effect";
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {}
             WHERE handler_id = $1 AND event_id = $2 AND sub_task = $3)",
            self.backend.inbox()
        );
        let sql = sqlx::AssertSqlSafe(sql);
        let Some(tx) = tx else {
            let (handler, sub_task) = (handler.to_owned(), sub_task.to_owned());
            return self.call(SqlAccess::Read, doing, move |db| {
                db.fetch_one(sql, &[&handler, &event, &sub_task])
            });
        };
        Box::pin(async move {
            let tx = tx.sql()?;
            let (limit, db) = (tx.limit(), connection::<B>(tx)?);
            let done = db.fetch_one(sql, &[&handler, &event, &sub_task]);
            Ok(limit.run(doing, done).await?)
        })
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        let (handlers, now) = (handlers.to_vec(), self.now_ms());
        self.call(SqlAccess::Write, "register handlers", move |db| {
            Box::pin(db.register(handlers, now))
        })
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool> {
        let (type_name, handler) = (type_name.to_owned(), handler.to_owned());
        self.call(SqlAccess::Write, "unregister a handler", move |db| {
            Box::pin(db.unregister(type_name, handler))
        })
    }

    fn registry(&self) -> StoreFuture<'_, Registry> {
        Box::pin(async move {
            let known = self.backend.known_registry();
            let registry = self.call(SqlAccess::Read, "read the registry", |db| {
                Box::pin(read_registry(db))
            });
            let registry = registry.await?;
            self.backend.note_registry(known, registry.version);
            Ok(registry)
        })
    }

    fn acquire_leadership<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        span: Duration,
    ) -> StoreFuture<'a, Option<Leadership>> {
        Box::pin(leadership::acquire(&self.store, name, owner, span))
    }

    fn renew_leadership<'a>(
        &'a self,
        leadership: &'a Leadership,
        span: Duration,
    ) -> StoreFuture<'a, bool> {
        Box::pin(leadership::renew(&self.store, leadership, span))
    }

    fn sequence(&self, limit: u32) -> StoreFuture<'_, u64> {
        Box::pin(self.backend.sequence(limit))
    }

    fn read_log(&self, after: i64, limit: u32) -> StoreFuture<'_, LogPage> {
        self.call(SqlAccess::Snapshot, "read the log", move |db| {
            Box::pin(projection::read_log(db, after, i64::from(limit)))
        })
    }

    fn has_removed(&self) -> StoreFuture<'_, bool> {
        self.call(SqlAccess::Read, "look for what was removed", |db| {
            db.fetch_one(projection::HAS_REMOVED, &[])
        })
    }

    fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        let name = name.to_owned();
        self.call(SqlAccess::Read, "read a projection's position", move |db| {
            db.fetch_one(projection::POSITION, &[&name])
        })
    }

    fn projections(&self) -> StoreFuture<'_, Vec<(String, i64)>> {
        self.call(SqlAccess::Read, "read the projections", |db| {
            db.fetch_all(projection::POSITIONS, &[])
        })
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64> {
        let name = name.to_owned();
        self.call(SqlAccess::Read, "count rebuilds", move |db| {
            let rebuilds = db.fetch_one(projection::REBUILDS, &[&name]);
            Box::pin(async move { rebuilds.await.map(unsigned) })
        })
    }

    fn note_position<'a>(
        &'a self,
        of: &'a str,
        name: &'a str,
        position: i64,
    ) -> StoreFuture<'a, bool> {
        let (of, name, now) = (of.to_owned(), name.to_owned(), self.now_ms());
        self.call(SqlAccess::Transact, "note a position", move |db| {
            Box::pin(db.note_position(of, name, position, now))
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
            let doing = "move a projection on";
            let tx = self.lent(tx, doing).await?;
            let Some(mut tx) = leadership::checked(tx, leadership).await? else {
                return Ok(false);
            };
            let (limit, db) = (tx.limit(), connection::<B>(&mut tx)?);
            let advance = db.advance(name, (from, to), self.now_ms());
            let is_advanced = limit.run(doing, advance).await?;
            end(tx, is_advanced).await
        })
    }

    fn forget_projection<'a>(
        &'a self,
        leadership: Option<&'a Leadership>,
        names: &'a [String],
        tables: &'a [String],
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            // The next owner of the leadership may be building the tables that are dropped.
            let tx = match leadership {
                Some(leadership) => leadership::begin(&self.store, leadership).await?,
                None => Some(self.store.begin_own().await?),
            };
            let Some(mut tx) = tx else {
                return Ok(false);
            };
            let (limit, db) = (tx.limit(), connection::<B>(&mut tx)?);
            let forget = projection::forget(db, names, tables);
            limit.run("forget a projection", forget).await?;
            end(tx, true).await
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
        Box::pin(async move {
            let Some(mut tx) = leadership::begin(&self.store, leadership).await? else {
                return Ok(false);
            };
            let (doing, now) = ("swap a projection", self.now_ms());
            let (limit, db) = (tx.limit(), connection::<B>(&mut tx)?);
            let swap = limit.run(doing, projection::swap_tables(db, tables)).await;
            swap.map_err(StoreError::undone)?;
            let swap = db.swap_positions(name, shadow, marks, now);
            // A shadow without a position was not built to its end.
            let is_swapped = limit.run(doing, swap).await?;
            end(tx, is_swapped).await
        })
    }

    fn clean(&self, retention: Option<Duration>) -> StoreFuture<'_, Cleaned> {
        Box::pin(async move {
            let now = self.now_ms();
            let states = self.call(SqlAccess::Write, "clean up handler states", move |db| {
                Box::pin(db.clean_states(now))
            });
            let states = states.await?;
            let events = match retention {
                Some(retention) => self.remove_old(retention, now).await?,
                None => 0,
            };
            let postings = posting::fold(&self.store, COMPONENT, unsigned(now)).await?;
            self.backend.after_clean().await;
            Ok(Cleaned {
                states,
                events,
                postings,
            })
        })
    }

    fn redrive(&self, id: i64) -> StoreFuture<'_, ()> {
        let now = self.now_ms();
        Box::pin(async move {
            let redriven = self.call(SqlAccess::Write, "give an event back", move |db| {
                Box::pin(db.redrive(id, now))
            });
            if !redriven.await? {
                return Err(not_redriven(id, self.show(id).await?));
            }
            self.wake();
            Ok(())
        })
    }

    fn cancel(&self, id: i64) -> StoreFuture<'_, ()> {
        let now = self.now_ms();
        Box::pin(async move {
            let canceled = self.call(SqlAccess::Write, "cancel an event", move |db| {
                Box::pin(db.cancel(id, now))
            });
            match canceled.await? {
                true => Ok(()),
                false => Err(not_canceled(id, self.show(id).await?)),
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>> {
        let filter = filter.clone();
        self.call(SqlAccess::Read, "list events", move |db| {
            Box::pin(inspect::list(db, filter))
        })
    }

    fn show(&self, id: i64) -> StoreFuture<'_, Option<ListedEvent>> {
        self.call(SqlAccess::Snapshot, "show an event", move |db| {
            Box::pin(inspect::show(db, id))
        })
    }

    fn find(&self, event: EventId) -> StoreFuture<'_, Option<QueueLocation>> {
        self.call(SqlAccess::Snapshot, "find an event", move |db| {
            Box::pin(inspect::find(db, event))
        })
    }

    fn stats(&self) -> StoreFuture<'_, QueueStats> {
        let now = self.now_ms();
        self.call(SqlAccess::Snapshot, "count the queue", move |db| {
            Box::pin(inspect::stats(db, now))
        })
    }

    fn account(&self) -> StoreFuture<'_, Account> {
        self.call(SqlAccess::Snapshot, "read the books", |db| {
            Box::pin(inspect::account(db))
        })
    }

    fn books(&self) -> StoreFuture<'_, Books> {
        self.call(SqlAccess::LongSnapshot, "read the books", |db| {
            Box::pin(inspect::books(db))
        })
    }

    fn recount(&self) -> StoreFuture<'_, QueueRecount> {
        let now = unsigned(self.now_ms());
        self.call(SqlAccess::LongSnapshot, "count the tables", move |db| {
            Box::pin(inspect::recount(db, now))
        })
    }

    fn wake(&self) {
        self.backend.wake();
    }

    fn wakes_sent(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.backend.wakes_sent())
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.backend.woken())
    }
}
