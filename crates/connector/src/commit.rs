//! Commits: the progress of all partitions of a consumer, with its hand-offs, as one step.
//!
//! One commit is under way at a time. Records that settle meanwhile go with the next one. So commits are as
//! large as they must be and as early as they can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Bucket, LossReason, Place, Posting, postings};
use tidegate_core::env::Clock;
use tidegate_core::{EventId, GroupName, Offset};
use tidegate_log::{
    Append, Commit, Fence, Log, LogError, MAX_METADATA, OffsetCommit, Session, TopicPartition,
};

use crate::attempt::HandledRecord;
use crate::consumer::unwritten;
use crate::hop;
use crate::lanes::{PartitionWork, SettledRecord};
use crate::marks::{EncodedMarks, Ranges};
use crate::options::HandOff;
use crate::parked::{ParkedIn, ParkedStore, ProgressRow};
use crate::planted_bugs::{PlantedBug, is};
use crate::progress::{self, CommitNotes, NamedProgress};

/// Bytes of hand-offs in one commit; a single record may be larger.
const MAX_HAND_OFF_BYTES: usize = 8 * 1024 * 1024;

/// Whether hand-offs are part of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitScope {
    /// Everything that is settled.
    Everything,
    /// Only what writes nothing: a hand-off failed, and others need not wait for it.
    WithoutHandOffs,
}

/// The room that a commit has for records to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitRoom {
    pub(crate) bytes: usize,
    /// One record is written at a time, to find the one that the log refuses.
    pub(crate) is_alone: bool,
    /// Nothing is in the commit yet: a single record may be larger.
    is_empty: bool,
}

impl Default for CommitRoom {
    fn default() -> Self {
        Self {
            bytes: MAX_HAND_OFF_BYTES,
            is_alone: false,
            is_empty: true,
        }
    }
}

impl CommitRoom {
    /// Whether what a settled record writes is part of the commit.
    fn takes(&mut self, settled: &SettledRecord) -> bool {
        let size = settled.size();
        let fits = self.is_empty || (!self.is_alone && size <= self.bytes);
        if fits {
            self.bytes = self.bytes.saturating_sub(size);
            self.is_empty = false;
        }
        fits
    }

    /// Nothing more is part of it.
    fn close(&mut self) {
        (self.bytes, self.is_empty) = (0, false);
    }
}

/// The part of a commit that is about one partition.
#[derive(Debug)]
pub(crate) struct CommitPart {
    pub(crate) at: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) next: i64,
    pub(crate) text: String,
    pub(crate) taken: BTreeMap<i64, SettledRecord>,
    pub(crate) handled: Vec<HandledRecord>,
    /// Parked rows that leave by this commit.
    pub(crate) leaving: BTreeMap<i64, SettledRecord>,
    /// The progress in the store that it names.
    pub(crate) progress: Option<NamedProgress>,
}

/// A commit that is to be made.
#[derive(Debug)]
pub(crate) struct CommitPlan {
    pub(crate) parts: Vec<CommitPart>,
    pub(crate) commit: Commit,
    /// Progress that the store must have first.
    pub(crate) progress: Vec<(ParkedIn, ProgressRow)>,
    /// Partitions whose commit is another than before: one of them tells whether it was made.
    pub(crate) changed: BTreeSet<TopicPartition>,
}

impl CommitPlan {
    /// Everything that can be committed; none if that is nothing. Records come from `place`. With `is_idle`,
    /// offsets are committed that did not change.
    pub(crate) fn of<'a>(
        partitions: impl Iterator<Item = &'a mut PartitionWork>,
        place: &Place,
        scope: CommitScope,
        mut room: CommitRoom,
        is_idle: impl Fn(&PartitionWork) -> bool,
        mut new_id: impl FnMut() -> i64,
    ) -> Option<Self> {
        let mut commit = Commit::default();
        let mut parts = Vec::new();
        let mut progress = Vec::new();
        let mut changed = BTreeSet::new();
        for partition in partitions {
            let excluded = excluded(partition, scope, &mut room);
            let leaving = leaving(partition, scope, &mut room);
            let idle = is_idle(partition);
            let taken = take(partition, &excluded, leaving, idle, &mut new_id);
            let Some((part, row)) = taken else {
                continue;
            };
            progress.extend(row);
            let held = partition.committed.as_ref();
            if held.is_none_or(|(next, text)| *next != part.next || *text != part.text) {
                changed.insert(part.at.clone());
            }
            let settled = || part.taken.values().chain(part.leaving.values());
            let all = part.taken.iter().chain(&part.leaving);
            for (offset, settled) in all {
                commit.appends.extend(appends(partition, *offset, settled));
            }
            commit.offsets.push(OffsetCommit {
                at: part.at.clone(),
                fence: part.fence,
                next: Offset(part.next),
                metadata: part.text.clone(),
                postings: moves(settled(), &part.handled, place),
            });
            parts.push(part);
        }
        let is_something = !parts.is_empty();
        is_something.then_some(Self {
            parts,
            commit,
            progress,
            changed,
        })
    }

    /// The commit that passes records which the log has removed, up to `start`. Nothing of the partition is in hand.
    pub(crate) fn passing(
        partition: &PartitionWork,
        start: i64,
        reason: LossReason,
        mut new_id: impl FnMut() -> i64,
    ) -> Self {
        let (at, next) = (&partition.at, partition.tracker.next());
        let settled = partition.tracker.ahead();
        let CommitText { marks, row, .. } =
            text(partition, start, &settled, &BTreeMap::new(), &mut new_id);
        let posting = Posting {
            bucket: Bucket::Offsets {
                partition: at.partition,
                first: Offset(next),
                last: Offset(start - 1),
            },
            from: Some(Place::Queued),
            to: Some(Place::Lost(reason)),
            count: u64::try_from(partition.tracker.unsettled_below(start)).unwrap_or(0),
            id_sum: 0,
        };
        let passed = OffsetCommit {
            at: at.clone(),
            fence: partition.fence,
            next: Offset(start),
            metadata: marks.text,
            postings: vec![posting],
        };
        Self {
            parts: Vec::new(),
            commit: Commit {
                appends: Vec::new(),
                offsets: vec![passed],
            },
            progress: row.into_iter().collect(),
            changed: BTreeSet::from([at.clone()]),
        }
    }

    /// Whether it writes records.
    pub(crate) fn has_hand_offs(&self) -> bool {
        !self.commit.appends.is_empty()
    }
}

/// The records that are written for a settled one. Where a crash may leave them, each names what it is a copy of.
fn appends(
    partition: &PartitionWork,
    offset: i64,
    settled: &SettledRecord,
) -> impl Iterator<Item = Append> {
    let is_named = partition.leaves_copies && settled.is_handed_off();
    let state = is_named.then(|| hop::commit_state(partition.committed.as_ref()));
    settled.appends.iter().map(move |append| {
        let mut append = append.clone();
        if let Some(state) = &state {
            append.record = hop::as_copy(&append.record, &partition.at, offset, state);
        }
        append
    })
}

/// The hand-offs of a partition that are not part of the commit.
fn excluded(partition: &PartitionWork, scope: CommitScope, room: &mut CommitRoom) -> BTreeSet<i64> {
    let mut excluded = BTreeSet::new();
    let writing = partition.pending.iter();
    for (offset, settled) in writing.filter(|(_, settled)| !settled.appends.is_empty()) {
        if scope == CommitScope::WithoutHandOffs || !room.takes(settled) {
            excluded.insert(*offset);
            room.close();
        }
    }
    // Where keys are ordered, nothing settles before a record in front of it.
    let is_ordered = partition.is_ordered();
    if let Some(first) = excluded.first().copied().filter(|_| is_ordered) {
        excluded.extend(partition.pending.range(first..).map(|(offset, _)| *offset));
        let handled = partition.handled.iter().map(|done| done.offset);
        excluded.extend(handled.filter(|offset| *offset >= first));
    }
    excluded
}

/// The parked rows of a partition that leave by the commit.
fn leaving(
    partition: &mut PartitionWork,
    scope: CommitScope,
    room: &mut CommitRoom,
) -> BTreeMap<i64, SettledRecord> {
    let Some(park) = partition.park.as_mut() else {
        return BTreeMap::new();
    };
    park.take_leaving(|settled| scope == CommitScope::Everything && room.takes(settled))
}

/// Takes what can be committed out of a partition.
fn take(
    partition: &mut PartitionWork,
    excluded: &BTreeSet<i64>,
    leaving: BTreeMap<i64, SettledRecord>,
    is_idle: bool,
    new_id: &mut impl FnMut() -> i64,
) -> Option<(CommitPart, Option<(ParkedIn, ProgressRow)>)> {
    let reopened;
    let tracker = if excluded.is_empty() {
        &partition.tracker
    } else {
        let mut copy = partition.tracker.clone();
        for offset in excluded {
            copy.reopen(*offset);
        }
        reopened = copy;
        &reopened
    };
    let next = if is(PlantedBug::CommitBeforeHandling) {
        tracker.end()
    } else if is(PlantedBug::OffsetOffByOne) {
        tracker.end().min(tracker.next() + 1)
    } else if is(PlantedBug::CommitPastGap) {
        let ahead = tracker.ahead();
        ahead.last_key_value().map_or(tracker.next(), |(_, to)| *to)
    } else {
        tracker.next()
    };
    let CommitText {
        marks,
        progress,
        row,
    } = text(partition, next, &tracker.ahead(), &leaving, new_id);
    let held = partition.committed.as_ref();
    let is_known = held.is_some_and(|(held, text)| *held == next && *text == marks.text);
    // A group that has committed nothing yet and settled nothing has nothing to say.
    let is_untouched = held.is_none() && next == tracker.position() && marks.text.is_empty();
    if leaving.is_empty() && (is_known || is_untouched) && !(is_idle && held.is_some()) {
        return None;
    }
    let limit = marks.cut_at.unwrap_or(i64::MAX).max(next);
    let offsets: Vec<i64> = partition
        .pending
        .range(..limit)
        .map(|(offset, _)| *offset)
        .filter(|offset| !excluded.contains(offset))
        .collect();
    let taken = offsets
        .into_iter()
        .filter_map(|offset| Some((offset, partition.pending.remove(&offset)?)))
        .collect();
    let all = std::mem::take(&mut partition.handled);
    let (handled, later) = match limit == i64::MAX && excluded.is_empty() {
        true => (all, Vec::new()),
        false => all
            .into_iter()
            .partition(|done| done.offset < limit && !excluded.contains(&done.offset)),
    };
    partition.handled = later;
    let part = CommitPart {
        at: partition.at.clone(),
        fence: partition.fence,
        next,
        text: marks.text,
        taken,
        handled,
        leaving,
        progress,
    };
    Some((part, row))
}

/// The text of a commit, and the progress that it names.
struct CommitText {
    marks: EncodedMarks,
    progress: Option<NamedProgress>,
    /// A row that the store must have first.
    row: Option<(ParkedIn, ProgressRow)>,
}

/// Settled records go into the text. Those that do not fit are in the store's progress, if there is a store.
fn text(
    partition: &PartitionWork,
    next: i64,
    settled: &Ranges,
    leaving: &BTreeMap<i64, SettledRecord>,
    new_id: &mut impl FnMut() -> i64,
) -> CommitText {
    let at = &partition.at;
    let park = partition.park.as_ref();
    let mut notes = CommitNotes::default();
    notes
        .given_up
        .extend(park.iter().flat_map(|park| park.given_up.iter()));
    notes.given_up.extend(leaving.keys());
    let marks = progress::write(at, next, settled, &notes, MAX_METADATA);
    let (Some(park), true) = (park, marks.cut_at.is_some()) else {
        return CommitText {
            marks,
            progress: None,
            row: None,
        };
    };
    if let Some(known) = &park.progress {
        notes.progress = Some(known.name);
        let rest = progress::beyond(settled, &known.ranges);
        let marks = progress::write(at, next, &rest, &notes, MAX_METADATA);
        if marks.cut_at.is_none() {
            return CommitText {
                marks,
                progress: Some(known.clone()),
                row: None,
            };
        }
    }
    let (row, name) = progress::to_row(at, new_id(), next, settled);
    notes.progress = Some(name);
    let ranges = Arc::new(settled.clone());
    CommitText {
        marks: progress::write(at, next, &Ranges::new(), &notes, MAX_METADATA),
        progress: Some(NamedProgress { name, ranges }),
        row: Some((park.of.clone(), row)),
    }
}

/// The postings of settled records, and of those that were handled in `place`.
fn moves<'a>(
    settled: impl Iterator<Item = &'a SettledRecord>,
    handled: &[HandledRecord],
    place: &Place,
) -> Vec<Posting> {
    let mut by_move: BTreeMap<(Place, Place), Vec<EventId>> = BTreeMap::new();
    for settled in settled {
        if let Some(moved) = &settled.moved {
            by_move
                .entry(moved.clone())
                .or_default()
                .push(settled.event_id);
        }
    }
    let (from, to) = (place.clone(), Place::Delivered);
    let others = by_move
        .remove(&(from.clone(), to.clone()))
        .into_iter()
        .flatten();
    let delivered = handled.iter().map(|done| done.event_id).chain(others);
    let mut found = postings(delivered, Some(from), Some(to));
    let written = by_move
        .into_iter()
        .flat_map(|((from, to), ids)| postings(ids, Some(from), Some(to)));
    found.extend(written);
    found
}

/// The wait before asking again what is committed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Makes commits for one consumer.
#[derive(Clone)]
pub(crate) struct Committer {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) group: GroupName,
    pub(crate) hand_off: HandOff,
    /// The group of the binding, whose copies they are.
    pub(crate) owner: GroupName,
    /// Whether an append got no answer, so that some of its records may be there.
    pub(crate) is_in_doubt: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Option<Arc<dyn ParkedStore>>,
}

/// A commit that was not made.
#[derive(Debug)]
pub(crate) struct FailedCommit {
    pub(crate) error: LogError,
    /// Whether its hand-offs were written all the same, so that they must not be written again.
    pub(crate) is_handed_off: bool,
}

impl Committer {
    /// Makes a commit, and finds out whether it was made when no answer came.
    pub(crate) async fn make(
        self,
        mut commit: Commit,
        progress: Vec<(ParkedIn, ProgressRow)>,
        changed: BTreeSet<TopicPartition>,
    ) -> Result<(), FailedCommit> {
        let mut is_handed_off = false;
        if let Some(store) = &self.store {
            for (of, row) in &progress {
                let written = store.put_progress(of, row).await;
                written.map_err(|error| FailedCommit {
                    error: LogError::Remote {
                        process: "the store".to_owned(),
                        code: error.code(),
                        why: error.to_string(),
                    },
                    is_handed_off,
                })?;
            }
        }
        let is_early = self.hand_off == HandOff::AtLeastOnce || is(PlantedBug::ZombieCommit);
        if is_early && !commit.appends.is_empty() {
            let written = self.write(std::mem::take(&mut commit.appends)).await;
            written.map_err(|error| FailedCommit {
                error,
                is_handed_off: false,
            })?;
            is_handed_off = true;
        }
        let wanted: Vec<(TopicPartition, Offset, String)> = commit
            .offsets
            .iter()
            .filter(|offset| changed.contains(&offset.at))
            .map(|offset| (offset.at.clone(), offset.next, offset.metadata.clone()))
            .collect();
        let error = match self.session.commit(commit).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let is_unknown = matches!(
            error,
            LogError::OutcomeUnknown { .. } | LogError::PrecedingCommitFailed { .. }
        );
        if is_unknown && self.was_made(&wanted).await {
            return Ok(());
        }
        Err(FailedCommit {
            error,
            is_handed_off,
        })
    }

    /// Writes records before their offsets.
    async fn write(&self, mut appends: Vec<Append>) -> Result<(), LogError> {
        if self.is_in_doubt {
            appends = unwritten(&*self.log, &self.owner, appends).await?;
        }
        if !appends.is_empty() {
            self.log.append(appends).await?;
        }
        Ok(())
    }

    /// Whether the log holds what was to be committed. All of it is there, or nothing: one partition tells.
    async fn was_made(&self, wanted: &[(TopicPartition, Offset, String)]) -> bool {
        let partitions: Vec<TopicPartition> = wanted.iter().map(|(at, _, _)| at.clone()).collect();
        loop {
            match self.log.committed(&self.group, &partitions).await {
                Ok(found) => {
                    return found.iter().zip(wanted).any(|(found, (_, next, text))| {
                        found
                            .as_ref()
                            .is_some_and(|found| found.next == *next && found.metadata == *text)
                    });
                }
                Err(LogError::Closed | LogError::Stopped { .. }) => return false,
                Err(_) => self.clock.sleep(ASK_AGAIN).await,
            }
        }
    }
}
