//! The promises of `tidegate-core`, held to the real ports of this machine.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read where the other side is"
)]

mod ports;
mod resilience4j;
