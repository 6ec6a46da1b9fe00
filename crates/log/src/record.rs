//! What a topic holds.

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
        write!(f, "{}-{}", self.topic, self.partition)
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
    /// What records of one kind have in common; it decides the partition where none is given.
    pub key: Option<Bytes>,
    /// What the record says; none is a tombstone.
    pub value: Option<Bytes>,
    /// What is said about the record.
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

    /// Adds a header behind those it has.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push(name, Some(value.as_ref()));
        self
    }

    /// Says which event it is.
    #[must_use]
    pub fn event_id(self, id: EventId) -> Self {
        self.header(EVENT_ID, id.to_string())
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
pub struct Stored {
    /// Where it lies.
    pub offset: Offset,
    /// What it is.
    pub record: Record,
}

impl Stored {
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
/// Kept as the bytes they have on disk, so that reading a record does not take them apart:
/// per header the length of the name (u16), the name, the length of the value (u32, all ones for
/// an absent one) and the value, all little-endian.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers(Bytes);

/// Stands for the length of an absent value.
const ABSENT: u32 = u32::MAX;
/// Longest name of a header, in bytes.
const LONGEST_NAME: usize = u16::MAX as usize;

impl Headers {
    /// Takes bytes that [`as_bytes`](Self::as_bytes) gave; none if they are not whole.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            rest = split_header(rest)?.2;
        }
        Some(Self(bytes))
    }

    /// The bytes that hold them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a header behind the others. A name is cut at 65,535 bytes.
    pub fn push(&mut self, name: &str, value: Option<&[u8]>) {
        let one = std::iter::once((name, value));
        let mut bytes = BytesMut::with_capacity(self.0.len() + Self::length(one.clone()));
        bytes.extend_from_slice(&self.0);
        *self = Self::write(one, &mut bytes);
    }

    /// Bytes that hold these headers.
    pub(crate) fn length<'a>(headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> usize {
        let length = |(name, value): (&str, Option<&[u8]>)| {
            6 + name.len().min(LONGEST_NAME) + value.map_or(0, <[u8]>::len)
        };
        headers.map(length).sum()
    }

    /// Writes headers behind what is in `bytes`, and takes all of that as headers.
    pub(crate) fn write<'a>(
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        bytes: &mut BytesMut,
    ) -> Self {
        for (name, value) in headers {
            let name = &name.as_bytes()[..name.len().min(LONGEST_NAME)];
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(name);
            let length = value.map_or(Ok(ABSENT), |value| u32::try_from(value.len()));
            bytes.extend_from_slice(&length.unwrap_or(ABSENT).to_le_bytes());
            bytes.extend_from_slice(value.unwrap_or_default());
        }
        if bytes.is_empty() {
            return Self::default();
        }
        Self(bytes.split().freeze())
    }

    /// All headers in their order, by name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut rest = &self.0[..];
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
        // Asked of every record that is written, so names are compared as the bytes they are.
        let mut found = None;
        let mut rest = &self.0[..];
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
        self.0.is_empty()
    }
}

/// The name of a header, its value, and what follows.
type Split<'a, Name> = (&'a Name, Option<&'a [u8]>, &'a [u8]);

fn split_header(bytes: &[u8]) -> Option<Split<'_, str>> {
    let (name, value, rest) = split_bytes(bytes)?;
    Some((std::str::from_utf8(name).ok()?, value, rest))
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
            Headers::from_bytes(headers.0.clone()),
            Some(headers.clone())
        );
        assert_eq!(Headers::from_bytes(headers.0.slice(1..)), None);
    }
}
