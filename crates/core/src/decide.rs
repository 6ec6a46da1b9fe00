//! The decision about a failed event.

use std::time::Duration;

use crate::dead_letter::Reason;
use crate::{FailureClass, PauseReason};

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
}

/// The next step of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an event without a decision is nowhere"]
pub enum Decision {
    /// Try again after this long.
    RetryIn(Duration),
    /// Give up on it and keep it.
    DeadLetter(Reason),
    /// Keep it as it is until this reason is gone; the attempt does not count.
    Pause(PauseReason),
    /// Keep it as it is, take no new work and say so in health; the attempt does not count.
    Stop,
}

/// Decides what happens to an event whose attempt failed.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Decision, AttemptFacts, FailureClass, decide};
/// let facts = AttemptFacts {
///     class: FailureClass::Transient, attempt: 1, attempts: Some(3),
///     wait: Duration::from_millis(100), breaker_open: false, is_poison: false,
/// };
/// assert_eq!(decide(&facts), Decision::RetryIn(Duration::from_millis(100)));
/// ```
pub fn decide(facts: &AttemptFacts) -> Decision {
    match facts.class {
        // A permanent failure is about the event itself, whatever the breaker says.
        FailureClass::Permanent => Decision::DeadLetter(Reason::NonRetryable),
        // Not about this event: nobody else's would fare better, and it must not burn attempts.
        FailureClass::System => Decision::Stop,
        // An open breaker tells nothing about this event: it burns no attempt and goes nowhere.
        FailureClass::Transient if facts.breaker_open => Decision::Pause(PauseReason::Breaker),
        FailureClass::Transient if facts.is_poison => {
            Decision::DeadLetter(Reason::RetriesExhausted)
        }
        FailureClass::Transient if facts.attempts.is_some_and(|limit| facts.attempt >= limit) => {
            Decision::DeadLetter(Reason::RetriesExhausted)
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
        let exhausted = Decision::DeadLetter(Reason::RetriesExhausted);
        let rejected = Decision::DeadLetter(Reason::NonRetryable);
        let retry = Decision::RetryIn(WAIT);
        let check = |class, attempt, attempts, breaker_open, is_poison, expect| {
            let facts = AttemptFacts {
                class,
                attempt,
                attempts,
                wait: WAIT,
                breaker_open,
                is_poison,
            };
            assert_eq!(decide(&facts), expect, "{facts:?}");
        };
        check(Transient, 1, Some(3), false, false, retry);
        check(Transient, 2, Some(3), false, false, retry);
        check(Transient, 3, Some(3), false, false, exhausted);
        check(Transient, 9, Some(3), false, false, exhausted);
        check(Transient, 1_000, None, false, false, retry);
        check(Transient, 1, Some(3), false, true, exhausted);
        check(Transient, 1, Some(3), true, false, pause);
        check(Transient, 3, Some(3), true, true, pause);
        check(Permanent, 1, Some(3), false, false, rejected);
        check(Permanent, 1, None, true, false, rejected);
        check(System, 3, Some(3), false, true, Decision::Stop);
        check(System, 1, None, true, false, Decision::Stop);
    }
}
