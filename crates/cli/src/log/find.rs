//! Finds an event in the topics of a log.

use tidegate_core::books::Place;
use tidegate_core::{EventId, GroupName, Topic};
use tidegate_log::{Log, LogError, Read, Stored, TopicPartition};
use tidegate_server::log::{Located, Sighting};

use super::component;
use super::opened::Scope;
use crate::table;

/// Every record of an event, and what became of it in each group that reads its topic.
///
/// Reads every topic of the scope, or all, from its start: nothing but the records knows where an id
/// lies. A scope without groups asks all that there are.
pub(super) async fn find(
    log: &dyn Log,
    id: EventId,
    scope: Option<&Scope>,
) -> Result<Vec<Sighting>, LogError> {
    let mut sightings = Vec::new();
    let topics = match scope {
        Some(scope) if !scope.topics.is_empty() => scope.topics.clone(),
        Some(_) | None => log.topics().await?,
    };
    let groups = match scope {
        Some(scope) if !scope.groups.is_empty() => scope.groups.clone(),
        Some(_) | None => log.groups().await?,
    };
    for topic in topics {
        let described = match log.describe(&topic).await {
            Err(LogError::UnknownTopic { .. }) => continue,
            described => described?,
        };
        for partition in described.partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let mut from = partition.start;
            while from < partition.end {
                let read = Read {
                    max_bytes: 4 * 1024 * 1024,
                    ..Read::new(at.clone(), from)
                };
                let batch = match log.read(read).await {
                    Ok(batch) => batch,
                    // Gone since we looked, or not readable: what is behind it may be what we seek.
                    Err(LogError::OutOfRange { start, .. }) if start > from => {
                        from = start;
                        continue;
                    }
                    Err(LogError::Damaged { to, .. }) if to > from => {
                        from = to;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let is_it = |stored: &&Stored| stored.event_id(log.cluster(), &at) == id;
                for stored in batch.records.iter().filter(is_it) {
                    sightings.extend(seen(log, &groups, &at, stored).await?);
                }
                if batch.next <= from {
                    break;
                }
                from = batch.next;
            }
        }
    }
    Ok(sightings)
}

/// What became of one record: a sighting per group that is past it or before it, or one for the
/// topic where no group has committed anything.
async fn seen(
    log: &dyn Log,
    groups: &[GroupName],
    at: &TopicPartition,
    stored: &Stored,
) -> Result<Vec<Sighting>, LogError> {
    let sighting = |topic: &Topic, group: Option<&GroupName>, place: Place| Sighting {
        component: component(topic, group).0,
        place,
        topic: topic.to_string(),
        partition: at.partition.0,
        offset: stored.offset.0,
        at: table::time(stored.record.timestamp_ms),
    };
    let mut sightings = Vec::new();
    for group in groups {
        let committed = log.committed(group, std::slice::from_ref(at)).await?;
        let Some(committed) = committed.into_iter().flatten().next() else {
            continue;
        };
        let place = match committed.next > stored.offset {
            true => Place::Delivered,
            false => Place::Queued,
        };
        sightings.push(sighting(&at.topic, Some(group), place));
    }
    if sightings.is_empty() {
        sightings.push(sighting(&at.topic, None, Place::Queued));
    }
    Ok(sightings)
}

/// The one place that an event is in: where somebody has still to read it, else where it was
/// delivered last.
pub(super) fn located(id: EventId, history: Vec<Sighting>) -> Option<Located> {
    let waiting = history.iter().find(|seen| seen.place == Place::Queued);
    let now = waiting.or(history.last())?.clone();
    Some(Located {
        id,
        place: now.place,
        component: now.component,
        at: now.at,
        attempts: None,
        history,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_where_somebody_has_still_to_read_it() {
        let id = EventId::from_u128(7);
        let seen = |component: &str, place: Place| Sighting {
            component: component.to_owned(),
            place,
            topic: "t".to_owned(),
            partition: 0,
            offset: 3,
            at: None,
        };
        let place = |history| located(id, history).map(|found| (found.place, found.component));
        assert_eq!(place(vec![]), None);
        let done = || seen("a@t", Place::Delivered);
        assert_eq!(
            place(vec![done()]),
            Some((Place::Delivered, "a@t".to_owned()))
        );
        let waits = seen("b@t", Place::Queued);
        assert_eq!(
            place(vec![waits, done()]),
            Some((Place::Queued, "b@t".to_owned()))
        );
    }
}
