//! Behavior of `KafkaLog` that only a real broker shows: access, outages, zombies, books and limits. The rules
//! that every log keeps are in `tests/conformance`.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about a real broker, real processes and the real clock"
)]

mod accounts;
mod broker;
mod child;
mod codecs;
mod doors;
mod flow;
mod fresh;
mod heard;
mod isolation;
mod leaving;
mod line;
mod outage;
mod proxy;
mod scene;
mod successor;
mod zombie;
