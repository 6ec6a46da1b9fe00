//! Locks that let the scheduler of a test decide who goes first.
//!
//! No time passes in such a test: whoever waits for a while waits until it is woken. So a wake-up that
//! only a time-out would make good ends the test as a deadlock.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The promise of tokio's `Notify`: `notify_one` wakes the first who waits, or is kept for the next one
/// who does. One who was woken and goes away passes it on. `notify_waiters` wakes all that have called
/// `notified`, also those that do not wait yet, and is not kept.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    has_permit: bool,
    /// How often all were woken.
    rounds: u64,
    last: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    waker: Waker,
    woken: Option<By>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    One,
    All,
}

impl Inner {
    fn notify_one(&mut self) -> Option<Waker> {
        let first = self.waiting.iter_mut().find(|one| one.woken.is_none());
        match first {
            Some(first) => {
                first.woken = Some(By::One);
                Some(first.waker.clone())
            }
            None => {
                self.has_permit = true;
                None
            }
        }
    }
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_one(&self) {
        let waker = self.inner().notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut inner = self.inner();
        inner.rounds += 1;
        let waiting = inner.waiting.iter_mut();
        let woken: Vec<Waker> = waiting
            .filter(|one| one.woken.is_none())
            .map(|one| {
                one.woken = Some(By::All);
                one.waker.clone()
            })
            .collect();
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            rounds: self.inner().rounds,
            place: Place::Outside,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    rounds: u64,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Outside,
    Waiting(u64),
    Over,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.notify.inner();
        let (is_over, place) = match self.place {
            Place::Over => (true, Place::Over),
            Place::Outside if inner.rounds != self.rounds => (true, Place::Over),
            Place::Outside if inner.has_permit => {
                inner.has_permit = false;
                (true, Place::Over)
            }
            Place::Outside => {
                inner.last += 1;
                let number = inner.last;
                inner.waiting.push_back(Waiting {
                    number,
                    waker: context.waker().clone(),
                    woken: None,
                });
                (false, Place::Waiting(number))
            }
            Place::Waiting(number) => {
                let index = inner.waiting.iter().position(|one| one.number == number);
                let index = index.expect("it waits");
                if inner.waiting[index].woken.is_some() {
                    inner.waiting.remove(index);
                    (true, Place::Over)
                } else {
                    inner.waiting[index].waker = context.waker().clone();
                    (false, self.place)
                }
            }
        };
        drop(inner);
        self.place = place;
        if is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let Place::Waiting(number) = self.place else {
            return;
        };
        let mut inner = self.notify.inner();
        let index = inner.waiting.iter().position(|one| one.number == number);
        let left = index.and_then(|index| inner.waiting.remove(index));
        let passed_on = match left.and_then(|one| one.woken) {
            Some(By::One) => inner.notify_one(),
            Some(By::All) | None => None,
        };
        drop(inner);
        if let Some(waker) = passed_on {
            waker.wake();
        }
    }
}
