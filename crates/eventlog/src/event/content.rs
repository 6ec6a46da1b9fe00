//! The body of an event as JSON text.
//!
//! **Invariant:** a property that this version does not know keeps its very bytes.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate_logger::StepStatus;

use super::InvalidEvent;

/// The properties of the transport, and those that the server adds when it answers.
const NOT_KEPT: [&str; 9] = [
    "_id",
    "_seq",
    "_sum",
    "_crc",
    "eventLogId",
    "executionId",
    "eventId",
    "createdAt",
    "isDeleted",
];
/// The properties that are filled in where an event lacks them.
const FILLED_IN: [&str; 2] = ["batchId", "eventStatus"];

/// The members of an object, in their order.
struct ObjectMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = ObjectMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    members.push(member);
                }
                Ok(ObjectMembers(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The text that is kept of an event, with the batch of its envelope and its outcome filled in.
pub(super) fn body(
    json: &str,
    batch_id: Option<&str>,
    outcome: StepStatus,
) -> Result<String, InvalidEvent> {
    let ObjectMembers(members) = serde_json::from_str(json)
        .map_err(|error| InvalidEvent::one("", format!("is not a JSON object: {error}")))?;
    // Of a name that is there twice, the last value holds.
    let mut last = BTreeMap::new();
    for (index, (name, value)) in members.iter().enumerate() {
        // A field that is null counts as missing, so that it may be filled in.
        let is_filled_in = FILLED_IN.contains(&name.as_str()) && value.get() == "null";
        if !NOT_KEPT.contains(&name.as_str()) && !is_filled_in {
            last.insert(name.as_str(), index);
        }
    }
    let batch = batch_id.filter(|_| !last.contains_key("batchId"));
    let outcome = (!last.contains_key("eventStatus")).then(|| outcome.as_str());
    let mut body = String::with_capacity(json.len());
    body.push('{');
    for (index, (name, value)) in members.iter().enumerate() {
        if last.get(name.as_str()) == Some(&index) {
            add(&mut body, name, value.get());
        }
    }
    for (name, text) in [("batchId", batch), ("eventStatus", outcome)] {
        if let Some(text) = text {
            add(&mut body, name, &Value::from(text).to_string());
        }
    }
    body.push('}');
    Ok(body)
}

fn add(body: &mut String, name: &str, value: &str) {
    if body.len() > 1 {
        body.push(',');
    }
    body.push_str(&Value::from(name).to_string());
    body.push(':');
    body.push_str(value);
}

/// JSON that is nested deeper is the same only as the same text.
const MAX_DEPTH: usize = 128;

/// JSON whose numbers are compared by their digits: as a floating-point number, two large ones may be equal.
#[derive(PartialEq)]
enum ExactJson {
    Object(BTreeMap<String, ExactJson>),
    List(Vec<ExactJson>),
    Text(String),
    /// A number, `true`, `false` or `null`, as it is written.
    Plain(String),
}

impl ExactJson {
    fn read(json: &str, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let json = json.trim_ascii();
        Some(match json.as_bytes().first()? {
            b'{' => {
                let ObjectMembers(members) = serde_json::from_str(json).ok()?;
                let read = |(name, value): (String, &RawValue)| {
                    Some((name, Self::read(value.get(), depth)?))
                };
                Self::Object(members.into_iter().map(read).collect::<Option<_>>()?)
            }
            b'[' => {
                let values: Vec<&RawValue> = serde_json::from_str(json).ok()?;
                let mut values = values.into_iter();
                let read = values.try_fold(Vec::new(), |mut list, value| {
                    list.push(Self::read(value.get(), depth)?);
                    Some(list)
                });
                Self::List(read?)
            }
            b'"' => Self::Text(serde_json::from_str(json).ok()?),
            _ => Self::Plain(json.to_owned()),
        })
    }
}

/// Whether two bodies say the same, whatever the order of their members and the space between them.
///
/// A repeat may come without its envelope, so a batch that only one of them names does not count.
pub(crate) fn is_same_content(stored: &str, posted: &str) -> bool {
    if stored == posted {
        return true;
    }
    let read = |text: &str| match ExactJson::read(text, MAX_DEPTH)? {
        ExactJson::Object(members) => Some(members),
        ExactJson::List(_) | ExactJson::Text(_) | ExactJson::Plain(_) => None,
    };
    let (Some(mut stored), Some(mut posted)) = (read(stored), read(posted)) else {
        return false;
    };
    let is_same_batch = match (stored.remove("batchId"), posted.remove("batchId")) {
        (Some(stored), Some(posted)) => stored == posted,
        (None, _) | (_, None) => true,
    };
    is_same_batch && stored == posted
}
