//! Every metric of the connector.

use std::time::Duration;

use metrics::{Histogram, describe_counter, describe_gauge, describe_histogram};
use tidegate_core::breaker::BreakerState;
use tidegate_core::dead_letter::Reason;
use tidegate_core::{Code, Partition, TierIndex, Topic};

use crate::lanes::Work;
use crate::lifecycle::ContainerState;
use crate::options::ListenerType;

/// Names that dashboards depend on; Prometheus shows them with underscores.
pub mod names {
    /// Records handled.
    pub const PROCESSED: &str = "eventbus.records.processed";
    /// Failed attempts, by the code of the failure.
    pub const FAILED: &str = "eventbus.records.failed";
    /// Dead letters.
    pub const DLQ: &str = "eventbus.records.dlq";
    /// Attempts that a delivery took.
    pub const RETRIES: &str = "eventbus.retry.count";
    /// Time of one call.
    pub const DURATION: &str = "eventbus.processing.duration";
    /// Records of a batch.
    pub const BATCH: &str = "eventbus.batch.size";
    /// The breaker: 0 closed, 1 open, 2 half-open.
    pub const CIRCUIT: &str = "eventbus.circuit.state";
    /// Records behind the end of a partition.
    pub const LAG: &str = "eventbus.consumer.lag";
    /// The state: 0 created, 1 running, 2 paused, 3 stopped, 4 destroyed.
    pub const STATE: &str = "eventbus.container.state";
    /// Records in the dead letter topic.
    pub const DLT_DEPTH: &str = "eventbus.dlt.depth";
    /// Records waiting in a tier.
    pub const TIER_DEPTH: &str = "eventbus.retry.tier.depth";
    /// Records parked in the store.
    pub const PARKED: &str = "eventbus.parked.depth";
    /// How often a batch took more than its share of the poll interval.
    pub const SAFETY: &str = "eventbus.poll.interval.safety.triggered";
    /// Commit texts that were not ours, or not of this offset.
    pub const MARKS_IGNORED: &str = "eventbus.commit.metadata.ignored";
    /// Commits that failed.
    pub const COMMIT_FAILURES: &str = "eventbus.commit.failures";
}

/// Gives the metrics their help texts.
pub fn describe() {
    describe_counter!(names::PROCESSED, "Records that the handler handled.");
    describe_counter!(
        names::FAILED,
        "Attempts that failed, by the code of the failure."
    );
    describe_counter!(names::DLQ, "Records that were given up on.");
    describe_histogram!(names::RETRIES, "Attempts that a delivery took.");
    describe_histogram!(names::DURATION, "Time of one call of the handler.");
    describe_histogram!(names::BATCH, "Records taken at once.");
    describe_gauge!(
        names::CIRCUIT,
        "The breaker: 0 closed, 1 open, 2 half-open."
    );
    describe_gauge!(names::LAG, "Records behind the end of the partition.");
    describe_gauge!(
        names::STATE,
        "The state: 0 created, 1 running, 2 paused, 3 stopped, 4 destroyed."
    );
    describe_gauge!(names::DLT_DEPTH, "Records in the dead letter topic.");
    describe_gauge!(names::TIER_DEPTH, "Records that wait in a tier.");
    describe_gauge!(
        names::PARKED,
        "Records of a partition that are parked in the store."
    );
    describe_counter!(
        names::SAFETY,
        "Batches that took more than 70 % of the poll interval."
    );
    describe_counter!(
        names::MARKS_IGNORED,
        "Commit texts that said nothing about settled records."
    );
    describe_counter!(
        names::COMMIT_FAILURES,
        "Commits that failed, by the code of the failure."
    );
}

pub(crate) fn processed(binding: &str, topic: &Topic, partition: Partition, count: u64) {
    let labels = [
        ("binding", binding.to_owned()),
        ("topic", topic.to_string()),
        ("partition", partition.to_string()),
    ];
    metrics::counter!(names::PROCESSED, &labels).increment(count);
}

pub(crate) fn failed(binding: &str, topic: &Topic, code: &Code) {
    let labels = [
        ("binding", binding.to_owned()),
        ("topic", topic.to_string()),
        ("exception", code.to_string()),
    ];
    metrics::counter!(names::FAILED, &labels).increment(1);
}

pub(crate) fn dead_lettered(binding: &str, topic: &Topic, reason: Reason) {
    let labels = [
        ("binding", binding.to_owned()),
        ("topic", topic.to_string()),
        ("reason", reason.as_str().to_owned()),
    ];
    metrics::counter!(names::DLQ, &labels).increment(1);
}

fn attempts_of(binding: &str, tier: TierIndex) -> Histogram {
    let labels = [("binding", binding.to_owned()), ("tier", tier.to_string())];
    metrics::histogram!(names::RETRIES, &labels)
}

pub(crate) fn attempts(binding: &str, tier: TierIndex, attempts: u32) {
    attempts_of(binding, tier).record(f64::from(attempts));
}

/// The metrics of calls, which are looked up once for all runs of a consumer.
pub(crate) struct RunTelemetry {
    tier: TierIndex,
    attempts: Histogram,
    duration: Histogram,
}

impl RunTelemetry {
    pub(crate) fn new(binding: &str, listener: ListenerType, tier: TierIndex) -> Self {
        let labels = [
            ("binding", binding.to_owned()),
            ("listenerType", listener.as_str().to_owned()),
        ];
        Self {
            tier,
            attempts: attempts_of(binding, tier),
            duration: metrics::histogram!(names::DURATION, &labels),
        }
    }

    pub(crate) fn called(&self, took: Duration) {
        self.duration.record(took.as_secs_f64());
    }

    /// A delivery has ended with this attempt.
    pub(crate) fn attempts(&self, binding: &str, work: &Work) {
        let tier = work.record.tier();
        match tier == self.tier {
            true => self.attempts.record(f64::from(work.attempt)),
            // A row of the store.
            false => attempts(binding, tier, work.attempt),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn batch(binding: &str, records: usize) {
    metrics::histogram!(names::BATCH, "binding" => binding.to_owned()).record(records as f64);
}

pub(crate) fn breaker(binding: &str, state: BreakerState) {
    let number = match state {
        BreakerState::Closed => 0.0,
        BreakerState::Open => 1.0,
        BreakerState::HalfOpen => 2.0,
    };
    metrics::gauge!(names::CIRCUIT, "binding" => binding.to_owned()).set(number);
}

pub(crate) fn state(binding: &str, state: ContainerState) {
    let number = match state {
        ContainerState::Created => 0.0,
        ContainerState::Running => 1.0,
        ContainerState::Paused => 2.0,
        ContainerState::Stopped => 3.0,
        ContainerState::Destroyed => 4.0,
    };
    metrics::gauge!(names::STATE, "binding" => binding.to_owned()).set(number);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn lag(binding: &str, partition: Partition, records: u64) {
    let labels = [
        ("binding", binding.to_owned()),
        ("partition", partition.to_string()),
    ];
    metrics::gauge!(names::LAG, &labels).set(records as f64);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn dlt_depth(binding: &str, records: u64) {
    metrics::gauge!(names::DLT_DEPTH, "binding" => binding.to_owned()).set(records as f64);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn tier_depth(binding: &str, tier: TierIndex, records: u64) {
    let labels = [("binding", binding.to_owned()), ("tier", tier.to_string())];
    metrics::gauge!(names::TIER_DEPTH, &labels).set(records as f64);
}

#[expect(clippy::cast_precision_loss, reason = "gauges are approximate")]
pub(crate) fn parked(binding: &str, partition: Partition, records: usize) {
    let labels = [
        ("binding", binding.to_owned()),
        ("partition", partition.to_string()),
    ];
    metrics::gauge!(names::PARKED, &labels).set(records as f64);
}

pub(crate) fn safety(binding: &str) {
    metrics::counter!(names::SAFETY, "binding" => binding.to_owned()).increment(1);
}

pub(crate) fn marks_ignored(binding: &str) {
    metrics::counter!(names::MARKS_IGNORED, "binding" => binding.to_owned()).increment(1);
}

pub(crate) fn commit_failed(binding: &str, code: &Code) {
    let labels = [
        ("binding", binding.to_owned()),
        ("exception", code.to_string()),
    ];
    metrics::counter!(names::COMMIT_FAILURES, &labels).increment(1);
}
