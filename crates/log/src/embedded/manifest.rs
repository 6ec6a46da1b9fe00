//! The manifest: the log as of a checkpoint.
//!
//! Everything it speaks of is synced before it is written; what came later is in the journal from
//! the place that it names. Files that neither speaks of are left-overs.
//!
//! ```text
//! "TGMAN\x01\0\0", u32 CRC32C of what follows
//! cluster; u64 sequence, u32 CRC of the last group; u64 journal file, u64 place in it
//! topics: name, configuration, books, partitions: {start, end, damaged ranges, segments}
//! groups: name, topics: {number, starts, committed offsets, postings, what was gone before}
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tidegate_core::env::Disk;
use tidegate_core::{GroupName, Topic};

use super::change::{put_committed, put_topic_config, read_committed, read_topic_config};
use super::codec::{Decoder, length, put_books, put_bytes, put_i64, put_u32, put_u64};
use super::files::{self, Doing, MANIFEST, MANIFEST_NEW};
use super::segment::Segment;
use super::state::{JournalPlace, PartitionState, Reading, State, TopicState};
use crate::error::LogError;

const MAGIC: [u8; 8] = *b"TGMAN\x01\0\0";
/// More than any manifest has.
const LIMIT: u64 = 1 << 30;

/// Writes a checkpoint: the state without what is only in the journal.
pub(super) fn write(disk: &dyn Disk, dir: &Path, state: &State) -> Result<(), LogError> {
    let mut content = Vec::new();
    put_state(&mut content, state);
    let mut bytes = MAGIC.to_vec();
    put_u32(&mut bytes, crc32c::crc32c(&content));
    bytes.extend_from_slice(&content);
    files::replace(disk, dir, (MANIFEST_NEW, MANIFEST), &bytes)
}

/// Reads the checkpoint; none where there is none yet.
///
/// # Errors
/// It is damaged, or of another version.
pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<State>, LogError> {
    let path = dir.join(MANIFEST);
    let bytes = match disk.read(&path, LIMIT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.doing("read", &path)?,
    };
    let format = |why: &str| LogError::Format {
        path: path.clone(),
        why: why.to_owned(),
    };
    let content = bytes
        .strip_prefix(&MAGIC[..])
        .ok_or_else(|| format("it is not a manifest of version 1"))?;
    let mut decoder = Decoder(content);
    let crc = decoder.u32();
    if crc != Some(crc32c::crc32c(decoder.0)) {
        return Err(format("its checksum does not match"));
    }
    let state = read_state(&mut decoder).filter(|_| decoder.is_empty());
    state.map(Some).ok_or_else(|| format("it makes no sense"))
}

fn put_state(out: &mut Vec<u8>, state: &State) {
    put_bytes(out, state.cluster.as_bytes());
    put_u64(out, state.sequence);
    put_u32(out, state.crc);
    put_u64(out, state.journal.file);
    put_u64(out, state.journal.at);
    put_u32(out, length(state.topics.len()));
    for topic in &state.topics {
        put_bytes(out, topic.name.as_str().as_bytes());
        put_topic_config(out, &topic.config);
        put_books(out, &topic.books);
        for partition in &topic.partitions {
            put_partition(out, partition);
        }
    }
    put_u32(out, length(state.groups.len()));
    for (group, readings) in &state.groups {
        put_bytes(out, group.as_str().as_bytes());
        put_u32(out, length(readings.len()));
        for (topic, reading) in readings {
            put_u32(out, *topic);
            put_reading(out, reading);
        }
    }
}

fn put_partition(out: &mut Vec<u8>, partition: &PartitionState) {
    put_i64(out, partition.start);
    put_i64(out, partition.end);
    put_u32(out, length(partition.damaged.len()));
    for (from, to) in &partition.damaged {
        put_i64(out, *from);
        put_i64(out, *to);
    }
    put_u32(out, length(partition.segments.len()));
    partition
        .segments
        .iter()
        .for_each(|segment| segment.write(out));
}

fn put_reading(out: &mut Vec<u8>, reading: &Reading) {
    put_u32(out, length(reading.starts.len()));
    for (start, committed) in reading.starts.iter().zip(&reading.committed) {
        put_i64(out, *start);
        out.push(u8::from(committed.is_some()));
        if let Some(committed) = committed {
            put_committed(out, committed);
        }
    }
    put_books(out, &reading.posted);
    put_books(out, &reading.before);
}

fn read_state(decoder: &mut Decoder<'_>) -> Option<State> {
    let mut state = State {
        cluster: decoder.text()?,
        sequence: decoder.u64()?,
        crc: decoder.u32()?,
        journal: JournalPlace {
            file: decoder.u64()?,
            at: decoder.u64()?,
        },
        ..State::default()
    };
    for number in 0..length(decoder.count(1)?) {
        let name = Topic::new(decoder.text()?).ok()?;
        let config = read_topic_config(decoder)?;
        let books = decoder.books()?;
        let partitions: Option<Vec<_>> = (0..config.partitions)
            .map(|_| read_partition(decoder))
            .collect();
        state.numbers.insert(name.clone(), number);
        state.topics.push(TopicState {
            name,
            config,
            books,
            partitions: partitions?,
            is_made_up: false,
        });
    }
    for _ in 0..decoder.count(1)? {
        let group = GroupName::new(decoder.text()?).ok()?;
        let mut readings = BTreeMap::new();
        for _ in 0..decoder.count(1)? {
            readings.insert(decoder.u32()?, read_reading(decoder)?);
        }
        state.groups.insert(group, readings);
    }
    let lengths = state.all().flat_map(|(.., partition)| &partition.segments);
    state.used = lengths.map(|segment| segment.len).sum();
    Some(state)
}

fn read_partition(decoder: &mut Decoder<'_>) -> Option<PartitionState> {
    let start = decoder.i64()?;
    let end = decoder.i64()?;
    let damaged: Option<Vec<_>> = (0..decoder.count(16)?)
        .map(|_| Some((decoder.i64()?, decoder.i64()?)))
        .collect();
    let segments: Option<Vec<_>> = (0..decoder.count(Segment::LEAST)?)
        .map(|_| Segment::read(decoder))
        .collect();
    Some(PartitionState {
        start,
        end,
        damaged: damaged?,
        segments: segments?,
        ..PartitionState::default()
    })
}

fn read_reading(decoder: &mut Decoder<'_>) -> Option<Reading> {
    let mut reading = Reading::default();
    for _ in 0..decoder.count(9)? {
        reading.starts.push(decoder.i64()?);
        let committed = if decoder.flag()? {
            Some(read_committed(decoder)?)
        } else {
            None
        };
        reading.committed.push(committed);
    }
    reading.posted = decoder.books()?;
    reading.before = decoder.books()?;
    Some(reading)
}
