//! One line of a spill file.

use std::borrow::Cow;

use serde::Deserialize;
use tidegate_core::EventId;

use crate::event::write;

/// The end of every line of ours: `,"_crc":"xxxxxxxx"}`.
const CRC_MARK: &[u8] = b",\"_crc\":\"";
const CRC_TAIL: usize = CRC_MARK.len() + 8 + 2;
/// The text before an id, and the length of an id.
const ID_MARK: &[u8] = b"\"_id\":\"";
const ID: usize = 36;

/// Closes a line: `json` is an object whose last property is `_id` and whose brace is still open.
pub(super) fn close(buffer: &mut Vec<u8>, start: usize, seq: u64, sum: Option<u128>) {
    buffer.extend_from_slice(b",\"_seq\":");
    write::number(buffer, seq);
    if let Some(sum) = sum {
        buffer.extend_from_slice(b",\"_sum\":\"");
        buffer.extend_from_slice(&write::hex::<16, 32>(sum.to_be_bytes()));
        buffer.push(b'"');
    }
    let crc = crc32c::crc32c(&buffer[start..]);
    buffer.extend_from_slice(CRC_MARK);
    buffer.extend_from_slice(&write::hex::<4, 8>(crc.to_be_bytes()));
    buffer.extend_from_slice(b"\"}\n");
}

/// A line that can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SpillLine<'a> {
    pub(super) id: EventId,
    pub(super) seq: Option<u64>,
    pub(super) sum: Option<u128>,
    /// The JSON object, with its id in it.
    pub(super) json: Cow<'a, [u8]>,
}

/// The properties of ours, for lines that others wrote or touched.
#[derive(Deserialize)]
struct Ours {
    #[serde(rename = "_id")]
    id: Option<EventId>,
    #[serde(rename = "_seq")]
    seq: Option<u64>,
    #[serde(rename = "_sum")]
    sum: Option<String>,
}

/// Reads a line without its newline. `offset` is where it lies, which makes the id of a line that
/// has none.
///
/// A line that ends with a checksum must agree with it. A line with a number of ours has one, so without
/// it the line is damaged. For any other line, being JSON is the only check there is.
pub(super) fn read(bytes: &[u8], offset: u64) -> Option<SpillLine<'_>> {
    let checked = check(bytes);
    match checked {
        Some(false) => return None,
        Some(true) => {
            if let Some(line) = read_ours(bytes) {
                return Some(line);
            }
        }
        None => {}
    }
    let text = std::str::from_utf8(bytes).ok()?;
    let ours: Ours = serde_json::from_str(text).ok()?;
    if ours.seq.is_some() && checked.is_none() {
        return None;
    }
    let sum = ours.sum.and_then(|sum| u128::from_str_radix(&sum, 16).ok());
    match ours.id {
        Some(id) => Some(SpillLine {
            id,
            seq: ours.seq,
            sum,
            json: Cow::Borrowed(bytes),
        }),
        None => {
            let id = EventId::of_bytes(offset, bytes);
            let mut json = bytes.trim_ascii_end().strip_suffix(b"}")?.to_vec();
            let is_empty = json.trim_ascii_end().ends_with(b"{");
            let comma = if is_empty { "" } else { "," };
            json.extend_from_slice(format!("{comma}\"_id\":\"{id}\"}}").as_bytes());
            Some(SpillLine {
                id,
                seq: ours.seq,
                sum,
                json: Cow::Owned(json),
            })
        }
    }
}

/// Whether the event in a line of the rejected file is as it was refused, as far as a checksum in it tells.
pub(super) fn is_rejected_event_whole(bytes: &[u8]) -> bool {
    const MARK: &[u8] = b",\"event\":";
    // The properties before it are ours, and the texts in them have their quotes escaped.
    let start = bytes.windows(MARK.len()).position(|part| part == MARK);
    let event = start.and_then(|start| bytes.get(start + MARK.len()..));
    let event = event.and_then(|event| event.trim_ascii_end().strip_suffix(b"}"));
    // A renamed mark has it parse as a line of others, and those of ours have a number.
    event.is_none_or(|event| event == b"null" || read(event, 0).is_some())
}

/// Whether the checksum agrees; none for a line without one.
fn check(bytes: &[u8]) -> Option<bool> {
    let start = bytes.len().checked_sub(CRC_TAIL)?;
    let (body, tail) = bytes.split_at(start);
    let hex = tail.strip_prefix(CRC_MARK)?.strip_suffix(b"\"}")?;
    if !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    // Compared as text: a flipped bit makes a capital letter of a small one, and no other number.
    let crc = write::hex::<4, 8>(crc32c::crc32c(body).to_be_bytes());
    Some(hex == crc)
}

/// Reads the properties at the end of a line whose checksum agrees, without parsing the rest. Each is
/// exactly where [`close`] puts it, because the event may have properties of the same names further
/// inside.
fn read_ours(bytes: &[u8]) -> Option<SpillLine<'_>> {
    const SUM: usize = b",\"_sum\":\"".len() + 32 + 1;
    let mut rest = bytes.get(..bytes.len().checked_sub(CRC_TAIL)?)?;
    let mut sum = None;
    if let Some((before, last)) = rest.split_at_checked(rest.len().saturating_sub(SUM))
        && let Some(hex) = last.strip_prefix(b",\"_sum\":\"")
        && let Some(hex) = hex.strip_suffix(b"\"")
    {
        sum = Some(u128::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = before;
    }
    let digits = rest.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (before, seq) = rest.split_at(rest.len() - digits.count());
    let seq = std::str::from_utf8(seq).ok()?.parse().ok()?;
    let before = before.strip_suffix(b"\",\"_seq\":")?;
    let (before, id) = before.split_at_checked(before.len().checked_sub(ID)?)?;
    before.strip_suffix(ID_MARK)?;
    Some(SpillLine {
        id: std::str::from_utf8(id).ok()?.parse().ok()?,
        seq: Some(seq),
        sum,
        json: Cow::Borrowed(bytes),
    })
}

/// The id that a line names which cannot be read, if it does. It may be the damaged part itself, so
/// it is a hint and no proof.
pub(super) fn hint(bytes: &[u8]) -> Option<EventId> {
    let marks = bytes
        .windows(ID_MARK.len())
        .rposition(|part| part == ID_MARK);
    let start = marks? + ID_MARK.len();
    let id = bytes.get(start..start.checked_add(ID)?)?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(details: &str, id: EventId, seq: u64, sum: Option<u128>) -> Vec<u8> {
        let mut buffer = b"before\n".to_vec();
        let start = buffer.len();
        let details = serde_json::to_string(details).unwrap();
        buffer.extend(format!("{{\"details\":{details},\"_id\":\"{id}\"").as_bytes());
        close(&mut buffer, start, seq, sum);
        buffer.split_off(start)
    }

    proptest! {
        #[test]
        fn a_line_reads_back_and_any_flipped_bit_is_noticed(
            details in "\\PC{0,300}", id: u128, seq: u64, sum: Option<u128>,
            at: prop::sample::Index, bit in 0_u8..8,
        ) {
            let id = EventId::from_u128(id);
            let bytes = line(&details, id, seq, sum);
            let (body, newline) = bytes.split_at(bytes.len() - 1);
            prop_assert_eq!(newline, b"\n");
            let value: serde_json::Value = serde_json::from_slice(body).unwrap();
            prop_assert_eq!(value["details"].as_str().unwrap(), details);
            prop_assert_eq!(value["_seq"].as_u64().unwrap(), seq);
            let expect = SpillLine { id, seq: Some(seq), sum, json: Cow::Borrowed(body) };
            let found = read(body, 0);
            prop_assert_eq!(found.as_ref(), Some(&expect));
            let mut broken = body.to_vec();
            let at = at.index(broken.len());
            broken[at] ^= 1 << bit;
            // Also within the mark itself: a line with a number has a checksum.
            let found = read(&broken, 0);
            prop_assert!(found.is_none(), "{found:?}");
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            read(&bytes, 0);
        }
    }

    #[test]
    fn a_numbered_line_without_its_checksum_is_damaged() {
        let id = EventId::from_u128(7 << 76 | 2 << 62);
        let bytes = line("BK-42", id, 1, None);
        let text = String::from_utf8(bytes).unwrap();
        let forged = text
            .replace("\"_crc\"", "\"_crd\"")
            .replace("BK-42", "BK-99");
        assert_eq!(read(forged.trim_end().as_bytes(), 0), None);
        // Without a number it is a line of others.
        let foreign = format!("{{\"details\":\"BK-99\",\"_id\":\"{id}\"}}");
        assert_eq!(read(foreign.as_bytes(), 0).unwrap().id, id);
    }

    #[test]
    fn a_checksum_in_capital_letters_is_damaged() {
        let letters = (1..).find_map(|seq| {
            let bytes = line("BK-42", EventId::from_u128(7 << 76 | 2 << 62), seq, None);
            let at = bytes.len() - 4;
            bytes[at].is_ascii_lowercase().then_some((bytes, at))
        });
        let (mut bytes, at) = letters.unwrap();
        assert!(read(bytes.trim_ascii_end(), 0).is_some());
        bytes[at] ^= 0x20;
        assert_eq!(read(bytes.trim_ascii_end(), 0), None);
    }

    #[test]
    fn properties_of_an_event_that_are_named_like_ours_are_not_taken_for_ours() {
        let (id, other) = (EventId::from_u128(7 << 76 | 2 << 62), EventId::from_u128(1));
        for inner in [
            format!("{{\"_sum\":\"00ff\",\"_seq\":9,\"_id\":\"{other}\"}}"),
            format!("[{{\"a\":1,\"_sum\":\"{:032x}\"}}]", 5),
            "\",\\\"_seq\\\":7\"".to_owned(),
        ] {
            for sum in [None, Some(11)] {
                let mut bytes = format!("{{\"metadata\":{inner},\"_id\":\"{id}\"").into_bytes();
                close(&mut bytes, 0, 3, sum);
                bytes.pop();
                let line = read(&bytes, 0).unwrap();
                assert_eq!((line.id, line.seq, line.sum), (id, Some(3), sum), "{inner}");
            }
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_may_still_name_its_event() {
        let id = EventId::from_u128(7 << 76 | 2 << 62);
        let mut bytes = line("x", id, 1, None);
        bytes[3] = 0xff;
        assert_eq!((read(&bytes, 0), hint(&bytes)), (None, Some(id)));
        assert_eq!(hint(b"{\"details\":\"torn"), None);
        assert_eq!(hint(b"{\"_id\":\"0"), None);
    }

    #[test]
    fn a_line_of_others_gets_the_same_id_each_time_and_carries_it() {
        let foreign = br#"{"applicationId":"a","details":"x"}"#;
        let (one, two) = (read(foreign, 7).unwrap(), read(foreign, 7).unwrap());
        assert_eq!(one.id, two.id);
        assert_ne!(one.id, read(foreign, 8).unwrap().id);
        let sent: serde_json::Value = serde_json::from_slice(&one.json).unwrap();
        assert_eq!(sent["_id"], one.id.to_string());
        assert!(read(b"{}", 0).unwrap().json.starts_with(b"{\"_id\""));
        assert_eq!(read(b"[1]", 0), None);
        assert_eq!(read(b"", 0), None);
        assert_eq!(read(b"{\"a\":\"\xff\"}", 0), None);
    }
}
