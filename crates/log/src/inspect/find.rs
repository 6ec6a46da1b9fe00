//! Finds an event in the topics of a log.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate_core::books::{Books, Bucket, Place};
use tidegate_core::dead_letter::name;
use tidegate_core::{EventId, EventLocation, GroupName, Offset, Topic, iso_time};

use super::{LogScope, OpenLog, account_name};
use crate::error::LogError;
use crate::port::{Log, Read};
use crate::record::{StoredRecord, TopicPartition};

/// The records of an event in a topic that this group wrote there: copies of a tier, or dead letters. None where
/// there is no such topic.
///
/// # Errors
/// Those of [`Log::describe`] and [`Log::read`].
pub async fn copies_of(
    log: &dyn Log,
    topic: &Topic,
    group: &GroupName,
    id: EventId,
) -> Result<Vec<(TopicPartition, StoredRecord)>, LogError> {
    let described = match log.describe(topic).await {
        Err(LogError::UnknownTopic { .. }) => return Ok(Vec::new()),
        described => described?,
    };
    let is_copy = |stored: &StoredRecord| {
        let headers = &stored.record.headers;
        let mut others = headers.iter().filter(|(of, _)| *of == name::STANDS_FOR);
        let mut stands_for = || {
            others.any(|(_, value)| {
                let named = value.and_then(name::read_stands_for);
                named.is_some_and(|(other, _)| other == id)
            })
        };
        headers.get(name::GROUP) == Some(group.as_str().as_bytes())
            && (headers.event_id() == Some(id) || stands_for())
    };
    let mut found = Vec::new();
    for partition in described.partitions {
        let at = TopicPartition::new(topic.clone(), partition.partition.0);
        let mut from = partition.start;
        while from < partition.end {
            let batch = log.read(Read::new(at.clone(), from)).await?;
            if batch.next == from {
                break;
            }
            from = batch.next;
            let copies = batch.records.into_iter().filter(is_copy);
            found.extend(copies.map(|stored| (at.clone(), stored)));
        }
    }
    Ok(found)
}

/// The groups of which the log itself knows that they read a topic, whether or not they have committed
/// anything.
pub(super) type Readers = BTreeMap<(Topic, GroupName), TopicReader>;

/// A group that reads a topic.
#[derive(Debug, Clone, Default)]
pub(super) struct TopicReader {
    /// Where it began, by partition; at the first record where that is not known.
    pub(super) begins: Vec<Offset>,
    /// Its postings, as far as the log itself keeps them.
    pub(super) posted: Books,
}

/// Who tells where a group began to read a topic.
#[derive(Debug)]
pub(super) struct Begins<'a> {
    pub(super) readers: Readers,
    /// On Kafka the books of a group say where they begin: what lies before was never in them.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "a log in a directory says it by `readers`")
    )]
    pub(super) open: &'a OpenLog,
}

impl Begins<'_> {
    /// The places that a group has put events in that were born when this one was, the least finished
    /// first; where that is unknown, what it passed is delivered.
    fn places(&self, group: &GroupName, topic: &Topic, id: EventId) -> Vec<Place> {
        let known = self.readers.get(&(topic.clone(), group.clone()));
        let found = known.map(|reader| settled(&reader.posted, id));
        let found = found.filter(|places| !places.is_empty());
        found.unwrap_or_else(|| vec![Place::Delivered])
    }

    /// Where a group began to read a partition; none if it is unknown that it reads it.
    async fn of(&self, group: &GroupName, at: &TopicPartition) -> Result<Option<Offset>, LogError> {
        #[cfg(feature = "kafka")]
        if let OpenLog::Kafka { log: kafka, .. } = self.open {
            let books = kafka.books(group, std::slice::from_ref(at)).await?;
            if let Some(books) = books.into_iter().flatten().next() {
                // Books that were begun anew speak of what was settled before as well.
                let is_begun_anew = books.earlier > 0;
                return Ok(Some(if is_begun_anew { Offset(0) } else { books.base }));
            }
        }
        let known = self.readers.get(&(at.topic.clone(), group.clone()));
        let index = usize::try_from(at.partition.0).unwrap_or(usize::MAX);
        Ok(known.map(|reader| reader.begins.get(index).copied().unwrap_or(Offset(0))))
    }
}

/// Every record of an event, and what became of it in each group that reads its topic.
///
/// Reads every topic of the scope, or all, from its start: nothing but the records knows where an id
/// lies. A scope without groups asks all that there are.
pub(super) async fn find(
    log: &dyn Log,
    id: EventId,
    scope: Option<&LogScope>,
    begins: &Begins<'_>,
) -> Result<Vec<EventLocation>, LogError> {
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
                let is_it = |stored: &&StoredRecord| stored.event_id(log.cluster(), &at) == id;
                for stored in batch.records.iter().filter(is_it) {
                    sightings.extend(seen(log, (&groups, begins), &at, stored).await?);
                }
                if batch.next <= from {
                    break;
                }
                from = batch.next;
            }
        }
    }
    Ok(waiting_last(sightings))
}

/// The locations of one record: one per group that is past it or before it, or one for the
/// topic where no group has committed anything.
async fn seen(
    log: &dyn Log,
    (groups, begins): (&[GroupName], &Begins<'_>),
    at: &TopicPartition,
    stored: &StoredRecord,
) -> Result<Vec<EventLocation>, LogError> {
    let sighting = |topic: &Topic, group: Option<&GroupName>, mut places: Vec<Place>| {
        let place = places.first().cloned().unwrap_or(Place::Queued);
        if places.len() == 1 {
            places.clear();
        }
        let (partition, offset) = (at.partition.0, stored.offset.0);
        let details = json!({ "topic": topic, "partition": partition, "offset": offset });
        EventLocation {
            at: iso_time(stored.record.timestamp_ms),
            among: places,
            ..EventLocation::new(account_name(topic, group).0, place, details)
        }
    };
    let id = stored.event_id(log.cluster(), at);
    let mut sightings = Vec::new();
    for group in groups {
        let committed = log.committed(group, std::slice::from_ref(at)).await?;
        let next = committed.into_iter().flatten().next();
        let begin = begins.of(group, at).await?;
        let place = place(next.map(|committed| committed.next), stored.offset, begin);
        sightings.extend(place.map(|place| {
            let places = match place {
                Passed::Yes => begins.places(group, &at.topic, id),
                Passed::NotYet => vec![Place::Queued],
            };
            sighting(&at.topic, Some(group), places)
        }));
    }
    if sightings.is_empty() {
        sightings.push(sighting(&at.topic, None, vec![Place::Queued]));
    }
    Ok(sightings)
}

/// Whether a group is done with a record, whatever it did with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    Yes,
    NotYet,
}

/// The places in which books have events that were born when this one was, but for those that wait; the
/// least finished first.
fn settled(books: &Books, id: EventId) -> Vec<Place> {
    let rows = books.rows().into_iter();
    let here = rows.filter(|row| row.count > 0);
    let here = here.filter(|row| {
        let bucket = row.bucket.parse::<Bucket>();
        bucket.is_ok_and(|bucket| bucket.may_hold(id))
    });
    let places = here.filter_map(|row| row.column.parse::<Place>().ok());
    let mut places: Vec<Place> = places.filter(|place| *place != Place::Queued).collect();
    places.sort_by_key(|place| match place {
        Place::Queued | Place::InFlight => 0,
        Place::Retrying => 1,
        Place::Parked => 2,
        Place::Spilled => 3,
        Place::DeadLettered => 4,
        Place::Lost(_) => 5,
        Place::Delivered => 6,
    });
    places.dedup();
    places
}

/// Where a record is for a group; none if the group has nothing to do with it, because it lies before
/// where the group began. One that reads the topic and has committed nothing has still to read it.
fn place(committed: Option<Offset>, offset: Offset, begins: Option<Offset>) -> Option<Passed> {
    if begins.is_some_and(|begins| offset < begins) {
        return None;
    }
    match committed {
        Some(next) if next > offset => Some(Passed::Yes),
        Some(_) => Some(Passed::NotYet),
        None => begins.map(|_| Passed::NotYet),
    }
}

/// Puts last where somebody has still to read the event: that is where it is, whatever others have done
/// with it.
fn waiting_last(mut seen: Vec<EventLocation>) -> Vec<EventLocation> {
    if let Some(waits) = seen.iter().position(|seen| seen.place == Place::Queued) {
        let waiting = seen.remove(waits);
        seen.push(waiting);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Append, Commit, EmbeddedConfig, EmbeddedLog, Join, OffsetCommit, Record, SessionEvent,
        StartAt, TopicConfig,
    };
    use tidegate_sim::Sim;

    #[test]
    fn a_group_that_has_committed_nothing_has_still_to_read_what_it_reads() {
        for (committed, begins, expected) in [
            (Some(4), Some(0), Some(Passed::Yes)),
            (Some(3), Some(3), Some(Passed::NotYet)),
            (Some(3), None, Some(Passed::NotYet)),
            (None, Some(2), Some(Passed::NotYet)),
            (None, None, None),
            (Some(4), Some(4), None),
            (None, Some(4), None),
        ] {
            let found = place(committed.map(Offset), Offset(3), begins.map(Offset));
            assert_eq!(found, expected, "{committed:?} {begins:?}");
        }
    }

    #[test]
    fn a_group_says_of_what_it_passed_where_it_put_it_and_no_more() {
        let id = EventId::from_u128(0x019a_8f3e_5c00_7abc_8def_0123_4567_89ab);
        let other = EventId::from_u128(0x019a_8f3e_5c01_7abc_8def_0123_4567_89ab);
        let mut books = Books::default();
        books.move_one(id, None, Some(Place::Queued));
        books.move_one(other, None, Some(Place::Queued));
        assert_eq!(settled(&books, id), []);
        books.move_one(id, Some(Place::Queued), Some(Place::Parked));
        assert_eq!(settled(&books, id), [Place::Parked]);
        books.move_one(other, Some(Place::Queued), Some(Place::Delivered));
        assert_eq!(settled(&books, id), [Place::Parked, Place::Delivered]);
        let much_later = EventId::from_u128(0x029a_8f3e_5c00_7abc_8def_0123_4567_89ab);
        assert_eq!(settled(&books, much_later), []);
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
                if let SessionEvent::Assigned(mine) = done.poll().await.unwrap() {
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
            let found = OpenLog::Embedded {
                log: log.clone(),
                owned: Vec::new(),
            }
            .find(id)
            .await
            .unwrap();
            // The group that began behind it has nothing to do with it.
            assert_eq!(found.len(), 2, "{found:?}");
            let now = found.last().unwrap();
            assert_eq!(now.place, Place::Queued);
            assert_eq!(now.component, "idle@t");
            log.close().await;
        });
    }

    #[test]
    fn an_event_is_where_somebody_has_still_to_read_it() {
        let seen = |component: &str, place| EventLocation::new(component, place, json!({}));
        let now = |history| waiting_last(history).pop().map(|now| now.component);
        assert_eq!(now(vec![]), None);
        let done = || seen("a@t", Place::Delivered);
        assert_eq!(now(vec![done()]).as_deref(), Some("a@t"));
        let waits = seen("b@t", Place::Queued);
        assert_eq!(now(vec![waits, done()]).as_deref(), Some("b@t"));
    }
}
