//! What groups behind damage tell of those that were lost.

use std::collections::BTreeSet;

use tidegate_core::GroupName;

use crate::embedded::change::Change;
use crate::embedded::state::{State, Unposted};

/// What groups behind damage tell of those that were lost.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Whether groups are lost of which none behind them tells how many offsets they gave.
    pub(super) is_open: bool,
    /// Partitions of which it is known where they ended.
    pub(super) ends: BTreeSet<(u32, u32)>,
    /// What groups have committed again since.
    committed: BTreeSet<(GroupName, u32, u32)>,
}

impl Told {
    /// Groups were lost here.
    pub(super) fn begin(&mut self) {
        *self = Self {
            is_open: true,
            ..Self::default()
        };
    }

    /// A group behind them. Gives the commits before which others may be lost.
    pub(super) fn take(&mut self, changes: &[Change], state: &State) -> Vec<Unposted> {
        let mut unposted = Vec::new();
        for change in changes {
            match change {
                Change::Ends { ends, .. } => {
                    self.is_open = false;
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
                    if self.committed.insert(at) && committed.next.0 > from {
                        unposted.push(Unposted {
                            group: group.clone(),
                            topic: *topic,
                            partition: *partition,
                            from,
                            to: committed.next.0,
                            postings: postings.clone(),
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
        unposted
    }
}
