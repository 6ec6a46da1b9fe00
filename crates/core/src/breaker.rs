//! The circuit breaker: stops calling what does not answer, and finds out when it does again.
//!
//! ```text
//!            too many failures                    timer
//!   CLOSED ────────────────────▶ OPEN ────────────────────▶ HALF-OPEN
//!     ▲                           ▲  a probe fails, or none answers │
//!     │                           └─────────────────────────────────┤
//!     └─────────────────────────────────────────────────────────────┘
//!                          the probes are good
//! ```
//!
//! It is a plain value without clock or lock: the owner hands in the time and carries out what it
//! says. **Invariant:** an open breaker becomes half-open by [`Breaker::tick`] alone, at
//! [`Breaker::wakes_at`], because an open breaker pauses whoever would call.

mod rule;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use rule::{Rates, Rule, Trip};
use window::{Window, WindowVerdict};

/// Whether calls may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerState {
    /// Calls pass and are counted.
    Closed,
    /// No call passes.
    Open,
    /// A few calls pass, to find out.
    HalfOpen,
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "CLOSED",
            Self::Open => "OPEN",
            Self::HalfOpen => "HALF_OPEN",
        })
    }
}

/// A change of state, for whoever pauses, resumes, counts and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerChange {
    /// The state before.
    pub from: BreakerState,
    /// The state now.
    pub to: BreakerState,
    /// When, on the owner's clock.
    pub at: Duration,
}

/// How a call went, as far as the breaker cares. A permanent failure is neither: the other side
/// answered, so release its permit instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallResult {
    /// It worked.
    Success,
    /// It failed in a way that says something about the other side.
    Failure,
}

/// The right to one call. It goes back with [`Breaker::record`] or [`Breaker::release`].
#[derive(Debug)]
#[must_use = "a permit that is not given back keeps a half-open breaker waiting"]
pub struct Permit {
    generation: u64,
}

/// A circuit breaker.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::breaker::{Breaker, BreakerState, CallResult, Rule};
/// let mut breaker = Breaker::new(Rule::event_log());
/// let now = Duration::ZERO;
/// for _ in 0..5 {
///     let permit = breaker.try_acquire(now).expect("it is closed");
///     breaker.record(permit, CallResult::Failure, Duration::ZERO, now);
/// }
/// assert_eq!(breaker.state(), BreakerState::Open);
/// let later = breaker.wakes_at().expect("an open breaker has a timer");
/// breaker.tick(later);
/// assert_eq!(breaker.state(), BreakerState::HalfOpen);
/// ```
#[derive(Debug)]
pub struct Breaker {
    rule: Rule,
    state: BreakerState,
    /// Counts changes of state. So a late result, from a call that began in another state, is told
    /// apart and counts for nothing.
    generation: u64,
    window: Window,
    /// When the state began.
    since: Duration,
    half_open: HalfOpen,
}

#[derive(Debug, Default)]
struct HalfOpen {
    /// Permits that may still be given out.
    available: u32,
    /// When the last one was given out.
    last_given: Duration,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        let window = Window::closed(&rule);
        Self {
            rule,
            state: BreakerState::Closed,
            generation: 0,
            window,
            since: Duration::ZERO,
            half_open: HalfOpen::default(),
        }
    }

    /// Whether calls may pass.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// Takes the right to one call; none while it is open, or half-open with all probes out.
    pub fn try_acquire(&mut self, now: Duration) -> Option<Permit> {
        match self.state {
            BreakerState::Closed => {}
            BreakerState::Open => return None,
            BreakerState::HalfOpen => {
                self.half_open.available = self.half_open.available.checked_sub(1)?;
                self.half_open.last_given = now;
            }
        }
        Some(Permit {
            generation: self.generation,
        })
    }

    /// Gives a permit back with the result of its call, which took `took`.
    ///
    /// The result of a call that began in an earlier state changes nothing.
    pub fn record(
        &mut self,
        permit: Permit,
        result: CallResult,
        took: Duration,
        now: Duration,
    ) -> Option<BreakerChange> {
        if permit.generation != self.generation {
            return None;
        }
        if self.state == BreakerState::Open {
            return None;
        }
        match self.window.record(result, took) {
            WindowVerdict::Undecided => None,
            WindowVerdict::Bad => Some(self.change(BreakerState::Open, now)),
            WindowVerdict::Good if self.state == BreakerState::HalfOpen => {
                Some(self.change(BreakerState::Closed, now))
            }
            WindowVerdict::Good => None,
        }
    }

    /// Gives a permit back without a result: the call was canceled, or its failure says nothing
    /// about the other side.
    pub fn release(&mut self, permit: Permit) {
        if permit.generation == self.generation && self.state == BreakerState::HalfOpen {
            self.half_open.available += 1;
        }
    }

    /// When [`tick`](Self::tick) next has something to do.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        match self.state {
            BreakerState::Closed => None,
            BreakerState::Open => Some(self.since.saturating_add(self.rule.open_for)),
            // With all of them answered it would not be half-open any more.
            BreakerState::HalfOpen => (self.half_open.available == 0)
                .then(|| self.half_open.last_given.saturating_add(self.rule.open_for)),
        }
    }

    /// Does what is due at `now`. An open breaker becomes half-open. A half-open one opens again if its
    /// probes are all out and do not answer: a call that hangs must not keep it waiting for ever.
    pub fn tick(&mut self, now: Duration) -> Option<BreakerChange> {
        if self.wakes_at().is_none_or(|at| now < at) {
            return None;
        }
        match self.state {
            BreakerState::Closed => None,
            BreakerState::Open => Some(self.change(BreakerState::HalfOpen, now)),
            BreakerState::HalfOpen => Some(self.change(BreakerState::Open, now)),
        }
    }

    fn change(&mut self, to: BreakerState, at: Duration) -> BreakerChange {
        let from = std::mem::replace(&mut self.state, to);
        self.generation += 1;
        self.since = at;
        match to {
            BreakerState::Closed => self.window = Window::closed(&self.rule),
            BreakerState::Open => {}
            BreakerState::HalfOpen => {
                self.window = Window::half_open(&self.rule);
                self.half_open = HalfOpen {
                    available: self.rule.probes.max(1),
                    last_given: at,
                };
            }
        }
        BreakerChange { from, to, at }
    }
}
