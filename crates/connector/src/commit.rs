//! Commits: the progress of all partitions of a consumer, with its hand-offs, as one step.
//!
//! One commit is under way at a time. Records that settle meanwhile go with the next one. So commits are as
//! large as they must be and as early as they can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Place, Posting, postings};
use tidegate_core::env::Clock;
use tidegate_core::{EventId, GroupName, Offset};
use tidegate_log::{
    Append, Commit, Fence, Log, LogError, MAX_METADATA, OffsetCommit, Session, TopicPartition,
};

use crate::lanes::{PartitionWork, SettledRecord};
use crate::marks;
use crate::options::HandOff;

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

/// The part of a commit that is about one partition.
#[derive(Debug)]
pub(crate) struct CommitPart {
    pub(crate) at: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) next: i64,
    pub(crate) text: String,
    pub(crate) taken: BTreeMap<i64, SettledRecord>,
}

/// A commit that is to be made.
#[derive(Debug)]
pub(crate) struct CommitPlan {
    pub(crate) parts: Vec<CommitPart>,
    pub(crate) commit: Commit,
}

impl CommitPlan {
    /// Everything that can be committed; none if that is nothing. With `is_idle`, offsets are committed that
    /// did not change.
    pub(crate) fn of<'a>(
        partitions: impl Iterator<Item = &'a mut PartitionWork>,
        scope: CommitScope,
        is_idle: impl Fn(&PartitionWork) -> bool,
    ) -> Option<Self> {
        let mut commit = Commit::default();
        let mut parts = Vec::new();
        let mut room = MAX_HAND_OFF_BYTES;
        for partition in partitions {
            let excluded = excluded(partition, scope, &mut room, commit.appends.is_empty());
            let Some(part) = take(partition, &excluded, is_idle(partition)) else {
                continue;
            };
            let taken = part.taken.values();
            commit
                .appends
                .extend(taken.flat_map(|settled| settled.appends.iter().cloned()));
            commit.offsets.push(OffsetCommit {
                at: part.at.clone(),
                fence: part.fence,
                next: Offset(part.next),
                metadata: part.text.clone(),
                postings: moves(part.taken.values()),
            });
            parts.push(part);
        }
        let is_something = !parts.is_empty();
        is_something.then_some(Self { parts, commit })
    }

    /// Whether it writes records.
    pub(crate) fn has_hand_offs(&self) -> bool {
        !self.commit.appends.is_empty()
    }
}

/// The hand-offs of a partition that are not part of the commit.
fn excluded(
    partition: &PartitionWork,
    scope: CommitScope,
    room: &mut usize,
    is_first: bool,
) -> BTreeSet<i64> {
    let mut excluded = BTreeSet::new();
    let mut is_first = is_first;
    for (offset, settled) in &partition.pending {
        if settled.appends.is_empty() {
            continue;
        }
        let size: usize = settled
            .appends
            .iter()
            .map(|append| append.record.size())
            .sum();
        let fits = size <= *room || is_first;
        if scope == CommitScope::WithoutHandOffs || !fits {
            excluded.insert(*offset);
            *room = 0;
        } else {
            *room = room.saturating_sub(size);
            is_first = false;
        }
    }
    excluded
}

/// Takes what can be committed out of a partition.
fn take(
    partition: &mut PartitionWork,
    excluded: &BTreeSet<i64>,
    is_idle: bool,
) -> Option<CommitPart> {
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
    let next = tracker.next();
    let marks = marks::encode(&partition.at, next, &tracker.ahead(), MAX_METADATA);
    let held = partition.committed.as_ref();
    let is_known = held.is_some_and(|(held, text)| *held == next && *text == marks.text);
    // A group that has committed nothing yet and settled nothing has nothing to say.
    let is_untouched = held.is_none() && next == tracker.position() && marks.text.is_empty();
    if (is_known || is_untouched) && !(is_idle && held.is_some()) {
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
    Some(CommitPart {
        at: partition.at.clone(),
        fence: partition.fence,
        next,
        text: marks.text,
        taken,
    })
}

/// The postings of settled records.
fn moves<'a>(settled: impl Iterator<Item = &'a SettledRecord>) -> Vec<Posting> {
    let mut by_move: BTreeMap<(Place, Place), Vec<EventId>> = BTreeMap::new();
    for settled in settled {
        if let Some(moved) = &settled.moved {
            by_move
                .entry(moved.clone())
                .or_default()
                .push(settled.event_id);
        }
    }
    let written = by_move
        .into_iter()
        .flat_map(|((from, to), ids)| postings(ids, Some(from), Some(to)));
    written.collect()
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
    pub(crate) clock: Arc<dyn Clock>,
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
    pub(crate) async fn make(self, mut commit: Commit) -> Result<(), FailedCommit> {
        let mut is_handed_off = false;
        if self.hand_off == HandOff::AtLeastOnce && !commit.appends.is_empty() {
            let appends: Vec<Append> = std::mem::take(&mut commit.appends);
            let written = self.log.append(appends).await;
            written.map_err(|error| FailedCommit {
                error,
                is_handed_off: false,
            })?;
            is_handed_off = true;
        }
        let wanted: Vec<(TopicPartition, Offset, String)> = commit
            .offsets
            .iter()
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
