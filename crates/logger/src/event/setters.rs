//! Setting the fields of an event, one after the other.

use std::time::SystemTime;

use jiff::Timestamp;

use super::{Event, Json, StepStatus, Text};
use crate::setters::setters;

/// Fields of the documented line.
impl Event {
    setters! {
        /// Sets `applicationId`.
        application_id(id: impl Into<Text>) |it| it.application_id = Some(id.into());
        /// Sets `correlationId`.
        correlation_id(id: impl Into<Text>) |it| it.correlation_id = Some(id.into());
        /// Sets `step`.
        at_step(step: impl Into<Text>) |it| it.step = Some(step.into());
        /// Sets `targetSystem`.
        target_system(system: impl Into<Text>) |it| it.target_system = Some(system.into());
        /// Sets `originatingSystem`.
        originating_system(system: impl Into<Text>)
            |it| it.originating_system = Some(system.into());
        /// Sets `timestamp`. A time outside the years -9999 to 9999 becomes the nearest one inside.
        timestamp(at: SystemTime) |it| it.timestamp = Some(nearest(at));
        /// Sets `userId`.
        user_id(id: impl Into<Text>) |it| it.user_id = Some(id.into());
        /// Sets `eventStatus`.
        event_status(status: StepStatus) |it| it.event_status = Some(status);
    }
}

/// Optional fields.
impl Event {
    setters! {
        /// Sets `traceId`, 32 lowercase hex digits.
        trace_id(id: impl Into<Text>) |it| it.extras_mut().trace_id = Some(id.into());
        /// Sets `spanId`, 16 lowercase hex digits.
        span_id(id: impl Into<Text>) |it| it.extras_mut().span_id = Some(id.into());
        /// Sets `parentSpanId`, 16 lowercase hex digits.
        parent_span_id(id: impl Into<Text>) |it| it.extras_mut().parent_span_id = Some(id.into());
        /// Sets `accountId`.
        account_id(id: impl Into<Text>) |it| it.extras_mut().account_id = Some(id.into());
        /// Adds to `identifiers`.
        identifier(name: impl Into<Text>, value: impl Into<Json>)
            |it| it.extras_mut().identifiers.get_or_insert_default().set(name, value);
        /// Adds to `metadata`.
        metadata(name: impl Into<Text>, value: impl Into<Json>)
            |it| it.extras_mut().metadata.get_or_insert_default().set(name, value);
        /// Sets `result`.
        result(result: impl Into<Text>) |it| it.extras_mut().result = Some(result.into());
        /// Sets `executionTimeMs`.
        execution_time_ms(ms: u64) |it| it.extras_mut().execution_time_ms = Some(ms);
        /// Sets `errorCode`.
        error_code(code: impl Into<Text>) |it| it.extras_mut().error_code = Some(code.into());
        /// Sets `errorMessage`.
        error_message(message: impl Into<Text>)
            |it| it.extras_mut().error_message = Some(message.into());
        /// Sets `idempotencyKey`.
        idempotency_key(key: impl Into<Text>)
            |it| it.extras_mut().idempotency_key = Some(key.into());
        /// Sets `stepSequence`.
        step_sequence(sequence: u64) |it| it.extras_mut().step_sequence = Some(sequence);
        /// Sets `batchId`.
        batch_id(id: impl Into<Text>) |it| it.extras_mut().batch_id = Some(id.into());
        /// Adds to `spanLinks`, 16 lowercase hex digits.
        span_link(id: impl Into<Text>)
            |it| it.extras_mut().span_links.get_or_insert_default().push(id.into());
        /// Sets `endpoint`.
        endpoint(endpoint: impl Into<Text>) |it| it.extras_mut().endpoint = Some(endpoint.into());
        /// Sets `httpMethod`.
        http_method(method: impl Into<Text>) |it| it.extras_mut().http_method = Some(method.into());
        /// Sets `httpStatusCode`.
        http_status_code(code: u16) |it| it.extras_mut().http_status_code = Some(code);
        /// Sets `requestPayload`.
        request_payload(payload: impl Into<Json>)
            |it| it.extras_mut().request_payload = Some(payload.into());
        /// Sets `responsePayload`.
        response_payload(payload: impl Into<Json>)
            |it| it.extras_mut().response_payload = Some(payload.into());
        /// Sets a property that is none of the documented fields.
        ///
        /// A documented field has its own setter, and `_id`, `_seq`, `_sum` and `_crc` are the
        /// transport's. Under such a name nothing is written, and [`validate`](Event::validate) says
        /// so.
        property(name: impl Into<Text>, value: impl Into<Json>)
            |it| it.extras_mut().properties.set(name, value);
    }
}

fn nearest(at: SystemTime) -> Timestamp {
    let outside = if at < SystemTime::UNIX_EPOCH {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::try_from(at).unwrap_or(outside)
}
