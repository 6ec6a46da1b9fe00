//! Setting the context of a process: fixed, additive and one-shot.

use super::ProcessLogger;
use crate::event::{Json, Text};
use crate::trace_context::{SpanId, TraceContext, TraceId, by_name};

/// Fixed context: stands on every event of the process.
impl ProcessLogger {
    /// The business case.
    #[must_use]
    pub fn with_correlation_id(mut self, id: impl Into<Text>) -> Self {
        self.fixed.correlation_id = id.into();
        self
    }

    /// The trace.
    #[must_use]
    pub fn with_trace_id(mut self, id: TraceId) -> Self {
        self.fixed.trace_id = id;
        self
    }

    /// The trace and the business case of a request; the root span becomes part of the caller's.
    #[must_use]
    pub fn with_trace(mut self, context: &TraceContext) -> Self {
        self.fixed.correlation_id = Text::Owned(context.correlation_id.clone());
        self.fixed.trace_id = context.trace_id;
        self.fixed.caller = context.span_id;
        self
    }

    /// The root span of a process that was started elsewhere and goes on here.
    #[must_use]
    pub fn with_root_span(mut self, span: SpanId) -> Self {
        self.set_root_span(span);
        self
    }

    /// The application that speaks.
    #[must_use]
    pub fn with_application_id(mut self, id: impl Into<Text>) -> Self {
        self.fixed.application_id = Some(id.into());
        self
    }

    /// The system that acts.
    #[must_use]
    pub fn with_originating_system(mut self, system: impl Into<Text>) -> Self {
        self.fixed.originating_system = Some(system.into());
        self
    }

    /// The system that is acted on, where an event names no other.
    #[must_use]
    pub fn with_target_system(mut self, system: impl Into<Text>) -> Self {
        self.fixed.target_system = Some(system.into());
        self
    }

    /// The account that the process is about.
    #[must_use]
    pub fn with_account_id(mut self, id: impl Into<Text>) -> Self {
        self.fixed.account_id = Some(id.into());
        self
    }

    /// The batch that the process is part of.
    #[must_use]
    pub fn with_batch_id(mut self, id: impl Into<Text>) -> Self {
        self.fixed.batch_id = Some(id.into());
        self
    }

    /// Somebody else ends this process: it starts as IN_PROGRESS.
    #[must_use]
    pub fn with_await_completion(mut self) -> Self {
        self.awaits_completion = true;
        self
    }

    /// Reads fixed context from a map of names: `correlationId`, `traceId`, `spanId` (the
    /// caller's), `applicationId`, `originatingSystem`, `targetSystem`, `accountId` and `batchId`,
    /// each also as `account_id` or `account-id`. What is absent stays as it is, and so does the
    /// trace when its name holds something that is no trace id.
    #[must_use]
    pub fn with_names<'a>(mut self, lookup: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name| by_name(&lookup, name).map(|value| Text::Owned(value.to_owned()));
        let fixed = &mut self.fixed;
        if let Some(id) = text("correlationId") {
            fixed.correlation_id = id;
        }
        if let Some(Ok(id)) = by_name(&lookup, "traceId").map(str::parse) {
            fixed.trace_id = id;
            fixed.caller = by_name(&lookup, "spanId").and_then(|id| id.parse().ok());
        }
        for (name, field) in [
            ("applicationId", &mut fixed.application_id),
            ("originatingSystem", &mut fixed.originating_system),
            ("targetSystem", &mut fixed.target_system),
            ("accountId", &mut fixed.account_id),
            ("batchId", &mut fixed.batch_id),
        ] {
            if let Some(value) = text(name) {
                *field = Some(value);
            }
        }
        self
    }
}

/// Additive context: stands on every later event of the process.
impl ProcessLogger {
    /// A business key to find the events by.
    pub fn add_identifier(&mut self, name: impl Into<Text>, value: impl Into<Json>) -> &mut Self {
        self.additive.identifiers.set(name, value);
        self
    }

    /// A further fact.
    pub fn add_metadata(&mut self, name: impl Into<Text>, value: impl Into<Json>) -> &mut Self {
        self.additive.metadata.set(name, value);
        self
    }
}

/// One-shot context: stands on the next event only, whether it is accepted or not.
impl ProcessLogger {
    /// The system that is acted on.
    pub fn target_system(&mut self, system: impl Into<Text>) -> &mut Self {
        self.next.target_system = Some(system.into());
        self
    }

    /// The address that was called.
    pub fn endpoint(&mut self, endpoint: impl Into<Text>) -> &mut Self {
        self.next.extras_mut().endpoint = Some(endpoint.into());
        self
    }

    /// The method of that call.
    pub fn http_method(&mut self, method: impl Into<Text>) -> &mut Self {
        self.next.extras_mut().http_method = Some(method.into());
        self
    }

    /// The status of its answer.
    pub fn http_status_code(&mut self, code: u16) -> &mut Self {
        self.next.extras_mut().http_status_code = Some(code);
        self
    }

    /// What was sent.
    pub fn request_payload(&mut self, payload: impl Into<Json>) -> &mut Self {
        self.next.extras_mut().request_payload = Some(payload.into());
        self
    }

    /// What was answered.
    pub fn response_payload(&mut self, payload: impl Into<Json>) -> &mut Self {
        self.next.extras_mut().response_payload = Some(payload.into());
        self
    }

    /// How long it took.
    pub fn execution_time_ms(&mut self, ms: u64) -> &mut Self {
        self.next.extras_mut().execution_time_ms = Some(ms);
        self
    }

    /// What makes a repeat of the event a repeat.
    pub fn idempotency_key(&mut self, key: impl Into<Text>) -> &mut Self {
        self.next.extras_mut().idempotency_key = Some(key.into());
        self
    }

    /// Why it failed, as a code.
    pub fn error_code(&mut self, code: impl Into<Text>) -> &mut Self {
        self.next.extras_mut().error_code = Some(code.into());
        self
    }

    /// Why it failed, in words.
    pub fn error_message(&mut self, message: impl Into<Text>) -> &mut Self {
        self.next.extras_mut().error_message = Some(message.into());
        self
    }

    /// A span elsewhere that belongs to the event; may be said several times.
    pub fn span_link(&mut self, span: SpanId) -> &mut Self {
        let links = &mut self.next.extras_mut().span_links;
        links.get_or_insert_default().push(span.to_string().into());
        self
    }

    /// Goes on with an earlier span instead of opening a new one: for a step that was logged as
    /// IN_PROGRESS and is now done.
    pub fn on_span(&mut self, span: SpanId) -> &mut Self {
        self.next_span = Some(span);
        self
    }
}
