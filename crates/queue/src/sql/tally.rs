//! A projection to begin with: how many events of each type and key completed.

use sqlx::AssertSqlSafe;
use tidegate_core::{Code, Failure};
use tidegate_store::sql::{SqlConnection, SqlFuture};
use tidegate_store::{StoreError, StoreTx, sqlx};

use crate::QueueError;
use crate::port::LogEvent;
use crate::projection::{Projection, Target};
use crate::queue::Queue;
use crate::tx::Tx;

/// One row of a tally.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyRow {
    /// The type of the events.
    pub type_name: String,
    /// Their key; empty for events without one.
    pub key: String,
    /// How many completed.
    pub events: i64,
}

/// A projection that counts completed events by type and key, in a table of its own name
/// (`type`, `key`, `events`).
///
/// # Errors
/// The name is none for a table: lowercase letters, digits and `_` are allowed.
pub fn tally(name: &str) -> Result<Projection, QueueError> {
    let (create_in, apply_to) = (name.to_owned(), name.to_owned());
    Projection::builder(name)
        .table(name)
        .create(move |tx, target| Box::pin(create(tx, target.table(&create_in))))
        .apply(move |tx, target: Target, events| {
            Box::pin(apply(tx, target.table(&apply_to), events))
        })
        .build()
}

/// The rows of a tally, by type and key.
///
/// # Errors
/// The name is none for a table, the database is away or refused, or nobody has built it yet.
pub async fn read_tally(queue: &Queue, name: &str) -> Result<Vec<TallyRow>, QueueError> {
    // The name becomes part of a statement, so it must be one that a tally can have.
    tally(name)?;
    let sql = AssertSqlSafe(format!(
        "SELECT type, key, events FROM {name} ORDER BY type, key"
    ));
    let mut tx = queue.begin().await?;
    let rows: SqlFuture<'_, Vec<(String, String, i64)>> = match tx.sql()? {
        StoreTx::Postgres(tx) => tx.connection().fetch_all(sql, &[]),
        StoreTx::Sqlite(tx) => tx.connection().fetch_all(sql, &[]),
    };
    let rows = rows.await;
    let rows = rows.map_err(|error| StoreError::of("read a tally", error))?;
    tx.rollback().await?;
    let row = |(type_name, key, events)| TallyRow {
        type_name,
        key,
        events,
    };
    Ok(rows.into_iter().map(row).collect())
}

async fn create(tx: &mut Tx, table: String) -> Result<(), Failure> {
    let sql = AssertSqlSafe(format!(
        "CREATE TABLE IF NOT EXISTS {table} (type text NOT NULL, key text NOT NULL,
             events bigint NOT NULL, PRIMARY KEY (type, key))"
    ));
    let made = match tx.sql()? {
        StoreTx::Postgres(tx) => tx.connection().execute_raw(sql),
        StoreTx::Sqlite(tx) => tx.connection().execute_raw(sql),
    };
    made.await.map_err(refused)
}

async fn apply(tx: &mut Tx, table: String, events: &[LogEvent]) -> Result<(), Failure> {
    for event in events {
        let sql = AssertSqlSafe(format!(
            "INSERT INTO {table} AS t (type, key, events) VALUES ($1, $2, 1)
             ON CONFLICT (type, key) DO UPDATE SET events = t.events + 1"
        ));
        let key = event.key.as_deref().unwrap_or_default();
        let counted = match tx.sql()? {
            StoreTx::Postgres(tx) => tx.connection().execute(sql, &[&event.type_name, &key]),
            StoreTx::Sqlite(tx) => tx.connection().execute(sql, &[&event.type_name, &key]),
        };
        counted.await.map_err(refused)?;
    }
    Ok(())
}

fn refused(error: sqlx::Error) -> Failure {
    Failure::transient(Code::from_static("tally.sql"), error.to_string())
}
