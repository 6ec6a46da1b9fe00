//! The queue's SQL: the two real stores.
//!
//! Both keep the tables that `docs/formats/sql.md` describes. All SQL of the queue is here. The calls of the
//! port are written once, in `store`: each says how its statements are held together. The modules `claim`,
//! `settle`, `maintain`, `projection` and `inspect` hold the Rust that both databases share, and one trait
//! each for the statements that differ. The modules below `postgres` and `sqlite` implement these traits.
//! [`tidegate_store::sql`] runs a statement on either database.
//!
//! PostgreSQL does some steps in functions of `queue-1.postgres.sql`, where one round trip or one lock must
//! hold them together. SQLite has no functions, and does them in Rust.
//!
//! | step | SQL function | Rust, PostgreSQL | Rust, SQLite |
//! |---|---|---|---|
//! | claim what is fresh | `tidegate_claim`, with `tidegate_stretches`, `tidegate_late`, `tidegate_looked` | `claim_fresh` | `claim_fresh` |
//! | take over a batch that ran out | `tidegate_take_over` | `take_over` | `take_over` |
//! | claim rows that are due | none | `claim_rows` | `claim_rows` |
//! | find events behind an earlier one of their key | `tidegate_blocked` | `blocked` | `blocked` |
//! | let the next event of a key go | `tidegate_release` | `postgres::claim::release` | `sqlite::claim::release` |
//! | find what is open in a batch | `tidegate_remaining` | `reopen`, `postgres::settle` | `sqlite::claim::remaining` |
//! | find what was settled before | `tidegate_settled` | `postgres::settle::settle_batch` | `sqlite::settle::settled` |
//! | compare the registry | `tidegate_registry` | `postgres::settle` | `maintain::registry_version` |
//! | settle | none | `postgres::settle::settle_batch`, `postgres::settle::rows` | `sqlite::settle::settle` |
//! | register handlers | `tidegate_register` | `register` | `register` |
//! | give an event back | `tidegate_give_back` | `redrive` | `redrive` |
//! | cancel an event | `tidegate_cancel` | `cancel` | `cancel` |
//! | give positions | none | `postgres::projection::sequence` | `sqlite::projection::sequence` |
//! | remove old events | none | `remove_old` | `remove_old` |

mod backend;
mod claim;
mod columns;
mod decode;
mod inspect;
mod leadership;
mod maintain;
mod postgres;
mod projection;
mod settle;
mod sqlite;
mod stats;
mod store;
mod tally;

use std::sync::Arc;

use sqlx::Connection;
use tidegate_core::env::Env;
use tidegate_store::migrate::{self, Migration};
use tidegate_store::{Dialect, Store, StoreError, sqlx};

#[cfg(feature = "model")]
pub(crate) use columns::{canceled, not_canceled, not_redriven};
use postgres::PostgresBackend;
use settle::SettleStatements;
use sqlite::SqliteBackend;
use store::SqlQueue;
pub use tally::{TallyRow, read_tally, tally};

use crate::event::NewEvent;
use crate::port::QueueStore;
use crate::{QueueError, limit};

/// The name under which the books and the migrations of the queue stand.
pub const COMPONENT: &str = "queue";

/// The tables of the queue.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "event queue, log and projections",
    postgres: include_str!("sql/queue-1.postgres.sql"),
    sqlite: include_str!("sql/queue-1.sqlite.sql"),
}];

/// Brings the tables of the queue up to date and gives how many migrations ran.
///
/// # Errors
/// The database is away, or refused.
pub async fn migrate(store: &Store) -> Result<usize, QueueError> {
    Ok(migrate::migrate(store, COMPONENT, MIGRATIONS).await?)
}

/// How many migrations of the queue's tables have not run yet. Changes nothing.
///
/// # Errors
/// The database is away, or refused.
pub async fn pending(store: &Store) -> Result<usize, QueueError> {
    Ok(migrate::pending(store, COMPONENT, MIGRATIONS).await?)
}

/// The SQL of all migrations, for the user's own.
#[must_use]
pub fn print_migrations(dialect: Dialect) -> String {
    migrate::print(dialect, COMPONENT, MIGRATIONS)
}

/// Publishes events in a transaction of yours that is not one of ours: they are there when that
/// commits, and without a transaction at once, all or none. Dispatchers find them at the next poll.
///
/// Thousands of events are fastest in a transaction that [`sqlx::Connection::begin`] gave you.
///
/// # Errors
/// The database refused; the transaction is then yours to take back.
pub async fn publish_on_postgres(
    connection: &mut sqlx::PgConnection,
    events: &[NewEvent],
) -> Result<Vec<i64>, QueueError> {
    limit::check_events(events)?;
    // Only a transaction that sqlx has begun is known here; one statement is right with any.
    let published = if connection.is_in_transaction() {
        postgres::insert(connection, events).await
    } else {
        postgres::insert_at_once(connection, events).await
    };
    published.map_err(|error| StoreError::of("publish events", error).into())
}

/// The same on SQLite, at this time in milliseconds since 1970. Here it is several statements and needs your
/// transaction: without one, a crash between them leaves events that the books do not know.
///
/// # Errors
/// The database refused; the transaction is then yours to take back.
pub async fn publish_on_sqlite(
    connection: &mut sqlx::SqliteConnection,
    events: &[NewEvent],
    now_ms: i64,
) -> Result<Vec<i64>, QueueError> {
    limit::check_events(events)?;
    let published = connection.insert(events, now_ms).await;
    published.map_err(|error| StoreError::of("publish events", error).into())
}

/// The queue's store on this database, whose tables are up to date.
///
/// # Errors
/// The database is away.
pub async fn queue_store(store: Store, env: &Env) -> Result<Arc<dyn QueueStore>, QueueError> {
    Ok(match &store {
        Store::Postgres(postgres) => {
            let backend = PostgresBackend::new(postgres.clone(), env).await?;
            Arc::new(SqlQueue::new(backend, store, Arc::clone(&env.clock)))
        }
        Store::Sqlite(sqlite) => {
            let backend = SqliteBackend::new(sqlite.clone());
            Arc::new(SqlQueue::new(backend, store, Arc::clone(&env.clock)))
        }
    })
}
