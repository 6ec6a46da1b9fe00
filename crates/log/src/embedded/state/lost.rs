//! What was lost with a part of the journal, as far as no books can tell it.

use std::collections::BTreeSet;

use tidegate_core::GroupName;
use tidegate_core::books::Posting;

use super::State;

/// Something that was lost with a part of the journal, and that no books can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Doubt {
    /// What it is.
    pub what: String,
    /// How many events it is at least; or fewer, where some of them may be among records that were found
    /// in segments.
    pub events: u64,
}

impl Doubt {
    /// Something that may have held an event, or many.
    pub(in crate::embedded) fn new(what: String) -> Self {
        Self { what, events: 1 }
    }
}

/// The first commit of a group behind groups that were lost: what it passed and did not post may have
/// been posted by those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::embedded) struct Unposted {
    pub(in crate::embedded) group: GroupName,
    pub(in crate::embedded) topic: u32,
    pub(in crate::embedded) partition: u32,
    /// What the group had committed before, and what it has now.
    pub(in crate::embedded) from: i64,
    pub(in crate::embedded) to: i64,
    /// What it posted with that.
    pub(in crate::embedded) postings: Vec<Posting>,
}

impl State {
    /// Takes note of a doubt, once.
    pub(in crate::embedded) fn doubt(&mut self, doubt: Doubt) {
        if !self.doubts.contains(&doubt) {
            self.doubts.push(doubt);
        }
    }

    /// Leaves the segments that are still written to as they are: what lies in their files behind what is
    /// known of them may be all that is left of records. What comes next goes to other files.
    pub(in crate::embedded) fn leave_segments(&mut self) {
        for partition in self
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
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
        self.said.saturating_sub(self.given)
    }

    /// Some offsets were given to records that are lost, and nobody can say in which partition: no
    /// partition gives them again, but those of which it is known where they ended.
    pub(in crate::embedded) fn step_over(&mut self, known: &BTreeSet<(u32, u32)>) {
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
        self.count_given();
        self.said = self.given;
    }

    /// Counts the offsets that all partitions have given.
    pub(in crate::embedded) fn count_given(&mut self) {
        let ends = self
            .all()
            .map(|(.., partition)| partition.end.unsigned_abs());
        self.given = ends.sum();
    }
}
