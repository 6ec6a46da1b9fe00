//! SQLite: many readers, one writer, one sync for everybody who waits.
//!
//! The writer is one connection. Operations queue up for it; a task takes all that wait, begins one
//! transaction (`BEGIN IMMEDIATE`), runs each in a savepoint of its own, commits once, and answers
//! them all. A caller's own transaction takes the same connection out for as long as it lasts.
//!
//! **Invariant:** an operation is answered with success only after the commit that covers it, which
//! is synced (`synchronous=FULL`).
//!
//! **Invariant:** the writer commits when it is told to, and at no other time. SQLite ends a transaction
//! by itself when the disk is full or a statement says `OR ROLLBACK`; what follows on the connection
//! would be committed statement by statement. A commit that was not asked for is refused instead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as PlainMutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tidegate_core::env::{Clock, Env};
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore, mpsc, oneshot};

use crate::within::{CallLimit, within};
use crate::{BoxFuture, StoreError, StoreOptions};

/// Operations in one commit at most, so that the first one never waits long for the last.
const GROUP: usize = 256;
/// Operations that may wait for the writer.
const WAITING: usize = 4096;

/// A database in a file. Cloning gives another handle on the same connections.
#[derive(Clone)]
pub struct Sqlite {
    writer: Arc<Mutex<Writer>>,
    operations: mpsc::Sender<Box<dyn Operation>>,
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

struct Writer {
    connection: SqliteConnection,
    /// Whether a transaction was left open: its owner was dropped in the middle of it.
    is_open: bool,
    /// Whether the commit that comes next is asked for.
    may_commit: Arc<AtomicBool>,
}

struct Readers {
    options: SqliteConnectOptions,
    room: Semaphore,
    idle: PlainMutex<Vec<SqliteConnection>>,
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
            .busy_timeout(options.timeout)
            .disable_statement_logging();
        let doing = "open the database";
        let failed = |error| StoreError::of(doing, error);
        let connecting = SqliteConnection::connect_with(&connect);
        let mut connection = connecting.await.map_err(failed)?;
        let may_commit = Arc::new(AtomicBool::new(false));
        let is_asked_for = Arc::clone(&may_commit);
        let mut handle = connection.lock_handle().await.map_err(failed)?;
        handle.set_commit_hook(move || is_asked_for.load(Ordering::SeqCst));
        drop(handle);
        let writer = Writer {
            connection,
            is_open: false,
            may_commit,
        };
        let writer = Arc::new(Mutex::new(writer));
        let (operations, waiting) = mpsc::channel(WAITING);
        let task = write(Arc::clone(&writer), waiting);
        // It ends with the last handle, whose sender is what keeps it.
        drop(env.spawn.spawn("sqlite-writer", Box::pin(task)));
        let readers = Readers {
            options: connect.read_only(true).create_if_missing(false),
            room: Semaphore::new(usize::try_from(options.max_connections.max(1)).unwrap_or(1)),
            idle: PlainMutex::default(),
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
        let job = Job {
            doing,
            call: Some(call),
            outcome: None,
            tell,
        };
        let wait = async {
            let closed = || StoreError::of(doing, sqlx::Error::PoolClosed);
            let sent = self.operations.send(Box::new(job)).await;
            sent.map_err(|_| closed())?;
            // The writer ends only with its runtime, and then nobody knows.
            let crashed = || StoreError::of(doing, sqlx::Error::WorkerCrashed);
            told.await.map_err(|_| crashed())?
        };
        match within(&*self.clock, self.timeout, wait).await {
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
            let idle = self.idle().pop();
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
            self.idle().push(connection);
            outcome.map_err(failed)
        };
        match within(&*self.clock, limit, reading).await {
            Some(outcome) => outcome,
            None => Err(StoreError::Timeout { doing, limit }),
        }
    }

    pub(crate) async fn begin(&self) -> Result<SqliteTx, StoreError> {
        let doing = "begin a transaction";
        let begin = async {
            let mut writer = Arc::clone(&self.writer).lock_owned().await;
            writer
                .begin()
                .await
                .map_err(|error| StoreError::of(doing, error))?;
            let limit = CallLimit::new(&self.clock, self.timeout);
            Ok(SqliteTx { writer, limit })
        };
        match within(&*self.clock, self.timeout, begin).await {
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
            let mut writer = self.writer.lock().await;
            // The other kinds would wait for readers, and everybody who writes would wait for us.
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").await
        };
        match within(&*self.clock, self.timeout, checkpoint).await {
            Some(outcome) => outcome.map_err(|error| StoreError::of(doing, error)),
            None => Err(self.late(doing)),
        }
    }

    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        let idle = std::mem::take(&mut *self.idle());
        for reader in idle {
            // It is closed in any case, at the latest with the process.
            reader.close().await.ok();
        }
        self.checkpoint().await
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        self.read("ask for a sign of life", |connection| {
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

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SqliteConnection>> {
        self.readers
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sqlite")
    }
}

impl Writer {
    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        // A commit whose caller went away may be on its way still, and is turned into a rollback.
        self.may_commit.store(false, Ordering::SeqCst);
        if std::mem::replace(&mut self.is_open, true) {
            // Whoever left it never heard of a commit.
            self.execute("ROLLBACK").await.ok();
        }
        self.execute("BEGIN IMMEDIATE").await
    }

    async fn end(&mut self, how: &'static str) -> Result<(), sqlx::Error> {
        self.may_commit.store(how == "COMMIT", Ordering::SeqCst);
        let ended = self.execute(how).await;
        self.may_commit.store(false, Ordering::SeqCst);
        if ended.is_ok() {
            self.is_open = false;
        }
        ended
    }

    async fn execute(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(&mut self.connection).await?;
        Ok(())
    }
}

/// The writer: takes whatever waits, commits it together, and answers.
async fn write(writer: Arc<Mutex<Writer>>, mut waiting: mpsc::Receiver<Box<dyn Operation>>) {
    let mut group = Vec::new();
    while waiting.recv_many(&mut group, GROUP).await > 0 {
        let mut writer = writer.lock().await;
        let committed = commit(&mut writer, &mut group).await.map_err(Arc::new);
        for operation in group.drain(..) {
            operation.answer(&committed);
        }
    }
}

async fn commit(writer: &mut Writer, group: &mut [Box<dyn Operation>]) -> Result<(), sqlx::Error> {
    writer.begin().await?;
    for operation in group {
        // Nobody waits for it any more: carrying it out would surprise.
        if operation.is_forgotten() {
            continue;
        }
        writer.execute("SAVEPOINT operation").await?;
        let end = if operation.run(&mut writer.connection).await {
            "RELEASE operation"
        } else {
            "ROLLBACK TO operation; RELEASE operation"
        };
        writer.execute(end).await?;
    }
    writer.end("COMMIT").await
}

/// One operation that waits for the writer.
trait Operation: Send {
    fn is_forgotten(&self) -> bool;
    /// Runs it and says whether what it did stays.
    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, bool>;
    fn answer(self: Box<Self>, committed: &Result<(), Arc<sqlx::Error>>);
}

struct Job<T, F> {
    doing: &'static str,
    call: Option<F>,
    outcome: Option<Result<T, sqlx::Error>>,
    tell: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Operation for Job<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
{
    fn is_forgotten(&self) -> bool {
        self.tell.is_closed()
    }

    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(call) = self.call.take() else {
                return false;
            };
            let outcome = call(connection).await;
            let is_good = outcome.is_ok();
            self.outcome = Some(outcome);
            is_good
        })
    }

    fn answer(self: Box<Self>, committed: &Result<(), Arc<sqlx::Error>>) {
        let answer = match (self.outcome, committed) {
            (Some(Err(error)), _) => Err(StoreError::of(self.doing, error)),
            (Some(Ok(value)), Ok(())) => Ok(value),
            // An error that is shared cannot be moved; its text and kind are what counts.
            (_, Err(error)) => Err(StoreError::like(self.doing, error)),
            (None, Ok(())) => Err(StoreError::of(self.doing, sqlx::Error::WorkerCrashed)),
        };
        // A caller that went away needs no answer.
        self.tell.send(answer).ok();
    }
}

/// A transaction on SQLite, and the only one that writes. Dropped without a commit, it changes
/// nothing.
#[must_use = "a transaction that is dropped changes nothing"]
pub struct SqliteTx {
    writer: OwnedMutexGuard<Writer>,
    limit: CallLimit,
}

impl SqliteTx {
    /// The connection it is on.
    pub fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.writer.connection
    }

    pub(crate) fn limit(&self) -> CallLimit {
        self.limit.clone()
    }

    // Cut short, either leaves the writer marked as open: whoever has it next takes back what is
    // left, after whatever is still on its way.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        let end = self.writer.end("COMMIT");
        self.limit.run("commit a transaction", end).await
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        let end = self.writer.end("ROLLBACK");
        self.limit.run("take a transaction back", end).await
    }
}

impl std::fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteTx")
    }
}
