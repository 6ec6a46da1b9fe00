//! A segment: a file of chunks of one partition, and where in it to look.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::books::Tally;

use super::chunk::{ChunkOwner, Head};
use super::codec::{Decoder, put_i64, put_list, put_tally, put_u32, put_u64};
use super::files;
use super::tally::add_all;

/// The first bytes of a segment file: its kind and version.
pub(super) const MAGIC: [u8; 8] = *b"TGSEG\x01\0\0";
/// Bytes between two entries of an index.
const STEP: u64 = 32 * 1024;

/// Sums of ids by minute of birth.
pub(super) type Minutes = BTreeMap<u64, Tally>;

/// A segment, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// The first offset it covers; part of its name.
    pub(super) base: i64,
    /// How often it was rewritten; part of its name.
    pub(super) generation: u32,
    /// The offset behind the last one it covers.
    pub(super) end: i64,
    /// Bytes of it that count; what lies behind them in the file is nobody's.
    pub(super) len: u64,
    /// The timestamps of its first chunk and the greatest one.
    pub(super) first_ms: u64,
    pub(super) max_ms: u64,
    /// Whether nothing is added to it any more.
    pub(super) is_sealed: bool,
    /// The contribution of its records to the books.
    pub(super) minutes: Minutes,
    /// Where to look in it; not part of what is written down.
    pub(super) index: SegmentIndex,
}

impl Segment {
    /// The least bytes that [`write`](Self::write) makes.
    pub(super) const LEAST: usize = 49;

    pub(super) fn new(base: i64, generation: u32) -> Self {
        Self {
            base,
            generation,
            end: base,
            len: MAGIC.len() as u64,
            first_ms: 0,
            max_ms: 0,
            is_sealed: false,
            minutes: Minutes::new(),
            index: SegmentIndex::whole(),
        }
    }

    /// The name of its file within the directory of its topic.
    pub(super) fn name(&self, partition: u32) -> String {
        format!("{partition}-{:020}-{}.seg", self.base, self.generation)
    }

    /// The same without the index, which can be large and is made again when needed.
    pub(super) fn without_index(&self) -> Self {
        Self {
            minutes: self.minutes.clone(),
            index: SegmentIndex::behind(self.len),
            ..*self
        }
    }

    /// Whether it holds no chunk.
    pub(super) fn is_empty(&self) -> bool {
        self.len <= MAGIC.len() as u64
    }

    /// Whether all that it holds lies before an offset. One that was begun and holds nothing has
    /// nothing to give up: it is the one that the next chunk goes to, whatever was removed.
    pub(super) fn is_before(&self, offset: i64) -> bool {
        !self.is_empty() && self.end <= offset
    }

    /// Takes note of a chunk that was written at its end.
    pub(super) fn add(&mut self, head: &Head) {
        if self.is_empty() {
            self.first_ms = head.base_ms;
        }
        self.index.add(head.base, self.len, self.max_ms);
        self.len += head.len() as u64;
        self.end = head.end();
        self.max_ms = self.max_ms.max(head.max_ms);
        add_all(&mut self.minutes, head.tallies.iter().copied());
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put_i64(out, self.base);
        put_u32(out, self.generation);
        put_i64(out, self.end);
        put_u64(out, self.len);
        put_u64(out, self.first_ms);
        put_u64(out, self.max_ms);
        out.push(u8::from(self.is_sealed));
        put_list(out, self.minutes.iter(), |out, (minute, tally)| {
            put_u64(out, *minute);
            put_tally(out, *tally);
        });
    }

    pub(super) fn read(decoder: &mut Decoder<'_>) -> Option<Self> {
        let segment = Self {
            base: decoder.i64()?,
            generation: decoder.u32()?,
            end: decoder.i64()?,
            len: decoder.u64()?,
            first_ms: decoder.u64()?,
            max_ms: decoder.u64()?,
            is_sealed: decoder.flag()?,
            minutes: decoder.list(32, |decoder| Some((decoder.u64()?, decoder.tally()?)))?,
            index: SegmentIndex::whole(),
        };
        let index = SegmentIndex::behind(segment.len);
        Some(Self { index, ..segment })
    }
}

/// The partition, first offset and generation that the name of a segment tells.
pub(super) fn parse_name(name: &str) -> Option<(u32, i64, u32)> {
    let mut parts = name.strip_suffix(".seg")?.splitn(3, '-');
    let partition = parts.next()?.parse().ok()?;
    let base = parts.next()?.parse().ok()?;
    let generation = parts.next()?.parse().ok()?;
    Some((partition, base, generation))
}

/// The partition of a segment, as its directory and its name tell; of one that was put aside, the name that
/// it had before.
pub(super) fn owner_of(path: &Path) -> Option<ChunkOwner> {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let topic = files::topic_of(&name(path.parent()?)?)?;
    let (partition, ..) = parse_name(name_before_aside(&name(path)?))?;
    Some(ChunkOwner::new(&topic, partition))
}

/// The name that a segment had before a start put it aside.
pub(super) fn name_before_aside(name: &str) -> &str {
    let kept = name
        .strip_prefix("aside-")
        .and_then(|name| name.rsplit_once('-'));
    kept.map_or(name, |(name, _)| name)
}

/// Where the chunk with an offset begins in a segment, or lies a little further on.
///
/// It may know only the end of the segment, after the segment was found on disk; then it is
/// completed by its file or by a scan when somebody looks there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentIndex {
    /// The bytes from which on it is known.
    from: u64,
    entries: Vec<IndexEntry>,
}

/// One place in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// The first offset of the chunk that begins here.
    pub(super) offset: i64,
    /// Where that is.
    pub(super) position: u64,
    /// The greatest timestamp of all that lies before.
    pub(super) max_ms: u64,
}

impl SegmentIndex {
    /// The index of a segment from its first byte.
    pub(super) fn whole() -> Self {
        Self::behind(MAGIC.len() as u64)
    }

    /// The index of what is still to come behind these bytes.
    pub(super) fn behind(from: u64) -> Self {
        Self {
            from,
            entries: Vec::new(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.from == MAGIC.len() as u64
    }

    /// The bytes from which on it is known.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Takes note of the chunk that begins at `position`.
    pub(super) fn add(&mut self, offset: i64, position: u64, max_ms: u64) {
        let is_due = self
            .entries
            .last()
            .is_none_or(|last| position >= last.position + STEP);
        if is_due {
            self.entries.push(IndexEntry {
                offset,
                position,
                max_ms,
            });
        }
    }

    /// Puts the entries of what lies before in front.
    pub(super) fn complete(&mut self, mut before: Vec<IndexEntry>) {
        before.retain(|entry| entry.position < self.from);
        before.append(&mut self.entries);
        self.entries = before;
        self.from = MAGIC.len() as u64;
    }

    pub(super) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Where to begin looking for an offset; none where the index does not know.
    pub(super) fn find(&self, offset: i64) -> Option<u64> {
        let after = self.entries.partition_point(|e| e.offset <= offset);
        self.at(after)
    }

    /// Where to begin looking for the first record that is not older than this.
    pub(super) fn find_time(&self, ms: u64) -> Option<u64> {
        let after = self.entries.partition_point(|e| e.max_ms < ms);
        self.at(after)
    }

    fn at(&self, after: usize) -> Option<u64> {
        match after.checked_sub(1) {
            Some(before) => Some(self.entries[before].position),
            None => self.is_whole().then_some(MAGIC.len() as u64),
        }
    }
}

/// The index as it stands in its file: the length of the segment it is of, entries, CRC32C.
pub(super) fn index_file(segment: &Segment) -> Vec<u8> {
    let mut out = INDEX_MAGIC.to_vec();
    put_u64(&mut out, segment.len);
    put_list(&mut out, segment.index.entries.iter(), |out, entry| {
        put_i64(out, entry.offset);
        put_u64(out, entry.position);
        put_u64(out, entry.max_ms);
    });
    let crc = crc32c::crc32c(&out);
    put_u32(&mut out, crc);
    out
}

const INDEX_MAGIC: [u8; 8] = *b"TGIDX\x01\0\0";

/// Reads an index file back; none if it is damaged or not of a segment with this length.
pub(super) fn read_index_file(bytes: &[u8], len: u64) -> Option<Vec<IndexEntry>> {
    let (content, crc) = bytes.split_last_chunk()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut decoder = Decoder(content.strip_prefix(&INDEX_MAGIC[..])?);
    if decoder.u64()? != len {
        return None;
    }
    decoder.list(24, |decoder| {
        Some(IndexEntry {
            offset: decoder.i64()?,
            position: decoder.u64()?,
            max_ms: decoder.u64()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(base: i64, ms: u64) -> Head {
        Head {
            body_crc: 0,
            body_len: 20_000,
            count: 10,
            base,
            span: 10,
            base_ms: ms,
            max_ms: ms,
            owner: ChunkOwner::default(),
            tallies: vec![(1, Tally::default())],
        }
    }

    #[test]
    fn an_index_leads_to_or_before_what_is_looked_for() {
        let mut segment = Segment::new(100, 0);
        let mut places = Vec::new();
        for n in 0..20 {
            places.push((100 + n * 10, segment.len));
            segment.add(&head(100 + n * 10, 1_000 + n.unsigned_abs()));
        }
        assert!(segment.index.entries().len() < 20);
        for (offset, position) in &places {
            let found = segment.index.find(offset + 5).unwrap();
            assert!(found <= *position && position - found < STEP);
        }
        let by_time = segment.index.find_time(1_010).unwrap();
        assert!(by_time <= places[10].1);
        assert_eq!(segment.index.find_time(0), Some(8));
        let file = index_file(&segment);
        let entries = read_index_file(&file, segment.len).unwrap();
        assert_eq!(entries, segment.index.entries());
        assert_eq!(read_index_file(&file, segment.len + 1), None);
        let mut damaged = file.clone();
        damaged[30] ^= 1;
        assert_eq!(read_index_file(&damaged, segment.len), None);
    }

    #[test]
    fn an_index_of_the_end_does_not_claim_to_know_the_beginning() {
        let mut segment = Segment::new(0, 0);
        segment.add(&head(0, 1));
        let mut out = Vec::new();
        segment.write(&mut out);
        assert!(out.len() >= Segment::LEAST);
        let mut found = Segment::read(&mut Decoder(&out)).unwrap();
        assert_eq!(found.index.find(0), None);
        found.add(&head(10, 2));
        assert_eq!(found.index.find(0), None);
        assert!(found.index.find(12).is_some());
        found.index.complete(segment.index.entries().to_vec());
        assert_eq!(found.index.find(5), Some(8));
    }
}
