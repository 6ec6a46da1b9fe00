//! The outbox in a database: PostgreSQL or SQLite.

mod insert;
mod inspect;
mod migrate;
mod postgres;
mod settle;
mod sqlite;
mod statements;
mod store;

use std::sync::Arc;

use tidegate_store::Store;

pub use insert::Inserter;
pub use migrate::{migrate, migration_sql, pending};

use store::SqlOutbox;

use crate::port::OutboxStore;
use crate::{OutboxError, OutboxOptions};

/// The store of this outbox, whose tables are up to date.
///
/// # Errors
/// The database is away, or the table was made with other settings.
pub(crate) async fn outbox_store(
    store: Store,
    options: &OutboxOptions,
    inserter: Arc<Inserter>,
) -> Result<Arc<dyn OutboxStore>, OutboxError> {
    migrate::check(&store, options).await?;
    Ok(match &store {
        Store::Postgres(postgres) => {
            let database = postgres.clone();
            Arc::new(SqlOutbox::new(database, store, options, inserter))
        }
        Store::Sqlite(sqlite) => {
            let database = sqlite.clone();
            Arc::new(SqlOutbox::new(database, store, options, inserter))
        }
    })
}
