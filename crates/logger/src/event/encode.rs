//! From an event to its line.

use jiff::Timestamp;
use tidegate_core::EventId;

use super::{Defaults, Event, Extras, Properties, Text, is_taken, write};

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
        Encoder::new(defaults).encode(self, id, timestamp_ms, into);
    }
}

/// Writes events as lines, many with the same defaults one after the other: what is the same in
/// most of them is made once.
pub(crate) struct Encoder {
    /// The defaults as they stand in a line, with their field names; empty where there is none.
    application: Vec<u8>,
    target: Vec<u8>,
    origin: Vec<u8>,
    user: Vec<u8>,
    /// The second that was written last, and its text up to the dot.
    second: Option<i64>,
    date: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(defaults: &Defaults) -> Self {
        let property = |key: &str, value: &Text| {
            let mut written = Vec::new();
            text(
                &mut written,
                key,
                Some(&**value).filter(|it| !it.is_empty()),
            );
            written
        };
        Self {
            application: property(key!("applicationId"), &defaults.application_id),
            target: property(key!("targetSystem"), &defaults.target_system),
            origin: property(key!("originatingSystem"), &defaults.originating_system),
            user: property(key!("userId"), &defaults.user_id),
            second: None,
            date: Vec::new(),
        }
    }

    /// As [`Event::encode`].
    pub(crate) fn encode(
        &mut self,
        event: &Event,
        id: EventId,
        timestamp_ms: u64,
        into: &mut Vec<u8>,
    ) {
        self.encode_open(event, id, timestamp_ms, into);
        into.push(b'}');
    }

    /// As [`encode`](Self::encode), without the closing brace: the transport may append further
    /// properties of its own, each with a comma before it, and closes the object.
    pub(crate) fn encode_open(
        &mut self,
        event: &Event,
        id: EventId,
        timestamp_ms: u64,
        into: &mut Vec<u8>,
    ) {
        let start = into.len();
        self.encode_line_fields(event, timestamp_ms, into);
        if let Some(extras) = event.extras.0.as_deref() {
            extras.encode(id, into);
        }
        if let Some(status) = event.event_status {
            word(into, key!("eventStatus"), status.as_str());
        }
        if let Some(extras) = event.extras.0.as_deref() {
            extras.encode_further(into);
            own_properties(into, &extras.properties);
        }
        raw(into, key!("_id"));
        write::event_id(into, id);
        // Every property begins with a comma; the id is always there, so one of them is the first.
        into[start] = b'{';
    }

    /// The ten fields of the documented line, in its order.
    fn encode_line_fields(&mut self, event: &Event, timestamp_ms: u64, into: &mut Vec<u8>) {
        let given = event.application_id.as_deref();
        text_or(into, key!("applicationId"), given, &self.application);
        text(into, key!("correlationId"), event.correlation_id.as_deref());
        text(into, key!("processName"), event.process_name.as_deref());
        if let Some(status) = event.process_status {
            word(into, key!("processStatus"), status.as_str());
        }
        text(into, key!("step"), event.step.as_deref());
        text(into, key!("details"), event.details.as_deref());
        let given = event.target_system.as_deref();
        text_or(into, key!("targetSystem"), given, &self.target);
        let given = event.originating_system.as_deref();
        text_or(into, key!("originatingSystem"), given, &self.origin);
        raw(into, key!("timestamp"));
        match event.timestamp {
            Some(at) => write::timestamp(into, at),
            None => self.encode_now(timestamp_ms, into),
        }
        text_or(into, key!("userId"), event.user_id.as_deref(), &self.user);
    }

    /// The time at which an event was taken on. Thousands are of the same second, and working out
    /// its date would be a fifth of the cost of a line.
    fn encode_now(&mut self, timestamp_ms: u64, into: &mut Vec<u8>) {
        let at = from_ms(timestamp_ms);
        if at == Timestamp::MAX {
            return write::timestamp(into, at);
        }
        if self.second != Some(at.as_second()) {
            self.second = Some(at.as_second());
            self.date.clear();
            write::timestamp(&mut self.date, at);
            self.date.truncate(self.date.len() - write::MILLISECONDS);
        }
        into.extend_from_slice(&self.date);
        write::milliseconds(into, timestamp_ms % 1_000);
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

/// The given value, else a default as it stands in a line.
fn text_or(into: &mut Vec<u8>, key: &str, given: Option<&str>, default: &[u8]) {
    match given {
        Some(given) => text(into, key, Some(given)),
        None => into.extend_from_slice(default),
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
