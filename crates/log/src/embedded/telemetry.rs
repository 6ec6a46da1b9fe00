//! Every metric of an embedded log.

use std::time::Duration;

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// Says what each metric is, for people who read `/metrics`.
pub(crate) fn describe() {
    describe_histogram!(
        "tidegate_log_append_seconds",
        "How long after it was handed over a write was durable and answered."
    );
    describe_histogram!(
        "tidegate_log_sync_seconds",
        "How long a sync of the journal took."
    );
    describe_gauge!(
        "tidegate_log_bytes",
        "Bytes that the records of all topics take."
    );
    describe_gauge!(
        "tidegate_log_cache_bytes",
        "Bytes of records that are in no segment yet."
    );
    describe_gauge!(
        "tidegate_log_queued_bytes",
        "Bytes of commits that wait for the disk."
    );
    describe_counter!(
        "tidegate_log_damage_found_total",
        "How often a read or an audit came upon damage."
    );
    describe_gauge!(
        "tidegate_log_compaction_bytes",
        "Bytes of keys that the last round of compaction held."
    );
}

/// A write was answered so long after it was handed over.
pub(super) fn appended(took: Duration) {
    metrics::histogram!("tidegate_log_append_seconds").record(took.as_secs_f64());
}

/// A sync of the journal took so long.
pub(super) fn synced(took: Duration) {
    metrics::histogram!("tidegate_log_sync_seconds").record(took.as_secs_f64());
}

/// The records take so many bytes, of which so many are in no segment yet.
pub(super) fn used(bytes: u64, unflushed: u64) {
    metrics::gauge!("tidegate_log_bytes").set(gauge(bytes));
    metrics::gauge!("tidegate_log_cache_bytes").set(gauge(unflushed));
}

/// So many bytes of commits wait for the disk.
pub(super) fn queued(bytes: u64) {
    metrics::gauge!("tidegate_log_queued_bytes").set(gauge(bytes));
}

/// A read or an audit came upon damage.
pub(super) fn damage_found() {
    metrics::counter!("tidegate_log_damage_found_total").increment(1);
}

/// A round of compaction held so many bytes of keys.
pub(super) fn compacted(memory: u64) {
    metrics::gauge!("tidegate_log_compaction_bytes").set(gauge(memory));
}

#[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
fn gauge(bytes: u64) -> f64 {
    bytes as f64
}
