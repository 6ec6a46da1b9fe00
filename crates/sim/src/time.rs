//! Simulated time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::env::{Clock, Sleep};

use crate::executor::Shared;
use crate::node::NodeId;

/// Where the wall clocks of all simulations start: the first second of 2026.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// The clock of a simulated node.
///
/// **May fail:** the wall clock is off by the node's skew and jumps in both directions.
/// **Must not fail:** elapsed time never goes back, and no sleep ends early.
#[derive(Clone)]
pub struct SimClock {
    shared: Arc<Shared>,
    node: NodeId,
    /// When the node came up: a clock that starts anew with each life, as a process's does.
    since: Duration,
}

impl SimClock {
    pub(crate) fn new(shared: Arc<Shared>, node: NodeId, since: Duration) -> Self {
        Self {
            shared,
            node,
            since,
        }
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimClock({:?})", self.shared.now())
    }
}

impl Clock for SimClock {
    fn now(&self) -> SystemTime {
        let ahead = self.shared.clock_offset_ms(self.node);
        let true_time = UNIX_EPOCH + EPOCH + self.shared.now();
        let off = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 {
            true_time - off
        } else {
            true_time + off
        }
    }

    fn elapsed(&self) -> Duration {
        self.shared.now().saturating_sub(self.since)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let until = self.shared.now().saturating_add(duration);
        Box::pin(SimSleep {
            shared: Arc::clone(&self.shared),
            until,
            timer: None,
        })
    }
}

struct SimSleep {
    shared: Arc<Shared>,
    until: Duration,
    /// The number of our timer while we wait.
    timer: Option<u64>,
}

impl SimSleep {
    fn cancel(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.shared.cancel_timer(self.until, timer);
        }
    }
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.shared.now() >= self.until {
            return Poll::Ready(());
        }
        let timer = self.shared.set_timer(self.until, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
