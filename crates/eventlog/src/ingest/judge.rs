//! Which events of a group are new, which are repeats, and which contradict what is stored.

use std::collections::HashMap;

use tidegate_core::EventId;

use super::IncomingEvent;
use crate::event::is_same_content;

/// An event that is stored under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownEvent {
    pub(crate) id: i64,
    pub(crate) event_id: EventId,
    pub(crate) execution_id: EventId,
    /// The logger that it came from first.
    pub(crate) logger: Option<String>,
    pub(crate) body: String,
}

/// The verdict on one event of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PostVerdict {
    /// Its key is not known.
    New,
    /// It is stored already.
    Repeat {
        id: i64,
        execution_id: EventId,
        /// Whether it came with another id than the stored one, or from another logger. It counts in the
        /// books of that logger too, which calls it delivered.
        is_alias: bool,
    },
    /// It repeats the event at this place of the group.
    RepeatOf { index: usize, is_alias: bool },
    /// Its key belongs to another content.
    Conflict,
}

/// Judges the events of a group against what is stored, and against each other.
pub(crate) fn judge(
    events: &[IncomingEvent],
    known: &HashMap<String, KnownEvent>,
) -> Vec<PostVerdict> {
    let mut firsts: HashMap<&str, usize> = HashMap::new();
    let mut verdicts = Vec::with_capacity(events.len());
    for (index, incoming) in events.iter().enumerate() {
        let event = &incoming.event;
        let is_alias = |stored: EventId, logger: Option<&str>| {
            let is_of_another = incoming.logger.is_some() && incoming.logger.as_deref() != logger;
            event.has_own_id && (event.event_id != stored || is_of_another)
        };
        let verdict = if let Some(stored) = known.get(&event.key) {
            match is_same_content(&stored.body, &event.body) {
                true => PostVerdict::Repeat {
                    id: stored.id,
                    execution_id: stored.execution_id,
                    is_alias: is_alias(stored.event_id, stored.logger.as_deref()),
                },
                false => PostVerdict::Conflict,
            }
        } else if let Some(first) = firsts.get(event.key.as_str()).copied() {
            let (before, logger) = (&events[first].event, events[first].logger.as_deref());
            match is_same_content(&before.body, &event.body) {
                true => PostVerdict::RepeatOf {
                    index: first,
                    is_alias: is_alias(before.event_id, logger),
                },
                false => PostVerdict::Conflict,
            }
        } else {
            firsts.insert(event.key.as_str(), index);
            PostVerdict::New
        };
        verdicts.push(verdict);
    }
    verdicts
}
