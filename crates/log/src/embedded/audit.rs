//! Counts the log from its records and compares that with its books.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::{AuditFinding, Books, Bucket, Discrepancy, Place, Tally, difference};
use tidegate_core::env::Disk;
use tidegate_core::{EventId, GroupName, Offset, Topic};

use super::administration;
use super::chunk::{Chunk, minute_of};
use super::config::DeadLetterTopics;
use super::context::EmbeddedContext;
use super::files;
use super::manifest;
use super::recover;
use super::repair::DAMAGED;
use super::scan::{Scan, ScanItem};
use super::secret::LogSecret;
use super::segment::Minutes;
use super::state::{GroupProgress, LogState, PartitionState, TopicState, UnknownLoss};
use super::tally::{add_all, queue_all, queue_minutes};
use super::topic_books::{TopicBooks, topic_books};
use crate::error::LogError;
use crate::record::TopicPartition;

/// The audit of one component: a topic, or a group on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicAudit {
    /// The topic.
    pub topic: Topic,
    /// The group; none for the topic itself, all of whose records are queued.
    pub group: Option<GroupName>,
    /// The books, with what was removed.
    pub books: Books,
    /// The count of the records. Of a group they say what is queued, and which dead letters are in the
    /// topic for them; the rest nobody but the group can tell.
    pub recount: Books,
    /// Events that a group says it has put elsewhere and that nobody found there.
    pub unverifiable: u64,
    /// The events that the books have and the records do not, or the reverse.
    pub missing: Vec<Discrepancy>,
    /// Records that cannot be read.
    pub unreadable: u64,
}

impl TopicAudit {
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
/// Nothing is changed. A directory without a log gives nothing. Dead letters are not looked for.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn recount(disk: &dyn Disk, dir: &Path) -> Result<Vec<TopicAudit>, LogError> {
    match recover::look(disk, dir)? {
        Some(found) => count(disk, dir, &found.state, &DeadLetterTopics::new()),
        None => Ok(Vec::new()),
    }
}

/// The books of the log in a directory that nobody has open, without a look at a record. A directory without a
/// log gives nothing.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn books(disk: &dyn Disk, dir: &Path) -> Result<Vec<TopicBooks>, LogError> {
    let found = recover::look(disk, dir)?;
    Ok(found.map_or_else(Vec::new, |found| topic_books(&found.state)))
}

/// The content of a directory, counted in one look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryAudit {
    /// Its topics, and the groups on them.
    pub topics: Vec<TopicAudit>,
    /// The loss with the journal that is in no books.
    pub loss: Option<UnknownLoss>,
    /// Damage that by itself is no certain loss.
    pub findings: Vec<AuditFinding>,
    /// Bytes behind the last whole group that cannot be read: beside a process that writes, what it is
    /// writing; else a write that was cut, or damage to the last commit.
    pub torn: Option<AuditFinding>,
    /// The books of the groups that were forgotten, by topic. Nothing of them is left to be counted.
    pub forgotten: Vec<(Topic, Books)>,
}

/// Counts the log in a directory, as [`recount`] does, and says everything else that is not as it should be.
/// Dead letters are looked for in `letters`. Nothing is changed; none where there is no log.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn audit_directory(
    disk: &dyn Disk,
    dir: &Path,
    letters: &DeadLetterTopics,
) -> Result<Option<DirectoryAudit>, LogError> {
    let Some(found) = recover::look(disk, dir)? else {
        return Ok(None);
    };
    let findings = file_findings(disk, dir, &found.state, found.manifest.as_ref())?;
    let torn = found.torn.as_ref().map(|torn| {
        let (bytes, file, at) = (torn.bytes.len(), &torn.file, torn.at);
        let message = format!(
            "{bytes} bytes of `{file}` from byte {at} cannot be told from a write that was cut; they may \
             have been acknowledged"
        );
        AuditFinding::new("log.torn", message)
    });
    Ok(Some(DirectoryAudit {
        topics: count(disk, dir, &found.state, letters)?,
        loss: found.state.unknown_loss(),
        findings,
        torn,
        forgotten: administration::forgotten(&found.state),
    }))
}

/// Damage of files that is no missing record.
fn file_findings(
    disk: &dyn Disk,
    dir: &Path,
    state: &LogState,
    manifest: Option<&(&'static str, String)>,
) -> Result<Vec<AuditFinding>, LogError> {
    let mut findings = Vec::new();
    if let Some((file, why)) = manifest {
        let message = format!("`{file}` cannot be used: {why}; the other one of the two is used");
        findings.push(AuditFinding::new("log.manifest", message));
    }
    for (key, partition) in state.all() {
        let Some(at) = state.name(key) else {
            continue;
        };
        for segment in partition.segments.iter().filter(|s| !s.is_empty()) {
            let path = files::segment_path(dir, &at, segment);
            let scan = Scan::open(disk, &path, segment, state.secret)?;
            if let Some(scan) = scan
                && !scan.has_magic()?
            {
                let file = segment.name(key.1);
                let message = format!("{at}: `{file}` does not start with the header of a segment");
                findings.push(AuditFinding::new("log.segment", message));
            }
        }
    }
    Ok(findings)
}

/// The loss with the journal of a directory that is in no books: an audit that finds nothing else
/// proves nothing as long as there is any. `log repair` takes note of it.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn unknown_loss(disk: &dyn Disk, dir: &Path) -> Result<Option<UnknownLoss>, LogError> {
    let found = recover::look(disk, dir)?;
    Ok(found.and_then(|found| found.state.unknown_loss()))
}

/// A partition, as [`scan_topic`] has found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedPartition {
    /// Its first offset: retention has removed those before it.
    pub start: Offset,
    /// The time of the first record that could be read, in milliseconds.
    pub first_ms: Option<u64>,
    /// Whether compaction may have removed any record.
    pub is_compacted: bool,
}

/// Tells the event of every record of a topic that can be read, in a directory that nobody has open.
/// Nothing is changed. Gives nothing where there is no such topic.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn scan_topic(
    disk: &dyn Disk,
    dir: &Path,
    topic: &Topic,
    seen: &mut dyn FnMut(EventId),
) -> Result<Option<Vec<ScannedPartition>>, LogError> {
    let Some(found) = recover::look(disk, dir)? else {
        return Ok(None);
    };
    let state = &found.state;
    let Some((_, topic)) = state.topic(topic) else {
        return Ok(None);
    };
    let mut scanned = Vec::new();
    for (partition, p) in topic.partitions.iter().zip(0..) {
        let at = TopicPartition::new(topic.name.clone(), p);
        let mut first_ms = None;
        each_chunk((disk, dir, state.secret), &at, partition, &mut |chunk| {
            let Some(mut records) = chunk.records() else {
                return;
            };
            while let Ok(Some(stored)) = records.next_from(partition.start) {
                first_ms.get_or_insert(stored.record.timestamp_ms);
                seen(stored.event_id(&state.cluster, &at));
            }
        })?;
        scanned.push(ScannedPartition {
            start: Offset(partition.start),
            first_ms,
            is_compacted: topic.config.compact,
        });
    }
    Ok(Some(scanned))
}

/// Counts a running log at one cut. Groups that it is writing just now are behind the cut.
pub(super) fn live(context: &Arc<EmbeddedContext>) -> Result<DirectoryAudit, LogError> {
    // Pinned first: what the state speaks of is not removed from here on.
    let _pin = Pin::new(context);
    let cut = context.state().clone();
    let (disk, dir) = (&*context.disk, context.config.dir.as_path());
    let manifest = manifest::read(disk, dir)?.and_then(|found| found.damage);
    Ok(DirectoryAudit {
        topics: count(disk, dir, &cut, &context.config.dead_letters)?,
        loss: cut.unknown_loss(),
        findings: file_findings(disk, dir, &cut, manifest.as_ref())?,
        torn: None,
        forgotten: administration::forgotten(&cut),
    })
}

/// While it is held, no file is removed.
struct Pin<'a>(&'a EmbeddedContext);

impl<'a> Pin<'a> {
    fn new(context: &'a EmbeddedContext) -> Self {
        context.status().pins += 1;
        Self(context)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.status().pins -= 1;
        self.0.wake_maintenance.notify_one();
    }
}

pub(super) fn count(
    disk: &dyn Disk,
    dir: &Path,
    state: &LogState,
    letters: &DeadLetterTopics,
) -> Result<Vec<TopicAudit>, LogError> {
    let mut audited = Vec::new();
    let topics = state.topics.iter().zip(0..);
    for (topic, number) in topics.filter(|(topic, _)| !topic.is_traceless()) {
        // How far each group is in each partition: its queued records are those from there on.
        let groups: Vec<(&GroupName, &GroupProgress)> = state
            .groups
            .iter()
            .filter_map(|(group, by_topic)| Some((group, by_topic.get(&number)?)))
            .collect();
        let mut counting = Counting {
            disk,
            secret: state.secret,
            cluster: &state.cluster,
            all: BTreeMap::new(),
            queued: vec![BTreeMap::new(); groups.len()],
            unreadable: 0,
        };
        for (partition, p) in topic.partitions.iter().zip(0..) {
            let at = TopicPartition::new(topic.name.clone(), p);
            let needs: Vec<i64> = groups
                .iter()
                .map(|(_, progress)| progress.needs(usize::try_from(p).unwrap_or(0)))
                .collect();
            counting.partition(dir, &at, partition, &needs)?;
        }
        audited.push(counting.topic(topic));
        let dead = dead_letters(state, (topic, letters.get(&topic.name)), &groups);
        for (index, (group, progress)) in groups.iter().enumerate() {
            audited.push(counting.group(topic, (index, group, progress), &dead));
        }
    }
    Ok(audited)
}

/// Reads a partition chunk by chunk. Gives the number of records that cannot be read.
fn each_chunk(
    (disk, dir, secret): (&dyn Disk, &Path, LogSecret),
    at: &TopicPartition,
    partition: &PartitionState,
    visit: &mut dyn FnMut(&Chunk),
) -> Result<u64, LogError> {
    let start = partition.start;
    let mut unreadable = 0;
    for (from, to) in &partition.damaged {
        unreadable += to.abs_diff((*from).max(start));
    }
    for segment in partition.segments.iter().filter(|s| !s.is_empty()) {
        let path = files::segment_path(dir, at, segment);
        let Some(scan) = Scan::open(disk, &path, segment, secret)? else {
            let from = segment.base.max(start);
            unreadable += segment.end.abs_diff(from.min(segment.end));
            continue;
        };
        for seen in scan {
            match seen? {
                ScanItem::Chunk { chunk, .. } => visit(&chunk),
                ScanItem::Damage {
                    offsets: (from, to),
                    ..
                } => unreadable += to.abs_diff(from.max(start).min(to)),
            }
        }
    }
    for chunk in &partition.unflushed {
        visit(chunk);
    }
    Ok(unreadable)
}

struct Counting<'a> {
    disk: &'a dyn Disk,
    secret: LogSecret,
    cluster: &'a str,
    all: Minutes,
    /// The records that each group has still to read.
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
        let start = partition.start;
        let files = (self.disk, dir, self.secret);
        let unreadable = each_chunk(files, at, partition, &mut |chunk| {
            self.chunk(at, chunk, start, needs);
        })?;
        self.unreadable += unreadable;
        Ok(())
    }

    fn chunk(&mut self, at: &TopicPartition, chunk: &Chunk, start: i64, needs: &[i64]) {
        let Some(mut records) = chunk.records() else {
            return;
        };
        while let Ok(Some(stored)) = records.next_from(start) {
            let id = stored.event_id(self.cluster, at);
            let tally = [(minute_of(id), Tally::of(id))];
            add_all(&mut self.all, tally);
            for (queued, from) in self.queued.iter_mut().zip(needs) {
                if stored.offset.0 >= *from {
                    add_all(queued, tally);
                }
            }
        }
    }

    fn topic(&self, topic: &TopicState) -> TopicAudit {
        self.compare(topic, None, topic.books.clone(), &self.all)
    }

    /// The books of a group: everything that was in the topic since it was registered, as queued,
    /// and what was posted since.
    fn group(
        &self,
        topic: &TopicState,
        (index, group, progress): (usize, &GroupName, &GroupProgress),
        dead: &BTreeSet<Bucket>,
    ) -> TopicAudit {
        let books = group_books(topic, progress);
        let mut audited = self.compare(topic, Some(group.clone()), books, &self.queued[index]);
        for (bucket, tally) in audited.books.tallies(&Place::DeadLettered) {
            if dead.contains(&bucket) {
                let place = Some(Place::DeadLettered);
                audited.recount.move_tally(bucket, None, place, tally);
            }
        }
        let (books, found) = (audited.books.account(), audited.recount.account());
        let elsewhere = books.dead_lettered - found.dead_lettered
            + (books.in_flight + books.retrying + books.parked + books.spilled);
        audited.unverifiable = u64::try_from(elsewhere).unwrap_or(0);
        audited
    }

    /// Records say what is queued; what became of the others stands in the books alone.
    fn compare(
        &self,
        topic: &TopicState,
        group: Option<GroupName>,
        books: Books,
        counted: &Minutes,
    ) -> TopicAudit {
        let mut recount = Books::default();
        queue_minutes(&mut recount, counted.iter().map(|(m, t)| (*m, *t)));
        let mut missing = difference(&books, &recount);
        missing.retain(|missing| missing.place == Place::Queued);
        TopicAudit {
            topic: topic.name.clone(),
            group,
            missing,
            books,
            recount,
            unverifiable: 0,
            unreadable: self.unreadable,
        }
    }
}

/// The buckets in which the topics of dead letters were given exactly the events that the groups of a topic
/// gave up on: each of them, and nothing else.
fn dead_letters(
    state: &LogState,
    (topic, letters): (&TopicState, Option<&BTreeSet<Topic>>),
    groups: &[(&GroupName, &GroupProgress)],
) -> BTreeSet<Bucket> {
    let mut kept: BTreeMap<Bucket, Tally> = BTreeMap::new();
    let letters = letters.into_iter().flatten();
    // Dead letters in their own topic were not moved.
    let letters = letters.filter(|name| **name != topic.name);
    for (_, letters) in letters.filter_map(|name| state.topic(name)) {
        for (bucket, tally) in letters.books.tallies(&Place::Queued) {
            let sum = kept.entry(bucket).or_default();
            *sum = sum.plus(tally);
        }
    }
    let mut posted: BTreeMap<Bucket, Tally> = BTreeMap::new();
    for (_, progress) in groups {
        for (bucket, tally) in progress.posted.tallies(&Place::DeadLettered) {
            let sum = posted.entry(bucket).or_default();
            *sum = sum.plus(tally);
        }
    }
    let posted = posted.into_iter();
    let found = posted.filter(|(bucket, tally)| kept.get(bucket) == Some(tally));
    found.map(|(bucket, _)| bucket).collect()
}

/// The books of a group on a topic. Events that a repair posted as lost of the topic are
/// lost to the group only where it had not read them; those were posted for the group as well.
pub(super) fn group_books(topic: &TopicState, progress: &GroupProgress) -> Books {
    let mut books = Books::default();
    for place in [Place::Queued, Place::Lost(DAMAGED)] {
        queue_all(&mut books, topic.books.tallies(&place));
    }
    let before = progress.before.tallies(&Place::Queued).into_iter();
    let gone = before.map(|(bucket, tally)| (bucket, Tally::default().minus(tally)));
    queue_all(&mut books, gone);
    books.merge(&progress.posted);
    books
}
