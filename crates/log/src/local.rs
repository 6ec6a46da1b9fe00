//! A log within this process: groups and sessions in memory, over a [`RecordStorage`].
//!
//! The embedded log and the model of the simulation differ only in their [`RecordStorage`]. A value
//! (`group`, `assignor`) decides who owns what, and another (`commit`) decides what may be committed.
//! The rest looks, waits and wakes.
//!
//! **After a crash:** records, offsets and registered groups are left, because they belong to the
//! storage. Members, fences and pauses end with the process, and so does everybody who could use an old
//! one.

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
