//! What the records of a range of offsets add to the books.

use std::path::Path;

use tidegate_core::GroupName;
use tidegate_core::books::{Bucket, Place, Posting, Tally};
use tidegate_core::env::Disk;

use super::chunk::{Head, Records, count_id};
use super::files;
use super::hub::Hub;
use super::scan::{Scan, Seen, open_segment};
use super::seal::Seal;
use super::segment::{Minutes, Segment};
use super::state::Fresh;
use crate::error::LogError;
use crate::record::TopicPartition;

/// What the records from `from` up to `to` add to the books, wherever they are.
pub(super) fn of_range(
    hub: &Hub,
    at: &TopicPartition,
    (topic, partition): (u32, u32),
    (from, to): (i64, i64),
) -> Result<Minutes, LogError> {
    let (segments, fresh, cluster) = {
        let state = hub.state();
        let found = state.partition(topic, partition);
        let segments = found.map(|p| p.segments.iter()).into_iter().flatten();
        let segments: Vec<Segment> = segments.map(Segment::without_index).collect();
        let fresh = found.map(|p| p.fresh.iter()).into_iter().flatten();
        let fresh = fresh.take_while(|fresh| fresh.head.base < to);
        (
            segments,
            fresh.cloned().collect::<Vec<Fresh>>(),
            state.cluster.clone(),
        )
    };
    let place = Shelved {
        disk: &*hub.disk,
        dir: &hub.config.dir,
        seal: hub.seal,
        cluster: &cluster,
        at,
    };
    let mut minutes = place.of_segments(&segments, (from, to))?;
    for fresh in &fresh {
        of_chunk(
            &mut minutes,
            &fresh.head,
            &fresh.bytes,
            &cluster,
            at,
            (from, to),
        );
    }
    Ok(minutes)
}

/// Where the segments of a partition are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shelved<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) dir: &'a Path,
    pub(super) seal: Seal,
    pub(super) cluster: &'a str,
    pub(super) at: &'a TopicPartition,
}

impl Shelved<'_> {
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
        let Some(file) = open_segment(self.disk, &path, self.seal)? else {
            return Ok(());
        };
        let mut scan = Scan::whole(segment, self.seal);
        while let Some(seen) = scan.next(&*file, &path)? {
            if let Seen::Chunk { head, bytes, .. } = seen {
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
pub(super) struct Held {
    at: TopicPartition,
    start: i64,
    /// Where the group begins.
    pub(super) end: i64,
    segments: Vec<Segment>,
    fresh: Vec<Fresh>,
    /// Offsets that were lost to damage, of which no ids are known.
    lost: Vec<(Bucket, Tally)>,
}

impl Held {
    /// All that a partition holds; none where the group has committed something of it.
    pub(super) fn of(hub: &Hub, group: &GroupName, (topic, number): (u32, u32)) -> Option<Self> {
        let state = hub.state();
        let reading = state.groups.get(group).and_then(|of| of.get(&topic));
        let committed =
            reading.and_then(|reading| reading.committed.get(number as usize)?.as_ref());
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
            fresh: partition.fresh.iter().cloned().collect(),
            lost,
            at,
        })
    }

    /// What the group never had, as postings of what is queued.
    pub(super) fn postings(&self, hub: &Hub) -> Result<Vec<Posting>, LogError> {
        let range = (self.start, self.end);
        let cluster = hub.state().cluster.clone();
        let place = Shelved {
            disk: &*hub.disk,
            dir: &hub.config.dir,
            seal: hub.seal,
            cluster: &cluster,
            at: &self.at,
        };
        let mut minutes = place.of_segments(&self.segments, range)?;
        for fresh in &self.fresh {
            of_chunk(
                &mut minutes,
                &fresh.head,
                &fresh.bytes,
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
