//! How a record is shown.

use serde::Serialize;
use tidegate_client::wire::{ReadRecord, RecordHeader};
use tidegate_core::{EventId, iso_time};
use tidegate_log::{StoredRecord, TopicPartition};

use crate::args::Output;
use crate::report::ErrorReport;

/// A record as a line of JSON. Bytes that are no text stand in base64 under names of their own.
#[derive(Debug, Serialize)]
struct Shown {
    partition: i32,
    offset: i64,
    timestamp: Option<String>,
    id: EventId,
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    headers: Vec<RecordHeader>,
}

/// Writes a record as one line, in the `format` that is asked for if there is one.
pub(super) fn line(
    into: &mut Vec<u8>,
    stored: &StoredRecord,
    at: &TopicPartition,
    cluster: &str,
    (output, format): (Output, Option<&str>),
) -> Result<(), ErrorReport> {
    let record = ReadRecord::of(stored, cluster, at);
    let timestamp = iso_time(record.timestamp_ms);
    let shown = Shown {
        partition: at.partition.0,
        offset: record.offset,
        timestamp,
        id: record.id,
        key: record.key,
        key_base64: record.key_base64,
        value: record.value,
        value_base64: record.value_base64,
        headers: record.headers,
    };
    output.add_line(into, &shown, || {
        let text = |text: &Option<String>, base64: &Option<String>, absent: &str| {
            let text = text.as_deref().map(one_line);
            let base64 = base64.as_ref().map(|base64| format!("base64:{base64}"));
            text.or(base64).unwrap_or_else(|| absent.to_owned())
        };
        let key = text(&shown.key, &shown.key_base64, "-");
        let value = text(&shown.value, &shown.value_base64, "(tombstone)");
        let time = shown.timestamp.as_deref().unwrap_or_default();
        let (partition, offset, id) = (shown.partition, shown.offset, shown.id);
        let headers = headers(&shown.headers);
        match format {
            None if headers.is_empty() => {
                format!("{partition}:{offset}  {time}  {id}  {key}  {value}")
            }
            None => format!("{partition}:{offset}  {time}  {id}  {key}  {value}  {headers}"),
            Some(format) => filled(format, |letter| {
                Some(match letter {
                    'k' => key.clone(),
                    'v' => value.clone(),
                    't' => at.topic.to_string(),
                    'p' => partition.to_string(),
                    'o' => offset.to_string(),
                    'T' => time.to_owned(),
                    'i' => id.to_string(),
                    'h' => headers.clone(),
                    _ => return None,
                })
            }),
        }
    })
}

/// The headers of a record in one text.
fn headers(headers: &[RecordHeader]) -> String {
    let each = headers.iter().map(|header| {
        let base64 = || {
            header
                .value_base64
                .as_ref()
                .map(|base64| format!("base64:{base64}"))
        };
        let value = header.value.as_deref().map(one_line).or_else(base64);
        format!("{}={}", one_line(&header.name), value.unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A format with each `%` and its letter replaced. `%%` is a percent sign, `\\n` and `\\t` are what they are in
/// most languages; anything else stays.
fn filled(format: &str, field: impl Fn(char) -> Option<String>) -> String {
    let mut text = String::with_capacity(format.len());
    let mut letters = format.chars().peekable();
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied();
        let replaced = match (letter, next) {
            ('%', Some('%')) => Some("%".to_owned()),
            ('%', Some(name)) => field(name),
            ('\\', Some('n')) => Some("\n".to_owned()),
            ('\\', Some('t')) => Some("\t".to_owned()),
            _ => None,
        };
        match replaced {
            Some(replaced) => {
                letters.next();
                text.push_str(&replaced);
            }
            None => text.push(letter),
        }
    }
    text
}

/// The text without what would break its line or reach the terminal as a command.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Offset, Topic};
    use tidegate_log::Record;

    fn shown(record: Record, output: Output) -> String {
        formatted(record, (output, None))
    }

    fn formatted(record: Record, format: (Output, Option<&str>)) -> String {
        let at = TopicPartition::new(Topic::new("t").unwrap(), 2);
        let id = EventId::from_u128(7);
        let stored = StoredRecord {
            offset: Offset(3),
            record: record.event_id(id).timestamp_ms(1_000),
        };
        let mut text = Vec::new();
        line(&mut text, &stored, &at, "c", format).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_record_is_one_line_whatever_is_in_it() {
        let id = EventId::from_u128(7);
        let strange = Record::new("a\nb\x1b[2J").key("k");
        assert_eq!(
            shown(strange, Output::Table),
            format!("2:3  1970-01-01T00:00:01.000Z  {id}  k  a\\nb\\u{{1b}}[2J\n")
        );
        let tombstone = shown(Record::tombstone(), Output::Table);
        assert!(tombstone.ends_with("  -  (tombstone)\n"), "{tombstone}");
        let bytes = shown(Record::new(&b"\xff"[..]), Output::Table);
        assert!(bytes.ends_with("  base64:/w==\n"), "{bytes}");
    }

    #[test]
    fn a_format_says_what_is_shown() {
        let record = || Record::new("v\n").key("k").header("h", "1");
        let shown = |format| formatted(record(), (Output::Table, Some(format)));
        assert_eq!(shown("%k %v"), "k v\\n\n");
        assert_eq!(shown("%t-%p@%o%%\\t%h %x %"), "t-2@3%\th=1 %x %\n");
        assert_eq!(shown("%T"), "1970-01-01T00:00:01.000Z\n");
        // JSON has everything anyway.
        assert!(formatted(record(), (Output::Json, Some("%k"))).starts_with('{'));
        let plain = formatted(record(), (Output::Table, None));
        assert!(plain.ends_with("  k  v\\n  h=1\n"), "{plain}");
    }

    #[test]
    fn json_tells_text_from_bytes_and_from_nothing() {
        let json = |record| serde_json::from_str::<serde_json::Value>(&shown(record, Output::Json));
        let text = json(Record::new("v").header("h", "1")).unwrap();
        assert_eq!(text["value"], "v");
        assert_eq!(text["headers"][0]["name"], "h");
        let bytes = json(Record::new(&b"\xff"[..])).unwrap();
        assert_eq!(
            (&bytes["value"], &bytes["value_base64"]),
            (&().into(), &"/w==".into())
        );
        assert!(
            json(Record::tombstone())
                .unwrap()
                .get("value_base64")
                .is_none()
        );
    }
}
