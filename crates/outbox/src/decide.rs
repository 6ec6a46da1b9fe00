//! The fate of a row after an attempt to publish it.

use std::time::Duration;

use tidegate_core::env::Entropy;
use tidegate_core::{Code, FailureClass};

use crate::{OnExhausted, OutboxOptions};

/// How an attempt to publish a row ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The log has it.
    Published,
    /// The log refused this record, and would take others.
    Failed {
        /// Whether another attempt could change that.
        class: FailureClass,
        /// Its code.
        code: Code,
        /// The reason, for people.
        message: String,
    },
    /// It was not tried, because an earlier row of its key failed.
    Behind,
    /// The log takes nothing at present.
    LogAway,
}

/// The facts that decide.
#[derive(Debug, Clone, Copy)]
pub struct PublishFacts<'a> {
    /// Attempts of the row that failed before.
    pub attempts: u32,
    /// How this one ended.
    pub outcome: &'a PublishOutcome,
}

/// The fate of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowFate {
    /// It is done.
    Sent,
    /// It is tried again after this wait, and its key waits with it.
    RetryIn {
        /// The wait.
        wait: Duration,
        /// Why it failed.
        error: String,
    },
    /// It goes to the topic of dead letters, and its key goes on.
    DeadLetter {
        /// The code of the failure that ended it.
        code: Code,
        /// Whether all attempts were used up; otherwise no attempt would have helped.
        is_exhausted: bool,
        /// Why it failed.
        error: String,
    },
    /// Nothing changes, and no attempt counts: its turn comes again.
    Leave,
}

/// Decides about one row.
///
/// ```
/// use tidegate_core::env::Stream;
/// use tidegate_outbox::{OutboxOptions, PublishFacts, PublishOutcome, RowFate, decide};
/// let facts = PublishFacts { attempts: 3, outcome: &PublishOutcome::LogAway };
/// let fate = decide(facts, &OutboxOptions::default(), &mut Stream::new(1));
/// assert_eq!(fate, RowFate::Leave, "a log that is away costs no attempt");
/// ```
#[must_use]
pub fn decide(
    facts: PublishFacts<'_>,
    options: &OutboxOptions,
    entropy: &mut dyn Entropy,
) -> RowFate {
    let (class, code, message) = match facts.outcome {
        PublishOutcome::Published => return RowFate::Sent,
        PublishOutcome::Behind | PublishOutcome::LogAway => return RowFate::Leave,
        PublishOutcome::Failed {
            class,
            code,
            message,
        } => (*class, code, message),
    };
    let is_exhausted = facts.attempts.saturating_add(1) >= options.max_attempts;
    let is_over = match class {
        FailureClass::System => return RowFate::Leave,
        FailureClass::Permanent => true,
        FailureClass::Transient => is_exhausted,
    };
    let error = format!("{code}: {message}");
    match (is_over, options.on_exhausted) {
        (false, _) => RowFate::RetryIn {
            wait: options.backoff().wait(facts.attempts, entropy),
            error,
        },
        (true, OnExhausted::BlockKey) => RowFate::RetryIn {
            wait: options.backoff_max,
            error,
        },
        (true, OnExhausted::DeadLetter) => RowFate::DeadLetter {
            code: code.clone(),
            is_exhausted: class == FailureClass::Transient,
            error,
        },
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::env::Stream;

    use super::*;

    fn fate(attempts: u32, class: FailureClass, options: &OutboxOptions) -> RowFate {
        let outcome = PublishOutcome::Failed {
            class,
            code: Code::from_static("test.broken"),
            message: "why".to_owned(),
        };
        let facts = PublishFacts {
            attempts,
            outcome: &outcome,
        };
        decide(facts, options, &mut Stream::new(1))
    }

    #[test]
    fn o07_a_transient_failure_waits_longer_each_time_with_jitter() {
        let options = OutboxOptions::default();
        for (attempts, seconds) in [(0, 1.0), (1, 2.0), (5, 32.0), (8, 60.0)] {
            let RowFate::RetryIn { wait, error } =
                fate(attempts, FailureClass::Transient, &options)
            else {
                panic!("it is tried again");
            };
            let share = wait.as_secs_f64() / seconds;
            assert!((0.874..=1.126).contains(&share), "{wait:?} for {seconds}");
            assert_eq!(error, "test.broken: why");
        }
    }

    #[test]
    fn o08_the_last_attempt_ends_in_a_dead_letter_and_a_permanent_failure_at_once() {
        let options = OutboxOptions::default();
        let of = |attempts, class| match fate(attempts, class, &options) {
            RowFate::DeadLetter { is_exhausted, .. } => Some(is_exhausted),
            RowFate::Sent | RowFate::RetryIn { .. } | RowFate::Leave => None,
        };
        assert_eq!(of(8, FailureClass::Transient), None);
        assert_eq!(of(9, FailureClass::Transient), Some(true));
        assert_eq!(of(0, FailureClass::Permanent), Some(false));
    }

    #[test]
    fn o06_a_key_that_blocks_waits_the_longest_time_for_ever() {
        let options = OutboxOptions {
            on_exhausted: OnExhausted::BlockKey,
            ..OutboxOptions::default()
        };
        for (attempts, class) in [(9, FailureClass::Transient), (700, FailureClass::Permanent)] {
            let RowFate::RetryIn { wait, .. } = fate(attempts, class, &options) else {
                panic!("it is never given up");
            };
            assert_eq!(wait, options.backoff_max);
        }
    }

    #[test]
    fn a06_a_failure_of_the_system_costs_no_attempt() {
        let options = OutboxOptions::default();
        assert_eq!(fate(9, FailureClass::System, &options), RowFate::Leave);
    }
}
