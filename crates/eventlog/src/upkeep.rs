//! The clean-up of old events.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Failure;
use tidegate_core::env::{CatchPanic, Clock};
use tidegate_store::{StoreError, posting, span_ms};

use crate::limit::COMMIT_ATTEMPTS;
use crate::{EventLog, EventLogError, sql, telemetry};

/// Cleans up at every interval until `shutdown`. A transaction that is under way then is finished or taken
/// back as a whole.
pub(crate) async fn run(
    log: EventLog,
    clock: Arc<dyn Clock>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let cleaning = async {
        loop {
            clock.sleep(log.options().cleanup_interval).await;
            match CatchPanic(Box::pin(clean(&log, &*clock))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let error = Failure::from(error).message;
                    tracing::warn!(error, "could not clean up the event log");
                }
                Err(panic) => tracing::error!(panic, "the clean-up of the event log panicked"),
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown => {}
        () = cleaning => {}
    }
}

async fn clean(log: &EventLog, clock: &dyn Clock) -> Result<(), EventLogError> {
    let now_ms = clock.now_ms();
    if let Some(retention) = log.options().retention {
        remove_old(log, now_ms, retention).await?;
    }
    posting::fold(log.store(), &sql::books_name(None), now_ms).await?;
    for logger in log.loggers().await? {
        posting::fold(log.store(), &sql::books_name(Some(&logger)), now_ms).await?;
    }
    Ok(())
}

/// Removes events that were stored longer ago than `retention`, in short transactions.
///
/// The time of storing counts: an event that waited in a spill for weeks is kept as long as any other.
async fn remove_old(log: &EventLog, now_ms: u64, retention: Duration) -> Result<(), EventLogError> {
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let before_ms = now.saturating_sub(span_ms(retention));
    let (mut after, mut attempt) = (0, 1);
    loop {
        match sql::remove_range(log.store(), after, before_ms, now).await {
            Ok(Some((last, count))) => {
                telemetry::removed(count);
                (after, attempt) = (last, 1);
            }
            Ok(None) => return Ok(()),
            // A post holds some of these events, or another process removes them.
            Err(EventLogError::Store(error))
                if attempt < COMMIT_ATTEMPTS && matches!(*error, StoreError::Conflict { .. }) =>
            {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
