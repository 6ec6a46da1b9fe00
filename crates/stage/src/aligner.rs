//! Aligns the tasks of a shard behind one marker, so that a checkpoint has all of them at one moment.
//!
//! The marker enters the queues of all tasks at once. A task that comes to it waits for the others, and records behind
//! it wait with it. Once all have come, their epochs are closed there in one commit, and they go on. A marker that does
//! not arrive in time is given up: the tasks go on as if it had never been there.

use std::collections::BTreeSet;

/// How far the marker is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Aligner {
    /// There is none.
    #[default]
    Open,
    /// These tasks have not come to it yet.
    Aligning {
        /// The tasks.
        waiting: BTreeSet<i32>,
        /// When it is given up.
        until_ms: i64,
    },
    /// All have come to it, and their epochs are on their way.
    Closed,
}

impl Aligner {
    /// A marker enters the queues of these tasks. Says whether it does: there is one at a time.
    pub(crate) fn begin(&mut self, tasks: BTreeSet<i32>, until_ms: i64) -> bool {
        let is_open = *self == Self::Open;
        if is_open {
            *self = Self::Aligning {
                waiting: tasks,
                until_ms,
            };
        }
        is_open
    }

    /// A task has come to the marker, and waits.
    pub(crate) fn arrived(&mut self, task: i32) {
        if let Self::Aligning { waiting, .. } = self {
            waiting.remove(&task);
        }
    }

    /// Whether all tasks have come to the marker; their epochs are to be closed now.
    pub(crate) fn is_aligned(&self) -> bool {
        matches!(self, Self::Aligning { waiting, .. } if waiting.is_empty())
    }

    /// The epochs at the marker were closed.
    pub(crate) fn close(&mut self) {
        debug_assert!(self.is_aligned(), "no task is left out");
        *self = Self::Closed;
    }

    /// The marker has done its work, or is given up. Says whether there was one.
    pub(crate) fn end(&mut self) -> bool {
        std::mem::take(self) != Self::Open
    }

    /// When the marker is given up.
    pub(crate) fn until_ms(&self) -> Option<i64> {
        match self {
            Self::Aligning { until_ms, .. } => Some(*until_ms),
            Self::Open | Self::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R05: nothing is closed before the last task has come, and a marker that is given up leaves nothing behind.
    #[test]
    fn r05_tasks_are_aligned_once_the_last_one_has_come() {
        let mut aligner = Aligner::default();
        assert!(aligner.begin(BTreeSet::from([1, 2, 5]), 900));
        assert!(!aligner.begin(BTreeSet::from([1]), 950), "one at a time");
        for task in [2, 2, 9, 1] {
            aligner.arrived(task);
            assert!(!aligner.is_aligned());
        }
        assert_eq!(aligner.until_ms(), Some(900));
        aligner.arrived(5);
        assert!(aligner.is_aligned());
        aligner.close();
        assert_eq!((aligner.until_ms(), aligner.is_aligned()), (None, false));
        assert!(aligner.end());
        assert!(!aligner.end());
        assert_eq!(aligner, Aligner::Open);
    }
}
