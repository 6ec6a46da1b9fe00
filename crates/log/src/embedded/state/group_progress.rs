//! The offsets and books of a group on a topic.

use tidegate_core::books::{Books, Place, Posting, Tally};
use tidegate_core::{GroupName, Offset};

use super::{LogState, TopicState};
use crate::embedded::audit::group_books;
use crate::embedded::repair::DAMAGED;
use crate::embedded::tally::queue_all;
use crate::port::Committed;

/// The offsets and books of a group on a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::embedded) struct GroupProgress {
    /// Where the group began in each partition: where the partition started when the group was
    /// registered, or behind what it did not want.
    pub(in crate::embedded) starts: Vec<i64>,
    /// The committed offsets, by partition.
    pub(in crate::embedded) committed: Vec<Option<Committed>>,
    /// The postings of the records it read.
    pub(in crate::embedded) posted: Books,
    /// The events that had been removed or lost before it was registered, or lay before its beginning: it never
    /// had those.
    pub(in crate::embedded) before: Books,
    /// The offsets that it was moved past: partition, the first one, the one behind the last.
    pub(in crate::embedded) skipped: Vec<(u32, i64, i64)>,
}

impl GroupProgress {
    /// The offset below which this group needs nothing any more.
    pub(in crate::embedded) fn needs(&self, partition: usize) -> i64 {
        let committed = self.committed.get(partition).and_then(Option::as_ref);
        let start = self.starts.get(partition).copied().unwrap_or(0);
        committed.map_or(start, |committed| committed.next.0)
    }

    /// The progress of a group that is registered now.
    fn begin(topic: &TopicState) -> Self {
        Self {
            starts: topic.partitions.iter().map(|p| p.start).collect(),
            committed: vec![None; topic.partitions.len()],
            posted: Books::default(),
            before: gone(&topic.books),
            skipped: Vec::new(),
        }
    }

    /// The group begins at `next` of a partition of which it has committed nothing, and never had
    /// what lies before.
    pub(super) fn skip(&mut self, partition: usize, next: i64, before: &[Posting]) {
        let slots = (
            self.starts.get_mut(partition),
            self.committed.get_mut(partition),
        );
        if let (Some(start), Some(committed @ None)) = slots {
            *start = next;
            *committed = Some(Committed {
                next: Offset(next),
                metadata: String::new(),
            });
            before.iter().for_each(|posting| self.before.post(posting));
        }
    }
}

impl GroupProgress {
    /// The group goes on at `next` of a partition. Events that it regains lay before its beginning.
    pub(super) fn seek(
        &mut self,
        partition: usize,
        next: i64,
        posted: &[Posting],
        regained: &[Posting],
    ) -> Option<()> {
        posted.iter().for_each(|posting| self.posted.post(posting));
        for posting in regained {
            let tally = Tally {
                count: i64::try_from(posting.count).unwrap_or(i64::MAX),
                id_sum: posting.id_sum,
            };
            let less = Tally::default().minus(tally);
            self.before
                .move_tally(posting.bucket, None, Some(Place::Queued), less);
        }
        let old = self.needs(partition);
        let number = u32::try_from(partition).ok()?;
        match next > old {
            true => self.skipped.push((number, old, next)),
            // It reads what lies behind again.
            false => self.skipped.retain_mut(|(of, from, to)| {
                if *of == number {
                    *to = next.min(*to);
                }
                from < to
            }),
        }
        let start = self.starts.get_mut(partition)?;
        *start = next.min(*start);
        *self.committed.get_mut(partition)? = Some(Committed {
            next: Offset(next),
            metadata: String::new(),
        });
        Some(())
    }
}

impl LogState {
    /// Ends the books of a group on a topic with these postings, and keeps them with those of other groups that were
    /// forgotten. A group whose registration was lost to damage has none.
    pub(super) fn close_books(&mut self, group: &GroupName, number: u32, postings: &[Posting]) {
        let progress = self.groups.get(group).and_then(|of| of.get(&number));
        let topic = self.topics.get_mut(number as usize);
        if let (Some(progress), Some(topic)) = (progress, topic) {
            let mut books = group_books(topic, progress);
            postings.iter().for_each(|posting| books.post(posting));
            topic.forgotten.merge(&books);
        }
    }

    /// The progress of a group on a topic; registered from here on if it was not.
    pub(super) fn progress(&mut self, group: GroupName, number: u32) -> Option<&mut GroupProgress> {
        let topic = self.topics.get(number as usize)?;
        let by_topic = self.groups.entry(group).or_default();
        Some(
            by_topic
                .entry(number)
                .or_insert_with(|| GroupProgress::begin(topic)),
        )
    }

    /// The progress of a group on a topic; that of one which begins now if it is not registered.
    pub(in crate::embedded) fn progress_of(&self, group: &GroupName, number: u32) -> GroupProgress {
        let by_topic = self.groups.get(group);
        let found = by_topic.and_then(|by_topic| by_topic.get(&number));
        let begin = || {
            let topic = self.topics.get(number as usize);
            topic.map(GroupProgress::begin).unwrap_or_default()
        };
        found.cloned().unwrap_or_else(begin)
    }
}

/// The events that were removed from a topic or lost of it, as books in which they are queued.
fn gone(books: &Books) -> Books {
    let removed = books.removed_tallies(&Place::Queued);
    let lost = books.tallies(&Place::Lost(DAMAGED));
    let mut gone = Books::default();
    queue_all(&mut gone, removed.into_iter().chain(lost));
    gone
}
