//! Tests of the stage runtime.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests are steered by their environment, have a runtime of their own, and may panic"
)]

mod deaths;
mod idle;
mod operators;
mod real;
mod simulation;
