//! Evidence of lost groups, from the groups behind the damage.

use std::collections::BTreeSet;

use tidegate_core::GroupName;
use tidegate_core::books::Posting;

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
                } => commits.extend(self.note_commit(
                    state,
                    (group, *at),
                    committed.next.0,
                    postings,
                )),
                LogChange::Seek {
                    group,
                    at,
                    next,
                    posted,
                    ..
                } => commits.extend(self.note_commit(state, (group, *at), *next, posted)),
                LogChange::Topic { .. }
                | LogChange::Register { .. }
                | LogChange::Skip { .. }
                | LogChange::Forget { .. }
                | LogChange::RemoveTopic { .. }
                | LogChange::Start { .. }
                | LogChange::Switch { .. } => {}
            }
        }
        commits
    }

    /// A group has committed, for the first time since groups were lost. Gives what it may have settled with them.
    fn note_commit(
        &mut self,
        state: &LogState,
        (group, at): (&GroupName, PartitionKey),
        next: i64,
        postings: &[Posting],
    ) -> Option<LostCommit> {
        let progress = state.groups.get(group).and_then(|of| of.get(&at.0));
        let from = progress.map_or(0, |progress| progress.needs(at.1 as usize));
        let is_first = self.committed.insert((group.clone(), at));
        (is_first && next > from)
            .then(|| LostCommit::new(group.clone(), at, (from, next), postings))
    }
}
