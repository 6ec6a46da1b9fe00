//! The books as they stand, without looking at a record.

use tidegate_core::books::Books;
use tidegate_core::{GroupName, Offset, Topic};

use super::audit::group_books;
use super::state::State;

/// The books of one component: a topic, or a group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
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
pub(super) fn kept(state: &State) -> Vec<Kept> {
    let mut kept = Vec::new();
    for (topic, number) in state.topics.iter().zip(0..) {
        kept.push(Kept {
            topic: topic.name.clone(),
            group: None,
            books: topic.books.clone(),
            begins: Vec::new(),
        });
        for (group, readings) in &state.groups {
            kept.extend(readings.get(&number).map(|reading| Kept {
                topic: topic.name.clone(),
                group: Some(group.clone()),
                books: group_books(topic, reading),
                begins: reading.starts.iter().copied().map(Offset).collect(),
            }));
        }
    }
    kept
}
