//! The demos: small stories that anyone can check.
//!
//! That of the outage is real: a process that is stopped, files, HTTP. Four run on the simulator, so an outage or a
//! week takes a moment, and a seed tells the whole story again. Those of the queue
//! and of the outbox run on a real database, because they are about what a database does.

mod await_story;
mod consumer;
mod dependency;
mod engine;
mod log_story;
mod outage;
mod outbox_story;
mod path;
mod poison_story;
mod queue_story;
mod retry_story;

use std::time::Duration;

use tidegate_core::books::Account;

pub(crate) use await_story::AwaitStory;
pub(crate) use engine::{DemoFindings, DemoVerdict, Scene, tell};
pub(crate) use log_story::LogStory;
pub(crate) use outage::{OutageFrame, OutagePlan, OutageSample, OutageStory};
pub(crate) use outbox_story::OutboxStory;
pub(crate) use poison_story::PoisonStory;
pub(crate) use queue_story::QueueStory;
pub(crate) use retry_story::RetryStory;

/// An account as one equation: `accepted 3 = delivered 2 + dead lettered 1`.
pub(crate) fn equation(account: &Account) -> String {
    let parts = account.places();
    let parts = parts.iter().filter(|(_, count)| *count != 0);
    let parts = parts.map(|(name, count)| format!("{} {count}", name.replace('_', " ")));
    let mut sum = parts.collect::<Vec<_>>().join(" + ");
    if sum.is_empty() {
        sum.push('0');
    }
    let sign = if account.is_balanced() { "=" } else { "≠" };
    format!("accepted {} {sign} {sum}", account.accepted)
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
    /// Something else that there is to see.
    pub(crate) note: String,
}
