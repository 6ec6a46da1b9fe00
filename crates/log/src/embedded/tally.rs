//! What the records of a range of offsets add to the books.

use std::path::Path;

use tidegate_core::GroupName;
use tidegate_core::books::{Bucket, Place, Posting, Tally};
use tidegate_core::env::Disk;

use super::chunk::{Head, Records, count_id};
use super::context::EmbeddedContext;
use super::files;
use super::scan::{Scan, ScanItem, open_segment};
use super::secret::LogSecret;
use super::segment::{Minutes, Segment};
use super::state::UnflushedChunk;
use crate::error::LogError;
use crate::record::TopicPartition;

/// What the records from `from` up to `to` add to the books, wherever they are.
pub(super) fn of_range(
    context: &EmbeddedContext,
    at: &TopicPartition,
    (topic, partition): (u32, u32),
    (from, to): (i64, i64),
) -> Result<Minutes, LogError> {
    let (segments, unflushed, cluster) = {
        let state = context.state();
        let found = state.partition(topic, partition);
        let segments = found.map(|p| p.segments.iter()).into_iter().flatten();
        let segments: Vec<Segment> = segments.map(Segment::without_index).collect();
        let unflushed = found.map(|p| p.unflushed.iter()).into_iter().flatten();
        let unflushed = unflushed.take_while(|unflushed| unflushed.head.base < to);
        (
            segments,
            unflushed.cloned().collect::<Vec<UnflushedChunk>>(),
            state.cluster.clone(),
        )
    };
    let place = SegmentSource {
        disk: &*context.disk,
        dir: &context.config.dir,
        secret: context.secret,
        cluster: &cluster,
        at,
    };
    let mut minutes = place.of_segments(&segments, (from, to))?;
    for unflushed in &unflushed {
        of_chunk(
            &mut minutes,
            &unflushed.head,
            &unflushed.bytes,
            &cluster,
            at,
            (from, to),
        );
    }
    Ok(minutes)
}

/// Where the segments of a partition are.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentSource<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) dir: &'a Path,
    pub(super) secret: LogSecret,
    pub(super) cluster: &'a str,
    pub(super) at: &'a TopicPartition,
}

impl SegmentSource<'_> {
    /// What the records of these segments from `from` up to `to` add to the books.
    pub(super) fn of_segments(
        &self,
        segments: &[Segment],
        (from, to): (i64, i64),
    ) -> Result<Minutes, LogError> {
        let mut minutes = Minutes::new();
        for segment in segments.iter().filter(|s| s.end > from && s.base < to) {
            if segment.base >= from && segment.end <= to {
                add_all(&mut minutes, segment.minutes.iter().map(|(m, t)| (*m, *t)));
            } else {
                self.of_part(&mut minutes, segment, (from, to))?;
            }
        }
        Ok(minutes)
    }

    fn of_part(
        &self,
        minutes: &mut Minutes,
        segment: &Segment,
        range: (i64, i64),
    ) -> Result<(), LogError> {
        let number = u32::try_from(self.at.partition.0).unwrap_or(0);
        let path = files::topic_dir(self.dir, &self.at.topic).join(segment.name(number));
        // As with any damage, what cannot be read is missing in the books.
        let Some(file) = open_segment(self.disk, &path, self.secret)? else {
            return Ok(());
        };
        let mut scan = Scan::whole(segment, self.secret);
        while let Some(seen) = scan.next(&*file, &path)? {
            if let ScanItem::Chunk { head, bytes, .. } = seen {
                of_chunk(minutes, &head, &bytes, self.cluster, self.at, range);
            }
        }
        Ok(())
    }
}

fn of_chunk(
    minutes: &mut Minutes,
    head: &Head,
    bytes: &bytes::Bytes,
    cluster: &str,
    at: &TopicPartition,
    (from, to): (i64, i64),
) {
    if head.base >= from && head.end() <= to {
        add_all(minutes, head.tallies.iter().copied());
    } else if head.base < to && head.end() > from {
        add_all(minutes, part(head, bytes, cluster, at, (from, to)));
    }
}

/// What a partition holds that a group begins behind, at one moment.
#[derive(Debug)]
pub(super) struct PartitionSnapshot {
    at: TopicPartition,
    start: i64,
    /// Where the group begins.
    pub(super) end: i64,
    segments: Vec<Segment>,
    unflushed: Vec<UnflushedChunk>,
    /// Offsets that were lost to damage, of which no ids are known.
    lost: Vec<(Bucket, Tally)>,
}

impl PartitionSnapshot {
    /// All that a partition holds; none where the group has committed something of it.
    pub(super) fn of(
        context: &EmbeddedContext,
        group: &GroupName,
        (topic, number): (u32, u32),
    ) -> Option<Self> {
        let state = context.state();
        let progress = state.groups.get(group).and_then(|of| of.get(&topic));
        let committed =
            progress.and_then(|progress| progress.committed.get(number as usize)?.as_ref());
        if committed.is_some() {
            return None;
        }
        let partition = state.partition(topic, number)?;
        let at = state.name(topic, number)?;
        let holes = state.topics.get(topic as usize)?.holes();
        let is_here = |bucket: &Bucket| matches!(bucket, Bucket::Offsets { partition, .. } if *partition == at.partition);
        let holes = holes.filter(|(bucket, _)| is_here(bucket));
        let lost = holes.map(|(bucket, count)| (bucket, Tally { count, id_sum: 0 }));
        let lost = lost.collect();
        Some(Self {
            start: partition.start,
            end: partition.end,
            segments: partition
                .segments
                .iter()
                .map(Segment::without_index)
                .collect(),
            unflushed: partition.unflushed.iter().cloned().collect(),
            lost,
            at,
        })
    }

    /// What the group never had, as postings of what is queued.
    pub(super) fn postings(&self, context: &EmbeddedContext) -> Result<Vec<Posting>, LogError> {
        let range = (self.start, self.end);
        let cluster = context.state().cluster.clone();
        let place = SegmentSource {
            disk: &*context.disk,
            dir: &context.config.dir,
            secret: context.secret,
            cluster: &cluster,
            at: &self.at,
        };
        let mut minutes = place.of_segments(&self.segments, range)?;
        for unflushed in &self.unflushed {
            of_chunk(
                &mut minutes,
                &unflushed.head,
                &unflushed.bytes,
                &cluster,
                &self.at,
                range,
            );
        }
        let minutes = minutes
            .iter()
            .map(|(minute, tally)| (Bucket::Minute(*minute), *tally));
        let all = minutes.chain(self.lost.iter().copied());
        Ok(all
            .map(|(bucket, tally)| posting(bucket, tally, None, Some(Place::Queued)))
            .collect())
    }
}

/// The tallies of some records of a chunk.
fn part(
    head: &Head,
    bytes: &bytes::Bytes,
    cluster: &str,
    at: &TopicPartition,
    (from, to): (i64, i64),
) -> Vec<(u64, Tally)> {
    let mut tallies = Vec::new();
    let Some(body) = head.body(bytes) else {
        return tallies;
    };
    let mut records = Records::new(head, body);
    while let Ok(Some(stored)) = records.next_from(from) {
        if stored.offset.0 >= to {
            break;
        }
        count_id(&mut tallies, stored.event_id(cluster, at));
    }
    tallies
}

pub(super) fn add_all(minutes: &mut Minutes, tallies: impl IntoIterator<Item = (u64, Tally)>) {
    for (minute, tally) in tallies {
        let sum = minutes.entry(minute).or_default();
        *sum = sum.plus(tally);
    }
}

/// The postings of records that are removed.
pub(super) fn removed(minutes: &Minutes) -> Vec<Posting> {
    minutes
        .iter()
        .map(|(minute, tally)| posting(Bucket::Minute(*minute), *tally, Some(Place::Queued), None))
        .collect()
}

fn posting(bucket: Bucket, tally: Tally, from: Option<Place>, to: Option<Place>) -> Posting {
    Posting {
        bucket,
        from,
        to,
        count: u64::try_from(tally.count).unwrap_or(0),
        id_sum: tally.id_sum,
    }
}
