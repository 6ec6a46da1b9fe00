//! Processes that die and stand still on a server that restarts.
//!
//! The parent, which nobody kills, keeps the promises; their outcome is read from the
//! tables and from what the children said. [`verdict`] holds the two against each other.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about the real clock and real processes"
)]
#![expect(
    clippy::print_stdout,
    reason = "a campaign says how to repeat it and what was done"
)]

mod child;
mod events;
mod evidence;
mod held;
mod pairs;
mod publisher;
mod server;
mod storm;
mod verdict;
mod watched;
