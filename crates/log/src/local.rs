//! A log within this process: groups and sessions in memory, over a [`RecordStorage`].
//!
//! The embedded log and the model of the simulation differ only in their [`RecordStorage`]. Who owns what
//! is decided by a value (`group`, `assignor`), what may be committed by another (`commit`); the rest
//! looks, waits and wakes.
//!
//! **What a crash leaves:** records, offsets and registered groups belong to the storage. Members, fences
//! and pauses end with the process, and so does everybody who could use an old one.

mod assignor;
mod commit;
mod group;
mod log;
mod members;
mod reader;
mod session;
mod storage;

pub use crate::commit_order::CommitTicket;
pub use log::LocalLog;
pub use storage::{GroupOffset, RecordStorage, Write};
