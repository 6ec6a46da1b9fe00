//! The loss with parts of the journal, as far as no books can tell it.

use std::collections::BTreeSet;
use std::fmt;

use tidegate_core::GroupName;
use tidegate_core::books::{Place, Posting};

use super::LogState;
use crate::embedded::change::PartitionKey;
use crate::record::TopicPartition;

/// A part of the journal that was acknowledged and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDamage {
    /// The name of the file; empty where an earlier version wrote down nothing but `why`.
    pub file: String,
    /// Where it begins.
    pub at: u64,
    /// The sequences that are lost: the first, and the one behind the last; the same twice where it is
    /// unknown whether there were any.
    pub sequences: (u64, u64),
    /// How many events it held at least that are in no books; or fewer, where some of them may be among
    /// records that were found in segments.
    pub events: u64,
    /// The reason.
    pub why: String,
}

impl fmt::Display for JournalDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file.is_empty() {
            return f.write_str(&self.why);
        }
        let (first, behind) = self.sequences;
        match behind.saturating_sub(first) {
            0 => write!(f, "commit groups from {first} on may be lost")?,
            1 => write!(f, "commit group {first} is lost")?,
            _ => write!(f, "commit groups {first} to {} are lost", behind - 1)?,
        }
        write!(f, " (`{}` at byte {}): {}", self.file, self.at, self.why)
    }
}

/// The loss with the journal that is in no books, all of it together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLoss {
    /// Groups of the journal that are known to be lost.
    pub groups: u64,
    /// How many events it is at least.
    pub events: u64,
    /// The partitions that are known to have lost something: records, or a commit of a group.
    pub partitions: Vec<TopicPartition>,
    /// Where it was.
    pub damage: Vec<JournalDamage>,
}

/// Places that are named one by one.
const NAMED: usize = 5;

impl fmt::Display for UnknownLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.groups {
            0 => f.write_str("commit groups may be lost")?,
            1 => f.write_str("1 commit group is lost")?,
            groups => write!(f, "{groups} commit groups are lost")?,
        }
        let events = if self.events == 1 { "event" } else { "events" };
        write!(f, ", with at least {} {events}", self.events)?;
        f.write_str("; commits and changes of topics and groups in them are undone")?;
        if !self.partitions.is_empty() {
            let names: Vec<_> = self.partitions.iter().map(ToString::to_string).collect();
            write!(f, "; partitions: {}", names.join(", "))?;
        }
        for damage in self.damage.iter().take(NAMED) {
            write!(f, "; {damage}")?;
        }
        match self.damage.len().checked_sub(NAMED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "; and {more} more places"),
        }
    }
}

/// The first commit of a group behind a part of the journal that was lost. The lost part may have settled
/// what this commit passed without a posting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::embedded) struct LostCommit {
    pub(in crate::embedded) group: GroupName,
    pub(in crate::embedded) at: PartitionKey,
    /// The offset that the group has committed with it.
    pub(in crate::embedded) next: i64,
    /// How many events it passed without a posting.
    pub(in crate::embedded) events: u64,
}

impl LostCommit {
    /// A commit that passed these offsets, and took events out of the queue with these postings.
    pub(in crate::embedded) fn new(
        group: GroupName,
        at: PartitionKey,
        (from, next): (i64, i64),
        postings: &[Posting],
    ) -> Self {
        let queued = Some(Place::Queued);
        let taken = postings.iter().filter(|posting| posting.from == queued);
        let posted: u64 = taken.map(|posting| posting.count).sum();
        Self {
            group,
            at,
            next,
            events: next.abs_diff(from).saturating_sub(posted),
        }
    }
}

impl LogState {
    /// Takes note of a damaged part of the journal, once.
    pub(in crate::embedded) fn note_damage(&mut self, damage: &JournalDamage) {
        if !self.journal_damage.contains(damage) {
            self.journal_damage.push(damage.clone());
        }
    }

    /// Takes note of commits, each once.
    pub(in crate::embedded) fn note_commits(&mut self, commits: Vec<LostCommit>) {
        for commit in commits {
            if !self.lost_commits.contains(&commit) {
                self.lost_commits.push(commit);
            }
        }
    }

    /// The loss with the journal that is in no books; none once a repair took note of it.
    pub(in crate::embedded) fn unknown_loss(&self) -> Option<UnknownLoss> {
        let damage = self.journal_damage.clone();
        let of_commits = self.lost_commits.iter();
        let of_commits = of_commits.filter_map(|lost| self.name(lost.at));
        let of_records = self.topics.iter().flat_map(|topic| {
            let partitions = topic.holes().map(|hole| hole.partition.0);
            partitions.map(|partition| TopicPartition::new(topic.name.clone(), partition))
        });
        let partitions: BTreeSet<TopicPartition> = of_commits.chain(of_records).collect();
        (!damage.is_empty()).then(|| UnknownLoss {
            groups: damage.iter().map(|d| d.sequences.1 - d.sequences.0).sum(),
            events: damage.iter().map(|d| d.events).sum(),
            partitions: partitions.into_iter().collect(),
            damage,
        })
    }

    /// Leaves the segments that are still written to as they are: what lies in their files behind what is
    /// known of them may be all that is left of records. The next chunks go to other files.
    pub(in crate::embedded) fn leave_segments(&mut self) {
        let topics = self.topics.iter_mut();
        for partition in topics.flat_map(|topic| &mut topic.partitions) {
            if let Some(last) = partition.segments.last_mut() {
                last.is_sealed = true;
            }
            if let Some(empty) = partition.segments.pop_if(|last| last.is_empty()) {
                self.used = self.used.saturating_sub(empty.len);
            }
        }
    }

    /// How many offsets were given that no partition has.
    pub(in crate::embedded) fn unplaced(&self) -> u64 {
        self.offsets_reported.saturating_sub(self.offsets_assigned)
    }

    /// Some offsets were given to records that are lost, and their partition is unknown: no partition
    /// gives them again, but those of which it is known where they ended.
    pub(in crate::embedded) fn skip_offsets(&mut self, known: &BTreeSet<PartitionKey>) {
        let lost = i64::try_from(self.unplaced()).unwrap_or(i64::MAX);
        for (topic, number) in self.topics.iter_mut().zip(0..) {
            for (partition, p) in topic.partitions.iter_mut().zip(0..) {
                if !known.contains(&(number, p)) {
                    let end = partition.end.saturating_add(lost);
                    partition.damaged.push((partition.end, end));
                    partition.end = end;
                }
            }
        }
        self.count_assigned_offsets();
        self.offsets_reported = self.offsets_assigned;
    }

    /// Counts the offsets that all partitions have given.
    pub(in crate::embedded) fn count_assigned_offsets(&mut self) {
        let ends = self.all().map(|(_, p)| p.end.unsigned_abs());
        self.offsets_assigned = ends.sum();
    }
}
