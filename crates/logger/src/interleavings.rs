//! The hand-overs of the logger, played in thousands of orders.
//!
//! The files of the hand-overs are taken a second time, beside locks that let a scheduler decide who goes
//! first. Who logs is real; the API, the disk and their tasks are small stand-ins.

#[path = "batch_guard.rs"]
#[allow(dead_code, reason = "the file has more users than this")]
mod batch_guard;
#[path = "engine.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file has more users than this"
)]
mod engine;
mod events;
#[path = "logger.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file has more users than this"
)]
mod logger;
#[path = "../../log/src/interleavings/play.rs"]
mod play;
#[path = "spilling.rs"]
mod spilling;
#[path = "../../log/src/interleavings/sync.rs"]
mod sync;
