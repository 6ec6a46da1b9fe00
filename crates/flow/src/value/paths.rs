//! Paths into records, and keys made of them.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::json::{Scanner, member, write_string};
use super::{FlowType, FlowValue, JsonRecord, decimal};

/// The JSON text at a path.
#[must_use]
pub fn raw_at<'r>(record: &'r JsonRecord, path: &str) -> Option<&'r str> {
    let mut names = path.split('.');
    let mut raw = record.raw(names.next()?)?;
    for name in names {
        raw = member(raw, name)?;
    }
    Some(raw)
}

fn object_at(record: &JsonRecord, name: &str) -> Option<JsonRecord> {
    JsonRecord::of_text(record.raw(name)?).ok()
}

/// Sets the JSON text at a path; objects on the way are made.
pub(crate) fn set_at(record: &mut JsonRecord, path: &str, text: &str) {
    let Some((name, rest)) = path.split_once('.') else {
        record.set_raw(path, text);
        return;
    };
    let mut inner = object_at(record, name).unwrap_or_default();
    set_at(&mut inner, rest, text);
    record.set_raw(name, inner.to_string());
}

/// Keeps only these paths.
pub(crate) fn keep(record: &mut JsonRecord, paths: &[String]) {
    let mut kept = record.clone();
    kept.retain(|name| paths.iter().any(|path| path == name));
    for path in paths.iter().filter(|path| path.contains('.')) {
        if let Some(raw) = raw_at(record, path) {
            set_at(&mut kept, path, raw);
        }
    }
    *record = kept;
}

/// Removes these paths.
pub(crate) fn remove(record: &mut JsonRecord, paths: &[String]) {
    for path in paths {
        let Some((name, rest)) = path.split_once('.') else {
            record.remove(path);
            continue;
        };
        if let Some(mut inner) = object_at(record, name) {
            remove(&mut inner, &[rest.to_owned()]);
            record.set_raw(name, inner.to_string());
        }
    }
}

/// The last name of a path, which a key has in a result.
#[must_use]
pub fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The key of a record as one text, by which state is kept: one text for equal values, another one for others.
///
/// The texts of the fields are joined by commas. A text that could be taken for something else stands in quotes, with
/// the escapes of JSON: one with a comma, one that begins like a list, an object or a quote, one that is a number,
/// `true`, `false` or `null`. Numbers have no zeros at the end. A field that is absent is `null`.
///
/// ```
/// use tidegate_flow::value::JsonRecord;
/// use tidegate_flow::value::paths::{key_of, topic_key_of};
/// let paths = ["shop".to_owned(), "day".to_owned()];
/// let record = JsonRecord::of_text(r#"{"shop":"a,b","day":7.0}"#)?;
/// assert_eq!(key_of(&record, &paths), r#""a,b",7"#);
/// let record = JsonRecord::of_text(r#"{"shop":"4711"}"#)?;
/// assert_eq!(key_of(&record, &paths[..1]), r#""4711""#);
/// assert_eq!(topic_key_of(&record, &paths[..1]), "4711");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn key_of(record: &JsonRecord, paths: &[String]) -> String {
    let mut key = String::new();
    for (at, path) in paths.iter().enumerate() {
        if at > 0 {
            key.push(',');
        }
        push_part(raw_at(record, path).unwrap_or("null"), &mut key);
    }
    key
}

/// The key that a record has in a topic. A key of one text is that text, as producers write it: by it, records of
/// several topics come to one partition.
#[must_use]
pub fn topic_key_of(record: &JsonRecord, paths: &[String]) -> String {
    topic_key(&key_of(record, paths)).into_owned()
}

/// The key in a topic for a key by which state is kept.
#[must_use]
pub fn topic_key(key: &str) -> Cow<'_, str> {
    let text = key.starts_with('"').then(|| {
        // Several parts are no JSON together.
        FlowValue::parse_json(key, &FlowType::String).ok()
    });
    match text.flatten() {
        Some(FlowValue::String(text)) => text,
        Some(_) | None => Cow::Borrowed(key),
    }
}

/// Appends the text of one field of a key.
fn push_part(raw: &str, key: &mut String) {
    match raw.as_bytes().first() {
        Some(b'"') => match FlowValue::from_json(raw, &FlowType::String) {
            Ok(FlowValue::String(text)) if !is_mistakable(&text) => key.push_str(&text),
            Ok(FlowValue::String(text)) => write_string(&text, key),
            Ok(_) | Err(_) => key.push_str(raw),
        },
        Some(b'{' | b'[') => push_without_blanks(raw, key),
        Some(b'-' | b'0'..=b'9') => match decimal(raw) {
            Some(number) if number.is_zero() => key.push('0'),
            Some(number) => key.push_str(&number.normalize().to_string()),
            None => key.push_str(raw),
        },
        Some(_) | None => key.push_str(raw),
    }
}

/// Whether a text could be taken for several parts or for a value that is no text.
fn is_mistakable(text: &str) -> bool {
    let is_value = || {
        let mut scanner = Scanner::new(text);
        scanner.value(0).is_ok() && scanner.finish().is_ok()
    };
    text.contains(',') || text.starts_with(['"', '{', '[']) || is_value()
}

/// Appends a JSON text without the blanks between its signs.
fn push_without_blanks(raw: &str, key: &mut String) {
    let (mut is_text, mut is_escaped) = (false, false);
    for c in raw.chars() {
        if is_text || !c.is_ascii_whitespace() {
            key.push(c);
        }
        is_text ^= c == '"' && !is_escaped;
        is_escaped = is_text && c == '\\' && !is_escaped;
    }
}

/// Puts the records of a buffer in the order of their priority: the higher one first, those without one last.
///
/// Values of different kinds have an order, too: numbers come before texts, and texts before everything else.
pub fn by_priority(records: &mut [&JsonRecord], path: &str) {
    records.sort_by(|a, b| {
        let (a, b) = (priority(a, path), priority(b, path));
        let order = a.as_ref().zip(b.as_ref());
        let order = order.and_then(|(a, b)| b.order(a).ok().flatten());
        let kinds = kind_rank(b.as_ref()).cmp(&kind_rank(a.as_ref()));
        kinds.then(order.unwrap_or(Ordering::Equal))
    });
}

fn priority<'r>(record: &'r JsonRecord, path: &str) -> Option<FlowValue<'r>> {
    FlowValue::parse_json(raw_at(record, path)?, &FlowType::Dynamic).ok()
}

fn kind_rank(value: Option<&FlowValue<'_>>) -> u8 {
    match value {
        Some(FlowValue::Null) | None => 0,
        Some(FlowValue::Boolean(_)) => 2,
        Some(FlowValue::String(_)) => 3,
        Some(value) if value.kind().is_number() => 4,
        Some(_) => 1,
    }
}

/// A record with nothing but the key fields of another one.
#[must_use]
pub fn key_record(record: &JsonRecord, paths: &[String]) -> JsonRecord {
    let mut keys = JsonRecord::default();
    for path in paths {
        keys.set_raw(last_name(path), raw_at(record, path).unwrap_or("null"));
    }
    keys
}
