//! The loan service from outside: over HTTP, in its database, in its topic and in its log lines.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

mod conformance;
mod dashboard;
mod desk;
mod lines;
mod program;

use desk::Desk;
