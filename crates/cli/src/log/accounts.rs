//! The books of a log as the ledger and the audit show them: one component per topic, and one per
//! group on a topic.

use tidegate_core::books::{
    Audited, Books, Bucket, Component, ComponentKind, Place, Tally, difference,
};
use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::kafka::{KafkaLog, PartitionRecount, recount_group};
use tidegate_log::{EmbeddedShelf, Log, LogError, TopicDescription, TopicPartition, embedded};

use super::Scope;

/// What a topic, or a group on it, is called in the books.
pub(crate) fn component(topic: &Topic, group: Option<&GroupName>) -> (String, ComponentKind) {
    match group {
        Some(group) => (format!("{group}@{topic}"), ComponentKind::Group),
        None => (topic.to_string(), ComponentKind::Topic),
    }
}

/// The books of an embedded log.
pub(super) fn of_shelf(shelf: &EmbeddedShelf) -> Vec<Component> {
    let books = shelf.books().into_iter();
    books
        .map(|kept| {
            let (name, kind) = component(&kept.topic, kept.group.as_ref());
            Component {
                name,
                kind,
                account: kept.books.account(),
            }
        })
        .collect()
}

/// What the recount of an embedded log found, as it is shown.
pub(crate) fn audited(found: embedded::Audited) -> Audited {
    let (name, kind) = component(&found.topic, found.group.as_ref());
    let missing = found.missing;
    Audited::new(name, kind, &found.books, &found.recount, missing)
}

/// The books of the groups on these topics of Kafka: what each has settled since its books began,
/// and what it has still to read.
pub(super) async fn of_kafka(log: &KafkaLog, scope: &Scope) -> Result<Vec<Component>, LogError> {
    let mut components = Vec::new();
    for topic in &scope.topics {
        let described = match log.describe(topic).await {
            // It is made by the first who sends to it, or by `run`.
            Err(LogError::UnknownTopic { .. }) => continue,
            described => described?,
        };
        let partitions = partitions(&described);
        let mut is_read = false;
        for group in &scope.groups {
            let committed = log.committed(group, &partitions).await?;
            if committed.iter().all(Option::is_none) {
                continue;
            }
            is_read = true;
            let kept = log.books(group, &partitions).await?;
            let mut books = Books::default();
            let found = committed.iter().zip(&kept).zip(&described.partitions);
            for ((committed, kept), partition) in found {
                let Some(committed) = committed else {
                    continue;
                };
                let settled = kept.map_or(0, |kept| i64::try_from(kept.count).unwrap_or(i64::MAX));
                let queued = (partition.end.0 - committed.next.0).max(0);
                let at = partition.partition;
                add(
                    &mut books,
                    span(at.0, Offset(0), committed.next),
                    Place::Delivered,
                    settled,
                    0,
                );
                add(
                    &mut books,
                    span(at.0, committed.next, partition.end),
                    Place::Queued,
                    queued,
                    0,
                );
            }
            let (name, kind) = component(topic, Some(group));
            let account = books.account();
            components.push(Component {
                name,
                kind,
                account,
            });
        }
        if !is_read {
            let (name, kind) = component(topic, None);
            let account = unread(&described).account();
            components.push(Component {
                name,
                kind,
                account,
            });
        }
    }
    Ok(components)
}

/// Counts what the groups on these topics of Kafka have settled.
pub(super) async fn audit_kafka(log: &KafkaLog, scope: &Scope) -> Result<Vec<Audited>, LogError> {
    let mut audited = Vec::new();
    let groups = match scope.groups.is_empty() {
        true => log.groups().await?,
        false => scope.groups.clone(),
    };
    for topic in &scope.topics {
        let described = match log.describe(topic).await {
            // It is made by the first who sends to it, or by `run`.
            Err(LogError::UnknownTopic { .. }) => continue,
            described => described?,
        };
        let mut is_read = false;
        for group in &groups {
            let recount = recount_group(log, group, topic).await?;
            if recount.partitions.is_empty() {
                continue;
            }
            is_read = true;
            let (name, kind) = component(topic, Some(group));
            audited.push(compare((name, kind), &recount.partitions, &described));
        }
        if !is_read {
            // Nobody has committed anything, so that there are no books to hold the topic against.
            let (name, kind) = component(topic, None);
            let books = unread(&described);
            let count = u64::try_from(books.account().queued).unwrap_or(0);
            let found = Audited::new(name, kind, &books, &books, Vec::new());
            audited.push(found.unverifiable(count));
        }
    }
    Ok(audited)
}

/// Puts what a group says it has settled beside what lies in the topic.
fn compare(
    (name, kind): (String, ComponentKind),
    partitions: &[PartitionRecount],
    described: &TopicDescription,
) -> Audited {
    let (mut books, mut recount) = (Books::default(), Books::default());
    let mut unverifiable = 0;
    for counted in partitions {
        let number = counted.at.partition.0;
        let mut ends = described.partitions.iter();
        let end = ends.find(|partition| partition.partition == counted.at.partition);
        let end = end.map_or(counted.committed, |partition| partition.end);
        let waiting = span(number, counted.committed, end);
        for side in [&mut books, &mut recount] {
            let queued = (end.0 - counted.committed.0).max(0);
            add(side, waiting, Place::Queued, queued, 0);
        }
        let Some(kept) = counted.books.filter(|_| counted.is_verifiable()) else {
            // The broker removed what the books speak of, or the group keeps none.
            let settled = counted.books.map(|kept| kept.count);
            let passed = (counted.committed.0 - counted.start.0).max(0);
            unverifiable += settled.unwrap_or(u64::try_from(passed).unwrap_or(0));
            continue;
        };
        let settled = span(number, kept.base, counted.committed);
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        add(
            &mut books,
            settled,
            Place::Delivered,
            count(kept.count),
            kept.id_sum,
        );
        add(
            &mut recount,
            settled,
            Place::Delivered,
            count(counted.count),
            counted.id_sum,
        );
    }
    let missing = difference(&books, &recount);
    Audited::new(name, kind, &books, &recount, missing).unverifiable(unverifiable)
}

/// The books of a topic that nobody reads: all of it waits.
fn unread(described: &TopicDescription) -> Books {
    let mut books = Books::default();
    for partition in &described.partitions {
        let (start, end) = (partition.start, partition.end);
        let bucket = span(partition.partition.0, start, end);
        add(&mut books, bucket, Place::Queued, end.0 - start.0, 0);
    }
    books
}

fn add(books: &mut Books, bucket: Bucket, place: Place, count: i64, id_sum: u128) {
    books.move_tally(bucket, None, Some(place), Tally { count, id_sum });
}

/// The bucket of the offsets from `first` up to `end`.
fn span(partition: i32, first: Offset, end: Offset) -> Bucket {
    Bucket::Offsets {
        partition: tidegate_core::Partition(partition),
        first,
        last: Offset(end.0 - 1),
    }
}

fn partitions(described: &TopicDescription) -> Vec<TopicPartition> {
    let numbers = described.partitions.iter().map(|found| found.partition.0);
    numbers
        .map(|number| TopicPartition::new(described.topic.clone(), number))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{EventId, Partition};
    use tidegate_log::kafka::GroupBooks;
    use tidegate_log::{PartitionDescription, TopicConfig};

    const ID: u128 = 0x019a_8f3e_5c00_7abc_8def_0123_4567_89ab;

    fn described(start: i64) -> TopicDescription {
        TopicDescription {
            topic: Topic::new("t").unwrap(),
            config: TopicConfig::new(1),
            partitions: vec![PartitionDescription {
                partition: Partition(0),
                start: Offset(start),
                end: Offset(12),
            }],
        }
    }

    fn counted(start: i64, in_topic: u64, in_books: u64) -> PartitionRecount {
        PartitionRecount {
            at: TopicPartition::new(Topic::new("t").unwrap(), 0),
            committed: Offset(10),
            books: Some(GroupBooks {
                base: Offset(5),
                count: in_books,
                id_sum: u128::from(in_books) * ID,
            }),
            start: Offset(start),
            count: in_topic,
            id_sum: u128::from(in_topic) * ID,
        }
    }

    #[test]
    fn what_a_group_settled_is_held_against_the_topic() {
        let named = || ("g@t".to_owned(), ComponentKind::Group);
        let fine = compare(named(), &[counted(0, 5, 5)], &described(0));
        assert_eq!((fine.unaccounted, fine.unverifiable), (0, 0));
        assert_eq!(
            (fine.books.accepted, fine.books.queued, fine.books.delivered),
            (7, 2, 5)
        );
        for (in_topic, in_books) in [(5, 4), (4, 5)] {
            let found = compare(named(), &[counted(0, in_topic, in_books)], &described(0));
            assert_eq!(found.unaccounted, 1, "{in_topic} {in_books}");
            assert_eq!(found.missing[0].id, Some(EventId::from_u128(ID)));
            assert_eq!(found.missing[0].bucket, span(0, Offset(5), Offset(10)));
        }
    }

    #[test]
    fn what_the_broker_removed_is_unverifiable() {
        let named = ("g@t".to_owned(), ComponentKind::Group);
        let found = compare(named, &[counted(7, 0, 5)], &described(7));
        assert_eq!((found.unaccounted, found.unverifiable), (0, 5));
    }
}
