//! Copies the write-ahead log into the file while others write.
//!
//! A commit copies it too, once it is long enough ([`CHECKPOINT_PAGES`](super::CHECKPOINT_PAGES)). Everybody who
//! writes waits for that. With most of it copied beforehand, that wait is short.

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
use tidegate_core::env::Clock;
use tokio::sync::mpsc;

/// Pages that one pass is to copy (64 MiB), half of what a commit would wait for.
const PASS_PAGES: u64 = 16 * 1024;
/// The shortest and the longest time between two passes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Goes on until the last sender of `commits` is gone. A word on that channel says that something was committed.
pub(super) async fn checkpoint(
    options: SqliteConnectOptions,
    clock: Arc<dyn Clock>,
    mut commits: mpsc::Receiver<()>,
) {
    let mut connection = None;
    let mut pause = SHORTEST_PAUSE;
    let (mut length, mut looked) = (0, clock.elapsed());
    while commits.recv().await.is_some() {
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
}
