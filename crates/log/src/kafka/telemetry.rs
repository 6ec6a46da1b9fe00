//! Every metric of a log on Kafka.

/// Bytes of appends that wait for an answer, against `max-in-flight`.
pub(super) fn in_flight(bytes: usize) {
    metrics::gauge!("tidegate_log_in_flight_bytes").set(gauge(bytes));
}

/// Bytes of records that a session holds ready, against `session-buffer`.
pub(super) fn buffered(group: &str, bytes: usize) {
    metrics::gauge!("tidegate_log_session_buffer_bytes", "group" => group.to_owned())
        .set(gauge(bytes));
}

/// The size of an append or commit, against `max-commit-size`.
pub(super) fn commit_size(bytes: u64) {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    metrics::histogram!("tidegate_log_commit_bytes").record(gauge(bytes));
}

/// A call had no answer within `request-timeout`.
pub(super) fn timed_out() {
    metrics::counter!("tidegate_log_request_timeouts_total").increment(1);
}

/// A partition stood still for `stall-after` although the broker has more records.
pub(super) fn stalled() {
    metrics::counter!("tidegate_log_stalls_total").increment(1);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
fn gauge(bytes: usize) -> f64 {
    bytes as f64
}
