//! The calls of operators on a broker.
//!
//! The books of a group lie in the metadata of its committed offsets. So a seek is one commit that brings both. It
//! is made from outside of the group, and a broker takes it only while the group has no members.

use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer};
use tidegate_core::books::{Books, Place, Tally};
use tidegate_core::{GroupName, Offset, Topic};

use super::books::{self, GroupBooks};
use super::{KafkaInner, KafkaLog};
use crate::admin::{
    AdminMode, GroupDescription, GroupPartition, GroupSeek, GroupTopic, NOT_DELIVERED,
    PartitionSeek, RemovedGroup, RemovedTopic, SKIPPED, TopicRemoval, back_to_queue, from_queue,
};
use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::port::{Committed, Log, Read};
use crate::record::TopicPartition;

/// A committed offset that is to be written.
struct NewOffset {
    at: TopicPartition,
    next: Offset,
    /// None for a group that keeps none.
    books: Option<GroupBooks>,
}

impl KafkaLog {
    pub(crate) async fn describe_group(
        &self,
        group: &GroupName,
    ) -> Result<GroupDescription, LogError> {
        let members = self.inner.member_count(group).await?;
        let mut topics = Vec::new();
        for topic in self.topics_of(group).await? {
            let snapshot = super::recount::snapshot(self, group, &topic).await?;
            topics.push(shown(&snapshot));
        }
        if topics.is_empty() && members == 0 && !self.groups().await?.contains(group) {
            return Err(unknown(group));
        }
        Ok(GroupDescription {
            group: group.clone(),
            members,
            topics,
        })
    }

    /// The topics of which a group has committed something.
    async fn topics_of(&self, group: &GroupName) -> Result<Vec<Topic>, LogError> {
        let mut partitions = Vec::new();
        for topic in self.topics().await? {
            match self.inner.known(&topic).await {
                Ok(known) => {
                    let count = i32::try_from(known.partitions).unwrap_or(i32::MAX);
                    partitions.extend((0..count).map(|p| TopicPartition::new(topic.clone(), p)));
                }
                // Others remove topics, and keep some to themselves.
                Err(LogError::UnknownTopic { .. } | LogError::Forbidden { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let committed = self.committed(group, &partitions).await?;
        let read = partitions.into_iter().zip(committed);
        let read = read.filter(|(_, committed)| committed.is_some());
        let mut topics: Vec<Topic> = read.map(|(at, _)| at.topic).collect();
        topics.dedup();
        Ok(topics)
    }

    pub(crate) async fn seek_group(&self, seek: GroupSeek) -> Result<Vec<PartitionSeek>, LogError> {
        let group = &seek.group;
        self.inner.must_be_unjoined(group).await?;
        let partitions: Vec<TopicPartition> = seek.to.iter().map(|(at, _)| at.clone()).collect();
        let committed = self.inner.committed(group, &partitions).await?;
        let (mut sought, mut offsets) = (Vec::new(), Vec::new());
        for ((at, to), found) in seek.to.iter().zip(committed) {
            let (start, end) = self.inner.range(at).await?;
            let to = (*to).clamp(start, end);
            let (from, books) = match found {
                Some((books, Committed { next, .. })) => (next.max(start), books),
                // It has read nothing, and its books begin here.
                None => (start, Some(GroupBooks::begin(start))),
            };
            if from == to {
                continue;
            }
            let records = self.tally(at, (from.min(to), from.max(to))).await?;
            let books = books.map(|books| books.handed_on(start, from));
            let books = books.map(|books| moved(group, books, (from, to), records));
            sought.push(PartitionSeek {
                at: at.clone(),
                from,
                to,
                records: records.count.unsigned_abs(),
            });
            offsets.push(NewOffset {
                at: at.clone(),
                next: to,
                books: books.transpose()?,
            });
        }
        if seek.mode == AdminMode::Apply && !offsets.is_empty() {
            self.inner.commit_from_outside(group, offsets).await?;
        }
        Ok(sought)
    }

    /// The records of a range of offsets.
    async fn tally(
        &self,
        at: &TopicPartition,
        (from, to): (Offset, Offset),
    ) -> Result<Tally, LogError> {
        let mut tally = Tally::default();
        let mut next = from;
        while next < to {
            let batch = self.read(Read::new(at.clone(), next)).await?;
            let records = batch.records.iter().filter(|stored| stored.offset < to);
            for stored in records {
                tally = tally.plus(Tally::of(stored.event_id(self.cluster(), at)));
            }
            if batch.next <= next {
                break;
            }
            next = batch.next;
        }
        Ok(tally)
    }

    /// The broker forgets the books of a group together with it.
    pub(crate) async fn remove_group(
        &self,
        group: &GroupName,
        mode: AdminMode,
    ) -> Result<RemovedGroup, LogError> {
        let described = self.describe_group(group).await?;
        self.inner.must_be_unjoined(group).await?;
        let unread = described.topics.iter().map(|read| {
            let lags = read.partitions.iter().map(GroupPartition::lag);
            (read.topic.clone(), lags.sum())
        });
        let removed = RemovedGroup {
            group: group.clone(),
            unread: unread.collect(),
        };
        if mode == AdminMode::Apply {
            self.inner.forget_group(group).await?;
        }
        Ok(removed)
    }

    /// A topic of that name that is made later begins at offset 0: a broker keeps nothing of a topic.
    pub(crate) async fn remove_topic(
        &self,
        removal: TopicRemoval,
    ) -> Result<RemovedTopic, LogError> {
        let topic = &removal.topic;
        let described = self.describe(topic).await?;
        let partitions = described.partitions.iter();
        let offsets = partitions.map(|found| found.end.0.abs_diff(found.start.0));
        let records = offsets.sum();
        let mut unread = Vec::new();
        for group in self.groups().await? {
            let snapshot = super::recount::snapshot(self, &group, topic).await?;
            let mut all = snapshot.partitions.iter();
            if all.all(|found| found.committed.is_none()) {
                continue;
            }
            self.inner.must_be_unjoined(&group).await?;
            let lags = shown(&snapshot).partitions;
            let lag: u64 = lags.iter().map(GroupPartition::lag).sum();
            if lag > 0 {
                unread.push((group, lag));
            }
        }
        if !unread.is_empty() && !removal.is_forced {
            let topic = topic.clone();
            return Err(LogError::Unread {
                topic,
                groups: unread,
            });
        }
        if removal.mode == AdminMode::Apply {
            self.inner.delete_topic(topic).await?;
        }
        Ok(RemovedTopic {
            topic: topic.clone(),
            records,
            unread,
        })
    }
}

/// The books of a group that is moved, in the same commit.
fn moved(
    group: &GroupName,
    books: GroupBooks,
    (from, to): (Offset, Offset),
    records: Tally,
) -> Result<GroupBooks, LogError> {
    let all = [(GroupSnapshot::EVERYTHING, records)];
    if to > from {
        return Ok(books.after(&from_queue(all, &Place::Lost(SKIPPED))));
    }
    let of = |place| books.places.get(&place).copied().unwrap_or_default();
    match origins(records, of(Place::Delivered), of(Place::Lost(SKIPPED))) {
        Some((delivered, skipped)) => {
            let tally = |tally| [(GroupSnapshot::EVERYTHING, tally)];
            let mut postings = back_to_queue(tally(delivered), &Place::Delivered);
            postings.extend(back_to_queue(tally(skipped), &Place::Lost(SKIPPED)));
            Ok(books.taken_back(to, records).after(&postings))
        }
        None => Err(LogError::InUse {
            what: format!("group `{group}`"),
            why: NOT_DELIVERED.to_owned(),
        }),
    }
}

/// Decides how many of these records the group has delivered, and past how many it was moved. The metadata has no
/// offsets of those. They lie where the group was last, so all of them are among the records if as many are.
/// None where it did something else with some.
fn origins(records: Tally, delivered: Tally, skipped: Tally) -> Option<(Tally, Tally)> {
    let rest = records.minus(skipped);
    if rest.count >= 0 {
        return (rest.count <= delivered.count).then_some((rest, skipped));
    }
    // Of ids that cannot be told apart the places have only a share.
    Some((Tally::default(), records))
}

fn unknown(group: &GroupName) -> LogError {
    LogError::UnknownGroup {
        group: group.clone(),
    }
}

/// A group on a topic. Its queue is counted by offsets: a broker counts no records.
fn shown(snapshot: &GroupSnapshot) -> GroupTopic {
    let partitions: Vec<GroupPartition> = snapshot
        .partitions
        .iter()
        .map(|found| GroupPartition {
            at: found.at.clone(),
            start: found.start,
            end: found.end,
            next: found.next,
        })
        .collect();
    let lag: u64 = partitions.iter().map(GroupPartition::lag).sum();
    let mut books: Books = snapshot.books.clone();
    let waits = Tally {
        count: i64::try_from(lag).unwrap_or(i64::MAX),
        id_sum: 0,
    };
    books.move_tally(GroupSnapshot::EVERYTHING, None, Some(Place::Queued), waits);
    GroupTopic {
        topic: snapshot.topic.clone(),
        account: books.account(),
        partitions,
    }
}

impl KafkaInner {
    /// How many members a group has.
    async fn member_count(&self, group: &GroupName) -> Result<u64, LogError> {
        let (asker, query, group) = (self.asker(), self.query(), group.clone());
        self.ask("kafka-members", move || {
            let found = query.ask("a query of a group", None, |limit| {
                asker.fetch_group_list(Some(group.as_str()), limit)
            })?;
            let mut groups = found.groups().iter();
            let found = groups.find(|found| found.name() == group.as_str());
            Ok(found.map_or(0, |found| found.members().len() as u64))
        })
        .await
    }

    async fn must_be_unjoined(&self, group: &GroupName) -> Result<(), LogError> {
        match self.member_count(group).await? {
            0 => Ok(()),
            _ => Err(LogError::InUse {
                what: format!("group `{group}`"),
                why: "it has members".to_owned(),
            }),
        }
    }

    /// Commits offsets of a group without joining it. A broker refuses that while it has members.
    async fn commit_from_outside(
        self: &Arc<Self>,
        group: &GroupName,
        offsets: Vec<NewOffset>,
    ) -> Result<(), LogError> {
        const DOING: &str = "a commit of offsets";
        let (fetchers, query) = (Arc::clone(&self.offset_fetchers), self.query());
        let group = group.clone();
        self.ask("kafka-seek", move || {
            let consumer = fetchers.offset_fetcher(&group)?;
            let mut list = TopicPartitionList::with_capacity(offsets.len());
            for NewOffset { at, next, books } in &offsets {
                let mut element = list.add_partition(at.topic.as_str(), at.partition.0);
                element
                    .set_offset(rdkafka::Offset::Offset(next.0))
                    .map_err(|error| query.failed(DOING, Some(&at.topic), &error))?;
                let books = books.as_ref().map(|books| books::write(books, ""));
                element.set_metadata(books.unwrap_or_default());
            }
            consumer
                .commit(&list, CommitMode::Sync)
                .map_err(|error| query.failed(DOING, None, &error))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_back_from_where_the_group_has_put_them() {
        let tally = |(count, id_sum)| Tally { count, id_sum };
        // Records, delivered, skipped; and what comes back from each.
        for (records, delivered, skipped, expect) in [
            ((3, 30), (5, 50), (0, 0), Some(((3, 30), (0, 0)))),
            ((3, 30), (0, 0), (3, 30), Some(((0, 0), (3, 30)))),
            ((4, 40), (3, 33), (3, 30), Some(((1, 10), (3, 30)))),
            ((2, 20), (9, 90), (3, 31), Some(((0, 0), (2, 20)))),
            // Some were dead letters.
            ((4, 40), (3, 33), (0, 0), None),
        ] {
            let found = origins(tally(records), tally(delivered), tally(skipped));
            let expect = expect.map(|(delivered, skipped)| (tally(delivered), tally(skipped)));
            assert_eq!(found, expect, "{records:?} {delivered:?} {skipped:?}");
        }
    }
}
