//! A chunk: records of one partition that were written together, as they lie in journal and
//! segments.
//!
//! ```text
//!  0  u32  magic "TGC3", XOR the upper half of the secret of the log
//!  4  u32  CRC32C of the header from byte 8, tallies included, begun with the lower half of the secret
//!  8  u32  CRC32C of the records
//! 12  u32  length of the records
//! 16  u32  number of tallies
//! 20  u32  number of records
//! 24  i64  offset of the first one
//! 32  u64  offsets covered from there on
//! 40  u64  timestamp to which the records' own are relative
//! 48  u64  greatest timestamp
//! 56  u32  partition; chunks with the magic "TGC1" do not have it
//! 60  u32  CRC32C of the name of the topic; chunks with the magics "TGC1" and "TGC2" do not have it
//! 64  tallies: {u64 minute of birth, u32 count, u128 sum of ids}, by minute
//!     records: {varint offsets left out before it, zigzag varint timestamp,
//!               varint key length + 1 (0: no key), varint value length + 1 (0: no value),
//!               varint length of headers, key, value, headers}
//! ```
//!
//! The caller encodes the records and their CRC; the one writer fills in the header, once it
//! knows the offset.

use bytes::Bytes;
use tidegate_core::books::{Bucket, Tally};
use tidegate_core::{EventId, Offset, Topic};

use super::codec::{Decoder, length, put_u32, put_u64, put_varint, unzigzag, zigzag};
use super::secret::LogSecret;
use crate::record::{Headers, Record, StoredRecord, TopicPartition};

/// The magics of chunks, by version: the first one names neither partition nor topic, the second one no topic.
const MAGICS: [[u8; 4]; 3] = [*b"TGC1", *b"TGC2", *b"TGC3"];
/// Bytes of a header without its owner and tallies.
pub(super) const FIXED: usize = 56;
/// Bytes of the owner in a header, by version.
const OWNER: [usize; 3] = [0, 4, 8];
/// Bytes of one tally.
pub(super) const TALLY: usize = 28;
/// Records are gathered into a chunk up to about this size, so that reading a few of them does not
/// mean reading many.
pub(super) const TARGET: usize = 128 * 1024;
/// More minutes than the records of one chunk can be from, and few enough to be read at once.
const MAX_TALLIES: usize = 1 << 20;

/// The partition that a chunk or a file is of, as far as it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ChunkOwner {
    partition: Option<u32>,
    /// The CRC32C of the name of the topic.
    topic: Option<u32>,
}

impl ChunkOwner {
    pub(super) fn new(topic: &Topic, partition: u32) -> Self {
        Self {
            partition: Some(partition),
            topic: Some(crc32c::crc32c(topic.as_str().as_bytes())),
        }
    }

    /// The version of a chunk that names so much, from 0 on.
    fn version(self) -> usize {
        match (self.partition, self.topic) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 2,
        }
    }

    /// Whether it may be this partition of some topic.
    pub(super) fn is_of_partition(self, partition: u32) -> bool {
        self.partition.is_none_or(|named| named == partition)
    }

    /// Whether nothing that both say is different.
    pub(super) fn agrees(self, other: Self) -> bool {
        let differ = |one: Option<u32>, two| one.zip(two).is_some_and(|(one, two)| one != two);
        !differ(self.partition, other.partition) && !differ(self.topic, other.topic)
    }
}

/// The header of a chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) body_crc: u32,
    pub(super) body_len: usize,
    pub(super) count: u32,
    pub(super) base: i64,
    pub(super) span: u64,
    pub(super) base_ms: u64,
    pub(super) max_ms: u64,
    /// The partition it is of; chunks of earlier versions say less.
    pub(super) owner: ChunkOwner,
    /// How many of the records were born in which minute, and the sums of their ids.
    pub(super) tallies: Vec<(u64, Tally)>,
}

/// A whole chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) head: Head,
    /// The bytes of header and records.
    pub(super) bytes: Bytes,
}

impl Chunk {
    /// Its records; none if its bytes end early.
    pub(super) fn records(&self) -> Option<Records> {
        let body = self.head.body(&self.bytes)?;
        Some(Records::new(&self.head, body))
    }
}

impl Head {
    /// The bytes of a header of this version, with this many tallies.
    pub(super) fn size(tallies: usize) -> usize {
        FIXED + OWNER[MAGICS.len() - 1] + tallies * TALLY
    }

    /// The bytes of this header.
    fn own_size(&self) -> usize {
        FIXED + OWNER[self.owner.version()] + self.tallies.len() * TALLY
    }

    /// The bytes of header and records.
    pub(super) fn len(&self) -> usize {
        self.own_size() + self.body_len
    }

    /// The offset behind the last one covered.
    pub(super) fn end(&self) -> i64 {
        self.base.saturating_add_unsigned(self.span)
    }

    /// Writes the header into its place.
    pub(super) fn write(&self, out: &mut [u8], secret: LogSecret) {
        let mut header = Vec::with_capacity(self.own_size());
        let magic = MAGICS[self.owner.version()];
        put_u32(&mut header, secret.magic(magic));
        put_u32(&mut header, 0);
        put_u32(&mut header, self.body_crc);
        put_u32(&mut header, length(self.body_len));
        put_u32(&mut header, length(self.tallies.len()));
        put_u32(&mut header, self.count);
        put_u64(&mut header, self.base.cast_unsigned());
        put_u64(&mut header, self.span);
        put_u64(&mut header, self.base_ms);
        put_u64(&mut header, self.max_ms);
        let ChunkOwner { partition, topic } = self.owner;
        for named in [partition, topic].into_iter().flatten() {
            put_u32(&mut header, named);
        }
        for (minute, tally) in &self.tallies {
            put_u64(&mut header, *minute);
            put_u32(&mut header, u32::try_from(tally.count).unwrap_or(u32::MAX));
            header.extend_from_slice(&tally.id_sum.to_le_bytes());
        }
        let crc = secret.crc(&header[8..]);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        out[..header.len()].copy_from_slice(&header);
    }

    /// How many bytes the header at the front of `bytes` has; none if it is none.
    pub(super) fn measure(bytes: &[u8], secret: LogSecret) -> Option<usize> {
        let mut decoder = Decoder(bytes.get(..FIXED)?);
        let version = version_of(decoder.u32()?, secret)?;
        decoder.take(12)?;
        let tallies = usize::try_from(decoder.u32()?).ok()?;
        (tallies <= MAX_TALLIES).then(|| FIXED + OWNER[version] + tallies * TALLY)
    }

    /// The first byte of every header of a log.
    pub(super) fn first_byte(secret: LogSecret) -> u8 {
        secret.magic(MAGICS[0]).to_le_bytes()[0]
    }

    /// Reads the header at the front of `bytes` if it is whole.
    pub(super) fn read(bytes: &[u8], secret: LogSecret) -> Option<Self> {
        let header = bytes.get(..Self::measure(bytes, secret)?)?;
        let mut decoder = Decoder(header);
        let version = version_of(decoder.u32()?, secret)?;
        if decoder.u32()? != secret.crc(&header[8..]) {
            return None;
        }
        let (body_crc, body_len, tallies) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        let tally = |decoder: &mut Decoder<'_>| {
            let minute = decoder.u64()?;
            let count = i64::from(decoder.u32()?);
            let id_sum = decoder.u128()?;
            Some((minute, Tally { count, id_sum }))
        };
        Some(Self {
            body_crc,
            body_len: usize::try_from(body_len).ok()?,
            count: decoder.u32()?,
            base: decoder.i64()?,
            span: decoder.u64()?,
            base_ms: decoder.u64()?,
            max_ms: decoder.u64()?,
            owner: ChunkOwner {
                partition: if version > 0 { decoder.u32() } else { None },
                topic: if version > 1 { decoder.u32() } else { None },
            },
            tallies: (0..tallies)
                .map(|_| tally(&mut decoder))
                .collect::<Option<_>>()?,
        })
    }

    /// The records of the whole chunk `bytes`; none if they are damaged.
    pub(super) fn body(&self, bytes: &Bytes) -> Option<Bytes> {
        let start = self.own_size();
        let end = start.checked_add(self.body_len)?;
        (end <= bytes.len()).then(|| bytes.slice(start..end))
    }

    /// The same, checked.
    pub(super) fn checked_body(&self, bytes: &Bytes) -> Option<Bytes> {
        self.body(bytes)
            .filter(|body| crc32c::crc32c(body) == self.body_crc)
    }
}

/// The version of a chunk with this magic, from 0 on.
fn version_of(magic: u32, secret: LogSecret) -> Option<usize> {
    MAGICS
        .iter()
        .position(|known| secret.magic(*known) == magic)
}

/// Adds one record to the records of a chunk.
pub(super) fn put_record(out: &mut Vec<u8>, gap: u64, base_ms: u64, ms: u64, record: &Record) {
    let since = ms.wrapping_sub(base_ms).cast_signed();
    let size = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, |b| b.len() as u64 + 1);
    put_varint(out, gap);
    put_varint(out, zigzag(since));
    put_varint(out, size(&record.key));
    put_varint(out, size(&record.value));
    let headers = record.headers.as_bytes();
    put_varint(out, headers.len() as u64);
    out.extend_from_slice(record.key.as_deref().unwrap_or_default());
    out.extend_from_slice(record.value.as_deref().unwrap_or_default());
    out.extend_from_slice(headers);
}

/// The records of a chunk, as slices of its bytes.
#[derive(Debug)]
pub(super) struct Records {
    body: Bytes,
    at: usize,
    left: u32,
    next: i64,
    base_ms: u64,
}

impl Records {
    fn new(head: &Head, body: Bytes) -> Self {
        Self {
            body,
            at: 0,
            left: head.count,
            next: head.base,
            base_ms: head.base_ms,
        }
    }

    /// The next record; none at the end, `Some(None)` where the bytes make no sense.
    fn read(&mut self, is_wanted: impl Fn(i64) -> bool) -> Option<Step> {
        let mut decoder = Decoder(self.body.get(self.at..)?);
        let before = decoder.0.len();
        let gap = decoder.varint()?;
        let since = unzigzag(decoder.varint()?);
        let key = decoder.varint()?;
        let value = decoder.varint()?;
        let headers = usize::try_from(decoder.varint()?).ok()?;
        let lead = before - decoder.0.len();
        let offset = self.next.checked_add_unsigned(gap)?;
        let bytes_of = |n: u64| usize::try_from(n.saturating_sub(1)).ok();
        let (key_len, value_len) = (bytes_of(key)?, bytes_of(value)?);
        let key_at = self.at + lead;
        let value_at = key_at.checked_add(key_len)?;
        let headers_at = value_at.checked_add(value_len)?;
        let end = headers_at.checked_add(headers)?;
        if end > self.body.len() {
            return None;
        }
        self.at = end;
        self.next = offset.checked_add(1)?;
        if !is_wanted(offset) {
            return Some(Step::Skipped);
        }
        let record = Record {
            key: (key > 0).then(|| self.body.slice(key_at..value_at)),
            value: (value > 0).then(|| self.body.slice(value_at..headers_at)),
            headers: if headers == 0 {
                Headers::default()
            } else {
                Headers::from_stored(self.body.slice(headers_at..end))?
            },
            timestamp_ms: self.base_ms.wrapping_add_signed(since),
        };
        let offset = Offset(offset);
        Some(Step::Read(StoredRecord { offset, record }))
    }

    /// The next record at or after `from`; none at the end.
    ///
    /// # Errors
    /// The bytes make no sense.
    pub(super) fn next_from(&mut self, from: i64) -> Result<Option<StoredRecord>, MalformedRecord> {
        while self.left > 0 {
            self.left -= 1;
            match self.read(|offset| offset >= from).ok_or(MalformedRecord)? {
                Step::Read(stored) => return Ok(Some(stored)),
                Step::Skipped => {}
            }
        }
        Ok(None)
    }
}

enum Step {
    Read(StoredRecord),
    Skipped,
}

/// Bytes that make no sense although their CRC does.
#[derive(Debug)]
pub(super) struct MalformedRecord;

/// The minute in whose bucket an id is counted.
pub(super) fn minute_of(id: EventId) -> u64 {
    match Bucket::of(id) {
        Bucket::Minute(minute) => minute,
        Bucket::Hour(_) | Bucket::Day(_) | Bucket::Offsets { .. } => 0,
    }
}

/// Adds an id to tallies that are kept by minute.
pub(super) fn count_id(tallies: &mut Vec<(u64, Tally)>, id: EventId) {
    let minute = minute_of(id);
    // Neighbors mostly share their minute, so it is looked for from the back.
    match tallies.iter_mut().rev().find(|(found, _)| *found == minute) {
        Some((_, tally)) => *tally = tally.plus(Tally::of(id)),
        None => tallies.push((minute, Tally::of(id))),
    }
}

/// Builds a whole chunk of records with holes between them; for those who copy records.
pub(super) fn rebuild(
    secret: LogSecret,
    cluster: &str,
    at: &TopicPartition,
    head: &Head,
    kept: &[StoredRecord],
) -> Option<Chunk> {
    let first = kept.first()?;
    let mut body = Vec::with_capacity(head.body_len);
    let mut tallies = Vec::new();
    let mut next = first.offset.0;
    for stored in kept {
        let gap = stored.offset.0.abs_diff(next);
        let ms = stored.record.timestamp_ms;
        put_record(&mut body, gap, head.base_ms, ms, &stored.record);
        next = stored.offset.0 + 1;
        count_id(&mut tallies, stored.event_id(cluster, at));
    }
    tallies.sort_unstable_by_key(|(minute, _)| *minute);
    let max_ms = kept.iter().map(|stored| stored.record.timestamp_ms).max();
    let rebuilt = Head {
        body_crc: crc32c::crc32c(&body),
        body_len: body.len(),
        count: length(kept.len()),
        base: first.offset.0,
        span: next.abs_diff(first.offset.0),
        base_ms: head.base_ms,
        max_ms: max_ms.unwrap_or(head.base_ms),
        owner: ChunkOwner::new(&at.topic, u32::try_from(at.partition.0).ok()?),
        tallies,
    };
    let mut bytes = vec![0; rebuilt.own_size()];
    rebuilt.write(&mut bytes, secret);
    bytes.extend_from_slice(&body);
    Some(Chunk {
        head: rebuilt,
        bytes: bytes.into(),
    })
}

/// The id of a record that carries none.
pub(super) fn foreign_id(cluster: &str, topic: &Topic, partition: u32, offset: i64) -> EventId {
    let partition = tidegate_core::Partition(i32::try_from(partition).unwrap_or(i32::MAX));
    EventId::of_foreign(cluster, topic, partition, Offset(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> LogSecret {
        LogSecret::draw(3)
    }

    fn at() -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), 0)
    }

    fn stored(offset: i64, record: Record) -> StoredRecord {
        StoredRecord {
            offset: Offset(offset),
            record,
        }
    }

    fn empty() -> Head {
        Head {
            body_crc: 0,
            body_len: 0,
            count: 0,
            base: 0,
            span: 0,
            base_ms: 1_000,
            max_ms: 0,
            owner: ChunkOwner::default(),
            tallies: Vec::new(),
        }
    }

    #[test]
    fn records_read_back_with_holes_absent_parts_and_old_times() {
        let records = [
            stored(5, Record::new("v").key("k").timestamp_ms(1_000)),
            stored(9, Record::tombstone().key("").timestamp_ms(7)),
            stored(10, Record::new("").header("a", "b").timestamp_ms(2_000)),
        ];
        let Chunk { head, bytes } = rebuild(secret(), "c", &at(), &empty(), &records).unwrap();
        let read = Head::read(&bytes, secret()).unwrap();
        assert_eq!(read, head);
        assert_eq!(Head::read(&bytes, LogSecret::default()), None);
        assert_eq!(Head::read(&bytes, LogSecret::draw(4)), None);
        assert_eq!((read.base, read.end(), read.max_ms), (5, 11, 2_000));
        assert_eq!(read.len(), bytes.len());
        let mut found = Vec::new();
        let mut all = Records::new(&read, read.checked_body(&bytes).unwrap());
        while let Some(stored) = all.next_from(6).unwrap() {
            found.push(stored);
        }
        assert_eq!(found, records[1..]);
    }

    #[test]
    fn a_chunk_names_its_partition_and_one_of_an_earlier_version_is_read() {
        let records = [stored(0, Record::new("value").timestamp_ms(1_000))];
        let topic = |name| Topic::new(name).unwrap();
        let partition = TopicPartition::new(topic("t"), 3);
        let chunk = rebuild(secret(), "c", &partition, &empty(), &records).unwrap();
        let named = Head::read(&chunk.bytes, secret()).unwrap();
        let is_of = |head: &Head, name, partition| {
            let owner = ChunkOwner::new(&topic(name), partition);
            head.owner.agrees(owner)
        };
        let of = |head: &Head| {
            [
                is_of(head, "t", 3),
                is_of(head, "t", 2),
                is_of(head, "u", 3),
            ]
        };
        assert_eq!(of(&named), [true, false, false]);
        let body = named.body(&chunk.bytes).unwrap();
        let without_topic = ChunkOwner {
            topic: None,
            ..named.owner
        };
        for (owner, expect) in [
            (without_topic, [true, false, true]),
            (ChunkOwner::default(), [true, true, true]),
        ] {
            let old = Head {
                owner,
                ..named.clone()
            };
            let mut bytes = vec![0; old.own_size()];
            old.write(&mut bytes, secret());
            bytes.extend_from_slice(&body);
            let read = Head::read(&bytes, secret()).unwrap();
            assert_eq!((&read, of(&read), read.len()), (&old, expect, bytes.len()));
            assert_eq!(read.checked_body(&bytes.into()), Some(body.clone()));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let records = [stored(0, Record::new("value").key("k").timestamp_ms(1_000))];
        let chunk = rebuild(secret(), "c", &at(), &empty(), &records).unwrap();
        for bit in 0..chunk.bytes.len() * 8 {
            let mut damaged = chunk.bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let damaged = Bytes::from(damaged);
            let body = Head::read(&damaged, secret()).and_then(|head| head.checked_body(&damaged));
            assert_eq!(body, None, "bit {bit}");
        }
    }
}
