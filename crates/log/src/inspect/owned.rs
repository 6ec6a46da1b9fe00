//! Groups for which another component answers: its events are not in the topic alone.
//!
//! A record that a group could not handle lies in a tier, among the dead letters or in a store. Each tier is
//! read by a group of its own. The books of such a group are the sum over its groups and the store. Each commit
//! posts with the group whose offset it moves, and the sum is made here.
//!
//! **Invariant:** an event is counted where its record lies: in the topic from the committed offset on, less
//! those that are marked as settled; in the tiers and among the dead letters by the group that they name.

use std::fmt;

use tidegate_core::books::{
    Audited, Books, Bucket, ComponentAccount, ComponentKind, Discrepancy, Place, Tally, difference,
};
use tidegate_core::dead_letter::name;
use tidegate_core::{EventId, GroupName, Offset, Topic};

use super::account_name;
use crate::error::LogError;
use crate::group_snapshot::{GroupSnapshot, PartitionProgress};
use crate::port::{Committed, Log, LogFuture, Read};
use crate::record::{StoredRecord, TopicPartition};

/// How often a log that seems to lack events is looked at while its books move.
const LOOKS: usize = 5;

/// A group for which another component answers, with the topics that its events may lie in.
///
/// ```
/// use tidegate_core::{GroupName, Topic};
/// use tidegate_log::OwnedGroup;
/// let owned = OwnedGroup {
///     tiers: vec![(Topic::new("orders.retry-1")?, GroupName::new("billing.retry-1")?)],
///     dead_letters: vec![Topic::new("orders.DLT")?],
///     ..OwnedGroup::new(Topic::new("orders")?, GroupName::new("billing")?)
/// };
/// assert_eq!(owned.name(), "billing@orders");
/// # Ok::<(), tidegate_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedGroup {
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: GroupName,
    /// The topics of its tiers, each with the group that reads it.
    pub tiers: Vec<(Topic, GroupName)>,
    /// The topics of its dead letters. They name the group and, where it reads several topics, the topic that
    /// they came from ([`name::INPUT`]).
    pub dead_letters: Vec<Topic>,
    /// The group that reads its dead letters, if one does.
    pub dead_letter_reader: Option<GroupName>,
}

/// Reads the marks of a group: records above the committed offset that are settled already.
pub trait SettledMarks: Send + Sync + fmt::Debug {
    /// The ranges of offsets at or above the committed one that are settled, each from its first offset up to
    /// the one behind its last. Metadata that says nothing gives none.
    fn settled_above<'a>(
        &'a self,
        group: &'a GroupName,
        at: &'a TopicPartition,
        committed: &'a Committed,
    ) -> LogFuture<'a, Vec<(Offset, Offset)>>;
}

/// Nothing is settled above the committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMarks;

impl SettledMarks for NoMarks {
    fn settled_above<'a>(
        &'a self,
        _: &'a GroupName,
        _: &'a TopicPartition,
        _: &'a Committed,
    ) -> LogFuture<'a, Vec<(Offset, Offset)>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Whether another component answers for this group on this topic.
pub(super) fn has(owned: &[OwnedGroup], topic: &Topic, group: Option<&GroupName>) -> bool {
    group.is_some_and(|group| owned.iter().any(|owned| owned.has(topic, group)))
}

/// The books of a group and a count of its records; the store's part is added by whoever has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedAudit {
    /// `group@topic`.
    pub name: String,
    /// The books of all its groups.
    pub books: Books,
    /// Its records, where they lie.
    pub recount: Books,
    /// Events of which nobody can tell any more.
    pub unverifiable: u64,
    /// Settled records that topic and books do not agree on.
    pub missing: Vec<Discrepancy>,
    /// How far the group had read its topic when the books were read.
    pub progress: Vec<PartitionProgress>,
    /// The one bucket of all postings, where they are kept without theirs.
    bucket: Option<Bucket>,
    /// Some dead letters were removed, so that others than those of the books may be gone.
    letters_removed: bool,
    /// Its books moved while its records were counted, so that what differs may be on its way.
    is_moving: bool,
}

impl OwnedGroup {
    /// A group without tiers and dead letters.
    #[must_use]
    pub fn new(topic: Topic, group: GroupName) -> Self {
        Self {
            topic,
            group,
            tiers: Vec::new(),
            dead_letters: Vec::new(),
            dead_letter_reader: None,
        }
    }

    /// The name of the component, `group@topic`.
    #[must_use]
    pub fn name(&self) -> String {
        account_name(&self.topic, Some(&self.group)).0
    }

    fn has(&self, topic: &Topic, group: &GroupName) -> bool {
        let is = |(of, by): (&Topic, &GroupName)| of == topic && by == group;
        let mut letters = self.dead_letters.iter();
        let reader = self.dead_letter_reader.as_ref();
        is((&self.topic, &self.group))
            || self.tiers.iter().any(|(of, by)| is((of, by)))
            || reader.is_some_and(|reader| letters.any(|of| is((of, reader))))
    }

    /// The group on its topic, then those of the tiers.
    fn asked(&self) -> Vec<(GroupName, Topic)> {
        let main = (self.group.clone(), self.topic.clone());
        let tiers = self.tiers.iter();
        let tiers = tiers.map(|(topic, group)| (group.clone(), topic.clone()));
        std::iter::once(main).chain(tiers).collect()
    }

    /// The books of the group: what waits, and where its postings put the rest. `store` has the postings of
    /// the store. Where the log keeps no sums of its topics, waiting records are counted by offsets.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn account(
        &self,
        log: &dyn Log,
        marks: &dyn SettledMarks,
        store: &Books,
    ) -> Result<ComponentAccount, LogError> {
        let snapshots = log.group_books(&self.asked()).await?;
        let mut books = sum(&snapshots);
        if let Some(main) = snapshots.first().filter(|main| main.bucket.is_some()) {
            for partition in &main.partitions {
                let settled = settled_above(main, partition, marks).await?;
                let above: i64 = settled.iter().map(|(from, to)| to.0 - from.0).sum();
                let waits = Tally {
                    count: (partition.end.0 - partition.next.0 - above).max(0),
                    id_sum: 0,
                };
                let bucket = GroupSnapshot::EVERYTHING;
                books.move_tally(bucket, None, Some(Place::Queued), waits);
            }
        }
        books.merge(store);
        Ok(ComponentAccount {
            name: self.name(),
            kind: ComponentKind::Group,
            account: books.account(),
        })
    }

    /// Counts the records of the group in its topic, its tiers and among its dead letters, and puts that
    /// beside its books.
    ///
    /// The embedded log is counted at one cut. A broker has none, so that it is looked at again while its
    /// books move; differences that remain then are unverifiable.
    ///
    /// # Errors
    /// The log does not answer, or a record cannot be read.
    pub async fn audit(
        &self,
        log: &dyn Log,
        marks: &dyn SettledMarks,
    ) -> Result<OwnedAudit, LogError> {
        let asked = self.asked();
        let mut before = log.group_books(&asked).await?;
        let mut look = 1;
        loop {
            let mut audit = self.count(log, marks, &before).await?;
            let is_one_cut = before.iter().all(|snapshot| snapshot.bucket.is_none());
            // The parked events are in the store, which nobody has looked at yet.
            let found = audit.findings().0;
            let is_clean = found.iter().all(|found| found.place == Place::Parked);
            if is_one_cut || is_clean {
                return Ok(audit);
            }
            let after = log.group_books(&asked).await?;
            audit.is_moving = !same_books(&before, &after);
            if !audit.is_moving || look == LOOKS {
                return Ok(audit);
            }
            before = after;
            look += 1;
        }
    }

    async fn count(
        &self,
        log: &dyn Log,
        marks: &dyn SettledMarks,
        snapshots: &[GroupSnapshot],
    ) -> Result<OwnedAudit, LogError> {
        let bucket = snapshots.first().and_then(|main| main.bucket);
        let mut audit = OwnedAudit {
            name: self.name(),
            books: sum(snapshots),
            recount: Books::default(),
            unverifiable: 0,
            missing: Vec::new(),
            progress: snapshots
                .first()
                .map(|main| main.partitions.clone())
                .unwrap_or_default(),
            bucket,
            letters_removed: false,
            is_moving: false,
        };
        for (index, snapshot) in snapshots.iter().enumerate() {
            for partition in &snapshot.partitions {
                let settled = settled_above(snapshot, partition, marks).await?;
                let is_settled = |offset: Offset| {
                    let index = settled.partition_point(|(_, to)| *to <= offset);
                    settled.get(index).is_some_and(|(from, _)| *from <= offset)
                };
                let place = if index == 0 {
                    Place::Queued
                } else {
                    Place::Retrying
                };
                let mut marked = Tally::default();
                let range = (partition.next, partition.end);
                records(log, &partition.at, range, |stored, id| {
                    if is_settled(stored.offset) {
                        marked = marked.plus(Tally::of(id));
                    } else if index == 0 || self.owns(stored) {
                        audit.found(id, place.clone());
                    }
                })
                .await?;
                if index == 0 {
                    audit
                        .check_settled(log, snapshot, partition, marked)
                        .await?;
                }
            }
        }
        for letters in &self.dead_letters {
            self.count_letters(log, letters, &mut audit).await?;
        }
        if bucket.is_some() {
            // A broker keeps no sums of its topics: what waits there is what was found there.
            for (bucket, tally) in audit.recount.tallies(&Place::Queued) {
                let place = Some(Place::Queued);
                audit.books.move_tally(bucket, None, place, tally);
            }
        }
        Ok(audit)
    }

    async fn count_letters(
        &self,
        log: &dyn Log,
        letters: &Topic,
        audit: &mut OwnedAudit,
    ) -> Result<(), LogError> {
        let described = match log.describe(letters).await {
            Err(LogError::UnknownTopic { .. }) => return Ok(()),
            described => described?,
        };
        for partition in &described.partitions {
            audit.letters_removed |= partition.start > Offset(0);
            let at = TopicPartition {
                topic: letters.clone(),
                partition: partition.partition,
            };
            let range = (partition.start, partition.end);
            records(log, &at, range, |stored, id| {
                if self.owns(stored) {
                    audit.found(id, Place::DeadLettered);
                }
                for id in self.also_in(stored) {
                    audit.found(id, Place::DeadLettered);
                }
            })
            .await?;
        }
        Ok(())
    }

    /// The other events of this group that a dead letter [stands for](name::STANDS_FOR).
    pub fn also_in(&self, stored: &StoredRecord) -> impl Iterator<Item = EventId> {
        let headers = &stored.record.headers;
        let group = headers.get(name::GROUP);
        let is_ours = group.is_some_and(|group| group == self.group.as_str().as_bytes());
        let values = headers
            .iter()
            .filter(move |(of, _)| is_ours && *of == name::STANDS_FOR);
        let named = values.filter_map(|(_, value)| name::read_stands_for(value?));
        let own = named.filter(|(_, topic)| *topic == self.topic.as_str());
        own.map(|(id, _)| id)
    }

    /// Whether a record of a tier or a dead letter is of this group. Others share the topics.
    fn owns(&self, stored: &StoredRecord) -> bool {
        let headers = &stored.record.headers;
        let group = headers.get(name::GROUP);
        let input = headers.get(name::INPUT);
        group.is_some_and(|group| group == self.group.as_str().as_bytes())
            && input.is_none_or(|input| input == self.topic.as_str().as_bytes())
    }
}

impl OwnedAudit {
    /// Adds the store's part: its postings, and the events that were found parked in it.
    #[must_use]
    pub fn with_store(
        mut self,
        postings: &Books,
        parked: impl IntoIterator<Item = EventId>,
    ) -> Self {
        match self.bucket {
            None => self.books.merge(postings),
            Some(bucket) => fold_into(&mut self.books, bucket, postings),
        }
        for id in parked {
            self.found(id, Place::Parked);
        }
        self
    }

    /// The result, as an audit shows it.
    #[must_use]
    pub fn audited(mut self) -> Audited {
        let (mut missing, doubtful) = self.findings();
        self.unverifiable += doubtful;
        if self.is_moving {
            let counts = missing.drain(..).map(|one| one.count.unsigned_abs().max(1));
            self.unverifiable += counts.sum::<u64>();
        }
        // Nobody can count what arrived or is gone, so the books stand for it.
        let rows = self.books.rows().into_iter();
        let uncounted = rows.filter_map(|row| {
            let place: Place = row.column.parse().ok()?;
            let is_counted = is_counted(&place);
            let bucket: Bucket = row.bucket.parse().ok()?;
            let tally = self.books.tallies(&place).get(&bucket).copied();
            (!is_counted).then_some((bucket, place, tally?))
        });
        let uncounted: Vec<(Bucket, Place, Tally)> = uncounted.collect();
        for (bucket, place, tally) in uncounted {
            self.recount.move_tally(bucket, None, Some(place), tally);
        }
        let kind = ComponentKind::Group;
        let audited = Audited::new(self.name, kind, &self.books, &self.recount, missing);
        audited.unverifiable(self.unverifiable)
    }

    /// The differences between books and records in the log, and how many letters nobody can tell of.
    fn findings(&self) -> (Vec<Discrepancy>, u64) {
        let mut found = difference(&self.books, &self.recount);
        found.retain(|found| is_counted(&found.place));
        let is_doubtful = |found: &Discrepancy| {
            self.letters_removed && found.place == Place::DeadLettered && found.count > 0
        };
        let doubtful = found.iter().filter(|found| is_doubtful(found));
        let doubtful: u64 = doubtful.map(|found| found.count.unsigned_abs()).sum();
        found.retain(|found| !is_doubtful(found));
        let unread = pair_unread(&mut found);
        found.extend(self.missing.iter().cloned());
        (found, doubtful + unread)
    }

    fn found(&mut self, id: EventId, place: Place) {
        let bucket = self.bucket.unwrap_or_else(|| Bucket::of(id));
        self.recount
            .move_tally(bucket, None, Some(place), Tally::of(id));
    }

    /// Compares the settled records of a partition with its books, where the log keeps no other sums.
    async fn check_settled(
        &mut self,
        log: &dyn Log,
        snapshot: &GroupSnapshot,
        partition: &PartitionProgress,
        marked: Tally,
    ) -> Result<(), LogError> {
        let Some(settled) = &partition.settled else {
            return Ok(());
        };
        self.unverifiable += settled.earlier;
        let kept = u64::try_from(settled.tally.count).unwrap_or(0);
        if settled.base < partition.start {
            self.unverifiable += kept;
            return Ok(());
        }
        let mut counted = marked;
        let range = (settled.base, partition.next);
        records(log, &partition.at, range, |_, id| {
            counted = counted.plus(Tally::of(id));
        })
        .await?;
        let more = counted.minus(settled.tally);
        if snapshot.is_compacted && more.count < 0 {
            self.unverifiable += kept;
        } else if !more.is_zero() {
            let bucket = Bucket::Offsets {
                partition: partition.at.partition,
                first: settled.base,
                last: Offset(partition.next.0 - 1),
            };
            let (mut books, mut recount) = (Books::default(), Books::default());
            let place = Some(Place::Delivered);
            books.move_tally(bucket, None, place.clone(), settled.tally);
            recount.move_tally(bucket, None, place, counted);
            self.missing.extend(difference(&books, &recount));
        }
        Ok(())
    }
}

/// Whether the events of a place are found by a count.
fn is_counted(place: &Place) -> bool {
    match place {
        Place::Queued | Place::Retrying | Place::Parked | Place::DeadLettered => true,
        Place::InFlight | Place::Spilled | Place::Delivered | Place::Lost(_) => false,
    }
}

/// Takes records out that the log removed unread, and says how many they are. They were accepted under their minutes
/// and lost under their offsets, of which there may be more than records: nobody knows their ids any more.
fn pair_unread(found: &mut Vec<Discrepancy>) -> u64 {
    let is_lost = |one: &Discrepancy| {
        let is_range = matches!(one.bucket, Bucket::Offsets { .. });
        is_range && one.place == Place::Queued && one.count < 0
    };
    let lost = found.iter().filter(|one| is_lost(one));
    let lost: u64 = lost.map(|one| one.count.unsigned_abs()).sum();
    let mut left = i64::try_from(lost).unwrap_or(i64::MAX);
    let mut paired = 0;
    found.retain_mut(|one| {
        let count = if one.place == Place::Queued {
            one.count.clamp(0, left)
        } else {
            0
        };
        if count == 0 {
            return !is_lost(one);
        }
        left -= count;
        paired += count.unsigned_abs();
        one.count -= count;
        // The sum is that of several events by now.
        one.id = None;
        one.count > 0
    });
    paired
}

/// The books of all groups of a component: those of the first one, with the postings of the others.
fn sum(snapshots: &[GroupSnapshot]) -> Books {
    let mut snapshots = snapshots.iter();
    let main = snapshots.next();
    let mut books = main.map(|main| main.books.clone()).unwrap_or_default();
    for tier in snapshots {
        books.merge(&tier.posted);
        // A record that was lost of a tier was queued there, and retrying for the component.
        for (bucket, tally) in tier.posted.tallies(&Place::Queued) {
            let gone = Tally::default().minus(tally);
            books.move_tally(bucket, Some(Place::Retrying), Some(Place::Queued), gone);
        }
    }
    books
}

/// Adds books with all their buckets in one.
fn fold_into(books: &mut Books, bucket: Bucket, others: &Books) {
    for row in others.rows() {
        let (Ok(place), Ok(from)) = (row.column.parse::<Place>(), row.bucket.parse::<Bucket>())
        else {
            continue;
        };
        if let Some(tally) = others.tallies(&place).get(&from) {
            books.move_tally(bucket, None, Some(place), *tally);
        }
    }
}

/// Whether nothing was posted and committed in between.
fn same_books(before: &[GroupSnapshot], after: &[GroupSnapshot]) -> bool {
    let same = |(a, b): (&GroupSnapshot, &GroupSnapshot)| {
        let partitions = a.partitions.iter().zip(&b.partitions);
        let mut committed = partitions.map(|(a, b)| a.committed == b.committed);
        a.posted == b.posted && committed.all(|same| same)
    };
    before.iter().zip(after).all(same)
}

async fn settled_above(
    snapshot: &GroupSnapshot,
    partition: &PartitionProgress,
    marks: &dyn SettledMarks,
) -> Result<Vec<(Offset, Offset)>, LogError> {
    let Some(committed) = &partition.committed else {
        return Ok(Vec::new());
    };
    let group = &snapshot.group;
    let ranges = marks.settled_above(group, &partition.at, committed).await?;
    // Offsets outside of the partition, or below the committed one, are counted otherwise.
    let within = |(from, to): (Offset, Offset)| (from.max(partition.next), to.min(partition.end));
    let ranges = ranges.into_iter().map(within);
    let mut ranges: Vec<(Offset, Offset)> = ranges.filter(|(from, to)| from < to).collect();
    ranges.sort_unstable();
    // Ranges that touch become one, so that none is counted twice.
    ranges.dedup_by(|next, before| {
        let touches = next.0 <= before.1;
        if touches {
            before.1 = before.1.max(next.1);
        }
        touches
    });
    Ok(ranges)
}

/// Reads the records of a partition from one offset up to another.
async fn records(
    log: &dyn Log,
    at: &TopicPartition,
    (from, to): (Offset, Offset),
    mut each: impl FnMut(&StoredRecord, EventId) + Send,
) -> Result<(), LogError> {
    let mut from = from;
    while from < to {
        let batch = match log.read(Read::new(at.clone(), from)).await {
            Ok(batch) => batch,
            // It is missing in the count, and so it is named.
            Err(LogError::Damaged { to: behind, .. }) if behind > from => {
                from = behind;
                continue;
            }
            Err(LogError::OutOfRange { start, .. }) if start > from => {
                from = start;
                continue;
            }
            Err(error) => return Err(error),
        };
        for stored in batch.records.iter().filter(|stored| stored.offset < to) {
            each(stored, stored.event_id(log.cluster(), at));
        }
        if batch.next <= from {
            return Ok(());
        }
        from = batch.next;
    }
    Ok(())
}
