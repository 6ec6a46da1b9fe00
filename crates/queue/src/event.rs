//! Events: what is published.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::{EventId, TRACEPARENT, TraceId, Traceparent};

use crate::QueueError;

/// A kind of event: a type that has a name and a JSON form.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidegate_queue::QueueEvent;
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order: u64, customer: String }
/// impl QueueEvent for OrderPlaced {
///     const TYPE: &'static str = "OrderPlaced";
///     fn key(&self) -> Option<String> { Some(self.customer.clone()) }
/// }
/// ```
pub trait QueueEvent: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name it has in the tables. Changing it orphans what was published under the old one.
    const TYPE: &'static str;

    /// Its key: events of one key are handled one after the other, in the order in which
    /// they were published.
    fn key(&self) -> Option<String> {
        None
    }
}

/// An event that is about to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an event that is not published is nowhere"]
pub struct NewEvent {
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    pub type_name: String,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
    /// Its JSON.
    pub payload: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
}

impl NewEvent {
    /// The typed event under this id.
    ///
    /// # Errors
    /// It has no JSON form.
    pub fn of<E: QueueEvent>(event_id: EventId, event: &E) -> Result<Self, QueueError> {
        let payload = serde_json::to_string(event).map_err(|source| QueueError::Encode {
            type_name: E::TYPE.to_owned(),
            source,
        })?;
        Ok(Self {
            event_id,
            type_name: E::TYPE.to_owned(),
            key: event.key(),
            payload,
            headers: BTreeMap::new(),
        })
    }

    /// An event of any type, with JSON from elsewhere.
    ///
    /// # Errors
    /// The type has no name, or the payload is not JSON.
    pub fn raw(
        event_id: EventId,
        type_name: impl Into<String>,
        payload: impl Into<String>,
    ) -> Result<Self, QueueError> {
        let (type_name, payload) = (type_name.into(), payload.into());
        if type_name.is_empty() {
            return Err(QueueError::InvalidName {
                what: "event type",
                name: type_name,
                why: "it is empty",
            });
        }
        let json = serde_json::from_str::<&serde_json::value::RawValue>(&payload);
        json.map_err(|source| QueueError::Encode {
            type_name: type_name.clone(),
            source,
        })?;
        Ok(Self {
            event_id,
            type_name,
            key: None,
            payload,
            headers: BTreeMap::new(),
        })
    }

    /// The same with what orders it.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same with one more header.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

/// Headers as they stand in the tables; none for none.
pub(crate) fn headers_text(headers: &BTreeMap<String, String>) -> Option<String> {
    // A map of texts always has a JSON form.
    (!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_default())
}

/// Headers from the tables. A program that writes rows by SQL may put anything there: values that are no
/// text are kept in their JSON form.
pub(crate) fn headers_of(text: Option<&str>) -> BTreeMap<String, String> {
    let Some(text) = text else {
        return BTreeMap::new();
    };
    let values: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).unwrap_or_default();
    let plain = |(name, value): (String, serde_json::Value)| match value.as_str() {
        Some(text) => (name, text.to_owned()),
        None => (name, value.to_string()),
    };
    values.into_iter().map(plain).collect()
}

/// The trace of an event with these headers.
pub(crate) fn trace_of(headers: &BTreeMap<String, String>) -> Option<TraceId> {
    let parent = headers.get(TRACEPARENT)?.parse::<Traceparent>();
    parent.ok().map(|parent| parent.trace_id)
}
