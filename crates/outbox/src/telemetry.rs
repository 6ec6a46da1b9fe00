//! Every metric of a relay. Their names begin with `metrics-prefix`.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::OutboxOptions;
use crate::port::OutboxStats;

/// The ends of the names, which dashboards depend on.
pub mod names {
    /// Attempts that failed.
    pub const FAILURES: &str = "publish_failures_total";
    /// Rows that were published.
    pub const SUCCESSES: &str = "publish_success_total";
    /// Rows of a batch.
    pub const BATCH_SIZE: &str = "batch_size";
    /// Rows that wait.
    pub const BACKLOG: &str = "backlog";
    /// Age of the oldest row that waits.
    pub const OLDEST: &str = "oldest_age_seconds";
    /// Rows that are being published.
    pub const IN_FLIGHT: &str = "in_flight";
    /// Dead letters that were written.
    pub const DLQ: &str = "dlq_total";
    /// Clean-ups of old rows that failed.
    pub const CLEANUP_FAILURES: &str = "cleanup_failures_total";
    /// Rows that were refused while later ones of their keys were taken.
    pub const OVERTAKEN: &str = "overtaken_total";
}

/// The metrics of one relay.
#[derive(Debug, Clone)]
pub(crate) struct RelayMetrics {
    prefix: String,
    component: String,
}

impl RelayMetrics {
    pub(crate) fn new(options: &OutboxOptions) -> Self {
        Self {
            prefix: options.metrics_prefix.clone(),
            component: options.component(),
        }
    }

    fn name(&self, end: &str) -> String {
        format!("{}_{end}", self.prefix)
    }

    /// Gives the metrics their help texts.
    pub(crate) fn describe(&self) {
        describe_counter!(
            self.name(names::FAILURES),
            "Attempts to publish a row that failed."
        );
        describe_counter!(self.name(names::SUCCESSES), "Rows that were published.");
        describe_histogram!(
            self.name(names::BATCH_SIZE),
            "Rows that were claimed at once."
        );
        describe_gauge!(
            self.name(names::BACKLOG),
            "Rows that are neither sent nor dead."
        );
        describe_gauge!(
            self.name(names::OLDEST),
            "Age of the oldest row of the backlog."
        );
        describe_gauge!(
            self.name(names::IN_FLIGHT),
            "Rows that relays are publishing."
        );
        describe_counter!(self.name(names::DLQ), "Rows that were given up on.");
        describe_counter!(
            self.name(names::CLEANUP_FAILURES),
            "Clean-ups of old rows that failed."
        );
        describe_counter!(
            self.name(names::OVERTAKEN),
            "Rows that the broker refused while it took later ones of their keys."
        );
        // A rate needs a first value.
        for end in [
            names::FAILURES,
            names::SUCCESSES,
            names::DLQ,
            names::CLEANUP_FAILURES,
            names::OVERTAKEN,
        ] {
            self.count(end, 0);
        }
    }

    fn count(&self, end: &str, by: u64) {
        counter!(self.name(end), "component" => self.component.clone()).increment(by);
    }

    /// Counts a batch: its rows, those that were published, failed, and given up on.
    #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
    pub(crate) fn batch(&self, rows: usize, sent: u64, failed: u64, dead: u64) {
        let size = histogram!(self.name(names::BATCH_SIZE), "component" => self.component.clone());
        size.record(rows as f64);
        self.count(names::SUCCESSES, sent);
        self.count(names::FAILURES, failed);
        self.count(names::DLQ, dead);
    }

    /// Counts rows that later ones of their keys went before.
    pub(crate) fn overtaken(&self, rows: usize) {
        if rows > 0 {
            self.count(names::OVERTAKEN, rows as u64);
        }
    }

    /// Counts a clean-up that failed.
    pub(crate) fn clean_failed(&self) {
        self.count(names::CLEANUP_FAILURES, 1);
    }

    /// Shows the numbers of the table.
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    pub(crate) fn show(&self, stats: &OutboxStats) {
        let set = |end, value: f64| {
            gauge!(self.name(end), "component" => self.component.clone()).set(value);
        };
        set(names::BACKLOG, (stats.pending + stats.claimed) as f64);
        set(
            names::OLDEST,
            stats.oldest_age_ms.unwrap_or(0) as f64 / 1_000.0,
        );
        set(names::IN_FLIGHT, stats.claimed as f64);
    }
}
