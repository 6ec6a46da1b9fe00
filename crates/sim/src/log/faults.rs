//! Faults of a simulated log, by script and by chance.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::env::Entropy;

/// One thing that goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFault {
    /// The log is away: nothing is done, and the call says so.
    Refuse,
    /// The call takes this long.
    Delay(Duration),
    /// The connection breaks before a write has arrived. An append is tried again within the call;
    /// of a commit nobody knows.
    LoseRequest,
    /// The connection breaks after a write was done. An append is tried again within the call, and
    /// the log knows it; of a commit nobody knows.
    LoseAnswer,
}

/// How often things go wrong, in a thousand calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogRates {
    /// Calls that are refused.
    pub refuse: u64,
    /// Writes whose request is lost.
    pub lose_request: u64,
    /// Writes whose answer is lost.
    pub lose_answer: u64,
    /// Longest delay of a call.
    pub delay: Duration,
}

/// The faults to come.
#[derive(Debug)]
pub(super) struct LogFaults {
    pub(super) script: VecDeque<LogFault>,
    pub(super) rates: LogRates,
    pub(super) is_full: bool,
    random: Box<dyn Entropy>,
}

/// The fate of one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fate {
    pub(super) delay: Duration,
    pub(super) is_refused: bool,
    pub(super) is_request_lost: bool,
    pub(super) is_answer_lost: bool,
}

impl LogFaults {
    pub(super) fn new(random: Box<dyn Entropy>) -> Self {
        Self {
            script: VecDeque::new(),
            rates: LogRates::default(),
            is_full: false,
            random,
        }
    }

    /// The fate of the next write.
    pub(super) fn of_write(&mut self) -> Fate {
        let rates = self.rates;
        let mut fate = Fate {
            delay: self.delay(),
            is_refused: self.strikes(rates.refuse),
            is_request_lost: self.strikes(rates.lose_request),
            is_answer_lost: self.strikes(rates.lose_answer),
        };
        match self.script.pop_front() {
            Some(LogFault::Refuse) => fate.is_refused = true,
            Some(LogFault::Delay(delay)) => fate.delay = delay,
            Some(LogFault::LoseRequest) => fate.is_request_lost = true,
            Some(LogFault::LoseAnswer) => fate.is_answer_lost = true,
            None => {}
        }
        fate
    }

    /// The fate of the next call that is no write: it is done or refused.
    pub(super) fn of_call(&mut self) -> Fate {
        Fate {
            delay: self.delay(),
            is_refused: self.strikes(self.rates.refuse),
            ..Fate::default()
        }
    }

    fn delay(&mut self) -> Duration {
        let longest = u64::try_from(self.rates.delay.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.random.below(longest.saturating_add(1)))
    }

    fn strikes(&mut self, per_mille: u64) -> bool {
        self.random.below(1_000) < per_mille
    }
}
