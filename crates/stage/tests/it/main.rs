//! Tests of the stage runtime.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests are steered by their environment, have a runtime of their own, and may panic"
)]

mod batch;
mod checkpoints;
mod crash_matrix;
mod deaths;
mod epochs;
mod idle;
mod lifecycle;
mod machine;
mod operators;
mod real;
mod simulation;
mod wrapped;
