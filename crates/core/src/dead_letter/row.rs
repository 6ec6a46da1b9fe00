//! A dead letter as a row of plain columns.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{DeadLetter, Header, LastFailure, Reason, RecordOrigin, StageContext, text};
use crate::{Code, GroupName, Offset, Partition, TierIndex, Topic};

/// A dead letter as a row: each field is one column, of a type that every database has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the columns are the fields of `DeadLetter`, under the same names"
)]
pub struct DeadLetterRow {
    pub event_id: String,
    pub original_topic: String,
    pub original_partition: i32,
    pub original_offset: i64,
    pub original_timestamp_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// JSON: `[["name", "text" | {"hex": "…"} | null], …]`.
    pub headers: String,
    pub reason: String,
    pub dead_at_ms: i64,
    pub attempts: i64,
    pub first_failure_ms: i64,
    pub failure_code: String,
    pub failure_message: String,
    pub failure_stack: String,
    pub tier: i64,
    /// JSON: `[[tier, "code", exhausted_at_ms, attempts], …]`.
    pub trail: String,
    pub replays: i64,
    pub group_name: Option<String>,
    pub stage_name: Option<String>,
    pub stage_instance: Option<String>,
    pub operator_name: Option<String>,
    pub failure_kind: Option<String>,
}

/// A row that is not a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}` of dead letter `{event_id}` cannot be read")]
pub struct RowError {
    /// The event the row is about, as the row has it.
    pub event_id: String,
    /// The first column that does not hold what it should.
    pub column: &'static str,
}

impl From<&DeadLetter> for DeadLetterRow {
    fn from(letter: &DeadLetter) -> Self {
        let bounded = letter.clone().bounded();
        let headers: Vec<Value> = letter
            .headers
            .iter()
            .map(|header| json!([header.name, text::to_json(header.value.as_ref())]))
            .collect();
        let trail = text::trail_to_json(&letter.trail);
        let stage = letter.stage.as_ref();
        Self {
            event_id: letter.event_id.to_string(),
            original_topic: letter.origin.topic.to_string(),
            original_partition: letter.origin.partition.0,
            original_offset: letter.origin.offset.0,
            original_timestamp_ms: letter.origin.timestamp_ms,
            key: letter.key.as_ref().map(|key| key.to_vec()),
            value: letter.value.as_ref().map(|value| value.to_vec()),
            headers: Value::from(headers).to_string(),
            reason: letter.reason.as_str().to_owned(),
            dead_at_ms: signed(letter.dead_at_ms),
            attempts: i64::from(letter.attempts),
            first_failure_ms: signed(letter.first_failure_ms),
            failure_code: letter.failure.code.to_string(),
            failure_message: bounded.failure.message,
            failure_stack: bounded.failure.stack,
            tier: i64::from(letter.tier.0),
            trail: json!(trail).to_string(),
            replays: i64::from(letter.replays),
            group_name: letter.group.as_ref().map(ToString::to_string),
            stage_name: stage.map(|s| s.stage_name.clone()),
            stage_instance: stage.map(|s| s.stage_instance.clone()),
            operator_name: stage.map(|s| s.operator_name.clone()),
            failure_kind: stage.and_then(|s| s.failure_kind.clone()),
        }
    }
}

impl TryFrom<DeadLetterRow> for DeadLetter {
    type Error = RowError;

    fn try_from(row: DeadLetterRow) -> Result<Self, RowError> {
        let bad = |column: &'static str| RowError {
            event_id: row.event_id.clone(),
            column,
        };
        let headers: Option<Vec<Header>> = rows_of(&row.headers, |fields| match fields {
            [name, value] => Some(Header {
                name: name.as_str()?.to_owned(),
                value: text::from_json(value)?,
            }),
            _ => None,
        });
        let trail = serde_json::from_str::<Vec<Vec<Value>>>(&row.trail).ok();
        let trail = trail.and_then(|rows| text::trail_from_json(&rows));
        let group = row.group_name.clone().map(GroupName::new).transpose();
        let unsigned = |value: i64, column| u64::try_from(value).map_err(|_| bad(column));
        let small = |value: i64, column| u32::try_from(value).map_err(|_| bad(column));
        Ok(Self {
            event_id: row.event_id.parse().map_err(|_| bad("event_id"))?,
            origin: RecordOrigin {
                topic: Topic::new(row.original_topic.clone()).map_err(|_| bad("original_topic"))?,
                partition: Partition(row.original_partition),
                offset: Offset(row.original_offset),
                timestamp_ms: row.original_timestamp_ms,
            },
            headers: headers.ok_or_else(|| bad("headers"))?,
            reason: Reason::parse(&row.reason).ok_or_else(|| bad("reason"))?,
            dead_at_ms: unsigned(row.dead_at_ms, "dead_at_ms")?,
            attempts: small(row.attempts, "attempts")?,
            first_failure_ms: unsigned(row.first_failure_ms, "first_failure_ms")?,
            tier: TierIndex(small(row.tier, "tier")?),
            trail: trail.ok_or_else(|| bad("trail"))?,
            replays: small(row.replays, "replays")?,
            group: group.map_err(|_| bad("group_name"))?,
            failure: LastFailure {
                code: Code::verbatim(row.failure_code),
                message: row.failure_message,
                stack: row.failure_stack,
            },
            key: row.key.map(Bytes::from),
            value: row.value.map(Bytes::from),
            stage: match (row.stage_name, row.stage_instance, row.operator_name) {
                (Some(stage_name), Some(stage_instance), Some(operator_name)) => {
                    Some(StageContext {
                        stage_name,
                        stage_instance,
                        operator_name,
                        failure_kind: row.failure_kind,
                    })
                }
                _ => None,
            },
        })
    }
}

/// Times past the year 292 million do not come up; they would stay at the end of time.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn rows_of<T>(json: &str, read: impl Fn(&[Value]) -> Option<T>) -> Option<Vec<T>> {
    let rows: Vec<Vec<Value>> = serde_json::from_str(json).ok()?;
    rows.iter().map(|fields| read(fields)).collect()
}
