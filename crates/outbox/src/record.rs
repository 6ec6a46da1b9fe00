//! The record of a row.

use tidegate_core::Topic;
use tidegate_log::{Append, Record};

use crate::OutboxOptions;
use crate::port::ClaimedRow;

/// The header with the type of the event.
pub(crate) const EVENT_TYPE: &str = "event-type";

/// Why a row cannot become a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnfitRow {
    #[error("the row names no topic, and neither does `outbox.{relay}.topic`")]
    NoTopic { relay: String },
    #[error("the topic of the row cannot be one: {0}")]
    Topic(tidegate_core::NameError),
    #[error("the headers of the row are no JSON object: {0}")]
    Headers(String),
}

/// The topic that a row goes to.
pub(crate) fn topic_of(row: &ClaimedRow, options: &OutboxOptions) -> Result<Topic, UnfitRow> {
    match (&row.topic, &options.topic) {
        (Some(name), _) => Topic::new(name.clone()).map_err(UnfitRow::Topic),
        (None, Some(topic)) => Ok(topic.clone()),
        (None, None) => Err(UnfitRow::NoTopic {
            relay: options.name.clone(),
        }),
    }
}

/// The record of a row: its key is the aggregate, so that the events of one aggregate keep their order.
pub(crate) fn append_of(row: &ClaimedRow, options: &OutboxOptions) -> Result<Append, UnfitRow> {
    let topic = topic_of(row, options)?;
    Ok(Append::new(topic, record_of(row)?))
}

pub(crate) fn record_of(row: &ClaimedRow) -> Result<Record, UnfitRow> {
    let record = match &row.payload {
        Some(payload) => Record::new(payload.clone()),
        None => Record::tombstone(),
    };
    let mut record = record
        .key(row.aggregate_id.clone())
        .event_id(row.event_id)
        .header(EVENT_TYPE, &row.type_name);
    if let Some(kind) = &row.aggregate_type {
        record = record.header("aggregate-type", kind);
    }
    for (name, value) in headers_of(row)? {
        // An event has one id and one type, whatever else its headers say.
        if name != EVENT_TYPE && name != tidegate_log::EVENT_ID {
            record = record.header(&name, value);
        }
    }
    Ok(record)
}

/// The headers of a row: values that are no texts are written as JSON.
fn headers_of(row: &ClaimedRow) -> Result<Vec<(String, String)>, UnfitRow> {
    let Some(text) = &row.headers else {
        return Ok(Vec::new());
    };
    let read: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| UnfitRow::Headers(error.to_string()))?;
    let text = |value: serde_json::Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    Ok(read
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect())
}

#[cfg(test)]
mod tests {
    use tidegate_core::EventId;

    use super::*;

    pub(crate) fn row() -> ClaimedRow {
        ClaimedRow {
            id: 7,
            bucket: 1,
            event_id: EventId::from_u128(0x019a_8f3e_5c00_7abc_8def_0123_4567_89ab),
            aggregate_id: "loan-7".to_owned(),
            aggregate_type: Some("loan".to_owned()),
            type_name: "LoanApproved".to_owned(),
            topic: None,
            payload: Some("{}".into()),
            headers: Some(r#"{"traceparent":"00-1-2-01","n":3,"event-type":"no"}"#.to_owned()),
            attempts: 0,
            created_ms: 0,
        }
    }

    #[test]
    fn o10_a_record_has_the_key_the_id_the_type_and_the_trace() {
        let record = record_of(&row()).unwrap();
        assert_eq!(record.key.as_deref(), Some(&b"loan-7"[..]));
        assert_eq!(record.headers.event_id(), Some(row().event_id));
        let header = |name| {
            record
                .headers
                .get(name)
                .map(|v| String::from_utf8_lossy(v).into_owned())
        };
        assert_eq!(header("event-type").as_deref(), Some("LoanApproved"));
        assert_eq!(header("traceparent").as_deref(), Some("00-1-2-01"));
        assert_eq!(header("n").as_deref(), Some("3"));
    }

    #[test]
    fn a_row_without_a_topic_goes_to_that_of_the_relay_or_nowhere() {
        let mut options = OutboxOptions::default();
        assert!(topic_of(&row(), &options).is_err());
        options.topic = Some(Topic::new("loans").unwrap());
        assert_eq!(topic_of(&row(), &options).unwrap().as_str(), "loans");
        let own = ClaimedRow {
            topic: Some("own".to_owned()),
            ..row()
        };
        assert_eq!(topic_of(&own, &options).unwrap().as_str(), "own");
        let unfit = ClaimedRow {
            headers: Some("[]".to_owned()),
            ..row()
        };
        assert!(record_of(&unfit).is_err());
    }
}
