//! The documented YAML.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_config::{Inputs, Part, Problem, load};

use super::{AsyncOptions, ConfigError, LoggerConfig};
use crate::event::{Defaults, Text};

/// The name of the text in messages, as it has none of its own.
const NAME: &str = "yaml";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawEventlog {
    enabled: bool,
    base_url: Option<String>,
    application_id: Option<Text>,
    r#async: AsyncOptions,
    metrics: RawMetrics,
}

#[derive(Deserialize)]
struct RawMetrics {
    enabled: bool,
}

impl LoggerConfig {
    /// Reads the section `eventlog` of a YAML text, as it is documented. It takes keys in kebab, camel or
    /// snake case, `-ms` and `-mb` or units (`10s`, `50MiB`), `${NAME}` and overrides such as
    /// `EVENTLOG_ASYNC_BATCH_SIZE` from `environment`. Other sections are somebody else's and are
    /// left alone, so the file of a whole application can be given.
    ///
    /// ```
    /// use tidegate_logger::LoggerConfig;
    /// let text = "eventlog:\n  base-url: http://127.0.0.1:3000\n  async:\n    batch-sise: 5\n";
    /// let error = LoggerConfig::from_yaml(text, &Default::default()).unwrap_err();
    /// assert!(error.problems()[0].starts_with("yaml:4:5: eventlog.async.batch-sise: "));
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong in the section, each with line and column.
    pub fn from_yaml(
        text: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut inputs = Inputs::of_text(NAME, text);
        inputs.environment.clone_from(environment);
        let loaded = load(&inputs);
        let ours = loaded.problems.iter().filter(|problem| is_ours(problem));
        let problems: Vec<String> = ours.map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        let raw: RawEventlog = loaded.config.section("eventlog").map_err(|problem| {
            let problems = vec![problem.to_string()];
            ConfigError { problems }
        })?;
        let defaults = Defaults {
            application_id: raw.application_id.unwrap_or_default(),
            ..Defaults::default()
        };
        Ok(Self {
            enabled: raw.enabled,
            base_url: raw.base_url,
            metrics: raw.metrics.enabled,
            defaults,
            options: raw.r#async,
        })
    }
}

/// Whether a problem is about our section, or about the text as a whole: one that is no YAML has no
/// sections.
fn is_ours(problem: &Problem) -> bool {
    let is_text = problem.path.is_empty() && problem.file == NAME;
    is_text || problem.parts.contains(&Part::Eventlog)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{OnFull, SyncMode};

    const FULL: &str = include_str!("../../../config/tests/fixtures/eventlog-full.yaml");
    const PET_RESORT: &str =
        include_str!("../../../config/tests/fixtures/eventlog-pet-resort.yaml");

    fn read(text: &str) -> Result<LoggerConfig, ConfigError> {
        LoggerConfig::from_yaml(text, &BTreeMap::new())
    }

    #[test]
    fn the_documented_yaml_gives_the_documented_values() {
        let expect = LoggerConfig::builder()
            .base_url("https://your-eventlog-api.example.com")
            .queue_capacity(10_000)
            .max_retries(3)
            .base_retry_delay_ms(1_000)
            .max_retry_delay_ms(30_000)
            .circuit_breaker_threshold(5)
            .circuit_breaker_reset_ms(30_000)
            .spillover_path("./spillover")
            .replay_interval_ms(10_000)
            .max_spillover_events(10_000)
            .max_spillover_size_bytes(50 * 1024 * 1024)
            .batch_size(50)
            .sender_threads(1)
            .max_batch_wait_ms(100)
            .build()
            .unwrap();
        assert_eq!(read(FULL).unwrap(), expect);
        let mut expect = expect;
        expect.base_url = None;
        assert_eq!(read(PET_RESORT).unwrap(), expect);
        assert_eq!(read("").unwrap(), LoggerConfig::builder().build().unwrap());
    }

    #[test]
    fn every_key_reaches_its_field_in_any_spelling() {
        let text = "
spring: { application: { name: pets } }
eventlog:
  enabled: false
  baseUrl: http://127.0.0.1:3000
  application-id: pet-resort-api
  metrics: { enabled: false }
  async:
    enabled: false
    queue_capacity: 11
    max-retries: 0
    base-retry-delay: 2s
    max-retry-delay-ms: 40000
    circuit-breaker-threshold: 7
    circuit-breaker-reset: 1m
    spillover-path: /var/spool/pets
    replay-interval: 5s
    max-spillover-events: 12
    max-spillover-size: 3MiB
    batch-size: 13
    sender-threads: 2
    max-batch-wait-ms: 9
    on-full: BLOCK
    shutdown-timeout: 3s
    sync: none
";
        let environment = [("EVENTLOG_ASYNC_BATCH_SIZE".to_owned(), "14".to_owned())];
        let config = LoggerConfig::from_yaml(text, &environment.into()).unwrap();
        let expect = LoggerConfig::builder()
            .enabled(false)
            .asynchronous(false)
            .metrics(false)
            .base_url("http://127.0.0.1:3000")
            .queue_capacity(11)
            .max_retries(0)
            .base_retry_delay_ms(2_000)
            .max_retry_delay_ms(40_000)
            .circuit_breaker_threshold(7)
            .circuit_breaker_reset_ms(60_000)
            .spillover_path("/var/spool/pets")
            .replay_interval_ms(5_000)
            .max_spillover_events(12)
            .max_spillover_size_bytes(3 * 1024 * 1024)
            .batch_size(14)
            .sender_threads(2)
            .max_batch_wait_ms(9)
            .on_full(OnFull::Block)
            .shutdown_timeout(Duration::from_secs(3))
            .sync(SyncMode::None)
            .defaults(Defaults {
                application_id: "pet-resort-api".into(),
                ..Defaults::default()
            })
            .build()
            .unwrap();
        assert_eq!(config, expect);
    }

    #[test]
    fn everything_wrong_is_named_at_once_where_it_stands() {
        let text = "
eventlog:
  async:
    batch-size: 0
    replay-interval-ms: 500
    max-retry-delay-ms: soon
    on-full: wait
    circuit-breaker-reset-ms: 0
    base-retry-delay: 1m
    spilover-path: x
";
        let error = read(text).unwrap_err();
        assert_eq!(
            error.problems(),
            [
                "yaml:4:17: eventlog.async.batch-size: is 0, and must be at least 1 and at most \
                 2147483647",
                "yaml:5:25: eventlog.async.replay-interval-ms: is 500ms, and must be at least 1s",
                "yaml:6:25: eventlog.async.max-retry-delay-ms: is \"soon\", and must be a whole \
                 number of milliseconds, because the key ends in `-ms`",
                "yaml:7:14: eventlog.async.on-full: is \"wait\", and must be one of drop-newest, \
                 block",
                "yaml:8:31: eventlog.async.circuit-breaker-reset-ms: is 0ms, and must be at least 1ms",
                "yaml:10:5: eventlog.async.spilover-path: is not a key of `eventlog.async` (did \
                 you mean `spillover-path`?)",
            ]
        );
        let error = read("eventlg: {}\nserver: { port: x }\n").unwrap_err();
        assert_eq!(error.problems().len(), 1, "{error}");
        assert!(error.problems()[0].starts_with("yaml:1:1: "), "{error}");
        let error = read("eventlog: [").unwrap_err();
        assert!(error.problems()[0].starts_with("yaml:"), "{error}");
        let environment = [(
            "EVENTLOG_ASYNC_REPLAY_INTERVAL_MS".to_owned(),
            "5".to_owned(),
        )];
        let error = LoggerConfig::from_yaml("", &environment.into()).unwrap_err();
        assert_eq!(
            error.problems(),
            ["environment: eventlog.async.replay-interval-ms: variable \
              `EVENTLOG_ASYNC_REPLAY_INTERVAL_MS`: is 5ms, and must be at least 1s"]
        );
    }
}
