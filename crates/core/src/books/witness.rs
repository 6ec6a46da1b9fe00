//! A witness: the events that components had accepted at some time, kept where the components are not.
//!
//! Files that agree with each other prove nothing about what was removed together with its books: a whole
//! directory, or a directory that was replaced by an older copy. The number of accepted events never falls,
//! so an earlier number that is higher than the one of today proves a loss.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Books, Bucket, ComponentKind, Place, Tally, difference};
use crate::{EventId, Offset, Partition};

/// The events that a component accepted, by bucket: numbers that never fall.
///
/// ```
/// use tidegate_core::EventId;
/// use tidegate_core::books::{AcceptedEvents, Books, ComponentKind, Place};
/// let mut books = Books::default();
/// books.move_one(EventId::from_u128(7), None, Some(Place::Queued));
/// let accepted = AcceptedEvents::of("orders", ComponentKind::Topic, &books);
/// assert_eq!(accepted.count(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedEvents {
    /// The name of the component.
    pub name: String,
    /// Its kind.
    pub kind: ComponentKind,
    /// How many events of each bucket, and the sum of their ids.
    #[serde(with = "figures")]
    pub figures: BTreeMap<Bucket, Tally>,
}

impl AcceptedEvents {
    /// The events that these books have as accepted. Those that a logger has in memory alone are left out: a
    /// crash takes them out of its books.
    #[must_use]
    pub fn of(name: &str, kind: ComponentKind, books: &Books) -> Self {
        let mut figures = BTreeMap::new();
        for (bucket, page) in books.pages() {
            let mut tally = page.accepted;
            if kind == ComponentKind::Logger {
                for place in [Place::InFlight, Place::Retrying] {
                    let in_memory = page.places.get(&place).copied().unwrap_or_default();
                    tally = tally.minus(in_memory);
                }
            }
            if !tally.is_zero() {
                figures.insert(*bucket, tally);
            }
        }
        let name = name.to_owned();
        Self {
            name,
            kind,
            figures,
        }
    }

    /// The records of a topic whose broker keeps no sums of ids: every offset below the end of a partition was
    /// given out once. Groups that come and go, and what the broker removes, change none of it.
    #[must_use]
    pub fn of_partitions(topic: &str, ends: impl IntoIterator<Item = (Partition, Offset)>) -> Self {
        let figures = ends.into_iter().filter(|(_, end)| end.0 > 0);
        let figures = figures.map(|(partition, end)| {
            let tally = Tally {
                count: end.0,
                id_sum: 0,
            };
            (whole(partition), tally)
        });
        Self {
            name: topic.to_owned(),
            kind: ComponentKind::Topic,
            figures: figures.collect(),
        }
    }

    /// How many events these are.
    #[must_use]
    pub fn count(&self) -> u64 {
        let sum: i64 = self.figures.values().map(|tally| tally.count).sum();
        u64::try_from(sum).unwrap_or(0)
    }

    /// The same with old buckets folded into coarser ones, see [`Bucket::folded`].
    #[must_use]
    pub fn folded(self, now_ms: u64) -> Self {
        let mut figures = BTreeMap::new();
        for (bucket, tally) in self.figures {
            let sum: &mut Tally = figures.entry(bucket.folded(now_ms)).or_default();
            *sum = sum.plus(tally);
        }
        Self { figures, ..self }
    }

    fn is_same_component(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name
    }

    fn books(&self) -> Books {
        let mut books = Books::default();
        for (bucket, tally) in &self.figures {
            books.move_tally(*bucket, None, Some(Place::Queued), *tally);
        }
        books
    }
}

/// The bucket of all offsets of a partition.
fn whole(partition: Partition) -> Bucket {
    Bucket::Offsets {
        partition,
        first: Offset(0),
        last: Offset(i64::MAX),
    }
}

/// How the accepted events of a component changed in a way that no running component can change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WitnessChange {
    /// The component is not there any more.
    Gone,
    /// It accepted fewer events than it had accepted before.
    Shrank,
    /// It accepted as many events as before, and not the same ones.
    Replaced,
}

/// Events that a witness knows of and a component does not know any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessLoss {
    /// The name of the component.
    pub component: String,
    /// Its kind.
    pub kind: ComponentKind,
    /// The change of its numbers.
    pub change: WitnessChange,
    /// The bucket of the events; of a partition, the offsets that are gone.
    pub bucket: Bucket,
    /// How many; at least one where events were replaced.
    pub count: u64,
    /// Which event it is, where the sums tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
}

/// The accepted events of an earlier time beside those of today: empty if nothing is lost.
///
/// Growth is no finding. Events that retention, a purge or settling moves or removes stay accepted, so they are
/// no finding either.
#[must_use]
pub fn witness_losses(earlier: &[AcceptedEvents], now: &[AcceptedEvents]) -> Vec<WitnessLoss> {
    let mut losses = Vec::new();
    for before in earlier {
        let found = now.iter().find(|after| after.is_same_component(before));
        let nothing = AcceptedEvents {
            figures: BTreeMap::new(),
            ..before.clone()
        };
        compare(before, found.unwrap_or(&nothing), &mut losses);
    }
    losses
}

fn compare(before: &AcceptedEvents, after: &AcceptedEvents, losses: &mut Vec<WitnessLoss>) {
    let gaps = difference(&before.books(), &after.books()).into_iter();
    for gap in gaps.filter(|gap| gap.count >= 0) {
        let is_replaced = gap.count == 0;
        // A line without an id is counted under one that follows from its offset. It changes with the file.
        if is_replaced && is_birth_unknown(gap.bucket) {
            continue;
        }
        let count = gap.count.unsigned_abs().max(1);
        losses.push(WitnessLoss {
            component: before.name.clone(),
            kind: before.kind,
            change: match (after.figures.is_empty(), is_replaced) {
                (true, _) => WitnessChange::Gone,
                (false, true) => WitnessChange::Replaced,
                (false, false) => WitnessChange::Shrank,
            },
            bucket: gone_offsets(before, gap.bucket, gap.count),
            count,
            id: gap
                .id
                .filter(|_| !matches!(gap.bucket, Bucket::Offsets { .. })),
        });
    }
}

/// Of a partition the last offsets are gone.
fn gone_offsets(before: &AcceptedEvents, bucket: Bucket, count: i64) -> Bucket {
    match (bucket, before.figures.get(&bucket)) {
        (Bucket::Offsets { partition, .. }, Some(tally)) => Bucket::Offsets {
            partition,
            first: Offset(tally.count - count),
            last: Offset(tally.count - 1),
        },
        (bucket, _) => bucket,
    }
}

/// Whether a bucket has the events whose ids do not tell when they were born.
fn is_birth_unknown(bucket: Bucket) -> bool {
    matches!(bucket, Bucket::Minute(0) | Bucket::Hour(0) | Bucket::Day(0))
}

/// The next witness: what is known now, and earlier components that nobody looked at this time.
#[must_use]
pub fn next_witness(
    earlier: &[AcceptedEvents],
    now: Vec<AcceptedEvents>,
    is_looked_at: impl Fn(&AcceptedEvents) -> bool,
) -> Vec<AcceptedEvents> {
    let carried = earlier.iter().filter(|before| {
        let is_known = now.iter().any(|after| after.is_same_component(before));
        !is_known && !is_looked_at(before)
    });
    let carried: Vec<AcceptedEvents> = carried.cloned().collect();
    let known = now.into_iter().filter(|after| !after.figures.is_empty());
    let mut next: Vec<AcceptedEvents> = known.chain(carried).collect();
    next.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    next
}

/// Figures as they are written down: bucket, number, sum of the ids in hex.
mod figures {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Bucket, Tally};

    #[derive(Serialize, Deserialize)]
    struct Figure {
        #[serde(rename = "b")]
        bucket: Bucket,
        #[serde(rename = "n")]
        count: i64,
        #[serde(rename = "s")]
        id_sum: String,
    }

    pub(super) fn serialize<S: Serializer>(
        figures: &BTreeMap<Bucket, Tally>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(figures.iter().map(|(bucket, tally)| Figure {
            bucket: *bucket,
            count: tally.count,
            id_sum: format!("{:x}", tally.id_sum),
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Bucket, Tally>, D::Error> {
        let mut figures = BTreeMap::new();
        for figure in Vec::<Figure>::deserialize(deserializer)? {
            let id_sum = u128::from_str_radix(&figure.id_sum, 16);
            let tally = Tally {
                count: figure.count,
                id_sum: id_sum.map_err(serde::de::Error::custom)?,
            };
            let sum: &mut Tally = figures.entry(figure.bucket).or_default();
            *sum = sum.plus(tally);
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;
    const DAY_MS: u64 = 86_400_000;
    const BORN_MS: u64 = 1_700_000_000_000;

    fn id(n: u64) -> EventId {
        EventId::from_u128((u128::from(BORN_MS) << 80) | (7 << 76) | (0b10 << 62) | u128::from(n))
    }

    fn books(places: &[(u64, Place)]) -> Books {
        let mut books = Books::default();
        for (n, place) in places {
            books.move_one(id(*n), None, Some(place.clone()));
        }
        books
    }

    fn topic(ids: &[u64]) -> AcceptedEvents {
        let places: Vec<_> = ids.iter().map(|n| (*n, Place::Queued)).collect();
        AcceptedEvents::of("orders", ComponentKind::Topic, &books(&places))
    }

    fn losses(before: &AcceptedEvents, after: &AcceptedEvents) -> Vec<(WitnessChange, u64)> {
        let found = witness_losses(std::slice::from_ref(before), std::slice::from_ref(after));
        found.iter().map(|one| (one.change, one.count)).collect()
    }

    #[test]
    fn more_events_are_no_finding_and_fewer_are_named() {
        assert_eq!(losses(&topic(&[1, 2]), &topic(&[1, 2, 3])), []);
        assert_eq!(losses(&topic(&[]), &topic(&[1])), []);
        let found = witness_losses(&[topic(&[1, 2, 3])], &[topic(&[1, 3])]);
        assert_eq!(found.len(), 1);
        let one = &found[0];
        assert_eq!((one.change, one.count), (WitnessChange::Shrank, 1));
        assert_eq!(one.id, Some(id(2)));
        let found = witness_losses(&[topic(&[1, 2, 3])], &[topic(&[1])]);
        assert_eq!((found[0].count, found[0].id), (2, None));
    }

    #[test]
    fn an_old_copy_that_took_other_events_since_is_found() {
        let found = losses(&topic(&[1, 2]), &topic(&[1, 9]));
        assert_eq!(found, [(WitnessChange::Replaced, 1)]);
    }

    #[test]
    fn a_component_that_is_gone_is_found_with_all_its_events() {
        let other = AcceptedEvents {
            name: "payments".to_owned(),
            ..topic(&[1])
        };
        let found = witness_losses(&[topic(&[1, 2])], &[other]);
        assert_eq!((found[0].change, found[0].count), (WitnessChange::Gone, 2));
        assert_eq!(witness_losses(&[topic(&[])], &[]), []);
        assert_eq!(
            losses(&topic(&[1]), &topic(&[])),
            [(WitnessChange::Gone, 1)]
        );
    }

    #[test]
    fn settling_purges_and_retention_are_no_finding() {
        let accepted = |books: &Books| AcceptedEvents::of("queue", ComponentKind::Queue, books);
        let mut books = books(&[
            (1, Place::Queued),
            (2, Place::Queued),
            (3, Place::DeadLettered),
        ]);
        let before = accepted(&books);
        books.move_one(id(1), Some(Place::Queued), Some(Place::Delivered));
        books.move_one(id(1), Some(Place::Delivered), None);
        let purged = Place::Lost(super::super::LossReason::PURGED);
        books.move_one(id(3), Some(Place::DeadLettered), Some(purged));
        assert_eq!(losses(&before, &accepted(&books)), []);
    }

    #[test]
    fn events_in_the_memory_of_a_logger_are_not_witnessed_because_a_crash_takes_them() {
        let accepted = |books: &Books| AcceptedEvents::of("logger:a", ComponentKind::Logger, books);
        let mut books = books(&[
            (1, Place::Spilled),
            (2, Place::InFlight),
            (3, Place::Retrying),
            (4, Place::Delivered),
        ]);
        let before = accepted(&books);
        assert_eq!(before.count(), 2);
        books.forget(&Place::InFlight);
        books.forget(&Place::Retrying);
        assert_eq!(losses(&before, &accepted(&books)), []);
        // Only a logger keeps events in memory.
        books.move_one(id(5), None, Some(Place::Retrying));
        let queue = AcceptedEvents::of("queue", ComponentKind::Queue, &books);
        assert_eq!(queue.count(), 3);
    }

    #[test]
    fn witnesses_that_were_folded_at_different_times_are_compared_alike() {
        let (before, after) = (topic(&[1, 2]), topic(&[1, 2, 3]));
        for (fold_before, fold_after) in [(0, 2), (2, 0), (2, 60), (60, 2)] {
            let before = before.clone().folded(BORN_MS + fold_before * DAY_MS);
            let fold = BORN_MS + fold_after * DAY_MS;
            assert_eq!(losses(&before, &after.clone().folded(fold)), []);
            let short = topic(&[1]).folded(fold);
            let found = witness_losses(&[before], &[short]);
            assert_eq!((found[0].count, found[0].id), (1, Some(id(2))));
        }
    }

    #[test]
    fn events_without_a_time_of_birth_are_compared_by_number_alone() {
        let foreign = |numbers: &[u64]| {
            let mut books = Books::default();
            for n in numbers {
                let id = EventId::of_bytes(*n, b"a line without an id");
                books.move_one(id, None, Some(Place::Spilled));
            }
            AcceptedEvents::of("logger:a", ComponentKind::Logger, &books)
        };
        assert_eq!(
            foreign(&[1]).figures.keys().next(),
            Some(&Bucket::Minute(0))
        );
        assert_eq!(losses(&foreign(&[1, 2]), &foreign(&[1, 7])), []);
        let folded = foreign(&[1, 7]).folded(BORN_MS);
        assert_eq!(losses(&foreign(&[1, 2]), &folded), []);
        let shrank = [(WitnessChange::Shrank, 1)];
        assert_eq!(losses(&foreign(&[1, 2]), &foreign(&[7])), shrank);
    }

    #[test]
    fn partitions_of_a_broker_are_compared_by_their_ends() {
        let ends = |ends: [i64; 2]| {
            let ends = ends.into_iter().zip(0..);
            AcceptedEvents::of_partitions("t", ends.map(|(end, p)| (Partition(p), Offset(end))))
        };
        assert_eq!(losses(&ends([5, 0]), &ends([9, 1])), []);
        let found = witness_losses(&[ends([5, 9])], &[ends([5, 7])]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].id), (2, None));
        assert_eq!(found[0].bucket.to_string(), "p1:7-8");
        // One record less is no event that its offsets could name.
        assert_eq!(witness_losses(&[ends([5, 9])], &[ends([5, 8])])[0].id, None);
    }

    #[test]
    fn a_component_that_nobody_looked_at_is_carried_over() {
        let other = AcceptedEvents {
            name: "payments".to_owned(),
            ..topic(&[1])
        };
        let before = [topic(&[1]), other];
        let names = |looked_at: &str| -> Vec<String> {
            let now = vec![topic(&[1, 2])];
            let next = next_witness(&before, now, |one| one.name == looked_at);
            assert_eq!(next[0].count(), 2);
            next.into_iter().map(|one| one.name).collect()
        };
        assert_eq!(names("orders"), ["orders", "payments"]);
        assert_eq!(names("payments"), ["orders"]);
    }

    #[test]
    fn a_witness_reads_back_from_what_it_wrote() {
        let minute = BORN_MS / MINUTE_MS;
        let written = serde_json::to_string(&topic(&[1])).unwrap();
        let start =
            format!(r#"{{"name":"orders","kind":"topic","figures":[{{"b":"m{minute}","n":1,"s":"#);
        assert!(written.starts_with(&start), "{written}");
        let read: AcceptedEvents = serde_json::from_str(&written).unwrap();
        assert_eq!(read, topic(&[1]));
        let broken = written.replace(r#""s":""#, r#""s":"x"#);
        assert!(serde_json::from_str::<AcceptedEvents>(&broken).is_err());
    }
}
