//! The settings of a topic in Kafka's words, there and back.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::kafka::settings::OVERHEAD;
use crate::topic::TopicConfig;

/// The limit of a topic whose settings cannot be seen: Kafka's own default.
const MAX_MESSAGE_BYTES: u64 = 1_048_588;

/// The settings of a topic for Kafka.
pub(super) fn properties_of(config: &TopicConfig) -> Vec<(&'static str, String)> {
    let retention = config
        .retention
        .map_or_else(|| "-1".to_owned(), |keep| keep.as_millis().to_string());
    let retention_bytes = config
        .retention_bytes
        .map_or_else(|| "-1".to_owned(), |keep| keep.to_string());
    let expires = config.retention.is_some() || config.retention_bytes.is_some();
    let policy = match (config.compact, expires) {
        (false, _) => "delete",
        (true, false) => "compact",
        (true, true) => "compact,delete",
    };
    let message = config.max_record_size.saturating_add(OVERHEAD);
    vec![
        ("cleanup.policy", policy.to_owned()),
        ("max.message.bytes", message.to_string()),
        ("retention.bytes", retention_bytes),
        ("retention.ms", retention),
    ]
}

/// The settings of a topic from Kafka's. A value that cannot be read is taken as unlimited, except for
/// the size of a record, which is then Kafka's default.
pub(super) fn config_of(partitions: u32, found: &BTreeMap<String, (String, bool)>) -> TopicConfig {
    let value = |name: &str| found.get(name).map(|(value, _)| value.as_str());
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    let policy = value("cleanup.policy").unwrap_or("delete");
    let expires = policy.contains("delete");
    let message = number("max.message.bytes").unwrap_or(MAX_MESSAGE_BYTES);
    let retention = number("retention.ms").map(Duration::from_millis);
    TopicConfig {
        partitions,
        retention: retention.filter(|_| expires),
        retention_bytes: number("retention.bytes").filter(|_| expires),
        compact: policy.contains("compact"),
        max_record_size: message.saturating_sub(OVERHEAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_go_there_and_back() {
        let day = Some(Duration::from_secs(86_400));
        for config in [
            TopicConfig::new(3),
            TopicConfig {
                retention: day,
                ..TopicConfig::new(1)
            },
            TopicConfig {
                compact: true,
                ..TopicConfig::new(1)
            },
            TopicConfig {
                compact: true,
                retention: day,
                ..TopicConfig::new(1)
            },
            TopicConfig {
                retention_bytes: Some(5),
                max_record_size: 100,
                ..TopicConfig::new(1)
            },
        ] {
            let found = properties_of(&config)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), (value, true)))
                .collect();
            assert_eq!(config_of(config.partitions, &found), config);
        }
    }

    #[test]
    fn a_topic_that_cannot_be_looked_at_takes_what_kafka_takes() {
        let config = config_of(2, &BTreeMap::new());
        assert_eq!(config.max_record_size, 1_048_588 - OVERHEAD);
    }
}
