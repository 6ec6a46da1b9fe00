//! Time limits for calls.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Clock;

use crate::StoreError;

/// How long a call inside a transaction may take. A server that stands still answers to nobody, and
/// its own limits stand still with it.
#[derive(Debug, Clone)]
pub struct CallLimit {
    clock: Arc<dyn Clock>,
    limit: Duration,
}

impl CallLimit {
    pub(crate) fn new(clock: &Arc<dyn Clock>, limit: Duration) -> Self {
        Self {
            clock: Arc::clone(clock),
            limit,
        }
    }

    /// The outcome of `call`, where it comes in time.
    ///
    /// # Errors
    /// The database is away, refused, or gave no answer in time; the transaction is then of no use
    /// any more.
    pub async fn run<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        match self.clock.within(self.limit, call).await {
            Some(outcome) => outcome.map_err(|error| StoreError::of(doing, error)),
            None => Err(StoreError::Timeout {
                doing,
                limit: self.limit,
            }),
        }
    }
}
