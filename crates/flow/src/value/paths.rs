//! Paths into records, and keys made of them.

use super::json::member;
use super::{FlowType, FlowValue, JsonRecord};

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

/// The key of a record as one text: the same for the same values.
#[must_use]
pub fn key_of(record: &JsonRecord, paths: &[String]) -> String {
    let texts = paths.iter().map(|path| match raw_at(record, path) {
        None => "null".to_owned(),
        Some(raw) => match FlowValue::from_json(raw, &FlowType::Dynamic) {
            Ok(FlowValue::String(text)) => text.into_owned(),
            Ok(_) | Err(_) => raw.to_owned(),
        },
    });
    texts.collect::<Vec<_>>().join(",")
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
