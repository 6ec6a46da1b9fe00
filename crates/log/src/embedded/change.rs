//! The changes of a commit group, as they stand in its payload: a tag, a length, the content.

use std::time::Duration;

use bytes::Bytes;
use tidegate_core::books::Posting;
use tidegate_core::{GroupName, Offset, Topic};

use super::chunk::{Chunk, Head};
use super::codec::{
    Decoder, length, put_i64, put_list, put_optional, put_postings, put_text, put_u32, put_u64,
};
use super::secret::LogSecret;
use super::segment::Segment;
use crate::port::Committed;
use crate::topic::TopicConfig;

/// A partition: the number of its topic, which is its place in the order of creation, and its own number.
pub(super) type PartitionKey = (u32, u32);

/// A partition, and the offset behind its last one.
pub(super) type PartitionEnd = (PartitionKey, i64);

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogChange {
    /// Records are added to a partition.
    Chunk { at: PartitionKey, chunk: Chunk },
    /// A group has committed up to here.
    Offset {
        group: GroupName,
        at: PartitionKey,
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
    /// A group that has committed nothing of a partition begins there, behind all that it holds; the
    /// records before were never in its books.
    Skip {
        group: GroupName,
        at: PartitionKey,
        next: i64,
        before: Vec<Posting>,
    },
    /// A group is forgotten. Its books on each topic end with these postings; an earlier version wrote none.
    Forget {
        group: GroupName,
        left: Vec<(u32, Vec<Posting>)>,
    },
    /// A group without members goes on elsewhere. `posted` belongs to its books; `regained` are events from before
    /// its beginning, which it has in its books from now on.
    Seek {
        group: GroupName,
        at: PartitionKey,
        next: i64,
        posted: Vec<Posting>,
        regained: Vec<Posting>,
    },
    /// A topic is removed; its records go one partition after the other, each with a change of its own.
    RemoveTopic { topic: u32 },
    /// Everything before `start` is gone.
    Start {
        at: PartitionKey,
        start: i64,
        removed: Vec<Posting>,
    },
    /// The segments below `end` are replaced by these, which hold less.
    Switch {
        at: PartitionKey,
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

const CHUNK: u8 = 1;
const OFFSET: u8 = 2;
const TOPIC: u8 = 3;
const REGISTER: u8 = 4;
const FORGET: u8 = 5;
const START: u8 = 6;
const SWITCH: u8 = 7;
const SKIP: u8 = 8;
const END_OFFSETS: u8 = 9;
const SEEK: u8 = 10;
const REMOVE_TOPIC: u8 = 11;
const FORGET_WITH_POSTINGS: u8 = 12;
/// The last one that this version knows.
const LAST: u8 = FORGET_WITH_POSTINGS;

/// Bytes in front of the content of a change.
pub(super) const LEAD: usize = 5;
/// Bytes in front of the chunk within the content of a chunk change.
pub(super) const CHUNK_LEAD: usize = 8;

/// Adds a change, whose content `put` writes, with its tag and length.
fn put_change(out: &mut Vec<u8>, tag: u8, put: impl FnOnce(&mut Vec<u8>)) {
    let content = begin(out, tag);
    put(out);
    finish(out, content);
}

fn begin(out: &mut Vec<u8>, tag: u8) -> usize {
    out.push(tag);
    put_u32(out, 0);
    out.len()
}

/// Fills in the length of a change whose content begins there.
pub(super) fn finish(out: &mut [u8], content: usize) {
    let len = length(out.len() - content).to_le_bytes();
    out[content - 4..content].copy_from_slice(&len);
}

/// Begins a chunk change: what follows is the chunk itself, and then [`finish`]. Gives where its content
/// begins.
pub(super) fn begin_chunk(out: &mut Vec<u8>, at: PartitionKey) -> usize {
    let content = begin(out, CHUNK);
    put_key(out, at);
    content
}

pub(super) fn put_key(out: &mut Vec<u8>, (topic, partition): PartitionKey) {
    put_u32(out, topic);
    put_u32(out, partition);
}

pub(super) fn read_key(decoder: &mut Decoder<'_>) -> Option<PartitionKey> {
    Some((decoder.u32()?, decoder.u32()?))
}

pub(super) fn read_group(decoder: &mut Decoder<'_>) -> Option<GroupName> {
    GroupName::new(decoder.text()?).ok()
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
    put_text(out, &committed.metadata);
}

pub(super) fn read_committed(decoder: &mut Decoder<'_>) -> Option<Committed> {
    Some(Committed {
        next: Offset(decoder.i64()?),
        metadata: decoder.text()?,
    })
}

impl LogChange {
    /// Gives each partition that the change speaks of, with an offset before which all were given.
    pub(super) fn for_each_end(&self, mut each: impl FnMut(PartitionKey, i64)) {
        match self {
            Self::Chunk { at, chunk } => each(*at, chunk.head.base),
            Self::Offset { at, committed, .. } => each(*at, committed.next.0),
            Self::Skip { at, next, .. } | Self::Seek { at, next, .. } => each(*at, *next),
            Self::Start { at, start, .. } => each(*at, *start),
            Self::Switch { at, end, .. } => each(*at, *end),
            Self::EndOffsets { ends, .. } => ends.iter().for_each(|(at, end)| each(*at, *end)),
            Self::Topic { .. }
            | Self::Register { .. }
            | Self::Forget { .. }
            | Self::RemoveTopic { .. } => {}
        }
    }

    /// Adds the change to a payload.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Chunk { at, chunk } => put_change(out, CHUNK, |out| {
                put_key(out, *at);
                out.extend_from_slice(&chunk.bytes);
            }),
            Self::Offset {
                group,
                at,
                committed,
                postings,
            } => put_offset(out, group, *at, committed, postings),
            Self::Topic {
                number,
                name,
                config,
            } => put_change(out, TOPIC, |out| {
                put_u32(out, *number);
                put_text(out, name.as_str());
                put_topic_config(out, config);
            }),
            Self::Register { group, topics } => put_change(out, REGISTER, |out| {
                put_text(out, group.as_str());
                put_list(out, topics.iter(), |out, topic| put_u32(out, *topic));
            }),
            Self::Skip {
                group,
                at,
                next,
                before,
            } => put_change(out, SKIP, |out| {
                put_text(out, group.as_str());
                put_key(out, *at);
                put_i64(out, *next);
                put_postings(out, before);
            }),
            Self::Forget { group, left } if left.is_empty() => {
                put_change(out, FORGET, |out| put_text(out, group.as_str()));
            }
            Self::Forget { group, left } => put_change(out, FORGET_WITH_POSTINGS, |out| {
                put_text(out, group.as_str());
                put_list(out, left.iter(), |out, (topic, postings)| {
                    put_u32(out, *topic);
                    put_postings(out, postings);
                });
            }),
            Self::Seek {
                group,
                at,
                next,
                posted,
                regained,
            } => put_change(out, SEEK, |out| {
                put_text(out, group.as_str());
                put_key(out, *at);
                put_i64(out, *next);
                put_postings(out, posted);
                put_postings(out, regained);
            }),
            Self::RemoveTopic { topic } => {
                put_change(out, REMOVE_TOPIC, |out| put_u32(out, *topic));
            }
            Self::Start { at, start, removed } => put_change(out, START, |out| {
                put_key(out, *at);
                put_i64(out, *start);
                put_postings(out, removed);
            }),
            Self::Switch {
                at,
                end,
                segments,
                removed,
            } => put_change(out, SWITCH, |out| {
                put_key(out, *at);
                put_i64(out, *end);
                put_list(out, segments.iter(), |out, segment| segment.write(out));
                put_postings(out, removed);
            }),
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
            if !(CHUNK..=LAST).contains(&tag) {
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
                let at = read_key(&mut decoder)?;
                let bytes = content.slice(CHUNK_LEAD..);
                let head = Head::read(&bytes, secret)?;
                decoder.0 = &[];
                (head.len() == bytes.len() && head.owner.is_of_partition(at.1)).then_some(())?;
                let chunk = Chunk { head, bytes };
                Self::Chunk { at, chunk }
            }
            OFFSET => Self::Offset {
                group: read_group(&mut decoder)?,
                at: read_key(&mut decoder)?,
                committed: read_committed(&mut decoder)?,
                postings: decoder.postings()?,
            },
            TOPIC => Self::Topic {
                number: decoder.u32()?,
                name: Topic::new(decoder.text()?).ok()?,
                config: read_topic_config(&mut decoder)?,
            },
            REGISTER => Self::Register {
                group: read_group(&mut decoder)?,
                topics: decoder.list(4, Decoder::u32)?,
            },
            SKIP => Self::Skip {
                group: read_group(&mut decoder)?,
                at: read_key(&mut decoder)?,
                next: decoder.i64()?,
                before: decoder.postings()?,
            },
            FORGET => Self::Forget {
                group: read_group(&mut decoder)?,
                left: Vec::new(),
            },
            FORGET_WITH_POSTINGS => Self::Forget {
                group: read_group(&mut decoder)?,
                left: decoder.list(8, |decoder| Some((decoder.u32()?, decoder.postings()?)))?,
            },
            SEEK => Self::Seek {
                group: read_group(&mut decoder)?,
                at: read_key(&mut decoder)?,
                next: decoder.i64()?,
                posted: decoder.postings()?,
                regained: decoder.postings()?,
            },
            REMOVE_TOPIC => Self::RemoveTopic {
                topic: decoder.u32()?,
            },
            START => Self::Start {
                at: read_key(&mut decoder)?,
                start: decoder.i64()?,
                removed: decoder.postings()?,
            },
            SWITCH => Self::Switch {
                at: read_key(&mut decoder)?,
                end: decoder.i64()?,
                segments: decoder.list(Segment::LEAST, Segment::read)?,
                removed: decoder.postings()?,
            },
            END_OFFSETS => Self::EndOffsets {
                offsets_assigned: decoder.u64()?,
                ends: decoder.list(16, |decoder| Some((read_key(decoder)?, decoder.i64()?)))?,
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
    at: PartitionKey,
    committed: &Committed,
    postings: &[Posting],
) {
    put_change(out, OFFSET, |out| {
        put_text(out, group.as_str());
        put_key(out, at);
        put_committed(out, committed);
        put_postings(out, postings);
    });
}

/// Adds to a payload how many offsets were given, and where partitions end.
pub(super) fn put_ends(out: &mut Vec<u8>, offsets_assigned: u64, ends: &[PartitionEnd]) {
    put_change(out, END_OFFSETS, |out| {
        put_u64(out, offsets_assigned);
        put_list(out, ends.iter(), |out, (at, end)| {
            put_key(out, *at);
            put_i64(out, *end);
        });
    });
}
