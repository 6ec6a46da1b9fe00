//! The records of a topic.

use bytes::{Bytes, BytesMut};
use tidegate_core::{EventId, Offset, Partition, Topic};

/// The header that carries the id of an event.
pub const EVENT_ID: &str = "x-tidegate-event-id";

/// One partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: Topic,
    /// The number of the partition within it.
    pub partition: Partition,
}

impl TopicPartition {
    /// Ties a topic to one of its partitions.
    #[must_use]
    pub fn new(topic: Topic, partition: i32) -> Self {
        Self {
            topic,
            partition: Partition(partition),
        }
    }
}

impl std::fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.partition.0 {
            // No log has such a one; somebody asked for it.
            ..0 => write!(f, "{} partition {}", self.topic, self.partition),
            _ => write!(f, "{}-{}", self.topic, self.partition),
        }
    }
}

/// The offsets from the first one up to, and without, the last one, in words.
#[must_use]
pub fn offsets_in_words(from: Offset, to: Offset) -> String {
    match to.0 - from.0 {
        ..=1 => format!("offset {from}"),
        _ => format!("offsets {from} to {}", to.0 - 1),
    }
}

/// A record: a key, a value and headers.
///
/// A value that is absent is a tombstone and differs from one that is empty; the same for keys.
///
/// ```
/// use tidegate_core::EventId;
/// use tidegate_log::Record;
///
/// let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse()?;
/// let record = Record::new("placed").key("order-1").event_id(id).header("source", "shop");
/// assert_eq!(record.headers.event_id(), Some(id));
/// assert_eq!(record.headers.get("source"), Some(&b"shop"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The key, which records of one kind have in common; it decides the partition where none is given.
    pub key: Option<Bytes>,
    /// The content; none is a tombstone.
    pub value: Option<Bytes>,
    /// The headers.
    pub headers: Headers,
    /// When it was made, in milliseconds since 1970; 0 lets the log fill in its own time.
    pub timestamp_ms: u64,
}

impl Record {
    /// A record with a value, and nothing else yet.
    pub fn new(value: impl Into<Bytes>) -> Self {
        Self {
            value: Some(value.into()),
            ..Self::default()
        }
    }

    /// A record without a value: whoever compacts by key forgets that key.
    #[must_use]
    pub fn tombstone() -> Self {
        Self::default()
    }

    /// Gives it a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says when it was made.
    #[must_use]
    pub fn timestamp_ms(mut self, timestamp_ms: u64) -> Self {
        self.timestamp_ms = timestamp_ms;
        self
    }

    /// Adds a header behind those it has. One that [does not fit](Headers::push) makes every log refuse
    /// the record.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push(name, Some(value.as_ref()));
        self
    }

    /// Says which event it is.
    #[must_use]
    pub fn event_id(mut self, id: EventId) -> Self {
        let text = id.to_string();
        self.headers.push(EVENT_ID, Some(text.as_bytes()));
        self.headers.known = Some(id.as_u128().to_ne_bytes());
        self
    }

    /// Bytes of key, value and headers: what the limit of a record counts.
    #[must_use]
    pub fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len)
            + self.value.as_ref().map_or(0, Bytes::len)
            + self.headers.as_bytes().len()
    }
}

/// A record as it lies in its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Where it lies.
    pub offset: Offset,
    /// The record.
    pub record: Record,
}

impl StoredRecord {
    /// The id of its event: the one it carries, or the one that follows from where it lies.
    #[must_use]
    pub fn event_id(&self, cluster: &str, at: &TopicPartition) -> EventId {
        let carried = self.record.headers.event_id();
        carried
            .unwrap_or_else(|| EventId::of_foreign(cluster, &at.topic, at.partition, self.offset))
    }
}

/// The headers of a record, in their order; a name may come more than once.
///
/// Kept as the bytes they have on disk, so that reading a record does not take them apart. Per header
/// these are: the length of the name (u16), the name, the length of the value (u32) and the value, all
/// little-endian. The length of an absent value is all ones.
///
/// ```
/// use tidegate_log::Headers;
///
/// let mut headers = Headers::default();
/// headers.push("source", Some(b"shop"));
/// assert!(headers.check().is_ok());
/// headers.push(&"n".repeat(Headers::LONGEST_NAME + 1), None);
/// assert!(headers.check().is_err(), "it is not cut, and no log takes it");
/// ```
#[derive(Clone, Default)]
pub struct Headers {
    bytes: Bytes,
    unfit: Option<RecordHeaderError>,
    /// The bits of the event's id, where whoever made the headers knew it; the bytes say the same.
    /// Reading it out of the text of each record would be a tenth of what an append takes. (Bytes,
    /// because a number of that size would be aligned at the cost of all records.)
    known: Option<[u8; 16]>,
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        (&self.bytes, self.unfit) == (&other.bytes, other.unfit)
    }
}

impl Eq for Headers {}

/// Why headers cannot be written to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordHeaderError {
    /// A name is longer than [`Headers::LONGEST_NAME`].
    #[error(
        "the name of a header has {0} bytes and may have at most {limit}",
        limit = Headers::LONGEST_NAME
    )]
    Name(u32),
    /// A value is longer than [`Headers::LONGEST_VALUE`].
    #[error(
        "the value of a header has more bytes than it may have, {limit}",
        limit = Headers::LONGEST_VALUE
    )]
    Value,
    /// A name is not UTF-8.
    #[error("the name of a header is not UTF-8")]
    NotText,
}

/// Stands for the length of an absent value.
const ABSENT: u32 = u32::MAX;

impl Headers {
    /// Longest name of a header, in bytes.
    pub const LONGEST_NAME: usize = u16::MAX as usize;
    /// Longest value of a header, in bytes.
    pub const LONGEST_VALUE: usize = ABSENT as usize - 1;

    /// Takes bytes that [`as_bytes`](Self::as_bytes) gave; none if they are not whole.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        Self::from_stored(bytes).filter(|headers| headers.unfit.is_none())
    }

    /// Takes bytes that a log holds; none if they are not whole. One name that is not UTF-8 does not make
    /// its record unreadable: it is shown up to where it is none, and is not written again.
    pub(crate) fn from_stored(bytes: Bytes) -> Option<Self> {
        let mut unfit = None;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (name, _, behind) = split_bytes(rest)?;
            if std::str::from_utf8(name).is_err() {
                unfit = Some(RecordHeaderError::NotText);
            }
            rest = behind;
        }
        Some(Self {
            bytes,
            unfit,
            known: None,
        })
    }

    /// The bytes that hold them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a header behind the others. One whose name or value is longer than it may be is left out, and
    /// no log takes these headers any more: [`check`](Self::check) says why.
    pub fn push(&mut self, name: &str, value: Option<&[u8]>) {
        let one = std::iter::once((name, value));
        if let Some(unfit) = Self::unfit(one.clone()) {
            self.unfit.get_or_insert(unfit);
            return;
        }
        if name == EVENT_ID {
            self.known = None;
        }
        let mut bytes = BytesMut::with_capacity(self.bytes.len() + Self::length(one.clone()));
        bytes.extend_from_slice(&self.bytes);
        self.bytes = Self::write(one, &mut bytes).bytes;
    }

    /// Whether a log can hold them.
    ///
    /// # Errors
    /// The header that does not fit.
    pub fn check(&self) -> Result<(), RecordHeaderError> {
        self.unfit.map_or(Ok(()), Err)
    }

    /// The first of these headers that does not fit.
    pub(crate) fn unfit<'a>(
        mut headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Option<RecordHeaderError> {
        headers.find_map(|(name, value)| {
            if name.len() > Self::LONGEST_NAME {
                return Some(RecordHeaderError::Name(
                    u32::try_from(name.len()).unwrap_or(u32::MAX),
                ));
            }
            let is_too_long = value.is_some_and(|value| value.len() > Self::LONGEST_VALUE);
            is_too_long.then_some(RecordHeaderError::Value)
        })
    }

    /// Bytes that hold these headers.
    pub(crate) fn length<'a>(headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> usize {
        let length =
            |(name, value): (&str, Option<&[u8]>)| 6 + name.len() + value.map_or(0, <[u8]>::len);
        headers.map(length).sum()
    }

    /// Writes headers, all of which [fit](Self::unfit), behind what is in `bytes`, and takes all of that as
    /// headers.
    pub(crate) fn write<'a>(
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        bytes: &mut BytesMut,
    ) -> Self {
        for (name, value) in headers {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            let length = value.map_or(Ok(ABSENT), |value| u32::try_from(value.len()));
            bytes.extend_from_slice(&length.unwrap_or(ABSENT).to_le_bytes());
            bytes.extend_from_slice(value.unwrap_or_default());
        }
        if bytes.is_empty() {
            return Self::default();
        }
        Self {
            bytes: bytes.split().freeze(),
            unfit: None,
            known: None,
        }
    }

    /// All headers in their order, by name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (name, value, behind) = split_header(rest)?;
            rest = behind;
            Some((name, value))
        })
    }

    /// The value of the last header of that name: a later one overrides an earlier one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.iter().filter(|(found, _)| *found == name).last();
        found.and_then(|(_, value)| value)
    }

    /// The id of the event, if the headers carry one that can be read.
    #[must_use]
    pub fn event_id(&self) -> Option<EventId> {
        if let Some(known) = self.known {
            return Some(EventId::from_u128(u128::from_ne_bytes(known)));
        }
        // Asked of every record that is written, so names are compared as the bytes they are.
        let mut found = None;
        let mut rest = &self.bytes[..];
        while let Some((name, value, behind)) = split_bytes(rest) {
            if name == EVENT_ID.as_bytes() {
                found = value;
            }
            rest = behind;
        }
        EventId::from_ascii(found?)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The name of a header, its value, and what follows.
type Split<'a, Name> = (&'a Name, Option<&'a [u8]>, &'a [u8]);

fn split_header(bytes: &[u8]) -> Option<Split<'_, str>> {
    let (name, value, rest) = split_bytes(bytes)?;
    let name = match std::str::from_utf8(name) {
        Ok(name) => name,
        Err(error) => std::str::from_utf8(&name[..error.valid_up_to()]).unwrap_or_default(),
    };
    Some((name, value, rest))
}

fn split_bytes(bytes: &[u8]) -> Option<Split<'_, [u8]>> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    if length == ABSENT {
        return Some((name, None, rest));
    }
    let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((name, Some(value), rest))
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: Option<&[u8]>| value.map(|value| value.escape_ascii().to_string());
        f.debug_list()
            .entries(self.iter().map(|(name, value)| (name, text(value))))
            .finish()
    }
}

/// The partition that records with this key go to: the one that Kafka's own clients choose, so that
/// a key stays in its partition whoever writes it and whichever log holds it.
///
/// # Panics
/// For a topic without partitions, which cannot be made.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> Partition {
    assert!(partitions > 0, "a topic has at least one partition");
    let positive = murmur2(key) & 0x7fff_ffff;
    Partition(i32::try_from(positive % partitions).unwrap_or(0))
}

/// MurmurHash2 with the seed of Kafka's clients.
fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest
            .iter()
            .rev()
            .fold(0, |tail, byte| (tail << 8) | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_hashes_as_in_kafkas_own_clients() {
        // The values of the Java client's own test.
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash.cast_unsigned(), "{key}");
        }
    }

    #[test]
    fn an_id_that_is_known_is_the_one_that_is_written() {
        let (one, other) = (EventId::from_u128(1 << 100), EventId::from_u128(7));
        let record = Record::new("v").event_id(one).header("a", "b");
        let read = Headers::from_bytes(Bytes::copy_from_slice(record.headers.as_bytes())).unwrap();
        assert_eq!(record.headers.event_id(), Some(one));
        assert_eq!(read.event_id(), Some(one));
        assert_eq!(
            read, record.headers,
            "whether it is known makes no difference"
        );
        // The last one counts, however it was written.
        let record = record.header(EVENT_ID, other.to_string());
        assert_eq!(record.headers.event_id(), Some(other));
        let record = record.event_id(one).header(EVENT_ID, "no id");
        assert_eq!(record.headers.event_id(), None);
    }

    #[test]
    fn headers_keep_order_repeats_and_absent_values() {
        let mut headers = Headers::default();
        headers.push("a", Some(b"1"));
        headers.push("b", None);
        headers.push("a", Some(b""));
        let found: Vec<_> = headers.iter().collect();
        assert_eq!(
            found,
            [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b""[..]))]
        );
        assert_eq!(headers.get("a"), Some(&b""[..]));
        assert_eq!(
            Headers::from_bytes(headers.bytes.clone()),
            Some(headers.clone())
        );
        assert_eq!(Headers::from_bytes(headers.bytes.slice(1..)), None);
    }

    #[test]
    fn a_name_that_does_not_fit_is_left_out_and_said() {
        let longest = "n".repeat(Headers::LONGEST_NAME);
        let mut headers = Headers::default();
        headers.push(&longest, None);
        assert_eq!(headers.check(), Ok(()));
        let whole = headers.as_bytes().to_vec();
        headers.push(&format!("{longest}n"), Some(b"x"));
        assert_eq!(headers.check(), Err(RecordHeaderError::Name(65_536)));
        assert_eq!(headers.as_bytes(), whole);
        headers.push("behind", Some(b"it"));
        assert_eq!(headers.get("behind"), Some(&b"it"[..]));
        assert!(headers.check().is_err(), "it stays so");
    }

    #[test]
    fn a_stored_name_that_is_no_text_hides_no_other_header() {
        // As a name that was cut in the middle of a character.
        let mut bytes = b"\x03\x00ab\xc3\x01\x00\x00\x00z".to_vec();
        let mut behind = Headers::default();
        behind.push("behind", Some(b"it"));
        bytes.extend_from_slice(behind.as_bytes());
        let bytes = Bytes::from(bytes);
        assert_eq!(Headers::from_bytes(bytes.clone()), None);
        let stored = Headers::from_stored(bytes.clone()).unwrap();
        let found: Vec<_> = stored.iter().collect();
        assert_eq!(
            found,
            [("ab", Some(&b"z"[..])), ("behind", Some(&b"it"[..]))]
        );
        assert_eq!(stored.as_bytes(), bytes);
        assert_eq!(stored.check(), Err(RecordHeaderError::NotText));
        assert_eq!(Headers::from_stored(bytes.slice(..9)), None);
    }
}
