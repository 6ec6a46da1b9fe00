//! The queue on PostgreSQL.

mod claim;
mod inspect;
mod maintain;
mod projection;
mod publish;
mod settle;
mod wake;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_core::env::Env;
use tidegate_store::{BoxFuture, Postgres, Store, span_ms, sqlx};

use super::columns::{ParkedKeys, canceled_errors, not_canceled, not_redriven, unsigned};
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

pub(super) use publish::{insert, insert_at_once};

/// Names in a transaction that was lent mean what they mean to us again: where our tables are stands in the
/// session from its beginning.
const OUR_TABLES: &str = "RESET search_path";

/// The queue's tables on PostgreSQL.
#[derive(Debug)]
pub struct PostgresQueue {
    postgres: Postgres,
    store: Store,
    env: Env,
    wakes: Arc<wake::Wakes>,
    /// Batches below are known to be gone.
    floor: AtomicI64,
    /// The last number of a batch that was seen to be given out.
    last_batch: AtomicI64,
    /// The newest version of the registry that was read.
    registry: AtomicU64,
    /// The table of side effects with its schema, which means the same whatever somebody has set.
    inbox: String,
    /// The numbers of handler sets, which never change.
    sets: Mutex<BTreeMap<String, i32>>,
    sequencer: Mutex<projection::GroupHorizon>,
    parked: Mutex<ParkedKeys>,
}

impl PostgresQueue {
    /// The queue on this server, whose tables are up to date.
    ///
    /// # Errors
    /// The database is away.
    pub async fn new(postgres: Postgres, env: &Env) -> Result<Self, QueueError> {
        let (schema, inbox): (String, String) = postgres
            .run("ask for the schema", |db| {
                Box::pin(async move {
                    sqlx::query_as(
                        "SELECT coalesce(current_schema(), 'public')::text,
                             coalesce((SELECT c.relnamespace::regnamespace::text || '.event_inbox'
                                 FROM pg_class c WHERE c.oid = to_regclass('event_inbox')),
                                 'event_inbox')",
                    )
                    .fetch_one(db)
                    .await
                })
            })
            .await?;
        let env = env.fork("queue-postgres");
        Ok(Self {
            store: Store::Postgres(postgres.clone()),
            wakes: Arc::new(wake::Wakes::new(format!("tidegate_queue_{schema}"))),
            postgres,
            env,
            floor: AtomicI64::new(0),
            last_batch: AtomicI64::new(0),
            registry: AtomicU64::new(0),
            inbox,
            sets: Mutex::default(),
            sequencer: Mutex::default(),
            parked: Mutex::default(),
        })
    }
}

impl PostgresQueue {
    /// Forgets what is known of the tables: they have less than they had, from a backup or as a copy that
    /// was behind. Numbers are given out again then, and what is known of the old ones is about others.
    fn begin_anew(&self) {
        tracing::warn!("tables are older than before (restored backup?); reading them again");
        self.floor.store(0, Ordering::Relaxed);
        self.sets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.sequencer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .begin_anew();
    }
}

type Asked<'c, T> = BoxFuture<'c, Result<T, sqlx::Error>>;

impl PostgresQueue {
    /// One statement, or several that need no transaction.
    fn run<T, F>(&self, doing: &'static str, call: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Asked<'c, T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.postgres.run(doing, call).await?) })
    }

    /// Several statements that see one moment and change nothing.
    fn snapshot<T, F>(&self, doing: &'static str, call: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Asked<'c, T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.postgres.snapshot(doing, call).await?) })
    }
}

impl QueueStore for PostgresQueue {
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
            let limit = tx.limit()?;
            let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
            let publishing = publish::insert(connection, events);
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
        let leases = leases.to_vec();
        self.run("renew claims", move |db| {
            Box::pin(claim::renew(db, leases, span_ms(lease)))
        })
    }

    fn reopen(&self, batch: i64, token: i64) -> StoreFuture<'_, Option<(i64, Vec<i64>)>> {
        self.run("reopen a batch", move |db| {
            Box::pin(claim::reopen(db, batch, token))
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
        let inbox = &self.inbox;
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {inbox}
             WHERE handler_id = $1 AND event_id = $2 AND sub_task = $3)"
        );
        let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(handler.to_owned())
            .bind(uuid(event))
            .bind(sub_task.to_owned());
        let Some(tx) = tx else {
            return self.run(doing, move |db| Box::pin(query.fetch_one(db)));
        };
        Box::pin(async move {
            let limit = tx.limit()?;
            let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
            Ok(limit.run(doing, query.fetch_one(connection)).await?)
        })
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        let (types, names): (Vec<String>, Vec<String>) = handlers.iter().cloned().unzip();
        self.run("register handlers", move |db| {
            Box::pin(maintain::register(db, types, names))
        })
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool> {
        let (type_name, handler) = (type_name.to_owned(), handler.to_owned());
        self.run("unregister a handler", move |db| {
            Box::pin(maintain::unregister(db, type_name, handler))
        })
    }

    fn registry(&self) -> StoreFuture<'_, Registry> {
        Box::pin(async move {
            let known = self.registry.load(Ordering::Relaxed);
            let read = self.run("read the registry", |db| {
                Box::pin(maintain::read_registry(db))
            });
            let registry = read.await?;
            // It only grows.
            if registry.version < known {
                self.registry.store(registry.version, Ordering::Relaxed);
                self.begin_anew();
            } else {
                self.registry.fetch_max(registry.version, Ordering::Relaxed);
            }
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
        Box::pin(self.give_positions(limit))
    }

    fn read_log(&self, after: i64, limit: u32) -> StoreFuture<'_, LogPage> {
        self.snapshot("read the log", move |db| {
            Box::pin(projection::read(db, after, i64::from(limit)))
        })
    }

    fn has_removed(&self) -> StoreFuture<'_, bool> {
        self.run("look for what was removed", |db| {
            Box::pin(sqlx::query_scalar(HAS_REMOVED).fetch_one(db))
        })
    }

    fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64> {
        let query = sqlx::query_scalar(POSITION).bind(name.to_owned());
        self.run("read a projection's position", move |db| {
            Box::pin(query.fetch_one(db))
        })
    }

    fn projections(&self) -> StoreFuture<'_, Vec<(String, i64)>> {
        self.run("read the projections", |db| {
            Box::pin(sqlx::query_as(POSITIONS).fetch_all(db))
        })
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64> {
        let query = sqlx::query_scalar(REBUILDS).bind(name.to_owned());
        Box::pin(async move {
            let rebuilds = self.run("count rebuilds", move |db| Box::pin(query.fetch_one(db)));
            Ok(unsigned(rebuilds.await?))
        })
    }

    fn note_position<'a>(
        &'a self,
        of: &'a str,
        name: &'a str,
        position: i64,
    ) -> StoreFuture<'a, bool> {
        let (of, name) = (of.to_owned(), name.to_owned());
        Box::pin(async move {
            let noted = self.postgres.transact("note a position", move |db| {
                Box::pin(projection::note(db, of, name, position))
            });
            Ok(noted.await?)
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
        Box::pin(projection::advance(tx, leadership, name, from, to))
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
        ))
    }

    fn clean(&self, retention: Option<Duration>) -> StoreFuture<'_, Cleaned> {
        Box::pin(self.clean_up(retention))
    }

    fn redrive(&self, id: i64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let redriven = self.run("give an event back", move |db| {
                Box::pin(maintain::redrive(db, id))
            });
            if !redriven.await? {
                return Err(not_redriven(id, self.show(id).await?));
            }
            self.wake();
            Ok(())
        })
    }

    fn cancel(&self, id: i64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let canceled = self.run("cancel an event", move |db| {
                let cancel = sqlx::query_scalar("SELECT tidegate_cancel($1, $2::jsonb)");
                let cancel = cancel.bind(id).bind(canceled_errors());
                Box::pin(cancel.fetch_one(db))
            });
            match canceled.await? {
                true => Ok(()),
                false => Err(not_canceled(id, self.show(id).await?)),
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>> {
        let filter = filter.clone();
        self.run("list events", move |db| Box::pin(inspect::list(db, filter)))
    }

    fn show(&self, id: i64) -> StoreFuture<'_, Option<ListedEvent>> {
        self.snapshot("show an event", move |db| Box::pin(inspect::show(db, id)))
    }

    fn find(&self, event: EventId) -> StoreFuture<'_, Option<QueueLocation>> {
        self.snapshot("find an event", move |db| {
            Box::pin(inspect::find(db, event))
        })
    }

    fn stats(&self) -> StoreFuture<'_, QueueStats> {
        self.snapshot("count the queue", |db| Box::pin(inspect::stats(db)))
    }

    fn account(&self) -> StoreFuture<'_, Account> {
        self.snapshot("read the books", |db| Box::pin(inspect::account(db)))
    }

    fn recount(&self) -> StoreFuture<'_, QueueRecount> {
        let now = self.env.clock.now_ms();
        Box::pin(async move {
            let counted = self.postgres.long_snapshot("count the tables", move |db| {
                Box::pin(inspect::recount(db, now))
            });
            Ok(counted.await?)
        })
    }

    fn wake(&self) {
        wake::send(&self.wakes, &self.postgres, &self.env);
    }

    fn wakes_sent(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wakes.sent())
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        wake::listen(&self.wakes, &self.postgres, &self.env);
        Box::pin(self.wakes.heard())
    }
}

fn uuid(id: EventId) -> sqlx::types::Uuid {
    sqlx::types::Uuid::from_u128(id.as_u128())
}
