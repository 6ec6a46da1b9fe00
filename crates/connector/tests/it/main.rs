//! The promises of a binding, on the model, on the embedded log and on Kafka.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests are steered by their environment, have a runtime of their own, and may panic"
)]

mod child;
mod conformance;
mod fast_clock;
mod model_only;
mod model_states;
mod numbers;
mod observed;
mod ordered_processes;
mod parked_only;
mod planted;
mod processes;
mod scene;
mod scripted_log;
mod simulation;
mod stores;
mod suite;
