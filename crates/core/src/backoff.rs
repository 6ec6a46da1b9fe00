//! How long to wait before the next attempt.

use std::time::Duration;

use crate::env::Entropy;

/// The wait before each retry.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::Backoff;
/// use tidegate_core::env::Stream;
/// let backoff = Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1));
/// let mut entropy = Stream::new(1);
/// let waits: Vec<u128> = (0..5).map(|n| backoff.wait(n, &mut entropy).as_millis()).collect();
/// assert_eq!(waits, [100, 200, 400, 800, 1000]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    shape: Shape,
    /// The share of the wait by which it may be shorter or longer.
    jitter: f64,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Exponential {
        initial: Duration,
        multiplier: f64,
        cap: Duration,
    },
    Linear {
        step: Duration,
        cap: Duration,
    },
    Steps(Vec<Duration>),
}

impl Backoff {
    /// `initial`, then `multiplier` times as long each time, at most `cap`; without jitter. A
    /// multiplier below 1, or not a number, counts as 1.
    #[must_use]
    pub fn exponential(initial: Duration, multiplier: f64, cap: Duration) -> Self {
        let multiplier = if multiplier >= 1.0 { multiplier } else { 1.0 };
        Self {
            shape: Shape::Exponential {
                initial,
                multiplier,
                cap,
            },
            jitter: 0.0,
        }
    }

    /// `step`, then longer by `step` each time, at most `cap`; without jitter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::Backoff;
    /// let backoff = Backoff::linear(Duration::from_millis(100), Duration::from_millis(250));
    /// let waits = [0, 1, 2, u32::MAX].map(|n| backoff.wait_without_jitter(n).as_millis());
    /// assert_eq!(waits, [100, 200, 250, 250]);
    /// ```
    #[must_use]
    pub const fn linear(step: Duration, cap: Duration) -> Self {
        Self {
            shape: Shape::Linear { step, cap },
            jitter: 0.0,
        }
    }

    /// These waits, one after the other; the last one stays.
    #[must_use]
    pub fn steps(waits: impl Into<Vec<Duration>>) -> Self {
        Self {
            shape: Shape::Steps(waits.into()),
            jitter: 0.0,
        }
    }

    /// The same with each wait shorter or longer by up to this share, so that whoever failed
    /// together does not come back together. Held to 0 … 1.
    #[must_use]
    pub fn with_jitter(mut self, share: f64) -> Self {
        self.jitter = if share > 0.0 { share.min(1.0) } else { 0.0 };
        self
    }

    /// The wait before retry number `retry`, counted from 0, with its jitter.
    pub fn wait(&self, retry: u32, entropy: &mut dyn Entropy) -> Duration {
        let plain = self.wait_without_jitter(retry);
        if self.jitter == 0.0 {
            return plain;
        }
        let swing = (entropy.unit() * 2.0 - 1.0) * self.jitter;
        scaled(plain, 1.0 + swing)
    }

    /// The wait before retry number `retry`, counted from 0, as it stands in the tables.
    #[must_use]
    pub fn wait_without_jitter(&self, retry: u32) -> Duration {
        match &self.shape {
            Shape::Exponential {
                initial,
                multiplier,
                cap,
            } => {
                let mut wait = *initial;
                // Multiplied step by step, and only until the cap: any number of retries is safe.
                for _ in 0..retry {
                    if wait >= *cap || *multiplier == 1.0 {
                        break;
                    }
                    wait = scaled(wait, *multiplier);
                }
                wait.min(*cap)
            }
            Shape::Linear { step, cap } => step.saturating_mul(retry.saturating_add(1)).min(*cap),
            Shape::Steps(waits) => {
                let index = usize::try_from(retry).unwrap_or(usize::MAX);
                waits
                    .get(index)
                    .or(waits.last())
                    .copied()
                    .unwrap_or_default()
            }
        }
    }
}

fn scaled(wait: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(wait.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// How often to try, and how long to wait in between.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Attempts in all, the first one included; none for no limit.
    pub attempts: Option<u32>,
    /// The waits between them.
    pub backoff: Backoff,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::Stream;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waits_with_jitter_swing_to_both_sides_and_waits_without_are_exact() {
        let plain = ms(1_000);
        let exact = Backoff::steps([plain]);
        let mut entropy = Stream::new(1);
        let mut waits = |backoff: &Backoff| -> Vec<Duration> {
            (0..100).map(|_| backoff.wait(0, &mut entropy)).collect()
        };
        assert!(waits(&exact).iter().all(|wait| *wait == plain));
        let swinging = waits(&exact.clone().with_jitter(0.5));
        assert!(swinging.iter().any(|wait| *wait < ms(750)), "{swinging:?}");
        assert!(
            swinging.iter().any(|wait| *wait > ms(1_250)),
            "{swinging:?}"
        );
    }

    proptest! {
        #[test]
        fn a_wait_stays_within_its_jitter_and_never_overflows(
            initial in 0_u64..100_000, cap in 0_u64..10_000_000, multiplier in -1.0_f64..1e6,
            jitter in -1.0_f64..2.0, retry in 0_u32..100_000, seed: u64,
        ) {
            let backoff = Backoff::exponential(ms(initial), multiplier, ms(cap)).with_jitter(jitter);
            let plain = backoff.wait_without_jitter(retry);
            prop_assert!(plain <= ms(cap));
            prop_assert!(plain >= backoff.wait_without_jitter(retry.saturating_sub(1)));
            let wait = backoff.wait(retry, &mut Stream::new(seed)).as_secs_f64();
            let (low, high) = (1.0 - backoff.jitter, 1.0 + backoff.jitter);
            let plain = plain.as_secs_f64();
            prop_assert!(wait >= plain * low - 1e-6 && wait <= plain * high + 1e-6);
        }
    }
}
