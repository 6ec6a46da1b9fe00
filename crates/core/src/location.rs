//! Where an event is.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::EventId;
use crate::books::Place;

/// Where a component has seen an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLocation {
    /// The component, by its name in the books.
    pub component: String,
    /// The place of the event there.
    pub place: Place,
    /// The places that it may be in, where they are several: it is in one of them, and `place` is the
    /// least finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<Place>,
    /// Since when, as far as anything tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How often it was tried, where that was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Where exactly, in the words of the component: a file and its line, a partition and an offset.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

impl EventLocation {
    /// A sighting. `details` is a JSON object; of anything else nothing is kept.
    #[must_use]
    pub fn new(component: impl Into<String>, place: Place, details: Value) -> Self {
        let details = match details {
            Value::Object(details) => details,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Map::new(),
        };
        Self {
            component: component.into(),
            place,
            among: Vec::new(),
            at: None,
            attempts: None,
            details,
        }
    }
}

/// Where an event is now, and where it was seen on its way: the answer of `tidegate where`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventTrace {
    /// The event.
    pub id: EventId,
    /// The place that it is in.
    pub place: Place,
    /// The component that has it.
    pub component: String,
    /// Since when, as far as anything tells; else when it was born.
    pub at: Option<String>,
    /// How often it was tried, where that was written down.
    pub attempts: Option<u32>,
    /// Where it was seen, in the order in which it passed there.
    pub history: Vec<EventLocation>,
}

impl EventTrace {
    /// The trace of an event that was seen in these places, in this order; none if it was seen nowhere.
    ///
    /// ```
    /// use tidegate_core::books::Place;
    /// use tidegate_core::{EventId, EventLocation, EventTrace};
    /// let seen = |component: &str, place| EventLocation::new(component, place, Default::default());
    /// let history = vec![seen("orders", Place::Delivered), seen("queue", Place::Queued)];
    /// let trace = EventTrace::new(EventId::from_u128(7), history).unwrap();
    /// assert_eq!((trace.component.as_str(), trace.place), ("queue", Place::Queued));
    /// ```
    #[must_use]
    pub fn new(id: EventId, history: Vec<EventLocation>) -> Option<Self> {
        let now = history.last()?;
        Some(Self {
            id,
            place: now.place.clone(),
            component: now.component.clone(),
            at: now.at.clone().or_else(|| id.born_ms().and_then(iso_time)),
            attempts: history.iter().rev().find_map(|seen| seen.attempts),
            history,
        })
    }
}

/// A time in milliseconds since 1970 as text, such as `2026-05-01T12:00:00.000Z`; none for a time that no
/// calendar has.
///
/// Always three digits after the second, so that texts have one width and sort as times do.
#[must_use]
pub fn iso_time(ms: u64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(format!("{time:.3}"))
}
