//! Every gauge and every log event of a logger.

use std::collections::BTreeMap;

use tidegate_core::books::{Bucket, Place, Tally};
use tidegate_core::breaker::BreakerState;

use crate::engine::Engine;
use crate::state::LoggerState;
use crate::task::LoggerReport;

/// The gauges, which users' dashboards depend on: the seven documented ones, then ours.
pub(crate) const GAUGES: [&str; 13] = [
    "eventlog.events.queued",
    "eventlog.events.sent",
    "eventlog.events.failed",
    "eventlog.events.spilled",
    "eventlog.events.replayed",
    "eventlog.queue.depth",
    "eventlog.circuit-breaker.open",
    "eventlog.events.corrupt",
    "eventlog.events.rejected",
    "eventlog.events.unreported",
    "eventlog.spill.pending",
    "eventlog.spill.bytes",
    "eventlog.spill.oldest-age-seconds",
];

/// A snapshot of what a logger counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Events that entered the main queue.
    pub events_queued: u64,
    /// Events that were delivered without touching the disk.
    pub events_sent: u64,
    /// Events that were lost.
    pub events_failed: u64,
    /// Events that were written to the spill.
    pub events_spilled: u64,
    /// Events that were delivered from the spill.
    pub events_replayed: u64,
    /// Events that were logged while logging was switched off.
    pub events_ignored: u64,
    /// Lines that could not be read and were set aside.
    pub events_corrupt: u64,
    /// Events that the API refused for good.
    pub events_rejected: u64,
    /// Losses that did not reach the callback, because too many waited for it.
    pub events_unreported: u64,
    /// Lines on disk that wait for replay.
    pub spill_pending: u64,
    /// The bytes of those lines.
    pub spill_bytes: u64,
    /// Events in the main queue now.
    pub queue_depth: usize,
    /// Whether the breaker is open.
    pub is_circuit_open: bool,
}

impl Metrics {
    pub(crate) fn of(state: &LoggerState) -> Self {
        Self {
            spill_pending: state.backlog,
            spill_bytes: state.backlog_bytes,
            queue_depth: state.queue.len(),
            is_circuit_open: state.breaker.state() == BreakerState::Open,
            ..state.counters
        }
    }
}

/// Brings the gauges up to date.
pub(crate) fn gauges(engine: &Engine) {
    if !engine.config.metrics {
        return;
    }
    let now_ms = engine.clock.now_ms();
    let values = {
        let mut state = engine.state();
        let oldest_ms = (state.backlog > 0)
            .then(|| oldest_ms(&state.books().tallies(&Place::Spilled)))
            .flatten();
        let metrics = Metrics::of(&state);
        [
            metrics.events_queued,
            metrics.events_sent,
            metrics.events_failed,
            metrics.events_spilled,
            metrics.events_replayed,
            metrics.queue_depth as u64,
            u64::from(metrics.is_circuit_open),
            metrics.events_corrupt,
            metrics.events_rejected,
            metrics.events_unreported,
            metrics.spill_pending,
            metrics.spill_bytes,
            oldest_ms.map_or(0, |oldest| now_ms.saturating_sub(oldest) / 1_000),
        ]
    };
    for (name, value) in GAUGES.into_iter().zip(values) {
        #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
        metrics::gauge!(name).set(value as f64);
    }
}

/// When the oldest event was born that is on disk, as far as the books tell it. It is known to the minute, for
/// old ones to the hour or the day.
fn oldest_ms(spilled: &BTreeMap<Bucket, Tally>) -> Option<u64> {
    let of = |(bucket, tally): (&Bucket, &Tally)| match bucket {
        // An id of somebody else may not tell when it was born.
        Bucket::Minute(0) | Bucket::Hour(0) | Bucket::Day(0) | Bucket::Offsets { .. } => None,
        _ if tally.count <= 0 => None,
        Bucket::Minute(minute) => Some(minute * 60_000),
        Bucket::Hour(hour) => Some(hour * 3_600_000),
        Bucket::Day(day) => Some(day * 86_400_000),
    };
    spilled.iter().filter_map(of).min()
}

/// The last line of a logger.
pub(crate) fn stopped(report: &LoggerReport) {
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
        unreported = report.unreported,
        "event logger stopped"
    );
}
