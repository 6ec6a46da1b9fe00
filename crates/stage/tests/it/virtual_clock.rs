//! A clock that a test moves, for a stage on a real log.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Sleep};

/// A clock that stands still until it is moved.
#[derive(Debug, Clone)]
pub(crate) struct VirtualClock(Arc<Mutex<Moved>>);

#[derive(Debug)]
struct Moved {
    start: SystemTime,
    passed: Duration,
    sleepers: Vec<Waker>,
}

impl VirtualClock {
    pub(crate) fn new(start: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(Moved {
            start,
            passed: Duration::ZERO,
            sleepers: Vec::new(),
        })))
    }

    pub(crate) fn advance(&self, by: Duration) {
        let sleepers = {
            let mut moved = self.0.lock();
            moved.passed += by;
            std::mem::take(&mut moved.sleepers)
        };
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> SystemTime {
        let moved = self.0.lock();
        moved.start + moved.passed
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().passed
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let until = self.elapsed().saturating_add(duration);
        let moved = Arc::clone(&self.0);
        Box::pin(std::future::poll_fn(move |context| {
            let mut moved = moved.lock();
            if moved.passed >= until {
                return Poll::Ready(());
            }
            moved.sleepers.push(context.waker().clone());
            Poll::Pending
        }))
    }
}
