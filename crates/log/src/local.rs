//! A log within this process: groups and sessions in memory, over a shelf that keeps the records.
//!
//! The embedded log and the model of the simulation differ only in their [`Shelf`]. Who owns what
//! is decided by a value (`group`, `spread`), what may be committed by another (`commit`); the rest
//! looks, waits and wakes.
//!
//! **What a crash leaves:** records, offsets and registered groups are the shelf's. Members, fences
//! and pauses end with the process, and so does everybody who could use an old one.

mod commit;
mod group;
mod log;
mod reader;
mod session;
mod shelf;
mod spread;
mod team;

pub use crate::turn::Turn;
pub use log::LocalLog;
pub use shelf::{GroupOffset, Shelf, Write};
