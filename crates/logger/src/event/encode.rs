//! From an event to its line.

use jiff::Timestamp;
use tidegate_core::EventId;

use super::{Defaults, Event, Extras, Properties, Text, is_taken, or_default, write};

/// A field name as it stands between two fields.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

impl Event {
    /// Appends the event to `into` as one JSON object, with `id` as its last property `_id`.
    ///
    /// An absent timestamp becomes `timestamp_ms`, in milliseconds since 1970; other absent fields
    /// come from `defaults`. An event of a trace without a span gets one that follows from its id,
    /// so it is the same at every sending. There is no line break, neither inside nor at the end.
    ///
    /// ```
    /// use tidegate_logger::{Defaults, Event};
    /// let id = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
    /// let mut line = Vec::new();
    /// Event::end("CreateBooking", "done").encode(id, 1_780_308_930_123, &Defaults::default(), &mut line);
    /// assert_eq!(
    ///     String::from_utf8(line)?,
    ///     r#"{"processName":"CreateBooking","processStatus":"PROCESS_END","details":"done","#.to_owned()
    ///         + r#""timestamp":"2026-06-01T10:15:30.123Z","userId":"system","#
    ///         + r#""_id":"019a8f3e-5c00-7abc-8def-0123456789ab"}"#
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn encode(&self, id: EventId, timestamp_ms: u64, defaults: &Defaults, into: &mut Vec<u8>) {
        self.encode_open(id, timestamp_ms, defaults, into);
        into.push(b'}');
    }

    /// As [`encode`](Event::encode), without the closing brace: the transport may append further
    /// properties of its own, each with a comma before it, and closes the object.
    pub fn encode_open(
        &self,
        id: EventId,
        timestamp_ms: u64,
        defaults: &Defaults,
        into: &mut Vec<u8>,
    ) {
        let start = into.len();
        self.encode_line_fields(timestamp_ms, defaults, into);
        if let Some(extras) = self.extras.as_deref() {
            extras.encode(id, into);
        }
        if let Some(status) = self.event_status {
            word(into, key!("eventStatus"), status.as_str());
        }
        if let Some(extras) = self.extras.as_deref() {
            extras.encode_further(into);
            own_properties(into, &extras.properties);
        }
        raw(into, key!("_id"));
        write::event_id(into, id);
        // Every property begins with a comma; the id is always there, so one of them is the first.
        into[start] = b'{';
    }

    /// The ten fields of the documented line, in its order.
    fn encode_line_fields(&self, timestamp_ms: u64, defaults: &Defaults, into: &mut Vec<u8>) {
        let application = or_default(self.application_id.as_ref(), &defaults.application_id);
        let target = or_default(self.target_system.as_ref(), &defaults.target_system);
        let origin = or_default(
            self.originating_system.as_ref(),
            &defaults.originating_system,
        );
        let user = or_default(self.user_id.as_ref(), &defaults.user_id);

        text(into, key!("applicationId"), application);
        text(into, key!("correlationId"), self.correlation_id.as_deref());
        text(into, key!("processName"), self.process_name.as_deref());
        if let Some(status) = self.process_status {
            word(into, key!("processStatus"), status.as_str());
        }
        text(into, key!("step"), self.step.as_deref());
        text(into, key!("details"), self.details.as_deref());
        text(into, key!("targetSystem"), target);
        text(into, key!("originatingSystem"), origin);
        raw(into, key!("timestamp"));
        write::timestamp(
            into,
            self.timestamp.unwrap_or_else(|| from_ms(timestamp_ms)),
        );
        text(into, key!("userId"), user);
    }
}

impl Extras {
    fn encode(&self, id: EventId, into: &mut Vec<u8>) {
        text(into, key!("traceId"), self.trace_id.as_deref());
        if self.span_id.is_none() && self.trace_id.is_some() {
            raw(into, key!("spanId"));
            write::span_of(into, id);
        }
        text(into, key!("spanId"), self.span_id.as_deref());
        text(into, key!("parentSpanId"), self.parent_span_id.as_deref());
        text(into, key!("accountId"), self.account_id.as_deref());
        if let Some(identifiers) = &self.identifiers {
            raw(into, key!("identifiers"));
            write::object(into, identifiers);
        }
        if let Some(metadata) = &self.metadata {
            raw(into, key!("metadata"));
            write::object(into, metadata);
        }
        text(into, key!("result"), self.result.as_deref());
        number(into, key!("executionTimeMs"), self.execution_time_ms);
        text(into, key!("errorCode"), self.error_code.as_deref());
        text(into, key!("errorMessage"), self.error_message.as_deref());
        text(
            into,
            key!("idempotencyKey"),
            self.idempotency_key.as_deref(),
        );
    }

    fn encode_further(&self, into: &mut Vec<u8>) {
        number(into, key!("stepSequence"), self.step_sequence);
        text(into, key!("batchId"), self.batch_id.as_deref());
        if let Some(links) = &self.span_links {
            raw(into, key!("spanLinks"));
            list(into, links);
        }
        text(into, key!("endpoint"), self.endpoint.as_deref());
        text(into, key!("httpMethod"), self.http_method.as_deref());
        let status = self.http_status_code.map(u64::from);
        number(into, key!("httpStatusCode"), status);
        if let Some(payload) = &self.request_payload {
            raw(into, key!("requestPayload"));
            write::json(into, payload);
        }
        if let Some(payload) = &self.response_payload {
            raw(into, key!("responsePayload"));
            write::json(into, payload);
        }
    }
}

fn own_properties(into: &mut Vec<u8>, properties: &Properties) {
    for (name, value) in properties.iter().filter(|(name, _)| !is_taken(name)) {
        into.push(b',');
        write::text(into, name);
        into.push(b':');
        write::json(into, value);
    }
}

fn text(into: &mut Vec<u8>, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        raw(into, key);
        write::text(into, value);
    }
}

fn number(into: &mut Vec<u8>, key: &str, value: Option<u64>) {
    if let Some(value) = value {
        raw(into, key);
        write::number(into, value);
    }
}

/// A word that needs no escaping.
fn word(into: &mut Vec<u8>, key: &str, word: &str) {
    raw(into, key);
    into.push(b'"');
    raw(into, word);
    into.push(b'"');
}

fn list(into: &mut Vec<u8>, texts: &[Text]) {
    into.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        write::text(into, text);
    }
    into.push(b']');
}

fn raw(into: &mut Vec<u8>, bytes: &str) {
    into.extend_from_slice(bytes.as_bytes());
}

fn from_ms(ms: u64) -> Timestamp {
    // A clock past the year 9999 is wrong, and a wrong clock is no reason to lose an event.
    i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .unwrap_or(Timestamp::MAX)
}
