//! The metrics of a stage: `<namespace>.<process>.<metric>`.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use tidegate_core::Mutex;
use tidegate_flow::plan::{MetricKind, MetricPlan};

use crate::machine::{MachineCounts, MachineNews};

/// The metrics of one stage.
#[derive(Debug)]
pub(crate) struct Telemetry {
    prefix: String,
    declared: Vec<(String, DeclaredKind)>,
    /// The last counts of each shard.
    seen: Mutex<BTreeMap<u32, (MachineCounts, u64)>>,
    /// How many values each declared metric saw.
    observed: Mutex<BTreeMap<String, u64>>,
    /// Records of committed epochs when the throughput was last told, and when that was.
    throughput: Mutex<(u64, Duration)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeclaredKind {
    Counter,
    Gauge,
    Histogram,
}

impl Telemetry {
    pub(crate) fn new(namespace: &str, process: &str, declared: &[MetricPlan]) -> Self {
        let prefix = format!("{namespace}.{process}.");
        let declared = declared.iter().map(|metric| {
            let kind = match metric.kind {
                MetricKind::Counter | MetricKind::Rate { .. } => DeclaredKind::Counter,
                MetricKind::Gauge => DeclaredKind::Gauge,
                MetricKind::Histogram { .. } => DeclaredKind::Histogram,
            };
            (format!("{prefix}{}", metric.name), kind)
        });
        Self {
            declared: declared.collect(),
            seen: Mutex::default(),
            observed: Mutex::default(),
            throughput: Mutex::default(),
            prefix,
        }
    }

    fn name(&self, metric: &str) -> String {
        format!("{}{metric}", self.prefix)
    }

    /// Gives the metrics their help texts.
    pub(crate) fn describe(&self) {
        let name = |metric| self.name(metric);
        describe_counter!(name("records.in"), "Records of committed epochs.");
        describe_counter!(name("records.out"), "Records that committed epochs wrote.");
        describe_counter!(
            name("records.error"),
            "Records that were given up on, and failures of the stage."
        );
        describe_counter!(
            name("records.lost"),
            "Events that committed epochs lost, by reason."
        );
        describe_histogram!(
            name("processing.latency"),
            Unit::Seconds,
            "Time per record."
        );
        describe_gauge!(name("throughput.records_per_sec"), "Records per second.");
        describe_gauge!(
            name("consumer.lag"),
            "Records behind the end of the inputs."
        );
        describe_gauge!(name("state.size_bytes"), "Bytes of state.");
        describe_histogram!(name("checkpoint.duration_ms"), "Time that a snapshot took.");
        describe_gauge!(name("checkpoint.size_bytes"), "Bytes of the last snapshot.");
        describe_gauge!(
            name("backpressure.active"),
            "1 while records come faster than they leave."
        );
        gauge!(name("backpressure.active")).set(0.0);
    }

    /// Counts of a shard since its start, and values of declared metrics.
    pub(crate) fn news(
        &self,
        shard: u32,
        counts: MachineCounts,
        news: MachineNews,
        state_bytes: u64,
    ) {
        let (before, bytes) = {
            let mut seen = self.seen.lock();
            let before = seen.insert(shard, (counts, state_bytes));
            let bytes: u64 = seen.values().map(|(_, bytes)| bytes).sum();
            (
                before.map_or(MachineCounts::default(), |(counts, _)| counts),
                bytes,
            )
        };
        // After a new start the counts begin at 0 again.
        let more = |now: u64, before: u64| if now < before { now } else { now - before };
        counter!(self.name("records.in")).increment(more(counts.records_in, before.records_in));
        counter!(self.name("records.out")).increment(more(counts.records_out, before.records_out));
        counter!(self.name("records.error"))
            .increment(more(counts.dead_letters, before.dead_letters));
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        gauge!(self.name("state.size_bytes")).set(bytes as f64);
        for (reason, count) in news.losses {
            let reason = reason.to_string();
            counter!(self.name("records.lost"), "reason" => reason).increment(count);
        }
        for (index, value) in news.metrics {
            let Some((name, kind)) = self.declared.get(index) else {
                continue;
            };
            let short = name.strip_prefix(&self.prefix).unwrap_or(name).to_owned();
            *self.observed.lock().entry(short).or_default() += 1;
            let number = value.trim_matches('"').parse::<f64>();
            match (kind, number) {
                (DeclaredKind::Counter, _) => counter!(name.clone()).increment(1),
                (DeclaredKind::Gauge, Ok(number)) => gauge!(name.clone()).set(number),
                (DeclaredKind::Histogram, Ok(number)) => histogram!(name.clone()).record(number),
                (DeclaredKind::Gauge | DeclaredKind::Histogram, Err(_)) => {}
            }
        }
    }

    /// How many values each declared metric saw in epochs that were committed here.
    pub(crate) fn observed(&self) -> BTreeMap<String, u64> {
        self.observed.lock().clone()
    }

    /// Records were handled in so much time.
    pub(crate) fn handled(&self, records: u64, took: Duration) {
        let count = usize::try_from(records).unwrap_or(usize::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a measurement")]
        let each = took.as_secs_f64() / records.max(1) as f64;
        histogram!(self.name("processing.latency")).record_many(each, count);
    }

    /// So much time has passed since the start; as many records are behind the end of the inputs.
    pub(crate) fn progress(&self, now: Duration, lag: Option<u64>) {
        let seen = self.seen.lock();
        let records: u64 = seen.values().map(|(counts, _)| counts.records_in).sum();
        drop(seen);
        let mut last = self.throughput.lock();
        let passed = now.saturating_sub(last.1);
        // After a new start the counts begin at 0 again.
        let more = records.saturating_sub(last.0);
        *last = (records, now);
        drop(last);
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        if passed > Duration::ZERO {
            let rate = more as f64 / passed.as_secs_f64();
            gauge!(self.name("throughput.records_per_sec")).set(rate);
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        if let Some(lag) = lag {
            gauge!(self.name("consumer.lag")).set(lag as f64);
        }
    }

    /// A checkpoint that was taken.
    pub(crate) fn checkpoint(&self, took: Duration, bytes: u64) {
        let took = took.as_secs_f64() * 1_000.0;
        histogram!(self.name("checkpoint.duration_ms")).record(took);
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        gauge!(self.name("checkpoint.size_bytes")).set(bytes as f64);
    }

    /// A failure that ended the stage.
    pub(crate) fn failed(&self, code: &str) {
        counter!(self.name("records.error"), "code" => code.to_owned()).increment(1);
    }
}
