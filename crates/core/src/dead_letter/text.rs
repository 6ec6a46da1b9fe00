//! Bytes as text where they are text, and without loss where they are not.

use bytes::Bytes;
use serde_json::{Value, json};

use super::TierFailure;
use crate::{Code, TierIndex};

/// `[[tier, "code", exhausted_at_ms, attempts], …]`.
pub(super) fn trail_to_json(trail: &[TierFailure]) -> Vec<Vec<Value>> {
    let fields = |seen: &TierFailure| {
        let (tier, code) = (seen.tier.0, seen.code.as_str());
        vec![
            json!(tier),
            json!(code),
            json!(seen.exhausted_at_ms),
            json!(seen.attempts),
        ]
    };
    trail.iter().map(fields).collect()
}

/// The reverse of [`trail_to_json`]. Earlier versions wrote no attempts.
pub(super) fn trail_from_json(rows: &[Vec<Value>]) -> Option<Vec<TierFailure>> {
    let read = |fields: &Vec<Value>| {
        let small = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let (tier, code, at, attempts) = match fields.as_slice() {
            [tier, code, at] => (tier, code, at, Some(0)),
            [tier, code, at, attempts] => (tier, code, at, small(attempts)),
            _ => return None,
        };
        Some(TierFailure {
            tier: TierIndex(small(tier)?),
            code: Code::verbatim(code.as_str()?.to_owned()),
            exhausted_at_ms: at.as_u64()?,
            attempts: attempts?,
        })
    };
    rows.iter().map(read).collect()
}

/// The longest start of `text` with at most this many characters.
pub(super) fn first_chars(text: &str, limit: usize) -> &str {
    match text.char_indices().nth(limit) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// The longest start of `text` with at most this many bytes that ends between two characters.
pub(super) fn first_bytes(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// `null`, a string where the bytes are UTF-8, else `{"hex": "…"}`.
pub(super) fn to_json(bytes: Option<&Bytes>) -> Value {
    match bytes {
        None => Value::Null,
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::from(text),
            Err(_) => json!({ "hex": to_hex(bytes) }),
        },
    }
}

/// The reverse of [`to_json`].
pub(super) fn from_json(value: &Value) -> Option<Option<Bytes>> {
    match value {
        Value::Null => Some(None),
        Value::String(text) => Some(Some(Bytes::from(text.clone().into_bytes()))),
        Value::Object(object) => from_hex(object.get("hex")?.as_str()?).map(Some),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |d: u8| char::from(DIGITS[usize::from(d)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

pub(super) fn from_hex(text: &str) -> Option<Bytes> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}
