//! Evidence of lost groups, from the groups behind the damage.

use std::collections::BTreeSet;

use tidegate_core::GroupName;

use crate::embedded::change::LogChange;
use crate::embedded::state::{LogState, LostCommit};

/// Evidence of lost groups, from the groups behind the damage.
#[derive(Debug, Default)]
pub(super) struct GapEvidence {
    /// Partitions of which it is known where they ended.
    pub(super) ends: BTreeSet<(u32, u32)>,
    /// What groups have committed again since.
    committed: BTreeSet<(GroupName, u32, u32)>,
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
                    let ends = ends
                        .iter()
                        .map(|(topic, partition, _)| (*topic, *partition));
                    self.ends.extend(ends);
                }
                LogChange::Chunk {
                    topic, partition, ..
                } => {
                    self.ends.insert((*topic, *partition));
                }
                LogChange::Offset {
                    group,
                    topic,
                    partition,
                    committed,
                    postings,
                } => {
                    let at = (group.clone(), *topic, *partition);
                    let progress = state.groups.get(group).and_then(|of| of.get(topic));
                    let from = progress.map_or(0, |progress| progress.needs(*partition as usize));
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
