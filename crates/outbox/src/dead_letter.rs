//! Rows that are given up on, as records of the topic of dead letters.

use tidegate_core::dead_letter::{LastFailure, Reason, RecordOrigin};
use tidegate_core::{Code, DeadLetter, Offset, Partition, TierIndex, Topic};
use tidegate_log::{Append, Record};

use crate::OutboxOptions;
use crate::port::ClaimedRow;
use crate::record::{record_of, topic_of};

/// The number of the row.
const ROW: &str = "x-tidegate-outbox-row";
/// The bytes of a payload that was too large for the topic of dead letters and stays in its row.
pub(crate) const PAYLOAD_OMITTED: &str = "payload-omitted";

/// How much of a row its dead letter carries. The rest stays in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LetterContent {
    /// All of it.
    Whole,
    /// All but the payload.
    NoPayload,
    /// Neither payload nor headers.
    KeyOnly,
}

/// Why a row is given up on.
#[derive(Debug, Clone)]
pub(crate) struct GiveUp {
    pub(crate) code: Code,
    pub(crate) is_exhausted: bool,
    pub(crate) error: String,
    pub(crate) now_ms: u64,
}

/// The topic for the dead letter of a row.
pub(crate) fn dlq_of(row: &ClaimedRow, options: &OutboxOptions) -> Option<Topic> {
    Topic::new(dlq_of_named(row.topic.as_deref(), options)).ok()
}

/// The same of a row that names this topic. One that has no topic goes to that of the relay's name.
pub(crate) fn dlq_of_named(named: Option<&str>, options: &OutboxOptions) -> String {
    let meant = match named {
        Some(name) => Topic::new(name).ok(),
        None => options.topic.clone(),
    };
    options.dlq_of(meant.as_ref().map_or(&options.name, Topic::as_str))
}

/// The dead letter of a row. It never lay in its topic, so its origin has no partition, and its offset is
/// the number of the row.
pub(crate) fn dead_letter_of(
    row: &ClaimedRow,
    options: &OutboxOptions,
    why: &GiveUp,
    content: LetterContent,
) -> Option<Append> {
    let topic = dlq_of(row, options)?;
    // Headers that cannot be read, or that no log takes, stay in the row.
    let fits =
        |record: &Record| content != LetterContent::KeyOnly && record.headers.check().is_ok();
    let plain = record_of(row).ok().filter(fits).or_else(|| {
        let bare = ClaimedRow {
            headers: None,
            aggregate_type: None,
            ..row.clone()
        };
        record_of(&bare).ok()
    })?;
    let has_payload = content == LetterContent::Whole;
    let letter = DeadLetter {
        event_id: row.event_id,
        origin: RecordOrigin {
            topic: topic_of(row, options).unwrap_or_else(|_| topic.clone()),
            partition: Partition(-1),
            offset: Offset(row.id),
            timestamp_ms: row.created_ms,
        },
        key: plain.key.clone(),
        value: None,
        headers: Vec::new(),
        reason: match why.is_exhausted {
            true => Reason::RetriesExhausted,
            false => Reason::NonRetryable,
        },
        dead_at_ms: why.now_ms,
        attempts: row.attempts.saturating_add(1),
        first_failure_ms: why.now_ms,
        failure: LastFailure {
            code: why.code.clone(),
            message: why.error.clone(),
            stack: String::new(),
        },
        tier: TierIndex(0),
        trail: Vec::new(),
        replays: 0,
        group: None,
        stage: None,
    };
    let bytes = row.payload.as_ref().map_or(0, |payload| payload.len());
    let mut record = Record {
        value: plain.value.filter(|_| has_payload),
        ..plain
    };
    for header in letter.to_headers() {
        if header.name != tidegate_log::EVENT_ID {
            record.headers.push(&header.name, header.value.as_deref());
        }
    }
    record = record.header(ROW, row.id.to_string());
    if !has_payload {
        record = record.header(PAYLOAD_OMITTED, bytes.to_string());
    }
    Some(Append::new(topic, record))
}

#[cfg(test)]
mod tests {
    use tidegate_core::EventId;

    use super::*;

    #[test]
    fn o08_a_dead_letter_says_where_it_was_meant_to_go_and_why_it_did_not() {
        let row = ClaimedRow {
            id: 7,
            bucket: 0,
            event_id: EventId::from_u128(9),
            aggregate_id: "a".to_owned(),
            aggregate_type: None,
            type_name: "T".to_owned(),
            topic: Some("loan-events".to_owned()),
            payload: Some("12345".into()),
            headers: Some("not even JSON".to_owned()),
            attempts: 9,
            created_ms: 1,
        };
        let why = GiveUp {
            code: Code::from_static("log.unknown-topic"),
            is_exhausted: true,
            error: "there is none".to_owned(),
            now_ms: 5,
        };
        let options = OutboxOptions::default();
        let append = dead_letter_of(&row, &options, &why, LetterContent::Whole).unwrap();
        assert_eq!(append.topic.as_str(), "loan-events-dlq");
        assert_eq!(append.record.value.as_deref(), Some(&b"12345"[..]));
        let header = |append: &Append, name| {
            let value = append.record.headers.get(name);
            value.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let expect = [
            ("x-eventbus-original-topic", "loan-events"),
            ("x-eventbus-total-attempts", "10"),
            ("x-eventbus-last-exception-message", "there is none"),
            ("x-eventbus-dlt-reason", "RETRIES_EXHAUSTED"),
            ("x-tidegate-outbox-row", "7"),
            ("event-type", "T"),
        ];
        for (name, value) in expect {
            assert_eq!(header(&append, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(append.record.headers.event_id(), Some(row.event_id));
        let bare = dead_letter_of(&row, &options, &why, LetterContent::NoPayload).unwrap();
        assert_eq!(bare.record.value, None);
        assert_eq!(header(&bare, "payload-omitted").as_deref(), Some("5"));
        let long = format!(r#"{{"{}":"v"}}"#, "n".repeat(65_536));
        for (headers, content) in [
            (long, LetterContent::Whole),
            (r#"{"n":"v"}"#.to_owned(), LetterContent::KeyOnly),
        ] {
            let row = ClaimedRow {
                headers: Some(headers),
                ..row.clone()
            };
            let append = dead_letter_of(&row, &options, &why, content).unwrap();
            append.record.headers.check().unwrap();
            assert_eq!(header(&append, "n"), None);
            assert_eq!(append.record.headers.event_id(), Some(row.event_id));
        }
    }
}
