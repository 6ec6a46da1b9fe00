//! Acceptance of the event client.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

mod fixture;
mod golden;
mod losses;
mod queue;
mod replay;
mod shutdown;
mod simulation;
mod spill;
