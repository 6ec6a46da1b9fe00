//! The queue on PostgreSQL.

mod claim;
mod inspect;
mod maintain;
mod projection;
mod publish;
mod settle;
mod wake;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sqlx::PgConnection;
use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_store::sql::{SqlAccess, SqlConnection, SqlDatabase, SqlFuture};
use tidegate_store::{Postgres, StoreError, StoreTx, sqlx};

use super::backend::SqlBackend;
use super::claim::ClaimScan;
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::Settlement;

pub(super) use publish::{insert, insert_at_once};

/// The queue's tables on PostgreSQL.
#[derive(Debug)]
pub(super) struct PostgresBackend {
    postgres: Postgres,
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
}

impl PostgresBackend {
    /// The queue on this server, whose tables are up to date.
    pub(super) async fn new(postgres: Postgres, env: &Env) -> Result<Self, QueueError> {
        let schema = postgres.run("ask for the schema", |db| {
            let sql = "SELECT coalesce(current_schema(), 'public')::text,
                coalesce((SELECT c.relnamespace::regnamespace::text || '.event_inbox'
                    FROM pg_class c WHERE c.oid = to_regclass('event_inbox')), 'event_inbox')";
            db.fetch_one(sql, &[])
        });
        let (schema, inbox): (String, String) = schema.await?;
        Ok(Self {
            wakes: Arc::new(wake::Wakes::new(format!("tidegate_queue_{schema}"))),
            postgres,
            env: env.fork("queue-postgres"),
            floor: AtomicI64::new(0),
            last_batch: AtomicI64::new(0),
            registry: AtomicU64::new(0),
            inbox,
            sets: Mutex::default(),
            sequencer: Mutex::default(),
        })
    }

    /// Forgets what is known of the tables: they have less than they had, from a backup or as a copy that
    /// was behind. Numbers are given out again then, and what is known of the old ones is about others.
    fn begin_anew(&self) {
        tracing::warn!("tables are older than before (restored backup?); reading them again");
        self.floor.store(0, Ordering::Relaxed);
        self.sets().clear();
        self.sequencer().begin_anew();
    }
}

impl SqlBackend for PostgresBackend {
    type Connection = PgConnection;

    // Where our tables are stands in the session from its beginning.
    const OUR_TABLES: Option<&'static str> = Some("RESET search_path");
    const RECORDS_IN_TRANSACTION: bool = true;

    async fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> SqlFuture<'c, T> + Send + 'static,
    {
        self.postgres.call(access, doing, call).await
    }

    fn connection(tx: &mut StoreTx) -> Option<&mut PgConnection> {
        tx.postgres()
    }

    fn inbox(&self) -> &str {
        &self.inbox
    }

    fn publish_access(&self, events: &[NewEvent]) -> SqlAccess {
        match events.len() < publish::COPY_FROM {
            true => SqlAccess::Write,
            false => SqlAccess::Transact,
        }
    }

    fn known_batches(&self) -> (i64, i64) {
        let (floor, last) = (&self.floor, &self.last_batch);
        (floor.load(Ordering::Relaxed), last.load(Ordering::Relaxed))
    }

    fn note_claim(&self, scan: &ClaimScan) {
        let Some(last) = scan.last_batch else {
            return;
        };
        if last < scan.known_batch {
            // A number that was seen before the call is given out a second time.
            self.last_batch.store(last, Ordering::Relaxed);
            self.begin_anew();
        } else {
            // Numbers of batches are given out under the lock of the claim, so none comes below.
            self.last_batch.fetch_max(last, Ordering::Relaxed);
            self.floor.fetch_max(scan.floor, Ordering::Relaxed);
        }
    }

    fn known_registry(&self) -> u64 {
        self.registry.load(Ordering::Relaxed)
    }

    fn note_registry(&self, known: u64, version: u64) {
        // It only grows.
        if version < known {
            self.registry.store(version, Ordering::Relaxed);
            self.begin_anew();
        } else {
            self.registry.fetch_max(version, Ordering::Relaxed);
        }
    }

    async fn settle(&self, settlement: &Settlement, _now: i64) -> Result<Vec<i64>, QueueError> {
        self.settle_transitions(settlement).await
    }

    async fn sequence(&self, limit: u32) -> Result<u64, QueueError> {
        self.give_positions(limit).await
    }

    async fn after_clean(&self) {}

    fn wake(&self) {
        wake::send(&self.wakes, &self.postgres, &self.env);
    }

    fn wakes_sent(&self) -> impl Future<Output = ()> + Send {
        self.wakes.sent()
    }

    fn woken(&self) -> impl Future<Output = ()> + Send {
        wake::listen(&self.wakes, &self.postgres, &self.env);
        self.wakes.heard()
    }
}

fn uuid(id: EventId) -> sqlx::types::Uuid {
    sqlx::types::Uuid::from_u128(id.as_u128())
}
