//! What to do after each answer of a transaction: a pure function.
//!
//! | answer | at | then |
//! |---|---|---|
//! | fatal, or fenced | any step | drop the producer; a new one fences the old; settle if the end was on its way |
//! | to be aborted | any step but the end of an abort | abort; do it again if the group had only moved on |
//! | no answer | the end (commit, abort) | ask the same again until the time is up, then settle |
//! | no answer | before the end | ask the same again until the time is up, then abort |
//!
//! **Invariant:** nothing is begun on a producer whose last outcome is not known.

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The producer announces itself, which ends what an earlier one of its name left open.
    Announce,
    /// Records are being delivered.
    Deliver,
    /// Offsets are being added.
    Offsets,
    /// The end: all of it.
    Commit,
    /// The end: none of it.
    Abort,
}

/// What the client says about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Answer {
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

/// What to do next.
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

/// What to do after an error.
pub(super) fn next(step: Step, answer: Answer) -> Next {
    let was_end_asked = match step {
        Step::Commit | Step::Abort => true,
        Step::Announce | Step::Deliver | Step::Offsets => false,
    };
    if answer.is_fatal {
        // An abort that ends fatal leaves nothing: the next producer of that name aborts it.
        return if step == Step::Commit {
            Next::DropAndSettle
        } else {
            Next::DropAndFail
        };
    }
    if answer.requires_abort && step != Step::Abort {
        // Only a broker that has not ended the transaction asks for an abort, so nothing was changed.
        return if answer.is_stale && !answer.is_late {
            Next::AbortAndRedo
        } else {
            Next::AbortAndFail
        };
    }
    if answer.is_refusal {
        return match step {
            Step::Announce | Step::Abort => Next::DropAndFail,
            Step::Deliver | Step::Offsets => Next::AbortAndFail,
            Step::Commit => Next::DropAndSettle,
        };
    }
    if !answer.is_late && (answer.is_retriable || was_end_asked) {
        return Next::Again;
    }
    match step {
        Step::Announce => Next::DropAndFail,
        Step::Deliver | Step::Offsets => {
            if answer.is_stale && !answer.is_late {
                Next::AbortAndRedo
            } else {
                Next::AbortAndFail
            }
        }
        Step::Commit => Next::DropAndSettle,
        Step::Abort => Next::DropAndFail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 5] = [
        Step::Announce,
        Step::Deliver,
        Step::Offsets,
        Step::Commit,
        Step::Abort,
    ];

    fn answers() -> impl Iterator<Item = Answer> {
        (0..64_u32).map(|bits| Answer {
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
        let none = Answer::default();
        let fatal = Answer {
            is_fatal: true,
            ..none
        };
        let retriable = Answer {
            is_retriable: true,
            ..none
        };
        let abort = Answer {
            requires_abort: true,
            ..none
        };
        let stale = Answer {
            is_stale: true,
            ..abort
        };
        let late = |answer| Answer {
            is_late: true,
            ..answer
        };
        for (step, answer, expected) in [
            (Step::Announce, retriable, Next::Again),
            (Step::Announce, late(retriable), Next::DropAndFail),
            (Step::Announce, fatal, Next::DropAndFail),
            (Step::Deliver, abort, Next::AbortAndFail),
            (Step::Deliver, late(none), Next::AbortAndFail),
            (Step::Deliver, fatal, Next::DropAndFail),
            (Step::Offsets, retriable, Next::Again),
            (Step::Offsets, stale, Next::AbortAndRedo),
            (Step::Offsets, late(stale), Next::AbortAndFail),
            (Step::Offsets, late(retriable), Next::AbortAndFail),
            (Step::Commit, retriable, Next::Again),
            (Step::Commit, none, Next::Again),
            (Step::Commit, late(retriable), Next::DropAndSettle),
            (Step::Commit, fatal, Next::DropAndSettle),
            (Step::Commit, abort, Next::AbortAndFail),
            (Step::Commit, stale, Next::AbortAndRedo),
            (Step::Abort, retriable, Next::Again),
            (Step::Abort, late(retriable), Next::DropAndFail),
            (Step::Abort, fatal, Next::DropAndFail),
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
    fn a_commit_without_a_clear_no_is_settled_never_called_undone() {
        for answer in answers().filter(|answer| !answer.requires_abort || answer.is_fatal) {
            let decided = next(Step::Commit, answer);
            assert!(
                matches!(decided, Next::Again | Next::DropAndSettle),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn before_the_end_nothing_needs_to_be_settled() {
        for step in [Step::Announce, Step::Deliver, Step::Offsets, Step::Abort] {
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
            let decided = next(Step::Abort, answer);
            assert!(
                !matches!(decided, Next::AbortAndRedo | Next::AbortAndFail),
                "{answer:?}"
            );
        }
    }
}
