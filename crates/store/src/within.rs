//! Time limits for calls.

use std::time::Duration;

use tidegate_core::env::Clock;

/// The outcome of `call`, or none when `limit` passed first; the call is then dropped.
pub(crate) async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    call: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        outcome = call => Some(outcome),
        () = clock.sleep(limit) => None,
    }
}
