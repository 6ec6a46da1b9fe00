//! Copies of records, where a hand-off is written before its offset is committed (`hand-off: at-least-once`).
//!
//! A crash in between leaves a copy of a record that comes again. Each copy names the record that it was made of, and
//! what the group had committed by then. So the next owner, which begins at that commit, finds the copy and settles
//! the record by it. An append without an answer is looked for before it is made again. Where one hand-off left
//! several copies all the same, the first one in its partition counts.
//!
//! **Invariant:** a record is settled by a copy only if key, value and event id are the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::env::{BoxFuture, Clock};
use tidegate_core::{EventId, GroupName, Offset, Topic};
use tidegate_log::{Append, Fence, Log, LogError, Read, Record, StoredRecord, TopicPartition};

use super::{Consumer, SessionEnd};
use crate::hop;

/// Copies that are remembered for a partition, and records that are looked at to find them.
const MAX_COPIES: usize = 10_000;
/// The pause before the log is asked again for copies.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The copies that concern one partition.
#[derive(Debug, Default)]
pub(crate) struct KnownCopies {
    /// The first of the copies that one hand-off wrote, in a partition of a tier.
    firsts: BTreeMap<String, i64>,
    order: VecDeque<String>,
    /// Records of the partition that were handed off, and whose offset was not committed.
    written: BTreeMap<i64, WrittenCopy>,
}

/// A copy of a record whose offset was not committed.
#[derive(Debug)]
struct WrittenCopy {
    place: Place,
    event_id: Option<EventId>,
    /// Of key and value, which a hand-off leaves as they are.
    sum: u32,
}

impl KnownCopies {
    /// A copy lies at this offset.
    fn note(&mut self, name: &str, offset: i64) {
        if self.firsts.contains_key(name) {
            return;
        }
        self.firsts.insert(name.to_owned(), offset);
        self.order.push_back(name.to_owned());
        if self.order.len() > MAX_COPIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.firsts.remove(&oldest);
        }
    }

    /// Whether the same hand-off wrote another copy before this offset.
    pub(super) fn is_second(&self, name: &str, offset: i64) -> bool {
        self.firsts.get(name).is_some_and(|first| *first < offset)
    }

    /// Where the copy of a record lies that was handed off before, if it was.
    pub(super) fn take_written(
        &mut self,
        offset: i64,
        event_id: EventId,
        record: &Record,
    ) -> Option<Place> {
        let written = self.written.remove(&offset)?;
        let is_same = written.event_id == Some(event_id) && written.sum == hop::content_sum(record);
        is_same.then_some(written.place)
    }

    /// Whether nothing is known that concerns the records of the main topic.
    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Records as they come in, settled or not.
    pub(super) fn note_all(&mut self, records: &[StoredRecord], group: &GroupName) {
        for stored in records {
            if let Some(name) = hop::copy_name(&stored.record, group) {
                self.note(&name, stored.offset.0);
            }
        }
    }
}

/// Where copies are looked for when a partition is assigned.
struct CopySearch {
    at: TopicPartition,
    position: i64,
    /// The last commit of the group there, in short.
    state: String,
    group: GroupName,
    /// Whether the partition holds copies itself.
    is_tier: bool,
    /// The topics that its records are handed off to.
    targets: Vec<(Topic, Place)>,
}

impl CopySearch {
    async fn run(&self, log: &dyn Log) -> Result<KnownCopies, LogError> {
        let mut known = KnownCopies::default();
        if self.is_tier {
            let below = last_before(self.position);
            let note =
                |stored: &StoredRecord| known.note_all(std::slice::from_ref(stored), &self.group);
            each_record(log, &self.at, below, note).await?;
        }
        for (topic, place) in &self.targets {
            let at = TopicPartition::new(topic.clone(), self.at.partition.0);
            let Some(last) = last_of(log, &at).await? else {
                continue;
            };
            let note = |stored: &StoredRecord| {
                let record = &stored.record;
                if let Some(offset) = hop::source_of(record, &self.group, &self.at, &self.state) {
                    let copy = WrittenCopy {
                        place: place.clone(),
                        event_id: record.headers.event_id(),
                        sum: hop::content_sum(record),
                    };
                    known.written.insert(offset, copy);
                }
            };
            each_record(log, &at, last, note).await?;
        }
        Ok(known)
    }

    /// Asks until the log answers.
    async fn run_until_answered(
        self,
        log: Arc<dyn Log>,
        clock: Arc<dyn Clock>,
    ) -> Result<KnownCopies, LogError> {
        loop {
            match self.run(&*log).await {
                Err(error) if !matches!(error, LogError::Closed | LogError::Stopped { .. }) => {
                    tracing::warn!(at = %self.at, %error, "could not look for copies; retrying");
                    clock.sleep(LOOK_AGAIN).await;
                }
                found => return found,
            }
        }
    }
}

fn last_before(end: i64) -> Range<i64> {
    let count = i64::try_from(MAX_COPIES).unwrap_or(i64::MAX);
    end.saturating_sub(count).max(0)..end
}

/// The last offsets of a partition; none if its topic does not exist.
async fn last_of(log: &dyn Log, at: &TopicPartition) -> Result<Option<Range<i64>>, LogError> {
    let described = match log.describe(&at.topic).await {
        Err(LogError::UnknownTopic { .. }) => return Ok(None),
        described => described?,
    };
    let mut partitions = described.partitions.iter();
    let found = partitions.find(|found| found.partition == at.partition);
    Ok(found.map(|found| last_before(found.end.0)))
}

/// Reads the records in a range of a partition.
async fn each_record(
    log: &dyn Log,
    at: &TopicPartition,
    range: Range<i64>,
    mut each: impl FnMut(&StoredRecord) + Send,
) -> Result<(), LogError> {
    let mut from = range.start;
    while from < range.end {
        let batch = match log.read(Read::new(at.clone(), Offset(from))).await {
            Ok(batch) => batch,
            Err(LogError::Damaged { to: behind, .. }) if behind.0 > from => {
                from = behind.0;
                continue;
            }
            Err(LogError::OutOfRange { start, .. }) if start.0 > from => {
                from = start.0;
                continue;
            }
            Err(LogError::OutOfRange { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let within = batch.records.iter();
        within
            .filter(|stored| stored.offset.0 < range.end)
            .for_each(&mut each);
        if batch.next.0 <= from {
            return Ok(());
        }
        from = batch.next.0;
    }
    Ok(())
}

/// Those of the records that do not lie in their topics yet: an append before this one may have written some.
pub(crate) async fn unwritten(
    log: &dyn Log,
    group: &GroupName,
    mut appends: Vec<Append>,
) -> Result<Vec<Append>, LogError> {
    let place = |append: &Append| {
        hop::copy_name(&append.record, group)?;
        Some(TopicPartition::new(
            append.topic.clone(),
            append.partition?.0,
        ))
    };
    let places: BTreeSet<TopicPartition> = appends.iter().filter_map(place).collect();
    for at in places {
        let Some(last) = last_of(log, &at).await? else {
            continue;
        };
        let mut written = BTreeSet::new();
        let note = |stored: &StoredRecord| written.extend(hop::copy_name(&stored.record, group));
        each_record(log, &at, last, note).await?;
        appends.retain(|append| {
            let name = hop::copy_name(&append.record, group);
            place(append).as_ref() != Some(&at) || name.is_none_or(|name| !written.contains(&name))
        });
    }
    Ok(appends)
}

/// A search for copies on its way.
pub(super) struct SearchUnderWay {
    at: TopicPartition,
    fence: Fence,
    future: BoxFuture<'static, Result<KnownCopies, LogError>>,
}

/// The outcome of the search under way; never without one.
pub(super) async fn searched(
    search: &mut Option<SearchUnderWay>,
) -> (TopicPartition, Fence, Result<KnownCopies, LogError>) {
    let found = match search {
        Some(under_way) => under_way.future.as_mut().await,
        None => std::future::pending().await,
    };
    match search.take() {
        Some(under_way) => (under_way.at, under_way.fence, found),
        None => std::future::pending().await,
    }
}

impl Consumer {
    /// Looks for copies of the next partition that waits for that.
    pub(super) fn begin_search(&mut self) {
        if self.search.is_some() {
            return;
        }
        let mut partitions = self.partitions.values();
        let Some(partition) = partitions.find(|found| found.is_searching) else {
            return;
        };
        let binding = &self.binding;
        let own = usize::try_from(self.seat.tier.0.saturating_sub(1)).unwrap_or(usize::MAX);
        let tiers = binding.tier_topics.iter().skip(own).cloned();
        let targets = tiers.map(|topic| (topic, Place::Retrying));
        let letters = (binding.dlt_topic.clone(), Place::DeadLettered);
        let search = CopySearch {
            at: partition.at.clone(),
            position: partition.tracker.position(),
            state: hop::commit_state(partition.committed.as_ref()),
            group: binding.options.group.clone(),
            is_tier: self.seat.tier.0 > 0,
            targets: targets.chain([letters]).collect(),
        };
        let (log, clock) = (Arc::clone(&binding.log), Arc::clone(&binding.clock));
        self.search = Some(SearchUnderWay {
            at: partition.at.clone(),
            fence: partition.fence,
            future: Box::pin(search.run_until_answered(log, clock)),
        });
    }

    /// The copies that concern a partition are known: its records may come in.
    pub(super) fn on_searched(
        &mut self,
        at: &TopicPartition,
        fence: Fence,
        found: Result<KnownCopies, LogError>,
    ) -> Option<SessionEnd> {
        let found = match found {
            Ok(found) => found,
            Err(error) => return Some(SessionEnd::Lost(error)),
        };
        let partition = self.partitions.get_mut(at);
        let partition = partition.filter(|partition| partition.fence == fence)?;
        partition.copies = found;
        partition.is_searching = false;
        if partition.is_open() {
            for batch in std::mem::take(&mut partition.early) {
                self.on_records(fence, batch);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c24_the_first_copy_of_a_hand_off_counts() {
        let name = |n: usize| format!("orders-0@{n}@-@5");
        let mut copies = KnownCopies::default();
        copies.note(&name(0), 10);
        copies.note(&name(0), 12);
        assert!(!copies.is_second(&name(0), 10), "it may come again");
        assert!(copies.is_second(&name(0), 12));
        assert!(!copies.is_second(&name(1), 12));
        for n in 1..MAX_COPIES {
            copies.note(&name(n), 12 + n as i64);
        }
        assert!(copies.is_second(&name(0), 99_999), "so many are remembered");
        copies.note(&name(MAX_COPIES), 99_998);
        assert!(
            !copies.is_second(&name(0), 99_999),
            "the oldest is forgotten"
        );
        assert!(copies.is_second(&name(1), 99_999));
        assert_eq!(
            (copies.firsts.len(), copies.order.len()),
            (MAX_COPIES, MAX_COPIES)
        );
    }
}
