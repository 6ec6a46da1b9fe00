//! Bytes of keys and values in the tables of a task.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use tidegate_flow::value::{FlowValue, MapKey, ValueMap};

/// Lists and maps may stand this deep inside each other.
const MAX_DEPTH: usize = 128;
/// The names of types, which a value may be.
const TYPE_NAMES: [&str; 13] = [
    "null_type",
    "bool",
    "int",
    "uint",
    "double",
    "decimal",
    "string",
    "bytes",
    "timestamp",
    "duration",
    "list",
    "map",
    "type",
];

/// Appends a text to a key: keys keep the order of their texts, and none is the start of another.
///
/// A zero byte becomes `00 ff`, and the text ends with `00 01`.
pub(crate) fn push_key(key: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        key.push(*byte);
        if *byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 1]);
}

/// A key of one text.
pub(crate) fn key_bytes(text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(text.len() + 10);
    push_key(&mut key, text.as_bytes());
    key
}

/// A key that is a text and a number behind it.
pub(crate) fn numbered(mut key: Vec<u8>, number: u64) -> Vec<u8> {
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Appends the key of a map's entry to a key.
pub(crate) fn push_map_key(key: &mut Vec<u8>, entry: &MapKey<'_>) {
    if let MapKey::String(text) = entry {
        key.push(3);
        push_key(key, text.as_bytes());
    } else {
        let mut writer = Writer(std::mem::take(key));
        writer.map_key(entry);
        *key = writer.0;
    }
}

/// The key of a map's entry, as [`push_map_key`] wrote it.
pub(crate) fn read_map_key(bytes: &[u8]) -> Option<MapKey<'static>> {
    match bytes.split_first()? {
        (3, rest) => Some(MapKey::String(Cow::Owned(split_key(rest)?.0))),
        _ => Reader(bytes).map_key(),
    }
}

/// The text that a key begins with, and the rest of the key.
pub(crate) fn split_key(key: &[u8]) -> Option<(String, &[u8])> {
    let mut text = Vec::with_capacity(key.len());
    let mut at = 0;
    loop {
        match (*key.get(at)?, key.get(at + 1)) {
            (0, Some(0xff)) => {
                text.push(0);
                at += 2;
            }
            (0, Some(1)) => break,
            (0, _) => return None,
            (byte, _) => {
                text.push(byte);
                at += 1;
            }
        }
    }
    Some((String::from_utf8(text).ok()?, key.get(at + 2..)?))
}

/// The number at the end of a key.
pub(crate) fn key_number(rest: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(rest.try_into().ok()?))
}

/// A signed number whose bytes have its order.
pub(crate) const fn ordered(number: i64) -> [u8; 8] {
    (number.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// The number of [`ordered`] bytes.
pub(crate) fn from_ordered(bytes: &[u8]) -> Option<i64> {
    let bits = u64::from_be_bytes(bytes.try_into().ok()?);
    Some((bits ^ (1 << 63)).cast_signed())
}

/// Writes a value of a table.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    /// Seven bits a byte, lowest first; the top bit says that more follow.
    pub(crate) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
            number >>= 7;
        }
        self.byte(u8::try_from(number).unwrap_or(0))
    }

    /// Small numbers of either sign are short.
    pub(crate) fn signed(&mut self, number: i64) -> &mut Self {
        self.number(((number << 1) ^ (number >> 63)).cast_unsigned())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn id(&mut self, id: u128) -> &mut Self {
        self.0.extend_from_slice(&id.to_be_bytes());
        self
    }

    pub(crate) fn value(&mut self, value: &FlowValue<'_>) -> &mut Self {
        match value {
            FlowValue::Null => self.byte(0),
            FlowValue::Boolean(false) => self.byte(1),
            FlowValue::Boolean(true) => self.byte(2),
            FlowValue::Integer(number) => self.byte(3).signed(*number),
            FlowValue::Unsigned(number) => self.byte(4).number(*number),
            FlowValue::Double(number) => {
                self.byte(5).0.extend_from_slice(&number.to_be_bytes());
                self
            }
            FlowValue::Decimal(number) => {
                self.byte(6).0.extend_from_slice(&number.serialize());
                self
            }
            FlowValue::String(text) => self.byte(7).bytes(text.as_bytes()),
            FlowValue::Bytes(bytes) => self.byte(8).bytes(bytes),
            FlowValue::Timestamp(time) => {
                let seconds = time.as_second();
                let nanos = i64::from(time.subsec_nanosecond());
                self.byte(9).signed(seconds).signed(nanos)
            }
            FlowValue::Duration(length) => {
                let nanos = i64::from(length.subsec_nanos());
                self.byte(10).signed(length.as_secs()).signed(nanos)
            }
            FlowValue::List(values) => {
                self.byte(11).number(values.len() as u64);
                for value in values.iter() {
                    self.value(value);
                }
                self
            }
            FlowValue::Map(entries) => {
                self.byte(12).number(entries.len() as u64);
                for (key, value) in entries.iter() {
                    self.map_key(key).value(value);
                }
                self
            }
            FlowValue::Type(name) => self.byte(13).bytes(name.as_bytes()),
        }
    }

    pub(crate) fn map_key(&mut self, key: &MapKey<'_>) -> &mut Self {
        match key {
            MapKey::Boolean(yes) => self.byte(u8::from(*yes)),
            MapKey::Number(number) => {
                // All signed and unsigned numbers of 64 bits, in their order.
                let lifted = number + i128::from(u64::MAX);
                self.byte(2).0.extend_from_slice(&lifted.to_be_bytes());
                self
            }
            MapKey::String(text) => self.byte(3).bytes(text.as_bytes()),
        }
    }
}

/// Reads a value of a table; none where the bytes are not what was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    pub(crate) fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(crate) fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Option<&'b str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub(crate) fn id(&mut self) -> Option<u128> {
        Some(u128::from_be_bytes(self.take(16)?.try_into().ok()?))
    }

    pub(crate) fn value(&mut self) -> Option<FlowValue<'static>> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: usize) -> Option<FlowValue<'static>> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match self.byte()? {
            0 => FlowValue::Null,
            1 => FlowValue::Boolean(false),
            2 => FlowValue::Boolean(true),
            3 => FlowValue::Integer(self.signed()?),
            4 => FlowValue::Unsigned(self.number()?),
            5 => FlowValue::Double(f64::from_be_bytes(self.take(8)?.try_into().ok()?)),
            6 => FlowValue::Decimal(Decimal::deserialize(self.take(16)?.try_into().ok()?)),
            7 => FlowValue::String(Cow::Owned(self.text()?.to_owned())),
            8 => FlowValue::Bytes(Cow::Owned(self.bytes()?.to_vec())),
            9 => {
                let (seconds, nanos) = (self.signed()?, i32::try_from(self.signed()?).ok()?);
                FlowValue::Timestamp(Timestamp::new(seconds, nanos).ok()?)
            }
            10 => {
                let (seconds, nanos) = (self.signed()?, i32::try_from(self.signed()?).ok()?);
                FlowValue::Duration(SignedDuration::new(seconds, nanos))
            }
            11 => {
                let count = self.number()?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value_at(depth + 1)?);
                }
                FlowValue::list(values)
            }
            12 => {
                let count = self.number()?;
                let mut entries = ValueMap::new();
                for _ in 0..count {
                    let key = self.map_key()?;
                    entries.insert(key, self.value_at(depth + 1)?);
                }
                FlowValue::Map(Arc::new(entries))
            }
            13 => {
                let name = self.text()?;
                FlowValue::Type(TYPE_NAMES.into_iter().find(|known| *known == name)?)
            }
            _ => return None,
        })
    }

    pub(crate) fn map_key(&mut self) -> Option<MapKey<'static>> {
        Some(match self.byte()? {
            0 => MapKey::Boolean(false),
            1 => MapKey::Boolean(true),
            2 => {
                let lifted = i128::from_be_bytes(self.take(16)?.try_into().ok()?);
                MapKey::Number(lifted.checked_sub(i128::from(u64::MAX))?)
            }
            3 => MapKey::String(Cow::Owned(self.text()?.to_owned())),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_the_order_of_their_texts_and_none_starts_another() {
        let texts = ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0b", "aa", "b", "ä"];
        let keys: Vec<Vec<u8>> = texts.iter().map(|text| key_bytes(text)).collect();
        for (text, key) in texts.iter().zip(&keys) {
            let numbered = numbered(key.clone(), 7);
            let (found, rest) = split_key(&numbered).unwrap();
            assert_eq!((found.as_str(), key_number(rest)), (*text, Some(7)));
            assert!(
                keys.iter()
                    .all(|other| other == key || !other.starts_with(key))
            );
        }
        assert!(keys.is_sorted());
        assert!([i64::MIN, -5, 0, 5, i64::MAX].map(ordered).is_sorted());
        assert_eq!(from_ordered(&ordered(-5)), Some(-5));
    }

    #[test]
    fn values_read_back_as_they_were_written() {
        let time: Timestamp = "1969-12-31T23:59:58.5Z".parse().unwrap();
        let values = FlowValue::list(vec![
            FlowValue::Null,
            FlowValue::Boolean(true),
            FlowValue::Integer(i64::MIN),
            FlowValue::Unsigned(u64::MAX),
            FlowValue::Double(-0.5),
            FlowValue::Decimal("12.500".parse().unwrap()),
            FlowValue::text("é"),
            FlowValue::Bytes(Cow::Borrowed(&[0, 255])),
            FlowValue::Timestamp(time),
            FlowValue::Duration(SignedDuration::from_millis(-1500)),
            FlowValue::map([("k", FlowValue::Boolean(false))]),
            FlowValue::Type("int"),
        ]);
        let mut writer = Writer::default();
        writer.value(&values);
        let mut reader = Reader(&writer.0);
        let read = reader.value().unwrap();
        assert_eq!(read.to_json(), values.to_json());
        assert_eq!((read, reader.0.len()), (values, 0));
        for cut in 0..writer.0.len() {
            assert!(Reader(&writer.0[..cut]).value().is_none(), "{cut}");
        }
        for key in [
            MapKey::Boolean(true),
            MapKey::Number(-1),
            MapKey::String("x".into()),
        ] {
            let mut writer = Writer::default();
            writer.map_key(&key);
            assert_eq!(Reader(&writer.0).map_key(), Some(key));
        }
    }
}
