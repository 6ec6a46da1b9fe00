//! The decision about an event whose attempt is over.

use std::time::Duration;

use crate::dead_letter::Reason;
use crate::{FailureClass, PauseReason, TierIndex};

/// The facts about a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFacts {
    /// The class of the failure.
    pub class: FailureClass,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
    /// How many attempts there may be; none for no limit.
    pub attempts: Option<u32>,
    /// The wait before the next one, were there one.
    pub wait: Duration,
    /// Whether the breaker in front of the handler is open.
    pub breaker_open: bool,
    /// Whether the event's key keeps failing.
    pub is_poison: bool,
    /// The step after the last attempt: a tier, the store, a pause or the end.
    pub exhausted: Decision,
}

/// The next step of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an event without a decision is nowhere"]
pub enum Decision {
    /// It is done with: handled, or not ours.
    Settle,
    /// Try again after this long.
    RetryIn(Duration),
    /// Give it to this tier, which tries again after its delay.
    Tier(TierIndex),
    /// Keep it in the store, behind an earlier record of its key or until it fits.
    Park,
    /// Give up on it and keep it.
    DeadLetter(Reason),
    /// Keep it as it is until this reason is gone; the attempt does not count.
    Pause(PauseReason),
}

impl Decision {
    /// The end of an event that has used up its attempts.
    pub const GIVE_UP: Self = Self::DeadLetter(Reason::RetriesExhausted);
}

/// Decides what happens to an event whose attempt failed.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{AttemptFacts, Decision, FailureClass, TierIndex, decide};
/// let first = AttemptFacts {
///     class: FailureClass::Transient, attempt: 1, attempts: Some(3),
///     wait: Duration::from_millis(100), breaker_open: false, is_poison: false,
///     exhausted: Decision::Tier(TierIndex(1)),
/// };
/// assert_eq!(decide(&first), Decision::RetryIn(Duration::from_millis(100)));
/// let last = AttemptFacts { attempt: 3, ..first };
/// assert_eq!(decide(&last), Decision::Tier(TierIndex(1)));
/// ```
pub fn decide(facts: &AttemptFacts) -> Decision {
    match facts.class {
        // A permanent failure is about the event itself, whatever the breaker says.
        FailureClass::Permanent => Decision::DeadLetter(Reason::NonRetryable),
        // Not about this event: nobody else's would fare better, and it must not burn attempts.
        FailureClass::System => Decision::Pause(PauseReason::System),
        // An open breaker tells nothing about this event: it burns no attempt and goes nowhere.
        FailureClass::Transient if facts.breaker_open => Decision::Pause(PauseReason::Breaker),
        FailureClass::Transient if facts.is_poison => Decision::GIVE_UP,
        FailureClass::Transient if facts.attempts.is_some_and(|limit| facts.attempt >= limit) => {
            facts.exhausted
        }
        FailureClass::Transient => Decision::RetryIn(facts.wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureClass::{Permanent, System, Transient};

    const WAIT: Duration = Duration::from_millis(7);

    #[test]
    fn a06_every_branch_of_the_decision() {
        let pause = Decision::Pause(PauseReason::Breaker);
        let system = Decision::Pause(PauseReason::System);
        let rejected = Decision::DeadLetter(Reason::NonRetryable);
        let retry = Decision::RetryIn(WAIT);
        for exhausted in [
            Decision::GIVE_UP,
            Decision::Tier(TierIndex(2)),
            Decision::Park,
            Decision::Pause(PauseReason::Operator),
        ] {
            let check = |class, attempt, attempts, breaker_open, is_poison, expect| {
                let facts = AttemptFacts {
                    class,
                    attempt,
                    attempts,
                    wait: WAIT,
                    breaker_open,
                    is_poison,
                    exhausted,
                };
                assert_eq!(decide(&facts), expect, "{facts:?}");
            };
            check(Transient, 1, Some(3), false, false, retry);
            check(Transient, 2, Some(3), false, false, retry);
            check(Transient, 3, Some(3), false, false, exhausted);
            check(Transient, 9, Some(3), false, false, exhausted);
            check(Transient, 1_000, None, false, false, retry);
            check(Transient, 1, Some(3), false, true, Decision::GIVE_UP);
            check(Transient, 1, Some(3), true, false, pause);
            check(Transient, 3, Some(3), true, true, pause);
            check(Permanent, 1, Some(3), false, false, rejected);
            check(Permanent, 1, None, true, false, rejected);
            check(System, 3, Some(3), false, true, system);
            check(System, 1, None, true, false, system);
        }
    }
}
