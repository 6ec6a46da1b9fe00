//! The embedded log on a real disk, in real processes, and under the simulated scheduler.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about the real clock, the real disk and real processes"
)]

mod child;
mod fixture;
mod kills;
mod simulation;
mod slow;
mod threads;
