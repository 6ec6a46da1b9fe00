//! Counts the log from its records and compares that with its books.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::{Books, Bucket, Discrepancy, Place, Tally, difference};
use tidegate_core::env::{Disk, OpenMode};
use tidegate_core::{GroupName, Topic};

use super::chunk::{Head, Records, minute_of};
use super::files::{self, Doing};
use super::hub::Hub;
use super::recover;
use super::repair::DAMAGED;
use super::scan::{Scan, Seen};
use super::state::{PartitionState, Reading, State, TopicState};
use crate::error::LogError;
use crate::record::TopicPartition;

/// What was found about one component: a topic, or a group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audited {
    /// The topic.
    pub topic: Topic,
    /// The group; none for the topic itself, all of whose records are queued.
    pub group: Option<GroupName>,
    /// The books, with what was removed.
    pub books: Books,
    /// What the records say. Of a group they say what is queued; the rest is as it was posted.
    pub recount: Books,
    /// What the books have and the records do not, or the reverse.
    pub missing: Vec<Discrepancy>,
    /// Records that cannot be read.
    pub unreadable: u64,
}

impl Audited {
    /// How many events are missing.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        let counts = self.missing.iter();
        counts
            .map(|missing| missing.count.unsigned_abs().max(1))
            .sum()
    }
}

/// Counts the log in a directory that nobody has open, or as of some moment if somebody has.
/// Nothing is changed. A directory without a log gives nothing.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn recount(disk: &dyn Disk, dir: &Path) -> Result<Vec<Audited>, LogError> {
    match recover::look(disk, dir)? {
        Some(found) => count(disk, dir, &found.state),
        None => Ok(Vec::new()),
    }
}

/// Counts a running log at one cut.
pub(super) fn live(hub: &Arc<Hub>) -> Result<Vec<Audited>, LogError> {
    // Pinned first: what the state speaks of is not removed from here on.
    let _pin = Pin::new(hub);
    let cut = hub.state().clone();
    count(&*hub.disk, &hub.config.dir, &cut)
}

/// While it is held, no file is removed.
struct Pin<'a>(&'a Hub);

impl<'a> Pin<'a> {
    fn new(hub: &'a Hub) -> Self {
        hub.status().pins += 1;
        Self(hub)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.status().pins -= 1;
        self.0.keeper_bell.notify_one();
    }
}

pub(super) fn count(disk: &dyn Disk, dir: &Path, state: &State) -> Result<Vec<Audited>, LogError> {
    let mut audited = Vec::new();
    for (topic, number) in state.topics.iter().zip(0..) {
        // How far each group is in each partition: its queued records are those from there on.
        let groups: Vec<(&GroupName, &Reading)> = state
            .groups
            .iter()
            .filter_map(|(group, readings)| Some((group, readings.get(&number)?)))
            .collect();
        let mut counting = Counting {
            disk,
            cluster: &state.cluster,
            all: BTreeMap::new(),
            queued: vec![BTreeMap::new(); groups.len()],
            unreadable: 0,
        };
        for (partition, p) in topic.partitions.iter().zip(0..) {
            let at = TopicPartition::new(topic.name.clone(), p);
            let needs: Vec<i64> = groups
                .iter()
                .map(|(_, reading)| reading.needs(usize::try_from(p).unwrap_or(0)))
                .collect();
            counting.partition(dir, &at, partition, &needs)?;
        }
        audited.push(counting.topic(topic));
        for (index, (group, reading)) in groups.iter().enumerate() {
            audited.push(counting.group(topic, index, group, reading));
        }
    }
    Ok(audited)
}

type Minutes = BTreeMap<u64, Tally>;

struct Counting<'a> {
    disk: &'a dyn Disk,
    cluster: &'a str,
    all: Minutes,
    /// What each group has still to read.
    queued: Vec<Minutes>,
    unreadable: u64,
}

impl Counting<'_> {
    fn partition(
        &mut self,
        dir: &Path,
        at: &TopicPartition,
        partition: &PartitionState,
        needs: &[i64],
    ) -> Result<(), LogError> {
        let number = u32::try_from(at.partition.0).unwrap_or(0);
        for (from, to) in &partition.damaged {
            self.unreadable += to.abs_diff((*from).max(partition.start));
        }
        for segment in partition
            .segments
            .iter()
            .filter(|segment| !segment.is_empty())
        {
            let path = files::topic_dir(dir, &at.topic).join(segment.name(number));
            let file = match self.disk.open(&path, OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let from = segment.base.max(partition.start);
                    self.unreadable += segment.end.abs_diff(from.min(segment.end));
                    continue;
                }
                opened => opened.doing("open", &path)?,
            };
            let mut scan = Scan::whole(segment);
            let mut expected = segment.base;
            while let Some(seen) = scan.next(&*file, &path)? {
                match seen {
                    Seen::Chunk { head, bytes, .. } => {
                        expected = head.end();
                        self.chunk(at, &head, &bytes, partition.start, needs);
                    }
                    Seen::Damage { held, next, .. } => {
                        let (from, to) = held.unwrap_or((expected, next.unwrap_or(segment.end)));
                        self.unreadable += to.abs_diff(from.max(partition.start).min(to));
                    }
                }
            }
        }
        for fresh in &partition.fresh {
            self.chunk(at, &fresh.head, &fresh.bytes, partition.start, needs);
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        at: &TopicPartition,
        head: &Head,
        bytes: &bytes::Bytes,
        start: i64,
        needs: &[i64],
    ) {
        let Some(body) = head.body(bytes) else {
            return;
        };
        let mut records = Records::new(head, body);
        while let Ok(Some(stored)) = records.next_from(start) {
            let id = stored.event_id(self.cluster, at);
            let minute = minute_of(id);
            let add = |minutes: &mut Minutes| {
                let sum = minutes.entry(minute).or_default();
                *sum = sum.plus(Tally::of(id));
            };
            add(&mut self.all);
            for (queued, from) in self.queued.iter_mut().zip(needs) {
                if stored.offset.0 >= *from {
                    add(queued);
                }
            }
        }
    }

    fn topic(&self, topic: &TopicState) -> Audited {
        self.compare(topic, None, topic.books.clone(), &self.all)
    }

    /// The books of a group: everything that was in the topic since it was registered, as queued,
    /// and what was posted since.
    fn group(
        &self,
        topic: &TopicState,
        index: usize,
        group: &GroupName,
        reading: &Reading,
    ) -> Audited {
        let books = group_books(topic, reading);
        self.compare(topic, Some(group.clone()), books, &self.queued[index])
    }

    /// Records say what is queued; what became of the others stands in the books alone.
    fn compare(
        &self,
        topic: &TopicState,
        group: Option<GroupName>,
        books: Books,
        counted: &Minutes,
    ) -> Audited {
        let mut recount = queued(counted);
        let is_posted = |column: &str| {
            let place = column.parse::<Place>();
            place.is_ok_and(|place| place != Place::Queued)
        };
        let rows = books.rows().into_iter();
        let posted: Vec<_> = rows.filter(|row| is_posted(&row.column)).collect();
        recount.merge(&Books::from_rows(&posted).unwrap_or_default());
        Audited {
            topic: topic.name.clone(),
            group,
            missing: difference(&books, &recount),
            books,
            recount,
            unreadable: self.unreadable,
        }
    }
}

/// The books of a group on a topic. What a repair posted as lost of the topic is lost to the group
/// only where it had not read it; that was posted for the group as well.
pub(super) fn group_books(topic: &TopicState, reading: &Reading) -> Books {
    let mut books = Books::default();
    for place in [Place::Queued, Place::Lost(DAMAGED)] {
        for (bucket, tally) in topic.books.tallies(&place) {
            books.move_tally(bucket, None, Some(Place::Queued), tally);
        }
    }
    for (bucket, tally) in reading.before.tallies(&Place::Queued) {
        let gone = Tally::default().minus(tally);
        books.move_tally(bucket, None, Some(Place::Queued), gone);
    }
    books.merge(&reading.posted);
    books
}

fn queued(minutes: &Minutes) -> Books {
    let mut books = Books::default();
    for (minute, tally) in minutes {
        books.move_tally(Bucket::Minute(*minute), None, Some(Place::Queued), *tally);
    }
    books
}
