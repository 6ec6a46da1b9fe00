//! A record given up on, with its history.
//!
//! There is one [`DeadLetter`] and three ways to write it down, each without loss:
//!
//! - [headers](DeadLetter::to_headers) beside the untouched key and value, for a dead-letter topic;
//! - a [JSON envelope](DeadLetter::to_envelope) around the value, for the dead-letter stream of a
//!   stage;
//! - a [row](DeadLetterRow) of plain columns, for a table.

mod envelope;
mod headers;
mod row;
mod text;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Code, EventId, GroupName, Offset, Partition, TierIndex, Topic};

pub use envelope::EnvelopeError;
pub use headers::{HeaderError, name};
pub use row::{DeadLetterRow, RowError};

/// Longest error message that is kept, in characters.
pub const MESSAGE_LIMIT: usize = 500;
/// Longest stack trace that is kept, in bytes.
pub const STACK_LIMIT: usize = 2_048;

/// One header of a record. The same name may come several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value; a broker allows none.
    pub value: Option<Bytes>,
}

impl Header {
    /// A header that holds text.
    pub fn text(name: impl Into<String>, value: impl ToString) -> Self {
        Self {
            name: name.into(),
            value: Some(Bytes::from(value.to_string().into_bytes())),
        }
    }
}

/// Why a record was given up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Reason {
    /// Every attempt failed.
    RetriesExhausted,
    /// The failure is of a kind that no attempt would change.
    NonRetryable,
    /// Somebody asked for it.
    Manual,
    /// The bytes are not what the topic promises.
    DeserializationFailure,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 4] = [
        Self::RetriesExhausted,
        Self::NonRetryable,
        Self::Manual,
        Self::DeserializationFailure,
    ];

    /// The text users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RetriesExhausted => "RETRIES_EXHAUSTED",
            Self::NonRetryable => "NON_RETRYABLE",
            Self::Manual => "MANUAL",
            Self::DeserializationFailure => "DESERIALIZATION_FAILURE",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// Where a record first lay. It is written once and never overwritten by a later hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordOrigin {
    /// The topic.
    pub topic: Topic,
    /// The partition.
    pub partition: Partition,
    /// The offset.
    pub offset: Offset,
    /// The record's own time, in milliseconds since 1970.
    pub timestamp_ms: i64,
}

/// The failure that ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFailure {
    /// Its code.
    pub code: Code,
    /// The message; cut to [`MESSAGE_LIMIT`] when written down.
    pub message: String,
    /// The chain of causes; cut to [`STACK_LIMIT`] when written down.
    pub stack: String,
}

/// The last failure in a tier that gave the record on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierFailure {
    /// The tier; 0 is in memory.
    pub tier: TierIndex,
    /// The last failure there.
    pub code: Code,
    /// When its attempts were used up, in milliseconds since 1970.
    pub exhausted_at_ms: u64,
    /// How many attempts there were in it; 0 where that was not written down.
    pub attempts: u32,
}

/// Which step of which stage gave the record up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageContext {
    /// The stage.
    pub stage_name: String,
    /// The instance of it.
    pub stage_instance: String,
    /// The step within it.
    pub operator_name: String,
    /// The kind of the failure, by which a flow handles it: `transform_failure`, `lookup_failure`,
    /// `rule_failure` or `correlation_failure`. Letters of earlier versions have none.
    pub failure_kind: Option<String>,
}

/// A record given up on, with its history.
///
/// ```
/// # use tidegate_core::{Code, EventId, Offset, Partition, TierIndex, Topic};
/// use tidegate_core::DeadLetter;
/// use tidegate_core::dead_letter::{LastFailure, RecordOrigin, Reason};
/// let letter = DeadLetter {
///     event_id: EventId::from_u128(7),
///     origin: RecordOrigin {
///         topic: Topic::new("orders")?, partition: Partition(3), offset: Offset(14_209), timestamp_ms: 5,
///     },
///     key: None,
///     value: Some("{}".into()),
///     headers: Vec::new(),
///     reason: Reason::NonRetryable,
///     dead_at_ms: 9,
///     attempts: 1,
///     first_failure_ms: 8,
///     failure: LastFailure {
///         code: Code::from_static("schema.invalid"), message: "no total".into(), stack: String::new(),
///     },
///     tier: TierIndex(0),
///     trail: Vec::new(),
///     replays: 0,
///     group: None,
///     stage: None,
/// };
/// let read = DeadLetter::from_record(letter.key.clone(), letter.value.clone(), &letter.to_headers());
/// assert_eq!(read, Ok(letter));
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a dead letter that is not written is a lost event"]
pub struct DeadLetter {
    /// The event.
    pub event_id: EventId,
    /// Where it first lay.
    pub origin: RecordOrigin,
    /// Its key, untouched; none stays none.
    pub key: Option<Bytes>,
    /// Its value, untouched; none stays none.
    pub value: Option<Bytes>,
    /// The headers that others gave it, untouched and in their order.
    pub headers: Vec<Header>,
    /// Why it was given up on.
    pub reason: Reason,
    /// When, in milliseconds since 1970.
    pub dead_at_ms: u64,
    /// How many attempts there were in all.
    pub attempts: u32,
    /// When it first failed, in milliseconds since 1970.
    pub first_failure_ms: u64,
    /// The failure that ended it.
    pub failure: LastFailure,
    /// The tier it was in.
    pub tier: TierIndex,
    /// The last failure of each tier before, in their order.
    pub trail: Vec<TierFailure>,
    /// How often it was replayed.
    pub replays: u32,
    /// The consumer group that gave it up, if one did. Others share the topic.
    pub group: Option<GroupName>,
    /// The stage it comes from, if it comes from one.
    pub stage: Option<StageContext>,
}

impl DeadLetter {
    /// The same with message and stack cut to their limits, which is how it is written down.
    pub fn bounded(mut self) -> Self {
        self.failure.message = text::first_chars(&self.failure.message, MESSAGE_LIMIT).to_owned();
        self.failure.stack = text::first_bytes(&self.failure.stack, STACK_LIMIT).to_owned();
        self
    }
}
