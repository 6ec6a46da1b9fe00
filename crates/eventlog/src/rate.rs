//! The rate limit of each application.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidegate_core::Mutex;

use crate::limit::RATED_APPLICATIONS;

/// A wait is longer by this many seconds, so that no rounding makes it too short.
const ROUNDING: f64 = 0.001;

/// How many events each application may send in a second.
///
/// An application has a second's worth of events in hand. A batch that is larger than what is left is taken
/// while a whole event is left, and the application waits the longer for it.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    per_second: u32,
    applications: Mutex<HashMap<String, Allowance>>,
}

#[derive(Debug, Clone, Copy)]
struct Allowance {
    /// Events that may be sent now; negative after a large batch.
    events: f64,
    /// When that was so, on the clock that never goes back.
    as_of: Duration,
}

impl RateLimiter {
    /// The limit for each application.
    pub(crate) fn new(per_second: u32) -> Self {
        Self {
            per_second,
            applications: Mutex::default(),
        }
    }

    /// Events per second.
    pub(crate) fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Takes so many events of each application, or says who must wait, and how long. `now` never goes back.
    ///
    /// # Errors
    /// An application has sent too much; nothing was taken of any.
    pub(crate) fn admit(
        &self,
        counts: &BTreeMap<&str, usize>,
        now: Duration,
    ) -> Result<(), (String, Duration)> {
        let rate = f64::from(self.per_second);
        let mut applications = self.applications.lock();
        let mut admitted = Vec::new();
        for (application, events) in counts {
            let full = Allowance {
                events: rate,
                as_of: now,
            };
            let before = applications.get(*application).copied().unwrap_or(full);
            let since = now.saturating_sub(before.as_of).as_secs_f64();
            let left = (before.events + since * rate).min(rate);
            if left < 1.0 {
                let wait = (1.0 - left) / rate + ROUNDING;
                let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(1));
                return Err(((*application).to_owned(), wait));
            }
            #[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52")]
            let taken = *events as f64;
            let after = Allowance {
                events: left - taken,
                as_of: now,
            };
            admitted.push((*application, after));
        }
        for (application, after) in admitted {
            let is_known = applications.contains_key(application);
            if applications.len() >= RATED_APPLICATIONS && !is_known {
                // Whatever was quiet for a second has its full allowance again and need not be remembered.
                applications.retain(|_, one| {
                    let quiet = now.saturating_sub(one.as_of).as_secs_f64();
                    one.events + quiet * rate < rate
                });
            }
            // While all of that many applications are busy, a new one is not held back.
            if applications.len() < RATED_APPLICATIONS || is_known {
                applications.insert(application.to_owned(), after);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(
        limiter: &RateLimiter,
        counts: &[(&str, usize)],
        now: Duration,
    ) -> Result<(), Duration> {
        let counts = counts.iter().copied().collect();
        limiter.admit(&counts, now).map_err(|(_, wait)| wait)
    }

    #[test]
    fn a_batch_that_is_refused_takes_nothing_of_any_application() {
        let limiter = RateLimiter::new(10);
        assert_eq!(admit(&limiter, &[("b", 300)], Duration::ZERO), Ok(()));
        for _ in 0..5 {
            let counts = [("a", 9), ("b", 1)].into();
            let (application, _) = limiter.admit(&counts, Duration::ZERO).unwrap_err();
            assert_eq!(application, "b");
        }
        assert_eq!(admit(&limiter, &[("a", 10)], Duration::ZERO), Ok(()));
    }

    #[test]
    fn an_application_waits_for_what_it_sent_too_much() {
        let limiter = RateLimiter::new(100);
        let at = Duration::from_millis;
        assert_eq!(admit(&limiter, &[("a", 60)], at(0)), Ok(()));
        assert_eq!(
            admit(&limiter, &[("a", 240)], at(0)),
            Ok(()),
            "while an event is left"
        );
        assert_eq!(
            admit(&limiter, &[("b", 1)], at(0)),
            Ok(()),
            "others are free"
        );
        let wait = admit(&limiter, &[("a", 1)], at(0)).unwrap_err();
        assert!(wait > at(2_000) && wait < at(2_100), "{wait:?}");
        assert_eq!(admit(&limiter, &[("a", 1)], wait), Ok(()));
    }

    #[test]
    fn an_application_saves_up_no_more_than_a_second() {
        let limiter = RateLimiter::new(10);
        assert_eq!(admit(&limiter, &[("a", 1)], Duration::ZERO), Ok(()));
        let later = Duration::from_secs(3_600);
        assert_eq!(admit(&limiter, &[("a", 10)], later), Ok(()));
        assert!(admit(&limiter, &[("a", 1)], later).is_err());
    }
}
