//! SQLite: many readers, one writer, one sync for everybody who waits.
//!
//! The writer is one connection. Operations queue up for it; a task takes all that wait, begins one
//! transaction (`BEGIN IMMEDIATE`), runs each in a savepoint of its own, commits once, and answers
//! them all. An operation that is alone has the transaction for itself. A caller's own transaction takes
//! the same connection out for as long as it lasts.
//!
//! **Invariant:** an operation is answered with success only after the commit that covers it, which
//! is synced (`synchronous=FULL`).
//!
//! **Invariant:** the writer commits when it is told to, and at no other time. SQLite ends a transaction
//! by itself when the disk is full or a statement says `OR ROLLBACK`; what follows on the connection
//! would be committed statement by statement. A commit that was not asked for is refused instead.
//!
//! **Invariant:** a transaction that nobody has in hand is rolled back at once. While one is open,
//! no other process writes to the file.

mod checkpointer;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Env};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::store::Borrower;
use crate::{BoxFuture, CallLimit, StoreError, StoreOptions};
use checkpointer::checkpointer;
use writer::{SqliteWriter, WriteJob, WriteOperation, WriterGuard};

/// Operations that may wait for the writer.
const WAITING: usize = 4096;

/// The longest that SQLite itself waits for another process: it counts milliseconds in 31 bits.
const LONGEST_BUSY_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// Names the first problems of a file.
const CHECK_FILE: &str = "PRAGMA quick_check(5)";

/// Memory for the pages of the writer, in KiB. A large transaction that does not fit writes its pages twice.
const WRITER_CACHE_KIB: u32 = 64 * 1024;

/// Pages in the write-ahead log before a commit copies the rest of them into the file (128 MiB). The copy is a
/// second sync, and a page that was written many times meanwhile is copied once.
const CHECKPOINT_PAGES: u32 = 32 * 1024;

/// A database in a file. Cloning gives another handle on the same connections.
#[derive(Clone)]
pub struct Sqlite {
    writer: SqliteWriter,
    operations: mpsc::Sender<Box<dyn WriteOperation>>,
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

struct Readers {
    options: SqliteConnectOptions,
    room: Semaphore,
    idle: Mutex<Vec<SqliteConnection>>,
}

impl Sqlite {
    pub(crate) async fn open(options: &StoreOptions, env: &Env) -> Result<Self, StoreError> {
        let address = |why: String| StoreError::Address {
            url: options.shown_url(),
            why,
        };
        let Some(path) = options.file() else {
            return Err(address("it must name a file".to_owned()));
        };
        let connect = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(options.timeout.min(LONGEST_BUSY_TIMEOUT))
            .disable_statement_logging();
        let doing = "open the database";
        let failed = |error| StoreError::of(doing, error);
        let writer_options = connect
            .clone()
            .pragma("cache_size", format!("-{WRITER_CACHE_KIB}"))
            // A savepoint keeps a copy of every page that changes. In a temporary file these copies cost more
            // than the change itself.
            .pragma("temp_store", "MEMORY")
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES.to_string());
        let (commits, checkpointer) = checkpointer(connect.clone(), Arc::clone(&env.clock));
        let writer = SqliteWriter::open(writer_options, commits)
            .await
            .map_err(failed)?;
        drop(
            env.spawn
                .spawn("sqlite-checkpointer", Box::pin(checkpointer)),
        );
        let (operations, waiting) = mpsc::channel(WAITING);
        let task = writer.clone().write(waiting);
        // Both tasks end with the last handle, whose sender and notice are what keeps them.
        drop(env.spawn.spawn("sqlite-writer", Box::pin(task)));
        let readers = Readers {
            options: connect.read_only(true).create_if_missing(false),
            room: Semaphore::new(usize::try_from(options.max_connections.max(1)).unwrap_or(1)),
            idle: Mutex::default(),
        };
        Ok(Self {
            writer,
            operations,
            readers: Arc::new(readers),
            clock: Arc::clone(&env.clock),
            timeout: options.timeout,
        })
    }

    /// The wall time in milliseconds since 1970: SQLite has one host, so its clock is ours.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX)
    }

    /// Runs `call` on the writer, in a savepoint of a transaction it may share with others; an
    /// error takes back what it did, and nothing else.
    ///
    /// Returns once it would survive a power cut. If canceled, it may or may not happen.
    ///
    /// # Errors
    /// The database refused it, cannot write, or took too long.
    pub async fn write<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        let (tell, told) = oneshot::channel();
        let job: Box<dyn WriteOperation> = Box::new(WriteJob::new(doing, call, tell));
        let wait = async {
            let closed = || StoreError::of(doing, sqlx::Error::PoolClosed);
            let sent = self.operations.send(job).await;
            sent.map_err(|_| closed())?;
            // The writer ends only with its runtime, and then nobody knows.
            let crashed = || StoreError::of(doing, sqlx::Error::WorkerCrashed);
            told.await.map_err(|_| crashed())?
        };
        match self.clock.within(self.timeout, wait).await {
            Some(outcome) => outcome,
            None => Err(self.late(doing)),
        }
    }

    /// Runs `call` on a connection that cannot write; all it reads is of one moment.
    ///
    /// # Errors
    /// The database refused it, or took too long.
    pub async fn read<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send,
    {
        self.read_within(doing, self.timeout, call).await
    }

    /// The same for reading whole tables, with an hour for it.
    ///
    /// # Errors
    /// The database refused it, or took too long.
    pub async fn long_read<T, F>(&self, doing: &'static str, call: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send,
    {
        self.read_within(doing, crate::postgres::LONG_READ, call)
            .await
    }

    async fn read_within<T, F>(
        &self,
        doing: &'static str,
        limit: Duration,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send,
    {
        let reading = async {
            let room = self.readers.room.acquire().await;
            let _room = room.map_err(|_| StoreError::of(doing, sqlx::Error::PoolClosed))?;
            let failed = |error| StoreError::of(doing, error);
            let idle = self.readers.idle.lock().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => SqliteConnection::connect_with(&self.readers.options)
                    .await
                    .map_err(failed)?,
            };
            let begin = sqlx::raw_sql("BEGIN");
            begin.execute(&mut connection).await.map_err(failed)?;
            let outcome = call(&mut connection).await;
            let end = sqlx::raw_sql("ROLLBACK");
            end.execute(&mut connection).await.map_err(failed)?;
            self.readers.idle.lock().push(connection);
            outcome.map_err(failed)
        };
        match self.clock.within(limit, reading).await {
            Some(outcome) => outcome,
            None => Err(StoreError::Timeout { doing, limit }),
        }
    }

    pub(crate) async fn begin(&self, borrower: Borrower) -> Result<SqliteTx, StoreError> {
        let doing = "begin a transaction";
        let begin = async {
            let mut guard = self.writer.lock().await;
            guard
                .begin()
                .await
                .map_err(|error| StoreError::of(doing, error))?;
            if borrower == Borrower::Caller {
                guard.lend();
            }
            let limit = CallLimit::new(&self.clock, self.timeout);
            Ok(SqliteTx { guard, limit })
        };
        match self.clock.within(self.timeout, begin).await {
            Some(outcome) => outcome,
            None => Err(self.late(doing)),
        }
    }

    /// Puts what is in the journal into the file, as far as no reader needs the journal.
    ///
    /// # Errors
    /// The database cannot write, or took too long.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        let doing = "put the journal into the file";
        let checkpoint = async {
            let mut guard = self.writer.lock().await;
            // Inside of what somebody left open it would be refused.
            guard.rollback_open().await;
            // The other kinds would wait for readers, and everybody who writes would wait for us.
            guard.execute("PRAGMA wal_checkpoint(PASSIVE)").await
        };
        match self.clock.within(self.timeout, checkpoint).await {
            Some(outcome) => outcome.map_err(|error| StoreError::of(doing, error)),
            None => Err(self.late(doing)),
        }
    }

    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        let idle = std::mem::take(&mut *self.readers.idle.lock());
        for reader in idle {
            // It is closed in any case, at the latest with the process.
            reader.close().await.ok();
        }
        self.checkpoint().await
    }

    pub(crate) async fn check_file(&self) -> Result<Vec<String>, StoreError> {
        let (doing, limit) = ("check the file", crate::postgres::LONG_READ);
        let check = async {
            // A connection that has read a full-text index remembers its parts. After the writer has merged them,
            // the check would miss those that are gone.
            let mut connection = SqliteConnection::connect_with(&self.readers.options).await?;
            let rows = sqlx::query_scalar::<_, String>(CHECK_FILE);
            let found = rows.fetch_all(&mut connection).await?;
            connection.close().await?;
            Ok(found)
        };
        let mut problems = match self.clock.within(limit, check).await {
            Some(found) => found.map_err(|error| StoreError::of(doing, error))?,
            None => return Err(StoreError::Timeout { doing, limit }),
        };
        problems.retain(|problem| problem != "ok");
        Ok(problems)
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        self.read("ping the database", |connection| {
            Box::pin(async move { connection.ping().await })
        })
        .await
    }

    fn late(&self, doing: &'static str) -> StoreError {
        StoreError::Timeout {
            doing,
            limit: self.timeout,
        }
    }
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sqlite")
    }
}

/// A transaction on SQLite, and the only one that writes. Dropped without a commit, it changes
/// nothing, and others write again as soon as it is rolled back, which happens at once.
#[must_use = "a transaction that is dropped changes nothing"]
pub struct SqliteTx {
    guard: WriterGuard,
    limit: CallLimit,
}

impl SqliteTx {
    /// The connection it is on.
    pub fn connection(&mut self) -> &mut SqliteConnection {
        self.guard.connection()
    }

    pub(crate) fn limit(&self) -> CallLimit {
        self.limit.clone()
    }

    // Cut short, or refused, either leaves the writer marked as open: what is left is taken back, after
    // whatever is still on its way.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        let end = self.guard.end("COMMIT");
        self.limit.run("commit a transaction", end).await
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        let end = self.guard.end("ROLLBACK");
        self.limit.run("take a transaction back", end).await
    }
}

impl std::fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteTx")
    }
}
