//! The promises of a binding, on the model, on the embedded log and on Kafka.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests are steered by their environment, have a runtime of their own, and may panic"
)]

mod conformance;
mod model_only;
mod scene;
mod simulation;
mod suite;
