//! Which records of a partition are settled, and how far that can be committed.
//!
//! **Invariant:** the committable offset is that of the first record that was handed out and is not
//! settled. So a crash repeats records and never skips one.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::marks::Ranges;

/// The progress of one partition under one assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OffsetTracker {
    /// The offset that the log holds.
    committed: i64,
    /// Behind the last record that was handed out, and behind holes that follow it.
    end: i64,
    /// Handed out and not settled: runs of records without holes in them or next to each other.
    open: Ranges,
    /// How many records these are.
    open_count: usize,
    /// Those of them that were given back to the log, and that it has not handed out again.
    returned: BTreeSet<i64>,
    /// Settled at or above `committed`, with the holes between settled records.
    settled: Ranges,
}

fn length(from: i64, to: i64) -> usize {
    usize::try_from(to - from).unwrap_or(0)
}

impl OffsetTracker {
    /// A partition that begins at `position`, with these records above it settled before.
    pub(crate) fn new(position: i64, settled: Ranges) -> Self {
        Self {
            committed: position,
            end: position,
            open: Ranges::new(),
            open_count: 0,
            returned: BTreeSet::new(),
            settled,
        }
    }

    /// Whether the record at `offset`, which was just handed out, is to be handled: not if it was settled
    /// before, or is in hand already.
    pub(crate) fn hand_out(&mut self, offset: i64) -> bool {
        let is_back = self.returned.remove(&offset);
        let is_new =
            !is_back && !is_within(&self.settled, offset) && !is_within(&self.open, offset);
        self.end = self.end.max(offset + 1);
        if is_new {
            self.open(offset..offset + 1);
        }
        is_back || is_new
    }

    /// Hands a run of records out that nobody has seen before. Says whether it is one; if not, each record is to
    /// be handed out by itself.
    pub(crate) fn hand_out_new(&mut self, run: Range<i64>) -> bool {
        let told = self
            .settled
            .last_key_value()
            .map_or(i64::MIN, |(_, to)| *to);
        let is_new = run.start >= self.end && run.start >= told && !run.is_empty();
        if is_new {
            self.end = run.end;
            self.open(run);
        }
        is_new
    }

    /// These records are open from now on; none of them was.
    fn open(&mut self, Range { mut start, mut end }: Range<i64>) {
        self.open_count += length(start, end);
        if let Some((&from, &to)) = self.open.range(..start).next_back()
            && to == start
        {
            start = from;
        }
        if let Some(to) = self.open.remove(&end) {
            end = to;
        }
        self.open.insert(start, end);
    }

    /// A batch is over: everything before `next` was handed out or is a hole.
    pub(crate) fn end_batch(&mut self, next: i64) {
        self.end = self.end.max(next);
        // Records that were given back and did not come again are holes by now.
        while let Some(hole) = self.returned.first().copied().filter(|hole| *hole < next) {
            self.returned.remove(&hole);
            self.close(hole..hole + 1);
        }
    }

    /// These records are open no more, if they are a part of a run.
    fn close(&mut self, Range { start, end }: Range<i64>) {
        let below = self.open.range_mut(..=start).next_back();
        let Some((&from, to)) = below.filter(|(_, to)| end <= **to) else {
            return;
        };
        let behind = *to;
        if from == start {
            self.open.remove(&from);
        } else {
            *to = start;
        }
        if end < behind {
            self.open.insert(end, behind);
        }
        self.open_count -= length(start, end);
    }

    /// The record at `offset` is settled. Says whether it was open.
    pub(crate) fn settle(&mut self, offset: i64) -> bool {
        self.settle_all(offset..offset + 1)
    }

    /// Settles a run of records, if all of them are open. Says whether they were.
    pub(crate) fn settle_all(&mut self, run: Range<i64>) -> bool {
        let below = self.open.range(..=run.start).next_back();
        let are_open = below.is_some_and(|(_, to)| run.end <= *to);
        if are_open {
            self.close(run.clone());
            self.join_settled(&run);
        }
        are_open
    }

    /// Records are settled that were open, with the holes around them.
    fn join_settled(&mut self, closed: &Range<i64>) {
        let below = self.open.range(..closed.start).next_back();
        let from = below.map_or(self.committed, |(_, to)| *to);
        let above = self.open.range(closed.end..).next();
        let to = above.map_or(closed.end, |(above, _)| *above);
        let to = match self.settled.range(..=to).next_back() {
            // A range from before the assignment may reach further.
            Some((_, end)) => to
                .max(*end)
                .min(above.map_or(i64::MAX, |(above, _)| *above)),
            None => to,
        };
        while let Some((&start, _)) = self.settled.range(from..to).next() {
            self.settled.remove(&start);
        }
        self.settled.insert(from, to);
    }

    /// The record at `offset` is not settled after all: its hand-off was not done.
    pub(crate) fn reopen(&mut self, offset: i64) {
        if offset >= self.end || is_within(&self.open, offset) {
            return;
        }
        self.open(offset..offset + 1);
        if let Some((&from, &to)) = self.settled.range(..=offset).next_back()
            && offset < to
        {
            self.settled.remove(&from);
            if from < offset {
                self.settled.insert(from, offset);
            }
            if offset + 1 < to {
                self.settled.insert(offset + 1, to);
            }
        }
    }

    /// These records were given back to the log unhandled. It will hand them out again, and they are open until
    /// then. Returns the offset to go back to.
    pub(crate) fn give_back(&mut self, offsets: &[i64]) -> Option<i64> {
        self.returned.extend(offsets);
        offsets.iter().copied().min()
    }

    /// The offset that may be committed now.
    pub(crate) fn next(&self) -> i64 {
        self.open
            .first_key_value()
            .map_or(self.end, |(from, _)| *from)
    }

    /// The settled ranges above [`next`](Self::next).
    pub(crate) fn ahead(&self) -> Ranges {
        let next = self.next();
        let above = self.settled.iter().filter(|(_, to)| **to > next);
        above.map(|(from, to)| ((*from).max(next), *to)).collect()
    }

    /// The log holds this offset now. Ranges begin there at the earliest, so that none of them overlap.
    pub(crate) fn committed(&mut self, next: i64) {
        self.committed = self.committed.max(next);
        let above = self.settled.split_off(&self.committed);
        let below = std::mem::replace(&mut self.settled, above);
        if let Some((_, to)) = below.last_key_value()
            && *to > self.committed
        {
            self.settled.insert(self.committed, *to);
        }
    }

    /// Records that were handed out and are not settled.
    pub(crate) fn open_count(&self) -> usize {
        self.open_count
    }

    /// Those of them that were not given back.
    pub(crate) fn in_hand(&self) -> usize {
        self.open_count - self.returned.len()
    }

    /// Records below `start` that are not settled: so many were lost if the log begins there.
    pub(crate) fn unsettled_below(&self, start: i64) -> i64 {
        let next = self.next();
        let settled = self.ahead();
        let within = settled
            .range(..start)
            .map(|(from, to)| to.min(&start) - from);
        (start - next - within.sum::<i64>()).max(0)
    }

    /// How far the last record that was handed out lies above the committable offset.
    pub(crate) fn reach(&self) -> i64 {
        self.end - self.next()
    }

    /// Behind the last record that was handed out.
    pub(crate) fn end(&self) -> i64 {
        self.end
    }

    /// The offset that the log holds.
    pub(crate) fn position(&self) -> i64 {
        self.committed
    }
}

fn is_within(ranges: &Ranges, offset: i64) -> bool {
    let below = ranges.range(..=offset).next_back();
    below.is_some_and(|(_, to)| offset < *to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handed_out(offsets: impl IntoIterator<Item = i64>) -> OffsetTracker {
        let mut tracker = OffsetTracker::new(0, Ranges::new());
        for offset in offsets {
            assert!(tracker.hand_out(offset));
        }
        tracker
    }

    #[test]
    fn c02_the_commit_stops_at_the_first_unfinished_record() {
        let mut tracker = handed_out(0..10);
        for offset in [1, 2, 5, 9] {
            assert!(tracker.settle(offset));
        }
        assert_eq!(tracker.next(), 0);
        assert_eq!(tracker.ahead(), Ranges::from([(1, 3), (5, 6), (9, 10)]));
        assert!(tracker.settle(0));
        assert_eq!(tracker.next(), 3);
        assert_eq!(tracker.ahead(), Ranges::from([(5, 6), (9, 10)]));
        assert!(!tracker.settle(0), "settling twice changes nothing");
    }

    #[test]
    fn holes_are_passed_and_need_no_range_of_their_own() {
        let mut tracker = handed_out([0, 3, 6]);
        tracker.end_batch(9);
        tracker.settle(3);
        tracker.settle(6);
        assert_eq!(tracker.ahead().len(), 1);
        tracker.settle(0);
        assert_eq!(tracker.next(), 9);
    }

    #[test]
    fn a_hand_off_that_was_not_done_is_open_again() {
        let mut tracker = handed_out(0..5);
        for offset in 0..5 {
            tracker.settle(offset);
        }
        assert_eq!(tracker.next(), 5);
        tracker.reopen(2);
        assert_eq!(tracker.next(), 2);
        assert_eq!(tracker.ahead(), Ranges::from([(3, 5)]));
        tracker.settle(2);
        assert_eq!(tracker.next(), 5);
    }

    #[test]
    fn a_hand_off_that_waits_stays_open_when_records_before_it_are_committed() {
        let mut tracker = handed_out(0..7);
        for offset in 0..5 {
            tracker.settle(offset);
        }
        tracker.committed(1);
        tracker.settle(5);
        tracker.reopen(1);
        tracker.reopen(3);
        assert_eq!(tracker.next(), 1);
        assert_eq!(tracker.ahead(), Ranges::from([(2, 3), (4, 6)]));
    }

    #[test]
    fn records_that_were_given_back_are_handed_out_again() {
        let mut tracker = handed_out(0..6);
        tracker.settle(0);
        tracker.settle(4);
        assert_eq!(tracker.give_back(&[3]), Some(3));
        assert_eq!((tracker.open_count(), tracker.in_hand()), (4, 3));
        tracker.settle(1);
        tracker.settle(2);
        assert_eq!(tracker.next(), 3, "whatever is in hand above it");
        tracker.settle(5);
        assert_eq!(tracker.ahead(), Ranges::from([(4, 6)]));
        assert_eq!(tracker.unsettled_below(6), 1);
        assert!(tracker.hand_out(3));
        assert!(!tracker.hand_out(4), "it is settled");
        assert!(!tracker.hand_out(5), "it is settled meanwhile");
    }

    #[test]
    fn records_that_were_given_back_and_removed_are_holes() {
        let mut tracker = handed_out(0..6);
        tracker.give_back(&[2, 3, 4, 5]);
        tracker.settle(0);
        tracker.settle(1);
        assert_eq!(tracker.next(), 2);
        assert!(tracker.hand_out(5));
        tracker.end_batch(6);
        assert_eq!((tracker.next(), tracker.open_count()), (5, 1));
    }

    #[derive(Debug, Clone)]
    enum Step {
        HandOut { hole: i64, run: i64 },
        Settle(usize),
        SettleRun(usize, i64),
        Reopen(usize),
        GiveBack(u64),
        ReadAgain,
        Commit,
        CommitWithout(u64),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_i64..3, 1_i64..5).prop_map(|(hole, run)| Step::HandOut { hole, run }),
            4 => any::<usize>().prop_map(Step::Settle),
            2 => (any::<usize>(), 1_i64..6).prop_map(|(nth, run)| Step::SettleRun(nth, run)),
            1 => any::<usize>().prop_map(Step::Reopen),
            1 => any::<u64>().prop_map(Step::GiveBack),
            1 => Just(Step::ReadAgain),
            2 => Just(Step::Commit),
            2 => any::<u64>().prop_map(Step::CommitWithout),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        /// A list of records and whether each is settled says the same as the tracker.
        #[test]
        fn the_tracker_agrees_with_a_list(steps in proptest::collection::vec(step(), 1..120)) {
            let mut log: Vec<i64> = Vec::new();
            let mut durable = (0_i64, Ranges::new());
            let mut settled: BTreeSet<i64> = BTreeSet::new();
            let mut open: Vec<i64> = Vec::new();
            let mut returned: BTreeSet<i64> = BTreeSet::new();
            let mut tracker = OffsetTracker::new(0, Ranges::new());
            let mut end = 0;
            for step in steps {
                match step {
                    // The log goes on at the first of those that were given back.
                    Step::HandOut { .. } | Step::ReadAgain if !returned.is_empty() => {
                        let from = *returned.first().unwrap();
                        for offset in log.iter().copied().filter(|offset| *offset >= from) {
                            let is_back = returned.remove(&offset);
                            prop_assert_eq!(tracker.hand_out(offset), is_back, "{}", offset);
                            open.extend(is_back.then_some(offset));
                        }
                        tracker.end_batch(end);
                    }
                    Step::GiveBack(mask) => {
                        let back: Vec<i64> = open.iter().copied().enumerate()
                            .filter(|(n, _)| mask >> (n % 64) & 1 == 1)
                            .map(|(_, offset)| offset)
                            .collect();
                        open.retain(|offset| !back.contains(offset));
                        let from = tracker.give_back(&back);
                        prop_assert_eq!(from, back.iter().copied().min());
                        returned.extend(back);
                    }
                    Step::HandOut { hole, run } => {
                        let offsets = end + hole..end + hole + run;
                        end = offsets.end;
                        if !tracker.hand_out_new(offsets.clone()) {
                            for offset in offsets.clone() {
                                prop_assert!(tracker.hand_out(offset));
                            }
                        }
                        prop_assert!(!tracker.hand_out_new(offsets.clone()));
                        log.extend(offsets.clone());
                        open.extend(offsets);
                    }
                    Step::SettleRun(nth, run) if !open.is_empty() => {
                        let first = open[nth % open.len()];
                        let offsets = first..first + run;
                        // Nobody settles what was given back.
                        let is_back = offsets.clone().any(|offset| returned.contains(&offset));
                        if !is_back {
                            let are_open = offsets.clone().all(|offset| open.contains(&offset));
                            prop_assert_eq!(tracker.settle_all(offsets.clone()), are_open);
                            if are_open {
                                open.retain(|offset| !offsets.contains(offset));
                                settled.extend(offsets);
                            }
                        }
                    }
                    Step::Settle(nth) if !open.is_empty() => {
                        let offset = open.remove(nth % open.len());
                        prop_assert!(tracker.settle(offset));
                        settled.insert(offset);
                    }
                    Step::Reopen(nth) => {
                        let new: Vec<i64> = settled.iter().copied().filter(|offset| {
                            let (next, marks) = &durable;
                            offset >= next && !marks.iter().any(|(a, b)| a <= offset && offset < b)
                        }).collect();
                        if !new.is_empty() {
                            let offset = new[nth % new.len()];
                            settled.remove(&offset);
                            open.push(offset);
                            tracker.reopen(offset);
                        }
                    }
                    Step::Commit => {
                        durable = (tracker.next(), tracker.ahead());
                        tracker.committed(durable.0);
                    }
                    // Some hand-offs cannot be done yet: the others are committed without them.
                    Step::CommitWithout(mask) => {
                        let (next, marks) = durable.clone();
                        let is_new = |offset: &i64| {
                            *offset >= next && !marks.iter().any(|(a, b)| a <= offset && offset < b)
                        };
                        let mut without = tracker.clone();
                        for (n, offset) in settled.iter().copied().filter(is_new).enumerate() {
                            if mask >> (n % 64) & 1 == 1 {
                                without.reopen(offset);
                            }
                        }
                        durable = (without.next(), without.ahead());
                        tracker.committed(durable.0);
                    }
                    Step::Restart => {
                        tracker = OffsetTracker::new(durable.0, durable.1.clone());
                        settled.retain(|offset| {
                            *offset < durable.0
                                || durable.1.iter().any(|(a, b)| a <= offset && offset < b)
                        });
                        open.clear();
                        returned.clear();
                        for offset in log.iter().copied().filter(|offset| *offset >= durable.0) {
                            let is_new = tracker.hand_out(offset);
                            prop_assert_eq!(is_new, !settled.contains(&offset), "{}", offset);
                            if is_new {
                                open.push(offset);
                            }
                        }
                    }
                    Step::Settle(_) | Step::SettleRun(..) | Step::ReadAgain => {}
                }
                let lowest = open.iter().chain(&returned).copied().min();
                match lowest {
                    Some(lowest) => prop_assert_eq!(tracker.next(), lowest),
                    None => prop_assert!(tracker.next() >= end || log.is_empty()),
                }
                for offset in &log {
                    let is_ahead = tracker.ahead().iter().any(|(a, b)| a <= offset && offset < b);
                    let is_told = *offset < tracker.next() || is_ahead;
                    prop_assert_eq!(is_told, settled.contains(offset), "{}", offset);
                }
            }
        }
    }
}
