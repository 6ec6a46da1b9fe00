//! From the configuration file to the options of the parts.
//!
//! An application that has handlers of its own reads the same `tidegate.yaml` as the binary does,
//! and gets the same options from it.
//!
//! ```
//! use tidegate::config::{Inputs, load};
//! let text = "store: {url: \"sqlite://./orders.db\"}\nqueue: {batch-size: 50}\n";
//! let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
//! assert_eq!(tidegate::wiring::store_options(&config).url, "sqlite://./orders.db");
//! assert_eq!(tidegate::wiring::dispatcher_options(&config).batch_size, 50);
//! ```

use std::time::Duration;

use tidegate_config::Config;
use tidegate_core::{Backoff, Retry};
use tidegate_queue::{DispatcherOptions, OnFatal, Policy, ProjectorOptions, Unhandled};
use tidegate_store::StoreOptions;

/// The database of the section `store`.
#[must_use]
pub fn store_options(config: &Config) -> StoreOptions {
    let url = config.text("store.url");
    let mut options = StoreOptions::new(url.unwrap_or("sqlite://./data/tidegate.db"));
    if let Some(count) = count(config, "store.max-connections") {
        options.max_connections = count;
    }
    let span = |key: &str, usual: Duration| config.duration(key).unwrap_or(usual);
    options.timeout = span("store.timeout", options.timeout);
    options.idle_transaction = span("store.idle-transaction-timeout", options.idle_transaction);
    options
}

/// How a dispatcher works, by the section `queue`; it has `shutdown-timeout` to stop.
#[must_use]
pub fn dispatcher_options(config: &Config) -> DispatcherOptions {
    let usual = DispatcherOptions::default();
    let span = |key: &str, usual: Duration| config.duration(key).unwrap_or(usual);
    let concurrency = count(config, "queue.concurrency").and_then(|n| usize::try_from(n).ok());
    DispatcherOptions {
        poll_delay: span("queue.poll-delay-ms", usual.poll_delay),
        batch_size: count(config, "queue.batch-size").unwrap_or(usual.batch_size),
        concurrency: concurrency.unwrap_or(usual.concurrency),
        lease: span("queue.abandonment-timeout", usual.lease),
        handler_timeout: span("queue.handler-timeout", usual.handler_timeout),
        rescue_interval: span("queue.rescue-interval", usual.rescue_interval),
        stop_timeout: span("shutdown-timeout", usual.stop_timeout),
        cleanup_interval: span("queue.cleanup-interval", usual.cleanup_interval),
        retention: config.duration("queue.event-log-retention"),
        policy: policy(config, usual.policy),
    }
}

/// How projections are run, by the section `queue`.
#[must_use]
pub fn projector_options(config: &Config) -> ProjectorOptions {
    let usual = ProjectorOptions::default();
    let span = |key: &str, usual: Duration| config.duration(key).unwrap_or(usual);
    ProjectorOptions {
        poll_delay: span("queue.poll-delay-ms", usual.poll_delay),
        lease: span("queue.projection.lease", usual.lease),
        timeout: span("queue.projection.timeout", usual.timeout),
    }
}

fn policy(config: &Config, usual: Policy) -> Policy {
    let span = |key: &str, ms: u64| {
        let given = config.duration(key);
        given.unwrap_or(Duration::from_millis(ms))
    };
    let number = |key: &str, usual: f64| config.float(key).unwrap_or(usual);
    let backoff = Backoff::exponential(
        span("queue.retry.initial-ms", 1_000),
        number("queue.retry.multiplier", 2.0),
        span("queue.retry.max-ms", 60_000),
    );
    Policy {
        retry: Retry {
            attempts: count(config, "queue.max-attempts"),
            backoff: backoff.with_jitter(number("queue.retry.jitter", 0.125)),
        },
        on_fatal: match config.text("queue.on-fatal") {
            Some("finalize") => OnFatal::Finalize,
            Some("await-others") => OnFatal::AwaitOthers,
            Some(_) | None => usual.on_fatal,
        },
        unhandled: match config.text("queue.unhandled") {
            Some("keep") => Unhandled::Keep,
            Some("complete") => Unhandled::Complete,
            Some(_) | None => usual.unhandled,
        },
    }
}

fn count(config: &Config, key: &str) -> Option<u32> {
    config.integer(key).and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};

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
            format!("{:?}", dispatcher_options(&config)),
            format!("{usual:?}")
        );
        let usual = ProjectorOptions::default();
        assert_eq!(
            format!("{:?}", projector_options(&config)),
            format!("{usual:?}")
        );
        let options = store_options(&config);
        assert_eq!(options.url, "sqlite://./data/tidegate.db");
        assert_eq!(options.max_connections, 10);
    }

    #[test]
    fn every_key_of_the_queue_and_the_store_changes_an_option() {
        let shown = |config: &Config| {
            format!(
                "{:?} {:?} {:?}",
                dispatcher_options(config),
                projector_options(config),
                store_options(config)
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
        assert_eq!(dispatcher_options(&config).policy.retry.attempts, Some(5));
        let text = "queue: {retry: {max-attempts: 5}}\n";
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        let problems = format!("{:?}", loaded.problems);
        assert!(problems.contains("put it under `queue`"), "{problems}");
    }
}
