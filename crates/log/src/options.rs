//! Which log it is: a directory or a cluster, and the topics that are made there.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::{GroupName, Topic};

use crate::embedded::EmbeddedConfig;
use crate::inspect::OwnedGroup;
#[cfg(feature = "kafka")]
use crate::kafka::KafkaConfig;
use crate::topic::TopicConfig;

/// Which log it is, and the topics that are made there.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Where the log is.
    pub backend: LogBackend,
    /// Topics that are made where they are missing.
    pub topics: BTreeMap<Topic, TopicConfig>,
    /// Which groups read which topics by the bindings. A cluster has others, which are no business of
    /// ours.
    pub bindings: Vec<(Topic, GroupName)>,
    /// Groups for which other components answer in ledger and audit, with their tiers and dead letters.
    pub owned: Vec<OwnedGroup>,
}

/// Where the log is.
#[derive(Debug, Clone)]
pub enum LogBackend {
    /// In a directory.
    Embedded(Box<EmbeddedConfig>),
    /// On a cluster.
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaConfig>),
}

impl LogOptions {
    /// The same log in another directory.
    #[must_use]
    pub fn in_dir(mut self, dir: &Path) -> Self {
        #[cfg_attr(
            not(feature = "kafka"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "with Kafka there is a second kind of log"
            )
        )]
        let mut config = match self.backend {
            LogBackend::Embedded(config) => config,
            #[cfg(feature = "kafka")]
            LogBackend::Kafka(_) => Box::new(EmbeddedConfig::new(dir)),
        };
        config.dir = dir.to_owned();
        self.backend = LogBackend::Embedded(config);
        self
    }
}

#[cfg(feature = "config")]
mod from_config {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};
    use tidegate_config::{Config, Problem, millis};

    use super::*;
    use crate::embedded::DeadLetterTopics;

    /// The cluster that is used unless a part names another.
    const DEFAULT_CLUSTER: &str = "default";

    #[derive(Deserialize)]
    struct RawLog {
        #[serde(rename = "embedded")]
        defaults: RawDefaults,
        #[serde(default)]
        topics: BTreeMap<String, RawTopic>,
        #[serde(default)]
        clusters: BTreeMap<String, RawCluster>,
    }

    /// The keys of `log.embedded` that hold for every topic.
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct RawDefaults {
        max_record_size: u64,
        #[serde(default, deserialize_with = "millis::optional")]
        retention: Option<Duration>,
        retention_size: Option<u64>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct RawTopic {
        partitions: u32,
        compact: bool,
        max_record_size: Option<u64>,
        /// In both of these the inner none is the word `none`, which keeps everything.
        #[serde(default, deserialize_with = "given")]
        retention: Option<Option<u64>>,
        #[serde(default, deserialize_with = "given")]
        retention_size: Option<Option<u64>>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "only Kafka has clusters")
    )]
    struct RawCluster {
        bootstrap_servers: Vec<String>,
        #[serde(default)]
        properties: BTreeMap<String, String>,
        #[serde(deserialize_with = "millis::deserialize")]
        request_timeout: Duration,
        max_commit_size: u64,
        max_in_flight: usize,
        session_buffer: usize,
        #[serde(deserialize_with = "millis::deserialize")]
        stall_after: Duration,
        replication: Option<u32>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct RawBinding {
        topic: Option<String>,
        group_id: Option<String>,
    }

    fn given<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<u64>>, D::Error> {
        Option::deserialize(value).map(Some)
    }

    impl LogOptions {
        /// The log of the section `log`: Kafka, once there is a cluster `default`.
        ///
        /// # Errors
        /// A value that cannot be used, at its place in the file.
        pub fn from_config(config: &Config) -> Result<Self, Box<Problem>> {
            let mut raw: RawLog = config.section("log")?;
            let letters = dead_letters(config, raw.topics.keys());
            let backend = match raw.clusters.remove(DEFAULT_CLUSTER) {
                Some(cluster) => cluster.backend(config)?,
                None => LogBackend::Embedded(Box::new(EmbeddedConfig {
                    dead_letters: as_topics(&letters),
                    ..config.section("log.embedded")?
                })),
            };
            let letters: BTreeSet<String> = letters.into_values().flatten().collect();
            let topics = raw.topics.into_iter().map(|(name, topic)| {
                let is_dead_letters = name.ends_with(CONNECTOR_DLT) || letters.contains(&name);
                let topic = topic.config(is_dead_letters, &raw.defaults);
                let named = Topic::new(name);
                let named = named.map_err(|error| config.problem("log.topics", &error))?;
                Ok((named, topic))
            });
            let bindings: Option<BTreeMap<String, RawBinding>> =
                config.section("eventbus.bindings")?;
            let bindings = bindings.unwrap_or_default().into_values();
            let bindings = bindings.filter_map(|binding| {
                let topic = Topic::new(binding.topic?).ok()?;
                Some((topic, GroupName::new(binding.group_id?).ok()?))
            });
            Ok(Self {
                backend,
                topics: topics.collect::<Result<_, Box<Problem>>>()?,
                bindings: bindings.collect(),
                owned: Vec::new(),
            })
        }
    }

    impl RawCluster {
        #[cfg(feature = "kafka")]
        fn backend(self, _: &Config) -> Result<LogBackend, Box<Problem>> {
            Ok(LogBackend::Kafka(Box::new(KafkaConfig {
                cluster: DEFAULT_CLUSTER.to_owned(),
                bootstrap_servers: self.bootstrap_servers.join(","),
                properties: self.properties,
                request_timeout: self.request_timeout,
                max_commit_size: self.max_commit_size,
                max_in_flight: self.max_in_flight,
                session_buffer: self.session_buffer,
                stall_after: self.stall_after,
                replication: self.replication,
            })))
        }

        #[cfg(not(feature = "kafka"))]
        fn backend(self, config: &Config) -> Result<LogBackend, Box<Problem>> {
            Err(config.problem("log.clusters", &"this build does not include Kafka"))
        }
    }

    impl RawTopic {
        fn config(self, is_dead_letters: bool, defaults: &RawDefaults) -> TopicConfig {
            // Dead letters stay, and so does the last record of a key, unless the topic says otherwise.
            let stays = self.compact || is_dead_letters;
            let usual = defaults.retention.filter(|_| !stays);
            let retention = self.retention.map(|ms| ms.map(Duration::from_millis));
            TopicConfig {
                partitions: self.partitions,
                retention: retention.unwrap_or(usual),
                retention_bytes: self.retention_size.unwrap_or(defaults.retention_size),
                compact: self.compact,
                max_record_size: self.max_record_size.unwrap_or(defaults.max_record_size),
            }
        }
    }

    /// How the connector ends the name of a topic of dead letters.
    const CONNECTOR_DLT: &str = ".DLT";

    /// The topics that bindings and outbox relays write the dead letters of a topic to, as they are configured.
    /// Rows may name any of `topics`; the dead letters of those that name none at all go by the name of the relay.
    fn dead_letters<'a>(
        config: &Config,
        topics: impl Iterator<Item = &'a String>,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let topics: Vec<&String> = topics.collect();
        let mut letters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for binding in config.names("eventbus.bindings") {
            let text = |key: &str| config.text(&format!("eventbus.bindings.{binding}.{key}"));
            if let (Some(topic), Some(suffix)) = (text("topic"), text("dlt.topic-suffix")) {
                let usual = format!("{topic}.{suffix}");
                let whole = text("dlt.topic").map_or(usual, str::to_owned);
                letters.entry(topic.to_owned()).or_default().insert(whole);
            }
        }
        for relay in config.names("outbox") {
            let text = |key: &str| config.text(&format!("outbox.{relay}.{key}"));
            let template = text("dlq-topic").unwrap_or_default();
            let named = topics.iter().map(|one| one.as_str());
            let meant = named.chain(text("topic")).chain([relay]);
            for one in meant {
                let of_topic = letters.entry(one.to_owned()).or_default();
                of_topic.insert(template.replace("{topic}", one));
            }
        }
        letters
    }

    /// The same by topics; a name that no log can hold has no dead letters.
    fn as_topics(letters: &BTreeMap<String, BTreeSet<String>>) -> DeadLetterTopics {
        let topics = letters.iter().filter_map(|(topic, letters)| {
            let letters = letters.iter();
            let letters = letters.filter_map(|name| Topic::new(name.as_str()).ok());
            Some((Topic::new(topic.as_str()).ok()?, letters.collect()))
        });
        topics.collect()
    }
}

#[cfg(test)]
#[cfg(feature = "config")]
mod tests {
    use std::time::Duration;

    use super::*;
    use tidegate_config::{Inputs, load};

    fn read(text: &str) -> LogOptions {
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        LogOptions::from_config(&loaded.config).unwrap()
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn without_a_word_the_log_is_embedded_with_the_documented_defaults() {
        let read = read("");
        let LogBackend::Embedded(embedded) = read.backend else {
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
        let LogBackend::Embedded(embedded) = read.backend else {
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
            let topic = Topic::new(name).unwrap();
            read.topics[&topic].clone()
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
    fn topics_of_dead_letters_are_known_by_the_configuration_of_the_relays() {
        let read = read(
            "log: {topics: {loans: {}, loans-dlq: {}, given-up: {}, cards: {}, cards-dlq: {}, other-dlq: {}}}\n\
             outbox: {a: {table: a, topic: loans, dlq-topic: given-up}, b: {table: b}}\n",
        );
        let is_kept = |name: &str| {
            let topic = Topic::new(name).unwrap();
            read.topics[&topic].retention.is_none()
        };
        for name in ["given-up", "cards-dlq", "loans-dlq"] {
            assert!(is_kept(name), "{name}");
        }
        for name in ["loans", "cards", "other-dlq"] {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn the_audit_looks_for_dead_letters_where_relays_and_bindings_write_them() {
        let read = read(
            "log: {topics: {cards: {}}}\noutbox: {topic: loans, dlq-topic: given-up}\n\
             eventbus: {bindings: {billing: {topic: cards, group-id: b, dlt: {topic-suffix: dead}}}}\n",
        );
        let LogBackend::Embedded(embedded) = read.backend else {
            panic!("{read:?}");
        };
        let of = |name: &str| {
            let letters = embedded.dead_letters.get(&Topic::new(name).unwrap());
            let letters = letters.into_iter().flatten();
            letters.map(Topic::as_str).collect::<Vec<_>>()
        };
        assert_eq!(of("loans"), ["given-up"]);
        assert_eq!(of("cards"), ["cards.dead", "given-up"]);
        assert_eq!(of("others"), [""; 0]);
    }

    #[test]
    fn rows_of_a_relay_with_a_topic_have_dead_letters_of_topics_of_their_own() {
        let read = read(
            "log: {topics: {cards: {}, cards-dlq: {}, loans-dlq: {}, default-dlq: {}, other-dlq: {}}}\n\
             outbox: {topic: loans}\n",
        );
        let kept = |topic: &TopicConfig| topic.retention.is_none();
        let kept = read.topics.iter().filter(|(_, topic)| kept(topic));
        let names: Vec<&str> = kept.map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cards-dlq", "default-dlq", "loans-dlq"]);
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn a_default_cluster_is_kafka_and_its_secrets_arrive() {
        let read = read(
            "log: {clusters: {default: {bootstrap-servers: [\"a:1\", \"b:2\"], properties: \
             {sasl.password: hunter2, client.id: me, linger.ms: 5}, request-timeout: 1s, \
             max-commit-size: 2MiB, max-in-flight: 3MiB, session-buffer: 4MiB, stall-after: 5s, \
             replication: 3}}}\n",
        );
        let LogBackend::Kafka(kafka) = read.backend else {
            panic!("{read:?}");
        };
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

    #[cfg(feature = "kafka")]
    #[test]
    fn a_cluster_has_the_documented_limits() {
        let read = read("log: {clusters: {default: {bootstrap-servers: [\"a:1\"]}}}\n");
        let usual = KafkaConfig::new("default", "a:1");
        assert!(matches!(read.backend, LogBackend::Kafka(found) if *found == usual));
    }

    #[test]
    fn a_name_that_no_log_can_hold_is_a_problem() {
        let loaded = load(&Inputs::of_text(
            "tidegate.yaml",
            "log: {topics: {\"a b\": {}}}\n",
        ));
        assert!(LogOptions::from_config(&loaded.config).is_err());
    }
}
