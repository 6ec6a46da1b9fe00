//! Every gauge and every log event of a logger.

use tidegate_core::breaker::BreakerState;

use crate::hub::Hub;
use crate::task::Report;

/// The documented gauges, which users' dashboards depend on.
pub(crate) const GAUGES: [&str; 7] = [
    "eventlog.events.queued",
    "eventlog.events.sent",
    "eventlog.events.failed",
    "eventlog.events.spilled",
    "eventlog.events.replayed",
    "eventlog.queue.depth",
    "eventlog.circuit-breaker.open",
];

/// Brings the gauges up to date.
pub(crate) fn gauges(shared: &Hub) {
    if !shared.config.metrics {
        return;
    }
    let values = {
        let state = shared.state();
        let counters = state.counters;
        [
            counters.queued,
            counters.sent,
            counters.failed,
            counters.spilled,
            counters.replayed,
            state.queue.len() as u64,
            u64::from(state.breaker.state() == BreakerState::Open),
        ]
    };
    for (name, value) in GAUGES.into_iter().zip(values) {
        #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
        metrics::gauge!(name).set(value as f64);
    }
}

/// The last line of a logger.
pub(crate) fn stopped(report: &Report) {
    let (account, metrics) = (&report.account, &report.metrics);
    tracing::info!(
        queued = metrics.events_queued,
        sent = metrics.events_sent,
        failed = metrics.events_failed,
        spilled = metrics.events_spilled,
        replayed = metrics.events_replayed,
        accepted = account.accepted,
        delivered = account.delivered,
        on_disk = account.spilled,
        dead_lettered = account.dead_lettered,
        lost = account.lost.total(),
        "event logger stopped"
    );
}
