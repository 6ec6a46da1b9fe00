//! The books as they stand, without looking at a record.

use tidegate_core::books::Books;
use tidegate_core::{GroupName, Offset, Topic};

use super::audit::group_books;
use super::state::LogState;
use crate::group_snapshot::{GroupSnapshot, PartitionProgress};
use crate::record::TopicPartition;

/// The books of one component: a topic, or a group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicBooks {
    /// The topic.
    pub topic: Topic,
    /// The group; none for the topic itself, all of whose records are queued.
    pub group: Option<GroupName>,
    /// The books, with what was removed.
    pub books: Books,
    /// Where the group began, by partition: it has nothing to do with what lies before. Nothing for
    /// the topic itself.
    pub begins: Vec<Offset>,
}

/// The books of every topic and of every group on it.
pub(super) fn topic_books(state: &LogState) -> Vec<TopicBooks> {
    let mut all = Vec::new();
    let topics = state.topics.iter().zip(0..);
    for (topic, number) in topics.filter(|(topic, _)| !topic.is_traceless()) {
        all.push(TopicBooks {
            topic: topic.name.clone(),
            group: None,
            books: topic.books.clone(),
            begins: Vec::new(),
        });
        for (group, by_topic) in &state.groups {
            all.extend(by_topic.get(&number).map(|progress| TopicBooks {
                topic: topic.name.clone(),
                group: Some(group.clone()),
                books: group_books(topic, progress),
                begins: progress.starts.iter().copied().map(Offset).collect(),
            }));
        }
    }
    all
}

/// The books and offsets of a group on a topic.
pub(super) fn group_snapshot(state: &LogState, group: &GroupName, topic: &Topic) -> GroupSnapshot {
    let mut snapshot = GroupSnapshot::empty(group, topic);
    let Some((number, known)) = state.topic(topic) else {
        return snapshot;
    };
    let progress = state.progress_of(group, number);
    snapshot.books = group_books(known, &progress);
    snapshot.posted = progress.posted.clone();
    snapshot.is_compacted = known.config.compact;
    for (index, partition) in known.partitions.iter().enumerate() {
        let number = i32::try_from(index).unwrap_or(i32::MAX);
        snapshot.partitions.push(PartitionProgress {
            at: TopicPartition::new(topic.clone(), number),
            start: Offset(partition.start),
            end: Offset(partition.end),
            next: Offset(progress.needs(index).max(partition.start)),
            committed: progress.committed.get(index).cloned().flatten(),
            settled: None,
        });
    }
    snapshot
}
