//! The queue from outside, on every store.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]

mod answers;
mod cleaning;
mod edges;
mod ended_transactions;
mod foreign;
mod forgetting;
mod gaps;
mod metrics;
mod own_connections;
mod poison;
mod postgres;
mod projector;
mod races;
mod recount;
mod registrations;
mod simulation;
mod slow_projections;
mod sqlite;
mod starving;
mod stores;
mod suite;
mod swaps;
