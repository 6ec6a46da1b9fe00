//! Setting the fields of an event, one after the other.

use std::time::SystemTime;

use jiff::Timestamp;

use super::{Event, EventStatus, Json, Properties, Text};

/// Fields of the documented line.
impl Event {
    /// Sets `applicationId`.
    #[must_use]
    pub fn application_id(mut self, id: impl Into<Text>) -> Self {
        self.application_id = Some(id.into());
        self
    }

    /// Sets `correlationId`.
    #[must_use]
    pub fn correlation_id(mut self, id: impl Into<Text>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Sets `step`.
    #[must_use]
    pub fn at_step(mut self, step: impl Into<Text>) -> Self {
        self.step = Some(step.into());
        self
    }

    /// Sets `targetSystem`.
    #[must_use]
    pub fn target_system(mut self, system: impl Into<Text>) -> Self {
        self.target_system = Some(system.into());
        self
    }

    /// Sets `originatingSystem`.
    #[must_use]
    pub fn originating_system(mut self, system: impl Into<Text>) -> Self {
        self.originating_system = Some(system.into());
        self
    }

    /// Sets `timestamp`. A time outside the years -9999 to 9999 becomes the nearest one inside.
    #[must_use]
    pub fn timestamp(mut self, at: SystemTime) -> Self {
        let outside = if at < SystemTime::UNIX_EPOCH {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        };
        self.timestamp = Some(Timestamp::try_from(at).unwrap_or(outside));
        self
    }

    /// Sets `userId`.
    #[must_use]
    pub fn user_id(mut self, id: impl Into<Text>) -> Self {
        self.user_id = Some(id.into());
        self
    }

    /// Sets `eventStatus`.
    #[must_use]
    pub fn event_status(mut self, status: EventStatus) -> Self {
        self.event_status = Some(status);
        self
    }
}

/// Optional fields.
impl Event {
    /// Sets `traceId`, 32 lowercase hex digits.
    #[must_use]
    pub fn trace_id(mut self, id: impl Into<Text>) -> Self {
        self.extras_mut().trace_id = Some(id.into());
        self
    }

    /// Sets `spanId`, 16 lowercase hex digits.
    #[must_use]
    pub fn span_id(mut self, id: impl Into<Text>) -> Self {
        self.extras_mut().span_id = Some(id.into());
        self
    }

    /// Sets `parentSpanId`, 16 lowercase hex digits.
    #[must_use]
    pub fn parent_span_id(mut self, id: impl Into<Text>) -> Self {
        self.extras_mut().parent_span_id = Some(id.into());
        self
    }

    /// Sets `accountId`.
    #[must_use]
    pub fn account_id(mut self, id: impl Into<Text>) -> Self {
        self.extras_mut().account_id = Some(id.into());
        self
    }

    /// Adds to `identifiers`.
    #[must_use]
    pub fn identifier(mut self, name: impl Into<Text>, value: impl Into<Json>) -> Self {
        let identifiers = &mut self.extras_mut().identifiers;
        identifiers
            .get_or_insert_with(Properties::new)
            .set(name, value);
        self
    }

    /// Adds to `metadata`.
    #[must_use]
    pub fn metadata(mut self, name: impl Into<Text>, value: impl Into<Json>) -> Self {
        let metadata = &mut self.extras_mut().metadata;
        metadata
            .get_or_insert_with(Properties::new)
            .set(name, value);
        self
    }

    /// Sets `result`.
    #[must_use]
    pub fn result(mut self, result: impl Into<Text>) -> Self {
        self.extras_mut().result = Some(result.into());
        self
    }

    /// Sets `executionTimeMs`.
    #[must_use]
    pub fn execution_time_ms(mut self, ms: u64) -> Self {
        self.extras_mut().execution_time_ms = Some(ms);
        self
    }

    /// Sets `errorCode`.
    #[must_use]
    pub fn error_code(mut self, code: impl Into<Text>) -> Self {
        self.extras_mut().error_code = Some(code.into());
        self
    }

    /// Sets `errorMessage`.
    #[must_use]
    pub fn error_message(mut self, message: impl Into<Text>) -> Self {
        self.extras_mut().error_message = Some(message.into());
        self
    }

    /// Sets `idempotencyKey`.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<Text>) -> Self {
        self.extras_mut().idempotency_key = Some(key.into());
        self
    }

    /// Sets `stepSequence`.
    #[must_use]
    pub fn step_sequence(mut self, sequence: u64) -> Self {
        self.extras_mut().step_sequence = Some(sequence);
        self
    }

    /// Sets `batchId`.
    #[must_use]
    pub fn batch_id(mut self, id: impl Into<Text>) -> Self {
        self.extras_mut().batch_id = Some(id.into());
        self
    }

    /// Adds to `spanLinks`, 16 lowercase hex digits.
    #[must_use]
    pub fn span_link(mut self, id: impl Into<Text>) -> Self {
        let links = &mut self.extras_mut().span_links;
        links.get_or_insert_default().push(id.into());
        self
    }

    /// Sets `endpoint`.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<Text>) -> Self {
        self.extras_mut().endpoint = Some(endpoint.into());
        self
    }

    /// Sets `httpMethod`.
    #[must_use]
    pub fn http_method(mut self, method: impl Into<Text>) -> Self {
        self.extras_mut().http_method = Some(method.into());
        self
    }

    /// Sets `httpStatusCode`.
    #[must_use]
    pub fn http_status_code(mut self, code: u16) -> Self {
        self.extras_mut().http_status_code = Some(code);
        self
    }

    /// Sets `requestPayload`.
    #[must_use]
    pub fn request_payload(mut self, payload: impl Into<Json>) -> Self {
        self.extras_mut().request_payload = Some(payload.into());
        self
    }

    /// Sets `responsePayload`.
    #[must_use]
    pub fn response_payload(mut self, payload: impl Into<Json>) -> Self {
        self.extras_mut().response_payload = Some(payload.into());
        self
    }

    /// Sets a property that is none of the documented fields.
    ///
    /// A documented field has its own setter, and `_id`, `_seq`, `_sum` and `_crc` are the
    /// transport's: under such a name nothing is written, and [`validate`](Event::validate) says
    /// so.
    #[must_use]
    pub fn property(mut self, name: impl Into<Text>, value: impl Into<Json>) -> Self {
        self.extras_mut().properties.set(name, value);
        self
    }
}
