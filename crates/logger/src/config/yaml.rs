//! The documented YAML.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_config::{Config, Inputs, Origin, Part, Problem, load};

use super::{ConfigError, FieldProblem, LoggerConfig, LoggerConfigBuilder, OnFull, SyncMode};
use crate::event::Defaults;

/// The name of the text in messages, as it has none of its own.
const NAME: &str = "yaml";
const ASYNC: &str = "eventlog.async";

impl LoggerConfig {
    /// Reads the section `eventlog` of a YAML text, as it is documented: keys in kebab, camel or
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
        let ours: Vec<&Problem> = loaded.problems.iter().filter(|p| is_ours(p)).collect();
        let built = builder(&loaded.config).check();
        // A key that the file's own rules refused holds its default here, which says nothing.
        let keys = ours.iter().filter_map(|p| p.path.strip_prefix(ASYNC));
        let refused: Vec<&str> = keys.map(|key| key.trim_start_matches('.')).collect();
        let is_refused = |problem: &&FieldProblem| {
            refused.contains(&problem.key)
                || problem.other.is_some_and(|key| refused.contains(&key))
        };
        let further = built.as_ref().err().map_or(&[][..], Vec::as_slice);
        let further = further.iter().filter(|problem| !is_refused(problem));
        let mut problems: Vec<_> = ours
            .iter()
            .map(|problem| ((problem.line, problem.column), problem.to_string()))
            .chain(further.map(|problem| place(&loaded.config, problem)))
            .collect();
        problems.sort();
        match built {
            Ok(config) if problems.is_empty() => Ok(config),
            Ok(_) | Err(_) => Err(ConfigError::new(
                problems.into_iter().map(|(_, text)| text).collect(),
            )),
        }
    }
}

/// Whether a problem is about our section, or about the text as a whole: one that is no YAML has no
/// sections.
fn is_ours(problem: &Problem) -> bool {
    let is_text = problem.path.is_empty() && problem.file == NAME;
    is_text || problem.parts.contains(&Part::Eventlog)
}

fn builder(config: &Config) -> LoggerConfigBuilder {
    let at = |name: &str| format!("{ASYNC}.{name}");
    let number = |name: &str| config.integer(&at(name)).unwrap_or_default();
    let ms = |name: &str| millis(config.duration(&at(name)).unwrap_or_default());
    let word = |name: &str| config.text(&at(name)).unwrap_or_default().to_owned();
    let flag = |path: &str| config.flag(path).unwrap_or(true);
    let mut defaults = Defaults::default();
    if let Some(id) = config.text("eventlog.application-id") {
        defaults.application_id = id.to_owned().into();
    }
    let size = config
        .size(&at("max-spillover-size-mb"))
        .unwrap_or_default();
    let mut builder = LoggerConfig::builder()
        .enabled(flag("eventlog.enabled"))
        .asynchronous(flag("eventlog.async.enabled"))
        .metrics(flag("eventlog.metrics.enabled"))
        .queue_capacity(number("queue-capacity"))
        .max_retries(number("max-retries"))
        .base_retry_delay_ms(ms("base-retry-delay-ms"))
        .max_retry_delay_ms(ms("max-retry-delay-ms"))
        .circuit_breaker_threshold(number("circuit-breaker-threshold"))
        .circuit_breaker_reset_ms(ms("circuit-breaker-reset-ms"))
        .replay_interval_ms(ms("replay-interval-ms"))
        .max_spillover_events(number("max-spillover-events"))
        .max_spillover_size_bytes(i64::try_from(size).unwrap_or(i64::MAX))
        .batch_size(number("batch-size"))
        .sender_threads(number("sender-threads"))
        .max_batch_wait_ms(ms("max-batch-wait-ms"))
        .shutdown_timeout(config.duration(&at("shutdown-timeout")).unwrap_or_default())
        .on_full(match word("on-full").as_str() {
            "block" => OnFull::Block,
            _ => OnFull::DropNewest,
        })
        .sync(match word("sync").as_str() {
            "none" => SyncMode::None,
            _ => SyncMode::Group,
        })
        .defaults(defaults);
    if let Some(url) = config.text("eventlog.base-url") {
        builder = builder.base_url(url);
    }
    if let Some(path) = config.text(&at("spillover-path")) {
        builder = builder.spillover_path(path);
    }
    builder
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// A problem of the builder as one of the file: its line and column, and the text.
fn place(config: &Config, problem: &FieldProblem) -> ((usize, usize), String) {
    let (path, rest) = (format!("{ASYNC}.{}", problem.key), &problem.message);
    match config.origin(&path) {
        Some(Origin::File { file, line, column }) => (
            (line, column),
            format!("{file}:{line}:{column}: {path}: {rest}"),
        ),
        Some(Origin::Env(name)) => (
            (0, 0),
            format!("environment: {path}: variable `{name}`: {rest}"),
        ),
        Some(Origin::Argument(_) | Origin::Default) | None => {
            ((0, 0), format!("{NAME}: {path}: {rest}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "yaml:5:25: eventlog.async.replay-interval-ms: is 500, and must be at least 1000",
                "yaml:6:25: eventlog.async.max-retry-delay-ms: is \"soon\", and must be a whole \
                 number of milliseconds, because the key ends in `-ms`",
                "yaml:7:14: eventlog.async.on-full: is \"wait\", and must be one of drop-newest, \
                 block",
                "yaml:8:31: eventlog.async.circuit-breaker-reset-ms: is 0, and must be at least 1",
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
              `EVENTLOG_ASYNC_REPLAY_INTERVAL_MS`: is 5, and must be at least 1000"]
        );
    }
}
