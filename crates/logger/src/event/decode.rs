//! From a line to its event.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::EventId;

use super::json::Members;
use super::{Event, Json, Properties, Text};

/// The content of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The event, without the transport's properties.
    pub event: Event,
    /// Its id, where the line has one. Lines of other writers may not.
    pub id: Option<EventId>,
}

/// Why a line is not an event.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Some bytes are not text.
    #[error("the event is not valid UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first byte that is not part of a character.
        at: usize,
    },
    /// The text is not one JSON object.
    #[error("the event is not a JSON object")]
    NotAnObject {
        /// Where reading it stopped, and why.
        #[source]
        source: serde_json::Error,
    },
    /// A documented field holds something else than documented.
    #[error("`{field}` is {found}, and must be {expected}")]
    Field {
        /// The field.
        field: String,
        /// The beginning of the JSON that stands there.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
}

impl Event {
    /// Reads one JSON object.
    ///
    /// Every field may be missing, and one that is `null` counts as missing. Whether an event is
    /// complete is for [`validate`](Event::validate) and the API to say. Properties that are not
    /// documented are kept as they stand. Of the transport's four, `_id` is read and the others
    /// are passed over.
    ///
    /// ```
    /// use tidegate_logger::Event;
    /// let decoded = Event::decode(br#"{"processName":"CheckIn","mood":"good","_seq":7}"#)?;
    /// assert_eq!(decoded.event.process_name.as_deref(), Some("CheckIn"));
    /// assert_eq!(decoded.event.extras().properties.len(), 1);
    /// assert_eq!(decoded.id, None);
    /// assert!(Event::decode(br#"{"processStatus":"BEGUN"}"#).is_err());
    /// # Ok::<(), tidegate_logger::DecodeError>(())
    /// ```
    ///
    /// # Errors
    /// The bytes are not a JSON object in UTF-8, or a documented field is of another type.
    pub fn decode(json: &[u8]) -> Result<Decoded, DecodeError> {
        let text = std::str::from_utf8(json).map_err(|error| DecodeError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        let Members(members) =
            serde_json::from_str(text).map_err(|source| DecodeError::NotAnObject { source })?;

        let mut event = Self::default();
        let mut id = None;
        let mut unknown = Vec::new();
        for (name, value) in members {
            match &*name {
                "_id" => id = read("_id", "a UUID", value)?,
                "_seq" | "_sum" | "_crc" => {}
                _ if event.assign(&name, value)? => {}
                _ => unknown.push((name, Json::of_raw(value))),
            }
        }
        if !unknown.is_empty() {
            event.extras_mut().properties = Properties::from_read(unknown);
        }
        Ok(Decoded { event, id })
    }

    /// Sets a documented field; says whether `name` is one.
    fn assign(&mut self, name: &str, value: &RawValue) -> Result<bool, DecodeError> {
        match name {
            "applicationId" => self.application_id = text(name, value)?,
            "correlationId" => self.correlation_id = text(name, value)?,
            "processName" => self.process_name = text(name, value)?,
            "processStatus" => self.process_status = word(name, PROCESS_STATUS, value)?,
            "step" => self.step = text(name, value)?,
            "details" => self.details = text(name, value)?,
            "targetSystem" => self.target_system = text(name, value)?,
            "originatingSystem" => self.originating_system = text(name, value)?,
            "timestamp" => self.timestamp = timestamp(name, value)?,
            "userId" => self.user_id = text(name, value)?,
            "eventStatus" => self.event_status = word(name, EVENT_STATUS, value)?,
            "traceId" => self.extras_mut().trace_id = text(name, value)?,
            "spanId" => self.extras_mut().span_id = text(name, value)?,
            "parentSpanId" => self.extras_mut().parent_span_id = text(name, value)?,
            "accountId" => self.extras_mut().account_id = text(name, value)?,
            "identifiers" => self.extras_mut().identifiers = object(name, value)?,
            "metadata" => self.extras_mut().metadata = object(name, value)?,
            "result" => self.extras_mut().result = text(name, value)?,
            "executionTimeMs" => self.extras_mut().execution_time_ms = number(name, value)?,
            "errorCode" => self.extras_mut().error_code = text(name, value)?,
            "errorMessage" => self.extras_mut().error_message = text(name, value)?,
            "idempotencyKey" => self.extras_mut().idempotency_key = text(name, value)?,
            "stepSequence" => self.extras_mut().step_sequence = number(name, value)?,
            "batchId" => self.extras_mut().batch_id = text(name, value)?,
            "spanLinks" => self.extras_mut().span_links = read(name, "a list of texts", value)?,
            "endpoint" => self.extras_mut().endpoint = text(name, value)?,
            "httpMethod" => self.extras_mut().http_method = text(name, value)?,
            "httpStatusCode" => {
                self.extras_mut().http_status_code = read(name, HTTP_STATUS, value)?
            }
            "requestPayload" => self.extras_mut().request_payload = json(value),
            "responsePayload" => self.extras_mut().response_payload = json(value),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether `name` is a documented field.
pub(super) fn is_field(name: &str) -> bool {
    let assigned = Event::default().assign(name, RawValue::NULL);
    assigned.is_ok_and(|is_known| is_known)
}

const PROCESS_STATUS: &str = "PROCESS_START, STEP, PROCESS_END or ERROR";
const EVENT_STATUS: &str = "SUCCESS, FAILURE, IN_PROGRESS, SKIPPED or WARNING";
const HTTP_STATUS: &str = "a number from 100 to 599";

fn text(field: &str, value: &RawValue) -> Result<Option<Text>, DecodeError> {
    read(field, "a text", value)
}

fn number(field: &str, value: &RawValue) -> Result<Option<u64>, DecodeError> {
    read(field, "a whole number that is not negative", value)
}

fn object(field: &str, value: &RawValue) -> Result<Option<Properties>, DecodeError> {
    let members: Option<Members<'_>> = read(field, "a JSON object", value)?;
    Ok(members.map(|Members(members)| {
        let read = members.into_iter();
        let read = read.map(|(name, value)| (name, Json::of_raw(value)));
        Properties::from_read(read.collect())
    }))
}

fn json(value: &RawValue) -> Option<Json> {
    (value.get() != "null").then(|| Json::of_raw(value))
}

fn timestamp(field: &str, value: &RawValue) -> Result<Option<Timestamp>, DecodeError> {
    const EXPECTED: &str = "a time in ISO-8601 with an offset or `Z`";
    let text: Option<String> = read(field, EXPECTED, value)?;
    let parsed = text.map(|text| text.parse()).transpose();
    parsed.map_err(|_| wrong(field, EXPECTED, value))
}

/// A value of an enum, which serde would also take from an object of one member.
fn word<'a, T: Deserialize<'a>>(
    field: &str,
    expected: &'static str,
    value: &'a RawValue,
) -> Result<Option<T>, DecodeError> {
    if value.get().starts_with('{') {
        return Err(wrong(field, expected, value));
    }
    read(field, expected, value)
}

fn read<'a, T: Deserialize<'a>>(
    field: &str,
    expected: &'static str,
    value: &'a RawValue,
) -> Result<Option<T>, DecodeError> {
    serde_json::from_str(value.get()).map_err(|_| wrong(field, expected, value))
}

fn wrong(field: &str, expected: &'static str, value: &RawValue) -> DecodeError {
    // Enough to see what it is; a whole payload would only fill the log.
    const SHOWN: usize = 60;
    DecodeError::Field {
        field: field.to_owned(),
        expected,
        found: value.get().chars().take(SHOWN).collect(),
    }
}
