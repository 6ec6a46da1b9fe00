//! The span of a call, and the trace that a record belongs to.

use tidegate_core::{TRACEPARENT, Traceparent};
use tidegate_log::Headers;
use tracing::Span;

use crate::consumer::ConsumerSeat;
use crate::handler::ConsumedRecord;
use crate::options::BindingOptions;

/// The header of producers that name the trace alone.
const TRACE_ID: &str = "trace_id";

/// The trace that a record belongs to, as text; empty where its headers name none.
pub(crate) fn trace_id(headers: &Headers) -> String {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    };
    let parent = text(TRACEPARENT).and_then(|value| value.parse::<Traceparent>().ok());
    match parent {
        Some(parent) => parent.trace_id.to_string(),
        None => text(TRACE_ID).unwrap_or_default().to_owned(),
    }
}

/// The span around everything that a consumer does, so that each of its lines tells whose it is.
pub(crate) fn consumer(options: &BindingOptions, seat: &ConsumerSeat, host: &str) -> Span {
    tracing::info_span!(
        "consumer",
        binding = options.name,
        container = options.container_name(seat.tier),
        topic = %seat.topic,
        consumerGroup = %seat.group,
        consumerInstance = seat.instance(host),
        retryTier = seat.tier.0,
    )
}

/// The span around one attempt at one record. Log lines of the handler carry its fields.
pub(crate) fn process(record: &ConsumedRecord) -> Span {
    tracing::info_span!(
        "consumer.process",
        binding = record.binding(),
        container = record.consumer().container,
        topic = %record.topic(),
        partition = %record.partition(),
        offset = %record.offset(),
        consumerGroup = record.consumer().group,
        consumerInstance = record.consumer().instance,
        event_id = %record.event_id(),
        trace_id = trace_id(record.headers()),
        retry_tier = record.tier().0,
        retry_attempt = record.attempt(),
    )
}

/// The same around one call for a batch.
pub(crate) fn process_batch(records: &[std::sync::Arc<ConsumedRecord>]) -> Span {
    let Some(first) = records.first() else {
        return Span::none();
    };
    tracing::info_span!(
        "consumer.process",
        binding = first.binding(),
        container = first.consumer().container,
        topic = %first.topic(),
        partition = %first.partition(),
        offset = %first.offset(),
        consumerGroup = first.consumer().group,
        consumerInstance = first.consumer().instance,
        records = records.len(),
        retry_tier = first.tier().0,
        retry_attempt = first.attempt(),
    )
}
