//! Each server of `cargo xtask services` starts and answers a client that is not ours.
//!
//! Run by `cargo xtask test`, which sets the variables; a plain `cargo test` leaves them out.

mod needs_kafka;
mod needs_postgres;
mod needs_redis;

use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

/// A variable that `cargo xtask test` sets.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask test`, or load target/services/env")
    })
}

/// A name that no other test and no earlier run has used: servers keep their data.
fn fresh(name: &str) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is past 1970");
    format!("xtask-{name}-{}-{}", std::process::id(), now.as_nanos())
}

/// The output of a client, for the message of a failed assertion.
fn said(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
