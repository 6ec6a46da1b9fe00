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

impl Retry {
    /// The event client sending to the Event Log API: one send and three retries.
    #[must_use]
    pub fn event_log() -> Self {
        let backoff = Backoff::exponential(ms(1_000), 2.0, ms(30_000)).with_jitter(0.125);
        Self {
            attempts: Some(4),
            backoff,
        }
    }

    /// A binding's tier 0, in memory: three attempts.
    #[must_use]
    pub fn tier_zero() -> Self {
        let backoff = Backoff::exponential(ms(100), 2.0, ms(2_000)).with_jitter(0.125);
        Self {
            attempts: Some(3),
            backoff,
        }
    }

    /// A binding's tiers in topics: after the first delivery, three tiers of three deliveries, each
    /// after its tier's delay. Within each delivery, [`tier_zero`](Self::tier_zero) applies: thirty
    /// attempts in all.
    #[must_use]
    pub fn tiers() -> Self {
        let mut waits = Vec::new();
        for delay in [10_000, 60_000, 300_000] {
            waits.extend([ms(delay); 3]);
        }
        Self {
            attempts: Some(10),
            backoff: Backoff::steps(waits),
        }
    }

    /// A relay publishing an outbox row: ten attempts, then dead.
    #[must_use]
    pub fn outbox() -> Self {
        let backoff = Backoff::exponential(ms(1_000), 2.0, ms(60_000)).with_jitter(0.125);
        Self {
            attempts: Some(10),
            backoff,
        }
    }

    /// The short ladder for consumers of outbox topics: 1 s, 10 s, 30 s, 2 min, then dead.
    #[must_use]
    pub fn consumer_ladder() -> Self {
        let waits = [ms(1_000), ms(10_000), ms(30_000), ms(120_000)];
        Self {
            attempts: Some(5),
            backoff: Backoff::steps(waits),
        }
    }

    /// A stage's `retry 3`: three attempts in all, the first at once.
    #[must_use]
    pub fn stage() -> Self {
        let backoff = Backoff::exponential(ms(100), 2.0, ms(30_000)).with_jitter(0.1);
        Self {
            attempts: Some(3),
            backoff,
        }
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::Stream;

    /// The waits of a preset in milliseconds, with the jitter as a share.
    fn table(retry: &Retry) -> (Option<u32>, Vec<u128>, f64) {
        let waits = (0..9)
            .map(|n| retry.backoff.wait_without_jitter(n).as_millis())
            .collect();
        (retry.attempts, waits, retry.backoff.jitter)
    }

    #[test]
    fn the_presets_hold_the_documented_numbers() {
        let check = |retry: Retry, attempts: u32, waits: [u128; 9], jitter: f64| {
            assert_eq!(table(&retry), (Some(attempts), waits.to_vec(), jitter));
        };
        let outbox = [
            1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000,
        ];
        let event_log = [
            1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000,
        ];
        let tier_zero = [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000, 2_000];
        let stage = [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600];
        let tiers = [
            10_000, 10_000, 10_000, 60_000, 60_000, 60_000, 300_000, 300_000, 300_000,
        ];
        let ladder = [
            1_000, 10_000, 30_000, 120_000, 120_000, 120_000, 120_000, 120_000, 120_000,
        ];
        check(Retry::event_log(), 4, event_log, 0.125);
        check(Retry::tier_zero(), 3, tier_zero, 0.125);
        check(Retry::tiers(), 10, tiers, 0.0);
        check(Retry::outbox(), 10, outbox, 0.125);
        check(Retry::consumer_ladder(), 5, ladder, 0.0);
        check(Retry::stage(), 3, stage, 0.1);
    }

    #[test]
    fn all_tiers_together_take_about_eighteen_minutes() {
        let tiers = Retry::tiers();
        let waits: Duration = (0..9).map(|n| tiers.backoff.wait_without_jitter(n)).sum();
        assert_eq!(waits, Duration::from_secs(1_110));
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
