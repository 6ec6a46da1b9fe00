//! The order of the commits of a partition: what follows one that was not done is not done either.
//!
//! Commits are called one behind the other without waiting. Each says what became of the records since
//! the one before it, so if that one fails, the next would take the group past records that nobody
//! booked.

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
/// assert!(!partition.next().is_over(), "whoever knows of the failure goes on");
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
    is_over: BTreeMap<u64, Arc<AtomicBool>>,
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
        self.line.places().is_over.remove(&self.number);
    }
}

impl Turn {
    /// The turn of a commit that is called now.
    #[must_use]
    pub fn next(&self) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut places = self.line.places();
        places.last += 1;
        let number = places.last;
        places.is_over.insert(number, Arc::clone(&is_over));
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

    /// Whether an earlier commit has failed since this one was called: then it must not be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let place = self.place.as_ref();
        place.is_some_and(|place| place.is_over.load(Ordering::Acquire))
    }

    /// This commit is not done, or nobody knows whether it is. Every later turn that was taken before
    /// now is over; earlier ones are not.
    pub fn fail(&self) {
        if let Some(place) = &self.place {
            let places = self.line.places();
            for is_over in places
                .is_over
                .range(place.number + 1..)
                .map(|later| later.1)
            {
                is_over.store(true, Ordering::Release);
            }
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
}

impl Turns {
    pub(crate) fn new(all: Vec<(TopicPartition, Turn)>) -> Self {
        Self {
            all,
            is_in_line: false,
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
        self.is_in_line = true;
        if let Err(error) = answer {
            fail(&self.all, error);
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if !self.is_in_line {
            self.all.iter().for_each(|(_, turn)| turn.fail());
        }
    }
}

/// Whether a commit with these turns may still be done.
pub(crate) fn check(turns: &[(TopicPartition, Turn)]) -> Result<(), LogError> {
    match turns.iter().find(|(_, turn)| turn.is_over()) {
        Some((at, _)) => Err(LogError::OutOfTurn { at: at.clone() }),
        None => Ok(()),
    }
}

/// A commit with these turns is not done. Being out of turn follows from a failure that was counted,
/// and is none of its own: whoever goes on after that one was told is not disturbed.
pub(crate) fn fail(turns: &[(TopicPartition, Turn)], error: &LogError) {
    if !matches!(error, LogError::OutOfTurn { .. }) {
        turns.iter().for_each(|(_, turn)| turn.fail());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Topic;

    fn turns(partition: &Turn) -> Turns {
        let at = TopicPartition::new(Topic::new("t").unwrap(), 0);
        Turns::new(vec![(at, partition.next())])
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
    fn a_failure_leaves_earlier_turns_alone_and_nothing_is_kept_of_those_that_ended() {
        let partition = Turn::default();
        let (mut first, mut second) = (turns(&partition), turns(&partition));
        second.told::<()>(&Err(LogError::Closed));
        assert!(first.check().is_ok());
        first.told(&Ok(()));
        drop((first, second));
        assert!(partition.line.places().is_over.is_empty());
    }

    #[test]
    fn a_call_that_is_dropped_before_it_is_in_line_has_failed() {
        let partition = Turn::default();
        let (first, mut second) = (turns(&partition), turns(&partition));
        drop(first);
        assert!(second.check().is_err());
        second.in_line();
        drop(second);
        let (mut third, fourth) = (turns(&partition), turns(&partition));
        third.in_line();
        drop(third);
        assert!(fourth.check().is_ok());
    }
}
