//! The next step after each answer of a transaction: a pure function.
//!
//! | answer | at | then |
//! |---|---|---|
//! | fatal, or fenced | any step | drop the producer; a new one fences the old; find the outcome if the end was on its way |
//! | to be aborted | any step but the end of an abort | abort; do it again if the group had only moved on |
//! | no answer | the end (commit, abort) | ask the same again until the time is up, then find the outcome |
//! | no answer | before the end | ask the same again until the time is up, then abort |
//!
//! **Invariant:** nothing is begun on a producer whose last outcome is not known.

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionStep {
    /// The producer announces itself, which ends what an earlier one of its name left open.
    InitTransactions,
    /// Records are being delivered.
    Deliver,
    /// Offsets are being added.
    Offsets,
    /// The end: all of it.
    Commit,
    /// The end: none of it.
    Abort,
}

/// The client's view of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StepAnswer {
    /// The producer is of no use any more.
    pub(super) is_fatal: bool,
    /// The same may be asked again.
    pub(super) is_retriable: bool,
    /// The transaction must be aborted.
    pub(super) requires_abort: bool,
    /// The group has moved on; whether we still own what we owned is for our fences to say.
    pub(super) is_stale: bool,
    /// The broker says no, and will say it again.
    pub(super) is_refusal: bool,
    /// There is no time left.
    pub(super) is_late: bool,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask the same again.
    Again,
    /// Abort; then do all of it again if what we commit is still ours.
    AbortAndRedo,
    /// Abort; nothing was changed.
    AbortAndFail,
    /// Drop the producer; nothing was changed, because the end had not been asked for.
    DropAndFail,
    /// Drop the producer; a new one ends what is open, and the group's offsets tell what became of it.
    DropAndSettle,
}

/// The next step after an error.
pub(super) fn next(step: TransactionStep, answer: StepAnswer) -> Next {
    let was_end_asked = match step {
        TransactionStep::Commit | TransactionStep::Abort => true,
        TransactionStep::InitTransactions | TransactionStep::Deliver | TransactionStep::Offsets => {
            false
        }
    };
    if answer.is_fatal {
        // An abort that ends fatal leaves nothing: the next producer of that name aborts it.
        return if step == TransactionStep::Commit {
            Next::DropAndSettle
        } else {
            Next::DropAndFail
        };
    }
    if answer.requires_abort && step != TransactionStep::Abort {
        // Only a broker that has not ended the transaction asks for an abort, so nothing was changed.
        return if answer.is_stale && !answer.is_late {
            Next::AbortAndRedo
        } else {
            Next::AbortAndFail
        };
    }
    if answer.is_refusal {
        return match step {
            TransactionStep::InitTransactions | TransactionStep::Abort => Next::DropAndFail,
            TransactionStep::Deliver | TransactionStep::Offsets => Next::AbortAndFail,
            TransactionStep::Commit => Next::DropAndSettle,
        };
    }
    if !answer.is_late && (answer.is_retriable || was_end_asked) {
        return Next::Again;
    }
    match step {
        TransactionStep::InitTransactions => Next::DropAndFail,
        TransactionStep::Deliver | TransactionStep::Offsets => {
            if answer.is_stale && !answer.is_late {
                Next::AbortAndRedo
            } else {
                Next::AbortAndFail
            }
        }
        TransactionStep::Commit => Next::DropAndSettle,
        TransactionStep::Abort => Next::DropAndFail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [TransactionStep; 5] = [
        TransactionStep::InitTransactions,
        TransactionStep::Deliver,
        TransactionStep::Offsets,
        TransactionStep::Commit,
        TransactionStep::Abort,
    ];

    fn answers() -> impl Iterator<Item = StepAnswer> {
        (0..64_u32).map(|bits| StepAnswer {
            is_fatal: bits & 1 != 0,
            is_retriable: bits & 2 != 0,
            requires_abort: bits & 4 != 0,
            is_stale: bits & 8 != 0,
            is_refusal: bits & 16 != 0,
            is_late: bits & 32 != 0,
        })
    }

    #[test]
    fn the_table() {
        let none = StepAnswer::default();
        let fatal = StepAnswer {
            is_fatal: true,
            ..none
        };
        let retriable = StepAnswer {
            is_retriable: true,
            ..none
        };
        let abort = StepAnswer {
            requires_abort: true,
            ..none
        };
        let stale = StepAnswer {
            is_stale: true,
            ..abort
        };
        let late = |answer| StepAnswer {
            is_late: true,
            ..answer
        };
        for (step, answer, expected) in [
            (TransactionStep::InitTransactions, retriable, Next::Again),
            (
                TransactionStep::InitTransactions,
                late(retriable),
                Next::DropAndFail,
            ),
            (TransactionStep::InitTransactions, fatal, Next::DropAndFail),
            (TransactionStep::Deliver, abort, Next::AbortAndFail),
            (TransactionStep::Deliver, late(none), Next::AbortAndFail),
            (TransactionStep::Deliver, fatal, Next::DropAndFail),
            (TransactionStep::Offsets, retriable, Next::Again),
            (TransactionStep::Offsets, stale, Next::AbortAndRedo),
            (TransactionStep::Offsets, late(stale), Next::AbortAndFail),
            (
                TransactionStep::Offsets,
                late(retriable),
                Next::AbortAndFail,
            ),
            (TransactionStep::Commit, retriable, Next::Again),
            (TransactionStep::Commit, none, Next::Again),
            (
                TransactionStep::Commit,
                late(retriable),
                Next::DropAndSettle,
            ),
            (TransactionStep::Commit, fatal, Next::DropAndSettle),
            (TransactionStep::Commit, abort, Next::AbortAndFail),
            (TransactionStep::Commit, stale, Next::AbortAndRedo),
            (TransactionStep::Abort, retriable, Next::Again),
            (TransactionStep::Abort, late(retriable), Next::DropAndFail),
            (TransactionStep::Abort, fatal, Next::DropAndFail),
        ] {
            assert_eq!(next(step, answer), expected, "{step:?} {answer:?}");
        }
    }

    #[test]
    fn nothing_goes_on_for_ever() {
        for step in STEPS {
            for answer in answers().filter(|answer| answer.is_late || answer.is_fatal) {
                let decided = next(step, answer);
                assert!(
                    !matches!(decided, Next::Again | Next::AbortAndRedo),
                    "{step:?} {answer:?}"
                );
            }
        }
    }

    #[test]
    fn a_commit_without_a_clear_no_is_looked_up_never_called_undone() {
        for answer in answers().filter(|answer| !answer.requires_abort || answer.is_fatal) {
            let decided = next(TransactionStep::Commit, answer);
            assert!(
                matches!(decided, Next::Again | Next::DropAndSettle),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn before_the_end_nothing_needs_to_be_looked_up() {
        for step in [
            TransactionStep::InitTransactions,
            TransactionStep::Deliver,
            TransactionStep::Offsets,
            TransactionStep::Abort,
        ] {
            for answer in answers() {
                assert_ne!(
                    next(step, answer),
                    Next::DropAndSettle,
                    "{step:?} {answer:?}"
                );
            }
        }
    }

    #[test]
    fn an_abort_is_never_answered_by_an_abort() {
        for answer in answers() {
            let decided = next(TransactionStep::Abort, answer);
            assert!(
                !matches!(decided, Next::AbortAndRedo | Next::AbortAndFail),
                "{answer:?}"
            );
        }
    }
}
