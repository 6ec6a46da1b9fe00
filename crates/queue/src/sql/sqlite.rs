//! The queue on SQLite: the same tables, one writer, the clock of this host.

mod claim;
mod inspect;
mod leases;
mod maintain;
mod projection;
mod publish;
mod settle;
mod unreadable;

use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use sqlx::SqliteConnection;
use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_store::{BoxFuture, Sqlite, Store, span_ms, sqlx};
use tokio::sync::Notify;

use super::columns::{ParkedKeys, not_canceled, not_redriven, unsigned};
use super::leadership;
use super::projection::{HAS_REMOVED, POSITION, POSITIONS, REBUILDS};
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{
    ClaimRequest, Claimed, Cleaned, EventFilter, HandlerCommit, Leadership, LeaseId, ListedEvent,
    LogPage, QueueLocation, QueueRecount, QueueStats, QueueStore, Registry, Settlement,
    StoreFuture,
};
use crate::tx::Tx;

pub(super) use publish::insert;

/// The queue's tables on SQLite.
#[derive(Debug)]
pub struct SqliteQueue {
    sqlite: Sqlite,
    store: Store,
    /// Only this process hears it; others find their work by polling.
    wakes: Notify,
    parked: Mutex<ParkedKeys>,
}

impl SqliteQueue {
    /// The queue in this file, whose tables are up to date.
    #[must_use]
    pub fn new(sqlite: Sqlite) -> Self {
        Self {
            store: Store::Sqlite(sqlite.clone()),
            sqlite,
            wakes: Notify::new(),
            parked: Mutex::default(),
        }
    }
}

type Asked<'c, T> = BoxFuture<'c, Result<T, sqlx::Error>>;

impl SqliteQueue {
    /// A transaction of the one writer.
    fn write<T, F>(&self, doing: &'static str, call: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Asked<'c, T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.sqlite.write(doing, call).await?) })
    }

    /// Statements that see one moment and change nothing.
    fn read<T, F>(&self, doing: &'static str, call: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Asked<'c, T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.sqlite.read(doing, call).await?) })
    }
}

impl QueueStore for SqliteQueue {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(self.publish_own(events))
    }

    fn publish_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        events: &'a [NewEvent],
    ) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(async move {
            crate::limit::check_events(events)?;
            let (limit, now) = (tx.limit()?, self.sqlite.now_ms());
            let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
            let publishing = publish::insert(connection, events, now);
            Ok(limit.run("publish events", publishing).await?)
        })
    }

    fn begin(&self) -> StoreFuture<'_, Tx> {
        Box::pin(async move { Ok(Tx::Sql(self.store.begin().await?)) })
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> StoreFuture<'a, Claimed> {
        Box::pin(self.claim_due(request))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [LeaseId],
        lease: Duration,
    ) -> StoreFuture<'a, Vec<LeaseId>> {
        let (leases, until) = (leases.to_vec(), self.sqlite.now_ms() + span_ms(lease));
        self.write("renew claims", move |db| {
            Box::pin(leases::renew(db, leases, (until, lease.is_zero())))
        })
    }

    fn reopen(&self, batch: i64, token: i64) -> StoreFuture<'_, Option<(i64, Vec<i64>)>> {
        self.write("reopen a batch", move |db| {
            Box::pin(leases::reopen(db, batch, token))
        })
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(self.settle_transitions(settlement))
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> StoreFuture<'a, bool> {
        Box::pin(self.record_result(tx, commit))
    }

    fn is_done<'a>(
        &'a self,
        tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> StoreFuture<'a, bool> {
        let doing = "look for a side effect";
        let sql = "SELECT EXISTS (SELECT 1 FROM event_inbox
             WHERE handler_id = ? AND event_id = ? AND sub_task = ?)";
        let query = sqlx::query_scalar(sql)
            .bind(handler.to_owned())
            .bind(event.to_string())
            .bind(sub_task.to_owned());
        let Some(tx) = tx else {
            return self.read(doing, move |db| Box::pin(query.fetch_one(db)));
        };
        Box::pin(async move {
            let limit = tx.limit()?;
            let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
            Ok(limit.run(doing, query.fetch_one(connection)).await?)
        })
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        let (handlers, now) = (handlers.to_vec(), self.sqlite.now_ms());
        self.write("register handlers", move |db| {
            Box::pin(maintain::register(db, handlers, now))
        })
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool> {
        let (type_name, handler) = (type_name.to_owned(), handler.to_owned());
        self.write("unregister a handler", move |db| {
            Box::pin(maintain::unregister(db, type_name, handler))
        })
    }

    fn registry(&self) -> StoreFuture<'_, Registry> {
        self.read("read the registry", |db| {
            Box::pin(maintain::read_registry(db))
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
        self.write("give positions", move |db| {
            Box::pin(projection::sequence(db, i64::from(limit)))
        })
    }

    fn read_log(&self, after: i64, limit: u32) -> StoreFuture<'_, LogPage> {
        self.read("read the log", move |db| {
            Box::pin(projection::read(db, after, i64::from(limit)))
        })
    }

    fn has_removed(&self) -> StoreFuture<'_, bool> {
        self.read("look for what was removed", |db| {
            Box::pin(sqlx::query_scalar(HAS_REMOVED).fetch_one(db))
        })
    }

    fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        let query = sqlx::query_scalar(POSITION).bind(name.to_owned());
        self.read("read a projection's position", move |db| {
            Box::pin(query.fetch_one(db))
        })
    }

    fn projections(&self) -> StoreFuture<'_, Vec<(String, i64)>> {
        self.read("read the projections", |db| {
            Box::pin(sqlx::query_as(POSITIONS).fetch_all(db))
        })
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64> {
        let query = sqlx::query_scalar(REBUILDS).bind(name.to_owned());
        Box::pin(async move {
            let rebuilds = self.read("count rebuilds", move |db| Box::pin(query.fetch_one(db)));
            Ok(unsigned(rebuilds.await?))
        })
    }

    fn note_position<'a>(
        &'a self,
        of: &'a str,
        name: &'a str,
        position: i64,
    ) -> StoreFuture<'a, bool> {
        let (of, name, now) = (of.to_owned(), name.to_owned(), self.sqlite.now_ms());
        self.write("note a position", move |db| {
            Box::pin(projection::note(db, of, name, position, now))
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
        Box::pin(projection::advance(
            tx,
            leadership,
            name,
            (from, to),
            self.sqlite.now_ms(),
        ))
    }

    fn forget_projection<'a>(
        &'a self,
        leadership: Option<&'a Leadership>,
        names: &'a [String],
        tables: &'a [String],
    ) -> StoreFuture<'a, bool> {
        Box::pin(super::projection::forget(
            &self.store,
            leadership,
            names,
            tables,
        ))
    }

    fn swap<'a>(
        &'a self,
        leadership: &'a Leadership,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> StoreFuture<'a, bool> {
        Box::pin(projection::swap(
            &self.store,
            leadership,
            (name, shadow),
            tables,
            marks,
            self.sqlite.now_ms(),
        ))
    }

    fn clean(&self, retention: Option<Duration>) -> StoreFuture<'_, Cleaned> {
        Box::pin(self.clean_up(retention))
    }

    fn redrive(&self, id: i64) -> StoreFuture<'_, ()> {
        let now = self.sqlite.now_ms();
        Box::pin(async move {
            let redriven = self.write("give an event back", move |db| {
                Box::pin(maintain::redrive(db, id, now))
            });
            if !redriven.await? {
                return Err(not_redriven(id, self.show(id).await?));
            }
            self.wake();
            Ok(())
        })
    }

    fn cancel(&self, id: i64) -> StoreFuture<'_, ()> {
        let now = self.sqlite.now_ms();
        Box::pin(async move {
            let canceled = self.write("cancel an event", move |db| {
                Box::pin(maintain::cancel(db, id, now))
            });
            match canceled.await? {
                true => Ok(()),
                false => Err(not_canceled(id, self.show(id).await?)),
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>> {
        let filter = filter.clone();
        self.read("list events", move |db| Box::pin(inspect::list(db, filter)))
    }

    fn show(&self, id: i64) -> StoreFuture<'_, Option<ListedEvent>> {
        self.read("show an event", move |db| Box::pin(inspect::show(db, id)))
    }

    fn find(&self, event: EventId) -> StoreFuture<'_, Option<QueueLocation>> {
        self.read("find an event", move |db| {
            Box::pin(inspect::find(db, event))
        })
    }

    fn stats(&self) -> StoreFuture<'_, QueueStats> {
        let now = self.sqlite.now_ms();
        self.read("count the queue", move |db| {
            Box::pin(inspect::stats(db, now))
        })
    }

    fn account(&self) -> StoreFuture<'_, Account> {
        self.read("read the books", |db| Box::pin(inspect::account(db)))
    }

    fn recount(&self) -> StoreFuture<'_, QueueRecount> {
        let now = unsigned(self.sqlite.now_ms());
        Box::pin(async move {
            let counted = self.sqlite.long_read("count the tables", move |db| {
                Box::pin(inspect::recount(db, now))
            });
            Ok(counted.await?)
        })
    }

    fn wake(&self) {
        self.wakes.notify_waiters();
        self.wakes.notify_one();
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wakes.notified())
    }
}

/// A list as a statement takes it.
fn json<T: serde::Serialize>(list: &T) -> String {
    // Numbers and texts always have a JSON form.
    serde_json::to_string(list).unwrap_or_default()
}
