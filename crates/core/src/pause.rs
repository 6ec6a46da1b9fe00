//! Why something does not flow.

use std::fmt;

use serde::{Serialize, Serializer};

/// One reason not to flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PauseReason {
    /// Somebody asked for it.
    Operator,
    /// The service behind the handler is down.
    Breaker,
    /// The next record is not due yet.
    Delay,
    /// Something downstream is full.
    BackPressure,
    /// The process is going down.
    Shutdown,
    /// The handler cannot work at all: a wrong token, a missing service.
    System,
    /// The next record cannot be read.
    Damaged,
}

impl PauseReason {
    /// All reasons, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Operator,
        Self::Breaker,
        Self::Delay,
        Self::BackPressure,
        Self::Shutdown,
        Self::System,
        Self::Damaged,
    ];

    /// The name users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Breaker => "breaker",
            Self::Delay => "delay",
            Self::BackPressure => "back-pressure",
            Self::Shutdown => "shutdown",
            Self::System => "system",
            Self::Damaged => "damaged",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Operator => 1,
            Self::Breaker => 1 << 1,
            Self::Delay => 1 << 2,
            Self::BackPressure => 1 << 3,
            Self::Shutdown => 1 << 4,
            Self::System => 1 << 5,
            Self::Damaged => 1 << 6,
        }
    }
}

/// A set of reasons: it flows only when the set is empty.
///
/// **Invariant:** whoever adds a reason removes that reason and no other, so a breaker that closes
/// never resumes what an operator paused.
///
/// ```
/// use tidegate_core::{PauseReason, PauseReasons};
/// let mut paused = PauseReasons::default();
/// paused.add(PauseReason::Operator);
/// paused.add(PauseReason::Breaker);
/// paused.remove(PauseReason::Breaker);
/// assert!(!paused.flows());
/// assert_eq!(paused.to_string(), "operator");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PauseReasons(u8);

impl PauseReasons {
    /// Adds a reason and says whether it is new.
    pub fn add(&mut self, reason: PauseReason) -> bool {
        let before = self.0;
        self.0 |= reason.bit();
        before != self.0
    }

    /// Takes a reason away and says whether it was there. Others remain.
    pub fn remove(&mut self, reason: PauseReason) -> bool {
        let before = self.0;
        self.0 &= !reason.bit();
        before != self.0
    }

    /// Whether nothing stands in the way.
    #[must_use]
    pub fn flows(self) -> bool {
        self.0 == 0
    }

    /// Whether this reason stands.
    #[must_use]
    pub fn contains(self, reason: PauseReason) -> bool {
        self.0 & reason.bit() != 0
    }

    /// The reasons that stand.
    pub fn iter(self) -> impl Iterator<Item = PauseReason> {
        PauseReason::ALL
            .into_iter()
            .filter(move |reason| self.contains(*reason))
    }
}

impl fmt::Display for PauseReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, reason) in self.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, reason.as_str())?;
        }
        Ok(())
    }
}

impl Serialize for PauseReasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(PauseReason::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_resumes_what_somebody_else_paused() {
        for first in PauseReason::ALL {
            for second in PauseReason::ALL {
                let mut paused = PauseReasons::default();
                assert!(paused.add(first));
                assert_eq!(paused.add(second), first != second);
                assert!(paused.remove(second));
                assert_eq!(paused.flows(), first == second, "{first:?} {second:?}");
                assert_eq!(paused.contains(first), first != second);
            }
        }
    }

    #[test]
    fn reasons_are_told_by_their_names_in_their_order() {
        let mut paused = PauseReasons::default();
        assert_eq!(paused.to_string(), "");
        for reason in PauseReason::ALL.into_iter().rev() {
            paused.add(reason);
        }
        assert_eq!(
            paused.to_string(),
            "operator, breaker, delay, back-pressure, shutdown, system, damaged"
        );
        paused.remove(PauseReason::Breaker);
        assert_eq!(
            serde_json::to_string(&paused).unwrap(),
            r#"["operator","delay","back-pressure","shutdown","system","damaged"]"#
        );
    }
}
