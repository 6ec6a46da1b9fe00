//! A log within this process: groups and sessions in memory, over a shelf that keeps the records.
//!
//! The embedded log and the model of the simulation differ only in their [`Shelf`].

mod shelf;

pub use shelf::{GroupOffset, Shelf, Write};
