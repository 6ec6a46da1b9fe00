//! The decision about a client that does not move: a pure function.

use std::collections::BTreeMap;

use tidegate_core::Offset;

use crate::record::TopicPartition;

/// A client that still does not move after so many seeks has failed.
const NUDGES: u32 = 3;

/// How often each partition was told to seek again, and where it stood.
#[derive(Debug, Default)]
pub(super) struct StallDetector(BTreeMap<TopicPartition, (Offset, u32)>);

/// The action for a partition that was quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StallAction {
    /// There is nothing to hand over, or it has moved on.
    Nothing,
    /// The client is sent once more to where it stands.
    SeekAgain,
    /// Nothing helps; the session ends, so that whoever polls hears of it.
    Stuck,
}

impl StallDetector {
    /// A quiet partition was looked at from outside: whether a record lies at `from`, where its client
    /// still stands.
    pub(super) fn decide(
        &mut self,
        at: &TopicPartition,
        from: Offset,
        is_stuck: bool,
    ) -> StallAction {
        if !is_stuck {
            self.0.remove(at);
            return StallAction::Nothing;
        }
        let (place, count) = self.0.entry(at.clone()).or_insert((from, 0));
        if *place != from {
            (*place, *count) = (from, 0);
        }
        *count += 1;
        if *count > NUDGES {
            StallAction::Stuck
        } else {
            StallAction::SeekAgain
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Topic;

    #[test]
    fn a_stalled_client_seeks_again_a_few_times_and_then_ends() {
        let [one, two] = [0, 1].map(|number| TopicPartition::new(Topic::new("t").unwrap(), number));
        let mut stalls = StallDetector::default();
        for _ in 0..NUDGES {
            assert_eq!(stalls.decide(&one, Offset(5), true), StallAction::SeekAgain);
            assert_eq!(stalls.decide(&two, Offset(5), false), StallAction::Nothing);
        }
        // It moved: counting begins anew, there and after it had nothing to move.
        assert_eq!(stalls.decide(&one, Offset(6), true), StallAction::SeekAgain);
        assert_eq!(stalls.decide(&one, Offset(6), false), StallAction::Nothing);
        for _ in 0..NUDGES {
            assert_eq!(stalls.decide(&one, Offset(6), true), StallAction::SeekAgain);
        }
        assert_eq!(stalls.decide(&one, Offset(6), true), StallAction::Stuck);
    }
}
