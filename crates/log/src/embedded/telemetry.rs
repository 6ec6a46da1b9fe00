//! Every metric of an embedded log.

use std::time::Duration;

/// A write was answered so long after it was handed over.
pub(super) fn appended(took: Duration) {
    metrics::histogram!("tidegate_log_append_seconds").record(took.as_secs_f64());
}

/// A sync of the journal took so long.
pub(super) fn synced(took: Duration) {
    metrics::histogram!("tidegate_log_sync_seconds").record(took.as_secs_f64());
}

/// The records take so many bytes.
pub(super) fn used(bytes: u64) {
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    metrics::gauge!("tidegate_log_bytes").set(bytes as f64);
}
