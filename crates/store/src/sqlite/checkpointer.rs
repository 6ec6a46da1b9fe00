//! Copies the write-ahead log into the file while others write.
//!
//! A commit copies it too, once it is long enough ([`CHECKPOINT_PAGES`](super::CHECKPOINT_PAGES)). Everybody who
//! writes waits for that. With most of it copied beforehand, that wait is short.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
use tidegate_core::env::Clock;
use tokio::sync::{Notify, oneshot};

/// Pages that one pass is to copy (64 MiB), half of what a commit would wait for.
const PASS_PAGES: u64 = 16 * 1024;
/// The shortest and the longest time between two passes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Tells of commits. Its checkpointer ends when it is dropped.
pub(super) struct CommitNotice {
    commits: Arc<Notify>,
    _alive: oneshot::Sender<Infallible>,
}

impl CommitNotice {
    /// Says that something was committed.
    pub(super) fn tell(&self) {
        self.commits.notify_one();
    }
}

/// A notice, and the task that listens to it.
pub(super) fn checkpointer(
    options: SqliteConnectOptions,
    clock: Arc<dyn Clock>,
) -> (CommitNotice, impl Future<Output = ()> + Send + 'static) {
    let commits = Arc::new(Notify::new());
    let (alive, gone) = oneshot::channel();
    let notice = CommitNotice {
        commits: Arc::clone(&commits),
        _alive: alive,
    };
    // The file is there. Where somebody moved it away, an empty one in its place would be wrong.
    let options = options.create_if_missing(false);
    let task = async move {
        tokio::select! {
            biased;
            _ = gone => {}
            () = copy(options, clock, commits) => {}
        }
    };
    (notice, task)
}

async fn copy(options: SqliteConnectOptions, clock: Arc<dyn Clock>, commits: Arc<Notify>) {
    let mut connection = None;
    let mut pause = SHORTEST_PAUSE;
    let (mut length, mut looked) = (0, clock.elapsed());
    loop {
        commits.notified().await;
        clock.sleep(pause).await;
        match pass(&options, &mut connection).await {
            Ok(pages) => {
                // A log that is shorter than before began anew.
                let written = pages.checked_sub(length).unwrap_or(pages);
                let now = clock.elapsed();
                pause = next_pause(written, now.saturating_sub(looked));
                (length, looked) = (pages, now);
            }
            Err(error) => {
                // Commits do it without us.
                tracing::warn!(%error, "write-ahead log could not be copied into the file; retrying");
                connection = None;
                pause = LONGEST_PAUSE;
            }
        }
    }
}

/// Copies what no reader needs any more, and gives the pages in the log.
async fn pass(
    options: &SqliteConnectOptions,
    connection: &mut Option<SqliteConnection>,
) -> Result<u64, sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(options.connect().await?),
    };
    let pass = sqlx::query_as("PRAGMA wal_checkpoint(PASSIVE)");
    let (_, pages, _): (i64, i64, i64) = pass.fetch_one(connection).await?;
    Ok(u64::try_from(pages).unwrap_or(0))
}

/// How long to wait until about [`PASS_PAGES`] are there again, if as much is written as before.
fn next_pause(written: u64, within: Duration) -> Duration {
    let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
    let pause = micros.saturating_mul(PASS_PAGES) / written.max(1);
    Duration::from_micros(pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use tidegate_core::env::Env;

    use super::*;

    #[test]
    fn the_pause_follows_how_much_is_written() {
        let second = Duration::from_secs(1);
        assert_eq!(next_pause(PASS_PAGES, second), second);
        assert_eq!(next_pause(PASS_PAGES / 2, second), second * 2);
        assert_eq!(next_pause(PASS_PAGES * 100, second), SHORTEST_PAUSE);
        assert_eq!(next_pause(1, second), LONGEST_PAUSE);
        assert_eq!(next_pause(0, Duration::MAX), LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn its_end_comes_with_the_notice_and_makes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("moved.db");
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true);
        let (notice, task) = checkpointer(options, Env::system().clock);
        notice.tell();
        drop(notice);
        task.await;
        assert!(!file.try_exists().unwrap());
    }
}
