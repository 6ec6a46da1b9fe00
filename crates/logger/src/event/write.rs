//! Writing JSON tokens into a buffer, without a value in between.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use tidegate_core::EventId;

use super::{Json, Properties};

/// Writes `text` as a JSON string.
pub(super) fn text(into: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    into.reserve(bytes.len() + 2);
    into.push(b'"');
    // Most texts are clean, and looking at all bytes without stopping is done many at a time.
    let is_clean = bytes
        .iter()
        .fold(true, |is_clean, &byte| is_clean & is_plain(byte));
    if is_clean {
        into.extend_from_slice(bytes);
        into.push(b'"');
        return;
    }
    let mut clean_from = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        if is_plain(byte) {
            continue;
        }
        into.extend_from_slice(&bytes[clean_from..index]);
        clean_from = index + 1;
        escape(into, byte);
    }
    into.extend_from_slice(&bytes[clean_from..]);
    into.push(b'"');
}

/// Whether a byte may stand in a JSON string as it is: no quote, backslash or control character.
fn is_plain(byte: u8) -> bool {
    (byte >= 0x20) & (byte != b'"') & (byte != b'\\')
}

#[cold]
fn escape(into: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' => b'"',
        b'\\' => b'\\',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            into.extend_from_slice(b"\\u00");
            into.push(hex(byte >> 4));
            into.push(hex(byte));
            return;
        }
    };
    into.extend_from_slice(&[b'\\', short]);
}

/// Writes `number` in decimal.
pub(super) fn number(into: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + low_byte(rest % 10);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    into.extend_from_slice(&digits[at..]);
}

/// Writes `at` as ISO-8601 in UTC: with milliseconds, and finer where it is finer.
pub(super) fn timestamp(into: &mut Vec<u8>, at: Timestamp) {
    let nanoseconds = at.subsec_nanosecond();
    let digits = if nanoseconds % 1_000_000 == 0 {
        3
    } else if nanoseconds % 1_000 == 0 {
        6
    } else {
        9
    };
    let printer = DateTimePrinter::new().precision(Some(digits));
    into.push(b'"');
    printer
        .print_timestamp(&at, &mut *into)
        .expect("a buffer in memory takes every byte");
    into.push(b'"');
}

/// Writes `id` in the usual form of a UUID.
pub(super) fn event_id(into: &mut Vec<u8>, id: EventId) {
    // By hand: this is written for every event, and formatting would take the longer way.
    into.extend_from_slice(&filled(
        *b"\"00000000-0000-0000-0000-000000000000\"",
        id.as_u128(),
    ));
}

/// Writes the span of an event that was given none: the random half of its id, so that an event
/// has the same span each time it is sent. It is never zero, because of the variant of a UUID.
pub(super) fn span_of(into: &mut Vec<u8>, id: EventId) {
    into.extend_from_slice(&filled(*b"\"0000000000000000\"", id.as_u128()));
}

/// Puts the lowest bits in place of the zeros of `form`.
fn filled<const N: usize>(mut form: [u8; N], bits: u128) -> [u8; N] {
    let mut rest = bits;
    for place in form.iter_mut().rev().filter(|place| **place == b'0') {
        *place = hex(low_byte(rest));
        rest >>= 4;
    }
    form
}

/// Writes `value` as it stands.
pub(super) fn json(into: &mut Vec<u8>, value: &Json) {
    into.extend_from_slice(value.as_str().as_bytes());
}

/// Writes `properties` as an object.
pub(super) fn object(into: &mut Vec<u8>, properties: &Properties) {
    into.push(b'{');
    for (index, (name, value)) in properties.iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        text(into, name);
        into.push(b':');
        json(into, value);
    }
    into.push(b'}');
}

/// The hex digit of the lower four bits.
fn hex(byte: u8) -> u8 {
    b"0123456789abcdef"[usize::from(byte & 0xf)]
}

fn low_byte(number: impl Into<u128>) -> u8 {
    number.into().to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut into = Vec::new();
        write(&mut into);
        String::from_utf8(into).unwrap()
    }

    #[test]
    fn every_character_below_256_reads_back() {
        for code in 0..=255_u8 {
            let original = format!("a{}b", char::from(code));
            let json = written(|into| text(into, &original));
            assert!(!json.contains(['\n', '\r']), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), original);
        }
    }

    #[test]
    fn numbers_have_all_their_digits() {
        for value in [0, 7, 10, 99, 100, 1_234_567_890, u64::MAX] {
            assert_eq!(written(|into| number(into, value)), value.to_string());
        }
    }

    #[test]
    fn a_timestamp_has_milliseconds_and_more_only_where_there_is_more() {
        for text in [
            "\"2026-06-01T10:15:30.123Z\"",
            "\"2026-06-01T10:15:30.000Z\"",
            "\"2026-06-01T10:15:30.123456Z\"",
            "\"2026-06-01T10:15:30.123456789Z\"",
            "\"1969-12-31T23:59:59.999Z\"",
            "\"0001-01-01T00:00:00.000Z\"",
        ] {
            let at: Timestamp = text.trim_matches('"').parse().unwrap();
            assert_eq!(written(|into| timestamp(into, at)), text);
        }
    }

    #[test]
    fn an_id_and_its_span_are_hex() {
        let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse().unwrap();
        assert_eq!(written(|into| event_id(into, id)), format!("\"{id}\""));
        assert_eq!(written(|into| span_of(into, id)), "\"8def0123456789ab\"");
    }
}
