//! The promises of `tidegate-sim`.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests stray on purpose and read what steers them"
)]

mod determinism;
mod log_calls;
mod nodes;
mod ports;
mod toy_journal;
