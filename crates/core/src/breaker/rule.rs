//! When a breaker opens and how it closes again.

use std::time::Duration;

/// When a breaker opens, for how long, and how many probes decide.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The condition that opens it.
    pub trip: Trip,
    /// How long it stays open before the probes.
    pub open_for: Duration,
    /// How many calls pass while it is half-open; at least one.
    pub probes: u32,
}

/// The condition that opens a breaker.
#[derive(Debug, Clone, PartialEq)]
pub enum Trip {
    /// Too large a share of the last calls failed, or was slow. The probes are judged by the same
    /// shares.
    Rates(Rates),
    /// This many failures in a row. Each probe must succeed.
    InARow {
        /// How many failures open it.
        failures: u32,
    },
}

/// Shares of the last calls, in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// How many calls are looked at.
    pub window: usize,
    /// How many there must be before anything is judged; never more than the window.
    pub minimum_calls: usize,
    /// The share of failed calls that opens it.
    pub failure_rate: f32,
    /// The share of slow calls that opens it.
    pub slow_call_rate: f32,
    /// A call that takes longer than this is slow.
    pub slow_call: Duration,
}

impl Rule {
    /// The event client's: five failed requests in a row, 30 seconds, one probe.
    #[must_use]
    pub fn event_log() -> Self {
        Self {
            trip: Trip::InARow { failures: 5 },
            open_for: Duration::from_secs(30),
            probes: 1,
        }
    }

    /// A binding's: half of the last 100 calls failed or 80 % took over five seconds, judged from
    /// the tenth call on; 60 seconds; five probes.
    #[must_use]
    pub fn binding() -> Self {
        let rates = Rates {
            window: 100,
            minimum_calls: 10,
            failure_rate: 50.0,
            slow_call_rate: 80.0,
            slow_call: Duration::from_secs(5),
        };
        Self {
            trip: Trip::Rates(rates),
            open_for: Duration::from_secs(60),
            probes: 5,
        }
    }
}
