//! Events on their way into the table.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::OutboxError;

/// An event for the outbox.
///
/// ```
/// use tidegate_outbox::NewOutboxEvent;
/// let event = NewOutboxEvent::new("loan-7", "LoanApproved", r#"{"loan":7}"#)
///     .aggregate_type("loan")
///     .topic("loan-events")
///     .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
/// assert_eq!(event.aggregate_id, "loan-7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOutboxEvent {
    /// The key: events of one aggregate keep their order.
    pub aggregate_id: String,
    /// The kind of the aggregate.
    pub aggregate_type: Option<String>,
    /// The type of the event; it becomes the header `event-type`.
    pub type_name: String,
    /// The topic; none for the one of the relay.
    pub topic: Option<String>,
    /// The content; none is a tombstone.
    pub payload: Option<String>,
    /// Headers of the record, such as `traceparent`.
    pub headers: BTreeMap<String, String>,
}

impl NewOutboxEvent {
    /// An event of an aggregate.
    #[must_use]
    pub fn new(
        aggregate_id: impl Into<String>,
        type_name: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self {
            aggregate_id: aggregate_id.into(),
            aggregate_type: None,
            type_name: type_name.into(),
            topic: None,
            payload: Some(payload.into()),
            headers: BTreeMap::new(),
        }
    }

    /// The same with a value as the payload.
    ///
    /// # Errors
    /// The value has no JSON form.
    pub fn json(
        aggregate_id: impl Into<String>,
        type_name: impl Into<String>,
        payload: &impl Serialize,
    ) -> Result<Self, OutboxError> {
        let text = serde_json::to_string(payload).map_err(OutboxError::Encode)?;
        Ok(Self::new(aggregate_id, type_name, text))
    }

    /// Says the kind of the aggregate.
    #[must_use]
    pub fn aggregate_type(mut self, kind: impl Into<String>) -> Self {
        self.aggregate_type = Some(kind.into());
        self
    }

    /// Says which topic it goes to.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// The headers as the table keeps them.
    pub(crate) fn headers_text(&self) -> Option<String> {
        let is_any = !self.headers.is_empty();
        // A map of texts always has a JSON form.
        is_any.then(|| serde_json::to_string(&self.headers).unwrap_or_default())
    }
}
