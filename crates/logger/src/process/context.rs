//! Setting the context of a process: fixed, additive and one-shot.

use super::ProcessLogger;
use crate::event::{Json, Text};
use crate::setters::setters;
use crate::trace_context::{TraceContext, by_name};
use crate::{SpanId, TraceId};

/// Fixed context: stands on every event of the process.
impl ProcessLogger {
    setters! {
        /// The business case.
        with_correlation_id(id: impl Into<Text>) |it| it.common.correlation_id = Some(id.into());
        /// The trace.
        with_trace_id(id: TraceId) |it| it.trace_id = id;
    }

    /// The trace and the business case of a request; the root span becomes part of the caller's.
    #[must_use]
    pub fn with_trace(mut self, context: &TraceContext) -> Self {
        self.common.correlation_id = Some(Text::Owned(context.correlation_id.clone()));
        self.trace_id = context.trace_id;
        self.caller = context.span_id;
        self
    }

    setters! {
        /// The root span of a process that was started elsewhere and goes on here.
        with_root_span(span: SpanId) |it| it.root_span = Some(span);
        /// The application that speaks.
        with_application_id(id: impl Into<Text>) |it| it.common.application_id = Some(id.into());
        /// The system that acts.
        with_originating_system(system: impl Into<Text>)
            |it| it.common.originating_system = Some(system.into());
        /// The system that is acted on, where an event names no other.
        with_target_system(system: impl Into<Text>)
            |it| it.common.target_system = Some(system.into());
        /// The account that the process is about.
        with_account_id(id: impl Into<Text>) |it| it.common.extras_mut().account_id = Some(id.into());
        /// The batch that the process is part of.
        with_batch_id(id: impl Into<Text>) |it| it.common.extras_mut().batch_id = Some(id.into());
        /// Somebody else ends this process: it starts as IN_PROGRESS.
        with_await_completion() |it| it.awaits_completion = true;
    }

    /// Reads fixed context from a map of names: `correlationId`, `traceId`, `spanId` (the
    /// caller's), `applicationId`, `originatingSystem`, `targetSystem`, `accountId` and `batchId`,
    /// each also as `account_id` or `account-id`. An absent one stays as it is, and so does the
    /// trace when its name holds something that is no trace id.
    #[must_use]
    pub fn with_names<'a>(mut self, lookup: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name| by_name(&lookup, name).map(|value| Text::Owned(value.to_owned()));
        if let Some(Ok(id)) = by_name(&lookup, "traceId").map(str::parse) {
            self.trace_id = id;
            self.caller = by_name(&lookup, "spanId").and_then(|id| id.parse().ok());
        }
        let common = &mut self.common;
        for (name, field) in [
            ("correlationId", &mut common.correlation_id),
            ("applicationId", &mut common.application_id),
            ("originatingSystem", &mut common.originating_system),
            ("targetSystem", &mut common.target_system),
        ] {
            *field = text(name).or(field.take());
        }
        let extras = common.extras_mut();
        for (name, field) in [
            ("accountId", &mut extras.account_id),
            ("batchId", &mut extras.batch_id),
        ] {
            *field = text(name).or(field.take());
        }
        self
    }
}

/// Additive context: stands on every later event of the process.
impl ProcessLogger {
    setters! { in place
        /// A business key to find the events by.
        add_identifier(name: impl Into<Text>, value: impl Into<Json>)
            |it| it.common.extras_mut().identifiers.get_or_insert_default().set(name, value);
        /// A further fact.
        add_metadata(name: impl Into<Text>, value: impl Into<Json>)
            |it| it.common.extras_mut().metadata.get_or_insert_default().set(name, value);
    }
}

/// One-shot context: stands on the next event only, whether it is accepted or not.
impl ProcessLogger {
    setters! { in place
        /// The system that is acted on.
        target_system(system: impl Into<Text>) |it| it.next.target_system = Some(system.into());
        /// The address that was called.
        endpoint(endpoint: impl Into<Text>)
            |it| it.next.extras_mut().endpoint = Some(endpoint.into());
        /// The method of that call.
        http_method(method: impl Into<Text>)
            |it| it.next.extras_mut().http_method = Some(method.into());
        /// The status of its answer.
        http_status_code(code: u16) |it| it.next.extras_mut().http_status_code = Some(code);
        /// The request.
        request_payload(payload: impl Into<Json>)
            |it| it.next.extras_mut().request_payload = Some(payload.into());
        /// The response.
        response_payload(payload: impl Into<Json>)
            |it| it.next.extras_mut().response_payload = Some(payload.into());
        /// How long it took.
        execution_time_ms(ms: u64) |it| it.next.extras_mut().execution_time_ms = Some(ms);
        /// The key by which repeats of the event are recognized.
        idempotency_key(key: impl Into<Text>)
            |it| it.next.extras_mut().idempotency_key = Some(key.into());
        /// Why it failed, as a code.
        error_code(code: impl Into<Text>) |it| it.next.extras_mut().error_code = Some(code.into());
        /// Why it failed, in words.
        error_message(message: impl Into<Text>)
            |it| it.next.extras_mut().error_message = Some(message.into());
        /// A span elsewhere that belongs to the event; may be said several times.
        span_link(span: SpanId)
            |it| it.next.extras_mut().span_links.get_or_insert_default().push(span.to_string().into());
        /// Goes on with an earlier span instead of opening a new one: for a step that was logged as
        /// IN_PROGRESS and is now done.
        on_span(span: SpanId) |it| it.next_span = Some(span);
    }
}
