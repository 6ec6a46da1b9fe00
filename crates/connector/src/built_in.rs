//! The built-in handlers `forward` and `log`.

use tidegate_core::Topic;
use tidegate_log::{Append, EVENT_ID, Record};

use crate::handler::{ConsumedRecord, HandlerAnswer, RecordHandler};

/// Writes each record to another topic, in one commit with its offset. Key, value and headers stay as they
/// are; a record without an event id gets the one that follows from where it lies.
#[derive(Debug, Clone)]
pub struct ForwardHandler {
    topic: Topic,
}

impl ForwardHandler {
    /// Writes to this topic.
    #[must_use]
    pub fn new(topic: Topic) -> Self {
        Self { topic }
    }
}

impl RecordHandler for ForwardHandler {
    async fn handle(&self, record: &ConsumedRecord) -> HandlerAnswer {
        let mut copy = Record {
            timestamp_ms: record.timestamp_ms(),
            key: record.key().cloned(),
            value: record.value().cloned(),
            headers: record.headers().clone(),
        };
        if copy.headers.event_id().is_none() {
            let id = record.event_id().to_string();
            copy.headers.push(EVENT_ID, Some(id.as_bytes()));
        }
        record.send(Append::new(self.topic.clone(), copy));
        Ok(())
    }

    fn sends(&self) -> bool {
        true
    }
}

/// Writes each record to the program's log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogHandler;

impl RecordHandler for LogHandler {
    async fn handle(&self, record: &ConsumedRecord) -> HandlerAnswer {
        let shown = |bytes: Option<&bytes::Bytes>| {
            bytes.map_or_else(
                || "(none)".to_owned(),
                |bytes| bytes[..bytes.len().min(1_024)].escape_ascii().to_string(),
            )
        };
        tracing::info!(
            binding = record.binding(), topic = %record.topic(), partition = %record.partition(),
            offset = %record.offset(), event = %record.event_id(), key = shown(record.key()),
            value = shown(record.value()), "record"
        );
        Ok(())
    }
}
