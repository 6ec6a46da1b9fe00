//! The calls that a breaker remembers, and how it judges them.

use std::collections::VecDeque;
use std::time::Duration;

use super::{CallResult, Rates, Rule, Trip};

/// The verdict of the remembered calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowVerdict {
    /// Too few to tell.
    Undecided,
    /// The other side is fine.
    Good,
    /// The other side is not.
    Bad,
}

#[derive(Debug)]
pub(super) enum Window {
    /// The last calls, with running counts.
    Rates {
        rates: Rates,
        calls: VecDeque<WindowCall>,
        failed: usize,
        slow: usize,
    },
    /// Failures since the last success.
    InARow { failures: u32, seen: u32 },
    /// Successes of probes, each of which must succeed.
    Probes { needed: u32, seen: u32 },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct WindowCall {
    failed: bool,
    slow: bool,
}

impl Window {
    pub(super) fn closed(rule: &Rule) -> Self {
        match &rule.trip {
            Trip::Rates(rates) => Self::rates(rates, rates.window),
            Trip::InARow { failures } => Self::InARow {
                failures: *failures,
                seen: 0,
            },
        }
    }

    pub(super) fn half_open(rule: &Rule) -> Self {
        match &rule.trip {
            Trip::Rates(rates) => {
                Self::rates(rates, usize::try_from(rule.probes).unwrap_or(usize::MAX))
            }
            Trip::InARow { .. } => Self::Probes {
                needed: rule.probes.max(1),
                seen: 0,
            },
        }
    }

    fn rates(rates: &Rates, window: usize) -> Self {
        let window = window.max(1);
        let minimum_calls = rates.minimum_calls.clamp(1, window);
        let rates = Rates {
            window,
            minimum_calls,
            ..rates.clone()
        };
        Self::Rates {
            rates,
            calls: VecDeque::new(),
            failed: 0,
            slow: 0,
        }
    }

    pub(super) fn record(&mut self, result: CallResult, took: Duration) -> WindowVerdict {
        let is_failure = result == CallResult::Failure;
        match self {
            Self::Rates {
                rates,
                calls,
                failed,
                slow,
            } => {
                let call = WindowCall {
                    failed: is_failure,
                    slow: took > rates.slow_call,
                };
                if calls.len() == rates.window
                    && let Some(oldest) = calls.pop_front()
                {
                    *failed -= usize::from(oldest.failed);
                    *slow -= usize::from(oldest.slow);
                }
                calls.push_back(call);
                *failed += usize::from(call.failed);
                *slow += usize::from(call.slow);
                judge_rates(rates, calls.len(), *failed, *slow)
            }
            Self::InARow { failures, seen } => {
                *seen = if is_failure {
                    seen.saturating_add(1)
                } else {
                    0
                };
                if seen >= failures {
                    WindowVerdict::Bad
                } else {
                    WindowVerdict::Good
                }
            }
            Self::Probes { .. } if is_failure => WindowVerdict::Bad,
            Self::Probes { needed, seen } => {
                *seen += 1;
                if seen >= needed {
                    WindowVerdict::Good
                } else {
                    WindowVerdict::Undecided
                }
            }
        }
    }
}

fn judge_rates(rates: &Rates, calls: usize, failed: usize, slow: usize) -> WindowVerdict {
    if calls < rates.minimum_calls {
        return WindowVerdict::Undecided;
    }
    // Single precision and in this order, as in the breaker that users' thresholds come from: 1 of
    // 3 calls against a threshold of 33.333336 must come out the same way.
    #[expect(
        clippy::cast_precision_loss,
        reason = "windows are far below 2^24 calls"
    )]
    let share = |part: usize| part as f32 * 100.0 / calls as f32;
    if share(failed) >= rates.failure_rate || share(slow) >= rates.slow_call_rate {
        WindowVerdict::Bad
    } else {
        WindowVerdict::Good
    }
}
