//! The books as they stand, without looking at a record.

use tidegate_core::books::Books;
use tidegate_core::{GroupName, Offset, Topic};

use super::audit::group_books;
use super::state::LogState;

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
    for (topic, number) in state.topics.iter().zip(0..) {
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
