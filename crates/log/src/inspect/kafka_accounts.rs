//! The books of groups on Kafka, as the ledger and the audit show them.

use tidegate_core::Offset;
use tidegate_core::books::{
    Audited, Books, Bucket, ComponentAccount, ComponentKind, Place, Tally, difference,
};

use super::{LogScope, account, account_name, owned};
use crate::error::LogError;
use crate::kafka::{GroupBooks, KafkaLog, PartitionRecount, recount_group};
use crate::port::{Committed, Log, Read};
use crate::record::TopicPartition;
use crate::topic::{PartitionDescription, TopicDescription};

/// The books of the groups on these topics of Kafka: what each has settled since its books began,
/// and what it has still to read. Waiting records are counted by offsets from the first one on, which is
/// an upper bound: the ends of transactions and what compaction removed are offsets without a record.
pub(super) async fn of_kafka(
    log: &KafkaLog,
    scope: &LogScope,
) -> Result<Vec<ComponentAccount>, LogError> {
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
            if owned::has(&scope.owned, topic, Some(group)) {
                continue;
            }
            let kept = log.books(group, &partitions).await?;
            let next = |index: usize| committed.get(index)?.as_ref().map(|done| done.next);
            let waits = waiting(log, &described, next).await?;
            let books = kept_by(&waits, &committed, &kept);
            components.push(account(topic, Some(group), &books));
        }
        if !is_read {
            let waits = waiting(log, &described, |_| None).await?;
            components.push(account(topic, None, &unread(&waits)));
        }
    }
    Ok(components)
}

/// The offsets that wait in each partition of a topic: from the first record at or behind what is committed, or
/// without that behind the start, up to the end.
async fn waiting(
    log: &KafkaLog,
    described: &TopicDescription,
    next: impl Fn(usize) -> Option<Offset>,
) -> Result<Vec<PartitionDescription>, LogError> {
    let mut waits = described.partitions.clone();
    for (index, partition) in waits.iter_mut().enumerate() {
        let at = TopicPartition {
            topic: described.topic.clone(),
            partition: partition.partition,
        };
        partition.start = next(index).map_or(partition.start, |next| next.max(partition.start));
        while partition.start < partition.end {
            let one = Read {
                max_records: 1,
                ..Read::new(at.clone(), partition.start)
            };
            partition.start = match log.read(one).await {
                Ok(batch) => {
                    let first = batch.records.first().map(|first| first.offset);
                    first.unwrap_or(partition.end)
                }
                // Removed since we looked.
                Err(LogError::OutOfRange { start, .. }) if start > partition.start => {
                    partition.start = start;
                    continue;
                }
                // It is there, whatever it is.
                Err(LogError::Damaged { from, .. }) => from,
                Err(error) => return Err(error),
            };
            break;
        }
    }
    Ok(waits)
}

/// The books of a group on a topic, by what waits in each partition, what it has committed of it and what
/// it keeps there. Of a partition of which it has committed nothing, everything waits.
fn kept_by(
    waits: &[PartitionDescription],
    committed: &[Option<Committed>],
    kept: &[Option<GroupBooks>],
) -> Books {
    let mut books = Books::default();
    let found = committed.iter().zip(kept).zip(waits);
    for ((committed, kept), partition) in found {
        let number = partition.partition.0;
        let next = committed.as_ref().map_or(partition.start, |done| done.next);
        let before = span(number, Offset(0), next);
        for (place, tally) in kept.iter().flat_map(|kept| &kept.places) {
            add(&mut books, before, place.clone(), *tally);
        }
        wait(&mut books, number, partition.start, partition.end);
    }
    books
}

/// Counts what the groups on these topics of Kafka have settled.
pub(super) async fn audit_kafka(
    log: &KafkaLog,
    scope: &LogScope,
) -> Result<Vec<Audited>, LogError> {
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
            if owned::has(&scope.owned, topic, Some(group)) {
                is_read = true;
                continue;
            }
            let recount = recount_group(log, group, topic).await?;
            if recount.partitions.is_empty() {
                continue;
            }
            is_read = true;
            let (name, kind) = account_name(topic, Some(group));
            let next = |index: usize| {
                let number = described.partitions.get(index)?.partition;
                let mut counted = recount.partitions.iter();
                let found = counted.find(|counted| counted.at.partition == number);
                found.map(|counted| counted.committed)
            };
            let waits = waiting(log, &described, next).await?;
            audited.push(compare((name, kind), &recount.partitions, &waits));
        }
        if !is_read {
            // Nobody has committed anything, so that there are no books to hold the topic against.
            let (name, kind) = account_name(topic, None);
            let books = unread(&waiting(log, &described, |_| None).await?);
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
    waits: &[PartitionDescription],
) -> Audited {
    let (mut books, mut recount) = (Books::default(), Books::default());
    let mut unverifiable = 0;
    for there in waits {
        for side in [&mut books, &mut recount] {
            wait(side, there.partition.0, there.start, there.end);
        }
    }
    for counted in partitions {
        let number = counted.at.partition.0;
        let Some(kept) = counted.books.as_ref().filter(|_| counted.is_verifiable()) else {
            // The broker removed what the books speak of, or the group keeps none.
            let settled = counted.books.as_ref().map(GroupBooks::settled);
            let passed = (counted.committed.0 - counted.start.0).max(0);
            unverifiable += settled.unwrap_or(u64::try_from(passed).unwrap_or(0));
            continue;
        };
        unverifiable += kept.earlier;
        let settled = span(number, kept.base, counted.committed);
        for (place, tally) in &kept.places {
            add(&mut books, settled, place.clone(), *tally);
            // The topic tells how many were settled and not where they went. Those that went elsewhere nobody
            // has looked for.
            add(&mut recount, settled, place.clone(), *tally);
            unverifiable += elsewhere(place, *tally);
        }
        add(&mut recount, settled, Place::Delivered, counted.surplus());
    }
    let missing = difference(&books, &recount);
    Audited::new(name, kind, &books, &recount, missing).unverifiable(unverifiable)
}

/// The books of a topic that nobody reads: all of it waits.
fn unread(waits: &[PartitionDescription]) -> Books {
    let mut books = Books::default();
    for partition in waits {
        let number = partition.partition.0;
        wait(&mut books, number, partition.start, partition.end);
    }
    books
}

/// The offsets from one up to the end wait.
fn wait(books: &mut Books, partition: i32, from: Offset, end: Offset) {
    let queued = (end.0 - from.0).max(0);
    let bucket = span(partition, from, end);
    let tally = Tally {
        count: queued,
        id_sum: 0,
    };
    add(books, bucket, Place::Queued, tally);
}

fn add(books: &mut Books, bucket: Bucket, place: Place, tally: Tally) {
    books.move_tally(bucket, None, Some(place), tally);
}

/// How many events of a place should be somewhere else than in the topic.
fn elsewhere(place: &Place, tally: Tally) -> u64 {
    match place {
        Place::Retrying | Place::Parked | Place::Spilled | Place::DeadLettered => {
            u64::try_from(tally.count).unwrap_or(0)
        }
        Place::Queued | Place::InFlight | Place::Delivered | Place::Lost(_) => 0,
    }
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
    use tidegate_core::{EventId, Partition, Topic};

    const ID: u128 = 0x019a_8f3e_5c00_7abc_8def_0123_4567_89ab;

    /// The offsets that wait in a partition that ends at 12.
    fn waits(number: i32, from: i64) -> PartitionDescription {
        PartitionDescription {
            partition: Partition(number),
            start: Offset(from),
            end: Offset(12),
        }
    }

    fn tally(count: u64) -> Tally {
        Tally {
            count: i64::try_from(count).unwrap(),
            id_sum: u128::from(count) * ID,
        }
    }

    fn counted(start: i64, in_topic: u64, in_books: u64) -> PartitionRecount {
        PartitionRecount {
            at: TopicPartition::new(Topic::new("t").unwrap(), 0),
            committed: Offset(10),
            books: Some(GroupBooks {
                count: in_books,
                id_sum: u128::from(in_books) * ID,
                places: [(Place::Delivered, tally(in_books))].into(),
                ..GroupBooks::begin(Offset(5))
            }),
            is_compacted: false,
            start: Offset(start),
            count: in_topic,
            id_sum: u128::from(in_topic) * ID,
        }
    }

    #[test]
    fn settled_events_are_compared_with_the_topic() {
        let named = || ("g@t".to_owned(), ComponentKind::Group);
        let fine = compare(named(), &[counted(0, 5, 5)], &[waits(0, 10)]);
        assert_eq!((fine.unaccounted, fine.unverifiable), (0, 0));
        assert_eq!(
            (fine.books.accepted, fine.books.queued, fine.books.delivered),
            (7, 2, 5)
        );
        for (in_topic, in_books) in [(5, 4), (4, 5)] {
            let found = compare(named(), &[counted(0, in_topic, in_books)], &[waits(0, 10)]);
            assert_eq!(found.unaccounted, 1, "{in_topic} {in_books}");
            assert_eq!(found.missing[0].id, Some(EventId::from_u128(ID)));
            assert_eq!(found.missing[0].bucket, span(0, Offset(5), Offset(10)));
        }
    }

    #[test]
    fn events_settled_before_the_books_began_are_counted_and_unverifiable() {
        let mut counted = counted(0, 5, 5);
        let books = counted.books.as_mut().unwrap();
        books.earlier = 3;
        books.places = [(Place::Delivered, tally(8))].into();
        let named = ("g@t".to_owned(), ComponentKind::Group);
        let kept = [counted.books.clone()];
        let found = compare(named, &[counted], &[waits(0, 10)]);
        assert_eq!((found.unaccounted, found.unverifiable), (0, 3));
        let committed = Committed {
            next: Offset(10),
            metadata: String::new(),
        };
        let account = kept_by(&[waits(0, 10)], &[Some(committed)], &kept).account();
        assert_eq!((account.queued, account.delivered), (2, 8));
    }

    #[test]
    fn records_not_committed_yet_wait_for_their_group() {
        let named = ("g@t".to_owned(), ComponentKind::Group);
        // Three partitions, of which the group has committed something of the first.
        let three = [waits(0, 10), waits(1, 0), waits(2, 4)];
        let found = compare(named, &[counted(2, 5, 5)], &three);
        assert_eq!((found.unaccounted, found.unverifiable), (0, 0));
        assert_eq!(found.books.queued, 2 + 12 + 8);
        assert_eq!(found.books.accepted, 5 + 2 + 12 + 8);
        let committed = Committed {
            next: Offset(10),
            metadata: String::new(),
        };
        let kept = [counted(2, 5, 5).books, None, None];
        let account = kept_by(&three, &[Some(committed), None, None], &kept).account();
        assert_eq!((account.queued, account.delivered), (2 + 12 + 8, 5));
    }

    #[test]
    fn each_place_is_shown_and_what_lies_elsewhere_is_unverifiable() {
        let mut counted = counted(0, 5, 5);
        let books = counted.books.as_mut().unwrap();
        books.places = [
            (Place::Delivered, tally(2)),
            (Place::Retrying, tally(2)),
            (Place::DeadLettered, tally(1)),
        ]
        .into();
        let kept = [counted.books.clone()];
        let named = ("g@t".to_owned(), ComponentKind::Group);
        let found = compare(named, &[counted], &[waits(0, 10)]);
        assert_eq!((found.unaccounted, found.unverifiable), (0, 3));
        let committed = Committed {
            next: Offset(10),
            metadata: String::new(),
        };
        let account = kept_by(&[waits(0, 10)], &[Some(committed)], &kept).account();
        assert_eq!(account, found.books);
        assert_eq!(
            (account.delivered, account.retrying, account.dead_lettered),
            (2, 2, 1)
        );
        assert_eq!((account.queued, account.accepted), (2, 7));
    }

    #[test]
    fn records_removed_by_compaction_are_unverifiable() {
        let named = || ("g@t".to_owned(), ComponentKind::Group);
        for (in_topic, unaccounted, unverifiable) in [(3, 0, 5), (5, 0, 0), (6, 1, 0)] {
            let counted = PartitionRecount {
                is_compacted: true,
                ..counted(0, in_topic, 5)
            };
            let found = compare(named(), &[counted], &[waits(0, 10)]);
            assert_eq!(
                (found.unaccounted, found.unverifiable),
                (unaccounted, unverifiable),
                "{in_topic}"
            );
        }
    }

    #[test]
    fn records_removed_by_the_broker_are_unverifiable() {
        let named = ("g@t".to_owned(), ComponentKind::Group);
        let found = compare(named, &[counted(7, 0, 5)], &[waits(0, 10)]);
        assert_eq!((found.unaccounted, found.unverifiable), (0, 5));
    }
}
