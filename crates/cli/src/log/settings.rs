//! What the configuration says about the log.

use std::path::Path;
use std::time::Duration;

use tidegate_config::Config;
use tidegate_core::{GroupName, Topic};
use tidegate_log::kafka::KafkaConfig;
use tidegate_log::{EmbeddedConfig, TopicConfig};

use crate::report::Report;
use crate::settings;

/// The cluster that is used unless a part names another.
const DEFAULT_CLUSTER: &str = "default";

/// The log of a configuration.
#[derive(Debug, Clone)]
pub(crate) struct LogSettings {
    pub(crate) backend: Backend,
    /// Topics that are made where they are missing.
    pub(crate) topics: Vec<(Topic, TopicConfig)>,
    /// Which groups read which topics by the bindings. A cluster has others, which are no business of
    /// ours.
    pub(crate) bindings: Vec<(Topic, GroupName)>,
}

/// Where the log is.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    Embedded(Box<EmbeddedConfig>),
    Kafka(Box<KafkaConfig>),
}

impl LogSettings {
    /// The log that is configured: Kafka, once there is a cluster `default`.
    pub(crate) fn of(config: &Config) -> Result<Self, Report> {
        let backend = match config.names("log.clusters").contains(&DEFAULT_CLUSTER) {
            true => Backend::Kafka(Box::new(kafka(config))),
            false => Backend::Embedded(Box::new(embedded(config))),
        };
        let topics = config.names("log.topics").into_iter();
        let topics = topics.map(|name| Ok((named(name)?, topic(config, name))));
        let bindings = config.names("eventbus.bindings").into_iter();
        let bindings = bindings.filter_map(|name| {
            let key = |key: &str| config.text(&format!("eventbus.bindings.\"{name}\".{key}"));
            let topic = Topic::new(key("topic")?).ok()?;
            Some((topic, GroupName::new(key("group-id")?).ok()?))
        });
        Ok(Self {
            backend,
            topics: topics.collect::<Result<_, Report>>()?,
            bindings: bindings.collect(),
        })
    }

    /// The longest body in which any record comes that a topic takes: each of its bytes is written as six
    /// at most.
    pub(crate) fn longest_body(&self) -> usize {
        const AROUND: u64 = 64 * 1024;
        let limits = self.topics.iter().map(|(_, topic)| topic.max_record_size);
        let longest = limits.fold(TopicConfig::MAX_RECORD_SIZE, u64::max);
        usize::try_from(longest.saturating_mul(6).saturating_add(AROUND)).unwrap_or(usize::MAX)
    }

    /// The same log in another directory.
    pub(crate) fn in_dir(mut self, dir: &Path) -> Self {
        self.backend = match self.backend {
            Backend::Embedded(mut embedded) => {
                embedded.dir = dir.to_owned();
                Backend::Embedded(embedded)
            }
            Backend::Kafka(_) => Backend::Embedded(Box::new(EmbeddedConfig::new(dir))),
        };
        self
    }
}

fn named(name: &str) -> Result<Topic, Report> {
    Topic::new(name).map_err(|error| settings::invalid(format!("`log.topics`: {error}")))
}

fn embedded(config: &Config) -> EmbeddedConfig {
    let key = |name: &str| format!("log.embedded.{name}");
    let usual = EmbeddedConfig::new(config.text(&key("path")).unwrap_or("./data/log"));
    let size = |name: &str, usual: u64| config.size(&key(name)).unwrap_or(usual);
    EmbeddedConfig {
        segment_size: size("segment-size", usual.segment_size),
        journal_size: size("journal-size", usual.journal_size),
        max_size: size("max-size", usual.max_size),
        reserve: size("reserve", usual.reserve),
        max_commit_size: size("max-commit-size", usual.max_commit_size),
        group_commit_delay: config
            .duration(&key("group-commit-delay"))
            .unwrap_or(usual.group_commit_delay),
        max_queued_size: size("max-queued-size", usual.max_queued_size),
        cache_size: size("cache-size", usual.cache_size),
        compaction_memory: size("compaction-memory", usual.compaction_memory),
        ..usual
    }
}

fn kafka(config: &Config) -> KafkaConfig {
    let key = |name: &str| format!("log.clusters.{DEFAULT_CLUSTER}.{name}");
    let servers = config.texts(&key("bootstrap-servers")).join(",");
    let mut kafka = KafkaConfig::new(DEFAULT_CLUSTER, servers);
    for name in config.names(&key("properties")) {
        let path = key(&format!("properties.\"{name}\""));
        let secret = config.secret(&path).map(|secret| secret.expose());
        if let Some(value) = secret.or_else(|| config.text(&path)) {
            kafka.properties.insert(name.to_owned(), value.to_owned());
        }
    }
    let bytes = |name: &str, usual: usize| match config.size(&key(name)) {
        Some(size) => usize::try_from(size).unwrap_or(usize::MAX),
        None => usual,
    };
    let span = |name: &str, usual: Duration| config.duration(&key(name)).unwrap_or(usual);
    let replication = config.integer(&key("replication"));
    KafkaConfig {
        request_timeout: span("request-timeout", kafka.request_timeout),
        max_commit_size: config
            .size(&key("max-commit-size"))
            .unwrap_or(kafka.max_commit_size),
        max_in_flight: bytes("max-in-flight", kafka.max_in_flight),
        session_buffer: bytes("session-buffer", kafka.session_buffer),
        stall_after: span("stall-after", kafka.stall_after),
        replication: replication.and_then(|count| u32::try_from(count).ok()),
        ..kafka
    }
}

fn topic(config: &Config, name: &str) -> TopicConfig {
    let key = |key: &str| format!("log.topics.\"{name}\".{key}");
    let partitions = config.integer(&key("partitions"));
    let partitions = partitions.and_then(|count| u32::try_from(count).ok());
    TopicConfig {
        partitions: partitions.unwrap_or(TopicConfig::PARTITIONS),
        retention: retention(config, name),
        retention_bytes: match config.is_set(&key("retention-size")) {
            true => config.size(&key("retention-size")),
            false => config.size("log.embedded.retention-size"),
        },
        compact: config.flag(&key("compact")).unwrap_or(false),
        max_record_size: config
            .size(&key("max-record-size"))
            .or_else(|| config.size("log.embedded.max-record-size"))
            .unwrap_or(TopicConfig::MAX_RECORD_SIZE),
    }
}

/// What the topic says, `none` included; else what the log says, but dead letters stay, and so does
/// the last record of a key.
fn retention(config: &Config, name: &str) -> Option<Duration> {
    let key = format!("log.topics.\"{name}\".retention");
    if config.is_set(&key) {
        return config.duration(&key);
    }
    let is_compacted = config.flag(&format!("log.topics.\"{name}\".compact")) == Some(true);
    if is_dead_letters(name) || is_compacted {
        return None;
    }
    config.duration("log.embedded.retention")
}

/// Whether a topic holds dead letters, by the names that the connector and the relay give them.
fn is_dead_letters(name: &str) -> bool {
    name.ends_with(".DLT") || name.ends_with("-dlq")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Inputs, load};

    fn read(text: &str) -> LogSettings {
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        LogSettings::of(&loaded.config).unwrap()
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn without_a_word_the_log_is_embedded_with_the_documented_defaults() {
        let read = read("");
        let Backend::Embedded(embedded) = read.backend else {
            panic!("{read:?}");
        };
        assert_eq!(*embedded, EmbeddedConfig::new("./data/log"));
        assert!(read.topics.is_empty());
    }

    #[test]
    fn every_key_of_the_log_arrives() {
        let read = read(
            "log:\n  embedded: {path: /d, segment-size: 1MiB, journal-size: 2MiB, max-size: 3GiB, \
             reserve: 5MiB, max-commit-size: 6MiB, max-record-size: 7KiB, group-commit-delay: 8ms, \
             max-queued-size: 12MiB, cache-size: 13MiB, compaction-memory: 14MiB, retention: 9d, retention-size: 10MiB}\n  topics:\n    a: {}\n    b.c: {partitions: 2, \
             retention: none, retention-size: none, compact: true, max-record-size: 11KiB}\n    \
             a.DLT: {}\n    d: {compact: true}\n",
        );
        let Backend::Embedded(embedded) = read.backend else {
            panic!("{read:?}");
        };
        const MIB: u64 = 1024 * 1024;
        let expect = EmbeddedConfig {
            segment_size: MIB,
            journal_size: 2 * MIB,
            max_size: 3 * 1024 * MIB,
            reserve: 5 * MIB,
            max_commit_size: 6 * MIB,
            group_commit_delay: Duration::from_millis(8),
            max_queued_size: 12 * MIB,
            cache_size: 13 * MIB,
            compaction_memory: 14 * MIB,
            ..EmbeddedConfig::new("/d")
        };
        assert_eq!(*embedded, expect);
        let of = |name: &str| {
            let topics = read.topics.iter();
            let found = topics.filter(|(topic, _)| topic.as_str() == name);
            found.map(|(_, config)| config.clone()).next().unwrap()
        };
        let usual = TopicConfig {
            partitions: 4,
            retention: Some(9 * DAY),
            retention_bytes: Some(10 * MIB),
            compact: false,
            max_record_size: 7 * 1024,
        };
        assert_eq!(of("a"), usual);
        let kept = TopicConfig {
            retention: None,
            ..usual.clone()
        };
        assert_eq!(of("a.DLT"), kept, "dead letters stay");
        let compacted = TopicConfig {
            compact: true,
            ..kept
        };
        assert_eq!(of("d"), compacted);
        let own = TopicConfig {
            partitions: 2,
            retention_bytes: None,
            max_record_size: 11 * 1024,
            ..compacted
        };
        assert_eq!(of("b.c"), own);
    }

    #[test]
    fn a_default_cluster_is_kafka_and_its_secrets_arrive() {
        let read = read(
            "log: {clusters: {default: {bootstrap-servers: [\"a:1\", \"b:2\"], properties: \
             {sasl.password: hunter2, client.id: me, linger.ms: 5}, request-timeout: 1s, \
             max-commit-size: 2MiB, max-in-flight: 3MiB, session-buffer: 4MiB, stall-after: 5s, \
             replication: 3}}}\n",
        );
        let Backend::Kafka(kafka) = read.backend else {
            panic!("{read:?}");
        };
        assert_eq!(kafka.bootstrap_servers, "a:1,b:2");
        const MIB: usize = 1024 * 1024;
        let expect = KafkaConfig {
            properties: kafka.properties.clone(),
            request_timeout: Duration::from_secs(1),
            max_commit_size: 2 * MIB as u64,
            max_in_flight: 3 * MIB,
            session_buffer: 4 * MIB,
            stall_after: Duration::from_secs(5),
            replication: Some(3),
            ..KafkaConfig::new("default", "a:1,b:2")
        };
        assert_eq!(*kafka, expect);
        let properties: Vec<_> = kafka.properties.iter().collect();
        let properties: Vec<_> = properties
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expect = [
            ("client.id", "me"),
            ("linger.ms", "5"),
            ("sasl.password", "hunter2"),
        ];
        assert_eq!(properties, expect);
    }

    #[test]
    fn a_name_that_no_log_can_hold_is_a_problem() {
        let loaded = load(&Inputs::of_text(
            "tidegate.yaml",
            "log: {topics: {\"a b\": {}}}\n",
        ));
        assert!(LogSettings::of(&loaded.config).is_err());
    }
}
