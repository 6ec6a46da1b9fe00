//! The one connection that writes, and who has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tidegate_core::env::CatchPanic;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, mpsc, oneshot};

use super::CHECKPOINT_PAGES;
use super::checkpointer::CommitNotice;
use crate::{BoxFuture, StoreError};

/// Operations in one commit at most, so that the first one never waits long for the last.
const GROUP: usize = 256;

/// The writer of a file. Cloning gives another handle on the same one.
#[derive(Clone)]
pub(super) struct SqliteWriter {
    connection: Arc<Mutex<WriterConnection>>,
    /// Says that somebody left a transaction open.
    left: Arc<Notify>,
}

struct WriterConnection {
    connection: SqliteConnection,
    /// How to get another one.
    options: SqliteConnectOptions,
    /// Whether a transaction is open, or may be: it was begun, and no end of it was heard of.
    is_open: bool,
    /// How long it waits for another process, in milliseconds.
    busy_timeout: i64,
    /// Whether others had it since it was last put in order.
    is_lent: bool,
    /// Whether the commit that comes next is asked for.
    may_commit: Arc<AtomicBool>,
    commits: CommitNotice,
}

impl SqliteWriter {
    pub(super) async fn open(
        options: SqliteConnectOptions,
        commits: CommitNotice,
    ) -> Result<Self, sqlx::Error> {
        let may_commit = Arc::new(AtomicBool::new(false));
        let mut connection = connect(&options, &may_commit).await?;
        let busy_timeout = sqlx::query_scalar("PRAGMA busy_timeout");
        let busy_timeout = busy_timeout.fetch_one(&mut connection).await?;
        let connection = WriterConnection {
            connection,
            options,
            is_open: false,
            busy_timeout,
            is_lent: false,
            may_commit,
            commits,
        };
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            left: Arc::new(Notify::new()),
        })
    }

    /// Waits until nobody else has the connection, and takes it.
    pub(super) async fn lock(&self) -> WriterGuard {
        WriterGuard {
            writer: Arc::clone(&self.connection).lock_owned().await,
            left: Arc::clone(&self.left),
        }
    }

    /// Takes whatever waits, commits it together, and answers; and takes back what others left open.
    pub(super) async fn write(self, mut waiting: mpsc::Receiver<Box<dyn WriteOperation>>) {
        let mut group = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = self.left.notified() => self.lock().await.rollback_open().await,
                count = waiting.recv_many(&mut group, GROUP) => {
                    if count == 0 {
                        return;
                    }
                    let mut guard = self.lock().await;
                    let committed = commit(&mut guard, &mut group).await.map_err(Arc::new);
                    // An operation that was refused at its commit is open still.
                    guard.rollback_open().await;
                    drop(guard);
                    for operation in group.drain(..) {
                        operation.answer(&committed);
                    }
                }
            }
        }
    }
}

/// The connection in somebody's hands. It may be dropped in the middle of a transaction, by an error or
/// because its caller went away. Then nothing is changed, and the transaction is rolled back at once:
/// until then no other process could write.
pub(super) struct WriterGuard {
    writer: OwnedMutexGuard<WriterConnection>,
    left: Arc<Notify>,
}

impl WriterGuard {
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.writer.connection
    }

    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.rollback_open().await;
        if self.writer.is_lent {
            // Dropping temporary tables is a commit of its own.
            self.writer.may_commit.store(true, Ordering::SeqCst);
            let busy_timeout = self.writer.busy_timeout;
            let reset = reset_session(self.connection(), busy_timeout).await;
            self.writer.may_commit.store(false, Ordering::SeqCst);
            if let Err(error) = reset {
                tracing::warn!(%error, "session could not be reset after a caller's transaction; reconnecting");
                self.renew().await?;
            }
            self.writer.is_lent = false;
        }
        self.writer.is_open = true;
        self.execute("BEGIN IMMEDIATE").await
    }

    /// Closes the connection and takes another one: nobody is to be held up by what others did with it.
    async fn renew(&mut self) -> Result<(), sqlx::Error> {
        let fresh = connect(&self.writer.options, &self.writer.may_commit).await?;
        let old = std::mem::replace(&mut self.writer.connection, fresh);
        // Its answer is of no use to anybody.
        old.close_hard().await.ok();
        Ok(())
    }

    /// Others have the transaction that was begun, with statements that we do not know.
    pub(super) fn lend(&mut self) {
        self.writer.is_lent = true;
    }

    pub(super) async fn end(&mut self, how: &'static str) -> Result<(), sqlx::Error> {
        let is_commit = how == "COMMIT";
        self.writer.may_commit.store(is_commit, Ordering::SeqCst);
        let ended = self.execute(how).await;
        self.writer.may_commit.store(false, Ordering::SeqCst);
        if ended.is_ok() {
            self.writer.is_open = false;
            if is_commit {
                self.writer.commits.tell();
            }
        }
        ended
    }

    /// Rolls back what is open: whoever left it never heard of a commit.
    pub(super) async fn rollback_open(&mut self) {
        // A commit whose caller went away may be on its way still, and is turned into a rollback.
        self.writer.may_commit.store(false, Ordering::SeqCst);
        if self.writer.is_open {
            // It fails where SQLite has rolled back by itself; then there is nothing left to do.
            self.execute("ROLLBACK").await.ok();
            self.writer.is_open = false;
        }
    }

    pub(super) async fn execute(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(self.connection()).await?;
        Ok(())
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        if self.writer.is_open {
            // The task that writes does it, because a drop cannot wait. Where it has ended already, nobody
            // else has the connection either: it is closed with us, and its transaction goes with it.
            self.left.notify_one();
        }
    }
}

/// A connection that commits only while that is asked for.
async fn connect(
    options: &SqliteConnectOptions,
    may_commit: &Arc<AtomicBool>,
) -> Result<SqliteConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    let is_asked_for = Arc::clone(may_commit);
    let mut handle = connection.lock_handle().await?;
    handle.set_commit_hook(move || is_asked_for.load(Ordering::SeqCst));
    drop(handle);
    Ok(connection)
}

/// Puts the connection in order after others had it. A temporary table stands before one of the file that has
/// the same name, and would take what is written to that. Such tables may refer to each other, and are
/// dropped in whatever order they come.
async fn reset_session(
    connection: &mut SqliteConnection,
    busy_timeout: i64,
) -> Result<(), sqlx::Error> {
    let settings = format!(
        "PRAGMA query_only = 0; PRAGMA ignore_check_constraints = 0; PRAGMA busy_timeout = {busy_timeout};
         PRAGMA locking_mode = NORMAL; PRAGMA writable_schema = 0; PRAGMA recursive_triggers = 0;
         PRAGMA legacy_alter_table = 0; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA max_page_count = 4294967294; PRAGMA foreign_keys = 0"
    );
    let settings = sqlx::raw_sql(sqlx::AssertSqlSafe(settings));
    settings.execute(&mut *connection).await?;
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT 'DROP ' || type || ' IF EXISTS temp.\"' || replace(name, '\"', '\"\"') || '\"'
         FROM sqlite_temp_schema
         WHERE type IN ('table', 'view', 'trigger') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
         ORDER BY type = 'table'",
    )
    .fetch_all(&mut *connection)
    .await?;
    for drop in left {
        let drop = sqlx::raw_sql(sqlx::AssertSqlSafe(drop));
        drop.execute(&mut *connection).await?;
    }
    let keys = sqlx::raw_sql("PRAGMA foreign_keys = 1");
    keys.execute(connection).await?;
    Ok(())
}

async fn commit(
    guard: &mut WriterGuard,
    group: &mut [Box<dyn WriteOperation>],
) -> Result<(), sqlx::Error> {
    guard.begin().await?;
    if let [alone] = group {
        // The transaction is its own, so that it needs no savepoint with copies of every page it changes.
        if alone.is_canceled() || !alone.run(guard.connection()).await {
            guard.rollback_open().await;
            return Ok(());
        }
        return guard.end("COMMIT").await;
    }
    for operation in group {
        // Nobody waits for it any more: carrying it out would surprise.
        if operation.is_canceled() {
            continue;
        }
        guard.execute("SAVEPOINT operation").await?;
        let end = if operation.run(guard.connection()).await {
            "RELEASE operation"
        } else {
            "ROLLBACK TO operation; RELEASE operation"
        };
        guard.execute(end).await?;
    }
    guard.end("COMMIT").await
}

/// One operation that waits for the writer.
pub(super) trait WriteOperation: Send {
    fn is_canceled(&self) -> bool;
    /// Runs it and says whether what it did stays. A panic is its failure alone: the task that writes
    /// goes on for everybody else.
    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, bool>;
    fn answer(self: Box<Self>, committed: &Result<(), Arc<sqlx::Error>>);
}

pub(super) struct WriteJob<T, F> {
    doing: &'static str,
    call: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    tell: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> WriteJob<T, F> {
    pub(super) fn new(
        doing: &'static str,
        call: F,
        tell: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self {
            doing,
            call: Some(call),
            outcome: None,
            tell,
        }
    }
}

impl<T, F> WriteOperation for WriteJob<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
        + Send
        + 'static,
{
    fn is_canceled(&self) -> bool {
        self.tell.is_closed()
    }

    fn run<'a>(&'a mut self, connection: &'a mut SqliteConnection) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(call) = self.call.take() else {
                return false;
            };
            // Making the future is the caller's code too, so that it is made where panics are caught.
            let called = CatchPanic(Box::pin(async move { call(connection).await })).await;
            let doing = self.doing;
            let outcome = match called {
                Ok(outcome) => outcome.map_err(|error| StoreError::of(doing, error)),
                Err(panic) => {
                    tracing::error!(panic, doing, "operation panicked; rolling it back");
                    Err(StoreError::panicked(doing, panic))
                }
            };
            let is_good = outcome.is_ok();
            self.outcome = Some(outcome);
            is_good
        })
    }

    fn answer(self: Box<Self>, committed: &Result<(), Arc<sqlx::Error>>) {
        let answer = match (self.outcome, committed) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(value)), Ok(())) => Ok(value),
            // An error that is shared cannot be moved; its text and kind are what counts.
            (_, Err(error)) => Err(StoreError::like(self.doing, error)),
            (None, Ok(())) => Err(StoreError::of(self.doing, sqlx::Error::WorkerCrashed)),
        };
        // A caller that went away needs no answer.
        self.tell.send(answer).ok();
    }
}
