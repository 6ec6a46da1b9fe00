//! The routing of a failure: by its code, or by a function of the user.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{CodePattern, Failure, FailureClass, TierIndex};

/// Where a failed record is routed, once its attempts in memory are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionRouting {
    /// To the next delivery of its tier, or to the next tier.
    NextTier,
    /// To this tier at once, if that leads forward.
    SkipToTier(TierIndex),
    /// To the dead letters at once.
    DeadLetter,
    /// Nowhere: the binding is paused until somebody resumes it.
    PauseContainer,
}

/// Decides about a failure in a tier; tier 0 is the main topic.
pub type ClassifierFn = dyn Fn(&Failure, TierIndex) -> ExceptionRouting + Send + Sync;

/// The codes that decide about failures: the keys `retry.retryable-exceptions` and its neighbors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassifierCodes {
    /// Codes that are tried again in memory; none for every transient one.
    pub retryable: Option<Vec<CodePattern>>,
    /// Codes that go to the dead letters at once.
    pub non_retryable: Vec<CodePattern>,
    /// The tier that a code goes to at once.
    pub skip_to_tier: Vec<(CodePattern, TierIndex)>,
    /// Codes that pause the binding.
    pub pause_on: Vec<CodePattern>,
}

/// The routing of a failure, and whether trying again in memory may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Classified {
    pub(crate) routing: ExceptionRouting,
    pub(crate) is_retried_in_memory: bool,
}

/// Decides about failures, by codes or by a function.
#[derive(Clone)]
pub(crate) enum ExceptionClassifier {
    Codes(ClassifierCodes),
    Function(Arc<ClassifierFn>),
}

impl ExceptionClassifier {
    /// The routing of a failure that is not of class System.
    pub(crate) fn classify(&self, failure: &Failure, tier: TierIndex) -> Classified {
        match self {
            Self::Codes(codes) => codes.classify(failure),
            Self::Function(decide) => {
                let routing = decide(failure, tier);
                let is_transient = failure.class == FailureClass::Transient;
                let is_retried_in_memory = is_transient && routing == ExceptionRouting::NextTier;
                Classified {
                    routing,
                    is_retried_in_memory,
                }
            }
        }
    }
}

impl ClassifierCodes {
    fn classify(&self, failure: &Failure) -> Classified {
        let matches = |patterns: &[CodePattern]| patterns.iter().any(|p| p.matches(&failure.code));
        let at_once = |routing| Classified {
            routing,
            is_retried_in_memory: false,
        };
        if matches(&self.pause_on) {
            return at_once(ExceptionRouting::PauseContainer);
        }
        if failure.class == FailureClass::Permanent || matches(&self.non_retryable) {
            return at_once(ExceptionRouting::DeadLetter);
        }
        let mut skips = self.skip_to_tier.iter();
        if let Some((_, tier)) = skips.find(|(pattern, _)| pattern.matches(&failure.code)) {
            return at_once(ExceptionRouting::SkipToTier(*tier));
        }
        let is_listed = self.retryable.as_ref().is_none_or(|listed| matches(listed));
        Classified {
            routing: ExceptionRouting::NextTier,
            is_retried_in_memory: is_listed,
        }
    }
}

impl fmt::Debug for ExceptionClassifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codes(codes) => codes.fmt(f),
            Self::Function(_) => f.write_str("a function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Code;

    use super::*;

    #[test]
    fn c25_codes_decide_about_the_four_routings() {
        let patterns = |codes: &[&str]| codes.iter().map(|code| CodePattern::new(*code)).collect();
        let mut codes = ClassifierCodes {
            retryable: None,
            non_retryable: patterns(&["business.*"]),
            skip_to_tier: vec![(CodePattern::new("service.*"), TierIndex(2))],
            pause_on: patterns(&["access.denied"]),
        };
        let check = |codes: &ClassifierCodes, class, code: &str, routing, in_memory| {
            let failure = Failure::new(class, Code::new(code).unwrap(), "");
            let expect = Classified {
                routing,
                is_retried_in_memory: in_memory,
            };
            assert_eq!(codes.classify(&failure), expect, "{code}");
        };
        use ExceptionRouting::{DeadLetter, NextTier, PauseContainer, SkipToTier};
        use FailureClass::{Permanent, Transient};
        check(&codes, Transient, "timeout.read", NextTier, true);
        check(&codes, Transient, "business.rule", DeadLetter, false);
        check(&codes, Permanent, "timeout.read", DeadLetter, false);
        check(
            &codes,
            Transient,
            "service.down",
            SkipToTier(TierIndex(2)),
            false,
        );
        check(&codes, Transient, "access.denied", PauseContainer, false);
        check(&codes, Permanent, "access.denied", PauseContainer, false);
        codes.retryable = Some(patterns(&["timeout.*"]));
        check(&codes, Transient, "timeout.read", NextTier, true);
        check(&codes, Transient, "conflict.lock", NextTier, false);
    }
}
