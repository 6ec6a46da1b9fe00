//! The JSON that the routes of a log read and write.
//!
//! Bytes that are text are written as text, others as base64 under a name of their own, so that
//! neither has to be guessed.

mod groups;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tidegate_core::{EventId, Offset, Topic};
use tidegate_log::{Append, EVENT_ID, Record, StoredRecord, TopicDescription, TopicPartition};

pub use groups::{
    GroupInfo, GroupNames, GroupPartitionInfo, GroupTopicInfo, MovedPartition, MovedPartitions,
    NewSeek, NewTopic, RemovedGroupInfo, RemovedTopicInfo, SeekTarget, UnreadRecords, mode,
};

/// Bytes as text where they are, else as base64; absent ones are neither.
fn written(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    let Some(bytes) = bytes else {
        return (None, None);
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// Reads bytes back.
fn bytes_of(text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err("a text and its base64 cannot both be given".to_owned()),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(encoded)) => STANDARD
            .decode(encoded)
            .map(Some)
            .map_err(|error| format!("base64 cannot be read: {error}")),
        (None, None) => Ok(None),
    }
}

/// One header of a record; a name may come more than once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordHeader {
    /// Its name.
    pub name: String,
    /// Its value, if that is text; none for a header without a value.
    #[serde(default)]
    pub value: Option<String>,
    /// Its value in base64, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// Records on their way into a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRecords {
    /// The records, in their order.
    pub records: Vec<NewRecord>,
}

/// The last millisecond of the year 9999. A later time is a mistake, and would keep its records for ever.
const LATEST_MS: u64 = 253_402_300_799_999;

/// A record on its way into a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRecord {
    /// The id of its event; without one it gets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "019a8f3e-5c00-7abc-8def-0123456789ab"))]
    pub id: Option<EventId>,
    /// The partition; without one the key decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// When it was made, in milliseconds since 1970; without it, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_ms: Option<u64>,
    /// Its key, if that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its key in base64, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Its value, if that is text. A record without a value is a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its value in base64, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// Its headers, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<RecordHeader>,
}

impl NewRecord {
    /// Writes a record; the id of its event stands apart from its other headers.
    #[must_use]
    pub fn of(append: &Append) -> Self {
        let record = &append.record;
        let (key, key_base64) = written(record.key.as_deref());
        let (value, value_base64) = written(record.value.as_deref());
        let id = record.headers.event_id();
        Self {
            id,
            partition: append.partition.map(|partition| partition.0),
            timestamp_ms: Some(record.timestamp_ms).filter(|ms| *ms > 0),
            key,
            key_base64,
            value,
            value_base64,
            headers: headers_of(record, id),
        }
    }

    /// The record that is meant, as that of the event `id`.
    ///
    /// # Errors
    /// The part of it that cannot be read.
    pub fn into_append(self, topic: Topic, id: EventId) -> Result<Append, String> {
        let key = bytes_of(self.key, self.key_base64)?;
        let value = bytes_of(self.value, self.value_base64)?;
        if self.headers.iter().any(|header| header.name == EVENT_ID) {
            return Err(format!("`{EVENT_ID}` is set by `id`"));
        }
        let timestamp_ms = self.timestamp_ms.unwrap_or(0);
        if timestamp_ms > LATEST_MS {
            return Err(format!(
                "`timestamp_ms` is {timestamp_ms}, which is after the year 9999; it counts milliseconds since \
                 1970, not microseconds"
            ));
        }
        let record = record_of(key, value, timestamp_ms, self.headers)?;
        let mut append = Append::new(topic, record.event_id(id));
        if let Some(partition) = self.partition {
            append = append.partition(partition);
        }
        Ok(append)
    }
}

fn headers_of(record: &Record, id: Option<EventId>) -> Vec<RecordHeader> {
    // An id that cannot be read is a header like any other.
    let others = record
        .headers
        .iter()
        .filter(|(name, _)| id.is_none() || *name != EVENT_ID);
    others
        .map(|(name, value)| {
            let (value, value_base64) = written(value);
            RecordHeader {
                name: name.to_owned(),
                value,
                value_base64,
            }
        })
        .collect()
}

fn record_of(
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    timestamp_ms: u64,
    headers: Vec<RecordHeader>,
) -> Result<Record, String> {
    let mut record = Record {
        key: key.map(Into::into),
        value: value.map(Into::into),
        timestamp_ms,
        ..Record::default()
    };
    for header in headers {
        let value = bytes_of(header.value, header.value_base64)?;
        record.headers.push(&header.name, value.as_deref());
    }
    Ok(record)
}

/// The records that were appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AppendedRecords {
    /// One for each record, in the order of the request.
    pub records: Vec<AppendedRecord>,
}

/// A record that was appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AppendedRecord {
    /// The id of its event.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub id: EventId,
    /// Its partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
}

/// Records of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadRecords {
    /// The records, in their order.
    pub records: Vec<ReadRecord>,
    /// The offset at which to go on.
    pub next: i64,
    /// The first offset that is there.
    pub start: i64,
    /// The offset that the next record gets.
    pub end: i64,
}

/// A record as it lies in its partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadRecord {
    /// Its offset.
    pub offset: i64,
    /// When it was made, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The id of its event: the one it carries, or the one that follows from where it lies.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub id: EventId,
    /// Whether it carries that id.
    pub carries_id: bool,
    /// Its key, if that is text.
    pub key: Option<String>,
    /// Its key in base64, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Its value, if that is text; a record with neither this nor the next is a tombstone.
    pub value: Option<String>,
    /// Its value in base64, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// Its headers, without the id.
    pub headers: Vec<RecordHeader>,
}

impl ReadRecord {
    /// Writes a record.
    #[must_use]
    pub fn of(stored: &StoredRecord, cluster: &str, at: &TopicPartition) -> Self {
        let record = &stored.record;
        let (key, key_base64) = written(record.key.as_deref());
        let (value, value_base64) = written(record.value.as_deref());
        let carried = record.headers.event_id();
        Self {
            offset: stored.offset.0,
            timestamp_ms: record.timestamp_ms,
            id: stored.event_id(cluster, at),
            carries_id: carried.is_some(),
            key,
            key_base64,
            value,
            value_base64,
            headers: headers_of(record, carried),
        }
    }

    /// Reads it back.
    ///
    /// # Errors
    /// The part of it that cannot be read.
    pub fn into_stored(self) -> Result<StoredRecord, String> {
        let key = bytes_of(self.key, self.key_base64)?;
        let value = bytes_of(self.value, self.value_base64)?;
        let mut record = record_of(key, value, self.timestamp_ms, self.headers)?;
        if self.carries_id {
            record = record.event_id(self.id);
        }
        Ok(StoredRecord {
            offset: Offset(self.offset),
            record,
        })
    }
}

/// The topics of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicNames {
    /// The name of the log, from which records that carry no id get theirs.
    pub cluster: String,
    /// The names of all topics, sorted.
    pub topics: Vec<String>,
}

/// How a topic is set up, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicInfo {
    /// Its name.
    pub topic: String,
    /// How long records are kept, in milliseconds; null keeps them for ever.
    pub retention_ms: Option<u64>,
    /// How many bytes each partition keeps; null keeps all.
    pub retention_bytes: Option<u64>,
    /// Whether only the last record of each key is kept in the long run.
    pub compact: bool,
    /// The largest record it takes.
    pub max_record_size: u64,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionRange>,
}

/// The offsets of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartitionRange {
    /// Its number.
    pub partition: i32,
    /// The first offset that is there.
    pub start: i64,
    /// The offset that the next record gets.
    pub end: i64,
}

impl From<TopicDescription> for TopicInfo {
    fn from(described: TopicDescription) -> Self {
        let config = described.config;
        let ms = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            topic: described.topic.as_str().to_owned(),
            retention_ms: config.retention.map(ms),
            retention_bytes: config.retention_bytes,
            compact: config.compact,
            max_record_size: config.max_record_size,
            partitions: described
                .partitions
                .iter()
                .map(|partition| PartitionRange {
                    partition: partition.partition.0,
                    start: partition.start.0,
                    end: partition.end.0,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went() {
        let topic = Topic::new("t").unwrap();
        let id = EventId::from_u128(7);
        let mut record = Record::new(&b"\xff\x00"[..])
            .key("k")
            .timestamp_ms(5)
            .header("a", "1");
        record.headers.push("b", None);
        record.headers.push("a", Some(b"\xfe"));
        for record in [record, Record::tombstone(), Record::new("")] {
            let append = Append::new(topic.clone(), record.clone().event_id(id)).partition(3);
            let wire = NewRecord::of(&append);
            let text = serde_json::to_string(&wire).unwrap();
            let wire: NewRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(wire.id, Some(id));
            assert_eq!(wire.into_append(topic.clone(), id).unwrap(), append);

            let at = TopicPartition::new(topic.clone(), 3);
            for record in [record.clone(), record.event_id(id)] {
                let offset = Offset(9);
                let stored = StoredRecord { offset, record };
                let wire = ReadRecord::of(&stored, "c", &at);
                let text = serde_json::to_string(&wire).unwrap();
                let wire: ReadRecord = serde_json::from_str(&text).unwrap();
                assert_eq!(wire.into_stored().unwrap(), stored);
            }
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        let read = |json: &str| {
            let wire: NewRecord = serde_json::from_str(json).unwrap();
            wire.into_append(Topic::new("t").unwrap(), EventId::from_u128(1))
        };
        assert!(read(r#"{"value":"a","value_base64":"YQ=="}"#).is_err());
        assert!(read(r#"{"key_base64":"?"}"#).is_err());
        assert!(read(r#"{"headers":[{"name":"x-tidegate-event-id","value":"1"}]}"#).is_err());
        assert_eq!(
            read(r#"{"value_base64":"YQ=="}"#)
                .unwrap()
                .record
                .value
                .unwrap(),
            "a"
        );
    }
}
