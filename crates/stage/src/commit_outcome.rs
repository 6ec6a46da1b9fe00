//! The outcome of a commit whose answer was lost: a pure function of what the group has committed since.
//!
//! A commit holds the offsets of several tasks, and all of it is there or nothing. A task may have another owner by
//! now, who went on from there. So one offset alone proves nothing.

use tidegate_log::{Committed, OffsetCommit};

use crate::changelog::EpochMark;

/// An offset of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskedOffset {
    next: i64,
    metadata: String,
}

impl AskedOffset {
    pub(crate) fn of(offset: &OffsetCommit) -> Self {
        Self {
            next: offset.next.0,
            metadata: offset.metadata.clone(),
        }
    }
}

/// The outcome of a commit whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// It was done.
    Done,
    /// It was not done, or every task in it has another owner.
    NotDone,
}

/// The word of one committed offset about the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// It lies before the commit.
    Before,
    /// It is that of the commit.
    Same,
    /// Another owner committed this epoch or a later one.
    Other,
}

impl Evidence {
    fn of(asked: &AskedOffset, found: Option<&Committed>) -> Self {
        let Some(found) = found else {
            return Self::Before;
        };
        if found.next.0 == asked.next && found.metadata == asked.metadata {
            return Self::Same;
        }
        let epoch = |text: &str| EpochMark::parse(text).map(|mark| mark.epoch);
        match (epoch(&found.metadata), epoch(&asked.metadata)) {
            (Some(found), Some(asked)) if found >= asked => Self::Other,
            _ => Self::Before,
        }
    }
}

/// Decides what became of a commit. `found` has what is committed now, for each of its offsets.
///
/// Offsets never go back. So one that lies before the commit proves that it was not done. Otherwise one that is that
/// of the commit proves that it was: nobody else commits a task that has this owner still.
pub(crate) fn commit_outcome(asked: &[AskedOffset], found: &[Option<Committed>]) -> CommitOutcome {
    let found = found.iter().map(Option::as_ref);
    let found = found.chain(std::iter::repeat(None));
    let evidence = asked.iter().zip(found);
    let mut is_same = false;
    for (asked, found) in evidence {
        match Evidence::of(asked, found) {
            Evidence::Before => return CommitOutcome::NotDone,
            Evidence::Same => is_same = true,
            Evidence::Other => {}
        }
    }
    match is_same {
        true => CommitOutcome::Done,
        false => CommitOutcome::NotDone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Offset;

    fn text(epoch: u64, crc: u32) -> String {
        let base = 0;
        EpochMark { epoch, base, crc }.to_string()
    }

    /// The commit takes each task from epoch 4 to epoch 5, with the offset 50.
    fn outcome(found: &[(i64, String)]) -> CommitOutcome {
        let asked = AskedOffset {
            next: 50,
            metadata: text(5, 7),
        };
        let asked = vec![asked; found.len()];
        let found: Vec<_> = found
            .iter()
            .map(|(next, metadata)| {
                (*next >= 0).then(|| Committed {
                    next: Offset(*next),
                    metadata: metadata.clone(),
                })
            })
            .collect();
        commit_outcome(&asked, &found)
    }

    #[test]
    fn a_commit_of_one_task_is_done_if_its_offset_is_there() {
        assert_eq!(outcome(&[(50, text(5, 7))]), CommitOutcome::Done);
        for before in [(40, text(4, 9)), (-1, String::new()), (0, String::new())] {
            assert_eq!(outcome(&[before]), CommitOutcome::NotDone);
        }
    }

    /// R02, R08: task 0 has another owner, who went on. Task 1 must not be done again.
    #[test]
    fn a_commit_is_done_if_one_task_moved_on_and_the_other_has_it() {
        for moved in [(60, text(6, 1)), (50, text(6, 1))] {
            let own = (50, text(5, 7));
            assert_eq!(outcome(&[moved.clone(), own.clone()]), CommitOutcome::Done);
            assert_eq!(outcome(&[own, moved]), CommitOutcome::Done);
        }
    }

    /// R02, R08: task 0 has another owner, who did the epoch again. Task 1 must be done again.
    #[test]
    fn a_commit_is_not_done_if_one_task_moved_on_and_the_other_lies_before_it() {
        for moved in [(60, text(6, 1)), (50, text(5, 1)), (50, text(5, 7))] {
            let own = (40, text(4, 9));
            assert_eq!(
                outcome(&[moved.clone(), own.clone()]),
                CommitOutcome::NotDone
            );
            assert_eq!(outcome(&[own, moved]), CommitOutcome::NotDone);
        }
    }

    #[test]
    fn a_commit_whose_tasks_all_moved_on_is_nobodys_here() {
        assert_eq!(
            outcome(&[(60, text(6, 1)), (70, text(9, 1))]),
            CommitOutcome::NotDone
        );
    }
}
