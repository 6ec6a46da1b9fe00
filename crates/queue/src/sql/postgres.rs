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

use sqlx::Row;
use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_core::env::Env;
use tidegate_store::{Postgres, Store, lease, sqlx};

use super::columns::ParkedKeys;
use crate::event::NewEvent;
use crate::port::{
    Answer, ClaimRequest, Claimed, Cleaned, Filter, HandlerCommit, Held, Listed, LogPage,
    QueueStore, Recount, Registry, Settlement, Sighting, Stats, Turn,
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
    sequencer: Mutex<projection::Below>,
    parked: Mutex<ParkedKeys>,
}

impl PostgresQueue {
    /// The queue on this server, whose tables are up to date.
    ///
    /// # Errors
    /// The database is away.
    pub async fn new(postgres: Postgres, env: &Env) -> Result<Self, crate::QueueError> {
        let (schema, inbox): (String, String) = postgres
            .run("ask for the schema", |connection| {
                Box::pin(async move {
                    sqlx::query_as(
                        "SELECT coalesce(current_schema(), 'public')::text,
                             coalesce((SELECT c.relnamespace::regnamespace::text || '.event_inbox'
                                 FROM pg_class c WHERE c.oid = to_regclass('event_inbox')),
                                 'event_inbox')",
                    )
                    .fetch_one(connection)
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
        tracing::warn!("the tables have gone back; what was known of them is forgotten");
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

impl QueueStore for PostgresQueue {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        Box::pin(self.publish_own(events))
    }

    fn publish_in<'a>(&'a self, tx: &'a mut Tx, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        Box::pin(async move {
            crate::limit::check_events(events)?;
            let limit = tx.limit()?;
            let connection = tx.postgres().ok_or(crate::QueueError::ForeignTransaction)?;
            let publishing = publish::insert(connection, events);
            Ok(limit.run("publish events", publishing).await?)
        })
    }

    fn begin(&self) -> Answer<'_, Tx> {
        Box::pin(async move { Ok(Tx::Sql(self.store.begin().await?)) })
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> Answer<'a, Claimed> {
        Box::pin(self.claim_due(request))
    }

    fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Held>> {
        Box::pin(self.renew_leases(held, lease))
    }

    fn reopen(&self, batch: i64, token: i64) -> Answer<'_, Option<(i64, Vec<i64>)>> {
        Box::pin(self.reopen_batch(batch, token))
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> Answer<'a, Vec<i64>> {
        Box::pin(self.settle_moves(settlement))
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> Answer<'a, bool> {
        Box::pin(self.record_result(tx, commit))
    }

    fn is_done<'a>(
        &'a self,
        tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> Answer<'a, bool> {
        Box::pin(self.is_recorded(tx, handler, event, sub_task))
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> Answer<'a, ()> {
        Box::pin(self.register_handlers(handlers))
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> Answer<'a, bool> {
        Box::pin(self.unregister_handler(type_name, handler))
    }

    fn registry(&self) -> Answer<'_, Registry> {
        Box::pin(self.read_registry())
    }

    fn take_turn<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        span: Duration,
    ) -> Answer<'a, Option<Turn>> {
        Box::pin(async move {
            let taken = lease::acquire(&self.store, name, owner, span).await?;
            Ok(taken.map(|lease| Turn {
                name: lease.name,
                token: lease.token,
            }))
        })
    }

    fn keep_turn<'a>(&'a self, turn: &'a Turn, span: Duration) -> Answer<'a, bool> {
        Box::pin(async move { Ok(lease::renew(&self.store, &lease_of(turn), span).await?) })
    }

    fn sequence(&self, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.give_positions(limit))
    }

    fn read_log(&self, after: i64, limit: u32) -> Answer<'_, LogPage> {
        Box::pin(self.read_positions(after, limit))
    }

    fn has_removed(&self) -> Answer<'_, bool> {
        Box::pin(self.has_removed_events())
    }

    fn projection<'a>(&'a self, name: &'a str) -> Answer<'a, i64> {
        Box::pin(self.position_of(name))
    }

    fn projections(&self) -> Answer<'_, Vec<(String, i64)>> {
        Box::pin(self.positions())
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        Box::pin(self.rebuilds_of(name))
    }

    fn note_position<'a>(&'a self, of: &'a str, name: &'a str, position: i64) -> Answer<'a, bool> {
        Box::pin(self.note(of, name, position))
    }

    fn advance<'a>(
        &'a self,
        tx: Tx,
        turn: &'a Turn,
        name: &'a str,
        from: i64,
        to: i64,
    ) -> Answer<'a, bool> {
        Box::pin(projection::advance(tx, turn, name, from, to))
    }

    fn forget_projection<'a>(
        &'a self,
        turn: Option<&'a Turn>,
        names: &'a [String],
        tables: &'a [String],
    ) -> Answer<'a, bool> {
        Box::pin(self.forget(turn, names, tables))
    }

    fn swap<'a>(
        &'a self,
        turn: &'a Turn,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> Answer<'a, bool> {
        Box::pin(self.swap_tables(turn, name, shadow, tables, marks))
    }

    fn clean(&self, retention: Option<Duration>) -> Answer<'_, Cleaned> {
        Box::pin(self.clean_up(retention))
    }

    fn redrive(&self, id: i64) -> Answer<'_, ()> {
        Box::pin(self.redrive_event(id))
    }

    fn cancel(&self, id: i64) -> Answer<'_, ()> {
        Box::pin(self.cancel_event(id))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Answer<'a, Vec<Listed>> {
        Box::pin(self.list_events(filter))
    }

    fn show(&self, id: i64) -> Answer<'_, Option<Listed>> {
        Box::pin(self.show_event(id))
    }

    fn find(&self, event: EventId) -> Answer<'_, Option<Sighting>> {
        Box::pin(self.find_event(event))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        Box::pin(self.read_stats())
    }

    fn account(&self) -> Answer<'_, Account> {
        Box::pin(self.read_account())
    }

    fn recount(&self) -> Answer<'_, Recount> {
        Box::pin(self.count_tables())
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

fn lease_of(turn: &Turn) -> lease::Lease {
    lease::Lease {
        name: turn.name.clone(),
        token: turn.token,
    }
}

fn id_of(row: &sqlx::postgres::PgRow, column: usize) -> Result<EventId, sqlx::Error> {
    let id: sqlx::types::Uuid = row.try_get(column)?;
    Ok(EventId::from_u128(id.as_u128()))
}

fn uuid(id: EventId) -> sqlx::types::Uuid {
    sqlx::types::Uuid::from_u128(id.as_u128())
}
