//! The hand-overs of the logger, played in thousands of orders.
//!
//! The files of the hand-overs are taken a second time, beside locks that let a scheduler decide who goes
//! first. Who logs is real; the API, the disk and their tasks are small stand-ins.

mod events;
#[path = "held.rs"]
#[allow(dead_code, reason = "the file has more users than this")]
mod held;
#[path = "hub.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file has more users than this"
)]
mod hub;
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
