//! The locks of the hand-overs between threads.
//!
//! A file with such a hand-over says `super::sync`. So the tests can take the same file once more,
//! beside locks that let a scheduler decide who goes first. They play it in thousands of orders
//! (`interleavings`).

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "kafka")]
pub(crate) use std::sync::{Condvar, atomic::AtomicU64};
#[cfg(feature = "kafka")]
pub(crate) use tokio::sync::Notify;
