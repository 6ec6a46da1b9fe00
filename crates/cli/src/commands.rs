//! One file per command.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod config;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod flow;
pub(crate) mod group;
pub(crate) mod init;
mod input;
pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod outbox;
pub(crate) mod projection;
pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod shell;
pub(crate) mod spill;
pub(crate) mod stage;
pub(crate) mod tail;
pub(crate) mod topic;
pub(crate) mod where_is;
