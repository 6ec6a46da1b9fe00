//! A transaction in the caller's hands.

use sqlx::{PgConnection, SqliteConnection};

use crate::{CallLimit, Dialect, PgTx, SqliteTx, StoreError};

/// A transaction of a [`Store`](crate::Store). Dropped without a commit, it changes nothing.
#[derive(Debug)]
#[must_use = "a transaction that is dropped changes nothing"]
pub enum StoreTx {
    /// On SQLite.
    Sqlite(SqliteTx),
    /// On PostgreSQL.
    Postgres(PgTx),
}

impl StoreTx {
    /// Which kind of database it is on.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The connection, when the database is PostgreSQL.
    pub fn postgres(&mut self) -> Option<&mut PgConnection> {
        match self {
            Self::Postgres(tx) => Some(tx.connection()),
            Self::Sqlite(_) => None,
        }
    }

    /// The connection, when the database is SQLite.
    pub fn sqlite(&mut self) -> Option<&mut SqliteConnection> {
        match self {
            Self::Sqlite(tx) => Some(tx.connection()),
            Self::Postgres(_) => None,
        }
    }

    /// How long one call in it may take.
    #[must_use]
    pub fn limit(&self) -> CallLimit {
        match self {
            Self::Sqlite(tx) => tx.limit(),
            Self::Postgres(tx) => tx.limit(),
        }
    }

    /// Makes everything in it happen. Returns once it would survive a power cut.
    ///
    /// # Errors
    /// It did not happen, or, where [`may_have_happened`](StoreError::may_have_happened) says so,
    /// nobody knows. If canceled, nobody knows either.
    pub async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Postgres(tx) => tx.commit().await,
        }
    }

    /// Takes everything in it back.
    ///
    /// # Errors
    /// The database is away; it takes it back by itself then.
    pub async fn rollback(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(tx) => tx.rollback().await,
            Self::Postgres(tx) => tx.rollback().await,
        }
    }
}
