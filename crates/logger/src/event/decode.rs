//! From a line to its event.

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::EventId;

use super::json::Members;
use super::{Event, Json, ProcessStatus, Properties, StepStatus, Text};

/// The content of a line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Decoded {
    /// The event, without the transport's properties.
    pub event: Event,
    /// Its id, where the line has one. Lines of other writers may not.
    pub id: Option<EventId>,
}

/// Why a line is not an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        field: &'static str,
        /// The beginning of the JSON that stands there.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
}

impl Event {
    /// Reads one JSON object.
    ///
    /// Every field may be missing, and one that is `null` counts as missing; whether an event is
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
                _ => {
                    let is_known =
                        event.assign(&name, value)? || event.assign_extra(&name, value)?;
                    if !is_known {
                        unknown.push((name, Json::of_raw(value)));
                    }
                }
            }
        }
        if !unknown.is_empty() {
            event.extras_mut().properties = Properties::from_read(unknown);
        }
        Ok(Decoded { event, id })
    }

    /// Sets one of the fields in the event itself; says whether `name` is one.
    fn assign(&mut self, name: &str, value: &RawValue) -> Result<bool, DecodeError> {
        match name {
            "applicationId" => self.application_id = text("applicationId", value)?,
            "correlationId" => self.correlation_id = text("correlationId", value)?,
            "processName" => self.process_name = text("processName", value)?,
            "processStatus" => self.process_status = process_status(value)?,
            "step" => self.step = text("step", value)?,
            "details" => self.details = text("details", value)?,
            "targetSystem" => self.target_system = text("targetSystem", value)?,
            "originatingSystem" => self.originating_system = text("originatingSystem", value)?,
            "timestamp" => self.timestamp = timestamp(value)?,
            "userId" => self.user_id = text("userId", value)?,
            "eventStatus" => self.event_status = event_status(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets one of the optional fields; says whether `name` is one.
    fn assign_extra(&mut self, name: &str, value: &RawValue) -> Result<bool, DecodeError> {
        if !super::FIELDS.contains(&name) {
            return Ok(false);
        }
        let extras = self.extras_mut();
        match name {
            "traceId" => extras.trace_id = text("traceId", value)?,
            "spanId" => extras.span_id = text("spanId", value)?,
            "parentSpanId" => extras.parent_span_id = text("parentSpanId", value)?,
            "accountId" => extras.account_id = text("accountId", value)?,
            "identifiers" => extras.identifiers = object("identifiers", value)?,
            "metadata" => extras.metadata = object("metadata", value)?,
            "result" => extras.result = text("result", value)?,
            "executionTimeMs" => extras.execution_time_ms = number("executionTimeMs", value)?,
            "errorCode" => extras.error_code = text("errorCode", value)?,
            "errorMessage" => extras.error_message = text("errorMessage", value)?,
            "idempotencyKey" => extras.idempotency_key = text("idempotencyKey", value)?,
            "stepSequence" => extras.step_sequence = number("stepSequence", value)?,
            "batchId" => extras.batch_id = text("batchId", value)?,
            "spanLinks" => extras.span_links = read("spanLinks", "a list of texts", value)?,
            "endpoint" => extras.endpoint = text("endpoint", value)?,
            "httpMethod" => extras.http_method = text("httpMethod", value)?,
            "httpStatusCode" => {
                let expected = "a number from 100 to 599";
                extras.http_status_code = read("httpStatusCode", expected, value)?;
            }
            "requestPayload" => extras.request_payload = json(value),
            "responsePayload" => extras.response_payload = json(value),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn text(field: &'static str, value: &RawValue) -> Result<Option<Text>, DecodeError> {
    read(field, "a text", value)
}

fn number(field: &'static str, value: &RawValue) -> Result<Option<u64>, DecodeError> {
    read(field, "a whole number that is not negative", value)
}

fn object(field: &'static str, value: &RawValue) -> Result<Option<Properties>, DecodeError> {
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

fn process_status(value: &RawValue) -> Result<Option<ProcessStatus>, DecodeError> {
    const EXPECTED: &str = "PROCESS_START, STEP, PROCESS_END or ERROR";
    parsed("processStatus", EXPECTED, value, ProcessStatus::from_wire)
}

fn event_status(value: &RawValue) -> Result<Option<StepStatus>, DecodeError> {
    const EXPECTED: &str = "SUCCESS, FAILURE, IN_PROGRESS, SKIPPED or WARNING";
    parsed("eventStatus", EXPECTED, value, StepStatus::from_wire)
}

fn timestamp(value: &RawValue) -> Result<Option<jiff::Timestamp>, DecodeError> {
    const EXPECTED: &str = "a time in ISO-8601 with an offset or `Z`";
    parsed("timestamp", EXPECTED, value, |text| text.parse().ok())
}

fn parsed<T>(
    field: &'static str,
    expected: &'static str,
    value: &RawValue,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, DecodeError> {
    let text: Option<String> = read(field, expected, value)?;
    let parsed = |text: String| parse(&text).ok_or_else(|| wrong(field, expected, value));
    text.map(parsed).transpose()
}

fn read<'a, T: Deserialize<'a>>(
    field: &'static str,
    expected: &'static str,
    value: &'a RawValue,
) -> Result<Option<T>, DecodeError> {
    serde_json::from_str(value.get()).map_err(|_| wrong(field, expected, value))
}

fn wrong(field: &'static str, expected: &'static str, value: &RawValue) -> DecodeError {
    // Enough to see what it is; a whole payload would only fill the log.
    const SHOWN: usize = 60;
    DecodeError::Field {
        field,
        expected,
        found: value.get().chars().take(SHOWN).collect(),
    }
}
