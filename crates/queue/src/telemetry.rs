//! Every metric of the queue.

use std::time::Duration;

use metrics::{describe_counter, describe_gauge, describe_histogram};

use crate::port::{ClaimedEvent, Disposition, HandlerResult, QueueStats};

/// The name under which the queue stands in `component`.
const COMPONENT: &str = "queue";

/// Names that dashboards depend on.
pub mod names {
    /// Events by status.
    pub const DEPTH: &str = "event_queue_depth";
    /// Age of the oldest event that is not finalized.
    pub const OLDEST: &str = "event_queue_oldest_age_seconds";
    /// Attempts of finalized events.
    pub const ATTEMPTS: &str = "event_queue_attempts";
    /// Time of one handler call.
    pub const PROCESSING: &str = "event_queue_processing_seconds";
    /// From publishing to being claimed for the first time.
    pub const PICKUP: &str = "event_queue_pickup_seconds";
    /// The results of handlers.
    pub const RESULTS: &str = "event_queue_results_total";
    /// Handler states that are kept.
    pub const STATES: &str = "event_queue_handler_states";
    /// Events that no handler wanted.
    pub const UNHANDLED: &str = "event_queue_unhandled_total";
    /// How far projections are behind.
    pub const LAG: &str = "event_projection_lag";
}

/// Gives the metrics their help texts.
pub fn describe() {
    describe_gauge!(names::DEPTH, "Events that are not finalized, by status.");
    describe_gauge!(
        names::OLDEST,
        "Age of the oldest event that is not finalized."
    );
    describe_histogram!(names::ATTEMPTS, "Attempts that finalized events took.");
    describe_histogram!(names::PROCESSING, "Time of one handler call.");
    describe_histogram!(
        names::PICKUP,
        "Time from publishing to being claimed for the first time."
    );
    describe_counter!(names::RESULTS, "What handlers said.");
    describe_gauge!(names::STATES, "Handler states that are kept.");
    describe_counter!(names::UNHANDLED, "Events that no handler wanted.");
    describe_gauge!(names::LAG, "Positions that a projection is behind.");
}

pub(crate) fn called(type_name: &str, handler: &str, result: HandlerResult, took: Duration) {
    let labels = [
        ("component", COMPONENT.to_owned()),
        ("type", type_name.to_owned()),
        ("handler", handler.to_owned()),
    ];
    metrics::histogram!(names::PROCESSING, &labels).record(took.as_secs_f64());
    let [component, type_name, handler] = labels;
    let labels = [
        component,
        type_name,
        handler,
        ("result", result.as_str().to_owned()),
    ];
    metrics::counter!(names::RESULTS, &labels).increment(1);
}

pub(crate) fn attempts(attempts: u32, to: &Disposition) {
    if matches!(to, Disposition::Finalize { .. }) {
        metrics::histogram!(names::ATTEMPTS, "component" => COMPONENT).record(f64::from(attempts));
    }
}

pub(crate) fn picked_up(event: &ClaimedEvent, now_ms: i64) {
    if event.attempts == 1 {
        let waited = now_ms.saturating_sub(event.created_ms);
        let waited = u64::try_from(waited).unwrap_or(0);
        let waited = Duration::from_millis(waited).as_secs_f64();
        metrics::histogram!(names::PICKUP, "component" => COMPONENT).record(waited);
    }
}

pub(crate) fn unhandled(type_name: &str) {
    let labels = [
        ("component", COMPONENT.to_owned()),
        ("type", type_name.to_owned()),
    ];
    metrics::counter!(names::UNHANDLED, &labels).increment(1);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn stats(stats: &QueueStats) {
    let depth = |status: &'static str, count: u64| {
        metrics::gauge!(names::DEPTH, "component" => COMPONENT, "status" => status)
            .set(count as f64);
    };
    depth("PENDING", stats.pending);
    depth("PROCESSING", stats.processing);
    metrics::gauge!(names::OLDEST, "component" => COMPONENT).set(stats.oldest_age_seconds);
    metrics::gauge!(names::STATES, "component" => COMPONENT).set(stats.handler_states as f64);
    // Readers do not see a rebuild that is under way or asked for.
    let shown = stats.lag.iter().filter(|(name, _)| !name.contains('#'));
    for (name, lag) in shown {
        let labels = [("component", COMPONENT.to_owned()), ("name", name.clone())];
        metrics::gauge!(names::LAG, &labels).set(*lag as f64);
    }
}
