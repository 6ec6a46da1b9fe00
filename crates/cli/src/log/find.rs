//! Finds an event in the topics of a log.

use std::collections::BTreeMap;

use tidegate_core::books::Place;
use tidegate_core::{EventId, GroupName, Offset, Topic};
use tidegate_log::{Log, LogError, Read, Stored, TopicPartition};
use tidegate_server::log::{Located, Sighting};

use super::component;
use super::opened::Scope;
use crate::table;

/// The groups of which the log itself knows that they read a topic, whether or not they have committed
/// anything, and where each began, by partition.
pub(super) type Readers = BTreeMap<(Topic, GroupName), Vec<Offset>>;

/// Every record of an event, and what became of it in each group that reads its topic.
///
/// Reads every topic of the scope, or all, from its start: nothing but the records knows where an id
/// lies. A scope without groups asks all that there are.
pub(super) async fn find(
    log: &dyn Log,
    id: EventId,
    scope: Option<&Scope>,
    readers: &Readers,
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
                    sightings.extend(seen(log, (&groups, readers), &at, stored).await?);
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
    (groups, readers): (&[GroupName], &Readers),
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
        let next = committed.into_iter().flatten().next();
        let begins = readers.get(&(at.topic.clone(), group.clone()));
        let index = usize::try_from(at.partition.0).unwrap_or(usize::MAX);
        let begins = begins.and_then(|begins| begins.get(index)).copied();
        let place = place(next.map(|committed| committed.next), stored.offset, begins);
        sightings.extend(place.map(|place| sighting(&at.topic, Some(group), place)));
    }
    if sightings.is_empty() {
        sightings.push(sighting(&at.topic, None, Place::Queued));
    }
    Ok(sightings)
}

/// Where a record is for a group; none if the group has nothing to do with it, because it lies before
/// where the group began. One that reads the topic and has committed nothing has still to read it.
fn place(committed: Option<Offset>, offset: Offset, begins: Option<Offset>) -> Option<Place> {
    if begins.is_some_and(|begins| offset < begins) {
        return None;
    }
    match committed {
        Some(next) if next > offset => Some(Place::Delivered),
        Some(_) => Some(Place::Queued),
        None => begins.map(|_| Place::Queued),
    }
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
    use crate::log::Opened;
    use tidegate_log::{
        Append, Commit, EmbeddedConfig, EmbeddedLog, Happening, Join, OffsetCommit, Record,
        StartAt, TopicConfig,
    };
    use tidegate_sim::Sim;

    #[test]
    fn a_group_that_has_committed_nothing_has_still_to_read_what_it_reads() {
        for (committed, begins, expected) in [
            (Some(4), Some(0), Some(Place::Delivered)),
            (Some(3), Some(3), Some(Place::Queued)),
            (Some(3), None, Some(Place::Queued)),
            (None, Some(2), Some(Place::Queued)),
            (None, None, None),
            (Some(4), Some(4), None),
            (None, Some(4), None),
        ] {
            let found = place(committed.map(Offset), Offset(3), begins.map(Offset));
            assert_eq!(found, expected, "{committed:?} {begins:?}");
        }
    }

    #[test]
    fn where_names_a_registered_group_that_has_not_begun() {
        let mut sim = Sim::new(7);
        let node = sim.node("a");
        let env = node.env();
        let config = EmbeddedConfig {
            journal_size: 64 * 1024,
            ..EmbeddedConfig::new("/log")
        };
        let log = EmbeddedLog::open(&env, config).unwrap();
        sim.block_on(&node, async move {
            let topic = |name| Topic::new(name).unwrap();
            let group = |name| GroupName::new(name).unwrap();
            for name in ["t", "other"] {
                let (name, config) = (topic(name), TopicConfig::new(1));
                log.create_topic(&name, config).await.unwrap();
            }
            let join = |name, on| log.join(Join::new(group(name), vec![topic(on)]));
            let done = join("done", "t").await.unwrap();
            let _idle = join("idle", "t").await.unwrap();
            let before = Append::new(topic("t"), Record::new("before"));
            log.append(vec![before]).await.unwrap();
            let late = Join {
                start: StartAt::Latest,
                ..Join::new(group("late"), vec![topic("t")])
            };
            let _late = log.join(late).await.unwrap();
            let _elsewhere = join("elsewhere", "other").await.unwrap();
            let at = TopicPartition::new(topic("t"), 0);
            let read = log.read(Read::new(at.clone(), Offset(0))).await.unwrap();
            let id = read.records[0].event_id(log.cluster(), &at);
            let fence = loop {
                if let Happening::Assigned(mine) = done.poll().await.unwrap() {
                    break mine[0].fence;
                }
            };
            let commit = Commit {
                appends: Vec::new(),
                offsets: vec![OffsetCommit {
                    at,
                    fence,
                    next: Offset(1),
                    metadata: String::new(),
                    postings: Vec::new(),
                }],
            };
            done.commit(commit).await.unwrap();
            let found = Opened::Embedded(log.clone())
                .find(id)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(found.place, Place::Queued);
            assert_eq!(found.component, "idle@t");
            // The group that began behind it has nothing to do with it.
            assert_eq!(found.history.len(), 2, "{:?}", found.history);
            log.close().await;
        });
    }

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
