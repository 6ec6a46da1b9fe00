//! The order of the commits of a partition: what follows one that was not done is not done either.
//!
//! Commits are called one behind the other without waiting. Each says what became of the records since
//! the one before it, so if that one fails, the next would take the group past records that nobody
//! booked.
//!
//! **Invariant:** from the failure of a commit until its caller was told of it, no commit of the partition
//! is done, neither one that was called before the failure nor one that is called after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::LogError;
use crate::record::TopicPartition;

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

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

    /// Whether nothing is kept of any commit.
    #[cfg(test)]
    pub(crate) fn is_forgotten(&self) -> bool {
        let places = self.line.places();
        places.open.is_empty() && places.failed.is_empty()
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
            let is_it =
                matches!(answer, Err(LogError::PrecedingCommitFailed { at: of }) if of == at);
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
        Some((at, _)) => Err(LogError::PrecedingCommitFailed { at: at.clone() }),
        None => Ok(()),
    }
}

/// A commit with these turns is not done.
pub(crate) fn fail(turns: &[(TopicPartition, Turn)]) {
    turns.iter().for_each(|(_, turn)| turn.fail());
}
