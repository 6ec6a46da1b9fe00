//! One run of a process.

use std::mem;
use std::sync::Arc;

use tidegate_core::env::Clock;

use super::{EventSink, Ids, ProcessTemplate, Refused};
use crate::event::{Event, ProcessStatus, StepStatus, Text};
use crate::{SpanId, TraceId};

/// Longest `errorMessage` in characters that the Event Log API accepts.
const ERROR_MESSAGE_LIMIT: usize = 2048;

/// Logs the events of one run of a process, see [`ProcessTemplate`].
///
/// The start is the root span; every later event is a new span below it. An event that is refused
/// is given back in the error; the process goes on with the next one all the same.
#[derive(Debug)]
pub struct ProcessLogger {
    pub(super) sink: Arc<dyn EventSink>,
    pub(super) clock: Arc<dyn Clock>,
    ids: Ids,
    /// The fixed and the additive context: an event of which only those fields are set.
    pub(super) common: Event,
    pub(super) trace_id: TraceId,
    /// The caller's span, which the root is part of.
    pub(super) caller: Option<SpanId>,
    /// The one-shot context: an event of which only those fields are set.
    pub(super) next: Event,
    /// The span the next event belongs to, when it is to go on with an earlier one.
    pub(super) next_span: Option<SpanId>,
    /// Whether somebody else ends the process.
    pub(super) awaits_completion: bool,
    pub(super) root_span: Option<SpanId>,
    last_span: Option<SpanId>,
    /// The highest `stepSequence` so far.
    last_sequence: u64,
}

impl ProcessLogger {
    pub(super) fn new(template: &ProcessTemplate, process_name: Text) -> Self {
        let ids = template.ids.clone();
        let mut common = template.common.clone();
        common.process_name = Some(process_name);
        common.correlation_id = Some(ids.trace_id().to_string().into());
        Self {
            sink: Arc::clone(&template.sink),
            clock: Arc::clone(&template.clock),
            common,
            trace_id: ids.trace_id(),
            caller: None,
            ids,
            next: Event::default(),
            next_span: None,
            awaits_completion: false,
            root_span: None,
            last_span: None,
            last_sequence: 0,
        }
    }

    /// Logs that the process begins. Its span becomes the root of the process.
    ///
    /// The status is SUCCESS, because beginning worked; after
    /// [`with_await_completion`](Self::with_await_completion) it is IN_PROGRESS.
    ///
    /// # Errors
    /// The event was not accepted.
    pub fn process_start(&mut self, details: impl Into<Text>) -> Result<(), Refused> {
        let status = if self.awaits_completion {
            StepStatus::InProgress
        } else {
            StepStatus::Success
        };
        let mut event = self.take_next(ProcessStatus::ProcessStart, details.into());
        event.event_status = Some(status);
        event.extras_mut().step_sequence = Some(0);
        let span = self.new_span();
        self.root_span = Some(span);
        self.hand_over(event, span, self.caller)
    }

    /// Logs a step: its place in the process, its name, how it went, what happened in words and,
    /// where there is one, its result.
    ///
    /// # Errors
    /// The event was not accepted.
    pub fn log_step(
        &mut self,
        sequence: u64,
        name: impl Into<Text>,
        status: StepStatus,
        details: impl Into<Text>,
        result: Option<&str>,
    ) -> Result<(), Refused> {
        let mut event = self.take_next(ProcessStatus::Step, details.into());
        event.step = Some(name.into());
        event.event_status = Some(status);
        self.last_sequence = self.last_sequence.max(sequence);
        event.extras_mut().step_sequence = Some(sequence);
        event.extras_mut().result = result.map(|result| Text::Owned(result.to_owned()));
        self.log_child(event)
    }

    /// Logs that the process is over. Its place is after every step so far.
    ///
    /// # Errors
    /// The event was not accepted.
    pub fn process_end(
        &mut self,
        status: StepStatus,
        details: impl Into<Text>,
        result: Option<&str>,
    ) -> Result<(), Refused> {
        let mut event = self.take_next(ProcessStatus::ProcessEnd, details.into());
        event.event_status = Some(status);
        event.extras_mut().step_sequence = Some(self.next_sequence());
        event.extras_mut().result = result.map(|result| Text::Owned(result.to_owned()));
        self.log_child(event)
    }

    /// Logs that something broke which nobody foresaw. A failure that is part of the business is a
    /// step with [`StepStatus::Failure`], then an end with it.
    ///
    /// # Errors
    /// The event was not accepted.
    pub fn error(
        &mut self,
        code: impl Into<Text>,
        message: impl Into<Text>,
    ) -> Result<(), Refused> {
        let message = message.into();
        let mut event = self.take_next(ProcessStatus::Error, message.clone());
        event.event_status = Some(StepStatus::Failure);
        let sequence = self.next_sequence();
        let extras = event.extras_mut();
        extras.step_sequence = Some(sequence);
        extras.error_code = Some(code.into());
        extras.error_message = Some(within_error_limit(message));
        self.log_child(event)
    }

    /// The trace of the process.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.trace_id
    }

    /// The business case of the process.
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        self.common.correlation_id.as_deref().unwrap_or_default()
    }

    /// The span of the start, once there was one, to link work elsewhere to the process.
    #[must_use]
    pub fn root_span_id(&self) -> Option<SpanId> {
        self.root_span
    }

    /// The span of the latest event, to link work elsewhere to that step.
    #[must_use]
    pub fn last_span_id(&self) -> Option<SpanId> {
        self.last_span
    }

    /// The place after every step so far.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.last_sequence = self.last_sequence.saturating_add(1);
        self.last_sequence
    }

    /// Starts an event with the one-shot context, which ends here whatever becomes of the event.
    fn take_next(&mut self, status: ProcessStatus, details: Text) -> Event {
        let mut event = mem::take(&mut self.next);
        event.process_status = Some(status);
        event.details = Some(details);
        event
    }

    fn log_child(&mut self, event: Event) -> Result<(), Refused> {
        let span = self.new_span();
        let parent = self.root_span.or(self.caller);
        // Going on with the root itself does not make it its own parent.
        let parent = parent.filter(|parent| *parent != span);
        self.hand_over(event, span, parent)
    }

    fn new_span(&mut self) -> SpanId {
        let span = self.next_span.take();
        span.unwrap_or_else(|| self.ids.span_id())
    }

    fn hand_over(
        &mut self,
        mut event: Event,
        span: SpanId,
        parent: Option<SpanId>,
    ) -> Result<(), Refused> {
        self.last_span = Some(span);
        let common = &self.common;
        event.process_name.clone_from(&common.process_name);
        event.correlation_id.clone_from(&common.correlation_id);
        event.application_id.clone_from(&common.application_id);
        event
            .originating_system
            .clone_from(&common.originating_system);
        if event.target_system.is_none() {
            event.target_system.clone_from(&common.target_system);
        }
        let (extras, common) = (event.extras_mut(), common.extras());
        extras.trace_id = Some(self.trace_id.to_string().into());
        extras.span_id = Some(span.to_string().into());
        extras.parent_span_id = parent.map(|parent| parent.to_string().into());
        extras.account_id.clone_from(&common.account_id);
        extras.batch_id.clone_from(&common.batch_id);
        extras.identifiers.clone_from(&common.identifiers);
        extras.metadata.clone_from(&common.metadata);
        self.sink.log(event)
    }
}

/// The beginning of `message` that the API accepts; the whole of it stands in the details.
pub(super) fn within_error_limit(message: Text) -> Text {
    match message.char_indices().nth(ERROR_MESSAGE_LIMIT) {
        Some((end, _)) => Text::Owned(message[..end].to_owned()),
        None => message,
    }
}
