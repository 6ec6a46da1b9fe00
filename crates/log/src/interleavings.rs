//! Hand-overs between threads, played in thousands of orders.
//!
//! Each takes the file of a hand-over a second time, beside other locks ([`sync`]), and plays scenes with
//! it ([`play`]). The log is not run here: whoever calls and whoever answers are small stand-ins.

#[path = "commit_order.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file has more users than this"
)]
mod commit_order;
mod commits;
pub(crate) mod play;
#[allow(dead_code, unused_imports, reason = "the logger takes this file too")]
pub(crate) mod sync;
