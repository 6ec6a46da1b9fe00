//! What a binding promises, on the model, on the embedded log and on Kafka.
#![expect(
    clippy::disallowed_methods,
    reason = "tests are steered by their environment and have a runtime of their own"
)]

mod breaker;
mod lifecycle;
mod model_only;
mod offsets;
mod outages;
mod scene;
mod simulation;
mod suite;
mod tiers;
