//! The settings of the demo, and how long its parts take.

use std::time::Duration;

use tidegate_logger::{LoggerConfig, LoggerConfigBuilder};

const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// How long everything takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutagePlan {
    /// `circuit-breaker-reset-ms`.
    pub(super) breaker_reset: Duration,
    /// `replay-interval-ms`.
    pub(super) replay_interval: Duration,
    /// Guests before the outage.
    pub(super) guests: usize,
    /// The wait between two requests before the outage, and within it.
    pub(super) pace: Duration,
    pub(super) rush_pace: Duration,
    /// How long the API stays away after the last request.
    pub(super) away: Duration,
    /// A moment to look at the end of a phase.
    pub(super) rest: Duration,
    /// Whether the API is killed, and the seed of the moment.
    pub(crate) kill: Option<u64>,
}

impl OutagePlan {
    /// The documented settings: about a minute.
    pub(crate) fn usual() -> Self {
        Self {
            breaker_reset: Duration::from_secs(30),
            replay_interval: Duration::from_secs(10),
            guests: 8,
            pace: Duration::from_millis(180),
            rush_pace: Duration::from_millis(120),
            away: Duration::from_secs(8),
            rest: Duration::from_secs(1),
            kill: None,
        }
    }

    /// A few seconds.
    pub(crate) fn fast() -> Self {
        let second = Duration::from_secs(1);
        Self {
            breaker_reset: second,
            replay_interval: second,
            guests: 3,
            pace: Duration::from_millis(30),
            rush_pace: Duration::from_millis(30),
            away: Duration::from_millis(300),
            rest: Duration::from_millis(50),
            kill: None,
        }
    }

    pub(super) fn logger(&self) -> LoggerConfigBuilder {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        LoggerConfig::builder()
            .circuit_breaker_reset_ms(ms(self.breaker_reset))
            .replay_interval_ms(ms(self.replay_interval))
            .shutdown_timeout(SHUTDOWN_LIMIT)
    }

    /// A replay needs a breaker that lets it through, and its turn; twice that is enough.
    pub(super) fn drain_limit(&self) -> Duration {
        2 * (self.breaker_reset + self.replay_interval) + super::LIMIT
    }
}
