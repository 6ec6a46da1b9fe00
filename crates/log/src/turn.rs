//! The order of the commits of a partition: what follows one that was not done is not done either.
//!
//! Commits are called one behind the other without waiting. Each says what became of the records since
//! the one before it, so if that one fails, the next would take the group past records that nobody
//! booked.
//!
//! **Invariant:** from the failure of a commit until its caller was told of it, no commit of the partition
//! is done, neither one that was called before the failure nor one that is called after it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::LogError;
use crate::record::TopicPartition;

/// The turn of a commit among those of a partition. It is taken when the commit is called.
///
/// ```
/// use tidegate_log::local::Turn;
///
/// let partition = Turn::default();
/// let (first, second, third) = (partition.next(), partition.next(), partition.next());
/// second.fail();
/// assert!(third.is_over());
/// assert!(!first.is_over(), "it was called before");
/// assert!(partition.next().is_over(), "nobody was told of the failure yet");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Turn {
    line: Arc<Line>,
    /// None for the partition itself, and for a commit that waits for nobody.
    place: Option<Arc<Place>>,
}

/// The commits of a partition that were called and are not forgotten.
#[derive(Debug, Default)]
struct Line(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Those that failed and whose caller was not told, and whether that one still waits to be.
    failed: BTreeMap<u64, bool>,
}

/// A commit of which somebody may still say that it has failed.
#[derive(Debug)]
struct Open {
    is_over: Arc<AtomicBool>,
    caller: Caller,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Waits,
    Told,
    /// The call was dropped.
    Gone,
}

impl Line {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a commit in the line.
#[derive(Debug)]
struct Place {
    line: Arc<Line>,
    number: u64,
    is_over: Arc<AtomicBool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.places().open.remove(&self.number);
    }
}

impl Turn {
    /// The turn of a commit that is called now.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut places = self.line.places();
        places.last += 1;
        let number = places.last;
        let is_over = Arc::new(AtomicBool::new(!places.failed.is_empty()));
        let open = Open {
            is_over: Arc::clone(&is_over),
            caller: Caller::Waits,
        };
        places.open.insert(number, open);
        drop(places);
        let line = Arc::clone(&self.line);
        Self {
            place: Some(Arc::new(Place {
                line: Arc::clone(&line),
                number,
                is_over,
            })),
            line,
        }
    }

    /// Whether an earlier commit has failed and nobody was told before this one was called: then it must
    /// not be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let place = self.place.as_ref();
        place.is_some_and(|place| place.is_over.load(Ordering::Acquire))
    }

    /// This commit is not done, or nobody knows whether it is. Every later turn is over that is taken
    /// before its caller was told; earlier ones are not.
    ///
    /// A turn that is over had to fail: that follows from a failure which was counted, and is no news.
    pub fn fail(&self) {
        let Some(place) = &self.place else {
            return;
        };
        let mut places = self.line.places();
        let caller = places.open.get(&place.number).map(|open| open.caller);
        if self.is_over() || caller == Some(Caller::Told) {
            return;
        }
        let waits = caller == Some(Caller::Waits);
        places.failed.insert(place.number, waits);
        for (_, later) in places.open.range(place.number + 1..) {
            later.is_over.store(true, Ordering::Release);
        }
    }

    /// The caller is told how it ended. `is_out_of_turn` says that it hears of an earlier failure by
    /// that, which counts as told if nobody else waits for it.
    fn tell(&self, is_out_of_turn: bool) {
        let Some(place) = &self.place else {
            return;
        };
        let mut places = self.line.places();
        if let Some(open) = places.open.get_mut(&place.number) {
            open.caller = Caller::Told;
        }
        places.failed.remove(&place.number);
        if is_out_of_turn {
            let is_kept = |number: u64, waits: bool| number > place.number || waits;
            places
                .failed
                .retain(|number, waits| is_kept(*number, *waits));
        }
    }

    /// The caller does not wait for it any more, and is told nothing.
    fn abandon(&self) {
        let Some(place) = &self.place else {
            return;
        };
        let mut places = self.line.places();
        if let Some(open) = places.open.get_mut(&place.number) {
            open.caller = Caller::Gone;
        }
        if let Some(waits) = places.failed.get_mut(&place.number) {
            *waits = false;
        }
    }
}

/// Two are the same if they have the same place in the same line.
impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        let number = |turn: &Self| turn.place.as_ref().map(|place| place.number);
        Arc::ptr_eq(&self.line, &other.line) && number(self) == number(other)
    }
}

impl Eq for Turn {}

/// The turns of one call, by partition. A call that is dropped before it is [in line](Self::in_line) has
/// failed.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    all: Vec<(TopicPartition, Turn)>,
    is_in_line: bool,
    is_told: bool,
}

impl Turns {
    pub(crate) fn new(all: Vec<(TopicPartition, Turn)>) -> Self {
        Self {
            all,
            is_in_line: false,
            is_told: false,
        }
    }

    /// From here on whoever has the commit says whether it is done.
    pub(crate) fn in_line(&mut self) {
        self.is_in_line = true;
    }

    /// The same turns, for whoever has the commit.
    pub(crate) fn held(&self) -> Vec<(TopicPartition, Turn)> {
        self.all.clone()
    }

    /// Whether it may still be done.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        check(&self.all)
    }

    /// Takes note of an answer that is given now.
    pub(crate) fn told<T>(&mut self, answer: &Result<T, LogError>) {
        self.is_told = true;
        if answer.is_err() {
            fail(&self.all);
        }
        for (at, turn) in &self.all {
            let is_it = matches!(answer, Err(LogError::OutOfTurn { at: of }) if of == at);
            turn.tell(is_it);
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        if !self.is_in_line {
            fail(&self.all);
        }
        self.all.iter().for_each(|(_, turn)| turn.abandon());
    }
}

/// Whether a commit with these turns may still be done.
pub(crate) fn check(turns: &[(TopicPartition, Turn)]) -> Result<(), LogError> {
    match turns.iter().find(|(_, turn)| turn.is_over()) {
        Some((at, _)) => Err(LogError::OutOfTurn { at: at.clone() }),
        None => Ok(()),
    }
}

/// A commit with these turns is not done.
pub(crate) fn fail(turns: &[(TopicPartition, Turn)]) {
    turns.iter().for_each(|(_, turn)| turn.fail());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Topic;

    fn at(number: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), number)
    }

    fn turns(partition: &Turn) -> Turns {
        Turns::new(vec![(at(0), partition.next())])
    }

    /// A call that is in line, refused there, and has not heard of it.
    fn refused(partition: &Turn) -> Turns {
        let mut turns = turns(partition);
        turns.in_line();
        fail(&turns.held());
        turns
    }

    #[test]
    fn a_failure_ends_the_turns_taken_before_it_was_told() {
        let partition = Turn::default();
        let (mut first, mut second) = (turns(&partition), turns(&partition));
        first.in_line();
        assert!(first.check().is_ok() && second.check().is_ok());
        first.told::<()>(&Err(LogError::Closed));
        let refused = second.check();
        assert!(matches!(refused, Err(LogError::OutOfTurn { .. })));
        let mut third = turns(&partition);
        second.told(&refused);
        assert!(third.check().is_ok(), "a refusal that follows counts once");
        third.told(&Ok(()));
    }

    #[test]
    fn a_failure_that_was_not_told_ends_the_turns_taken_after_it_too() {
        let partition = Turn::default();
        let mut first = refused(&partition);
        for _ in 0..2 {
            let mut second = turns(&partition);
            let refused = second.check();
            assert!(refused.is_err());
            second.told(&refused);
        }
        first.told::<()>(&Err(LogError::Closed));
        assert!(turns(&partition).check().is_ok());
    }

    #[test]
    fn a_failure_that_nobody_waits_for_is_told_by_the_next_refusal() {
        // Refused and then dropped, dropped and then refused, dropped before it was in line.
        for case in 0..3 {
            let partition = Turn::default();
            let mut first = turns(&partition);
            let held = first.held();
            match case {
                0 => fail(&held),
                1 => first.in_line(),
                _ => {}
            }
            drop(first);
            if case == 1 {
                fail(&held);
            }
            drop(held);
            let mut second = turns(&partition);
            let third = turns(&partition);
            let refused = second.check();
            assert!(refused.is_err() && third.check().is_err(), "case {case}");
            second.told(&refused);
            assert!(turns(&partition).check().is_ok(), "case {case}");
        }
    }

    #[test]
    fn an_error_of_another_kind_does_not_tell_of_a_call_that_was_dropped() {
        let partition = Turn::default();
        drop(turns(&partition));
        let mut second = turns(&partition);
        second.told::<()>(&Err(LogError::Closed));
        assert!(turns(&partition).check().is_err());
    }

    #[test]
    fn a_refusal_for_one_partition_is_a_failure_of_the_others() {
        let (one, two) = (Turn::default(), Turn::default());
        let mut first = turns(&one);
        let mut both = Turns::new(vec![(at(0), one.next()), (at(1), two.next())]);
        let mut behind = Turns::new(vec![(at(1), two.next())]);
        first.told::<()>(&Err(LogError::Closed));
        let refused = both.check();
        assert!(behind.check().is_ok());
        fail(&both.held());
        assert!(behind.check().is_err());
        both.told(&refused);
        behind.told::<()>(&Err(LogError::OutOfTurn { at: at(1) }));
        assert!(!one.next().is_over() && !two.next().is_over());
    }

    #[test]
    fn what_is_heard_late_of_a_call_that_was_answered_changes_nothing() {
        let partition = Turn::default();
        let mut first = turns(&partition);
        first.in_line();
        let held = first.held();
        first.told::<()>(&Err(LogError::Closed));
        let second = turns(&partition);
        fail(&held);
        assert!(second.check().is_ok() && turns(&partition).check().is_ok());
    }

    #[test]
    fn a_failure_leaves_earlier_turns_alone_and_nothing_is_kept_of_those_that_ended() {
        let partition = Turn::default();
        let (mut first, mut second) = (turns(&partition), turns(&partition));
        second.told::<()>(&Err(LogError::Closed));
        assert!(first.check().is_ok());
        first.told(&Ok(()));
        drop((first, second));
        let places = partition.line.places();
        assert!(places.open.is_empty() && places.failed.is_empty());
    }

    #[test]
    fn a_call_that_is_dropped_before_it_is_in_line_has_failed() {
        let partition = Turn::default();
        let (first, mut second) = (turns(&partition), turns(&partition));
        drop(first);
        let refused = second.check();
        assert!(refused.is_err());
        second.told(&refused);
        let (mut third, fourth) = (turns(&partition), turns(&partition));
        third.in_line();
        drop(third);
        assert!(fourth.check().is_ok(), "whoever has it says how it ends");
    }
}
