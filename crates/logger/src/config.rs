//! How a logger is set up.

#[cfg(feature = "yaml")]
mod yaml;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::breaker::{Rule, Trip};
use tidegate_core::{Backoff, Retry};

use crate::event::Defaults;
use crate::setters::setters;

/// How an event is handled if there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    /// It is refused and reported: nobody ever waits.
    #[default]
    DropNewest,
    /// The caller waits until there is room.
    Block,
}

/// When spilled events are synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Each batch, before anything of it is promised.
    #[default]
    Group,
    /// Never: a power cut may take what was spilled. `log_durable` promises only what the
    /// operating system does.
    None,
}

/// A checked configuration. [`LoggerConfig::builder`] makes one, and with the feature `yaml`
/// `LoggerConfig::from_yaml`.
///
/// ```
/// use tidegate_logger::LoggerConfig;
/// let config = LoggerConfig::builder().spillover_path("./spillover").batch_size(100).build()?;
/// let error = LoggerConfig::builder().batch_size(0).sender_threads(0).build().unwrap_err();
/// assert_eq!(error.problems().len(), 2);
/// # Ok::<(), tidegate_logger::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LoggerConfig {
    pub(crate) enabled: bool,
    pub(crate) asynchronous: bool,
    pub(crate) base_url: Option<String>,
    pub(crate) queue_capacity: usize,
    pub(crate) max_retries: u32,
    pub(crate) retry: Retry,
    pub(crate) breaker: Rule,
    pub(crate) spillover_path: Option<PathBuf>,
    pub(crate) replay_interval: Duration,
    pub(crate) max_spillover_events: u64,
    pub(crate) max_spillover_bytes: u64,
    pub(crate) batch_size: usize,
    pub(crate) sender_threads: usize,
    pub(crate) max_batch_wait: Duration,
    pub(crate) on_full: OnFull,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) sync: SyncMode,
    pub(crate) metrics: bool,
    pub(crate) defaults: Defaults,
}

impl LoggerConfig {
    /// Starts from the documented defaults.
    #[must_use]
    pub fn builder() -> LoggerConfigBuilder {
        LoggerConfigBuilder::default()
    }

    /// Where the Event Log API is, if that was said.
    #[must_use]
    pub fn base_url(&self) -> Option<&str> {
        self.base_url.as_deref()
    }

    /// Values for fields that an event lacks.
    #[must_use]
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    pub(crate) fn new(problems: Vec<String>) -> Self {
        Self { problems }
    }

    /// The problems, each with the name of its field.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the logger cannot be set up: {}",
            self.problems.join("; ")
        )
    }
}

/// A value that cannot be used.
#[derive(Debug)]
struct FieldProblem {
    key: &'static str,
    /// The other key of a contradiction.
    #[cfg_attr(
        not(feature = "yaml"),
        expect(dead_code, reason = "only a file has refused keys")
    )]
    other: Option<&'static str>,
    message: String,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.message)
    }
}

/// Sets up a [`LoggerConfig`]. Values are as they stand in the file, so that a wrong one gets the
/// same answer here and there.
#[derive(Debug, Clone)]
pub struct LoggerConfigBuilder {
    enabled: bool,
    asynchronous: bool,
    base_url: Option<String>,
    queue_capacity: i64,
    max_retries: i64,
    base_retry_delay_ms: i64,
    max_retry_delay_ms: i64,
    circuit_breaker_threshold: i64,
    circuit_breaker_reset_ms: i64,
    spillover_path: Option<PathBuf>,
    replay_interval_ms: i64,
    max_spillover_events: i64,
    max_spillover_size_bytes: i64,
    batch_size: i64,
    sender_threads: i64,
    max_batch_wait_ms: i64,
    on_full: OnFull,
    shutdown_timeout: Duration,
    sync: SyncMode,
    metrics: bool,
    defaults: Defaults,
}

impl Default for LoggerConfigBuilder {
    fn default() -> Self {
        Self {
            enabled: true,
            asynchronous: true,
            base_url: None,
            queue_capacity: 10_000,
            max_retries: 3,
            base_retry_delay_ms: 1_000,
            max_retry_delay_ms: 30_000,
            circuit_breaker_threshold: 5,
            circuit_breaker_reset_ms: 30_000,
            spillover_path: None,
            replay_interval_ms: 10_000,
            max_spillover_events: 10_000,
            max_spillover_size_bytes: 50 * 1024 * 1024,
            batch_size: 50,
            sender_threads: 1,
            max_batch_wait_ms: 100,
            on_full: OnFull::default(),
            shutdown_timeout: Duration::from_secs(10),
            sync: SyncMode::default(),
            metrics: true,
            defaults: Defaults::default(),
        }
    }
}

impl LoggerConfigBuilder {
    setters! {
        /// Whether anything is logged at all; when not, logging is a counted no-op.
        enabled(value: bool) |it| it.enabled = value;
        /// Events that fit the main queue.
        queue_capacity(value: i64) |it| it.queue_capacity = value;
        /// Retries after the first send.
        max_retries(value: i64) |it| it.max_retries = value;
        /// The wait before the first retry.
        base_retry_delay_ms(value: i64) |it| it.base_retry_delay_ms = value;
        /// The longest wait before a retry.
        max_retry_delay_ms(value: i64) |it| it.max_retry_delay_ms = value;
        /// Failed requests in a row that open the breaker.
        circuit_breaker_threshold(value: i64) |it| it.circuit_breaker_threshold = value;
        /// How long the breaker stays open before a probe.
        circuit_breaker_reset_ms(value: i64) |it| it.circuit_breaker_reset_ms = value;
        /// How often replay looks for work; at least a second.
        replay_interval_ms(value: i64) |it| it.replay_interval_ms = value;
        /// Events that fit the active spill file.
        max_spillover_events(value: i64) |it| it.max_spillover_events = value;
        /// Bytes that fit the active spill file.
        max_spillover_size_bytes(value: i64) |it| it.max_spillover_size_bytes = value;
        /// Events per request.
        batch_size(value: i64) |it| it.batch_size = value;
        /// Requests at the same time.
        sender_threads(value: i64) |it| it.sender_threads = value;
        /// How long a sender waits for a first event before it looks around.
        max_batch_wait_ms(value: i64) |it| it.max_batch_wait_ms = value;
        /// The behavior when there is no room.
        on_full(value: OnFull) |it| it.on_full = value;
        /// How long stopping may take.
        shutdown_timeout(value: Duration) |it| it.shutdown_timeout = value;
        /// When spilled events are synced.
        sync(value: SyncMode) |it| it.sync = value;
        /// Whether the gauges are kept up to date.
        metrics(value: bool) |it| it.metrics = value;
        /// Values for fields that an event lacks.
        defaults(value: Defaults) |it| it.defaults = value;
        /// Whether events are sent in the background; when not, on the task that logs.
        asynchronous(value: bool) |it| it.asynchronous = value;
        /// Where the Event Log API is.
        base_url(url: impl Into<String>) |it| it.base_url = Some(url.into());
        /// The directory for spilled events; without one nothing is spilled.
        spillover_path(path: impl Into<PathBuf>) |it| it.spillover_path = Some(path.into());
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All values that cannot be, each with its name.
    pub fn build(self) -> Result<LoggerConfig, ConfigError> {
        self.check().map_err(|problems| {
            let problems = problems.iter().map(ToString::to_string);
            ConfigError::new(problems.collect())
        })
    }

    fn check(self) -> Result<LoggerConfig, Vec<FieldProblem>> {
        let mut problems = Vec::new();
        let mut at_least = |key: &'static str, value: i64, least: i64| {
            if value < least {
                problems.push(FieldProblem {
                    key,
                    other: None,
                    message: format!("is {value}, and must be at least {least}"),
                });
            }
            u64::try_from(value.max(least)).unwrap_or(0)
        };
        let queue_capacity = at_least("queue-capacity", self.queue_capacity, 1);
        let max_retries = at_least("max-retries", self.max_retries, 0);
        let base_ms = at_least("base-retry-delay-ms", self.base_retry_delay_ms, 0);
        let max_ms = at_least("max-retry-delay-ms", self.max_retry_delay_ms, 0);
        let threshold = at_least(
            "circuit-breaker-threshold",
            self.circuit_breaker_threshold,
            1,
        );
        let reset_ms = at_least("circuit-breaker-reset-ms", self.circuit_breaker_reset_ms, 1);
        let replay_ms = at_least("replay-interval-ms", self.replay_interval_ms, 1_000);
        let max_spillover_events = at_least("max-spillover-events", self.max_spillover_events, 1);
        let max_spillover_bytes = at_least("max-spillover-size", self.max_spillover_size_bytes, 1);
        let batch_size = at_least("batch-size", self.batch_size, 1);
        let sender_threads = at_least("sender-threads", self.sender_threads, 1);
        let batch_wait_ms = at_least("max-batch-wait-ms", self.max_batch_wait_ms, 0);
        if base_ms > max_ms {
            let other = "max-retry-delay-ms";
            problems.push(FieldProblem {
                key: "base-retry-delay-ms",
                other: Some(other),
                message: format!("is {base_ms}, and must be at most {other}, which is {max_ms}"),
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let ms = Duration::from_millis;
        let backoff = Backoff::exponential(ms(base_ms), 2.0, ms(max_ms)).with_jitter(0.125);
        let max_retries = small(max_retries);
        Ok(LoggerConfig {
            enabled: self.enabled,
            asynchronous: self.asynchronous,
            base_url: self.base_url,
            queue_capacity: size(queue_capacity),
            max_retries,
            retry: Retry {
                attempts: Some(max_retries.saturating_add(1)),
                backoff,
            },
            breaker: Rule {
                trip: Trip::InARow {
                    failures: small(threshold),
                },
                open_for: ms(reset_ms),
                probes: 1,
            },
            spillover_path: self.spillover_path,
            replay_interval: ms(replay_ms),
            max_spillover_events,
            max_spillover_bytes,
            batch_size: size(batch_size),
            sender_threads: size(sender_threads),
            max_batch_wait: ms(batch_wait_ms),
            on_full: self.on_full,
            shutdown_timeout: self.shutdown_timeout,
            sync: self.sync,
            metrics: self.metrics,
            defaults: self.defaults,
        })
    }
}
