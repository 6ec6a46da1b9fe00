//! One database, of either kind.

use tidegate_core::env::Env;

use crate::{Dialect, Postgres, Sqlite, StoreError, StoreOptions, StoreTx};

/// Who has a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Borrower {
    /// Statements of ours, which leave the session as it is.
    Internal,
    /// Anybody, with statements that we do not know.
    Caller,
}

/// A database. Cloning gives another handle on the same connections.
#[derive(Debug, Clone)]
pub enum Store {
    /// A file beside us.
    Sqlite(Sqlite),
    /// A server.
    Postgres(Postgres),
}

impl Store {
    /// Opens the database that `options` name.
    ///
    /// Returns once a connection has answered. SQLite's file is made where it is missing, its
    /// directory is not, and its writer is started on `env`; it ends with the last handle. Opening
    /// twice gives two sets of connections.
    ///
    /// # Errors
    /// The address is not one of ours, or the database does not answer.
    pub async fn open(options: &StoreOptions, env: &Env) -> Result<Self, StoreError> {
        match options.dialect() {
            Some(Dialect::Sqlite) => Sqlite::open(options, env).await.map(Self::Sqlite),
            Some(Dialect::Postgres) => Postgres::open(options, env).await.map(Self::Postgres),
            None => Err(StoreError::Address {
                url: options.shown_url(),
                why: "it must begin with `sqlite:` or `postgres:`".to_owned(),
            }),
        }
    }

    /// Which kind it is.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Begins a transaction. Dropped without a commit, it changes nothing.
    ///
    /// On SQLite it is the only one that writes until it ends: whoever holds it must not wait for
    /// another write of the same process.
    ///
    /// Changes of the session by its statements (settings, temporary tables, locks) end with it. A
    /// commit waits for the disk, whatever the session says.
    ///
    /// # Errors
    /// The database is away, or no connection was free in time.
    pub async fn begin(&self) -> Result<StoreTx, StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.begin(Borrower::Caller).await.map(StoreTx::Sqlite),
            Self::Postgres(postgres) => postgres
                .begin(Borrower::Caller)
                .await
                .map(StoreTx::Postgres),
        }
    }

    /// The same for statements that are known to leave the session as it is: nothing is put back after
    /// it.
    ///
    /// # Errors
    /// The database is away, or no connection was free in time.
    pub async fn begin_own(&self) -> Result<StoreTx, StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.begin(Borrower::Internal).await.map(StoreTx::Sqlite),
            Self::Postgres(postgres) => postgres
                .begin(Borrower::Internal)
                .await
                .map(StoreTx::Postgres),
        }
    }

    /// Puts everything into SQLite's file itself, out of the journal beside it (`-wal`), and closes what
    /// nobody uses just now. A program calls it at its end, so that the file alone is the whole database.
    ///
    /// Nothing is lost without it: whoever opens the file next reads the journal too. Data that
    /// somebody is reading just now may stay in the journal. If canceled, some of it stays there.
    /// Calling it twice does no harm, and another call after it opens connections anew.
    ///
    /// # Errors
    /// The database cannot write, or took too long.
    pub async fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.close().await,
            Self::Postgres(postgres) => {
                postgres.close().await;
                Ok(())
            }
        }
    }

    /// Whether a table is there, whatever the migrations say.
    ///
    /// # Errors
    /// The database is away or damaged.
    pub async fn has_table(&self, name: &'static str) -> Result<bool, StoreError> {
        let doing = "look for a table";
        let count: i64 = match self {
            Self::Sqlite(sqlite) => {
                let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?";
                let look = sqlite.read(doing, move |connection| {
                    Box::pin(async move {
                        let ask = sqlx::query_scalar(sql).bind(name);
                        ask.fetch_one(connection).await
                    })
                });
                look.await?
            }
            Self::Postgres(postgres) => {
                let look = postgres.snapshot(doing, move |connection| {
                    Box::pin(async move {
                        let ask = sqlx::query_scalar("SELECT count(to_regclass($1))").bind(name);
                        ask.fetch_one(connection).await
                    })
                });
                look.await?
            }
        };
        Ok(count > 0)
    }

    /// Has SQLite read its whole file and say what is not as it should be in it. A server checks its pages
    /// itself.
    ///
    /// # Errors
    /// So much is damaged that it cannot be read, or it took too long.
    pub async fn check_file(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.check_file().await,
            Self::Postgres(_) => Ok(Vec::new()),
        }
    }

    /// Asks the database for a sign of life; for health.
    ///
    /// # Errors
    /// It gave none in time.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(sqlite) => sqlite.ping().await,
            Self::Postgres(postgres) => postgres.ping().await,
        }
    }
}
