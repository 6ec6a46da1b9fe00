//! How a logger is set up.

#[cfg(feature = "yaml")]
mod yaml;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tidegate_core::Backoff;
use tidegate_core::breaker::{Rule, Trip};

use crate::event::Defaults;
use crate::setters::setters;

/// How an event is handled if there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFull {
    /// It is refused and reported: nobody ever waits.
    #[default]
    DropNewest,
    /// The caller waits until there is room.
    Block,
}

/// When spilled events are synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    pub(crate) base_url: Option<String>,
    pub(crate) metrics: bool,
    pub(crate) defaults: Defaults,
    pub(crate) options: AsyncOptions,
}

/// The section `eventlog.async`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct AsyncOptions {
    #[serde(rename = "enabled")]
    pub(crate) is_background: bool,
    pub(crate) queue_capacity: usize,
    pub(crate) max_retries: u64,
    #[serde(rename = "base-retry-delay-ms", deserialize_with = "millis")]
    base_retry_delay: Duration,
    #[serde(rename = "max-retry-delay-ms", deserialize_with = "millis")]
    max_retry_delay: Duration,
    circuit_breaker_threshold: u64,
    #[serde(rename = "circuit-breaker-reset-ms", deserialize_with = "millis")]
    circuit_breaker_reset: Duration,
    pub(crate) spillover_path: Option<PathBuf>,
    #[serde(rename = "replay-interval-ms", deserialize_with = "millis")]
    pub(crate) replay_interval: Duration,
    pub(crate) max_spillover_events: u64,
    #[serde(rename = "max-spillover-size-mb")]
    pub(crate) max_spillover_bytes: u64,
    pub(crate) batch_size: usize,
    pub(crate) sender_threads: usize,
    #[serde(rename = "max-batch-wait-ms", deserialize_with = "millis")]
    pub(crate) max_batch_wait: Duration,
    pub(crate) on_full: OnFull,
    #[serde(deserialize_with = "millis")]
    pub(crate) shutdown_timeout: Duration,
    pub(crate) sync: SyncMode,
}

/// A section gives time spans in milliseconds.
fn millis<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
    u64::deserialize(value).map(Duration::from_millis)
}

impl AsyncOptions {
    /// The waits between retries.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::exponential(self.base_retry_delay, 2.0, self.max_retry_delay).with_jitter(0.125)
    }

    /// When the breaker opens, and for how long.
    pub(crate) fn breaker_rule(&self) -> Rule {
        Rule {
            trip: Trip::InARow {
                failures: u32::try_from(self.circuit_breaker_threshold).unwrap_or(u32::MAX),
            },
            open_for: self.circuit_breaker_reset,
            probes: 1,
        }
    }
}

impl Default for AsyncOptions {
    fn default() -> Self {
        Self {
            is_background: true,
            queue_capacity: 10_000,
            max_retries: 3,
            base_retry_delay: Duration::from_secs(1),
            max_retry_delay: Duration::from_secs(30),
            circuit_breaker_threshold: 5,
            circuit_breaker_reset: Duration::from_secs(30),
            spillover_path: None,
            replay_interval: Duration::from_secs(10),
            max_spillover_events: 10_000,
            max_spillover_bytes: 50 * 1024 * 1024,
            batch_size: 50,
            sender_threads: 1,
            max_batch_wait: Duration::from_millis(100),
            on_full: OnFull::default(),
            shutdown_timeout: Duration::from_secs(10),
            sync: SyncMode::default(),
        }
    }
}

impl LoggerConfig {
    /// Starts from the documented defaults.
    #[must_use]
    pub fn builder() -> LoggerConfigBuilder {
        LoggerConfigBuilder {
            config: Self {
                enabled: true,
                base_url: None,
                metrics: true,
                defaults: Defaults::default(),
                options: AsyncOptions::default(),
            },
            problems: BTreeMap::new(),
        }
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
#[error("the logger cannot be set up: {}", .problems.join("; "))]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    /// The problems, each with the name of its field.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// Sets up a [`LoggerConfig`]. Numbers are as they stand in the file, so that a wrong one gets the
/// same answer here and there.
#[derive(Debug, Clone)]
pub struct LoggerConfigBuilder {
    config: LoggerConfig,
    /// Values that cannot be used, by their keys.
    problems: BTreeMap<&'static str, String>,
}

impl LoggerConfigBuilder {
    setters! {
        /// Whether anything is logged at all; when not, logging is a counted no-op.
        enabled(value: bool) |it| it.config.enabled = value;
        /// Events that fit the main queue.
        queue_capacity(value: i64)
            |it| it.config.options.queue_capacity = it.at_least("queue-capacity", value, 1);
        /// Retries after the first send.
        max_retries(value: i64)
            |it| it.config.options.max_retries = it.at_least("max-retries", value, 0);
        /// The wait before the first retry.
        base_retry_delay_ms(value: i64)
            |it| it.config.options.base_retry_delay = it.ms("base-retry-delay-ms", value, 0);
        /// The longest wait before a retry.
        max_retry_delay_ms(value: i64)
            |it| it.config.options.max_retry_delay = it.ms("max-retry-delay-ms", value, 0);
        /// Failed requests in a row that open the breaker.
        circuit_breaker_threshold(value: i64) |it| it.config.options.circuit_breaker_threshold =
            it.at_least("circuit-breaker-threshold", value, 1);
        /// How long the breaker stays open before a probe.
        circuit_breaker_reset_ms(value: i64) |it| it.config.options.circuit_breaker_reset =
            it.ms("circuit-breaker-reset-ms", value, 1);
        /// How often replay looks for work; at least a second.
        replay_interval_ms(value: i64)
            |it| it.config.options.replay_interval = it.ms("replay-interval-ms", value, 1_000);
        /// Events that fit the active spill file.
        max_spillover_events(value: i64) |it| it.config.options.max_spillover_events =
            it.at_least("max-spillover-events", value, 1);
        /// Bytes that fit the active spill file.
        max_spillover_size_bytes(value: i64) |it| it.config.options.max_spillover_bytes =
            it.at_least("max-spillover-size", value, 1);
        /// Events per request.
        batch_size(value: i64)
            |it| it.config.options.batch_size = it.at_least("batch-size", value, 1);
        /// Requests at the same time.
        sender_threads(value: i64)
            |it| it.config.options.sender_threads = it.at_least("sender-threads", value, 1);
        /// How long a sender waits for a first event before it looks around.
        max_batch_wait_ms(value: i64)
            |it| it.config.options.max_batch_wait = it.ms("max-batch-wait-ms", value, 0);
        /// The behavior when there is no room.
        on_full(value: OnFull) |it| it.config.options.on_full = value;
        /// How long stopping may take.
        shutdown_timeout(value: Duration) |it| it.config.options.shutdown_timeout = value;
        /// When spilled events are synced.
        sync(value: SyncMode) |it| it.config.options.sync = value;
        /// Whether the gauges are kept up to date.
        metrics(value: bool) |it| it.config.metrics = value;
        /// Values for fields that an event lacks.
        defaults(value: Defaults) |it| it.config.defaults = value;
        /// Whether events are sent in the background; when not, on the task that logs.
        asynchronous(value: bool) |it| it.config.options.is_background = value;
        /// Where the Event Log API is.
        base_url(url: impl Into<String>) |it| it.config.base_url = Some(url.into());
        /// The directory for spilled events; without one nothing is spilled.
        spillover_path(path: impl Into<PathBuf>)
            |it| it.config.options.spillover_path = Some(path.into());
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All values that cannot be, each with its name.
    pub fn build(mut self) -> Result<LoggerConfig, ConfigError> {
        let options = &self.config.options;
        let (base, max) = (options.base_retry_delay, options.max_retry_delay);
        if base > max {
            let (base, max) = (base.as_millis(), max.as_millis());
            let message =
                format!("is {base}, and must be at most max-retry-delay-ms, which is {max}");
            self.problems
                .entry("base-retry-delay-ms")
                .or_insert(message);
        }
        if self.problems.is_empty() {
            return Ok(self.config);
        }
        let problems = self.problems.iter();
        let problems = problems
            .map(|(key, message)| format!("{key} {message}"))
            .collect();
        Err(ConfigError { problems })
    }

    /// The value, which is a problem where it is below `least`.
    fn at_least<T: TryFrom<i64> + Default>(
        &mut self,
        key: &'static str,
        value: i64,
        least: i64,
    ) -> T {
        self.problems.remove(key);
        let read = T::try_from(value);
        if value < least {
            let message = format!("is {value}, and must be at least {least}");
            self.problems.insert(key, message);
        } else if read.is_err() {
            let message = format!("is {value}, which is too large for this machine");
            self.problems.insert(key, message);
        }
        read.unwrap_or_default()
    }

    fn ms(&mut self, key: &'static str, value: i64, least: i64) -> Duration {
        Duration::from_millis(self.at_least(key, value, least))
    }
}
