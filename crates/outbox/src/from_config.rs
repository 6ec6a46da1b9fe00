//! The options of all relays in the section `outbox`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tidegate_config::{Config, Problem, millis};
use tidegate_core::Topic;

use crate::options::{EventOrder, OnExhausted, OutboxOptions};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawRelay {
    enabled: bool,
    table: String,
    topic: Option<String>,
    batch_size: u32,
    max_attempts: u32,
    backoff: RawBackoff,
    #[serde(with = "millis")]
    lease: Duration,
    order: RawOrder,
    on_exhausted: RawExhausted,
    dlq_topic: String,
    #[serde(default, deserialize_with = "millis::optional")]
    retention: Option<Duration>,
    buckets: u32,
    #[serde(with = "millis")]
    poll_delay_ms: Duration,
    metrics_prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawBackoff {
    #[serde(with = "millis")]
    initial_ms: Duration,
    #[serde(with = "millis")]
    max_ms: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawOrder {
    ById,
    Strict,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawExhausted {
    DeadLetter,
    BlockKey,
}

impl OutboxOptions {
    /// The relays of the section `outbox`, by name. Keys directly under it are those of the relay
    /// `default`.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// use tidegate_outbox::OutboxOptions;
    /// let config = load(&Inputs::of_text("tidegate.yaml", "outbox: {batch-size: 50}\n")).config;
    /// let relays = OutboxOptions::from_config(&config).unwrap();
    /// assert_eq!((relays[0].name.as_str(), relays[0].batch_size), ("default", 50));
    /// ```
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(config: &Config) -> Result<Vec<Self>, Box<Problem>> {
        if config.names("outbox").is_empty() {
            return Ok(Vec::new());
        }
        let raw: BTreeMap<String, RawRelay> = config.section("outbox")?;
        // A relay has this long to stop before the process does.
        let stop_timeout = config.duration("shutdown-timeout").unwrap_or_default() * 5 / 6;
        let mut relays = Vec::new();
        for (name, raw) in raw {
            let relay = raw.options(&name, stop_timeout, config)?;
            if let Err(error) = relay.check() {
                return Err(config.problem(&format!("outbox.{name}"), &error));
            }
            // Two relays on one table would each miss the rows of the other's books.
            let is_same = |one: &&Self| one.table == relay.table && one.enabled;
            if let Some(other) = relays.iter().find(is_same).filter(|_| relay.enabled) {
                let why = format!("relay `{}` has the same table", other.name);
                return Err(config.problem(&format!("outbox.{name}.table"), &why));
            }
            relays.push(relay);
        }
        Ok(relays)
    }
}

impl RawRelay {
    fn options(
        self,
        name: &str,
        stop_timeout: Duration,
        config: &Config,
    ) -> Result<OutboxOptions, Box<Problem>> {
        let topic = self.topic.map(Topic::new).transpose();
        let topic = topic.map_err(|why| config.problem(&format!("outbox.{name}.topic"), &why))?;
        let dlq = self.dlq_topic.replace("{topic}", "t");
        if let Err(why) = Topic::new(dlq) {
            return Err(config.problem(&format!("outbox.{name}.dlq-topic"), &why));
        }
        Ok(OutboxOptions {
            name: name.to_owned(),
            enabled: self.enabled,
            table: self.table,
            topic,
            batch_size: self.batch_size,
            max_attempts: self.max_attempts,
            backoff_initial: self.backoff.initial_ms,
            backoff_max: self.backoff.max_ms,
            lease: self.lease,
            order: match self.order {
                RawOrder::ById => EventOrder::ById,
                RawOrder::Strict => EventOrder::Strict,
            },
            on_exhausted: match self.on_exhausted {
                RawExhausted::DeadLetter => OnExhausted::DeadLetter,
                RawExhausted::BlockKey => OnExhausted::BlockKey,
            },
            dlq_topic: self.dlq_topic,
            retention: self.retention,
            buckets: self.buckets,
            poll_delay: self.poll_delay_ms,
            metrics_prefix: self.metrics_prefix,
            stop_timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};

    use super::*;

    fn relays(text: &str) -> Vec<OutboxOptions> {
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        OutboxOptions::from_config(&loaded.config).unwrap()
    }

    #[test]
    fn without_the_section_there_is_no_relay() {
        assert_eq!(relays(""), []);
    }

    #[test]
    fn the_flat_form_is_the_relay_default_with_the_defaults_of_the_library() {
        assert_eq!(
            relays("outbox: {enabled: true}\n"),
            [OutboxOptions::default()]
        );
    }

    #[test]
    fn relays_by_name_stand_beside_the_flat_one() {
        let text = "outbox:\n  loans: {table: loan_outbox, enabled: false}\n  cards: {table: \
                    card_outbox, order: strict, on-exhausted: block-key, retention: 1d}\n";
        let read = relays(text);
        let names: Vec<_> = read
            .iter()
            .map(|one| (one.name.as_str(), one.enabled))
            .collect();
        assert_eq!(names, [("cards", true), ("loans", false)]);
        assert_eq!(read[0].order, EventOrder::Strict);
        assert_eq!(read[0].on_exhausted, OnExhausted::BlockKey);
        assert_eq!(read[0].retention, Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn every_key_changes_an_option() {
        let usual = format!("{:?}", OutboxOptions::default());
        let other = |key: &str| match key {
            "enabled" => "false",
            "order" => "strict",
            "on-exhausted" => "block-key",
            "table" | "topic" | "dlq-topic" | "metrics-prefix" => "other",
            "backoff.max-ms" => "7000",
            _ => "7",
        };
        let mut seen = 0;
        for listed in tidegate_config::keys::all() {
            let Some(key) = listed.path.strip_prefix("outbox.<name>.") else {
                continue;
            };
            let mut inputs = Inputs::of_text("tidegate.yaml", "");
            let path = format!("outbox.default.{key}");
            inputs.arguments.push((path, other(key).to_owned()));
            let loaded = load(&inputs);
            assert!(loaded.problems.is_empty(), "{key}: {:?}", loaded.problems);
            let read = OutboxOptions::from_config(&loaded.config).unwrap();
            assert_ne!(format!("{:?}", read[0]), usual, "{key} maps to nothing");
            seen += 1;
        }
        assert!(seen >= 15, "only {seen} keys were seen");
    }

    #[test]
    fn two_relays_on_one_table_are_a_problem() {
        let text = "outbox: {a: {}, b: {}}\n";
        let loaded = load(&Inputs::of_text("tidegate.yaml", text));
        let problem = OutboxOptions::from_config(&loaded.config).unwrap_err();
        assert!(format!("{problem:?}").contains("same table"), "{problem:?}");
    }
}
