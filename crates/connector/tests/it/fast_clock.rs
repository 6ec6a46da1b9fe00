//! A clock that runs many times as fast as another one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::env::{Clock, Env, Sleep};

/// A clock on which an hour is over soon.
#[derive(Debug)]
struct FastClock {
    beneath: Arc<dyn Clock>,
    began: (SystemTime, Duration),
    times: u32,
}

impl Clock for FastClock {
    fn now(&self) -> SystemTime {
        let since = self.beneath.elapsed().saturating_sub(self.began.1);
        self.began.0 + since * self.times
    }

    fn elapsed(&self) -> Duration {
        self.beneath.elapsed() * self.times
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        // A little longer, so that nobody wakes before the time.
        let real = duration / self.times + Duration::from_millis(1);
        self.beneath.sleep(real.min(Duration::from_secs(3_600)))
    }
}

/// The same ports with a clock that runs so many times as fast.
pub(crate) fn fast(env: &Env, times: u32) -> Env {
    let mut fast = env.fork("fast");
    fast.clock = Arc::new(FastClock {
        began: (env.clock.now(), env.clock.elapsed()),
        beneath: Arc::clone(&env.clock),
        times,
    });
    fast
}
