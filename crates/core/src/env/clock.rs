//! Where the time comes from.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A pause on a [`Clock`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the time comes from.
///
/// An implementation must keep: [`elapsed`](Clock::elapsed) never goes back; a sleep completes no
/// earlier than asked, measured by `elapsed`; a sleep of zero completes. [`now`](Clock::now) may
/// jump in either direction at any moment, as wall clocks do.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The wall time, for what is written down.
    fn now(&self) -> SystemTime;

    /// Time since an arbitrary start, for measuring. Never goes back.
    fn elapsed(&self) -> Duration;

    /// Completes once `duration` has passed on this clock. Dropping it cancels the pause.
    fn sleep(&self, duration: Duration) -> Sleep;
}

impl dyn Clock + '_ {
    /// The outcome of `work`, or none when `limit` passes first; the work is then dropped.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        // A timer costs more than most work that has its outcome at once.
        let mut sleep: Option<Sleep> = None;
        poll_fn(|context| {
            if let Poll::Ready(outcome) = work.as_mut().poll(context) {
                return Poll::Ready(Some(outcome));
            }
            let sleep = sleep.get_or_insert_with(|| self.sleep(limit));
            sleep.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    /// The wall time in milliseconds since 1970, as it stands in headers and ids. A clock set
    /// before 1970 gives 0.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let since = self.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Not `as_millis`, whose 128-bit division would be most of the cost of minting an id.
        since
            .as_secs()
            .saturating_mul(1_000)
            .saturating_add(u64::from(since.subsec_millis()))
    }
}
