//! How far a member has read a partition.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Offset, Topic};

use super::storage::RecordStorage;
use crate::error::LogError;
use crate::port::{Assignment, Committed, Fence, StartAt};
use crate::record::TopicPartition;
use crate::topic::{PartitionDescription, TopicDescription};

/// How far a member has read a partition under one assignment.
#[derive(Debug)]
pub(super) struct PartitionReader {
    pub(super) fence: Fence,
    committed: Option<Committed>,
    /// Where it began, which is where its lag counts from until it commits.
    pub(super) first: Offset,
    /// The next offset to hand out.
    pub(super) next: Offset,
    /// Whether it waits for a seek, because there is nothing at `next` that could be read.
    pub(super) is_stopped: bool,
    /// An error that was not returned yet.
    pub(super) fault: Option<LogError>,
}

impl PartitionReader {
    /// Starts where the group goes on. Where it has committed nothing, that is where an earlier
    /// member has `begun`, or else where this one says. No commit of this partition may be under
    /// way.
    pub(super) fn new(
        fence: Fence,
        at: &TopicPartition,
        committed: Option<Committed>,
        (start, begun): (StartAt, Option<Offset>),
        there: &PartitionDescription,
    ) -> Self {
        let (first, fault) = match (&committed, start) {
            (Some(committed), _) => (committed.next, None),
            (None, StartAt::Earliest) => (there.start, None),
            (None, StartAt::Latest) => (begun.unwrap_or(there.end), None),
            (None, StartAt::Fail) => {
                let fault = LogError::OutOfRange {
                    at: at.clone(),
                    asked: StartAt::NO_OFFSET,
                    start: there.start,
                    end: there.end,
                };
                (there.start, Some(fault))
            }
        };
        Self {
            fence,
            committed,
            first,
            next: first,
            is_stopped: fault.is_some(),
            fault,
        }
    }

    /// The assignment, as the member sees it.
    pub(super) fn assignment(&self, at: TopicPartition) -> Assignment {
        Assignment {
            at,
            fence: self.fence,
            committed: self.committed.clone(),
            position: self.first,
        }
    }
}

/// The description of a topic.
pub(super) fn described(
    storage: &dyn RecordStorage,
    topic: &Topic,
) -> Result<TopicDescription, LogError> {
    let found = storage.describe(topic);
    found.ok_or_else(|| LogError::UnknownTopic {
        topic: topic.clone(),
    })
}

/// The description of a partition, if it is there.
pub(super) fn partition(
    storage: &dyn RecordStorage,
    at: &TopicPartition,
) -> Option<PartitionDescription> {
    existing(storage, at).ok()
}

/// The description of a partition.
pub(super) fn existing(
    storage: &dyn RecordStorage,
    at: &TopicPartition,
) -> Result<PartitionDescription, LogError> {
    let description = described(storage, &at.topic)?;
    let index = usize::try_from(at.partition.0).ok();
    let found = index.and_then(|index| description.partitions.get(index));
    found.copied().ok_or_else(|| LogError::UnknownPartition {
        at: at.clone(),
        partitions: description.config.partitions,
    })
}

/// The readers that may have something to hand out, beginning behind the one that did last.
pub(super) fn round_robin<'a>(
    readers: &'a BTreeMap<TopicPartition, PartitionReader>,
    paused: &'a BTreeSet<TopicPartition>,
    last: Option<&'a TopicPartition>,
) -> impl Iterator<Item = (&'a TopicPartition, &'a PartitionReader)> {
    let is_behind = move |at: &TopicPartition| last.is_some_and(|last| at > last);
    let later = readers.iter().filter(move |(at, _)| is_behind(at));
    let earlier = readers.iter().filter(move |(at, _)| !is_behind(at));
    let flows =
        |at: &TopicPartition, reader: &PartitionReader| !reader.is_stopped && !paused.contains(at);
    later
        .chain(earlier)
        .filter(move |(at, reader)| flows(at, reader))
}
