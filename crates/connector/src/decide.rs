//! The decision about a record whose attempt failed.

use std::time::Duration;

use tidegate_core::dead_letter::Reason;
use tidegate_core::{AttemptFacts, Decision, FailureClass, PauseReason, decide};

use crate::classify::{Classified, ExceptionRouting};
use crate::ladder::{Ladder, Rung};
use crate::options::{BatchFailureStrategy, KeyExhausted, OrderingMode, StrictExhausted};

/// The facts about a record whose attempt failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordFacts<'a> {
    pub(crate) class: FailureClass,
    /// The routing of its code.
    pub(crate) classified: Classified,
    /// Whether its bytes are not what the topic promises.
    pub(crate) is_undecodable: bool,
    /// The number of this attempt in memory, from 1.
    pub(crate) attempt: u32,
    /// How many attempts in memory there may be.
    pub(crate) attempts: u32,
    /// The wait before the next attempt in memory.
    pub(crate) wait: Duration,
    pub(crate) breaker_open: bool,
    /// Whether the breaker is finding out: a probe that fails says little about the record.
    pub(crate) is_probing: bool,
    pub(crate) rung: Rung,
    pub(crate) ladder: &'a Ladder,
    pub(crate) ordering: OrderingMode,
    pub(crate) strict_exhausted: StrictExhausted,
    pub(crate) key_exhausted: KeyExhausted,
    /// Of a batch listener.
    pub(crate) batch_failure: BatchFailureStrategy,
}

/// The next step of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a record without a decision is nowhere"]
pub(crate) enum RecordDecision {
    /// Try again in memory after this long.
    RetryIn(Duration),
    /// Hand it to a tier.
    Tier(Rung),
    /// Keep it in the store until the delay of this rung is over.
    Park(Rung),
    /// Keep it in the store until somebody gives it up, or the binding starts anew.
    Block,
    /// Hand it to the dead letters.
    DeadLetter(Reason),
    /// Keep it until this reason is gone.
    Keep(PauseReason),
}

/// Decides what happens to a record whose attempt failed.
pub(crate) fn route(facts: &RecordFacts<'_>) -> RecordDecision {
    if facts.is_undecodable {
        return RecordDecision::DeadLetter(Reason::DeserializationFailure);
    }
    // A failure that is not about this record says nothing about where it belongs.
    let routing = match facts.class {
        FailureClass::System => ExceptionRouting::NextTier,
        FailureClass::Transient | FailureClass::Permanent => facts.classified.routing,
    };
    match routing {
        ExceptionRouting::PauseContainer => return RecordDecision::Keep(PauseReason::Operator),
        ExceptionRouting::DeadLetter => {
            return RecordDecision::DeadLetter(Reason::NonRetryable);
        }
        ExceptionRouting::NextTier | ExceptionRouting::SkipToTier(_) => {}
    }
    let rung = match routing {
        ExceptionRouting::SkipToTier(tier) => facts.ladder.skip_to(facts.rung, tier),
        ExceptionRouting::NextTier
        | ExceptionRouting::DeadLetter
        | ExceptionRouting::PauseContainer => facts.ladder.after(facts.rung),
    };
    let rung = match facts.batch_failure {
        BatchFailureStrategy::SeekToFailed => rung,
        BatchFailureStrategy::DlqAndContinue => None,
    };
    // An outage must not end in the dead letters: while the breaker finds out, the last tier keeps what it has, and
    // a record that has no tier stays where it is.
    let is_kept_in_tier = rung.is_none() && facts.is_probing && facts.rung.tier.0 > 0;
    let rung = if is_kept_in_tier {
        Some(facts.rung)
    } else {
        rung
    };
    let is_kept =
        facts.ordering == OrderingMode::Strict && facts.strict_exhausted == StrictExhausted::Pause;
    let is_ordered = facts.ordering == OrderingMode::KeyOrdered;
    let exhausted = match rung {
        Some(rung) => Decision::Tier(rung.tier),
        None if facts.is_probing => Decision::Pause(PauseReason::Breaker),
        None if is_kept => Decision::Pause(PauseReason::Operator),
        None if is_ordered && facts.key_exhausted == KeyExhausted::BlockKey => Decision::Park,
        None => Decision::GIVE_UP,
    };
    let attempts = match facts.classified.is_retried_in_memory {
        true => facts.attempts,
        false => 0,
    };
    let decision = decide(&AttemptFacts {
        class: facts.class,
        attempt: facts.attempt,
        attempts: Some(attempts),
        wait: facts.wait,
        breaker_open: facts.breaker_open,
        is_poison: false,
        exhausted,
    });
    match (decision, rung) {
        (Decision::RetryIn(wait), _) => RecordDecision::RetryIn(wait),
        (Decision::Tier(_), Some(rung)) if is_ordered => RecordDecision::Park(rung),
        (Decision::Tier(_), Some(rung)) => RecordDecision::Tier(rung),
        (Decision::Park, _) => RecordDecision::Block,
        (Decision::DeadLetter(reason), _) => RecordDecision::DeadLetter(reason),
        (Decision::Pause(reason), _) => RecordDecision::Keep(reason),
        // Nothing above asks for these; keeping the record loses nothing.
        (Decision::Tier(_) | Decision::Settle, _) => RecordDecision::Keep(PauseReason::Operator),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::TierIndex;

    use super::*;

    const WAIT: Duration = Duration::from_millis(7);

    fn facts(ladder: &Ladder) -> RecordFacts<'_> {
        RecordFacts {
            class: FailureClass::Transient,
            classified: Classified {
                routing: ExceptionRouting::NextTier,
                is_retried_in_memory: true,
            },
            is_undecodable: false,
            attempt: 1,
            attempts: 3,
            wait: WAIT,
            breaker_open: false,
            is_probing: false,
            rung: Rung::MAIN,
            ladder,
            ordering: OrderingMode::RelaxedInRetry,
            strict_exhausted: StrictExhausted::DeadLetter,
            key_exhausted: KeyExhausted::DeadLetter,
            batch_failure: BatchFailureStrategy::SeekToFailed,
        }
    }

    fn rung(tier: u32, delivery: u32) -> Rung {
        let tier = TierIndex(tier);
        Rung { tier, delivery }
    }

    #[test]
    fn every_branch_of_the_route() {
        let ladder = Ladder(vec![2, 1]);
        let with = |change: &dyn Fn(&mut RecordFacts<'_>)| {
            let mut facts = facts(&ladder);
            change(&mut facts);
            route(&facts)
        };
        let exhausted = RecordDecision::DeadLetter(Reason::RetriesExhausted);
        assert_eq!(with(&|_| {}), RecordDecision::RetryIn(WAIT));
        assert_eq!(with(&|f| f.attempt = 2), RecordDecision::RetryIn(WAIT));
        assert_eq!(with(&|f| f.attempt = 3), RecordDecision::Tier(rung(1, 1)));
        let last = |f: &mut RecordFacts<'_>| (f.attempt, f.rung) = (3, rung(1, 1));
        assert_eq!(with(&last), RecordDecision::Tier(rung(1, 2)));
        let last = |f: &mut RecordFacts<'_>| (f.attempt, f.rung) = (3, rung(1, 2));
        assert_eq!(with(&last), RecordDecision::Tier(rung(2, 1)));
        let last = |f: &mut RecordFacts<'_>| (f.attempt, f.rung) = (3, rung(2, 1));
        assert_eq!(with(&last), exhausted);
        // A code that is not tried again in memory goes on at once.
        let unlisted = |f: &mut RecordFacts<'_>| f.classified.is_retried_in_memory = false;
        assert_eq!(with(&unlisted), RecordDecision::Tier(rung(1, 1)));
        let skip = |f: &mut RecordFacts<'_>| {
            f.classified.routing = ExceptionRouting::SkipToTier(TierIndex(2));
            f.classified.is_retried_in_memory = false;
        };
        assert_eq!(with(&skip), RecordDecision::Tier(rung(2, 1)));
        let pause = |f: &mut RecordFacts<'_>| {
            f.classified.routing = ExceptionRouting::PauseContainer;
        };
        assert_eq!(with(&pause), RecordDecision::Keep(PauseReason::Operator));
        let dead = |f: &mut RecordFacts<'_>| f.classified.routing = ExceptionRouting::DeadLetter;
        assert_eq!(
            with(&dead),
            RecordDecision::DeadLetter(Reason::NonRetryable)
        );
        let undecodable = |f: &mut RecordFacts<'_>| f.is_undecodable = true;
        let reason = Reason::DeserializationFailure;
        assert_eq!(with(&undecodable), RecordDecision::DeadLetter(reason));
    }

    #[test]
    fn c40_an_open_breaker_beats_routing() {
        let ladder = Ladder(vec![2, 1]);
        for attempt in 1..5 {
            let facts = RecordFacts {
                attempt,
                breaker_open: true,
                ..facts(&ladder)
            };
            assert_eq!(route(&facts), RecordDecision::Keep(PauseReason::Breaker));
        }
    }

    #[test]
    fn c43_a_failed_probe_hands_a_record_to_its_tier() {
        let ladder = Ladder(vec![2, 1]);
        let last = RecordFacts {
            attempt: 3,
            rung: rung(2, 1),
            is_probing: true,
            ..facts(&ladder)
        };
        assert_eq!(route(&last), RecordDecision::Tier(rung(2, 1)));
        let main = RecordFacts {
            attempt: 3,
            is_probing: true,
            ..facts(&ladder)
        };
        assert_eq!(route(&main), RecordDecision::Tier(rung(1, 1)));
    }

    #[test]
    fn c43_a_failed_probe_keeps_a_record_that_has_no_tier() {
        let (none, ladder) = (Ladder::default(), Ladder(vec![2, 1]));
        let main = RecordFacts {
            attempt: 3,
            is_probing: true,
            ..facts(&none)
        };
        let strict = RecordFacts {
            ordering: OrderingMode::Strict,
            ..main
        };
        let pauses = RecordFacts {
            strict_exhausted: StrictExhausted::Pause,
            ..strict
        };
        let batch = RecordFacts {
            ladder: &ladder,
            batch_failure: BatchFailureStrategy::DlqAndContinue,
            ..main
        };
        let ordered = RecordFacts {
            ordering: OrderingMode::KeyOrdered,
            ..main
        };
        for facts in [main, strict, pauses, batch, ordered] {
            let kept = RecordDecision::Keep(PauseReason::Breaker);
            assert_eq!(route(&facts), kept, "{facts:?}");
        }
        let never = RecordFacts {
            class: FailureClass::Permanent,
            ..main
        };
        let gives_up = RecordDecision::DeadLetter(Reason::NonRetryable);
        assert_eq!(route(&never), gives_up);
        let calm = RecordFacts {
            is_probing: false,
            ..main
        };
        let gives_up = RecordDecision::DeadLetter(Reason::RetriesExhausted);
        assert_eq!(route(&calm), gives_up);
    }

    #[test]
    fn a_system_failure_keeps_the_record_whatever_its_code() {
        let ladder = Ladder(vec![2, 1]);
        for routing in [
            ExceptionRouting::DeadLetter,
            ExceptionRouting::PauseContainer,
        ] {
            let facts = RecordFacts {
                class: FailureClass::System,
                attempt: 3,
                classified: Classified {
                    routing,
                    is_retried_in_memory: false,
                },
                ..facts(&ladder)
            };
            assert_eq!(route(&facts), RecordDecision::Keep(PauseReason::System));
        }
    }

    #[test]
    fn c32_strict_order_keeps_or_gives_up() {
        let none = Ladder::default();
        let strict = RecordFacts {
            attempt: 3,
            ordering: OrderingMode::Strict,
            ..facts(&none)
        };
        let gives_up = RecordDecision::DeadLetter(Reason::RetriesExhausted);
        assert_eq!(route(&strict), gives_up);
        let keeps = RecordFacts {
            strict_exhausted: StrictExhausted::Pause,
            ..strict
        };
        assert_eq!(route(&keeps), RecordDecision::Keep(PauseReason::Operator));
    }

    #[test]
    fn c33_ordered_keys_wait_in_the_store() {
        let ladder = Ladder(vec![2, 1]);
        let ordered = RecordFacts {
            attempt: 3,
            ordering: OrderingMode::KeyOrdered,
            ..facts(&ladder)
        };
        assert_eq!(route(&ordered), RecordDecision::Park(rung(1, 1)));
        let last = RecordFacts {
            rung: rung(2, 1),
            ..ordered
        };
        let gives_up = RecordDecision::DeadLetter(Reason::RetriesExhausted);
        assert_eq!(route(&last), gives_up);
        let blocks = RecordFacts {
            key_exhausted: KeyExhausted::BlockKey,
            ..last
        };
        assert_eq!(route(&blocks), RecordDecision::Block);
        let never = RecordFacts {
            classified: Classified {
                routing: ExceptionRouting::DeadLetter,
                is_retried_in_memory: false,
            },
            ..blocks
        };
        let at_once = RecordDecision::DeadLetter(Reason::NonRetryable);
        assert_eq!(route(&never), at_once);
    }

    #[test]
    fn c05_a_batch_that_goes_on_dead_letters_its_failures() {
        let ladder = Ladder(vec![2, 1]);
        let batch = RecordFacts {
            attempt: 3,
            batch_failure: BatchFailureStrategy::DlqAndContinue,
            ..facts(&ladder)
        };
        assert_eq!(
            route(&batch),
            RecordDecision::DeadLetter(Reason::RetriesExhausted)
        );
    }
}
