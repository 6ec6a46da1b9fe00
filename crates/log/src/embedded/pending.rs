//! A write on its way: encoded by the caller, finished by the one writer.
//!
//! The bytes are the commit group itself, with room for what only the writer knows: offsets, sums of
//! ids that follow from offsets, the sequence. So the records are copied once, by the caller.

use tidegate_core::books::Tally;
use tidegate_core::{Offset, Topic};

use super::catalog::Catalog;
use super::change::{self, PartitionKey, put_offset};
use super::chunk::{self, ChunkOwner, Head, TARGET, count_id, put_record};
use super::codec::length;
use super::config::EmbeddedConfig;
use super::group;
use super::secret::LogSecret;
use crate::commit_order::CommitTicket;
use crate::error::LogError;
use crate::local::Write;
use crate::port::{Append, RecordPosition};
use crate::record::TopicPartition;

/// More than what the writer adds to a group takes.
const ROOM: usize = 640;

/// A commit group without its offsets.
#[derive(Debug)]
pub(super) struct PendingWrite {
    /// The whole group; the header is still to be filled in.
    pub(super) bytes: Vec<u8>,
    pub(super) chunks: Vec<PendingChunk>,
    /// The tickets of the offsets that it brings, by which it may use the reserve.
    pub(super) tickets: Vec<(TopicPartition, CommitTicket)>,
}

/// A chunk without its offset.
#[derive(Debug)]
pub(super) struct PendingChunk {
    pub(super) at: PartitionKey,
    name: Topic,
    /// Where its header is to be written.
    header: usize,
    head: Head,
    /// Which of its records carry no id, by their place in the chunk.
    foreign: Vec<u32>,
}

/// Where each record of a write went: its chunk, and its place in there.
pub(super) type Placing = Vec<(u32, u32)>;

/// Encodes a write as of `now_ms`.
///
/// # Errors
/// Something that it names is not there, or larger than it may be.
pub(super) fn encode(
    write: &Write,
    catalog: &Catalog,
    config: &EmbeddedConfig,
    now_ms: u64,
) -> Result<(PendingWrite, Placing), LogError> {
    let plan = plan(write, catalog, config)?;
    // The writer adds what all groups end with.
    let mut bytes = Vec::with_capacity(plan.size + group::HEADER + ROOM);
    bytes.resize(group::HEADER, 0);
    for offset in &write.offsets {
        let at = catalog.find(&offset.at)?;
        let (committed, postings) = (&offset.committed, &offset.postings);
        put_offset(&mut bytes, &offset.group, at, committed, postings);
    }
    let mut chunks = Vec::new();
    let mut placing = vec![(0, 0); write.appends.len()];
    for batch in &plan.batches {
        let mut members = &batch.members[..];
        while !members.is_empty() {
            let number = length(chunks.len());
            let mut encoder = Encoder::begin(&mut bytes, batch, &write.appends, members, now_ms);
            let mut taken = 0;
            for (member, place) in members.iter().zip(0..) {
                if taken > 0 && encoder.body_len() >= TARGET {
                    break;
                }
                encoder.add(&write.appends[*member as usize]);
                placing[*member as usize] = (number, place);
                taken += 1;
            }
            chunks.push(encoder.finish());
            members = &members[taken..];
        }
    }
    let pending = PendingWrite {
        bytes,
        chunks,
        tickets: write
            .offsets
            .iter()
            .map(|offset| (offset.at.clone(), offset.ticket.clone()))
            .collect(),
    };
    Ok((pending, placing))
}

/// The appends of one partition.
struct Batch {
    at: PartitionKey,
    name: Topic,
    members: Vec<u32>,
}

struct Plan {
    batches: Vec<Batch>,
    /// About how many bytes it will take.
    size: usize,
}

fn plan(write: &Write, catalog: &Catalog, config: &EmbeddedConfig) -> Result<Plan, LogError> {
    /// Most of what a record needs beside its own bytes.
    const BESIDE: usize = 16;
    let mut batches: Vec<Batch> = Vec::new();
    let mut total = 0_u64;
    let mut last: Option<(&Topic, u32, u64, u32)> = None;
    for (append, member) in write.appends.iter().zip(0..) {
        let (topic, number, limit, partitions) = match last {
            // Most appends of a write go to the topic of the one before.
            Some(known) if *known.0 == append.topic => known,
            Some(_) | None => {
                let (number, config) = catalog.topic(&append.topic)?;
                (
                    &append.topic,
                    number,
                    config.max_record_size,
                    config.partitions,
                )
            }
        };
        last = Some((topic, number, limit, partitions));
        let size = append.record.size() as u64;
        // A record that is larger than the whole log never fits, however much is removed.
        let limit = limit.min(config.max_size);
        if size > limit {
            let topic = append.topic.clone();
            return Err(LogError::RecordTooLarge { topic, size, limit });
        }
        total += size + BESIDE as u64;
        let asked = append.partition.unwrap_or_default();
        let partition = u32::try_from(asked.0).ok().filter(|p| *p < partitions);
        let Some(partition) = partition else {
            let at = TopicPartition::new(append.topic.clone(), asked.0);
            return Err(LogError::UnknownPartition { at, partitions });
        };
        let at = (number, partition);
        match batches.iter_mut().rev().find(|batch| batch.at == at) {
            Some(batch) => batch.members.push(member),
            None => batches.push(Batch {
                at,
                name: topic.clone(),
                members: vec![member],
            }),
        }
    }
    let offsets_reported = |offset: &crate::local::GroupOffset| {
        128 + offset.committed.metadata.len() + 96 * offset.postings.len()
    };
    total += write.offsets.iter().map(offsets_reported).sum::<usize>() as u64;
    if total > config.max_commit_size {
        return Err(LogError::CommitTooLarge {
            size: total,
            limit: config.max_commit_size,
        });
    }
    let size = usize::try_from(total).unwrap_or(0) + batches.len() * 256;
    Ok(Plan { batches, size })
}

/// Encodes one chunk into the group.
struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    batch: &'a Batch,
    /// Where the content of the change, the header and the records begin.
    content: usize,
    header: usize,
    body: usize,
    /// How many tallies the header has room for.
    room: usize,
    now_ms: u64,
    base_ms: u64,
    max_ms: u64,
    count: u32,
    tallies: Vec<(u64, Tally)>,
    foreign: Vec<u32>,
}

impl<'a> Encoder<'a> {
    fn begin(
        out: &'a mut Vec<u8>,
        batch: &'a Batch,
        appends: &[Append],
        members: &[u32],
        now_ms: u64,
    ) -> Self {
        let content = change::begin_chunk(out, batch.at);
        let header = out.len();
        // Records of one chunk were mostly born in one minute, and mostly either all carry an id
        // or none does; should there be more minutes, the records are moved once.
        out.resize(header + Head::size(1), 0);
        let first = members
            .first()
            .map(|m| appends[*m as usize].record.timestamp_ms);
        Self {
            body: out.len(),
            out,
            batch,
            content,
            header,
            room: 1,
            now_ms,
            base_ms: first.filter(|ms| *ms > 0).unwrap_or(now_ms),
            max_ms: 0,
            count: 0,
            tallies: Vec::with_capacity(1),
            foreign: Vec::new(),
        }
    }

    fn body_len(&self) -> usize {
        self.out.len() - self.body
    }

    fn add(&mut self, append: &Append) {
        let record = &append.record;
        let ms = match record.timestamp_ms {
            0 => self.now_ms,
            given => given,
        };
        put_record(self.out, 0, self.base_ms, ms, record);
        self.max_ms = self.max_ms.max(ms);
        match record.headers.event_id() {
            Some(id) => count_id(&mut self.tallies, id),
            None => {
                // Its id follows from its offset, and does not tell when it was born.
                self.foreign.push(self.count);
            }
        }
        self.count += 1;
    }

    fn finish(mut self) -> PendingChunk {
        if !self.foreign.is_empty() && self.tallies.iter().all(|(minute, _)| *minute != 0) {
            self.tallies.push((0, Tally::default()));
        }
        self.tallies.sort_unstable_by_key(|(minute, _)| *minute);
        let more = self.tallies.len().saturating_sub(self.room) * chunk::TALLY;
        if more > 0 {
            let body = self.body;
            self.out.splice(body..body, std::iter::repeat_n(0, more));
            self.body += more;
        }
        change::finish(self.out, self.content);
        let body = &self.out[self.body..];
        PendingChunk {
            at: self.batch.at,
            name: self.batch.name.clone(),
            header: self.header,
            head: Head {
                body_crc: crc32c::crc32c(body),
                body_len: body.len(),
                count: self.count,
                base: 0,
                span: u64::from(self.count),
                base_ms: self.base_ms,
                max_ms: self.max_ms,
                owner: ChunkOwner::new(&self.batch.name, self.batch.at.1),
                tallies: self.tallies,
            },
            foreign: self.foreign,
        }
    }
}

impl PendingChunk {
    /// How many offsets it takes.
    pub(super) fn span(&self) -> u64 {
        self.head.span
    }

    /// Gives it its offset.
    fn place(&mut self, group: &mut [u8], secret: LogSecret, cluster: &str, base: i64) {
        self.head.base = base;
        for index in &self.foreign {
            let offset = base.saturating_add_unsigned(u64::from(*index));
            let id = chunk::foreign_id(cluster, &self.name, self.at.1, offset);
            count_id(&mut self.head.tallies, id);
        }
        self.head.write(&mut group[self.header..], secret);
    }
}

impl PendingWrite {
    /// Gives the chunks their offsets, from what `next` says about their partitions.
    pub(super) fn place(
        &mut self,
        secret: LogSecret,
        cluster: &str,
        mut next: impl FnMut(&PendingChunk) -> i64,
    ) -> Vec<i64> {
        let mut bases = Vec::with_capacity(self.chunks.len());
        for chunk in &mut self.chunks {
            let base = next(chunk);
            chunk.place(&mut self.bytes, secret, cluster, base);
            bases.push(base);
        }
        bases
    }
}

/// Where the records of a write will lie, but for the offsets of their chunks. Lets go of the
/// records, which takes a while for many: time in which the disk can work.
pub(super) fn unplaced(appends: Vec<Append>, placing: &Placing) -> Vec<RecordPosition> {
    appends
        .into_iter()
        .zip(placing)
        .map(|(append, (_, place))| RecordPosition {
            at: TopicPartition {
                topic: append.topic,
                partition: append.partition.unwrap_or_default(),
            },
            offset: Offset(i64::from(*place)),
        })
        .collect()
}

/// Completes what [`unplaced`] gave, once the chunks have their offsets.
pub(super) fn place(positions: &mut [RecordPosition], placing: &Placing, bases: &[i64]) {
    for (position, (chunk, _)) in positions.iter_mut().zip(placing) {
        let base = bases.get(*chunk as usize).copied().unwrap_or_default();
        position.offset.0 = position.offset.0.saturating_add(base);
    }
}
