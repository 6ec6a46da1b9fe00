//! How a relay works.

use std::time::Duration;

use tidegate_core::{Backoff, Topic};

use crate::OutboxError;

/// Which order the events of one key are published in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventOrder {
    /// By the number of the row. An event that was committed before another one was inserted goes first.
    #[default]
    ById,
    /// By commit, also for writers that overlap: the second one waits for the first at its insert.
    Strict,
}

/// The fate of an event that used up its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExhausted {
    /// It becomes a dead letter, and its key goes on.
    #[default]
    DeadLetter,
    /// It is tried at the longest wait for as long as it takes, and its key waits.
    BlockKey,
}

/// How one relay works, and on which table.
///
/// ```
/// use tidegate_outbox::OutboxOptions;
/// let options = OutboxOptions { batch_size: 500, ..OutboxOptions::new("loans") };
/// assert_eq!(options.component(), "outbox.loans");
/// assert_eq!(options.dlq_of("loan-events"), "loan-events-dlq");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxOptions {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub enabled: bool,
    /// The table.
    pub table: String,
    /// The topic of rows that name none.
    pub topic: Option<Topic>,
    /// Rows that are claimed at once.
    pub batch_size: u32,
    /// Attempts before a row is given up.
    pub max_attempts: u32,
    /// The first wait between attempts; doubled with each.
    pub backoff_initial: Duration,
    /// The longest wait between attempts.
    pub backoff_max: Duration,
    /// How long a relay that stands still keeps its buckets.
    pub lease: Duration,
    /// The order within a key.
    pub order: EventOrder,
    /// The fate of rows that used up their attempts.
    pub on_exhausted: OnExhausted,
    /// Where dead letters go; `{topic}` stands for the topic they were meant for.
    pub dlq_topic: String,
    /// How long sent rows are kept; none keeps them for ever.
    pub retention: Option<Duration>,
    /// Key buckets that the relays share out; fixed when the table is made.
    pub buckets: u32,
    /// The wait between polls of a table without work.
    pub poll_delay: Duration,
    /// How the names of its metrics begin.
    pub metrics_prefix: String,
    /// How long a stop may take; then the rest of a batch is left to the next relay.
    pub stop_timeout: Duration,
}

impl OutboxOptions {
    /// The share of a wait that is left to chance.
    pub const JITTER: f64 = 0.125;
    /// The most buckets that a table can have.
    pub const MAX_BUCKETS: u32 = 1_024;

    /// A relay of this name with the usual settings.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            enabled: true,
            table: "outbox_event".to_owned(),
            topic: None,
            batch_size: 100,
            max_attempts: 10,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            lease: Duration::from_secs(30),
            order: EventOrder::ById,
            on_exhausted: OnExhausted::DeadLetter,
            dlq_topic: "{topic}-dlq".to_owned(),
            retention: None,
            buckets: 64,
            poll_delay: Duration::from_millis(20),
            metrics_prefix: "outbox".to_owned(),
            stop_timeout: Duration::from_secs(25),
        }
    }

    /// The name of the relay in the books and among the components of a process.
    #[must_use]
    pub fn component(&self) -> String {
        format!("outbox.{}", self.name)
    }

    /// The topic for dead letters that were meant for `topic`.
    #[must_use]
    pub fn dlq_of(&self, topic: &str) -> String {
        self.dlq_topic.replace("{topic}", topic)
    }

    /// The waits between the attempts of a row.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        let plain = Backoff::exponential(self.backoff_initial, 2.0, self.backoff_max);
        plain.with_jitter(Self::JITTER)
    }

    /// Whether the names can be part of statements and the numbers be kept.
    ///
    /// # Errors
    /// The first thing that cannot be, and why.
    pub fn check(&self) -> Result<(), OutboxError> {
        let invalid = |what, value: &str, why| {
            let value = value.to_owned();
            Err(OutboxError::Options { what, value, why })
        };
        if !is_identifier(&self.table) {
            let why =
                "it must be up to 40 lowercase letters, digits and `_`, and begin with a letter";
            return invalid("table", &self.table, why);
        }
        let is_named = |text: &str| {
            let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            (1..=64).contains(&text.len()) && text.chars().all(is_fine)
        };
        if !is_named(&self.name) {
            return invalid(
                "name",
                &self.name,
                "it must be up to 64 letters, digits, `-`, `_` and `.`",
            );
        }
        if self.buckets == 0 || self.buckets > Self::MAX_BUCKETS {
            return invalid(
                "buckets",
                &self.buckets.to_string(),
                "it must be from 1 to 1024",
            );
        }
        if self.batch_size == 0 {
            return invalid("batch-size", "0", "it must be at least 1");
        }
        let is_same = match &self.topic {
            Some(topic) => self.dlq_of(topic.as_str()) == topic.as_str(),
            None => self.dlq_topic == "{topic}",
        };
        if is_same {
            let why = "it is the topic itself, whose readers would take dead letters for events";
            return invalid("dlq-topic", &self.dlq_topic, why);
        }
        Ok(())
    }
}

impl Default for OutboxOptions {
    fn default() -> Self {
        Self::new("default")
    }
}

/// Whether a name can stand in a statement as it is.
fn is_identifier(text: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = text.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    begins && text.len() <= 40 && text.chars().all(is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_change_a_statement_are_refused() {
        for table in ["", "a b", "a;drop", "A", "1a", "a\"", "é", &"a".repeat(41)] {
            let options = OutboxOptions {
                table: table.to_owned(),
                ..OutboxOptions::default()
            };
            assert!(options.check().is_err(), "{table}");
        }
        for name in ["", "it's", "a b", &"a".repeat(65)] {
            assert!(OutboxOptions::new(name).check().is_err(), "{name}");
        }
        OutboxOptions::new("loans-1.eu").check().unwrap();
        for buckets in [0, 1_025] {
            let options = OutboxOptions {
                buckets,
                ..OutboxOptions::default()
            };
            assert!(options.check().is_err());
        }
    }

    #[test]
    fn the_topic_of_dead_letters_is_another_one() {
        for (topic, dlq) in [(Some("a"), "a"), (Some("a"), "{topic}"), (None, "{topic}")] {
            let options = OutboxOptions {
                topic: topic.map(|name| Topic::new(name).unwrap()),
                dlq_topic: dlq.to_owned(),
                ..OutboxOptions::default()
            };
            assert!(options.check().is_err(), "{topic:?} {dlq}");
        }
        let options = OutboxOptions {
            dlq_topic: "t".to_owned(),
            ..OutboxOptions::default()
        };
        options.check().unwrap();
    }

    #[test]
    fn o07_waits_double_up_to_the_longest() {
        let backoff = OutboxOptions::default().backoff();
        let waits: Vec<u64> = (0..8)
            .map(|n| backoff.wait_without_jitter(n).as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
