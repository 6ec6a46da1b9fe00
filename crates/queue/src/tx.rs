//! Transactions in the caller's hands.

use tidegate_store::sqlx::{PgConnection, SqliteConnection};

use crate::QueueError;
#[cfg(feature = "model")]
use crate::model::ModelTx;

/// A transaction of the queue's database, for publishing beside one's own rows and for read models.
/// Dropped without a commit, it changes nothing.
#[derive(Debug)]
#[must_use = "a transaction that is dropped changes nothing"]
pub enum Tx {
    /// On SQLite or PostgreSQL.
    Sql(tidegate_store::StoreTx),
    /// On the model.
    #[cfg(feature = "model")]
    Model(ModelTx),
}

impl Tx {
    /// The connection, when the database is PostgreSQL.
    pub fn postgres(&mut self) -> Option<&mut PgConnection> {
        self.sql().ok()?.postgres()
    }

    /// The connection, when the database is SQLite.
    pub fn sqlite(&mut self) -> Option<&mut SqliteConnection> {
        self.sql().ok()?.sqlite()
    }

    /// The tables of the model.
    #[cfg(feature = "model")]
    pub fn model(&mut self) -> Option<&mut ModelTx> {
        match self {
            Self::Sql(_) => None,
            Self::Model(tx) => Some(tx),
        }
    }

    pub(crate) fn sql(&mut self) -> Result<&mut tidegate_store::StoreTx, QueueError> {
        match self {
            Self::Sql(tx) => Ok(tx),
            #[cfg(feature = "model")]
            Self::Model(_) => Err(QueueError::ForeignTransaction),
        }
    }

    pub(crate) fn into_sql(self) -> Result<tidegate_store::StoreTx, QueueError> {
        match self {
            Self::Sql(tx) => Ok(tx),
            #[cfg(feature = "model")]
            Self::Model(_) => Err(QueueError::ForeignTransaction),
        }
    }

    /// Makes everything in it happen. Returns once it would survive a power cut.
    ///
    /// # Errors
    /// It did not happen, or nobody knows.
    pub async fn commit(self) -> Result<(), QueueError> {
        match self {
            Self::Sql(tx) => Ok(tx.commit().await?),
            #[cfg(feature = "model")]
            Self::Model(tx) => tx.commit(),
        }
    }

    /// Takes everything in it back.
    ///
    /// # Errors
    /// The database is away; it takes it back by itself then.
    pub async fn rollback(self) -> Result<(), QueueError> {
        match self {
            Self::Sql(tx) => Ok(tx.rollback().await?),
            #[cfg(feature = "model")]
            Self::Model(_) => Ok(()),
        }
    }
}

impl From<tidegate_store::StoreTx> for Tx {
    fn from(tx: tidegate_store::StoreTx) -> Self {
        Self::Sql(tx)
    }
}
