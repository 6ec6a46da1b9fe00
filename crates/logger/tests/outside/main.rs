//! The logger as a process on this machine, a real disk and a Java peer see it.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about the real clock, the real disk and real processes"
)]

mod child;
mod jackson;
mod kills;
mod stopping;
