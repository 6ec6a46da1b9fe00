//! The outbox from outside, on every store and every log.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]

mod away;
mod backend;
mod books;
mod conformance;
mod front_log;
mod full_disk;
mod held;
mod metrics;
mod simulation;
mod stores;
mod upkeep;
