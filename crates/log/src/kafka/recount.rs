//! The second witness of the books: the topic itself.

use tidegate_core::books::Tally;
use tidegate_core::{GroupName, Offset, Topic};

use crate::error::LogError;
use crate::group_snapshot::{GroupSnapshot, PartitionProgress, SettledSince};
use crate::port::{Log, Read};
use crate::record::TopicPartition;
use crate::topic::PartitionDescription;

use super::{GroupBooks, KafkaLog};

/// The result of a recount of a group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecount {
    /// The group.
    pub group: GroupName,
    /// The topic.
    pub topic: Topic,
    /// Each partition for which the group has committed something, by number.
    pub partitions: Vec<PartitionRecount>,
}

/// The result of a recount of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecount {
    /// The partition.
    pub at: TopicPartition,
    /// The next record that the group will read.
    pub committed: Offset,
    /// The group's own count since the books began; none if it keeps no books.
    pub books: Option<GroupBooks>,
    /// Whether the topic keeps only the last record of each key: then what the books cover may have been
    /// removed anywhere.
    pub is_compacted: bool,
    /// The first offset that could still be read. Behind the beginning of the books, the broker has
    /// removed records since, and the books cannot be verified.
    pub start: Offset,
    /// Records that lie between the beginning of the books and the committed offset.
    pub count: u64,
    /// The wrapping sum of their ids.
    pub id_sum: u128,
}

impl PartitionRecount {
    /// Whether books and topic can be compared: there are books, and all they cover is still there. A
    /// compacted topic that holds fewer records than the books tells nothing; one that holds as many or
    /// more does.
    #[must_use]
    pub fn is_verifiable(&self) -> bool {
        let is_thinned = |books: &GroupBooks| self.is_compacted && self.count < books.count;
        self.is_covered() && !self.books.as_ref().is_some_and(is_thinned)
    }

    /// Whether the topic still begins where the books do, or before.
    fn is_covered(&self) -> bool {
        let books = self.books.as_ref();
        books.is_some_and(|books| books.base >= self.start)
    }

    /// Whether books and topic agree. Those that cannot be compared do not disagree.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let same = |books: &GroupBooks| (books.count, books.id_sum) == (self.count, self.id_sum);
        !self.is_verifiable() || self.books.as_ref().is_some_and(same)
    }

    /// The same as a tally.
    #[must_use]
    pub fn surplus(&self) -> Tally {
        let (count, id_sum) = self.missing();
        let count = i64::try_from(count).unwrap_or(if count < 0 { i64::MIN } else { i64::MAX });
        Tally { count, id_sum }
    }

    /// The records in the topic that are not in the books: how many, and the sum of their ids,
    /// which for a single one is its id. Negative when the books have more than the topic.
    #[must_use]
    pub fn missing(&self) -> (i128, u128) {
        let books = self.books.as_ref();
        let (count, id_sum) = books.map_or((0, 0), |books| (books.count, books.id_sum));
        (
            i128::from(self.count) - i128::from(count),
            self.id_sum.wrapping_sub(id_sum),
        )
    }
}

/// Reads what a group has settled of a topic once more, and puts it beside what its books say.
///
/// Reads every record between the beginning of the books and the committed offset. It changes
/// nothing; commits that happen meanwhile are not seen.
///
/// # Errors
/// [`LogError::UnknownTopic`], and whatever reading meets.
pub async fn recount_group(
    log: &KafkaLog,
    group: &GroupName,
    topic: &Topic,
) -> Result<GroupRecount, LogError> {
    let described = log.describe(topic).await?;
    let partitions: Vec<TopicPartition> = described
        .partitions
        .iter()
        .map(|partition| TopicPartition {
            topic: topic.clone(),
            partition: partition.partition,
        })
        .collect();
    let found = log.inner.committed(group, &partitions).await?;
    let mut recount = GroupRecount {
        group: group.clone(),
        topic: topic.clone(),
        partitions: Vec::new(),
    };
    for ((at, found), partition) in partitions.into_iter().zip(found).zip(&described.partitions) {
        let Some((books, committed)) = found else {
            continue;
        };
        let mut counted = PartitionRecount {
            at,
            committed: committed.next,
            books,
            is_compacted: described.config.compact,
            start: partition.start,
            count: 0,
            id_sum: 0,
        };
        if counted.is_covered() {
            count(log, &mut counted).await?;
        }
        recount.partitions.push(counted);
    }
    Ok(recount)
}

/// The books and offsets of a group on a topic, with the range of its partitions as of the same moment.
pub(super) async fn snapshot(
    log: &KafkaLog,
    group: &GroupName,
    topic: &Topic,
) -> Result<GroupSnapshot, LogError> {
    let mut snapshot = GroupSnapshot::empty(group, topic);
    snapshot.bucket = Some(GroupSnapshot::EVERYTHING);
    let described = match log.describe(topic).await {
        Err(LogError::UnknownTopic { .. }) => return Ok(snapshot),
        described => described?,
    };
    snapshot.is_compacted = described.config.compact;
    let at = |found: &PartitionDescription| TopicPartition {
        topic: topic.clone(),
        partition: found.partition,
    };
    let partitions: Vec<TopicPartition> = described.partitions.iter().map(at).collect();
    let found = log.inner.committed(group, &partitions).await?;
    for ((at, found), partition) in partitions.into_iter().zip(found).zip(&described.partitions) {
        let (books, committed) = found.unzip();
        let books = books.flatten();
        for (place, tally) in books.iter().flat_map(|books| &books.places) {
            let bucket = GroupSnapshot::EVERYTHING;
            let posted = &mut snapshot.posted;
            posted.move_tally(bucket, None, Some(place.clone()), *tally);
        }
        let next = committed.as_ref().map(|committed| committed.next);
        snapshot.partitions.push(PartitionProgress {
            at,
            start: partition.start,
            // Offsets are read behind the range, so that they may lie behind it.
            end: next.map_or(partition.end, |next| next.max(partition.end)),
            next: next.unwrap_or(partition.start).max(partition.start),
            committed,
            settled: books.map(|books| SettledSince {
                base: books.base,
                tally: Tally {
                    count: i64::try_from(books.count).unwrap_or(i64::MAX),
                    id_sum: books.id_sum,
                },
                earlier: books.earlier,
            }),
        });
    }
    snapshot.books = snapshot.posted.clone();
    Ok(snapshot)
}

async fn count(log: &KafkaLog, counted: &mut PartitionRecount) -> Result<(), LogError> {
    let Some(base) = counted.books.as_ref().map(|books| books.base) else {
        return Ok(());
    };
    let mut from = base;
    while from < counted.committed {
        let batch = log.read(Read::new(counted.at.clone(), from)).await?;
        for stored in &batch.records {
            if stored.offset >= counted.committed {
                return Ok(());
            }
            let id = stored.event_id(log.cluster(), &counted.at);
            counted.count += 1;
            counted.id_sum = counted.id_sum.wrapping_add(id.as_u128());
        }
        if batch.next <= from {
            return Ok(());
        }
        from = batch.next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_record_is_named_by_the_difference() {
        let books = GroupBooks {
            count: 2,
            id_sum: 30,
            ..GroupBooks::begin(Offset(5))
        };
        let mut recount = PartitionRecount {
            at: TopicPartition::new(Topic::new("t").unwrap(), 0),
            committed: Offset(8),
            books: Some(books),
            is_compacted: false,
            start: Offset(0),
            count: 3,
            id_sum: 37,
        };
        assert!(recount.is_verifiable() && !recount.agrees());
        assert_eq!(recount.missing(), (1, 7));
        // Records that the broker removed are not verifiable, and that is no disagreement.
        recount.start = Offset(6);
        assert!(!recount.is_verifiable() && recount.agrees());
    }

    #[test]
    fn a_compacted_topic_that_holds_fewer_records_tells_nothing() {
        // Records in the topic and the sum of their ids; whether that can be compared, and agrees. The
        // books have 3 and 37.
        for (is_compacted, count, id_sum, is_verifiable, agrees) in [
            (false, 2, 30, true, false),
            (true, 2, 30, false, true),
            (true, 3, 37, true, true),
            (true, 3, 36, true, false),
            (true, 4, 44, true, false),
        ] {
            let recount = PartitionRecount {
                at: TopicPartition::new(Topic::new("t").unwrap(), 0),
                committed: Offset(8),
                books: Some(GroupBooks {
                    count: 3,
                    id_sum: 37,
                    ..GroupBooks::begin(Offset(5))
                }),
                is_compacted,
                start: Offset(0),
                count,
                id_sum,
            };
            assert_eq!(recount.is_verifiable(), is_verifiable, "{recount:?}");
            assert_eq!(recount.agrees(), agrees, "{recount:?}");
        }
    }
}
