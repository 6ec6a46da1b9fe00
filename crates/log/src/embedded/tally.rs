//! The contribution of a range of offsets to the books.

use tidegate_core::GroupName;
use tidegate_core::books::{Books, Bucket, Place, Posting, Tally};

use super::change::PartitionKey;
use super::chunk::{Chunk, count_id};
use super::context::EmbeddedContext;
use super::files;
use super::scan::{Scan, ScanItem};
use super::segment::{Minutes, Segment};
use super::state::LogState;
use crate::error::LogError;
use crate::record::TopicPartition;

/// The content of a partition at one moment.
#[derive(Debug)]
pub(super) struct PartitionSnapshot {
    at: TopicPartition,
    cluster: String,
    pub(super) start: i64,
    pub(super) end: i64,
    segments: Vec<Segment>,
    unflushed: Vec<Chunk>,
    /// Offsets that were lost to damage, of which no ids are known.
    lost: Vec<(Bucket, Tally)>,
}

impl PartitionSnapshot {
    pub(super) fn of(state: &LogState, key: PartitionKey) -> Option<Self> {
        let (at, partition) = (state.name(key)?, state.partition(key)?);
        let holes = state.topics.get(key.0 as usize)?.holes();
        let holes = holes.filter(|hole| hole.partition == at.partition);
        let lost = holes.map(|hole| (hole.bucket, hole.tally()));
        Some(Self {
            cluster: state.cluster.clone(),
            start: partition.start,
            end: partition.end,
            lost: lost.collect(),
            segments: partition
                .segments
                .iter()
                .map(Segment::without_index)
                .collect(),
            unflushed: partition.unflushed.iter().cloned().collect(),
            at,
        })
    }

    /// All that a partition holds, for a group that begins behind it; none where the group has committed
    /// something of it.
    pub(super) fn before_group(
        state: &LogState,
        group: &GroupName,
        key: PartitionKey,
    ) -> Option<Self> {
        let progress = state.groups.get(group).and_then(|of| of.get(&key.0));
        let committed = progress.and_then(|progress| progress.committed.get(key.1 as usize));
        match committed.is_some_and(Option::is_some) {
            true => None,
            false => Self::of(state, key),
        }
    }

    /// The contribution of the records from `from` up to `to` to the books, wherever they are. As with any damage,
    /// what cannot be read is missing.
    pub(super) fn minutes(
        &self,
        context: &EmbeddedContext,
        (from, to): (i64, i64),
    ) -> Result<Minutes, LogError> {
        let mut minutes = Minutes::new();
        let mut add = |chunk: &Chunk| {
            let head = &chunk.head;
            if head.base >= from && head.end() <= to {
                add_all(&mut minutes, head.tallies.iter().copied());
            } else if head.base < to && head.end() > from {
                add_all(&mut minutes, self.part(chunk, (from, to)));
            }
        };
        self.unflushed.iter().for_each(&mut add);
        let (parts, whole): (Vec<&Segment>, Vec<&Segment>) = self
            .segments
            .iter()
            .filter(|segment| segment.end > from && segment.base < to)
            .partition(|segment| segment.base < from || segment.end > to);
        for segment in parts {
            let path = files::segment_path(&context.config.dir, &self.at, segment);
            let scan = Scan::open(&*context.disk, &path, segment, context.secret)?;
            for seen in scan.into_iter().flatten() {
                if let ScanItem::Chunk { chunk, .. } = seen? {
                    add(&chunk);
                }
            }
        }
        for segment in whole {
            add_all(&mut minutes, segment.minutes.iter().map(|(m, t)| (*m, *t)));
        }
        Ok(minutes)
    }

    /// The tallies of some records of a chunk.
    fn part(&self, chunk: &Chunk, (from, to): (i64, i64)) -> Vec<(u64, Tally)> {
        let mut tallies = Vec::new();
        let Some(mut records) = chunk.records() else {
            return tallies;
        };
        while let Ok(Some(stored)) = records.next_from(from)
            && stored.offset.0 < to
        {
            count_id(&mut tallies, stored.event_id(&self.cluster, &self.at));
        }
        tallies
    }

    /// Everything in it, as postings of what is queued.
    pub(super) fn postings(&self, context: &EmbeddedContext) -> Result<Vec<Posting>, LogError> {
        let minutes = self.minutes(context, (self.start, self.end))?;
        let minutes = minutes.into_iter();
        let minutes = minutes.map(|(minute, tally)| (Bucket::Minute(minute), tally));
        let all = minutes.chain(self.lost.iter().copied());
        Ok(all
            .map(|(bucket, tally)| posting(bucket, tally, None, Some(Place::Queued)))
            .collect())
    }
}

pub(super) fn add_all(minutes: &mut Minutes, tallies: impl IntoIterator<Item = (u64, Tally)>) {
    for (minute, tally) in tallies {
        let sum = minutes.entry(minute).or_default();
        *sum = sum.plus(tally);
    }
}

/// Adds these to books, as queued.
pub(super) fn queue_all(books: &mut Books, tallies: impl IntoIterator<Item = (Bucket, Tally)>) {
    for (bucket, tally) in tallies {
        books.move_tally(bucket, None, Some(Place::Queued), tally);
    }
}

/// The same, by minute.
pub(super) fn queue_minutes(books: &mut Books, minutes: impl IntoIterator<Item = (u64, Tally)>) {
    let minutes = minutes.into_iter();
    queue_all(
        books,
        minutes.map(|(minute, tally)| (Bucket::Minute(minute), tally)),
    );
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
