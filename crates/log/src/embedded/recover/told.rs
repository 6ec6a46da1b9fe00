//! What groups behind damage tell of those that were lost.

use std::collections::BTreeSet;

use tidegate_core::GroupName;

use crate::embedded::change::Change;
use crate::embedded::state::{LostCommit, State};

/// What groups behind damage tell of those that were lost.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Partitions of which it is known where they ended.
    pub(super) ends: BTreeSet<(u32, u32)>,
    /// What groups have committed again since.
    committed: BTreeSet<(GroupName, u32, u32)>,
}

impl Told {
    /// Groups were lost here.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// A group behind them. Gives the commits before which others may be lost.
    pub(super) fn take(&mut self, changes: &[Change], state: &State) -> Vec<LostCommit> {
        let mut commits = Vec::new();
        for change in changes {
            match change {
                Change::Ends { ends, .. } => {
                    let ends = ends
                        .iter()
                        .map(|(topic, partition, _)| (*topic, *partition));
                    self.ends.extend(ends);
                }
                Change::Chunk {
                    topic, partition, ..
                } => {
                    self.ends.insert((*topic, *partition));
                }
                Change::Offset {
                    group,
                    topic,
                    partition,
                    committed,
                    postings,
                } => {
                    let at = (group.clone(), *topic, *partition);
                    let reading = state.groups.get(group).and_then(|of| of.get(topic));
                    let from = reading.map_or(0, |reading| reading.needs(*partition as usize));
                    let next = committed.next.0;
                    if self.committed.insert(at) && next > from {
                        let posted = LostCommit::posted(postings);
                        commits.push(LostCommit {
                            group: group.clone(),
                            topic: *topic,
                            partition: *partition,
                            next,
                            events: next.abs_diff(from).saturating_sub(posted),
                        });
                    }
                }
                Change::Topic { .. }
                | Change::Register { .. }
                | Change::Skip { .. }
                | Change::Forget { .. }
                | Change::Start { .. }
                | Change::Switch { .. } => {}
            }
        }
        commits
    }
}
