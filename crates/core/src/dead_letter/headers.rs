//! A dead letter as headers beside the untouched record.
//!
//! Values are UTF-8, numbers decimal, times milliseconds since 1970. Headers of ours are written
//! once each, after the headers of others; reading takes them out again.

use bytes::Bytes;

use super::{DeadLetter, Header, LastFailure, Reason, RecordOrigin, StageContext, TierFailure};
use crate::{Code, EventId, GroupName, Offset, Partition, TierIndex, Topic};

/// The names of the headers, which users' tools depend on.
pub mod name {
    use crate::EventId;

    /// The id of the event.
    pub const EVENT_ID: &str = "x-tidegate-event-id";
    /// The topic in which the record first lay.
    pub const ORIGINAL_TOPIC: &str = "x-eventbus-original-topic";
    /// The partition in which the record first lay.
    pub const ORIGINAL_PARTITION: &str = "x-eventbus-original-partition";
    /// The offset at which the record first lay.
    pub const ORIGINAL_OFFSET: &str = "x-eventbus-original-offset";
    /// The record's own time.
    pub const ORIGINAL_TIMESTAMP: &str = "x-eventbus-original-timestamp";
    /// Why it was given up on.
    pub const DLT_REASON: &str = "x-eventbus-dlt-reason";
    /// When it was given up on.
    pub const DLT_TIMESTAMP: &str = "x-eventbus-dlt-timestamp";
    /// How many attempts there were.
    pub const TOTAL_ATTEMPTS: &str = "x-eventbus-total-attempts";
    /// When it first failed.
    pub const FIRST_FAILURE_TIMESTAMP: &str = "x-eventbus-first-failure-timestamp";
    /// The code of the failure that ended it.
    pub const LAST_EXCEPTION_CLASS: &str = "x-eventbus-last-exception-class";
    /// The message.
    pub const LAST_EXCEPTION_MESSAGE: &str = "x-eventbus-last-exception-message";
    /// The chain of causes.
    pub const LAST_EXCEPTION_STACKTRACE: &str = "x-eventbus-last-exception-stacktrace";
    /// The tier it was in.
    pub const RETRY_TIER: &str = "x-eventbus-retry-tier";
    /// Which delivery within its tier a record of a tier is, from 1.
    pub const RETRY_ATTEMPT: &str = "x-eventbus-retry-attempt";
    /// When a record was given to its tier.
    pub const RETRY_TIMESTAMP: &str = "x-eventbus-retry-timestamp";
    /// The consumer group to which a record of a tier, or a dead letter, belongs.
    pub const GROUP: &str = "x-tidegate-group";
    /// The record that this one is a copy of, where a crash between a hand-off and its commit may leave one:
    /// topic and partition, offset and time.
    pub const COPY_OF: &str = "x-tidegate-copy-of";
    /// The topic in whose books a dead letter is, where its group reads several.
    pub const INPUT: &str = "x-tidegate-input";
    /// Another event that a dead letter stands for, and the topic in whose books it is: `<id> <topic>`. It may come
    /// several times.
    pub const STANDS_FOR: &str = "x-tidegate-stands-for";
    /// The binding for which a record was replayed.
    pub const REPLAY_FOR: &str = "x-tidegate-replay-for";
    /// The binding that a handler is called for.
    pub const BINDING_NAME: &str = "x-eventbus-binding-name";
    /// When the binding received the record.
    pub const RECEIVED_TIMESTAMP: &str = "x-eventbus-received-timestamp";
    /// The consumer that received the record.
    pub const CONSUMER_INSTANCE: &str = "x-eventbus-consumer-instance";
    /// How often it was replayed.
    pub const REPLAY_COUNT: &str = "x-eventbus-replay-count";
    /// The stage that gave it up.
    pub const STAGE_NAME: &str = "x-tidegate-stage-name";
    /// The instance of that stage.
    pub const STAGE_INSTANCE: &str = "x-tidegate-stage-instance";
    /// The step within that stage.
    pub const OPERATOR_NAME: &str = "x-tidegate-operator-name";
    /// The kind of the failure of that step.
    pub const FAILURE_KIND: &str = "x-tidegate-failure-kind";
    /// Start of the three headers of each tier: `x-eventbus-tier{N}-exception`,
    /// `x-eventbus-tier{N}-exhausted-at` and `x-eventbus-tier{N}-attempts`.
    pub const TIER_PREFIX: &str = "x-eventbus-tier";
    /// End of the header with the failure of a tier.
    pub const TIER_EXCEPTION: &str = "-exception";
    /// End of the header with the time at which a tier was used up.
    pub const TIER_EXHAUSTED_AT: &str = "-exhausted-at";
    /// End of the header with the number of attempts in a tier.
    pub const TIER_ATTEMPTS: &str = "-attempts";

    /// The headers with a fixed name: those of a dead letter in the order in which they are written, then
    /// those of tiers and handlers, which no dead letter keeps.
    pub const ALL: [&str; 28] = [
        EVENT_ID,
        ORIGINAL_TOPIC,
        ORIGINAL_PARTITION,
        ORIGINAL_OFFSET,
        ORIGINAL_TIMESTAMP,
        DLT_REASON,
        DLT_TIMESTAMP,
        TOTAL_ATTEMPTS,
        FIRST_FAILURE_TIMESTAMP,
        LAST_EXCEPTION_CLASS,
        LAST_EXCEPTION_MESSAGE,
        LAST_EXCEPTION_STACKTRACE,
        RETRY_TIER,
        REPLAY_COUNT,
        GROUP,
        STAGE_NAME,
        STAGE_INSTANCE,
        OPERATOR_NAME,
        FAILURE_KIND,
        INPUT,
        STANDS_FOR,
        RETRY_ATTEMPT,
        RETRY_TIMESTAMP,
        REPLAY_FOR,
        BINDING_NAME,
        RECEIVED_TIMESTAMP,
        CONSUMER_INSTANCE,
        COPY_OF,
    ];

    /// The value of [`STANDS_FOR`] for an event of a topic.
    #[must_use]
    pub fn stands_for(id: EventId, topic: &str) -> String {
        format!("{id} {topic}")
    }

    /// The event and the topic that a value of [`STANDS_FOR`] names.
    ///
    /// ```
    /// use tidegate_core::{EventId, dead_letter::name};
    /// let id = EventId::from_u128(7);
    /// let value = name::stands_for(id, "orders");
    /// assert_eq!(name::read_stands_for(value.as_bytes()), Some((id, "orders")));
    /// ```
    #[must_use]
    pub fn read_stands_for(value: &[u8]) -> Option<(EventId, &str)> {
        let (id, topic) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some((id.parse().ok()?, topic))
    }

    /// Whether a header is one of ours, so that a later hop writes it anew or leaves it out.
    ///
    /// ```
    /// use tidegate_core::dead_letter::name;
    /// assert!(name::is_ours("x-eventbus-tier2-attempts"));
    /// assert!(!name::is_ours("traceparent"));
    /// ```
    #[must_use]
    pub fn is_ours(header: &str) -> bool {
        ALL.contains(&header) || super::tier_of(header).is_some()
    }
}

/// A header of a dead letter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A header that every dead letter has is not there.
    #[error("header `{name}` is missing")]
    Missing {
        /// Which one.
        name: &'static str,
    },
    /// A header does not hold what it should.
    #[error("header `{name}` holds `{value}`, which is not {expected}")]
    Unreadable {
        /// Which one.
        name: String,
        /// Its value.
        value: String,
        /// The expected kind of value.
        expected: &'static str,
    },
}

impl DeadLetter {
    /// The headers for a dead-letter topic: those of others untouched, then ours.
    #[must_use]
    pub fn to_headers(&self) -> Vec<Header> {
        let bounded = self.clone().bounded();
        let mut headers: Vec<Header> = self
            .headers
            .iter()
            .filter(|header| !name::is_ours(&header.name))
            .cloned()
            .collect();
        let mut add = |name: &str, value: String| headers.push(Header::text(name, value));
        add(name::EVENT_ID, self.event_id.to_string());
        add(name::ORIGINAL_TOPIC, self.origin.topic.to_string());
        add(name::ORIGINAL_PARTITION, self.origin.partition.to_string());
        add(name::ORIGINAL_OFFSET, self.origin.offset.to_string());
        add(
            name::ORIGINAL_TIMESTAMP,
            self.origin.timestamp_ms.to_string(),
        );
        add(name::DLT_REASON, self.reason.as_str().to_owned());
        add(name::DLT_TIMESTAMP, self.dead_at_ms.to_string());
        add(name::TOTAL_ATTEMPTS, self.attempts.to_string());
        add(
            name::FIRST_FAILURE_TIMESTAMP,
            self.first_failure_ms.to_string(),
        );
        add(name::LAST_EXCEPTION_CLASS, bounded.failure.code.to_string());
        add(name::LAST_EXCEPTION_MESSAGE, bounded.failure.message);
        add(name::LAST_EXCEPTION_STACKTRACE, bounded.failure.stack);
        add(name::RETRY_TIER, self.tier.to_string());
        for seen in &self.trail {
            for (name, value) in seen.named() {
                add(&name, value);
            }
        }
        if self.replays > 0 {
            add(name::REPLAY_COUNT, self.replays.to_string());
        }
        if let Some(group) = &self.group {
            add(name::GROUP, group.to_string());
        }
        if let Some(stage) = &self.stage {
            add(name::STAGE_NAME, stage.stage_name.clone());
            add(name::STAGE_INSTANCE, stage.stage_instance.clone());
            add(name::OPERATOR_NAME, stage.operator_name.clone());
            if let Some(kind) = &stage.failure_kind {
                add(name::FAILURE_KIND, kind.clone());
            }
        }
        headers
    }

    /// Reads a dead letter back from its record.
    ///
    /// # Errors
    /// A header of ours is missing or unreadable; the record is then no dead letter of ours.
    pub fn from_record(
        key: Option<Bytes>,
        value: Option<Bytes>,
        headers: &[Header],
    ) -> Result<Self, HeaderError> {
        let ours = Ours(headers);
        let topic = ours.text(name::ORIGINAL_TOPIC)?;
        let reason = ours.text(name::DLT_REASON)?;
        let origin = RecordOrigin {
            topic: Topic::new(topic.clone())
                .map_err(|_| unreadable(name::ORIGINAL_TOPIC, &topic, "a topic"))?,
            partition: Partition(ours.number(name::ORIGINAL_PARTITION)?),
            offset: Offset(ours.number(name::ORIGINAL_OFFSET)?),
            timestamp_ms: ours.number(name::ORIGINAL_TIMESTAMP)?,
        };
        let id = ours.text(name::EVENT_ID)?;
        Ok(Self {
            event_id: id
                .parse::<EventId>()
                .map_err(|_| unreadable(name::EVENT_ID, &id, "an event id"))?,
            origin,
            key,
            value,
            headers: headers
                .iter()
                .filter(|h| !name::is_ours(&h.name))
                .cloned()
                .collect(),
            reason: Reason::parse(&reason)
                .ok_or_else(|| unreadable(name::DLT_REASON, &reason, "a reason"))?,
            dead_at_ms: ours.number(name::DLT_TIMESTAMP)?,
            attempts: ours.number(name::TOTAL_ATTEMPTS)?,
            first_failure_ms: ours.number(name::FIRST_FAILURE_TIMESTAMP)?,
            failure: LastFailure {
                code: Code::verbatim(ours.text(name::LAST_EXCEPTION_CLASS)?),
                message: ours.text(name::LAST_EXCEPTION_MESSAGE)?,
                stack: ours.text(name::LAST_EXCEPTION_STACKTRACE)?,
            },
            tier: TierIndex(ours.number(name::RETRY_TIER)?),
            trail: TierFailure::read_all(headers)?,
            replays: match ours.find(name::REPLAY_COUNT) {
                Some(_) => ours.number(name::REPLAY_COUNT)?,
                None => 0,
            },
            group: match ours.find(name::GROUP) {
                Some(_) => {
                    let group = ours.text(name::GROUP)?;
                    let read = GroupName::new(group.clone());
                    Some(read.map_err(|_| unreadable(name::GROUP, &group, "a group"))?)
                }
                None => None,
            },
            stage: ours.stage()?,
        })
    }
}

impl TierFailure {
    /// The headers of this tier, as records of later tiers and dead letters carry them.
    #[must_use]
    pub fn to_headers(&self) -> Vec<Header> {
        let named = self.named().into_iter();
        named
            .map(|(name, value)| Header::text(name, value))
            .collect()
    }

    fn named(&self) -> Vec<(String, String)> {
        let name = |ending: &str| format!("{}{}{ending}", name::TIER_PREFIX, self.tier);
        let mut named = vec![
            (name(name::TIER_EXCEPTION), self.code.to_string()),
            (
                name(name::TIER_EXHAUSTED_AT),
                self.exhausted_at_ms.to_string(),
            ),
        ];
        if self.attempts > 0 {
            named.push((name(name::TIER_ATTEMPTS), self.attempts.to_string()));
        }
        named
    }

    /// The trail of a record: the failures of the tiers that it has passed, in the order of its headers.
    ///
    /// # Errors
    /// A header of a tier is missing or unreadable.
    pub fn read_all(headers: &[Header]) -> Result<Vec<Self>, HeaderError> {
        let ours = Ours(headers);
        let mut trail = Vec::new();
        for header in headers {
            let Some((tier, name::TIER_EXCEPTION)) = tier_of(&header.name) else {
                continue;
            };
            let name = |ending: &str| format!("{}{tier}{ending}", name::TIER_PREFIX);
            let time = name(name::TIER_EXHAUSTED_AT);
            let attempts = name(name::TIER_ATTEMPTS);
            trail.push(Self {
                tier,
                code: Code::verbatim(text_of(header)?),
                exhausted_at_ms: ours
                    .number_named(&time)?
                    .ok_or_else(|| unreadable(&time, "", "a time"))?,
                attempts: ours.number_named(&attempts)?.unwrap_or(0),
            });
        }
        Ok(trail)
    }
}

/// The tier and the ending of `x-eventbus-tier{N}-…`.
fn tier_of(header: &str) -> Option<(TierIndex, &str)> {
    let rest = header.strip_prefix(name::TIER_PREFIX)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let (number, ending) = rest.split_at(digits);
    let endings = [
        name::TIER_EXCEPTION,
        name::TIER_EXHAUSTED_AT,
        name::TIER_ATTEMPTS,
    ];
    let known = endings.contains(&ending);
    let tier: u32 = number.parse().ok()?;
    // `tier007` is not how we write tier 7, so it is somebody else's header.
    (known && tier.to_string() == number).then_some((TierIndex(tier), ending))
}

fn unreadable(name: &str, value: &str, expected: &'static str) -> HeaderError {
    let value = super::text::first_chars(value, 80).to_owned();
    HeaderError::Unreadable {
        name: name.to_owned(),
        value,
        expected,
    }
}

/// The headers of a record, looked at for those of ours.
struct Ours<'a>(&'a [Header]);

impl Ours<'_> {
    fn find(&self, name: &str) -> Option<&Header> {
        self.0.iter().find(|header| header.name == name)
    }

    fn text(&self, name: &'static str) -> Result<String, HeaderError> {
        let header = self.find(name).ok_or(HeaderError::Missing { name })?;
        text_of(header)
    }

    fn number<N: std::str::FromStr>(&self, name: &'static str) -> Result<N, HeaderError> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| unreadable(name, &text, "a number"))
    }

    /// The number in a header, if the header is there.
    fn number_named<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, HeaderError> {
        let Some(header) = self.find(name) else {
            return Ok(None);
        };
        let text = text_of(header)?;
        let number = text.parse();
        Ok(Some(
            number.map_err(|_| unreadable(name, &text, "a number"))?,
        ))
    }

    fn stage(&self) -> Result<Option<StageContext>, HeaderError> {
        if self.find(name::STAGE_NAME).is_none() {
            return Ok(None);
        }
        Ok(Some(StageContext {
            stage_name: self.text(name::STAGE_NAME)?,
            stage_instance: self.text(name::STAGE_INSTANCE)?,
            operator_name: self.text(name::OPERATOR_NAME)?,
            failure_kind: match self.find(name::FAILURE_KIND) {
                Some(kind) => Some(text_of(kind)?),
                None => None,
            },
        }))
    }
}

fn text_of(header: &Header) -> Result<String, HeaderError> {
    let bytes = header.value.as_deref().unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(unreadable(
            &header.name,
            &String::from_utf8_lossy(bytes),
            "UTF-8",
        )),
    }
}
