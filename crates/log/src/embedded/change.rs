//! What a commit group changes, as it stands in its payload: a tag, a length, the content.

use std::time::Duration;

use bytes::Bytes;
use tidegate_core::books::Posting;
use tidegate_core::{GroupName, Offset, Topic};

use super::chunk::Head;
use super::codec::{
    Decoder, length, put_bytes, put_i64, put_optional, put_postings, put_u32, put_u64,
};
use super::secret::LogSecret;
use super::segment::Segment;
use crate::port::Committed;
use crate::topic::TopicConfig;

/// One change. Topics are named by their number, which is their place in the order of creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogChange {
    /// Records are added to a partition.
    Chunk {
        topic: u32,
        partition: u32,
        head: Head,
        bytes: Bytes,
    },
    /// A group is settled up to here.
    Offset {
        group: GroupName,
        topic: u32,
        partition: u32,
        committed: Committed,
        postings: Vec<Posting>,
    },
    /// A topic is made, or set up anew.
    Topic {
        number: u32,
        name: Topic,
        config: TopicConfig,
    },
    /// A group reads these topics from now on.
    Register { group: GroupName, topics: Vec<u32> },
    /// A group that has committed nothing of a partition begins there, behind all that it holds; what
    /// lies before was never in its books.
    Skip {
        group: GroupName,
        topic: u32,
        partition: u32,
        next: i64,
        before: Vec<Posting>,
    },
    /// A group is forgotten.
    Forget { group: GroupName },
    /// Everything before `start` is gone.
    Start {
        topic: u32,
        partition: u32,
        start: i64,
        removed: Vec<Posting>,
    },
    /// The segments below `end` are replaced by these, which hold less.
    Switch {
        topic: u32,
        partition: u32,
        end: i64,
        segments: Vec<Segment>,
        removed: Vec<Posting>,
    },
    /// How many offsets all partitions together have given with this group, and where those ended that
    /// were written to recently. Changes nothing, unless groups before it are lost: then it tells what
    /// they held.
    EndOffsets {
        offsets_assigned: u64,
        ends: Vec<PartitionEnd>,
    },
}

/// Where a partition ended: topic, partition, the offset behind its last one.
pub(super) type PartitionEnd = (u32, u32, i64);

const CHUNK: u8 = 1;
const OFFSET: u8 = 2;
const TOPIC: u8 = 3;
const REGISTER: u8 = 4;
const FORGET: u8 = 5;
const START: u8 = 6;
const SWITCH: u8 = 7;
const SKIP: u8 = 8;
const END_OFFSETS: u8 = 9;

/// Bytes in front of the content of a change.
pub(super) const LEAD: usize = 5;
/// Bytes in front of the chunk within the content of a chunk change.
pub(super) const CHUNK_LEAD: usize = 8;

/// Begins a change whose length is filled in by [`finish`].
fn begin(out: &mut Vec<u8>, tag: u8) -> usize {
    out.push(tag);
    put_u32(out, 0);
    out.len()
}

fn finish(out: &mut [u8], content: usize) {
    let len = length(out.len() - content).to_le_bytes();
    out[content - 4..content].copy_from_slice(&len);
}

/// Begins a chunk change: what follows is the chunk itself. Gives where its content begins.
pub(super) fn begin_chunk(out: &mut Vec<u8>, topic: u32, partition: u32) -> usize {
    let content = begin(out, CHUNK);
    put_u32(out, topic);
    put_u32(out, partition);
    content
}

/// Ends what [`begin_chunk`] began.
pub(super) fn finish_chunk(out: &mut [u8], content: usize) {
    finish(out, content);
}

pub(super) fn put_topic_config(out: &mut Vec<u8>, config: &TopicConfig) {
    put_u32(out, config.partitions);
    put_optional(out, config.retention.map(as_ms));
    put_optional(out, config.retention_bytes);
    out.push(u8::from(config.compact));
    put_u64(out, config.max_record_size);
}

fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn read_topic_config(decoder: &mut Decoder<'_>) -> Option<TopicConfig> {
    Some(TopicConfig {
        partitions: decoder.u32()?,
        retention: decoder.optional()?.map(Duration::from_millis),
        retention_bytes: decoder.optional()?,
        compact: decoder.flag()?,
        max_record_size: decoder.u64()?,
    })
}

pub(super) fn put_committed(out: &mut Vec<u8>, committed: &Committed) {
    put_i64(out, committed.next.0);
    put_bytes(out, committed.metadata.as_bytes());
}

pub(super) fn read_committed(decoder: &mut Decoder<'_>) -> Option<Committed> {
    Some(Committed {
        next: Offset(decoder.i64()?),
        metadata: decoder.text()?,
    })
}

impl LogChange {
    /// Adds the change to a payload.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Chunk {
                topic,
                partition,
                bytes,
                ..
            } => {
                let content = begin_chunk(out, *topic, *partition);
                out.extend_from_slice(bytes);
                finish(out, content);
            }
            Self::Offset {
                group,
                topic,
                partition,
                committed,
                postings,
            } => put_offset(out, group, (*topic, *partition), committed, postings),
            Self::Topic {
                number,
                name,
                config,
            } => {
                let content = begin(out, TOPIC);
                put_u32(out, *number);
                put_bytes(out, name.as_str().as_bytes());
                put_topic_config(out, config);
                finish(out, content);
            }
            Self::Register { group, topics } => {
                let content = begin(out, REGISTER);
                put_bytes(out, group.as_str().as_bytes());
                put_u32(out, length(topics.len()));
                topics.iter().for_each(|topic| put_u32(out, *topic));
                finish(out, content);
            }
            Self::Skip {
                group,
                topic,
                partition,
                next,
                before,
            } => {
                let content = begin(out, SKIP);
                put_bytes(out, group.as_str().as_bytes());
                put_u32(out, *topic);
                put_u32(out, *partition);
                put_i64(out, *next);
                put_postings(out, before);
                finish(out, content);
            }
            Self::Forget { group } => {
                let content = begin(out, FORGET);
                put_bytes(out, group.as_str().as_bytes());
                finish(out, content);
            }
            Self::Start {
                topic,
                partition,
                start,
                removed,
            } => {
                let content = begin(out, START);
                put_u32(out, *topic);
                put_u32(out, *partition);
                put_i64(out, *start);
                put_postings(out, removed);
                finish(out, content);
            }
            Self::Switch {
                topic,
                partition,
                end,
                segments,
                removed,
            } => {
                let content = begin(out, SWITCH);
                put_u32(out, *topic);
                put_u32(out, *partition);
                put_i64(out, *end);
                put_u32(out, length(segments.len()));
                segments.iter().for_each(|segment| segment.write(out));
                put_postings(out, removed);
                finish(out, content);
            }
            Self::EndOffsets {
                offsets_assigned,
                ends,
            } => put_ends(out, *offsets_assigned, ends),
        }
    }

    /// All changes of a payload, in their order.
    ///
    /// # Errors
    /// The payload is whole, and this version cannot read it.
    pub(super) fn read_all(payload: &Bytes, secret: LogSecret) -> Result<Vec<Self>, Unread> {
        let mut changes = Vec::new();
        let mut at = 0;
        while at < payload.len() {
            let (tag, content) = part(payload, at).ok_or(Unread::Malformed)?;
            if !(CHUNK..=END_OFFSETS).contains(&tag) {
                return Err(Unread::Unknown(tag));
            }
            at += LEAD + content.len();
            changes.push(Self::read(tag, &content, secret).ok_or(Unread::Malformed)?);
        }
        Ok(changes)
    }

    fn read(tag: u8, content: &Bytes, secret: LogSecret) -> Option<Self> {
        let mut decoder = Decoder(content);
        let change = match tag {
            CHUNK => {
                let topic = decoder.u32()?;
                let partition = decoder.u32()?;
                let bytes = content.slice(CHUNK_LEAD..);
                let head = Head::read(&bytes, secret)?;
                decoder.0 = &[];
                (head.len() == bytes.len()).then_some(())?;
                Self::Chunk {
                    topic,
                    partition,
                    head,
                    bytes,
                }
            }
            OFFSET => Self::Offset {
                group: GroupName::new(decoder.text()?).ok()?,
                topic: decoder.u32()?,
                partition: decoder.u32()?,
                committed: read_committed(&mut decoder)?,
                postings: decoder.postings()?,
            },
            TOPIC => Self::Topic {
                number: decoder.u32()?,
                name: Topic::new(decoder.text()?).ok()?,
                config: read_topic_config(&mut decoder)?,
            },
            REGISTER => Self::Register {
                group: GroupName::new(decoder.text()?).ok()?,
                topics: (0..decoder.count(4)?)
                    .map(|_| decoder.u32())
                    .collect::<Option<_>>()?,
            },
            SKIP => Self::Skip {
                group: GroupName::new(decoder.text()?).ok()?,
                topic: decoder.u32()?,
                partition: decoder.u32()?,
                next: decoder.i64()?,
                before: decoder.postings()?,
            },
            FORGET => Self::Forget {
                group: GroupName::new(decoder.text()?).ok()?,
            },
            START => Self::Start {
                topic: decoder.u32()?,
                partition: decoder.u32()?,
                start: decoder.i64()?,
                removed: decoder.postings()?,
            },
            SWITCH => Self::Switch {
                topic: decoder.u32()?,
                partition: decoder.u32()?,
                end: decoder.i64()?,
                segments: (0..decoder.count(Segment::LEAST)?)
                    .map(|_| Segment::read(&mut decoder))
                    .collect::<Option<_>>()?,
                removed: decoder.postings()?,
            },
            END_OFFSETS => Self::EndOffsets {
                offsets_assigned: decoder.u64()?,
                ends: (0..decoder.count(16)?)
                    .map(|_| Some((decoder.u32()?, decoder.u32()?, decoder.i64()?)))
                    .collect::<Option<_>>()?,
            },
            _ => return None,
        };
        decoder.is_empty().then_some(change)
    }
}

/// Why a payload that is whole cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It holds a kind of change that this version does not know.
    Unknown(u8),
    /// The content of a change does not read as one of its kind.
    Malformed,
}

/// The tag and the content of the change that begins at this place.
fn part(payload: &Bytes, at: usize) -> Option<(u8, Bytes)> {
    let mut decoder = Decoder(&payload[at..]);
    let tag = decoder.u8()?;
    let len = usize::try_from(decoder.u32()?).ok()?;
    let start = at + LEAD;
    let end = start.checked_add(len).filter(|end| *end <= payload.len())?;
    Some((tag, payload.slice(start..end)))
}

/// Adds a committed offset to a payload.
pub(super) fn put_offset(
    out: &mut Vec<u8>,
    group: &GroupName,
    (topic, partition): (u32, u32),
    committed: &Committed,
    postings: &[Posting],
) {
    let content = begin(out, OFFSET);
    put_bytes(out, group.as_str().as_bytes());
    put_u32(out, topic);
    put_u32(out, partition);
    put_committed(out, committed);
    put_postings(out, postings);
    finish(out, content);
}

/// Adds to a payload how many offsets were given, and where partitions end.
pub(super) fn put_ends(out: &mut Vec<u8>, offsets_assigned: u64, ends: &[PartitionEnd]) {
    let content = begin(out, END_OFFSETS);
    put_u64(out, offsets_assigned);
    put_u32(out, length(ends.len()));
    for (topic, partition, end) in ends {
        put_u32(out, *topic);
        put_u32(out, *partition);
        put_i64(out, *end);
    }
    finish(out, content);
}
