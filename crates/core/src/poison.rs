//! Keys that fail again and again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Tells keys that fail more often than they may within a window: their records are dead-lettered
/// without further retries.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::PoisonWindow;
/// let mut window = PoisonWindow::new(2, Duration::from_secs(60));
/// let fails = |w: &mut PoisonWindow, second| w.failed(b"key", Duration::from_secs(second));
/// assert_eq!([fails(&mut window, 0), fails(&mut window, 1), fails(&mut window, 2)], [false, false, true]);
/// ```
#[derive(Debug)]
pub struct PoisonWindow {
    /// Failures that a key may have within the window.
    threshold: usize,
    window: Duration,
    /// Keys that are watched at most; past it, the key whose last failure is oldest is forgotten.
    max_keys: usize,
    forgotten: u64,
    failures: BTreeMap<Vec<u8>, VecDeque<Duration>>,
    /// Keys by the time of their last failure, so that the oldest is found without a search.
    by_age: BTreeSet<(Duration, Vec<u8>)>,
}

impl PoisonWindow {
    /// Keys watched at most, unless set otherwise.
    pub const MAX_KEYS: usize = 10_000;

    /// A key is poison once it fails more than `threshold` times within `window`.
    #[must_use]
    pub fn new(threshold: usize, window: Duration) -> Self {
        Self {
            threshold,
            window,
            max_keys: Self::MAX_KEYS,
            forgotten: 0,
            failures: BTreeMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    /// The window that stages use: more than five failures within a minute.
    #[must_use]
    pub fn stage() -> Self {
        Self::new(5, Duration::from_secs(60))
    }

    /// The same, watching at most this many keys.
    #[must_use]
    pub fn with_max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys.max(1);
        self
    }

    /// Notes that a record of `key` failed at `now` and says whether the key is poison.
    #[must_use]
    pub fn failed(&mut self, key: &[u8], now: Duration) -> bool {
        let failures = self.failures.entry(key.to_vec()).or_default();
        if let Some(last) = failures.back() {
            self.by_age.remove(&(*last, key.to_vec()));
        }
        while failures
            .front()
            .is_some_and(|at| at.saturating_add(self.window) <= now)
        {
            failures.pop_front();
        }
        // One more than the threshold is all that is ever asked for.
        if failures.len() > self.threshold {
            failures.pop_front();
        }
        failures.push_back(now);
        let is_poison = failures.len() > self.threshold;
        self.by_age.insert((now, key.to_vec()));
        self.forget_oldest(now);
        is_poison
    }

    /// Forgets a key: a record of it went through.
    pub fn succeeded(&mut self, key: &[u8]) {
        if let Some(last) = self
            .failures
            .remove(key)
            .and_then(|failures| failures.back().copied())
        {
            self.by_age.remove(&(last, key.to_vec()));
        }
    }

    /// How many keys were forgotten because too many failed at once; each of them may get more
    /// retries than the threshold allows, none is lost.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn forget_oldest(&mut self, now: Duration) {
        while self.failures.len() > self.max_keys {
            let Some((last, key)) = self.by_age.pop_first() else {
                return;
            };
            self.failures.remove(&key);
            // A key whose window is over would have been let go anyway.
            self.forgotten += u64::from(last.saturating_add(self.window) > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sixth_failure_within_a_minute_is_poison_and_the_fifth_is_not() {
        let mut window = PoisonWindow::stage();
        let found: Vec<bool> = (0..6)
            .map(|n| window.failed(b"k", Duration::from_secs(n * 10)))
            .collect();
        assert_eq!(found, [false, false, false, false, false, true]);
        let mut window = PoisonWindow::stage();
        let slow = (0..20).any(|n| window.failed(b"k", Duration::from_secs(n * 12)));
        assert!(!slow, "five within any minute");
    }

    #[test]
    fn a_key_that_went_through_starts_anew() {
        let mut window = PoisonWindow::new(1, Duration::from_secs(60));
        assert!(!window.failed(b"k", Duration::ZERO));
        window.succeeded(b"k");
        assert!(!window.failed(b"k", Duration::ZERO));
        assert!(window.failed(b"k", Duration::ZERO));
    }

    #[test]
    fn it_watches_no_more_keys_than_it_may_and_says_so() {
        let mut window = PoisonWindow::new(1, Duration::from_secs(60)).with_max_keys(3);
        for n in 0..10_u8 {
            assert!(!window.failed(&[n], Duration::from_secs(u64::from(n))));
        }
        assert_eq!(
            (
                window.failures.len(),
                window.by_age.len(),
                window.forgotten()
            ),
            (3, 3, 7)
        );
        assert!(
            window.failed(&[9], Duration::from_secs(10)),
            "the newest are still watched"
        );
    }

    #[test]
    fn a_key_whose_window_is_over_is_let_go_and_not_counted() {
        let mut window = PoisonWindow::new(1, Duration::from_secs(60)).with_max_keys(1);
        let mut forgotten_after = |key: &[u8], seconds| {
            assert!(!window.failed(key, Duration::from_secs(seconds)));
            window.forgotten()
        };
        assert_eq!(forgotten_after(b"a", 0), 0);
        assert_eq!(forgotten_after(b"b", 60), 0, "the window of a is over");
        assert_eq!(forgotten_after(b"c", 119), 1, "that of b is not");
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list_of_all_failures(
            steps in proptest::collection::vec((0_u8..4, 0_u64..30, any::<bool>()), 0..200),
        ) {
            let mut window = PoisonWindow::stage();
            let mut all: Vec<(u8, u64)> = Vec::new();
            let mut now = 0;
            for (key, pause, succeeds) in steps {
                now += pause;
                if succeeds {
                    window.succeeded(&[key]);
                    all.retain(|(k, _)| *k != key);
                    continue;
                }
                all.push((key, now));
                let within = all.iter().filter(|(k, at)| *k == key && at + 60 > now).count();
                prop_assert_eq!(window.failed(&[key], Duration::from_secs(now)), within > 5);
            }
        }
    }
}
