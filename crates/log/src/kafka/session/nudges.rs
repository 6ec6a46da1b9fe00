//! What to do about a client that does not move: a pure function.

use std::collections::BTreeMap;

use tidegate_core::Offset;

use crate::record::TopicPartition;

/// A client that still does not move after so many nudges has failed.
const NUDGES: u32 = 3;

/// How often each partition was nudged, and where it stood.
#[derive(Debug, Default)]
pub(super) struct Nudges(BTreeMap<TopicPartition, (Offset, u32)>);

/// What is to be done about a partition that was quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: there is nothing to hand over, or it has moved on.
    Moves,
    /// The client is sent once more to where it stands.
    Nudge,
    /// Nothing helps; the session ends, so that whoever polls hears of it.
    Stuck,
}

impl Nudges {
    /// A quiet partition was looked at from outside: whether a record lies at `from`, where its client
    /// still stands.
    pub(super) fn judge(&mut self, at: &TopicPartition, from: Offset, is_stuck: bool) -> Verdict {
        if !is_stuck {
            self.0.remove(at);
            return Verdict::Moves;
        }
        let (place, count) = self.0.entry(at.clone()).or_insert((from, 0));
        if *place != from {
            (*place, *count) = (from, 0);
        }
        *count += 1;
        if *count > NUDGES {
            Verdict::Stuck
        } else {
            Verdict::Nudge
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Topic;

    #[test]
    fn a_client_is_nudged_a_few_times_at_one_place_and_then_given_up() {
        let [one, two] = [0, 1].map(|number| TopicPartition::new(Topic::new("t").unwrap(), number));
        let mut nudges = Nudges::default();
        for _ in 0..NUDGES {
            assert_eq!(nudges.judge(&one, Offset(5), true), Verdict::Nudge);
            assert_eq!(nudges.judge(&two, Offset(5), false), Verdict::Moves);
        }
        // It moved: counting begins anew, there and after it had nothing to move.
        assert_eq!(nudges.judge(&one, Offset(6), true), Verdict::Nudge);
        assert_eq!(nudges.judge(&one, Offset(6), false), Verdict::Moves);
        for _ in 0..NUDGES {
            assert_eq!(nudges.judge(&one, Offset(6), true), Verdict::Nudge);
        }
        assert_eq!(nudges.judge(&one, Offset(6), true), Verdict::Stuck);
    }
}
