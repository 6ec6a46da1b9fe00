//! The options of the queue in the section `queue`.
//!
//! An application that has handlers of its own reads the same `tidegate.yaml` as the binary does, and
//! gets the same options from it.

use std::time::Duration;

use serde::Deserialize;
use tidegate_config::{Config, Problem, millis};
use tidegate_core::{Backoff, Retry};

use crate::{DispatcherOptions, OnFatal, Policy, ProjectorOptions, Unhandled, UpkeepOptions};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawQueue {
    #[serde(with = "millis")]
    poll_delay_ms: Duration,
    batch_size: u32,
    concurrency: usize,
    #[serde(with = "millis")]
    abandonment_timeout: Duration,
    #[serde(with = "millis")]
    handler_timeout: Duration,
    #[serde(with = "millis")]
    rescue_interval: Duration,
    #[serde(with = "millis")]
    cleanup_interval: Duration,
    #[serde(default, deserialize_with = "millis::optional")]
    event_log_retention: Option<Duration>,
    max_attempts: Option<u32>,
    on_fatal: OnFatal,
    unhandled: Unhandled,
    retry: RawRetry,
    projection: RawProjection,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawRetry {
    #[serde(with = "millis")]
    initial_ms: Duration,
    #[serde(with = "millis")]
    max_ms: Duration,
    multiplier: f64,
    jitter: f64,
}

#[derive(Deserialize)]
struct RawProjection {
    #[serde(with = "millis")]
    lease: Duration,
    #[serde(with = "millis")]
    timeout: Duration,
}

fn read(config: &Config) -> Result<RawQueue, Box<Problem>> {
    config.section("queue")
}

impl DispatcherOptions {
    /// The section `queue`; a dispatcher has `shutdown-timeout` to stop.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// use tidegate_queue::DispatcherOptions;
    /// let config = load(&Inputs::of_text("tidegate.yaml", "queue: {batch-size: 50}\n")).config;
    /// assert_eq!(DispatcherOptions::from_config(&config).unwrap().batch_size, 50);
    /// ```
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
        let raw = read(config)?;
        let RawRetry {
            initial_ms,
            max_ms,
            multiplier,
            jitter,
        } = raw.retry;
        let backoff = Backoff::exponential(initial_ms, multiplier, max_ms);
        Ok(Self {
            poll_delay: raw.poll_delay_ms,
            batch_size: raw.batch_size,
            concurrency: raw.concurrency,
            lease: raw.abandonment_timeout,
            handler_timeout: raw.handler_timeout,
            rescue_interval: raw.rescue_interval,
            stop_timeout: config.duration("shutdown-timeout").unwrap_or_default(),
            cleanup_interval: raw.cleanup_interval,
            retention: raw.event_log_retention,
            policy: Policy {
                retry: Retry {
                    attempts: raw.max_attempts,
                    backoff: backoff.with_jitter(jitter),
                },
                on_fatal: raw.on_fatal,
                unhandled: raw.unhandled,
            },
        })
    }
}

impl ProjectorOptions {
    /// The section `queue`.
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
        let raw = read(config)?;
        Ok(Self {
            poll_delay: raw.poll_delay_ms,
            lease: raw.projection.lease,
            timeout: raw.projection.timeout,
        })
    }
}

impl UpkeepOptions {
    /// The section `queue`.
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
        let raw = read(config)?;
        Ok(Self {
            cleanup_interval: raw.cleanup_interval,
            retention: raw.event_log_retention,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};
    use tidegate_store::StoreOptions;

    use super::*;

    fn of(text: &str) -> Config {
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        loaded.config
    }

    #[test]
    fn an_empty_file_gives_the_defaults_of_the_library() {
        let config = of("");
        let usual = DispatcherOptions::default();
        assert_eq!(
            format!("{:?}", DispatcherOptions::from_config(&config).unwrap()),
            format!("{usual:?}")
        );
        let usual = ProjectorOptions::default();
        assert_eq!(
            format!("{:?}", ProjectorOptions::from_config(&config).unwrap()),
            format!("{usual:?}")
        );
        let usual = UpkeepOptions::default();
        let options = UpkeepOptions::from_config(&config).unwrap();
        assert_eq!(format!("{options:?}"), format!("{usual:?}"));
        let options = StoreOptions::from_config(&config).unwrap();
        assert_eq!(options.url, "sqlite://./data/tidegate.db");
        assert_eq!(options.max_connections, 10);
    }

    #[test]
    fn every_key_of_the_queue_and_the_store_changes_an_option() {
        let shown = |config: &Config| {
            format!(
                "{:?} {:?} {:?}",
                DispatcherOptions::from_config(config).unwrap(),
                ProjectorOptions::from_config(config).unwrap(),
                StoreOptions::from_config(config).unwrap()
            )
        };
        let usual = shown(&of(""));
        let other = |path: &str| match path {
            "store.url" => "postgres://db/orders",
            "queue.on-fatal" => "await-others",
            "queue.unhandled" => "complete",
            "queue.retry.max-ms" => "7000",
            "queue.retry.multiplier" => "3",
            "queue.retry.jitter" => "0.5",
            _ => "7",
        };
        let mut seen = 0;
        for listed in tidegate_config::keys::all() {
            let path = listed.path.as_str();
            if !path.starts_with("queue.") && !path.starts_with("store.") {
                continue;
            }
            let mut inputs = Inputs::of_text("tidegate.yaml", "");
            inputs
                .arguments
                .push((path.to_owned(), other(path).to_owned()));
            let loaded = load(&inputs);
            assert!(loaded.problems.is_empty(), "{path}: {:?}", loaded.problems);
            assert_ne!(shown(&loaded.config), usual, "{path} maps to nothing");
            seen += 1;
        }
        assert!(seen >= 16, "only {seen} keys were seen");
    }

    #[test]
    fn attempts_stand_beside_the_waits() {
        let config = of("queue: {max-attempts: 5}\n");
        assert_eq!(
            DispatcherOptions::from_config(&config)
                .unwrap()
                .policy
                .retry
                .attempts,
            Some(5)
        );
        let text = "queue: {retry: {max-attempts: 5}}\n";
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        let problems = format!("{:?}", loaded.problems);
        assert!(problems.contains("put it under `queue`"), "{problems}");
    }
}
