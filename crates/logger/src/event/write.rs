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
    if are_plain(bytes) {
        into.extend_from_slice(bytes);
    } else {
        escaped(into, bytes);
    }
    into.push(b'"');
}

#[cold]
fn escaped(into: &mut Vec<u8>, bytes: &[u8]) {
    let mut plain_from = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        if is_plain(byte) {
            continue;
        }
        into.extend_from_slice(&bytes[plain_from..index]);
        plain_from = index + 1;
        escape(into, byte);
    }
    into.extend_from_slice(&bytes[plain_from..]);
}

/// Whether a byte may stand in a JSON string as it is: no quote, backslash or control character.
fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\'
}

/// Whether all of them may. Most texts are short and plain, so they are looked at eight bytes at a
/// time, the last ones with some of those before them.
fn are_plain(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().all(|&byte| is_plain(byte));
    };
    let (eights, _) = bytes.as_chunks();
    let found = eights
        .iter()
        .fold(not_plain(*last), |found, eight| found | not_plain(*eight));
    found == 0
}

/// Zero if all eight bytes are plain. Taking `n` from a byte below `n` sets its highest bit, which was
/// clear before. No other byte changes like that, unless one beside it is below `n`. A byte that equals
/// another is found in the same way: their difference is below one.
fn not_plain(eight: [u8; 8]) -> u64 {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let below = |word: u64, n: u64| word.wrapping_sub(EACH * n) & !word & (EACH << 7);
    let word = u64::from_ne_bytes(eight);
    let equal = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    below(word, 0x20) | equal(b'"') | equal(b'\\')
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
            into.extend_from_slice(&hex::<1, 2>([byte]));
            return;
        }
    };
    into.extend_from_slice(&[b'\\', short]);
}

/// Writes `number` in decimal.
pub(crate) fn number(into: &mut Vec<u8>, number: u64) {
    into.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The last decimal digit.
fn digit(number: u64) -> u8 {
    b'0' + (number % 10).to_le_bytes()[0]
}

/// How much of a timestamp [`milliseconds`] is.
pub(super) const MILLISECONDS: usize = ".000Z\"".len();

/// Writes the end of a timestamp, from its dot on.
pub(super) fn milliseconds(into: &mut Vec<u8>, ms: u64) {
    let [hundreds, tens, ones] = [digit(ms / 100), digit(ms / 10), digit(ms)];
    into.extend_from_slice(&[b'.', hundreds, tens, ones, b'Z', b'"']);
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
    let [a, b, c, d, e, f, g, h, rest @ ..] = hex::<16, 32>(id.as_u128().to_be_bytes());
    let [i, j, k, l, m, n, o, p, q, r, s, t, node @ ..] = rest;
    into.extend_from_slice(&[b'"', a, b, c, d, e, f, g, h]);
    into.extend_from_slice(&[b'-', i, j, k, l, b'-', m, n, o, p, b'-', q, r, s, t, b'-']);
    into.extend_from_slice(&node);
    into.push(b'"');
}

/// Writes the span of an event that was given none: the random half of its id, so that an event
/// has the same span each time it is sent. It is never zero, because of the variant of a UUID.
pub(super) fn span_of(into: &mut Vec<u8>, id: EventId) {
    let [_, _, _, _, _, _, _, _, random @ ..] = id.as_u128().to_be_bytes();
    into.push(b'"');
    into.extend_from_slice(&hex::<8, 16>(random));
    into.push(b'"');
}

/// The hex digits of bytes, two for each.
pub(crate) fn hex<const N: usize, const DIGITS: usize>(bytes: [u8; N]) -> [u8; DIGITS] {
    const { assert!(DIGITS == 2 * N, "two digits for each byte") };
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = [hex_digit(byte >> 4), hex_digit(byte)];
    }
    digits
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
fn hex_digit(byte: u8) -> u8 {
    b"0123456789abcdef"[usize::from(byte & 0xf)]
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
    fn a_byte_that_must_be_escaped_is_found_wherever_it_stands() {
        for len in 0..40 {
            for at in 0..len {
                for code in 0..=127_u8 {
                    let mut bytes = vec![b'~'; len];
                    bytes[at] = code;
                    assert_eq!(are_plain(&bytes), is_plain(code), "{code} at {at} of {len}");
                    let original = String::from_utf8(bytes).unwrap();
                    let json = written(|into| text(into, &original));
                    assert_eq!(serde_json::from_str::<String>(&json).unwrap(), original);
                }
            }
            let highest = vec![0xff_u8; len];
            assert!(are_plain(&highest), "{len}");
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
