//! The demos: small stories that anyone can check.
//!
//! Most run on the simulator, so an outage takes a moment, and a seed tells the whole story again. That
//! of the queue runs on a real database, because what a database does is what it is about.

mod consumer;
mod dependency;
mod engine;
mod log_story;
mod path;
mod queue_story;
mod story;

use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::Account;

pub(crate) use log_story::LogStory;
pub(crate) use queue_story::QueueStory;
pub(crate) use story::Story;

use crate::report::ErrorReport;

/// A story that can be told.
pub(crate) trait Tale {
    /// How it ends.
    type Verdict: Ending;

    /// Runs it to its end and shows it frame by frame.
    fn run(self, show: impl FnMut(&DemoFrame)) -> Result<Self::Verdict, ErrorReport>;
}

/// How a story ended.
pub(crate) trait Ending: Serialize {
    /// Whether the promise was kept.
    fn is_good(&self) -> bool;

    /// What people are told, line by line, before the verdict.
    fn lines(&self) -> Vec<String>;

    /// The command that tells the same story again.
    fn again(&self) -> String;
}

/// One look at a story while it runs.
pub(crate) struct DemoFrame {
    pub(crate) phase: &'static str,
    /// The number of the phase, counted from 1.
    pub(crate) number: usize,
    /// How many phases there are, the last one being the verdict.
    pub(crate) phases: usize,
    pub(crate) at: Duration,
    pub(crate) account: Account,
    /// What else there is to see.
    pub(crate) note: String,
}
