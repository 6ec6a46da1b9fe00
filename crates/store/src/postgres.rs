//! PostgreSQL: connections whose calls end.
//!
//! The pool is ours and small: a connection goes back only after a clean end. One whose call was
//! canceled, timed out or failed is dropped, because an answer may still be on its way to it; and
//! when one is found dead, the idle ones are dropped with it, because a server that restarted took
//! them all.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Env};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::is_unknown_statement;
use crate::store::Borrower;
use crate::{BoxFuture, CallLimit, StoreError, StoreOptions};

/// In a transaction in which a statement failed, `COMMIT` takes everything back and calls that a
/// success. Whatever stands before it fails there, and the commit is not even begun.
const COMMIT: &str = "SELECT; COMMIT";
/// The same for a transaction that others had: what they set for it must not make the commit be answered
/// before it is synced.
const COMMIT_LENT: &str = "SELECT set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') = 'off'; COMMIT";
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// How long reading whole tables may take.
pub(crate) const LONG_READ: Duration = Duration::from_secs(3_600);

/// Connections to a PostgreSQL server. Cloning gives another handle on the same ones.
#[derive(Clone)]
pub struct Postgres {
    pool: Arc<Pool>,
}

struct Pool {
    options: PgConnectOptions,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    room: Arc<Semaphore>,
    /// The connections that may be lent out as transactions: all but one. The owner of a transaction may need a
    /// call beside it, and somebody must keep the leases meanwhile.
    lent: Arc<Semaphore>,
    idle: Mutex<Vec<PgConnection>>,
}

/// A connection taken out of the pool.
struct PooledConnection {
    connection: PgConnection,
    permit: OwnedSemaphorePermit,
}

impl Postgres {
    pub(crate) async fn open(options: &StoreOptions, env: &Env) -> Result<Self, StoreError> {
        let address = |why: String| StoreError::Address {
            url: options.shown_url(),
            why,
        };
        let connect: PgConnectOptions = options
            .url
            .parse()
            .map_err(|error: sqlx::Error| address(error.to_string()))?;
        // The server refuses a session whose limits are larger than this number.
        let ms = |span: Duration| {
            span.as_millis()
                .min(i32::MAX.unsigned_abs().into())
                .to_string()
        };
        // The server gives up on its own as well, so that a client that went away or stands still
        // leaves nothing running and nothing locked.
        let mut settings = vec![
            // The defaults of a database or a role would change the meaning of our statements.
            ("default_transaction_isolation", "read committed".to_owned()),
            ("statement_timeout", ms(options.timeout)),
            (
                "idle_in_transaction_session_timeout",
                ms(options.idle_transaction),
            ),
        ];
        if let Some(schema) = &options.schema {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if schema.is_empty() || !schema.bytes().all(is_plain) {
                return Err(address(format!("`{schema}` is not a plain schema name")));
            }
            settings.push(("search_path", schema.clone()));
        }
        let connect = connect
            .options(settings)
            .application_name("tidegate")
            .disable_statement_logging();
        let room = usize::try_from(options.max_connections.max(1)).unwrap_or(1);
        let pool = Pool {
            options: connect,
            clock: Arc::clone(&env.clock),
            timeout: options.timeout,
            room: Arc::new(Semaphore::new(room)),
            lent: Arc::new(Semaphore::new(room.saturating_sub(1).max(1))),
            idle: Mutex::default(),
        };
        let postgres = Self {
            pool: Arc::new(pool),
        };
        postgres.ping().await?;
        Ok(postgres)
    }

    /// Runs `call` on a connection, each statement for itself.
    ///
    /// If canceled, a statement that is on its way may or may not happen.
    ///
    /// # Errors
    /// The database is away, took too long, or refused.
    pub async fn run<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send,
    {
        self.run_within(doing, self.pool.timeout, call).await
    }

    async fn run_within<T, F>(
        &self,
        doing: &'static str,
        limit: Duration,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send,
    {
        let mut taken = self.take(doing).await?;
        let outcome = self
            .pool
            .clock
            .within(limit, call(&mut taken.connection))
            .await;
        let outcome = self.map_result(doing, outcome);
        let is_lost = |error: &StoreError| match error {
            StoreError::Away { .. } | StoreError::Timeout { .. } => true,
            StoreError::Conflict { source, .. } => is_unknown_statement(source),
            StoreError::Address { .. }
            | StoreError::Schema { .. }
            | StoreError::Refused { .. }
            | StoreError::Undone { .. }
            | StoreError::Damaged { .. }
            | StoreError::Broken { .. } => false,
        };
        if !outcome.as_ref().is_err_and(is_lost) {
            self.give_back(taken);
        }
        outcome
    }

    /// Runs `call` inside one transaction and commits it; an error takes everything back.
    ///
    /// Returns once the commit would survive a power cut. If canceled, it may or may not happen.
    ///
    /// # Errors
    /// The database is away, took too long, or refused.
    pub async fn transact<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        let limit = self.pool.timeout;
        self.within_transaction(doing, "BEGIN", limit, call).await
    }

    /// Runs `call` in a transaction that sees one moment of the database and changes nothing.
    ///
    /// # Errors
    /// The database is away, took too long, or refused.
    pub async fn snapshot<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        let limit = self.pool.timeout;
        self.within_transaction(doing, SNAPSHOT, limit, call).await
    }

    /// The same for reading whole tables: many statements, each with the limit of a call, and an
    /// hour for all of them.
    ///
    /// # Errors
    /// The database is away, took too long, or refused.
    pub async fn long_snapshot<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        self.within_transaction(doing, SNAPSHOT, LONG_READ, call)
            .await
    }

    async fn within_transaction<T, F>(
        &self,
        doing: &'static str,
        begin: &'static str,
        limit: Duration,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        self.run_within(doing, limit, move |connection| {
            Box::pin(async move {
                sqlx::raw_sql(begin).execute(&mut *connection).await?;
                let done = match call(&mut *connection).await {
                    Ok(value) => {
                        let commit = sqlx::raw_sql(COMMIT).execute(&mut *connection);
                        commit.await.map(|_| value)
                    }
                    Err(error) => Err(error),
                };
                if done.is_err() {
                    // The connection goes back into the pool.
                    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
                }
                done
            })
        })
        .await
    }

    /// Begins a transaction for this borrower.
    pub(crate) async fn begin(&self, borrower: Borrower) -> Result<PgTx, StoreError> {
        let doing = "begin a transaction";
        let lent = self.permit(&self.pool.lent, doing).await?;
        let mut taken = self.take(doing).await?;
        let begin = sqlx::raw_sql("BEGIN").execute(&mut taken.connection);
        let begun = self.pool.clock.within(self.pool.timeout, begin).await;
        self.map_result(doing, begun)?;
        Ok(PgTx {
            postgres: self.clone(),
            taken,
            borrower,
            _lent: lent,
        })
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        match self.ping_once().await {
            // It was an old connection; whether the server is back, a new one tells.
            Err(StoreError::Away { .. }) => self.ping_once().await,
            other => other,
        }
    }

    async fn ping_once(&self) -> Result<(), StoreError> {
        self.run("ping the database", |connection| {
            Box::pin(async move { connection.ping().await })
        })
        .await
    }

    /// A connection of its own that hears what is sent to `channel`.
    ///
    /// # Errors
    /// The database is away, or took too long.
    pub async fn listen(&self, channel: &str) -> Result<PgListener, StoreError> {
        let doing = "listen for wake-ups";
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.pool.timeout)
            .connect_lazy_with(self.pool.options.clone());
        let connect = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen(channel).await?;
            Ok(listener)
        };
        let outcome = self.pool.clock.within(self.pool.timeout, connect).await;
        self.map_result(doing, outcome)
    }

    /// Closes the connections that nobody uses just now.
    pub(crate) async fn close(&self) {
        let idle = std::mem::take(&mut *self.pool.idle.lock());
        let closing = async {
            for connection in idle {
                // The server ends it by itself otherwise.
                connection.close().await.ok();
            }
        };
        self.pool.clock.within(self.pool.timeout, closing).await;
    }

    fn map_result<T>(
        &self,
        doing: &'static str,
        outcome: Option<Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        let outcome = match outcome {
            Some(outcome) => outcome.map_err(|error| StoreError::of(doing, error)),
            None => Err(StoreError::Timeout {
                doing,
                limit: self.pool.timeout,
            }),
        };
        if matches!(outcome, Err(StoreError::Away { .. })) {
            self.pool.idle.lock().clear();
        }
        outcome
    }

    async fn permit(
        &self,
        room: &Arc<Semaphore>,
        doing: &'static str,
    ) -> Result<OwnedSemaphorePermit, StoreError> {
        let acquire = Arc::clone(room).acquire_owned();
        match self.pool.clock.within(self.pool.timeout, acquire).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) | None => Err(StoreError::of(doing, sqlx::Error::PoolTimedOut)),
        }
    }

    async fn take(&self, doing: &'static str) -> Result<PooledConnection, StoreError> {
        let pool = &self.pool;
        let permit = self.permit(&pool.room, doing).await?;
        let idle = self.pool.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connect = connect(&pool.options);
                match pool.clock.within(pool.timeout, connect).await {
                    Some(Ok(connection)) => connection,
                    // Nothing was sent yet, so nothing can have happened.
                    Some(Err(source)) => {
                        let error = StoreError::of(doing, source);
                        let StoreError::Away { doing, source } = error else {
                            return Err(error);
                        };
                        let source = sqlx::Error::Configuration(Box::new(source));
                        return Err(StoreError::Away { doing, source });
                    }
                    None => return Err(StoreError::of(doing, sqlx::Error::PoolTimedOut)),
                }
            }
        };
        Ok(PooledConnection { connection, permit })
    }

    fn give_back(&self, taken: PooledConnection) {
        self.pool.idle.lock().push(taken.connection);
        drop(taken.permit);
    }
}

/// A database that acknowledges before it has synced is told not to for us; what waits for replicas
/// as well stays as it is.
async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::raw_sql(DURABLE).execute(&mut connection).await?;
    Ok(connection)
}

const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off'";

/// Makes a session what it was at its beginning, except for what was prepared, and counts that.
const RESET: &str = "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; UNLISTEN *; CLOSE ALL;
    SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES;
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') = 'off';
    SELECT count(*) FROM pg_prepared_statements";

/// Makes a connection what it was before somebody had it, and says whether that was possible: where fewer
/// statements are prepared than the driver has prepared, it would go on calling those that are gone.
async fn reset(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let known = connection.cached_statements_size();
    let rows = sqlx::raw_sql(RESET).fetch_all(connection).await?;
    let prepared: Option<i64> = rows.last().map(|row| row.try_get(0)).transpose()?;
    let prepared = prepared.and_then(|count| usize::try_from(count).ok());
    Ok(prepared.is_some_and(|prepared| prepared >= known))
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Postgres({})", self.pool.options.get_host())
    }
}

/// A transaction on PostgreSQL. Dropped without a commit, its connection is closed and it changes
/// nothing.
#[must_use = "a transaction that is dropped changes nothing"]
pub struct PgTx {
    postgres: Postgres,
    taken: PooledConnection,
    borrower: Borrower,
    _lent: OwnedSemaphorePermit,
}

impl PgTx {
    /// The connection it is on.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.taken.connection
    }

    pub(crate) fn limit(&self) -> CallLimit {
        let pool = &self.postgres.pool;
        CallLimit::new(&pool.clock, pool.timeout)
    }

    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let how = match self.borrower {
            Borrower::Internal => COMMIT,
            Borrower::Caller => COMMIT_LENT,
        };
        self.end("commit a transaction", how).await
    }

    pub(crate) async fn rollback(self) -> Result<(), StoreError> {
        self.end("take a transaction back", "ROLLBACK").await
    }

    async fn end(mut self, doing: &'static str, how: &'static str) -> Result<(), StoreError> {
        let pool = &self.postgres.pool;
        let end = sqlx::raw_sql(how).execute(&mut self.taken.connection);
        let ended = pool.clock.within(pool.timeout, end).await;
        self.postgres.map_result(doing, ended)?;
        let is_clean = match self.borrower {
            Borrower::Internal => true,
            Borrower::Caller => {
                let clean = reset(&mut self.taken.connection);
                let clean = pool.clock.within(pool.timeout, clean).await;
                matches!(clean, Some(Ok(true)))
            }
        };
        // One that cannot be made what it was is closed; the transaction has ended all the same.
        if is_clean {
            self.postgres.give_back(self.taken);
        }
        Ok(())
    }
}

impl std::fmt::Debug for PgTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgTx")
    }
}
