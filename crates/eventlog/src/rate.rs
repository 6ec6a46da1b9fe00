//! The rate limit of each application.

use std::collections::HashMap;
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

    /// Takes `events` of an application, or says when to try again. `now` never goes back.
    ///
    /// # Errors
    /// The application has sent too much; nothing was taken.
    pub(crate) fn admit(
        &self,
        application: &str,
        events: usize,
        now: Duration,
    ) -> Result<(), Duration> {
        let rate = f64::from(self.per_second);
        let mut applications = self.applications.lock();
        let full = Allowance {
            events: rate,
            as_of: now,
        };
        let before = applications.get(application).copied().unwrap_or(full);
        let since = now.saturating_sub(before.as_of).as_secs_f64();
        let left = (before.events + since * rate).min(rate);
        if left < 1.0 {
            let wait = (1.0 - left) / rate + ROUNDING;
            return Err(Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(1)));
        }
        if applications.len() >= RATED_APPLICATIONS && !applications.contains_key(application) {
            // Whatever was quiet for a second has its full allowance again and need not be remembered.
            applications.retain(|_, one| {
                let quiet = now.saturating_sub(one.as_of).as_secs_f64();
                one.events + quiet * rate < rate
            });
        }
        #[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52")]
        let taken = events as f64;
        let after = Allowance {
            events: left - taken,
            as_of: now,
        };
        // While all of that many applications are busy, a new one is not held back.
        if applications.len() < RATED_APPLICATIONS || applications.contains_key(application) {
            applications.insert(application.to_owned(), after);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_waits_for_what_it_sent_too_much() {
        let limiter = RateLimiter::new(100);
        let at = Duration::from_millis;
        assert_eq!(limiter.admit("a", 60, at(0)), Ok(()));
        assert_eq!(
            limiter.admit("a", 240, at(0)),
            Ok(()),
            "while an event is left"
        );
        assert_eq!(limiter.admit("b", 1, at(0)), Ok(()), "others are free");
        let wait = limiter.admit("a", 1, at(0)).unwrap_err();
        assert!(wait > at(2_000) && wait < at(2_100), "{wait:?}");
        assert_eq!(limiter.admit("a", 1, wait), Ok(()));
    }

    #[test]
    fn an_application_saves_up_no_more_than_a_second() {
        let limiter = RateLimiter::new(10);
        assert_eq!(limiter.admit("a", 1, Duration::ZERO), Ok(()));
        let later = Duration::from_secs(3_600);
        assert_eq!(limiter.admit("a", 10, later), Ok(()));
        assert!(limiter.admit("a", 1, later).is_err());
    }
}
