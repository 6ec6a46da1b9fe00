//! Evidence of lost groups, from the groups behind the damage.

use std::collections::BTreeSet;

use tidegate_core::GroupName;

use crate::embedded::change::{LogChange, PartitionKey};
use crate::embedded::state::{LogState, LostCommit};

/// Evidence of lost groups, from the groups behind the damage.
#[derive(Debug, Default)]
pub(super) struct GapEvidence {
    /// Partitions of which it is known where they ended.
    pub(super) ends: BTreeSet<PartitionKey>,
    /// The partitions of which groups have committed again since.
    committed: BTreeSet<(GroupName, PartitionKey)>,
}

impl GapEvidence {
    /// Groups were lost here.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// A group behind them. Gives the commits before which others may be lost.
    pub(super) fn take(&mut self, changes: &[LogChange], state: &LogState) -> Vec<LostCommit> {
        let mut commits = Vec::new();
        for change in changes {
            match change {
                LogChange::EndOffsets { ends, .. } => {
                    self.ends.extend(ends.iter().map(|(at, _)| *at));
                }
                LogChange::Chunk { at, .. } => {
                    self.ends.insert(*at);
                }
                LogChange::Offset {
                    group,
                    at,
                    committed,
                    postings,
                } => {
                    let progress = state.groups.get(group).and_then(|of| of.get(&at.0));
                    let from = progress.map_or(0, |progress| progress.needs(at.1 as usize));
                    let next = committed.next.0;
                    if self.committed.insert((group.clone(), *at)) && next > from {
                        let passed = (from, next);
                        commits.push(LostCommit::new(group.clone(), *at, passed, postings));
                    }
                }
                LogChange::Topic { .. }
                | LogChange::Register { .. }
                | LogChange::Skip { .. }
                | LogChange::Forget { .. }
                | LogChange::Start { .. }
                | LogChange::Switch { .. } => {}
            }
        }
        commits
    }
}
