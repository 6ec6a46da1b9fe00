//! Tests of the stage runtime.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests are steered by their environment, have a runtime of their own, and may panic"
)]

mod batch;
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod chaos;
mod checkpoints;
mod child;
mod crash_matrix;
mod deaths;
mod epochs;
mod idle;
mod lifecycle;
mod machine;
mod operators;
mod real;
mod scenarios;
mod simulation;
mod virtual_clock;
mod wrapped;
