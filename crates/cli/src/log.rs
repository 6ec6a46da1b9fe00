//! The log of the configuration: opened here, or asked for where a running process holds it.

mod accounts;
mod failure;
mod find;
mod lag;
#[cfg(test)]
mod needs_kafka;
mod opened;
mod reach;
mod remote;
mod settings;
mod witness;

pub(crate) use accounts::{audited, component, unknown_loss};
pub(crate) use failure::report;
pub(crate) use lag::watch_lag;
pub(crate) use opened::{Opened, Scope};
pub(crate) use reach::{
    Holder, Reached, configured, holding, must_be_there, must_hold_a_log, reach,
};
pub(crate) use settings::{Backend, LogSettings};
pub(crate) use witness::LogWitness;
