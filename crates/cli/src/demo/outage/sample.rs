//! The numbers of one moment of the demo, and what follows from many of them.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::Account;
use tidegate_logger::{Logger, Metrics};

/// The span over which rates are taken.
const RATE_SPAN: Duration = Duration::from_secs(1);
/// The columns of the traffic, one for each span.
const TRAFFIC_SPANS: usize = 30;

/// The numbers of one moment: of both loggers together, where there are two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutageSample {
    pub(crate) at: Duration,
    pub(crate) is_api_up: bool,
    pub(crate) is_breaker_open: bool,
    pub(crate) accepted: i64,
    pub(crate) delivered: i64,
    /// Events that wait on disk.
    pub(crate) on_disk: i64,
    /// Events in memory: in the queue, being sent, or waiting for a retry.
    pub(crate) in_memory: i64,
    pub(crate) lost: i64,
    /// Events in the main queue.
    pub(crate) queue_depth: usize,
    /// The bytes of the events that wait on disk.
    pub(crate) spill_bytes: u64,
    /// Events that were delivered from disk so far.
    pub(crate) replayed: u64,
}

impl OutageSample {
    /// Adds the numbers of a logger.
    pub(super) fn add(&mut self, logger: &Logger) {
        let (account, metrics) = (logger.account(), logger.metrics());
        self.accepted += account.accepted;
        self.delivered += account.delivered;
        self.on_disk += account.spilled;
        self.in_memory += in_memory(&account);
        self.lost += account.lost.total();
        self.is_breaker_open |= metrics.is_circuit_open;
        self.queue_depth += metrics.queue_depth;
        self.spill_bytes += metrics.spill_bytes;
        self.replayed += metrics.events_replayed;
    }

    /// Whether no event is on its way any more.
    pub(super) fn is_at_rest(&self) -> bool {
        self.on_disk + self.in_memory == 0
    }
}

pub(super) fn in_memory(account: &Account) -> i64 {
    account.queued + account.in_flight + account.retrying
}

/// One look at the demo, to be shown.
pub(crate) struct OutageFrame<'a> {
    pub(crate) phase: &'static str,
    /// The number of the phase, counted from 1.
    pub(crate) number: usize,
    pub(crate) phases: usize,
    pub(crate) sample: &'a OutageSample,
    /// Events that were accepted in each of the last seconds, the newest last.
    pub(crate) traffic: Vec<i64>,
    /// Events that were delivered from disk in the last second.
    pub(crate) replay_rate: u64,
}

/// The traffic up to the last sample.
pub(super) fn traffic(samples: &[OutageSample]) -> Vec<i64> {
    let Some(last) = samples.last() else {
        return Vec::new();
    };
    let mut columns = Vec::new();
    let (mut until, mut later) = (last.at, last.accepted);
    while columns.len() < TRAFFIC_SPANS && until > Duration::ZERO {
        until = until.saturating_sub(RATE_SPAN);
        let earlier = value_at(samples, until, |sample| sample.accepted);
        columns.push(later - earlier);
        later = earlier;
    }
    columns.reverse();
    columns
}

/// Events that were delivered from disk in the last second.
pub(super) fn replay_rate(samples: &[OutageSample]) -> u64 {
    let Some(last) = samples.last() else {
        return 0;
    };
    let before = last.at.saturating_sub(RATE_SPAN);
    last.replayed - value_at(samples, before, |sample| sample.replayed)
}

/// The value at this moment: that of the last sample up to it.
fn value_at<T: Default>(
    samples: &[OutageSample],
    at: Duration,
    value: impl Fn(&OutageSample) -> T,
) -> T {
    let later = samples.partition_point(|sample| sample.at <= at);
    let found = later.checked_sub(1).and_then(|index| samples.get(index));
    found.map(value).unwrap_or_default()
}

/// The documented counters, of one logger or of several together.
#[derive(Debug, Default, Serialize)]
pub(super) struct OutageCounters {
    pub(super) queued: u64,
    pub(super) sent: u64,
    pub(super) failed: u64,
    pub(super) spilled: u64,
    pub(super) replayed: u64,
    pub(super) queue_depth: usize,
    pub(super) spill_pending: u64,
    pub(super) spill_bytes: u64,
}

impl OutageCounters {
    /// Adds the counters of a logger.
    pub(super) fn add(&mut self, metrics: &Metrics) {
        self.queued += metrics.events_queued;
        self.sent += metrics.events_sent;
        self.failed += metrics.events_failed;
        self.spilled += metrics.events_spilled;
        self.replayed += metrics.events_replayed;
        self.queue_depth += metrics.queue_depth;
        self.spill_pending += metrics.spill_pending;
        self.spill_bytes += metrics.spill_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, accepted: i64, replayed: u64) -> OutageSample {
        OutageSample {
            at: Duration::from_millis(ms),
            accepted,
            replayed,
            ..OutageSample::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let samples = [
            sample(0, 0, 0),
            sample(600, 10, 0),
            sample(1_500, 10, 3),
            sample(2_400, 40, 7),
        ];
        // Up to 400 ms, 1.4 s and 2.4 s.
        assert_eq!(traffic(&samples), [0, 10, 30]);
        assert_eq!(replay_rate(&samples), 7);
        assert_eq!(replay_rate(&samples[..3]), 3);
        assert_eq!((traffic(&[]), replay_rate(&[])), (Vec::new(), 0));
    }
}
