//! What the records of a range of offsets add to the books.

use tidegate_core::books::{Bucket, Place, Posting, Tally};
use tidegate_core::env::OpenMode;

use super::Keeper;
use crate::embedded::chunk::{Head, Records, count_id};
use crate::embedded::files::Doing;
use crate::embedded::scan::{Scan, Seen};
use crate::embedded::segment::{Minutes, Segment};
use crate::error::LogError;
use crate::record::TopicPartition;

impl Keeper {
    /// What the records from `from` up to `to` add to the books. They are all in segments.
    pub(super) fn tally(
        &self,
        at: &TopicPartition,
        (topic, partition): (u32, u32),
        (from, to): (i64, i64),
    ) -> Result<Minutes, LogError> {
        let segments: Vec<Segment> = {
            let state = self.hub.state();
            let found = state.partition(topic, partition);
            let segments = found.map(|p| p.segments.iter()).into_iter().flatten();
            let within = segments.filter(|s| s.end > from && s.base < to);
            within.map(Segment::without_index).collect()
        };
        let mut minutes = Minutes::new();
        for segment in segments {
            if segment.base >= from && segment.end <= to {
                add_all(&mut minutes, segment.minutes.iter().map(|(m, t)| (*m, *t)));
            } else {
                self.tally_part(&mut minutes, at, &segment, (from, to))?;
            }
        }
        Ok(minutes)
    }

    fn tally_part(
        &self,
        minutes: &mut Minutes,
        at: &TopicPartition,
        segment: &Segment,
        (from, to): (i64, i64),
    ) -> Result<(), LogError> {
        let number = u32::try_from(at.partition.0).unwrap_or(0);
        let path = self.hub.topic_dir(&at.topic).join(segment.name(number));
        let file = self
            .hub
            .disk
            .open(&path, OpenMode::Read)
            .doing("open", &path)?;
        let cluster = self.hub.state().cluster.clone();
        let mut scan = Scan::whole(segment);
        while let Some(seen) = scan.next(&*file, &path)? {
            let Seen::Chunk { head, bytes, .. } = seen else {
                continue;
            };
            if head.base >= from && head.end() <= to {
                add_all(minutes, head.tallies.iter().copied());
            } else if head.base < to && head.end() > from {
                add_all(minutes, part(&head, &bytes, &cluster, at, (from, to)));
            }
        }
        Ok(())
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
        .map(|(minute, tally)| Posting {
            bucket: Bucket::Minute(*minute),
            from: Some(Place::Queued),
            to: None,
            count: u64::try_from(tally.count).unwrap_or(0),
            id_sum: tally.id_sum,
        })
        .collect()
}
