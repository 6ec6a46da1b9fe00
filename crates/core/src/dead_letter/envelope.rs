//! A dead letter as a JSON envelope around its value.
//!
//! A value that is JSON stands in `original_record` as it is, byte for byte; any other value as a
//! string or as `{"hex": "…"}`, and `original_encoding` says which.
//!
//! `error_type` is the kind of failure in a stage, and elsewhere the code; `error_code` is always the code.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{DeadLetter, Header, LastFailure, Reason, RecordOrigin, StageContext, text};
use crate::{
    Code, EventId, GroupName, Offset, Partition, TRACEPARENT, TierIndex, Topic, Traceparent,
};

/// An envelope that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// It is not JSON of this form.
    #[error("the envelope of a dead letter is not of the documented form")]
    Form(#[source] serde_json::Error),
    /// A field does not hold what it should.
    #[error("field `{field}` of a dead letter's envelope cannot be read")]
    Field {
        /// Which one.
        field: &'static str,
    },
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    event_id: EventId,
    original_record: Box<RawValue>,
    original_encoding: Encoding,
    original_key: Value,
    original_headers: Vec<(String, Value)>,
    original_topic: String,
    original_partition: i32,
    original_offset: i64,
    original_timestamp: i64,
    reason: Reason,
    error_type: String,
    /// Earlier versions wrote none; their type is the code.
    #[serde(default)]
    error_code: Option<String>,
    error_message: String,
    error_stack_trace: String,
    retry_count: u32,
    retry_tier: u32,
    tiers: Vec<Vec<Value>>,
    replay_count: u32,
    /// Earlier versions wrote none.
    #[serde(default)]
    group: Option<String>,
    first_failure_time: u64,
    stage_name: Option<String>,
    stage_instance: Option<String>,
    operator_name: Option<String>,
    /// For people; `processing_time_ms` is what is read back.
    processing_time: String,
    processing_time_ms: u64,
    trace_id: Option<String>,
    span_id: Option<String>,
}

#[derive(Serialize, Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// No value at all.
    None,
    Json,
    /// A string, or an object with the bytes in hex.
    Bytes,
}

impl DeadLetter {
    /// The envelope for the dead-letter stream of a stage, as one line of JSON.
    #[must_use]
    pub fn to_envelope(&self) -> String {
        let bounded = self.clone().bounded();
        let (original_encoding, original_record) = encode(self.value.as_ref());
        let (trace_id, span_id) = self.trace();
        let stage = self.stage.as_ref();
        let envelope = Envelope {
            event_id: self.event_id,
            original_record,
            original_encoding,
            original_key: text::to_json(self.key.as_ref()),
            original_headers: self
                .headers
                .iter()
                .map(|header| (header.name.clone(), text::to_json(header.value.as_ref())))
                .collect(),
            original_topic: self.origin.topic.to_string(),
            original_partition: self.origin.partition.0,
            original_offset: self.origin.offset.0,
            original_timestamp: self.origin.timestamp_ms,
            reason: self.reason,
            error_type: stage
                .and_then(|stage| stage.failure_kind.clone())
                .unwrap_or_else(|| self.failure.code.to_string()),
            error_code: Some(self.failure.code.to_string()),
            error_message: bounded.failure.message,
            error_stack_trace: bounded.failure.stack,
            retry_count: self.attempts,
            retry_tier: self.tier.0,
            tiers: text::trail_to_json(&self.trail),
            replay_count: self.replays,
            group: self.group.as_ref().map(ToString::to_string),
            first_failure_time: self.first_failure_ms,
            stage_name: stage.map(|s| s.stage_name.clone()),
            stage_instance: stage.map(|s| s.stage_instance.clone()),
            operator_name: stage.map(|s| s.operator_name.clone()),
            processing_time: iso(self.dead_at_ms),
            processing_time_ms: self.dead_at_ms,
            trace_id,
            span_id,
        };
        // Plain fields and checked JSON: there is nothing in it that could fail to be written.
        serde_json::to_string(&envelope).unwrap_or_default()
    }

    /// Reads a dead letter back from its envelope.
    ///
    /// # Errors
    /// The text is not such an envelope.
    pub fn from_envelope(envelope: &str) -> Result<Self, EnvelopeError> {
        let read: Envelope = serde_json::from_str(envelope).map_err(EnvelopeError::Form)?;
        let bad = |field: &'static str| EnvelopeError::Field { field };
        let headers: Option<Vec<Header>> = read
            .original_headers
            .into_iter()
            .map(|(name, value)| {
                Some(Header {
                    name,
                    value: text::from_json(&value)?,
                })
            })
            .collect();
        let value = decode(read.original_encoding, &read.original_record)
            .ok_or_else(|| bad("original_record"))?;
        let is_kind = |code: &String| *code != read.error_type;
        let failure_kind = read.error_code.as_ref().filter(|code| is_kind(code));
        let failure_kind = failure_kind.map(|_| read.error_type.clone());
        Ok(Self {
            event_id: read.event_id,
            origin: RecordOrigin {
                topic: Topic::new(read.original_topic).map_err(|_| bad("original_topic"))?,
                partition: Partition(read.original_partition),
                offset: Offset(read.original_offset),
                timestamp_ms: read.original_timestamp,
            },
            key: text::from_json(&read.original_key).ok_or_else(|| bad("original_key"))?,
            value,
            headers: headers.ok_or_else(|| bad("original_headers"))?,
            reason: read.reason,
            dead_at_ms: read.processing_time_ms,
            attempts: read.retry_count,
            first_failure_ms: read.first_failure_time,
            failure: LastFailure {
                code: Code::verbatim(read.error_code.unwrap_or(read.error_type)),
                message: read.error_message,
                stack: read.error_stack_trace,
            },
            tier: TierIndex(read.retry_tier),
            trail: text::trail_from_json(&read.tiers).ok_or_else(|| bad("tiers"))?,
            replays: read.replay_count,
            group: match read.group.map(GroupName::new) {
                Some(group) => Some(group.map_err(|_| bad("group"))?),
                None => None,
            },
            stage: match (read.stage_name, read.stage_instance, read.operator_name) {
                (Some(stage_name), Some(stage_instance), Some(operator_name)) => {
                    Some(StageContext {
                        stage_name,
                        stage_instance,
                        operator_name,
                        failure_kind,
                    })
                }
                _ => None,
            },
        })
    }

    /// Trace and span of the W3C `traceparent` header, if there is one.
    fn trace(&self) -> (Option<String>, Option<String>) {
        let header = self
            .headers
            .iter()
            .find(|header| header.name == TRACEPARENT);
        let text = header
            .and_then(|header| header.value.as_deref())
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        let parent = text.and_then(|text| text.parse::<Traceparent>().ok());
        let parts = |parent: Traceparent| (parent.trace_id.to_string(), parent.span_id.to_string());
        parent.map(parts).unzip()
    }
}

fn encode(value: Option<&Bytes>) -> (Encoding, Box<RawValue>) {
    let Some(bytes) = value else {
        return (Encoding::None, RawValue::NULL.to_owned());
    };
    let as_json = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| RawValue::from_string(text.to_owned()).ok())
        // White space around the value would not be kept by the parser that reads it back.
        .filter(|raw| raw.get().as_bytes() == bytes.as_ref());
    match as_json {
        Some(raw) => (Encoding::Json, raw),
        None => {
            let raw = RawValue::from_string(text::to_json(value).to_string());
            (
                Encoding::Bytes,
                raw.unwrap_or_else(|_| RawValue::NULL.to_owned()),
            )
        }
    }
}

fn decode(encoding: Encoding, raw: &RawValue) -> Option<Option<Bytes>> {
    match encoding {
        Encoding::None => Some(None),
        Encoding::Json => Some(Some(Bytes::from(raw.get().to_owned().into_bytes()))),
        Encoding::Bytes => text::from_json(&serde_json::from_str(raw.get()).ok()?),
    }
}

fn iso(ms: u64) -> String {
    let stamp = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map(|stamp| stamp.to_string()).unwrap_or_default()
}
