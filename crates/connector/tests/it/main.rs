//! The promises of a binding, on the model, on the embedded log and on Kafka.
#![expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment and have a runtime of their own"
)]

mod conformance;
mod model_only;
mod scene;
mod simulation;
mod suite;
